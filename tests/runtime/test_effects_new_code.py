"""Effects in question that code before has asked for, and that the code which has them now does not know."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import App, Deduplicates, ObjectContext, Receiver, Runtime, Settings, VirtualObject
from keylane.journal.effect_cases import EffectCase
from keylane.journal.effects import EffectState
from keylane.journal.ledger import EventKind
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
SOON = 30.0
TO_PEOPLE = [EventKind.INTENDED, EventKind.UNKNOWN, EventKind.QUEUED]

bank = Bank(is_deduplicating=True)


class OtherTerms(Terms):
    """What a later version of the code takes."""

    currency: str


def order_taking(kind: type[Terms], **promises: Any) -> VirtualObject:
    """Return the object type as a version of the code has it."""
    receiver = Receiver("payments", owner="payments-oncall", **promises)

    async def send(operation_id: str, terms: Any) -> Receipt:
        return await bank.pay(operation_id, terms)

    send.__annotations__["terms"] = kind
    send_refund = receiver.effect("refund", timeout=timedelta(seconds=15))(send)
    order = VirtualObject("Order", owner="tests", effects=[send_refund], partitions=1)

    @order.handler
    async def refund(ctx: ObjectContext) -> str:  # pyright: ignore[reportUnusedFunction]
        receipt = await ctx.effect(send_refund, operation_id="r", params=Terms(amount=7))
        return receipt.id

    return order


async def left_in_question(store_url: str, namespace: str, before: VirtualObject, after: VirtualObject) -> EffectCase:
    """Have an effect called by code that goes away meanwhile, and return what the code after it has decided."""
    bank.empty()
    bank.whims.append("wait")
    settings = Settings(drain_limit_seconds=0.1)
    async with Runtime(App(before, settings=settings), store=store_url, namespace=namespace) as runtime:
        await runtime.client.send("Order", KEY, "refund")
        await bank.waiting.wait()
    async with Runtime(App(after, settings=settings), store=store_url, namespace=namespace) as runtime:
        return await looked_into(runtime)


async def looked_into(runtime: Runtime) -> EffectCase:
    """Return the one effect of the object as soon as its intent was found, and something was decided about it."""
    with anyio.fail_after(SOON):
        while True:
            found = await runtime.client.effects("Order", KEY)
            if found and found[0].state is not EffectState.INTENDED:
                return found[0]
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    "promises",
    [
        {"deduplicates": Deduplicates(timedelta(hours=1))},
        {"lookup": bank.find, "absent_means": "not_done", "late_calls": "impossible"},
    ],
    ids=["sent again", "asked"],
)
async def test_what_can_be_neither_sent_again_nor_asked_for_goes_to_people_at_once(
    store_url: str, namespace: str, promises: dict[str, Any]
) -> None:
    """They are told why; nothing is tried over and over until the receiver has forgotten the operation id."""
    before, after = order_taking(Terms, **promises), order_taking(OtherTerms, **promises)

    case = await left_in_question(store_url, namespace, before, after)

    assert [each.kind for each in case.tried] == TO_PEOPLE
    assert case.tried[-1].detail.startswith("its parameters can't be read by this code: ")
    assert (bank.calls("r"), bank.questions("r")) == (1, 0)


async def test_what_the_code_does_not_declare_any_more_goes_to_people_at_once(store_url: str, namespace: str) -> None:
    """Its contract is not known here, so that nothing may be done about it but by them."""
    before = order_taking(Terms, deduplicates=Deduplicates(timedelta(hours=1)))
    after = VirtualObject("Order", owner="tests", partitions=1)

    case = await left_in_question(store_url, namespace, before, after)

    assert [each.kind for each in case.tried] == TO_PEOPLE
    assert case.tried[-1].detail == "this code has no such effect, so nothing of it can be looked into"
    assert bank.calls("r") == 1
