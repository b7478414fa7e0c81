"""When the results of steps are written: before the code goes on, while it does, or with what has to be durable next.

What a handler keeps back is not part of where its invocation stands: it becomes so in the commit that writes it. So
whoever ends the invocation otherwise, or takes it over, finds it where its journal ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from ..journal import operations
from ..journal.command_records import StepCompleted, StepFailed
from ..journal.transitions import advance
from .large_values import kept_delta, kept_for, weigh

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.operations import Delta
    from .invocation import Invocation
    from .lane import Lane

#: What becomes of a step that has no attempt to follow.
StepResult: TypeAlias = StepCompleted | StepFailed

#: With so many results on their way to the store, the next step of an `async` handler waits for them.
IN_FLIGHT_MAX: Final = 32
#: As much as this is kept back by an `exit` handler before it is written after all: one commit has to hold it.
KEPT_BACK_MAX: Final = 100
KEPT_BACK_BYTES_MAX: Final = 256 << 10


@dataclass(slots=True)
class KeptBack:
    """Results of steps that are in memory alone.

    Attributes:
        results: The results, in order.
        writes: The state that was written before the last of them.
        size_bytes: How large the results are.
    """

    results: list[StepResult] = field(default_factory=list[StepResult])
    writes: Delta = field(default_factory=dict[str, bytes | None])
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it has to be written before more is kept back."""
        return len(self.results) >= KEPT_BACK_MAX or self.size_bytes >= KEPT_BACK_BYTES_MAX


def keep_back(invocation: Invocation, result: StepResult, writes: Delta) -> KeptBack:
    """Keep the result of a step in memory, with the state that was written up to it since the last durable point."""
    kept = invocation.kept_back
    if kept is None:
        kept = invocation.kept_back = KeptBack()
    kept.results.append(result)
    kept.writes = dict(writes)
    kept.size_bytes += _size_of(result)
    return kept


def count_kept_back(invocation: Invocation) -> int:
    """Return how many results are in memory alone."""
    return 0 if invocation.kept_back is None else len(invocation.kept_back.results)


def writes_kept_back(lane: Lane, invocation: Invocation) -> Delta:
    """Return the state that has to be written with what is kept back: a replay takes it to be durable from there on."""
    kept = invocation.kept_back
    return kept_delta(lane, kept.writes) if kept is not None and kept.writes else {}


def taken_up(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return what writes the results that were kept back; from here on they are part of the journal.

    A commit that the store refuses takes them along: the lane is read anew, and what was not durable runs again.
    """
    kept, invocation.kept_back = invocation.kept_back, None
    if kept is None:
        return []
    writes: list[Operation] = []
    for result in kept.results:
        written = _as_written(lane, invocation, result)
        invocation.standing = advance(invocation.standing, written)
        invocation.records.append(written)
        writes.append(operations.record(lane.partition.space, invocation.raw_id, written))
    return writes


def _as_written(lane: Lane, invocation: Invocation, result: StepResult) -> StepResult:
    match result:
        case StepCompleted(result=packed):
            stored = kept_for(lane, invocation, packed)
            return result if stored is packed else replace(result, result=stored)
        case StepFailed(error=failure):
            weigh(lane, failure.details or b"")
            return result


def _size_of(result: StepResult) -> int:
    if isinstance(result, StepCompleted):
        return len(result.result)
    return len(result.error.details or b"")
