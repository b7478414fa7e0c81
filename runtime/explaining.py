"""What a caller is told whose time has passed: who holds the lane that its call waits for, since when, and for what."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import anyio

from ..journal.errors import CallTimeout, KeylaneError
from ..journal.key import parse_id
from ..journal.reading import describe

if TYPE_CHECKING:
    from ..journal.descriptions import InvocationDescription
    from ..journal.store import Store

#: How long looking it up may take beyond the caller's own time.
LOOK_SECONDS: Final = 0.5


async def explained(store: Store, error: CallTimeout) -> CallTimeout:
    """Return a timeout with what the call waits for, as far as that is known soon."""
    if error.invocation_id is None:
        return error
    why = ""
    with contextlib.suppress(KeylaneError), anyio.move_on_after(LOOK_SECONDS):
        why = _why(await describe(store, parse_id(error.invocation_id)))
    return CallTimeout(error.timeout, why, invocation_id=error.invocation_id) if why else error


def _why(told: InvocationDescription) -> str:
    reasons = [str(pause) for pause in told.pauses]
    if told.behind is not None:
        reasons.append(str(told.behind))
    elif told.waits_for is not None:
        reasons.append(f"it {told.waits_for}")
    elif told.cancel is not None and not told.cancel.is_delivered:
        reasons.append("it is told at its next durable point that it is cancelled")
    return "; ".join(reasons)
