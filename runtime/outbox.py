"""Delivers the messages of a worker's partitions: from durable outboxes to inboxes, each once and in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from ..journal import operations
from ..journal.batch import Commit, Operation
from ..journal.errors import StoreError
from ..journal.numbering import AGAIN_FIELD, Base, Counted, Posted
from ..journal.outbox import (
    Arrived,
    Delivery,
    Kept,
    Missing,
    Stale,
    Undelivered,
    deliver,
    read_entries,
    read_kept,
    read_span,
)
from .partition import Partition, Phase
from .route import WINDOW_MESSAGES, Route

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store

logger = logging.getLogger("keylane.outbox")

AGAIN_FIRST_SECONDS: Final = 0.02
AGAIN_CAP_SECONDS: Final = 2.0
READ_ENTRIES: Final = WINDOW_MESSAGES // 4


class Outbox:
    """The outgoing messages of one worker.

    Args:
        store: The open store.
        lost: Told of a partition whose messages to another one are lost in part.
        keep_ms: How long an entry stays after it has arrived: as long as the receiver's store may lose what it has
            confirmed, so that what is lost there can be sent once more.
    """

    def __init__(self, store: Store, lost: Callable[[Partition, PartitionSpace], None], keep_ms: int = 0) -> None:
        self._store = store
        self._lost = lost
        self.keep_ms = keep_ms
        self._routes: dict[Partition, dict[bytes, Route]] = {}
        self._is_again: dict[Partition, bool] = {}
        self._ready: dict[Route, None] = {}
        self._idle: asyncio.Future[None] | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether everything has arrived, as far as is known."""
        return not self._ready and not any(
            route.is_busy or route.has_more for routes in self._routes.values() for route in routes.values()
        )

    async def attend(self, partition: Partition) -> None:
        """Take over a partition's outboxes from the tenure before; to be done before anything is written.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where the numbers belong.
        """
        if partition in self._routes:
            return
        space = partition.space
        kept = await read_kept(self._store, space)
        numbering = partition.writer.numbering
        numbering.history = partition.history
        numbering.load(kept.counted)
        partition.writer.on_posted = partial(self._posted, partition)
        if kept.history is not None and kept.history != partition.history:
            kept = self._begin_history(partition, kept)
        # A history is named after the epoch that it began in: only the very first one has none before it.
        self._is_again[partition] = kept.is_again or not partition.history.startswith("1-")
        routes = self._routes[partition] = {}
        for outbox, counted in kept.counted.items():
            route = routes[outbox] = self._route(partition, outbox, counted, kept.bases.get(outbox, _FROM_ONE))
            if route.has_more:
                self._note(route)

    def _begin_history(self, partition: Partition, kept: Kept) -> Kept:
        """Have what has not arrived sent with numbers from 1, in the history that the partition has begun."""
        space = partition.space
        bases = {outbox: Base(counted.acknowledged) for outbox, counted in kept.counted.items()}
        writes = [operations.rebase(space, space.target(outbox).decode(), str(base)) for outbox, base in bases.items()]
        writes.append(operations.rebase(space, AGAIN_FIELD, partition.history))
        writes.append(operations.begin_history(space, partition.history))
        partition.writer.commit(Commit(writes, partial(self._begun, partition)))
        logger.warning("%s: its messages go on in history %s", space, partition.history)
        return Kept(partition.history, kept.counted, bases, is_again=True)

    def _begun(self, partition: Partition, now_ms: int, error: BaseException | None) -> None:
        del now_ms
        if error is not None:
            # Numbers of a history that is written nowhere would be given out twice.
            self.leave(partition)
            logger.error("%s: its messages wait, a new history can't be begun: %s", partition.space, error)

    def _route(self, partition: Partition, outbox: bytes, counted: Counted, base: Base) -> Route:
        type_name, _, number = partition.space.target(outbox).decode().rpartition(".")
        receiver = self._store.space(type_name, int(number))
        route = Route(partition, outbox, receiver, counted.assigned, counted.acknowledged, base)
        route.is_again = self._is_again[partition]
        return route

    async def look_again(self, partition: Partition, target: str) -> bool:
        """Take messages in that lie in an outbox without being known of, and write its numbers anew.

        Returns:
            Whether there were such messages.

        Raises:
            StoreUnavailable: The store is away.
            WrongKeyType: A foreign key stands where the outbox belongs.
        """
        outbox = partition.space.outbox(target)
        span = await read_span(self._store, outbox)
        routes = self._routes.get(partition)
        if routes is None:
            return False
        numbering = partition.writer.numbering
        first, last = span or (1, 0)
        is_news = last > numbering.known(outbox).assigned and last > numbering.given_out(outbox)
        if is_news:
            numbering.raise_to(outbox, Counted(last, first - 1))
            self._take_up(partition, routes, outbox, numbering.known(outbox))
        writes: list[Operation] = [operations.acknowledge(outbox, numbering.known(outbox).acknowledged)]
        partition.writer.commit(Commit(writes))
        return is_news

    def _take_up(self, partition: Partition, routes: dict[bytes, Route], outbox: bytes, counted: Counted) -> None:
        route = routes.get(outbox)
        if route is None:
            route = routes[outbox] = self._route(partition, outbox, counted, _FROM_ONE)
        route.assigned = max(route.assigned, counted.assigned)
        self._note(route)

    def leave(self, partition: Partition) -> None:
        """Deliver no more of a partition: whoever owns it next goes on."""
        self._routes.pop(partition, None)
        self._is_again.pop(partition, None)

    def _posted(self, partition: Partition, messages: list[Posted]) -> None:
        """Take the messages of a batch that has become durable."""
        routes = self._routes.get(partition)
        if routes is None:
            return
        for message in messages:
            route = routes.get(message.outbox)
            if route is None:
                route = routes[message.outbox] = self._route(partition, message.outbox, _NOTHING, _FROM_ONE)
            route.posted(message)
            self._note(route)

    def _note(self, route: Route) -> None:
        if route.is_busy:
            return
        self._ready[route] = None
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    async def run(self) -> None:
        """Send what is ready, all of it in one turn, until cancelled."""
        while True:
            if not self._ready:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            # One more turn of the loop lets the messages of other partitions join.
            await asyncio.sleep(0)
            ready, self._ready = self._ready, {}
            for route in ready:
                self._send(route)

    def _send(self, route: Route) -> None:
        if route.is_busy or not route.has_more or not self._is_ours(route):
            return
        route.is_busy = True
        if route.must_read:
            read_entries(
                self._store, route.outbox, route.acknowledged, READ_ENTRIES, partial(self._have_read, route)
            )  # fmt: skip
            return
        deliver(self._store, route.space, route.consignment(), partial(self._delivered, route))

    def _is_ours(self, route: Route) -> bool:
        partition = route.partition
        return partition in self._routes and partition.phase is not Phase.LOST and partition.writer.lost is None

    def _have_read(self, route: Route, found: list[tuple[int, bytes]] | StoreError) -> None:
        route.is_busy = False
        if not self._is_ours(route):
            return
        if isinstance(found, StoreError):
            self._again(route, str(found))
            return
        missing = route.read([entry for entry in found if entry[0] <= route.assigned])
        if missing is not None:
            self._report(route, *missing)
            # Where nothing follows what is lost, no delivery would ever note that it is done with.
            self._acknowledge(route)
        self._note(route)

    def _report(self, route: Route, first: int, last: int) -> None:
        space, owner = route.partition.space, route.partition.virtual_object.owner
        logger.error(
            "%s: its messages %d to %d to %s are lost: the store of one of the two has lost what it had confirmed; "
            "%s has to look into it", space, first, last, route.space, owner,
        )  # fmt: skip
        self._lost(route.partition, route.space)

    def _delivered(self, route: Route, delivery: Delivery) -> None:
        route.is_busy = False
        if not self._is_ours(route):
            return
        match delivery:
            case Arrived(before=before) if before + route.base.before > route.ceiling:
                # More was sent from here than we know of: a tail of ours is lost, and the numbers mean something else.
                self._restart(route, f"it has taken {before} messages, of which we know {route.ceiling}")
            case Arrived(after=after):
                route.arrived(after)
                self._acknowledge(route)
                self._note(route)
            case Missing(taken=taken):
                logger.warning("%s: %s has taken messages up to %d only", route.partition.space, route.space, taken)
                route.go_back(taken)
                self._note(route)
            case Stale():
                self._restart(route, "it knows a later history of ours")
            case Undelivered():
                self._again(route, delivery.why, is_refused=delivery.is_refused)
            case _:
                assert_never(delivery)

    def _again(self, route: Route, why: str, *, is_refused: bool = False) -> None:
        level = logging.ERROR if is_refused else logging.INFO
        logger.log(level, "%s: messages to %s will be sent again: %s", route.partition.space, route.space, why)
        delay = min(AGAIN_FIRST_SECONDS * 2**route.failures, AGAIN_CAP_SECONDS)
        route.failures = min(route.failures + 1, 10)
        # Until then nothing wakes it, also no further message.
        route.is_busy = True
        asyncio.get_running_loop().call_later(delay, self._rested, route)

    def _rested(self, route: Route) -> None:
        route.is_busy = False
        self._note(route)

    def _restart(self, route: Route, why: str) -> None:
        """Send what has not arrived in a history of its own; the receiver drops what it knows by its id."""
        partition = route.partition
        logger.error("%s: messages to %s begin anew: %s", partition.space, route.space, why)
        base = route.restarted()
        target = partition.space.target(route.outbox).decode()
        writes = [
            operations.rebase(partition.space, target, str(base)),
            operations.rebase(partition.space, AGAIN_FIELD, partition.history),
        ]
        route.is_busy = True
        partition.writer.commit(Commit(writes, partial(self._restarted, route, base)))

    def _restarted(self, route: Route, base: Base, now_ms: int, error: BaseException | None) -> None:
        del now_ms
        route.is_busy = False
        if not self._is_ours(route):
            return
        if error is not None:
            self._again(route, str(error), is_refused=True)
            return
        self._is_again[route.partition] = True
        for each in self._routes[route.partition].values():
            each.is_again = True
        route.restart(base)
        self._note(route)

    def _acknowledge(self, route: Route) -> None:
        """Take out of the outbox what has arrived, after it was kept for as long as it may be needed."""
        if route.is_acknowledging:
            return
        counted = route.partition.writer.numbering.known(route.outbox)
        if route.acknowledged <= counted.acknowledged:
            return
        route.is_acknowledging = True
        if self.keep_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(self.keep_ms / 1000, self._write_acknowledgement, route, route.acknowledged)
        else:
            self._write_acknowledgement(route, route.acknowledged)

    def _write_acknowledgement(self, route: Route, number: int) -> None:
        if not self._is_ours(route):
            return
        writes: list[Operation] = [operations.acknowledge(route.outbox, number)]
        route.partition.writer.commit(Commit(writes, partial(self._acknowledged, route)))

    def _acknowledged(self, route: Route, now_ms: int, error: BaseException | None) -> None:
        del now_ms
        route.is_acknowledging = False
        if error is None and self._is_ours(route):
            self._acknowledge(route)


_NOTHING: Final = Counted()
_FROM_ONE: Final = Base()
