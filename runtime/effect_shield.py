"""What is under way is not broken off: a cancel waits for the answer to a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.command_records import EffectStarted
from ..journal.effects import EffectState

if TYPE_CHECKING:
    from .invocation import Invocation


def is_shielded(invocation: Invocation) -> bool | None:
    """Return whether the call of an effect that an invocation waits for is under way; None where that is not known."""
    standing = invocation.standing
    waited = [] if standing is None else [each for each in standing.waits if isinstance(each, EffectStarted)]
    if not waited:
        return False
    docket = invocation.lane.docket
    if docket is None:
        return None
    entries = [docket.effects.get(each.operation) for each in waited]
    return any(each is not None and each.state is EffectState.INTENDED for each in entries)
