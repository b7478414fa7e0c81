"""What may come of a program: the outcomes of the model under several schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

from .generating import Program
from .model import Invocation, World

#: How many schedules are tried before a program is run, and how many more for an outcome that none of them had.
SCHEDULES: Final = 12
SEARCHED: Final = 500


def outcome_of(program: Program, schedule: int | None) -> dict[str, Any]:
    """Return what the model comes to under one schedule."""
    world = World(schedule)
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


def outcomes(program: Program, count: int = SCHEDULES, first: int = 0) -> Iterator[dict[str, Any]]:
    """Give what the model comes to under one schedule after the other."""
    for number in range(first, first + count):
        yield outcome_of(program, None if number == 0 else program.seed * 10_007 + number)
