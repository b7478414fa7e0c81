"""What the scenes of the demo play on: the client, the receivers, and a shell."""

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from keylane import Client

from ..models import Order, PaidBy, Refund, RefundRequest
from ..order import history, propose
from ..payments.client import PaymentClient

LIMIT_S = 20.0
COLUMNS = 112


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

    async def shell(self, *arguments: str, expected: int = 0) -> None:
        """Run `keylane` as a person at a terminal would, and show what it prints."""
        self.show(arguments, await self.run(*arguments, expected=expected))

    def show(self, arguments: tuple[str, ...], output: str) -> None:
        """Show a command and what it has printed."""
        self.say(f"$ keylane {' '.join(shlex.quote(each) for each in arguments)}")
        for line in output.splitlines():
            self.say(f"  {line}".rstrip())

    async def run(self, *arguments: str, expected: int = 0) -> str:
        """Run `keylane` and return what it prints.

        Raises:
            Failed: Its exit code is another one than is expected.
        """
        command = [sys.executable, "-m", "keylane", *arguments, "--store", self.store_url]
        environment = {**os.environ, "COLUMNS": str(COLUMNS)}
        done = await anyio.run_process(command, check=False, env=environment, cwd=self.folder)
        output = done.stdout.decode().rstrip()
        if done.returncode != expected:
            raise Failed(f"keylane {' '.join(arguments)} gave {done.returncode}: {output}\n{done.stderr.decode()}")
        return output

    async def compared(self, receiver: str, service: PaymentClient) -> tuple[str, ...]:
        """Fetch the books of a receiver, and return the command that compares our ledger with them."""
        books = f"{receiver}.csv"
        await (anyio.Path(self.folder) / books).write_text(await service.books())
        columns = ("--amount-column", "amount", "--amount-field", "amount")
        return ("audit", "--receiver", receiver, "--against", books, *columns)

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
