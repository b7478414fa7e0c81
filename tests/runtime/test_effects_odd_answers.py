"""What functions of receivers say that is none of what they may say: told with the effect, and guessed nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from pydantic import BaseModel, field_serializer

from keylane import NotSent, ObjectContext, Receiver, Rejected, VirtualObject
from keylane.journal.effect_cases import EffectCase
from keylane.journal.effects import EffectState
from keylane.testing import Harness, harness

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
QUICK = timedelta(milliseconds=300)
SURROGATE = "\ud800"
#: What the next calls and look-ups do.
answers: list[Callable[[], Any]] = []


class Fickle(BaseModel):
    """A receipt whose own code can't write it."""

    id: str

    @field_serializer("id")
    def give_up(self, value: str) -> str:
        raise KeyError(value)


async def find(operation_id: str, terms: dict[str, int]) -> Any:
    del operation_id, terms
    return answers.pop(0)() if answers else None


asked = Receiver("asked", owner="asked-oncall", lookup=find, in_flight=timedelta(seconds=20))


@asked.effect("refund", timeout=QUICK)
async def send_refund(operation_id: str, terms: dict[str, int]) -> Any:
    del operation_id, terms
    return answers.pop(0)() if answers else "done"


order = VirtualObject("Order", owner="tests", effects=[send_refund])


@order.handler
async def refund(ctx: ObjectContext, operation: str) -> Any:
    return await ctx.effect(send_refund, operation_id=operation, params={"amount": 7})


@pytest.fixture
async def h(store_url: str) -> AsyncIterator[Harness]:
    """Give a harness on the store that all tests share."""
    answers.clear()
    async with harness(order, store=store_url, auto_advance=False) as h:
        yield h


def raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


async def asked_for(h: Harness, *said: Callable[[], Any]) -> EffectCase:
    """Have a refund asked for to which this is said, and return where it stands then."""
    answers.extend(said)
    await h.send(refund, KEY, "op")
    await h.settled()
    (case,) = await h.client.effects(order, KEY)
    return case


@pytest.mark.parametrize("receipt", [{"id": SURROGATE}, [SURROGATE], SURROGATE, Fickle(id="r"), object()])
async def test_a_receipt_that_cannot_be_written_leaves_it_unknown_and_says_so(h: Harness, receipt: object) -> None:
    """It was done, for all that is known; it is neither taken for lost nor asked for again."""
    case = await asked_for(h, lambda: receipt)
    assert case.state is EffectState.UNKNOWN
    assert case.why.startswith("it was done, but its receipt can't be recorded: ")


async def test_a_look_up_with_such_a_receipt_has_failed(h: Harness) -> None:
    """It is counted, and told as what it was."""
    case = await asked_for(h, raising(ConnectionError("lost")), lambda: {"id": SURROGATE})
    assert (case.state, case.lookups) == (EffectState.UNKNOWN, 1)
    assert "its receipt can't be recorded" in case.last_answer


@pytest.mark.parametrize("reason", [None, 7, ("no", "such customer"), ValueError("no")])
async def test_a_rejection_is_one_whatever_its_reason_is(h: Harness, reason: object) -> None:
    """What the receiver says for sure does not become a question because its reason is no text."""
    case = await asked_for(h, raising(Rejected(cast("str", reason))))
    assert case.state is EffectState.REJECTED
    assert case.why == str(reason)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, timedelta.max, -5, "7"])
async def test_what_was_not_sent_is_so_whatever_pause_is_asked_for(h: Harness, seconds: Any) -> None:
    """A header of somebody else's may say anything; nothing has left all the same, and nobody has to look into it."""
    case = await asked_for(h, *[raising(NotSent("busy", retry_after=seconds))] * 100)
    assert case.state is EffectState.NOT_SENT


async def test_an_operation_id_that_no_receiver_could_be_told_is_refused(h: Harness) -> None:
    """It ends its own invocation, and nothing of the worker: others go on."""
    handle = await h.send(refund, KEY, "op")
    assert await handle.result(timeout=10) == "done"
    odd = await h.send(by_key, KEY)
    await h.advance(timedelta(minutes=5))
    described = await odd.describe()
    assert described.pause is not None
    assert "lone surrogate" in described.pause.detail
    assert await h.call(refund, "acme/o-2", "op", timeout=10) == "done"


@order.handler
async def by_key(ctx: ObjectContext) -> Any:
    return await ctx.effect(send_refund, operation_id=f"refund-{SURROGATE}", params={"amount": 7})
