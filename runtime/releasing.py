"""`ctx.release_lane`: the waits of a block leave the lane to others, and what was expected of the state is compared."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from ..journal.blobs import digest_of, is_reference, reference_to
from ..journal.codec import REFERENCE_BYTES
from ..journal.errors import Superseded, Suspended
from .aside import leaving
from .bounds import check_name

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from ..journal.place import Place
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane


class LaneRelease:
    """The block behind `async with ctx.release_lane()`, and behind `with` in a plain function.

    Args:
        ctx: The run's context.
        expects: Names of state values that nobody else may have changed by the end of the block.
    """

    __slots__ = ("_ctx", "_names", "expected")

    def __init__(self, ctx: ExclusiveContext, expects: Iterable[str]) -> None:
        if isinstance(expects, str):
            raise TypeError(f"expects= is a sequence of names, not the text {expects!r}: write expects=[{expects!r}]")
        if not isinstance(expects, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
            raise TypeError(f"expects= is a sequence of names, not {type(expects).__name__}")
        self._ctx = ctx
        self._names = tuple(expects)
        for name in self._names:
            check_name("state value", name)
        #: What each name is expected to be: what it was, or what the handler itself has written since.
        self.expected: dict[str, bytes | None] = {}

    def enter(self) -> None:
        """Begin the block.

        Raises:
            ReleasedInBranch: It stands in a branch, or beside branches that have not ended.
            RuntimeError: It stands in another one.
        """
        ctx = self._ctx
        ctx.check_may_release()
        self.expected = {name: ctx.read(name) for name in self._names}
        ctx.release = self

    def leave(self, *, is_failed: bool) -> None:
        """End the block.

        Raises:
            Superseded: Somebody has changed what was expected to stay.
        """
        self._ctx.release = None
        if is_failed:
            return
        changed = [name for name, before in self.expected.items() if not _is_same(before, self._ctx.read(name))]
        if changed:
            raise Superseded(f"a change of {', '.join(map(repr, changed))}", tuple(changed))

    async def __aenter__(self) -> None:
        """Begin the block."""
        self.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.leave(is_failed=kind is not None)


def _is_same(before: bytes | None, after: bytes | None) -> bool:
    """Return whether two values are the same, of which a recorded one may be a reference to its bytes."""
    if before == after or before is None or after is None:
        return before == after
    return _reference(before) == _reference(after)


def _reference(packed: bytes) -> bytes:
    is_one = len(packed) == REFERENCE_BYTES and is_reference(packed)
    return packed if is_one else reference_to(packed, digest_of(packed))


def standing_still(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, still: Operation) -> list[Operation]:
    """Return what a wait that begins writes of the lane: it stands still, or is left to others."""
    return [still] if ctx.release is None else leaving(lane, invocation)


async def end_if_released(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, place: Place) -> None:
    """End a run whose lane others have while it waits: what it goes on from is read and replayed afterwards.

    Raises:
        Suspended: Unless what it waits for has come already, before anybody else got the lane.
    """
    standing = invocation.standing
    wait = None if standing is None else standing.wait_at(place)
    if wait is None or not wait.releases:
        return
    gate = lane.gate()
    if gate is not None:
        if ctx.conductor is None:
            await ctx.through(gate)
        else:
            with ctx.conductor.holding(ctx.conductor.current):
                await ctx.through(gate)
    standing = invocation.standing
    if standing is not None and standing.is_aside:
        raise ctx.end(Suspended())
