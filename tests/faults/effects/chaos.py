"""Orders under chaos: workers are killed, payments are away for a while, and in the end the books are compared."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from keylane import Client, Handle
from keylane.journal.audit_reading import read_ours
from keylane.journal.auditing import BookRow
from keylane.journal.auditing import compare as compare_books
from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.key import parse_id
from keylane.objects.receivers import qualified_id
from tests.faults.harness import NeverHappenedError, eventually_answers

from .cells import REFUSED, Behaviour, Cell, Hit, Promise
from .manner import Booking
from .observed import docket_of, queue_of, receipt_of
from .receiver import ReceiverProcess
from .workers import GridWorker, Place

WORKERS: Final = 4
PARTS: Final = ("pay-1", "pay-2")
ORDERS_PER_SECOND: Final = 8
#: The pauses between two workers that are killed, those between two outages of payments, and how long these are.
KILLS_SECONDS: Final = (0.3, 1.2)
PAYMENTS_SECONDS: Final = (1.0, 3.0)
OUTAGES_SECONDS: Final = (0.1, 0.8)
#: Longer than the longest pause between two look-ups, which follows on many that have found nobody there.
REST_SECONDS: Final = 330.0
ID_LIMIT: Final = 200
#: Workers that start beside others on a small machine keep a lease of this length.
SETTINGS: Final[Mapping[str, object]] = {"lease_seconds": 1.0, "renewal_seconds": 0.25}
BEHAVIOURS: Final = {Behaviour.FAST: 5, Behaviour.SLOW: 3, Behaviour.DROPS: 3, Behaviour.REFUSES: 1}
#: Whose unknown outcomes nobody inside can settle in every case.
LEFT_TO_PEOPLE: Final = frozenset({Promise.LOOKUP, Promise.NEITHER})


@dataclass(frozen=True, slots=True)
class Order:
    """One order: two refunds of the same amount.

    Args:
        key: The object.
        cell: What the receiver promises and does.
    """

    key: str
    cell: Cell

    @classmethod
    def of(cls, number: int, choose: random.Random) -> Order:
        """Make one up."""
        behaviour = choose.choices(list(BEHAVIOURS), weights=list(BEHAVIOURS.values()))[0]
        return cls(f"acme/o-{number}", Cell(choose.choice(list(Promise)), Hit.NOTHING, behaviour))


@dataclass(frozen=True, slots=True)
class Audit:
    """How the receiver's books and ours compare.

    Args:
        problems: What does not fit together.
        endings: How many effects ended in which state.
        faults: How many times what went wrong.
    """

    problems: list[str]
    endings: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])


class Chaos:
    """Has orders refunded while things go wrong.

    Args:
        store_url: The store.
        namespace: A namespace that nothing else uses.
        folder: A folder of its own; the path is short.
        count: How many orders.
        seed: Decides what goes wrong, and what the receiver does about which order.
        mutant: Which safeguard all workers lack.
    """

    def __init__(
        self, store_url: str, namespace: str, folder: Path, count: int, seed: str, *, mutant: str = ""
    ) -> None:
        choose = random.Random(f"{seed} orders")
        self.orders = [Order.of(number, choose) for number in range(count)]
        self._seed = seed
        self._folder = folder
        self._manners = {order.key: order.cell.manner for order in self.orders}
        self._receiver = ReceiverProcess(folder, manners=self._manners)
        self._place = Place(store_url, namespace, self._receiver.socket, folder)
        self._mutant = mutant
        self._workers: list[GridWorker] = []
        self._spares: list[GridWorker] = []
        self._count = 0
        self._handles: dict[Order, Handle[list[str]]] = {}
        self._faults: Counter[str] = Counter()

    async def run(self) -> Audit:
        """Run all orders, and compare the books when nothing more is done."""
        try:
            await self._receiver.ready()
            self._load_spares(1)
            for _ in range(WORKERS):
                await self._start_worker()
            async with Client(self._place.store_url, namespace=self._place.namespace) as client:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._kill_workers)
                    tasks.start_soon(self._stop_payments)
                    await self._send_orders(client)
                    tasks.cancel_scope.cancel()
                await self._repair()
                await self._at_rest(client)
                return await self._audit(client)
        finally:
            for process in (*self._workers, *self._spares, self._receiver):
                process.kill()

    async def _send_orders(self, client: Client) -> None:
        for order in self.orders:
            wish = {"receiver": order.cell.receiver, "terms": {"order": order.key, "amount": "20.00"}}
            self._handles[order] = await client.send("Order", order.key, "refund", wish)
            await anyio.sleep(1 / ORDERS_PER_SECOND)

    def _load_spares(self, count: int) -> None:
        """Have workers ready to start, so that one that was killed is soon followed by another."""
        for _ in range(count):
            self._spares.append(GridWorker(self._place, f"w{self._count}", mutant=self._mutant, settings=SETTINGS))
            self._count += 1

    async def _start_worker(self) -> None:
        worker = self._spares.pop(0)
        self._workers.append(worker)
        self._load_spares(1)
        await worker.start()

    async def _kill_workers(self) -> None:
        choose = random.Random(f"{self._seed} workers")
        while True:
            await anyio.sleep(choose.uniform(*KILLS_SECONDS))
            self._faults["workers killed"] += 1
            victim = choose.choice(self._workers)
            self._workers.remove(victim)
            victim.kill()
            await self._start_worker()

    async def _stop_payments(self) -> None:
        choose = random.Random(f"{self._seed} payments")
        while True:
            await anyio.sleep(choose.uniform(*PAYMENTS_SECONDS))
            self._faults["payment outages"] += 1
            self._receiver.kill()
            await anyio.sleep(choose.uniform(*OUTAGES_SECONDS))
            await self._start_payments()

    async def _start_payments(self) -> None:
        self._receiver = ReceiverProcess(self._folder, manners=self._manners)
        await self._receiver.ready()

    async def _repair(self) -> None:
        """Have as many workers as there should be, and payments: the last fault may have been broken off."""
        if self._receiver.returncode is not None:
            await self._start_payments()
        for worker in [each for each in self._workers if "ready" not in each.lines]:
            worker.kill()
            self._workers.remove(worker)
        while len(self._workers) < WORKERS:
            await self._start_worker()

    async def _entries(self, client: Client, order: Order) -> Mapping[str, EffectEntry]:
        space = client.space_of(parse_id(self._handles[order].id))
        return (await docket_of(client, space, order.key)).effects

    async def _at_rest(self, client: Client) -> None:
        left = list(self.orders)

        async def rest() -> bool:
            while left:
                if not await self._is_at_rest(client, left[-1]):
                    return False
                left.pop()
            return True

        try:
            await eventually_answers(rest, "all orders are at rest", seconds=REST_SECONDS)
        except NeverHappenedError as error:
            entries = await self._entries(client, left[-1])
            raise AssertionError(f"{left[-1]}: {entries}\n{self._workers[0].stderr[-2000:]}") from error

    async def _is_at_rest(self, client: Client, order: Order) -> bool:
        entries = await self._entries(client, order)
        if any(entry.state is EffectState.UNRESOLVED for entry in entries.values()):
            return True
        return (await client.describe(self._handles[order].id)).status == "completed"

    async def _audit(self, client: Client) -> Audit:
        audit = Audit([], faults=self._faults)
        books = _by_operation(self._receiver.books)
        queued: set[tuple[str, str]] = set()
        for space in {client.space_of(parse_id(handle.id)) for handle in self._handles.values()}:
            queued |= await queue_of(client, space)
        truth: set[tuple[str, str]] = set()
        for order in self.orders:
            for name, entry in (await self._entries(client, order)).items():
                audit.endings[entry.state] += 1
                bookings = books.pop(self._qualified("Order", order.key, name), [])
                audit.problems.extend(f"{order} {name}: {problem}" for problem in compare(order, entry, bookings))
                if entry.state is EffectState.UNRESOLVED:
                    truth.add((order.key, name))
            audit.problems.extend(await self._told_wrongly(client, order))
        audit.problems.extend(f"only in the receiver's books: {operation}" for operation in books)
        audit.problems.extend(await self._findings(client))
        audit.problems.extend(f"in the queue, and known: {item}" for item in queued - truth)
        audit.problems.extend(f"not known, and not in the queue: {item}" for item in truth - queued)
        return audit

    async def _findings(self, client: Client) -> list[str]:
        """Return what Keylane's own comparison with the receiver's books finds, beside what lies with people."""
        spaces = [*{client.space_of(parse_id(handle.id)) for handle in self._handles.values()}]
        receivers = {order.key: order.cell.receiver for order in self.orders}
        paid = [booking for booking in self._receiver.books if booking.is_paid]
        findings: list[str] = []
        for receiver in sorted(set(receivers.values())):
            ours = [each async for each in read_ours(client.store, spaces, receiver, self._qualified)]
            theirs = [
                BookRow(booking.operation, line)
                for line, booking in enumerate(paid, 1)
                if receivers[booking.order] == receiver
            ]
            found = compare_books(ours, theirs)
            now_ms = int(time.time() * 1000)
            if not found.is_clean(allows_queued=True, now_ms=now_ms):
                findings.append(f"the audit of {receiver}: {found.findings}")
        return findings

    def _qualified(self, type_name: str, key: str, operation: str) -> str:
        return qualified_id(self._place.namespace, type_name, key, operation, ID_LIMIT)

    async def _told_wrongly(self, client: Client, order: Order) -> list[str]:
        handle = self._handles[order]
        if (await client.describe(handle.id)).status != "completed":
            return []
        entries = await self._entries(client, order)
        receipts = [None if name not in entries else receipt_of(entries[name]) for name in PARTS]
        told = [None if receipt == REFUSED else receipt for receipt in await handle.result(timeout=5)]
        return [] if told == receipts else [f"{order}: its handler was told {told}, and there are {receipts}"]


def compare(order: Order, entry: EffectEntry, bookings: Sequence[Booking]) -> list[str]:
    """Return what the receiver's lines about one operation and our entry disagree on."""
    receipts = [booking.receipt for booking in bookings if booking.is_paid]
    if len(receipts) > 1:
        return [f"paid {len(receipts)} times"]
    match entry.state:
        case EffectState.SUCCEEDED:
            receipt = receipt_of(entry)
            return [] if receipts == [receipt] else [f"succeeded with {receipt}, and paid {receipts}"]
        case EffectState.REJECTED:
            return [] if bookings and not receipts else [f"rejected, and paid {receipts}"]
        case EffectState.UNRESOLVED:
            may_be = order.cell.promise in LEFT_TO_PEOPLE
            return [] if may_be else ["it lies with people, and the contract could have settled it"]
        case other:
            return [f"still {other}"]


def _by_operation(books: Sequence[Booking]) -> dict[str, list[Booking]]:
    found: dict[str, list[Booking]] = defaultdict(list)
    for booking in books:
        found[booking.operation].append(booking)
    return found
