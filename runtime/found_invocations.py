"""What was read of invocations, told by their records: whether one has ended, is to begin later, or is in no lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.records import Accepted, Cancelled, Completed, Failed, Killed
from ..journal.standing import IllegalTransition, Status
from ..journal.transitions import replay

if TYPE_CHECKING:
    from ..journal.lane_reading import OpenInvocation


def is_over(found: OpenInvocation) -> bool:
    """Return whether an invocation that a lane names has ended, or has left nothing: no owner can run it."""
    if found.undecodable is not None or found.is_parked:
        return False
    try:
        return not found.records or replay(found.records).is_terminal
    except IllegalTransition:
        return False


def is_scheduled(found: OpenInvocation) -> bool:
    """Return whether an invocation is to begin later."""
    try:
        return len(found.records) > 1 and replay(found.records).status is Status.SCHEDULED
    except IllegalTransition:
        return False


def has_ended(found: OpenInvocation) -> bool:
    """Return whether the last record of an invocation ends it."""
    return isinstance(found.records[-1], Completed | Failed | Cancelled | Killed)


def has_left(found: OpenInvocation) -> bool:
    """Return whether an invocation has left its lane to others while it waits."""
    try:
        return bool(found.records) and replay(found.records).is_aside
    except IllegalTransition:
        return False


def is_parked_in(found: OpenInvocation, key_text: str) -> bool:
    """Return whether an invocation of an object is parked, or has left its lane."""
    accepted = found.records[0] if found.records else None
    if not isinstance(accepted, Accepted) or accepted.key != key_text:
        return False
    try:
        standing = replay(found.records)
        return found.is_parked or standing.status is Status.PAUSED or standing.is_aside
    except IllegalTransition:
        return False
