"""What the scenes of the demo play on: the client, the receivers, and a shell."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from keylane import Client

from ..models import Order, PaidBy, Refund, RefundRequest
from ..order import history, propose
from ..payments.client import PaymentClient

LIMIT_S = 20.0


class Failed(Exception):
    """Something did not come out as it must."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that a scene needs.

    Args:
        folder: Where files go.
        store_url: The store.
        client: Asks the orders.
        cards: The service that pays out to cards: it takes an operation id once, and can be asked about it.
        transfers: The bank: neither.
    """

    folder: Path
    store_url: str
    client: Client
    cards: PaymentClient
    transfers: PaymentClient
    failures: list[str] = field(default_factory=list[str])

    def title(self, text: str) -> None:
        """Begin a scene."""
        print(f"\n{text}\n", flush=True)

    def say(self, text: str) -> None:
        """Tell what happens."""
        print(f"   {text}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Say whether something holds; if it does not, the demo fails in the end."""
        print(f"   {'ok ' if holds else 'NOT'} {what}", flush=True)
        if not holds:
            self.failures.append(what)

    async def shell(self, *arguments: str, expected: int = 0, shows: bool = True) -> str:
        """Run `keylane` as a person at a terminal would, show it, and return what it printed."""
        command = [sys.executable, "-m", "keylane", *arguments, "--store", self.store_url]
        done = await anyio.run_process(command, check=False)
        output = done.stdout.decode().rstrip()
        if shows:
            self.say(f"$ keylane {' '.join(_quoted(each) for each in arguments)}")
            for line in output.splitlines():
                self.say(f"  {line}")
        if done.returncode != expected:
            raise Failed(f"keylane {' '.join(arguments)} gave {done.returncode}: {output}\n{done.stderr.decode()}")
        return output

    async def audit(self, receiver: str, service: PaymentClient, *, agrees: bool) -> None:
        """Compare our ledger with the books that the receiver gives out."""
        books = self.folder / f"{receiver}.csv"
        await anyio.Path(books).write_text(await service.books())
        compared = ("--receiver", receiver, "--amount-column", "amount", "--amount-field", "amount")
        expected = 0 if agrees else 1
        output = await self.shell("audit", *compared, "--against", str(books), expected=expected, shows=False)
        self.say(f"$ keylane audit {' '.join(compared)} --against {books.name}")
        for line in output.splitlines():
            self.say(f"  {line}")

    async def proposed(self, key: str, request: RefundRequest) -> Refund:
        """Begin a refund."""
        return await self.client.call(propose, key, request, idempotency_key=request.reason, timeout=LIMIT_S)

    async def ended(self, key: str, number: int) -> Refund:
        """Wait for the end of a refund."""
        with anyio.fail_after(LIMIT_S):
            while True:
                refunds = await self.client.call(history, key, timeout=LIMIT_S)
                found = next(each for each in refunds if each.number == number)
                if found.invocation:
                    return await self.client.attach(found.invocation, type=Refund).result(timeout=LIMIT_S)
                await anyio.sleep(0.02)


def order_of(key: str, amount: str, paid_by: PaidBy = PaidBy.CARD) -> Order:
    return Order.model_validate(
        {"key": key, "customer": f"customer of {key}", "amount": amount, "paid_by": paid_by}
    )  # fmt: skip


def _quoted(argument: str) -> str:
    return argument if argument.replace("-", "").replace("/", "").replace(":", "").isalnum() else f"'{argument}'"
