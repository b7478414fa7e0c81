"""The app under test for undos: an object that moves money, fails, and so has the money taken back."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from keylane import App, Deduplicates, Effect, NotSent, ObjectContext, Receiver, TerminalError, VirtualObject

from .cells import IN_FLIGHT_MS, LONG_MS, Promise
from .grid_app import OWNER, Terms, look, receipt_in
from .points import at_answer
from .receiver import VARIABLE, connect
from .undo_cells import ACTION, CODE, PAID, PROMISES, TAKEN_BACK, Way, order_of_undo

IN_FLIGHT: Final = timedelta(milliseconds=IN_FLIGHT_MS)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an object is asked to do.

    Args:
        promise: What its receiver promises.
        way: How it says what undoes its effect.
        terms: For what money is moved.
    """

    promise: Promise
    way: Way
    terms: Terms


async def pay(operation_id: str, terms: Terms) -> str:
    """Ask the receiver for money to be moved, and return the number of the receipt."""
    request = {"do": "pay", "order": terms.order, "operation": operation_id, "amount": terms.amount}
    try:
        question = await connect(os.environ[VARIABLE])
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotSent(str(error)) from error
    async with question:
        question.send(request)
        return receipt_in(await question.answer())


async def take_back(operation_id: str, terms: Terms) -> str:
    """Ask it for the money to be moved back."""
    back = replace(terms, order=order_of_undo(terms.order))
    receipt = await pay(operation_id, back)
    await at_answer(back.order)
    return receipt


def declare(promise: Promise) -> tuple[Effect[Terms, str], Effect[Terms, str]]:
    """Declare a receiver with an effect and with what undoes it; both are returned."""
    is_asked = promise is Promise.PUNCTUAL
    receiver = Receiver(
        f"undoing-{promise.name.lower()}",
        owner=OWNER,
        deduplicates=Deduplicates(timedelta(milliseconds=LONG_MS)) if promise is Promise.DEDUP else None,
        lookup=look if is_asked else None,
        absent_means="not_done" if is_asked else "unknown",
        late_calls="impossible" if is_asked else "possible",
        in_flight=IN_FLIGHT,
        # What nobody knows yet must not be what keeps the undo from being asked for.
        while_unknown="allow",
    )
    undo = receiver.effect(ACTION, timeout=IN_FLIGHT)(take_back)
    return receiver.effect("pay", timeout=IN_FLIGHT, compensate_with=undo)(pay), undo


EFFECTS: Final = {promise: declare(promise) for promise in PROMISES}

# In one partition, so that one call of the store carries what all objects write at the same moment.
cell_object = VirtualObject(
    "Cell", owner=OWNER, effects=[each for pair in EFFECTS.values() for each in pair], partitions=1
)


@cell_object.handler
async def pay_and_fail(ctx: ObjectContext, asked: Asked) -> None:
    """Move money, and fail whatever has become of that."""
    effect, undo = EFFECTS[asked.promise]
    match asked.way:
        case Way.EFFECT:
            await ctx.effect(effect, operation_id=PAID, params=asked.terms, compensate=True)
        case Way.OUTCOME:
            await ctx.effect_outcome(effect, operation_id=PAID, params=asked.terms, compensate=True)
        case Way.APPROVED:
            terms = asked.terms
            proposal = await ctx.propose(action=ACTION, order=terms.order, amount=terms.amount, expires_in=None)
            approval = await ctx.approval(proposal)
            ctx.compensate("payment", undo, operation_id=TAKEN_BACK, params=terms, approval=approval)
            await ctx.effect(effect, operation_id=PAID, params=terms)
    raise TerminalError("no visa", code=CODE)


app = App([cell_object])
