"""What may come of a program: the outcomes of the model under several schedules."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from .generating import Program
from .model import Invocation, World

#: How many schedules are tried before a program is run, and how many more for an outcome that none of them had.
SCHEDULES: Final = 12
SEARCHED: Final = 8_000
#: After so many the search begins anew, since some of the ways to come near lead no further.
CLIMB: Final = 1_000
#: How many schedules of a climb there are for one that is drawn afresh.
FRESH: Final = (8, 40)


def outcome_of(program: Program, schedule: int | None) -> dict[str, Any]:
    """Return what the model comes to under one schedule."""
    return outcome_in(World(schedule), program)


def outcome_in(world: World, program: Program) -> dict[str, Any]:
    """Return what the model comes to in a world."""
    answers: list[Any] = []
    roots: set[int] = set()
    for action in program.actions:
        world.run(action["at"]) if action["at"] != world.now else None
        answers.append(_done(world, action, roots))
        if action["settles"]:
            world.run(action["at"])
    world.run(None)
    begun = {uid: each for uid, each in world.invocations.items() if each.main is not None or uid in roots}
    return plain({
        "answers": [answer() if callable(answer) else answer for answer in answers],
        "ends": {uid: None if each.outcome is None else list(each.outcome) for uid, each in begun.items()},
        "undone": {uid: each.undone for uid, each in begun.items() if each.undone},
        "states": world.states(),
    })  # fmt: skip


def _done(world: World, action: dict[str, Any], roots: set[int]) -> Any:
    match action["do"]:
        case "send":
            invocation = Invocation(world, action["script"], action["place"], frozenset())
            roots.add(invocation.uid)
            world.post(("client", action["place"]), lambda: world.arrive(invocation, action["delay"]))
            return "sent"
        case "signal_object":
            if not action["settles"]:
                world.post(("client-signal", action["place"]), lambda: _signal(world, action))
                return "Accepted"
            return _signal(world, action)
        case "read":
            world.run(world.now)
            return world.state_of(action["place"])
        case "resolve":
            world.run(world.now)
            return world.resolve(action["awakeable"], action["value"])
        case kind:
            world.run(world.now)
            invocation = world.invocations.get(action["uid"])
            if invocation is None or (invocation.main is None and invocation.uid not in roots):
                return "unknown"
            if kind == "signal":
                return world.signal(invocation, action["name"], action["value"])
            invocation.ask_cancel("killed" if kind == "kill" else "cancelled")
            world.run(world.now)
            return invocation.outcome[0] if invocation.outcome else "open"


def _signal(world: World, action: dict[str, Any]) -> str:
    return world.signal_object(action["place"], action["name"], action["value"])


def plain(value: Any) -> Any:
    """Return a value without what differs from run to run, as it is once it has been written down and read."""
    match value:
        case str():
            return value.partition("#")[0]
        case dict():
            return {str(name): plain(each) for name, each in sorted(cast("dict[Any, Any]", value).items(), key=str)}
        case list() | tuple():
            return [plain(each) for each in cast("list[Any]", value)]
        case _:
            return value


def written(outcome: dict[str, Any]) -> str:
    """Return an outcome as a text that equals those of equal ones."""
    return json.dumps(outcome, sort_keys=True)


def outcomes(program: Program, count: int = SCHEDULES) -> Iterator[dict[str, Any]]:
    """Give what the model comes to under one schedule after the other."""
    for number in range(count):
        yield outcome_of(program, None if number == 0 else program.seed * 10_007 + number)


def searched(program: Program, distance: Callable[[dict[str, Any]], int], count: int = SEARCHED) -> dict[str, Any]:
    """Return the nearest outcome to one that was found: schedules that come near to it are changed at one point.

    Args:
        program: The program.
        distance: How far an outcome is from it; 0 for the same.
        count: How many schedules are tried.
    """
    source = random.Random(program.seed)
    best: tuple[int, dict[str, Any], list[float]] | None = None
    for begun in range(0, count, CLIMB):
        # Every other time few schedules are drawn afresh and most are near to the best one.
        found = _climbed(program, distance, source, min(CLIMB, count - begun), FRESH[begun // CLIMB % 2])
        if best is None or found[0] < best[0]:
            best = found
        if best[0] == 0:
            break
    assert best is not None
    return best[1]


def _climbed(
    program: Program, distance: Callable[[dict[str, Any]], int], source: random.Random, count: int, fresh: int
) -> tuple[int, dict[str, Any], list[float]]:
    nearest: tuple[int, dict[str, Any], list[float]] | None = None
    for number in range(count):
        prefix: list[float] = []
        if nearest is not None and number % fresh:
            prefix = _changed(source, nearest[2])
        world = World(source.randrange(1 << 30), prefix)
        outcome = outcome_in(world, program)
        found = distance(outcome), outcome, world.chosen
        if nearest is None or found[0] <= nearest[0]:
            nearest = found
        if found[0] == 0:
            break
    assert nearest is not None
    return nearest


def _changed(source: random.Random, chosen: list[float]) -> list[float]:
    at = source.randrange(len(chosen))
    rest = chosen[at + 1 :] if source.random() < 0.5 else []
    return [*chosen[:at], source.random(), *rest]
