"""An invocation while its owner has it in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from ..journal.messages import Attached, Caller
from ..journal.model_calls import NOTHING_SPENT
from ..journal.outcomes import Outcome
from ..journal.records import Record

if TYPE_CHECKING:
    from ..journal.mail import Mail
    from ..journal.place import Place
    from ..journal.standing import Standing
    from ..objects.handler import Handler
    from .checkpoints import KeptBack
    from .conductor import Conductor
    from .lane import Lane

#: Told once how an invocation ended: its outcome, or the error that stands for it.
Listener: TypeAlias = Callable[["Outcome | BaseException"], None]


class Hold(Enum):
    """Why the head of a lane can't run now."""

    RECALLING = auto()  # whether it is taken in at all: its idempotency key is looked up, or its validator runs
    RETRYING = auto()  # it is due later
    PAUSED = auto()  # somebody has to resume it
    WAITING = auto()  # another object's reply, or its time, has to come


@dataclass(frozen=True, slots=True)
class PauseWish:
    """That an invocation is to be paused at its next durable point: who wishes it, and why."""

    by: str
    reason: str


@dataclass(slots=True)
class IdempotencyClaim:
    """An idempotency key that a call brought with it: where it is kept and what it is compared with."""

    digest: bytes
    fingerprint: bytes
    raw_digest: bytes
    day: int
    accepted_at_ms: int


class Invocation:
    """One call of a handler, from intake to its durable end.

    Args:
        raw_id: The id, 16 bytes.
        handler: What runs; None when this code hosts no such handler.
        payload: The packed argument.
    """

    __slots__ = (
        "accepted",
        "arrived_at",
        "asked_for",
        "attached",
        "attempts",
        "begun_ms",
        "caller",
        "client",
        "conductor",
        "dues",
        "ended",
        "ending",
        "entry",
        "handler",
        "has_run",
        "hold",
        "idempotency",
        "kept_back",
        "lane",
        "listeners",
        "mail",
        "needs",
        "on_recalled",
        "patches",
        "pause_wish",
        "payload",
        "raw_id",
        "records",
        "refers",
        "refusals",
        "restarts",
        "spent_before",
        "standing",
        "task",
        "trace",
        "unmarked",
    )

    def __init__(self, raw_id: bytes, handler: Handler[Any, Any], payload: bytes | None) -> None:
        self.raw_id = raw_id
        self.handler = handler
        self.payload = payload
        self.client: bytes | None = None
        self.caller: Caller | None = None
        #: The context of the trace that it belongs to.
        self.trace: bytes | None = None
        #: When its waits end at the latest, in the partition's time, by place; None where none of them does by itself.
        self.dues: dict[Place, int] | None = None
        #: Runs its branches, while its handler runs and has any.
        self.conductor: Conductor | None = None
        #: Those that wait for its end without having asked for it.
        self.attached: tuple[Attached, ...] = ()
        self.entry: bytes | None = None
        self.idempotency: IdempotencyClaim | None = None
        self.listeners: list[Listener] = []
        #: What this code lacks to run it, where it has no handler for it.
        self.needs: str | None = None
        self.on_recalled: list[Callable[[], None]] = []
        self.pause_wish: PauseWish | None = None
        self.lane: Lane
        self.hold: Hold | None = None
        self.accepted = False
        #: Whether its handler was begun by this owner.
        self.has_run = False
        #: When it was taken in, by the partition's time, where an owner before has done that.
        self.begun_ms: int | None = None
        self.ended = False
        #: How many ends of its waits are on their way to the store.
        self.ending = 0
        self.attempts = 0
        self.refusals = 0
        self.records: list[Record] = []
        #: The changes of code that its journal says it runs with, and those of which the next record will say so.
        self.patches: frozenset[str] = frozenset()
        self.unmarked: tuple[str, ...] = ()
        #: How often it was begun again from an earlier command.
        self.restarts = 0
        #: What its model calls took whose commands do not count any more.
        self.spent_before = NOTHING_SPENT
        #: Digests of the large values that its records refer to, which are kept for as long as it is open.
        self.refers: set[bytes] | None = None
        self.standing: Standing | None = None
        #: Its signals and awakeables, with all that is queued; None while it has neither.
        self.mail: Mail | None = None
        #: Name and version of the handler, where this code has none of that name.
        self.asked_for: tuple[str, int] = ("", 0)
        #: Runs its handler, while it does.
        self.task: asyncio.Task[Any] | None = None
        #: What its handler has come to that is not written yet, nor part of where it stands.
        self.kept_back: KeptBack | None = None
        self.arrived_at = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its next attempt, for somebody, or for another object."""
        return self.hold is not None and self.hold is not Hold.RECALLING

    @property
    def due_ms(self) -> int:
        """When the first of its waits ends by itself, 0 where none does."""
        return min(self.dues.values()) if self.dues else 0

    @property
    def is_branched(self) -> bool:
        """Whether its handler may have branches: what it waits for does not tell whether all of it waits."""
        standing = self.standing
        if standing is None:
            return False
        extras = standing.extras
        is_known = bool(extras.branches) or bool(extras.step_attempts)
        return is_known or any(isinstance(wait.index, tuple) for wait in standing.waits)

    @property
    def stands_still(self) -> bool:
        """Whether all of it waits for something that sets it going by itself, whoever is the owner by then."""
        standing = self.standing
        if standing is None or not standing.waits or self.hold is Hold.RETRYING or standing.is_aside:
            return False
        if self.conductor is not None:
            return self.conductor.is_standing_still
        return self.hold is Hold.WAITING or not self.is_branched

    def tell(self, outcome: Outcome | BaseException) -> None:
        """Hand the outcome to everybody who waits for it in this process."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener(outcome)
