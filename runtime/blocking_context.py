"""The contexts of plain functions: the same as the others, called from a thread, returning values."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..objects.context import BlockingObjectContext, BlockingSharedContext
from ..objects.waiting import BlockingAwakeable
from .misuse import NoBranches
from .reading_context import lacking

if TYPE_CHECKING:
    import logging
    import random
    import uuid
    from datetime import datetime, timedelta

    from ..journal.key import Key
    from ..objects.approvals import Approval, Proposal
    from ..objects.messaging import Sent
    from ..objects.receivers import Effect
    from ..objects.verdicts import WaitVerdict
    from ..objects.waiting import Awakeable, SignalTarget
    from .context import ExclusiveContext
    from .handler_thread import HandlerThread
    from .reading_context import ReadingContext

_FOR_AWAITING_HANDLERS = frozenset({"gather", "select", "as_completed", "task_group"})


class BlockingReadingContext(BlockingSharedContext):
    """A shared handler's context, for a thread."""

    __slots__ = ("_ctx", "_thread")

    def __init__(self, ctx: ReadingContext | ExclusiveContext, thread: HandlerThread) -> None:
        self._ctx = ctx
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        """Say of what a shared handler lacks where it is to be had."""
        return lacking(name)

    @property
    def key(self) -> Key:
        """The object."""
        return self._ctx.key

    @property
    def invocation_id(self) -> str:
        """The invocation's id."""
        return self._ctx.invocation_id

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries type, key and invocation."""
        return self._ctx.log

    def get(self, name: str, type: Any, default: Any = None) -> Any:
        """Return a state value."""
        return self._thread.awaited("get", self._ctx.get, name, type, default)

    def state_keys(self) -> list[str]:
        """Return the names of the state values."""
        return self._thread.awaited("state_keys", self._ctx.state_keys)

    def time(self) -> datetime:
        """Return the partition's time."""
        return self._thread.awaited("time", self._ctx.time)

    def random(self) -> random.Random:
        """Return random numbers of this invocation's own."""
        self._thread.check("random")
        return self._ctx.random()

    def uuid(self) -> uuid.UUID:
        """Return a random UUID."""
        self._thread.check("uuid")
        return self._ctx.uuid()


class BlockingExclusiveContext(BlockingReadingContext, BlockingObjectContext):
    """An exclusive handler's context, for a thread: it reads its own writes, and the same facts at each replay."""

    __slots__ = ("_exclusive",)

    def __init__(self, ctx: ExclusiveContext, thread: HandlerThread) -> None:
        super().__init__(ctx, thread)
        self._exclusive = ctx

    def __getattr__(self, name: str) -> Any:
        """Say of what takes an awaiting handler how to get one."""
        if name in _FOR_AWAITING_HANDLERS:
            raise NoBranches(name)
        return super().__getattr__(name)

    @property
    def attempt(self) -> int:
        """Which attempt of the handler this is, from 1."""
        return self._exclusive.attempt

    def set(self, name: str, value: Any, type: Any = None) -> None:
        """Write a state value; it becomes durable with the next durable point."""
        self._thread.sync("set", self._exclusive.set, name, value, type)

    def clear(self, name: str) -> None:
        """Take a state value away."""
        self._thread.sync("clear", self._exclusive.clear, name)

    def clear_all(self) -> None:
        """Take all state values away."""
        self._thread.sync("clear_all", self._exclusive.clear_all)

    def patched(self, name: str) -> bool:
        """Return whether this invocation runs with a change of the code."""
        return self._thread.sync("patched", self._exclusive.patched, name)

    def run(self, name: str, action: Any, /, *arguments: Any, **options: Any) -> Any:
        """Run a step, or return its recorded result."""
        return self._thread.awaited("run", partial(self._exclusive.run, name, action, *arguments, **options))

    def model(self, name: str, function: Any, /, *arguments: Any, **options: Any) -> Any:
        """Ask a model, or return its recorded answer."""
        return self._thread.awaited("model", partial(self._exclusive.model, name, function, *arguments, **options))

    def compensate(self, name: str, action: Any, /, *arguments: Any, **options: Any) -> None:
        """Register what is to be undone when the handler fails or is cancelled."""
        self._thread.sync("compensate", partial(self._exclusive.compensate, name, action, *arguments, **options))

    def call(
        self, target: Any, key: Key | str, /, *rest: Any, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Any:
        """Call another object, or return what it answered in the recorded run."""
        call = partial(self._exclusive.call, target, key, *rest, release_lane=release_lane, expects=expects)
        return self._thread.awaited("call", call)

    def send(self, target: Any, key: Key | str, /, *rest: Any, delay: timedelta | float | None = None) -> Sent:
        """Send a message to an object, unless the recorded run has sent it."""
        return self._thread.awaited("send", partial(self._exclusive.send, target, key, *rest, delay=delay))

    def awakeable(self, type: Any = Any, /) -> BlockingAwakeable[Any]:
        """Make something that code outside completes, the same one at each replay."""
        return ThreadAwakeable(self._thread, self._thread.awaited("awakeable", self._exclusive.awakeable, type))

    def signal(self, name: str, type: Any, /, **options: Any) -> Any:
        """Wait for a signal, or return the one that the recorded run got."""
        return self._thread.awaited("signal", partial(self._exclusive.signal, name, type, **options))

    def resolve_awakeable(self, awakeable_id: str, value: Any, /, type: Any = None) -> WaitVerdict:
        """Complete another invocation's awakeable, or return what the recorded run was told."""
        return self._thread.awaited("resolve_awakeable", self._exclusive.resolve_awakeable, awakeable_id, value, type)

    def reject_awakeable(self, awakeable_id: str, reason: str, /, *, code: str | None = None) -> WaitVerdict:
        """Complete another invocation's awakeable with a failure, or return what the recorded run was told."""
        return self._thread.awaited(
            "reject_awakeable", partial(self._exclusive.reject_awakeable, awakeable_id, reason, code=code)
        )

    def send_signal(self, target: SignalTarget, name: str, value: Any, /, type: Any = None) -> WaitVerdict:
        """Send a signal, or return what the recorded run was told."""
        return self._thread.awaited("send_signal", self._exclusive.send_signal, target, name, value, type)

    def propose(self, **proposed: Any) -> Proposal:
        """Propose something, or return what the recorded run has proposed."""
        return self._thread.awaited("propose", partial(self._exclusive.propose, **proposed))

    def approval(self, proposal: Proposal, /, *, release_lane: bool = False, expects: Iterable[str] = ()) -> Approval:
        """Wait for the decision on a proposal, or return the one that the recorded run was told."""
        approval = partial(self._exclusive.approval, proposal, release_lane=release_lane, expects=expects)
        return self._thread.awaited("approval", approval)

    def effect(self, effect: Effect[Any, Any], /, **options: Any) -> Any:
        """Have something done outside, or return what came of it in the recorded run."""
        return self._thread.awaited("effect", partial(self._exclusive.effect, effect, **options))

    def effect_outcome(self, effect: Effect[Any, Any], /, **options: Any) -> Any:
        """Have something done outside, or return what was known of it in the recorded run."""
        return self._thread.awaited("effect_outcome", partial(self._exclusive.effect_outcome, effect, **options))

    def attach(self, invocation_id: str, /, type: Any = None) -> Any:
        """Wait for the end of an invocation, or return what the recorded run was told of it."""
        return self._thread.awaited("attach", self._exclusive.attach, invocation_id, type)

    def sleep(self, duration: timedelta | float, /, *, release_lane: bool = False, expects: Iterable[str] = ()) -> None:
        """Wait for a while, counted from when the recorded run began to."""
        self._thread.awaited(
            "sleep", partial(self._exclusive.sleep, duration, release_lane=release_lane, expects=expects)
        )

    @contextmanager
    def release_lane(self, *, expects: Iterable[str] = ()) -> Generator[None]:
        """Leave the lane to others during the waits of a block."""
        release = self._exclusive.release_lane(expects=expects)
        self._thread.sync("release_lane", release.enter)
        try:
            yield
        except BaseException:
            self._thread.sync("release_lane", partial(release.leave, is_failed=True))
            raise
        self._thread.sync("release_lane", partial(release.leave, is_failed=False))


class ThreadAwakeable(BlockingAwakeable[Any]):
    """An awakeable of one run of a plain function.

    Args:
        thread: The function's thread.
        awakeable: What it stands for.
    """

    __slots__ = ("_awakeable", "_thread")

    def __init__(self, thread: HandlerThread, awakeable: Awakeable[Any]) -> None:
        self._thread = thread
        self._awakeable = awakeable

    @property
    def id(self) -> str:
        """What is given to whoever is to complete it."""
        return self._awakeable.id

    def __repr__(self) -> str:
        return f"Awakeable({self.id!r})"

    def wait(self, **options: Any) -> Any:
        """Wait until it is completed."""
        return self._thread.awaited("awakeable.wait", partial(self._awakeable.wait, **options))
