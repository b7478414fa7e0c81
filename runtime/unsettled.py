"""Receivers with which a lost record could be neither noticed nor made good."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..journal.errors import UnsafeStore
from ..journal.safety import Durability, ServerFacts, may_lose_confirmed

if TYPE_CHECKING:
    from ..objects.app import App


def refuse_unsettled(app: App, facts: Iterable[ServerFacts], durability: Durability) -> None:
    """Refuse a store that may lose an intent, where a receiver can't say what it did and would do it again.

    The risk can't be accepted: after the loss nothing tells that there was an effect, and it would be done twice.

    Args:
        app: What is hosted.
        facts: What the servers say about themselves.
        durability: What the deployment declares.

    Raises:
        UnsafeStore: There is such a receiver.
    """
    if not any(may_lose_confirmed(each, durability) for each in facts):
        return
    bare = sorted({effect.receiver.name for effect in app.effects if not effect.receiver.can_settle})
    if not bare:
        return
    names = ", ".join(bare)
    why = (
        f"the store may lose what it has confirmed, and {names} can't be asked what became of an operation id and "
        "would do again one that it has done: an effect whose intent is lost would be done twice unnoticed"
    )
    raise UnsafeStore(why, "use durability 'fsync' or Replicated(n) on servers that keep it, or give it a lookup=")
