"""Operation ids that a receiver sees as the handler wrote them, each reserved for one object before it is used.

An object type of its own keeps them, with one object for each receiver and id. Who asks first has it until its effect
is forgotten, and the receiver has forgotten the id too; for good where nothing says when that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..journal.key import Key
from .context import ObjectContext
from .receivers import Receiver
from .virtual_object import VirtualObject

#: The object type that keeps them.
RESERVATIONS: Final = "keylane.ids"
RESERVE: Final = "reserve"
RELEASE: Final = "release"
_HOLDER: Final = "holder"


class Reservations(VirtualObject):
    """The operation ids of receivers that see them as they are.

    Args:
        receivers: These receivers; their owners are in charge of what is stuck.
    """

    def __init__(self, receivers: Iterable[Receiver]) -> None:
        owners = sorted({each.owner for each in receivers})
        super().__init__(RESERVATIONS, owner=", ".join(owners), state={_HOLDER: str})
        self.handler(name=RESERVE, private=True)(reserve)
        self.handler(name=RELEASE, private=True)(release)


async def reserve(ctx: ObjectContext, claim: str) -> str:
    """Return which object has an operation id: the one that asks, unless it is another one's."""
    holder = await ctx.get(_HOLDER, str)
    if holder is None:
        ctx.set(_HOLDER, claim)
        return claim
    return holder


async def release(ctx: ObjectContext, claim: str) -> None:
    """Let go of an operation id, if it is the object's that says so."""
    if await ctx.get(_HOLDER, str) == claim:
        ctx.clear(_HOLDER)


def reservation_key(receiver: str, operation_id: str) -> Key:
    """Return the key of the object that keeps an operation id."""
    return Key(receiver, operation_id)
