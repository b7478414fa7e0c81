"""`ctx.patched`: whether an invocation runs with a change of the code, the same in every replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bounds import SHORT_NAME, check_name

if TYPE_CHECKING:
    from .invocation import Invocation


def has_patch(invocation: Invocation, name: str, *, is_replaying: bool) -> bool:
    """Return the answer of the first question for a name in a run; later ones get the same.

    A name in the journal counts wherever it stands, so the order in which branches ask makes no difference. One that is
    new is written down ahead of the next record: what that was made by, a replay has to run as well.

    Args:
        invocation: Who asks.
        name: The name of the change.
        is_replaying: Whether anything that was recorded lies ahead.

    Raises:
        TypeError: The name is no text.
        PayloadTooLarge: The name is too long.
    """
    if type(name) is not str or len(name) > SHORT_NAME:
        check_name("patch", name)
    if name in invocation.patches or name in invocation.unmarked:
        return True
    if is_replaying:
        # Older code, which did not ask, has gone on from here.
        return False
    invocation.unmarked = (*invocation.unmarked, name)
    return True
