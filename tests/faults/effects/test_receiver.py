from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.faults.harness import eventually

from .manner import Hold, Manner
from .receiver import NoAnswerError, ReceiverProcess, ask

pytestmark = pytest.mark.anyio

LONG_MS = 60_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kl-grid-") as folder:
        yield Path(folder)


def pay(receiver: ReceiverProcess, operation: str = "a") -> Any:
    return ask(receiver.socket, {"do": "pay", "order": "acme/o", "operation": operation, "amount": "1.00"})


def look(receiver: ReceiverProcess, operation: str = "a") -> Any:
    return ask(receiver.socket, {"do": "look", "order": "acme/o", "operation": operation})


async def test_without_dedup_money_moves_at_each_request_and_with_it_once(folder: Path) -> None:
    """The receiver of the grid would show a second call, unless its contract is not to."""
    with ReceiverProcess(folder) as receiver:
        await receiver.ready()
        first, second = await pay(receiver), await pay(receiver)
        await receiver.treat("acme/o", Manner(dedup_ms=LONG_MS))

        third = await pay(receiver)

    assert [booking.receipt for booking in receiver.books] == [first["receipt"], second["receipt"]]
    assert first != second
    assert third == first


async def test_two_requests_under_one_id_at_the_same_time_move_money_once(folder: Path) -> None:
    """Those that were held together go on one after the other."""
    with ReceiverProcess(folder, Manner(dedup_ms=LONG_MS, holds=(Hold.RECEIVED,))) as receiver:
        await receiver.ready()
        answers: list[Any] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(partial(_collect, answers, receiver))
            await eventually(lambda: receiver.times("received", "acme/o") == 3, "all are held")
            assert receiver.books == []
            await receiver.go(["acme/o"])

    assert len(receiver.books) == 1
    assert answers == [{"receipt": "r-1"}] * 3


async def _collect(answers: list[Any], receiver: ReceiverProcess) -> None:
    answers.append(await pay(receiver))


async def test_what_it_drops_is_done_and_found_and_the_next_request_is_answered(folder: Path) -> None:
    """An answer is lost, not the payment."""
    with ReceiverProcess(folder, Manner(dedup_ms=LONG_MS, can_look_up=True, drops=True)) as receiver:
        await receiver.ready()
        with pytest.raises(NoAnswerError):
            await pay(receiver)

        assert await look(receiver) == {"receipt": "r-1"}
        assert await pay(receiver) == {"receipt": "r-1"}


async def test_what_it_has_forgotten_is_not_found_and_done_again(folder: Path) -> None:
    """Past its windows a receiver pays twice, as its contract says: nobody may rely on it."""
    with ReceiverProcess(folder, Manner(dedup_ms=1, can_look_up=True, found_ms=1)) as receiver:
        await receiver.ready()
        await pay(receiver)
        await anyio.sleep(0.01)

        assert await look(receiver) == {"absent": True}
        assert await pay(receiver) == {"receipt": "r-2"}


async def test_what_it_does_for_somebody_dead_is_done(folder: Path) -> None:
    """A request that was held takes effect, though nobody is there to be told."""
    with ReceiverProcess(folder, Manner(holds=(Hold.RECEIVED,))) as receiver:
        await receiver.ready()
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pay, receiver)
                await eventually(lambda: receiver.times("received", "acme/o"), "it is held")
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught

        await receiver.go(["acme/o"])

        await eventually(lambda: len(receiver.books) == 1, "it is paid")


async def test_a_receiver_that_is_killed_goes_on_with_what_its_ledger_says(folder: Path) -> None:
    """Dedup and look-ups outlive its process; a line that was torn was never answered for."""
    manner = Manner(dedup_ms=LONG_MS, can_look_up=True)
    with ReceiverProcess(folder, manner) as receiver:
        await receiver.ready()
        first = await pay(receiver)
        receiver.kill()
        with receiver.ledger.open("a") as file:
            file.write('{"receipt": "r-')

    with ReceiverProcess(folder, manner) as receiver:
        await receiver.ready()

        assert await look(receiver) == await pay(receiver) == first
        assert (await pay(receiver, "b"))["receipt"] == "r-2"
        assert len(receiver.books) == 2


async def test_refusals_are_in_the_books_and_move_nothing(folder: Path) -> None:
    """A refusal can be looked up as a payment can."""
    with ReceiverProcess(folder, Manner(can_look_up=True, refuses=True)) as receiver:
        await receiver.ready()

        assert "refused" in await pay(receiver)
        assert "refused" in await look(receiver)
        assert [booking.is_paid for booking in receiver.books] == [False]


async def test_with_a_lag_whoever_asks_first_never_finds_what_was_done(folder: Path) -> None:
    """However slow a worker is, it meets the lag; or the receiver says that it came too late for that."""
    with ReceiverProcess(folder, Manner(can_look_up=True, lag_ms=1_000)) as receiver:
        await receiver.ready()
        await pay(receiver)
        assert await look(receiver) == {"absent": True}
        await anyio.sleep(0.6)
        assert await look(receiver) == {"receipt": "r-1"}

        await receiver.treat("acme/o", Manner(can_look_up=True, lag_ms=1))
        await pay(receiver, "b")
        await anyio.sleep(0.01)
        assert await look(receiver, "b") == {"receipt": "r-2"}
        await eventually(lambda: receiver.times("overslept", "acme/o") == 1, "it says so")
