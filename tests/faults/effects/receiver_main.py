"""The receiver: a process that moves money, one JSON line each way over a unix socket, with a ledger on the disk.

A request is `pay`, `look`, `treat` (how an order is treated from now on) or `go` (what is held for an order goes on,
and nothing is held for it any more). What happens is also said on stdout, as `word order operation`: `received`,
`committed`, `repeated`, `refused`, `dropped`, `asked`, `found`, `absent`, `overslept` (nothing lags any more when it is
asked for the first time). Money moves when its line in the ledger is on the disk, also when nobody is there any more to
be told of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .manner import Booking, Hold, Manner, read_books


class Receiver:
    """The receiver's memory, which is what its ledger says, and how it treats which order.

    Args:
        ledger: The file.
        manner: How it treats orders about which nothing else was said.
        manners: How it treats the others.
    """

    def __init__(self, ledger: Path, manner: Manner, manners: dict[str, Manner]) -> None:
        self._ledger = ledger
        self._default = manner
        self._manners = manners
        self._goes: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._dropped: set[str] = set()
        self._asked_for: set[str] = set()
        self._count = 0
        self._bookings: dict[str, list[Booking]] = defaultdict(list)
        whole = read_books(ledger)
        for booking in whole:
            self._take(booking)
        if ledger.exists():
            # Behind a line that a kill has torn, the next one could not be read either.
            ledger.write_text("".join(map(_line, whole)))

    async def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Do what is asked for and return the answer; None to close the connection instead."""
        order = request["order"]
        match request["do"]:
            case "pay":
                return await self._pay(order, request["operation"], request["amount"])
            case "look":
                return await self._look(order, request["operation"])
            case "treat":
                self._manners[order] = Manner.of_json(request["manner"])
                self._goes[order] = asyncio.Event()
            case "go":
                self._goes[order].set()
            case other:
                raise ValueError(other)
        return {}

    def _manner(self, order: str) -> Manner:
        return self._manners.get(order, self._default)

    async def _pay(self, order: str, operation: str, amount: str) -> dict[str, Any] | None:
        manner = self._manner(order)
        say("received", order, operation)
        await self._hold(Hold.RECEIVED, order, manner)
        await asyncio.sleep(manner.delay_ms / 1000)
        known = self._known(operation, manner)
        if known is not None:
            say("repeated", order, operation)
            return _as_answer(known)
        booking = self._book(order, operation, amount, manner)
        await self._hold(Hold.COMMITTED, order, manner)
        if manner.drops and order not in self._dropped:
            self._dropped.add(order)
            say("dropped", order, operation)
            return None
        return _as_answer(booking)

    def _book(self, order: str, operation: str, amount: str, manner: Manner) -> Booking:
        # Nothing is awaited from the look at what is known to here, so two requests with one id can't both be new.
        receipt = "" if manner.refuses else f"r-{self._count + 1}"
        booking = Booking(receipt, operation, order, amount, time.time() * 1000)
        with self._ledger.open("a") as file:
            file.write(_line(booking))
            file.flush()
            os.fsync(file.fileno())
        self._take(booking)
        say("committed" if booking.is_paid else "refused", order, operation)
        return booking

    def _take(self, booking: Booking) -> None:
        self._bookings[booking.operation].append(booking)
        self._count += booking.is_paid

    def _known(self, operation: str, manner: Manner) -> Booking | None:
        """Return what an operation id has led to, while it is known."""
        bookings = self._bookings.get(operation)
        if not bookings or manner.dedup_ms is None:
            return None
        return bookings[0] if _age_ms(bookings[0]) < manner.dedup_ms else None

    async def _look(self, order: str, operation: str) -> dict[str, Any]:
        manner = self._manner(order)
        say("asked", order, operation)
        found = self._found(order, operation, manner)
        await self._hold(Hold.ASKED, order, manner)
        say("found" if found else "absent", order, operation)
        return _as_answer(found) if found else {"absent": True}

    def _found(self, order: str, operation: str, manner: Manner) -> Booking | None:
        for booking in self._bookings.get(operation, ()):
            age_ms = _age_ms(booking)
            if manner.found_ms is not None and age_ms >= manner.found_ms:
                continue
            if manner.lag_ms and self._is_hidden(order, operation, age_ms, manner.lag_ms):
                continue
            return booking
        return None

    def _is_hidden(self, order: str, operation: str, age_ms: float, lag_ms: int) -> bool:
        """Return whether what was done can't be found yet: half of the lag long, and by the first who asks in time."""
        is_first = operation not in self._asked_for
        self._asked_for.add(operation)
        if is_first and age_ms >= lag_ms * 0.9:
            say("overslept", order, operation)
            return False
        return is_first or age_ms < lag_ms / 2

    async def _hold(self, point: Hold, order: str, manner: Manner) -> None:
        if point in manner.holds:
            await self._goes[order].wait()


def _line(booking: Booking) -> str:
    return json.dumps(asdict(booking)) + "\n"


def _as_answer(booking: Booking) -> dict[str, Any]:
    return {"receipt": booking.receipt} if booking.is_paid else {"refused": "not this order"}


def _age_ms(booking: Booking) -> float:
    return time.time() * 1000 - booking.at_ms


def say(word: str, order: str, operation: str) -> None:
    """Tell whoever watches what happens."""
    sys.stdout.write(f"{word} {order} {operation}\n")
    sys.stdout.flush()


async def main(arguments: argparse.Namespace) -> None:
    manners = json.loads(arguments.manners.read_text())
    default = Manner.of_json(json.loads(arguments.manner))
    receiver = Receiver(arguments.ledger, default, {order: Manner.of_json(each) for order, each in manners.items()})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await receiver.answer(json.loads(line))
                if answer is None:
                    break
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            # Whoever asked is dead; what was done stays done.
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, arguments.socket)
    async with server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await server.serve_forever()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--manner", required=True)
    parser.add_argument("--manners", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
