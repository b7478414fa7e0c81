"""What is undone where a worker is killed: the objects, the moments, and what a ledger says of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .cells import LONG_MS, Promise
from .manner import Manner

PAID: Final = "pay-1"
TAKEN_BACK: Final = "pay-1-undo"
ACTION: Final = "take-back"
#: How the handler has failed when all that it did is undone.
CODE: Final = "no-visa"
PROMISES: Final = (Promise.DEDUP, Promise.PUNCTUAL, Promise.NEITHER)


class Way(StrEnum):
    """How a handler says what undoes its effect."""

    EFFECT = "ctx.effect(compensate=True)"
    OUTCOME = "ctx.effect_outcome(compensate=True)"
    APPROVED = "ctx.compensate(approval=)"


class Moment(StrEnum):
    """When the worker is killed."""

    ASKED = "the intent of the effect is durable, and nothing was sent"
    PAID = "the effect is done, and nobody was told"
    KNOWN = "that it was done is recorded, and its undo is not asked for"
    INTENDED = "the intent of the undo is durable, and nothing was sent"
    TAKEN_BACK = "the undo is done, and nobody was told"
    ANSWERED = "its answer has come, and is not recorded"


@dataclass(frozen=True, slots=True)
class UndoCell:
    """One object.

    Args:
        promise: What its receiver promises.
        way: How it says what undoes its effect.
    """

    promise: Promise
    way: Way

    @property
    def key(self) -> str:
        """The object."""
        return f"acme/{self.promise.name.lower()}-{self.way.name.lower()}"


CELLS: Final = tuple(UndoCell(promise, way) for promise in PROMISES for way in Way)


@dataclass(frozen=True, slots=True)
class Books:
    """What the receiver's ledger says of one object, and who knows of it.

    Args:
        paid: How many times money was moved.
        taken_back: How many times it was moved back.
        asked: Which operation lies with people while nothing else goes on; empty where all has ended.
        approval: The operation that has used the approval of the undo up; empty for none.
    """

    paid: int
    taken_back: int
    asked: str = ""
    approval: str = ""


def order_of_undo(order: str) -> str:
    """Return under which order the receiver takes money back, so that a test can tell both requests apart."""
    return f"{order}.undo"


def manner_of(promise: Promise) -> Manner:
    """Return how a receiver keeps what it promises."""
    return Manner(dedup_ms=LONG_MS if promise is Promise.DEDUP else None, can_look_up=promise is Promise.PUNCTUAL)
