"""What an invocation owes to its effects: a cancel waits for the answer to a call, and history for the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..journal.codec import Undecodable
from ..journal.command_records import EffectStarted, WaitCompleted
from ..journal.effects import EffectState, Unknown, decode_effect_outcome

if TYPE_CHECKING:
    from .invocation import Invocation

DAY_MS: Final = 86_400_000


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


def history_kept_ms(invocation: Invocation) -> int:
    """Return for how long the records of an invocation are kept that ends now.

    Of one that ends before the outcome of an effect of its own is known, for as long as the effect is.
    """
    partition = invocation.lane.partition
    if not _leaves_unsettled(invocation):
        return partition.history_retention_ms
    return max(partition.history_retention_ms, partition.settings.ledger_retention_days * DAY_MS)


def _leaves_unsettled(invocation: Invocation) -> bool:
    """Return whether an invocation has asked for an effect of which it was not told the outcome."""
    standing = invocation.standing
    if standing is not None and any(isinstance(each, EffectStarted) for each in standing.waits):
        return True
    asked = {each.index for each in invocation.records if isinstance(each, EffectStarted)}
    if not asked:
        return False
    told = {each.index: each for each in invocation.records if isinstance(each, WaitCompleted)}
    return any(place not in told or _is_unknown(told[place]) for place in asked)


def _is_unknown(end: WaitCompleted) -> bool:
    try:
        return isinstance(decode_effect_outcome(end.value), Unknown)
    except Undecodable:
        return True
