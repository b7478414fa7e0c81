"""A plain in-memory model of the runtime: no store, no journal, no crash, and time that only passes when all waits.

Whatever happens at one moment may happen in any order that the promises leave open; a *schedule* draws one. So the
model has no single answer where there are true races: allowed is whatever some schedule comes to.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from keylane import Cancelled, InvocationCancelled, InvocationFailed, TerminalError

from .model_context import ModelContext
from .scripts import NAMES, Play

ObjectId: TypeAlias = tuple[str, str]
Outcome: TypeAlias = tuple[str, Any]

#: How many of the schedules draw each choice by itself.
PACED: Final = 0.5


class Park:
    """A place at which a fiber stands, until it is released or cut off.

    Args:
        kind: `turn`, `wait`, `join` or `held`.
        cut: Called where the fiber is cut off here, with whether what it waited for had come.
    """

    def __init__(self, kind: str, cut: Callable[[], None] | None = None) -> None:
        self.kind = kind
        self.cut = cut
        self.fiber: Fiber | None = None
        self.result: tuple[Any, BaseException | None] | None = None

    def __await__(self) -> Generator[Park, Any, Any]:
        """Stand here."""
        return (yield self)

    def release(self, value: Any = None, error: BaseException | None = None) -> None:
        """Let who stands here go on, or who comes here."""
        if self.result is None:
            self.result = (value, error)
            if self.fiber is not None:
                self.fiber.world.wake(self.fiber)


class Fiber:
    """A branch of a handler, or its main one."""

    def __init__(self, world: World, invocation: Invocation, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.world = world
        self.invocation = invocation
        self.coroutine = coroutine
        self.park: Park | None = None
        self.thrown: BaseException | None = None
        self.is_in_step = False
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.listeners: list[Callable[[Fiber], None]] = []
        world.wake(self)

    def throw(self, error: BaseException) -> None:
        """Cut it off where it stands."""
        if self.is_done or self.thrown is not None:
            return
        self.thrown = error
        self.world.wake(self)

    def step(self) -> None:
        """Run it to its next place."""
        assert not self.is_done, "a fiber that has ended goes on"
        park, self.park = self.park, None
        self.world.current = self
        try:
            if self.thrown is not None:
                error, self.thrown = self.thrown, None
                if park is not None:
                    # What comes for it later finds nobody here.
                    park.fiber = None
                if park is not None and park.cut is not None:
                    park.cut()
                self.is_in_step = False
                self.park = self.coroutine.throw(error)
            elif park is None or park.result is None:
                self.park = self.coroutine.send(None)
            elif park.result[1] is not None:
                self.park = self.coroutine.throw(park.result[1])
            else:
                self.park = self.coroutine.send(park.result[0])
        except StopIteration as done:
            self._end(done.value, None)
            return
        except (Exception, asyncio.CancelledError, Cancelled) as error:  # noqa: BLE001, it is its end
            self._end(None, error)
            return
        assert self.park is not None
        self.park.fiber = self
        if self.park.result is not None:
            self.world.wake(self)
        self.invocation.look_at_cancel()

    def _end(self, value: Any, error: BaseException | None) -> None:
        self.is_done, self.value, self.error = True, value, error
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener(self)
        self.invocation.look_at_cancel()


@dataclass
class Object:
    """One object: what is durable of it, and its lane."""

    state: dict[str, str] = field(default_factory=dict[str, str])
    queue: list[Invocation] = field(default_factory=list["Invocation"])
    running: Invocation | None = None
    box: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    waits: list[SignalWait] = field(default_factory=list["SignalWait"])


@dataclass(eq=False)
class SignalWait:
    """Somebody waits for a signal."""

    name: str
    invocation: Invocation
    park: Park
    of_object: bool = False
    got: str | None = None
    is_over: bool = False


@dataclass(eq=False)
class Awakeable:
    """What is completed once."""

    invocation: Invocation
    value: str | None = None
    rejected: bool = False
    is_expired: bool = False
    park: Park | None = None

    @property
    def is_completed(self) -> bool:
        """Whether it has been."""
        return self.value is not None or self.rejected


class Invocation:
    """One invocation of a script."""

    def __init__(
        self, world: World, script: dict[str, Any], place: ObjectId, path: frozenset[ObjectId], caller: Any = None
    ) -> None:
        self.world = world
        self.script = script
        self.uid: int = script["uid"]
        self.place = place
        self.path = path
        #: The call that waits for it: the caller's invocation and the park.
        self.caller: tuple[Invocation, Park] | None = caller
        self.status = "new"
        self.outcome: Outcome | None = None
        self.main: Fiber | None = None
        self.fibers: list[Fiber] = []
        self.pending: dict[str, str | None] = {}
        self.mail: list[tuple[str, str]] = []
        self.compensations: list[int] = []
        self.undone: list[int] = []
        self.calls: list[Invocation] = []
        self.is_cancel_asked = self.is_told = False
        world.invocations[self.uid] = self

    @property
    def object(self) -> Object:
        """Its object."""
        return self.world.objects[self.place]

    def flush(self) -> None:
        """Make what it has written durable."""
        state = self.object.state
        for name, value in self.pending.items():
            if value is None:
                state.pop(name, None)
            else:
                state[name] = value
        self.pending = {}

    def begin(self) -> None:
        """Begin to run."""
        self.status = "running"
        self.main = Fiber(self.world, self, self._run())

    async def _run(self) -> None:
        ctx = ModelContext(self.world, self)
        try:
            outcome: Outcome = ("completed", await Play(ctx, self.script, "", []).run())
        except TerminalError as error:
            outcome = ("failed", error.code)
        except Cancelled:
            outcome = ("cancelled", None)
        await ctx.end_all([each for each in self.fibers if not each.is_done])
        if outcome[0] == "failed":
            self.pending = {}
        if outcome[0] != "completed":
            self.status = "compensating"
            for number in reversed(self.compensations):
                self.flush()
                await ctx.turn()
                self.undone.append(number)
        self.end(outcome)

    def end(self, outcome: Outcome) -> None:
        """End: free the lane, and answer."""
        if self.outcome is not None:
            return
        self.status, self.outcome = "over", outcome
        if outcome[0] == "killed":
            self.pending = {}
        self.flush()
        for wait in [each for each in self.object.waits if each.invocation is self]:
            self.object.waits.remove(wait)
        self.world.left(self)
        if self.caller is not None:
            self.world.post(("reply", self.uid, 0), lambda: self._reply(outcome))

    def _reply(self, outcome: Outcome) -> None:
        assert self.caller is not None
        caller, park = self.caller
        if self in caller.calls:
            caller.calls.remove(self)
        how, what = outcome
        match how:
            case "completed":
                park.release(what)
            case "failed":
                park.release(None, InvocationFailed("", what))
            case _:
                park.release(None, InvocationCancelled(how))

    # Being cancelled.

    def ask_cancel(self, how: str) -> None:
        """Have it cancelled or killed."""
        if self.outcome is not None or (self.status == "compensating" and how == "cancelled"):
            return
        if how == "killed" or self.status in ("scheduled", "queued"):
            self.cascade()
            self.end((how, None))
            self._drop()
            return
        self.is_cancel_asked = True
        self.look_at_cancel()

    def _drop(self) -> None:
        """End its fibers where they stand: nothing of them runs any more."""
        for fiber in (self.main, *self.fibers):
            if fiber is not None and not fiber.is_done:
                fiber.is_done = True
                if fiber in self.world.ready:
                    self.world.ready.remove(fiber)
                fiber.coroutine.close()

    def cascade(self) -> None:
        """Cancel what it has called."""
        for child in self.calls:
            self.world.post((self.place, child.place, 0), lambda child=child: child.ask_cancel("cancelled"))

    def look_at_cancel(self) -> None:
        """Tell the main branch that it is cancelled, if it stands where it can be told."""
        main = self.main
        if not self.is_cancel_asked or self.is_told or main is None or main.is_done or self.status != "running":
            return
        if main.park is None or main.park.kind == "turn" or main.is_in_step:
            return
        if any(not each.is_done and (each.park is None or each.park.kind == "turn") for each in self.fibers):
            return
        if main in self.world.ready:
            return
        self.tell(main)

    def tell(self, main: Fiber) -> None:
        """Raise `Cancelled` in the main branch."""
        self.is_told = True
        self.flush()
        self.cascade()
        main.throw(Cancelled())


class World:
    """Everything there is, under one schedule.

    Args:
        seed: Draws the schedule; None takes what comes first.
        prefix: What is chosen before anything is drawn: numbers from 0 up to 1.
    """

    def __init__(self, seed: int | None, prefix: Sequence[float] = ()) -> None:
        self.random = random.Random(seed)
        self._prefix = prefix
        #: What was chosen, such as could be the prefix of another schedule.
        self.chosen: list[float] = []
        #: How often what has become ready first is not what goes first.
        self.disorder = 0.0 if seed is None else self.random.choice([0.1, 0.5, 1.0])
        #: In some schedules each fiber and each channel is faster than others or slower, for a while: so a step that is
        #: tried again may take as long as all that others do at that moment.
        self._ranks: dict[Any, float] | None = None if seed is None or self.random.random() < PACED else {}
        self._changes = self.random.choice([0.0, 0.02, 0.1])
        self.now = 0
        self.current: Fiber
        self.ready: list[Fiber] = []
        self.channels: dict[Any, deque[Callable[[], object]]] = {}
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.objects: defaultdict[ObjectId, Object] = defaultdict(Object)
        self.invocations: dict[int, Invocation] = {}
        self.awakeables: dict[int, Awakeable] = {}
        self._numbers = itertools.count()

    def wake(self, fiber: Fiber) -> None:
        """Let a fiber go on, once: it may be cut off, and what it waited for may come, before it does."""
        if not fiber.is_done and fiber not in self.ready:
            self.ready.append(fiber)

    def post(self, channel: Any, deliver: Callable[[], object]) -> None:
        """Have something happen, behind what goes the same way."""
        self.channels.setdefault(channel, deque()).append(deliver)

    def at(self, minute: int, ring: Callable[[], None]) -> None:
        """Have something happen at a time."""
        heapq.heappush(self.timers, (minute, next(self._numbers), ring))

    def run(self, until: int | None) -> None:
        """Let everything happen until a time; or to the end."""
        while True:
            self._settle()
            if not self.timers or (until is not None and self.timers[0][0] > until):
                break
            self.now = self.timers[0][0]
            while self.timers and self.timers[0][0] == self.now:
                _, number, ring = heapq.heappop(self.timers)
                self.post(("time", number), ring)
        if until is not None:
            self.now = until

    def _settle(self) -> None:
        while self.ready or self.channels:
            ways = [*self.ready, *self.channels]
            at = int(self._choice(ways) * len(ways))
            if at < len(self.ready):
                self.ready.pop(at).step()
            else:
                way = ways[at]
                deliver = self.channels[way].popleft()
                if not self.channels[way]:
                    del self.channels[way]
                deliver()

    def _choice(self, ways: Sequence[Any]) -> float:
        at = len(self.chosen)
        if at < len(self._prefix):
            choice = self._prefix[at]
        elif self._ranks is not None:
            choice = (self._fastest(ways, self._ranks) + 0.5) / len(ways)
        else:
            choice = self.random.random() if self.random.random() < self.disorder else 0.0
        self.chosen.append(choice)
        return choice

    def _fastest(self, ways: Sequence[Any], ranks: dict[Any, float]) -> int:
        for way in ways:
            if way not in ranks:
                ranks[way] = self.random.random()
        at = max(range(len(ways)), key=lambda number: ranks[ways[number]])
        if self.random.random() < self._changes:
            ranks[ways[at]] = self.random.random()
        return at

    # Lanes.

    def arrive(self, invocation: Invocation, minutes: int = 0) -> None:
        """Take an invocation in."""
        if invocation.outcome is not None:
            return
        if minutes:
            invocation.status = "scheduled"
            self.at(self.now + minutes, lambda: self.arrive(invocation))
            return
        invocation.status = "queued"
        invocation.object.queue.append(invocation)
        self._advance(invocation.object)

    def left(self, invocation: Invocation) -> None:
        """Give a lane to the next one."""
        target = invocation.object
        if target.running is invocation:
            target.running = None
        elif invocation in target.queue:
            target.queue.remove(invocation)
        self._advance(target)

    @staticmethod
    def _advance(target: Object) -> None:
        if target.running is None and target.queue:
            target.running = target.queue.pop(0)
            target.running.begin()

    # Signals and awakeables.

    def signal(self, invocation: Invocation, name: str, value: str) -> str:
        """Deliver a signal to an invocation."""
        if invocation.outcome is not None:
            return "Expired"
        wait = next(
            (each for each in invocation.object.waits if each.invocation is invocation and each.name == name), None
        )
        if wait is None:
            invocation.mail.append((name, value))
        else:
            self.complete(wait, value, of_object=False)
        return "Accepted"

    def signal_object(self, place: ObjectId, name: str, value: str) -> str:
        """Deliver a signal to an object."""
        self.objects[place].box.append((name, value))
        self.hand_on(self.objects[place], name)
        return "Accepted"

    def hand_on(self, target: Object, name: str) -> None:
        """Give what is kept to who waits longest."""
        wait = next((each for each in target.waits if each.name == name), None)
        kept = next((each for each in target.box if each[0] == name), None)
        if wait is not None and kept is not None:
            target.box.remove(kept)
            self.complete(wait, kept[1], of_object=True)

    @staticmethod
    def complete(wait: SignalWait, value: str, *, of_object: bool) -> None:
        """End a wait with a signal."""
        target = wait.invocation.object
        if wait in target.waits:
            target.waits.remove(wait)
        wait.is_over, wait.got, wait.of_object = True, value, of_object
        wait.park.release(value)

    def give_back(self, wait: SignalWait) -> None:
        """Take a wait away that is waited for no longer, and hand on what it has got."""
        target, invocation = wait.invocation.object, wait.invocation
        wait.is_over = True
        if wait in target.waits:
            target.waits.remove(wait)
        if wait.got is None:
            return
        kept, wait.got = (wait.name, wait.got), None
        if wait.of_object:
            target.box.insert(0, kept)
            self.hand_on(target, wait.name)
            return
        own = next((each for each in target.waits if each.invocation is invocation and each.name == wait.name), None)
        if own is None:
            invocation.mail.insert(0, kept)
        else:
            self.complete(own, kept[1], of_object=False)

    def resolve(self, number: int, value: str | None) -> str:
        """Complete an awakeable; None rejects it."""
        found = self.awakeables.get(number)
        if found is None:
            return "UnknownTarget"
        if found.is_completed:
            return "AlreadyCompleted"
        if found.is_expired or found.invocation.outcome is not None:
            return "Expired"
        found.value, found.rejected = value, value is None
        if found.park is not None:
            found.park.release(value, rejection() if value is None else None)
        return "Accepted"

    def states(self) -> dict[str, dict[str, str | None]]:
        """Return what is durable of each object, by type and key."""
        return {f"{place[0]} {place[1]}": self.state_of(place) for place in sorted(self.objects)}

    def state_of(self, place: ObjectId) -> dict[str, str | None]:
        """Return what is durable of an object."""
        return {name: self.objects[place].state.get(name) for name in NAMES}


def rejection() -> TerminalError:
    """Return what a rejected awakeable raises."""
    return TerminalError("rejected", code="rejected")
