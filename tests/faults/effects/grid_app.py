"""The app under test: an object that asks a receiver for one effect, once for each contract of the grid."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from keylane import (
    App,
    Approval,
    Deduplicates,
    Effect,
    EffectRejected,
    NotSent,
    ObjectContext,
    Receiver,
    Rejected,
    VirtualObject,
)

from .cells import IN_FLIGHT_MS, REFUSED, Kind, Promise, Windows, receiver_name, windows_of
from .points import at_answer, at_first_byte
from .receiver import VARIABLE, ask, connect

OWNER = "grid-oncall"
#: As long as a call may be under way at all: one that the test holds must not end by itself.
CALL_TIMEOUT = timedelta(milliseconds=IN_FLIGHT_MS)


@dataclass(frozen=True, slots=True)
class Terms:
    """What money is moved for.

    Args:
        order: Names the order to the receiver.
        amount: How much.
    """

    order: str
    amount: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What an object is asked to do.

    Args:
        receiver: Whom it asks.
        terms: For what.
        is_approved: Whether a person is asked first.
    """

    receiver: str
    terms: Terms
    is_approved: bool = False


async def send(operation_id: str, terms: Terms) -> str:
    """Ask the receiver for money to be moved, and return the number of the receipt."""
    request = {"do": "pay", "order": terms.order, "operation": operation_id, "amount": terms.amount}
    try:
        question = await connect(os.environ[VARIABLE])
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotSent(str(error)) from error
    async with question:
        at_first_byte(lambda: question.send(request))
        answer = await question.answer()
    await at_answer(terms.order)
    return receipt_in(answer)


async def look(operation_id: str, terms: Terms) -> str | None:
    """Ask the receiver what became of an operation."""
    request = {"do": "look", "order": terms.order, "operation": operation_id}
    answer = await ask(os.environ[VARIABLE], request)
    return None if "absent" in answer else receipt_in(answer)


def receipt_in(answer: dict[str, Any]) -> str:
    """Return the receipt of an answer.

    Raises:
        Rejected: It is a refusal.
    """
    if "refused" in answer:
        raise Rejected(answer["refused"])
    return answer["receipt"]


def declare(promise: Promise, kind: Kind) -> Effect[Terms, str]:
    """Declare a receiver with one effect."""
    name = receiver_name(promise, kind)
    return declared(name, windows_of(promise, kind), is_punctual=promise is Promise.PUNCTUAL)


def declared(name: str, windows: Windows, *, is_punctual: bool = False) -> Effect[Terms, str]:
    """Declare a receiver by its times."""
    receiver = Receiver(
        name,
        owner=OWNER,
        deduplicates=None if windows.dedup_ms is None else Deduplicates(_ms(windows.dedup_ms)),
        lookup=look if windows.can_look_up else None,
        lookup_lag=_ms(windows.lag_ms),
        lookup_retention=None if windows.found_ms is None else _ms(windows.found_ms),
        absent_means="not_done" if windows.absence_counts else "unknown",
        late_calls="impossible" if is_punctual else "possible",
        in_flight=_ms(IN_FLIGHT_MS),
    )
    return receiver.effect(f"pay-{name}", timeout=CALL_TIMEOUT)(send)


def _ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


EFFECTS = {receiver_name(promise, kind): declare(promise, kind) for promise in Promise for kind in Kind}

# In one partition, so that one call of the store carries what all objects write at the same moment.
cell_object = VirtualObject("Cell", owner=OWNER, effects=list(EFFECTS.values()), partitions=1)
order_object = VirtualObject("Order", owner=OWNER, effects=list(EFFECTS.values()))


@cell_object.handler
async def pay(ctx: ObjectContext, wish: Wish) -> str:
    """Move money, after a person has said so where that is wished; returns the number of the receipt."""
    effect = EFFECTS[wish.receiver]
    approval = None
    if wish.is_approved:
        proposal = await ctx.propose(
            action=effect.name, order=wish.terms.order, amount=wish.terms.amount, expires_in=timedelta(hours=1)
        )
        approval = await ctx.approval(proposal)
    return await paid(ctx, wish, 1, approval)


@order_object.handler
async def refund(ctx: ObjectContext, wish: Wish) -> list[str]:
    """Move money twice, in two parts of the same amount; returns the numbers of the receipts."""
    return [await paid(ctx, wish, number) for number in (1, 2)]


async def paid(ctx: ObjectContext, wish: Wish, number: int, approval: Approval | None = None) -> str:
    """Have money moved, and return the number of the receipt, or that it was refused."""
    try:
        return await ctx.effect(
            EFFECTS[wish.receiver], operation_id=f"pay-{number}", params=wish.terms, approval=approval
        )
    except EffectRejected:
        return REFUSED


app = App([cell_object, order_object])
