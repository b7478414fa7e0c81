"""What has become of the undos of an invocation, told by its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .codec import Undecodable
from .command_records import CompensationSkipped, CompensationStarted, EffectStarted, StepCompleted, WaitCompleted
from .effects import decode_effect_outcome
from .outcomes import Succeeded
from .place import Place
from .records import Record


def begins_undoing(records: Sequence[Record]) -> int:
    """Return the number of the record with which undoing begins; where none does, how many there are."""
    return next((at for at, each in enumerate(records) if isinstance(each, CompensationStarted)), len(records))


def undone_by(records: Sequence[Record]) -> tuple[list[str], list[str]]:
    """Return the names of undos in the order in which they run: those that are through, and those that are not.

    Args:
        records: The records of the invocation, oldest first, or those that a replay walks through.

    Returns:
        Those that have worked, were given up or were not needed, and those that are left; the first of those is the
        one at work.
    """
    names, through = _names(records), sum(1 for _ in _ends(records))
    return names[:through], names[through:]


def worked(records: Sequence[Record]) -> list[str]:
    """Return the names of the undos that have worked, in the order in which they ran."""
    pairs = zip(_names(records), _ends(records), strict=False)
    return [name for name, end in pairs if isinstance(end, StepCompleted) or _has_worked(end)]


def _names(records: Sequence[Record]) -> list[str]:
    begun = next((each for each in records if isinstance(each, CompensationStarted)), None)
    return [] if begun is None else list(reversed(begun.undos))


def _ends(records: Sequence[Record]) -> Iterator[Record]:
    """Return the records with which undos were through: what a receiver has rejected is tried again, or given up.

    Where it is first looked at what became of an effect, that it was not done ends its undo, and that it was does not.
    """
    looked_at: set[Place] = set()
    for each in records[begins_undoing(records) :]:
        match each:
            case StepCompleted() | CompensationSkipped():
                yield each
            case EffectStarted(settles=True):
                looked_at.add(each.index)
            case WaitCompleted() if _has_worked(each) is not (each.index in looked_at):
                yield each
            case _:
                continue


def _has_worked(end: Record) -> bool:
    try:
        return isinstance(end, WaitCompleted) and isinstance(decode_effect_outcome(end.value), Succeeded)
    except Undecodable:
        return False
