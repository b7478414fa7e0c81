"""The context that scripts run on in the model; each durable point is a place at which others may come between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from keylane import Cancelled, Deadlock, StepFailed, TerminalError, WaitTimeout

if TYPE_CHECKING:
    from .model import Awakeable, Fiber, Invocation, Park, World


def _minutes(wait: timedelta | None) -> int:
    return 0 if wait is None else int(wait.total_seconds() // 60)


class Verdict:
    """A verdict, whose word is the name of its class."""

    def __new__(cls, word: str) -> Any:
        """Return one of a class of that name."""
        return object.__new__(type(word, (), {}))


class ModelTask:
    """A branch as a script holds it."""

    def __init__(self, ctx: ModelContext, fiber: Fiber) -> None:
        self._ctx = ctx
        self.fiber = fiber

    def __await__(self) -> Any:
        """Wait for its end."""
        return self._ctx.result_of(self.fiber).__await__()

    def cancel(self) -> None:
        """Cut it off."""
        self.fiber.throw(asyncio.CancelledError())

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cut off."""
        return isinstance(self.fiber.error, asyncio.CancelledError)


class ModelContext:
    """What a script may do in the model.

    Args:
        world: The world.
        invocation: Whose script it is.
    """

    def __init__(self, world: World, invocation: Invocation) -> None:
        # The model makes contexts, so it can't be imported before they are there.
        from . import model  # noqa: PLC0415

        self._world = world
        self._invocation = invocation
        self._model = model

    # Places at which others come between.

    def _park(self, kind: str, cut: Callable[[], None] | None = None) -> Park:
        return self._model.Park(kind, cut)

    async def turn(self) -> None:
        """Let others come between."""
        park = self._park("turn")
        park.release()
        await park

    async def _begin(self) -> None:
        """Come to a durable point; one who is cancelled is told here, or held back."""
        await self.turn()
        await self._may_begin()
        self._invocation.flush()

    async def _may_begin(self) -> None:
        invocation = self._invocation
        if not invocation.is_cancel_asked or invocation.is_told:
            return
        fiber = self._world.current
        if fiber is not invocation.main:
            await self._park("held")
        elif any(not each.is_done and (each.park is None or each.park.kind == "turn") for each in invocation.fibers):
            await self._park("wait")
        else:
            invocation.is_told = True
            invocation.flush()
            invocation.cascade()
            raise Cancelled

    # Steps and state.

    async def run(self, name: str, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a step."""
        del options
        await self.turn()
        await self._may_begin()
        fiber = self._world.current
        fiber.is_in_step = True
        if action.__name__ == "give":
            # Its id may be out before the step is recorded.
            self._world.awakeables[arguments[1]] = arguments[2]
        await self.turn()
        fiber.is_in_step = False
        self._invocation.flush()
        match action.__name__:
            case "refuse":
                raise TerminalError("refused", code="refused")
            case "never":
                raise StepFailed(name, 2, "never")
            case "give":
                return "given"
            case _:
                return arguments[2]

    def stumble(self, tag: str, number: int, times: int) -> None:
        """Nothing of a failed attempt is seen."""

    async def get(self, name: str, kind: Any, default: Any = None) -> Any:
        """Read a state value."""
        del kind
        found = self._seen().get(name)
        return default if found is None else found

    def _seen(self) -> dict[str, str | None]:
        return {**self._invocation.object.state, **self._invocation.pending}

    def set(self, name: str, value: str) -> None:
        """Write a state value."""
        self._invocation.pending[name] = value

    def clear(self, name: str) -> None:
        """Clear a state value."""
        self._invocation.pending[name] = None

    def clear_all(self) -> None:
        """Clear all."""
        for name in self._seen():
            self._invocation.pending[name] = None

    async def state_keys(self) -> list[str]:
        """Return the names of the state."""
        return sorted(name for name, value in self._seen().items() if value is not None)

    async def time(self) -> str:
        """Return some time."""
        return ""

    def uuid(self) -> str:
        """Return some id."""
        return ""

    def random(self) -> Any:
        """Return some source of random numbers."""
        return self._world.random.__class__(0)

    def compensate(self, name: str, action: Any, tag: str, uid: int, number: int) -> None:
        """Register an undo."""
        del name, action, tag, uid
        self._invocation.compensations.append(number)

    # Waits.

    async def sleep(self, wait: timedelta) -> None:
        """Wait for a while."""
        await self._begin()
        park = self._park("wait")
        self._world.at(self._world.now + _minutes(wait), park.release)
        await park

    async def signal(self, name: str, kind: Any, *, timeout: timedelta) -> Any:
        """Wait for a signal."""
        del kind
        await self._begin()
        world, invocation = self._world, self._invocation
        park = self._park("wait", lambda: world.give_back(wait))
        wait = self._model.SignalWait(name, invocation, park)
        kept = next((each for each in invocation.mail if each[0] == name), None)
        target = invocation.object
        if kept is not None:
            invocation.mail.remove(kept)
            world.complete(wait, kept[1], of_object=False)
        else:
            target.waits.append(wait)
            if target.waits.index(wait) == next(at for at, each in enumerate(target.waits) if each.name == name):
                world.hand_on(target, name)
        if not wait.is_over:
            world.at(world.now + _minutes(timeout), lambda: self._expire(wait))
        return await park

    @staticmethod
    def _expire(wait: Any) -> None:
        if not wait.is_over:
            wait.is_over = True
            if wait in wait.invocation.object.waits:
                wait.invocation.object.waits.remove(wait)
            wait.park.release(None, WaitTimeout(wait.name, ""))

    async def awakeable(self, kind: Any) -> ModelAwakeable:
        """Make an awakeable."""
        del kind
        await self._begin()
        await self.turn()
        return ModelAwakeable(self, self._model.Awakeable(self._invocation))

    async def wait_for(self, made: Awakeable, timeout: timedelta) -> Any:
        """Wait for an awakeable."""
        await self._begin()
        park = self._park("wait", lambda: setattr(made, "park", None))
        made.park = park
        if made.is_completed:
            park.release(made.value, self._model.rejection() if made.rejected else None)
        else:
            self._world.at(self._world.now + _minutes(timeout), lambda: self._expire_awakeable(made, park))
        return await park

    @staticmethod
    def _expire_awakeable(made: Awakeable, park: Park) -> None:
        if made.park is park and not made.is_completed:
            made.is_expired = True
            park.release(None, WaitTimeout("awakeable", ""))

    def awakeable_id(self, tag: str, number: int) -> int:
        """Return what was given away."""
        del tag
        return number

    async def resolve_awakeable(self, number: int, value: str) -> Any:
        """Complete an awakeable."""
        return await self._told(("awakeable", number), lambda: self._world.resolve(number, value))

    async def send_signal(self, target: tuple[str, str], name: str, value: str) -> Any:
        """Send a signal to an object."""
        place = self._place(*target)
        return await self._told(("signal", place), lambda: self._world.signal_object(place, name, value))

    async def _told(self, way: Any, deliver: Callable[[], str]) -> Any:
        await self._begin()
        park = self._park("wait")

        def deliver_and_tell() -> None:
            word = deliver()
            self._world.post((*way, "verdict", self._invocation.uid), lambda: park.release(word))

        self._world.post((*way, self._invocation.place), deliver_and_tell)
        return Verdict(await park)

    # Others.

    @staticmethod
    def _place(type_name: str, key: str) -> tuple[str, str]:
        return type_name, key.partition("/")[2]

    async def call(self, type_name: str, key: str, handler: str, script: dict[str, Any]) -> Any:
        """Call another object."""
        del handler
        invocation, place = self._invocation, self._place(type_name, key)
        path = invocation.path | {invocation.place}
        if place in path:
            await self.turn()
            raise Deadlock(())
        await self._begin()
        park = self._park("wait")
        child = self._model.Invocation(self._world, script, place, path, (invocation, park))
        invocation.calls.append(child)
        self._world.post((invocation.place, place, 0), lambda: self._world.arrive(child))
        return await park

    async def send(
        self, type_name: str, key: str, handler: str, script: dict[str, Any], *, delay: timedelta | None
    ) -> None:
        """Send a message."""
        del handler
        await self._begin()
        place = self._place(type_name, key)
        child = self._model.Invocation(self._world, script, place, frozenset())
        self._world.post((self._invocation.place, place, 0), lambda: self._world.arrive(child, _minutes(delay)))
        # It has left before who sends it goes on.
        await self.turn()

    # Branches.

    def _fork(self, awaitables: tuple[Coroutine[Any, Any, Any], ...]) -> list[Fiber]:
        fibers = [self._model.Fiber(self._world, self._invocation, each) for each in awaitables]
        self._invocation.fibers.extend(fibers)
        return fibers

    def _ends(self, fibers: list[Fiber]) -> Callable[[], Coroutine[Any, Any, Fiber]]:
        ended: list[Fiber] = [each for each in fibers if each.is_done]
        waiting: list[Park] = []

        def listen(fiber: Fiber) -> None:
            ended.append(fiber)
            if waiting:
                waiting.pop().release()

        for each in fibers:
            if not each.is_done:
                each.listeners.append(listen)

        async def following() -> Fiber:
            while not ended:
                park = self._park("join")
                waiting[:] = [park]
                await park
            return ended.pop(0)

        return following

    async def end_all(self, fibers: list[Fiber]) -> None:
        """Cut branches off, and wait for their cleanup."""
        if self._invocation.outcome is not None:
            return
        for each in fibers:
            each.throw(asyncio.CancelledError())
        left = [each for each in fibers if not each.is_done]
        following = self._ends(left)
        for _ in left:
            await following()

    async def result_of(self, fiber: Fiber) -> Any:
        """Wait for the end of a branch."""
        if not fiber.is_done:
            await self._ends([fiber])()
        return _result(fiber)

    async def gather(self, *awaitables: Any) -> tuple[Any, ...]:
        """Wait for all."""
        fibers = self._fork(awaitables)
        following = self._ends(fibers)
        try:
            for _ in fibers:
                _result(await following())
        except BaseException:
            await self.end_all(fibers)
            raise
        return tuple(each.value for each in fibers)

    async def select(self, **awaitables: Any) -> tuple[str, Any]:
        """Wait for the first."""
        fibers = self._fork(tuple(awaitables.values()))
        following = self._ends(fibers)
        try:
            first = await following()
        finally:
            await self.end_all(fibers)
        return list(awaitables)[fibers.index(first)], _result(first)

    def as_completed(self, *awaitables: Any) -> ModelCompletions:
        """Give each as it ends."""
        return ModelCompletions(self, self._fork(awaitables))

    def completions(self, fibers: list[Fiber]) -> Callable[[], Coroutine[Any, Any, Fiber]]:
        """Return what waits for the next end of some branches."""
        return self._ends(fibers)

    @asynccontextmanager
    async def task_group(self) -> AsyncGenerator[ModelGroup]:
        """Run branches beside a block; none of them fails here."""
        group = ModelGroup(self)
        try:
            yield group
        except BaseException:
            await self.end_all(group.fibers)
            raise
        left = [each for each in group.fibers if not each.is_done]
        following = self._ends(left)
        try:
            for _ in left:
                await following()
        except BaseException:
            await self.end_all(group.fibers)
            raise

    def start(self, awaitable: Awaitable[Any]) -> Fiber:
        """Start a branch."""
        (fiber,) = self._fork((awaitable,))  # pyright: ignore[reportArgumentType], scripts give coroutines
        return fiber


class ModelCompletions:
    """Branches as they end: no generator, which a loop of asyncio would want to close once nobody goes on with it."""

    def __init__(self, ctx: ModelContext, fibers: list[Fiber]) -> None:
        self._ctx = ctx
        self._following = ctx.completions(fibers)
        self._left = len(fibers)

    def __aiter__(self) -> ModelCompletions:
        """Return itself."""
        return self

    async def __anext__(self) -> ModelTask:
        """Return what ends next."""
        if not self._left:
            raise StopAsyncIteration
        self._left -= 1
        return ModelTask(self._ctx, await self._following())


class ModelGroup:
    """The branches of a block."""

    def __init__(self, ctx: ModelContext) -> None:
        self._ctx = ctx
        self.fibers: list[Fiber] = []

    def create_task(self, awaitable: Awaitable[Any]) -> ModelTask:
        """Start a branch."""
        fiber = self._ctx.start(awaitable)
        self.fibers.append(fiber)
        return ModelTask(self._ctx, fiber)


class ModelAwakeable:
    """An awakeable as a script holds it."""

    def __init__(self, ctx: ModelContext, made: Awakeable) -> None:
        self._ctx = ctx
        self.id = made

    async def wait(self, *, timeout: timedelta) -> Any:
        """Wait for it."""
        return await self._ctx.wait_for(self.id, timeout)


def _result(fiber: Fiber) -> Any:
    if fiber.error is not None:
        raise fiber.error
    return fiber.value
