"""An object that sleeps, and says how late it woke by the partition's time."""

from __future__ import annotations

from pydantic import BaseModel

from keylane import App, ObjectContext, VirtualObject

from .objects_catalogue import OWNER


class Woken(BaseModel):
    """When a handler went on, in milliseconds of the partition's time.

    Args:
        due_ms: When it was to, at the earliest.
        at_ms: When it did.
    """

    due_ms: float
    at_ms: float

    @property
    def late_ms(self) -> float:
        """How late that was; never below zero."""
        return self.at_ms - self.due_ms


napper = VirtualObject("Napper", owner=OWNER, partitions=4)


@napper.handler
async def nap(ctx: ObjectContext, seconds: float) -> Woken:
    """Sleep, and say when that ended."""
    began = await ctx.time()
    await ctx.sleep(seconds)
    return Woken(due_ms=began.timestamp() * 1e3 + seconds * 1e3, at_ms=(await ctx.time()).timestamp() * 1e3)


@napper.handler
async def ping(ctx: ObjectContext) -> str:
    """Answer at once."""
    return "pong"


app = App([napper])
