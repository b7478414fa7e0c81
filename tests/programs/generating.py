"""Draws programs: what clients do at which minute, and what the handlers do that they start.

Times are drawn so that nothing from outside falls together with a timer: an action happens at a multiple of 50 minutes
and as many minutes more as its number says, waits last multiples of 50 minutes, and whatever follows from an action
(until the next one steps in) is due at its own minute of the 50. What falls together all the same follows from one and
the same action, and may happen in any order: the model tries several.

Left out, since what comes of it is not promised: a handler that fails as a whole (a *stumble*) in a branch beside
others that clean up with steps, for those are recorded and the next attempt does not come to them; and one in a branch
that nobody awaits, whose failure is raised nowhere.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .scripts import KEYS, TYPES

STRIDE: Final = 50
SIGNALS: Final = ("go", "stop")
#: Actions that others may follow at the same moment.
AT_ONCE: Final = frozenset({"send", "signal_object"})
PLACES: Final = tuple((type_name, key) for type_name in TYPES for key in KEYS)


@dataclass(frozen=True)
class Program:
    """What is done, and where the worker dies meanwhile.

    Args:
        seed: What it was drawn from.
        actions: What clients do.
        kills: For each worker in turn, at which of its calls of the store it is killed, and whether before or after it.
    """

    seed: int
    actions: tuple[dict[str, Any], ...]
    kills: tuple[tuple[int, str], ...]


@dataclass
class _Drawing:
    """A program that is being drawn."""

    source: random.Random
    places: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    scripts: list[int] = field(default_factory=list[int])
    awakeables: list[int] = field(default_factory=list[int])
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    #: How many more scripts may be made.
    left: int = 14

    def minutes(self, most: int = 30) -> int:
        return STRIDE * self.source.randint(1, most)

    def script(self, place: tuple[str, str], depth: int) -> dict[str, Any]:
        self.left -= 1
        uid = next(self.numbers)
        self.scripts.append(uid)
        is_blocking = self.source.random() < 0.12
        level = _Level(
            self,
            place,
            depth,
            forks=0 if is_blocking else 2,
            is_blocking=is_blocking,
            cleans=self.source.random() < 0.5,
        )
        on_cancel = self.source.choice(["", "", "clean", "write", "swallow"])
        script: dict[str, Any] = {"uid": uid, "body": level.body(5), "on_cancel": on_cancel}
        if is_blocking:
            script["handler"] = "plod"
        if self.source.random() < 0.12:
            script["body"].append(["fail", next(self.numbers), "fatal"])
        return script


@dataclass
class _Level:
    """Where in a script something is drawn."""

    drawing: _Drawing
    place: tuple[str, str]
    depth: int
    forks: int
    is_blocking: bool
    #: Whether branches that are cut off clean up.
    cleans: bool
    is_branch: bool = False
    #: Whether a failure here would be raised nowhere, since nobody awaits the branch.
    is_left: bool = False

    def body(self, most: int) -> list[Any]:
        return [self.command() for _ in range(self.drawing.source.randint(1, most))]

    def command(self) -> list[Any]:
        source = self.drawing.source
        kinds = ["run"] * 6 + ["add"] * 4 + ["get", "get", "clear", "keys", "note", "falter", "stumble"]
        kinds += ["compensate"] * 2 + ["sleep"] * 3 + ["signal"] * 3 + ["awakeable"] * 2 + ["signal_object"]
        if self.depth > 0 and self.drawing.left > 0:
            kinds += ["call"] * 5 + ["send"] * 3
        if self.forks > 0:
            kinds += ["fork"] * 6
        kind = source.choice(kinds)
        if kind == "stumble" and ((self.is_branch and self.cleans) or self.is_left):
            kind = "run"
        return [kind, next(self.drawing.numbers), *getattr(self, f"_{kind}")()]

    def _run(self) -> list[Any]:
        ways = ["step", "step", "thread", "refused", "spent"]
        how = self.drawing.source.choice(ways if self.is_blocking else [*ways, "slow", "slow"])
        return [how, self.drawing.source.choice("abc")]

    def _falter(self) -> list[Any]:
        return ["f", self.drawing.source.randint(1, 2)]

    def _stumble(self) -> list[Any]:
        return [self.drawing.source.randint(1, 2)]

    def _name(self) -> list[Any]:
        return [self.drawing.source.choice("xy")]

    _get = _add = _name

    def _clear(self) -> list[Any]:
        return [self.drawing.source.choice(["x", "y", ""])]

    def _keys(self) -> list[Any]:
        return []

    _compensate = _keys

    def _note(self) -> list[Any]:
        return [self.drawing.source.choice(["time", "uuid", "random"])]

    def _sleep(self) -> list[Any]:
        return [self.drawing.minutes()]

    def _signal(self) -> list[Any]:
        return [self.drawing.source.choice(SIGNALS), self.drawing.minutes(60)]

    def _signal_object(self) -> list[Any]:
        place = self.drawing.source.choice(self.drawing.places)
        return [*place, self.drawing.source.choice(SIGNALS), self.drawing.source.choice("uvw")]

    def _awakeable(self) -> list[Any]:
        drawing = self.drawing
        # The number of the command is the one that was drawn last.
        number = next(drawing.numbers) - 1
        drawing.awakeables.append(number)
        sends = None
        if self.depth > 0 and drawing.left > 0 and drawing.source.random() < 0.5:
            place = drawing.source.choice([each for each in drawing.places if each != self.place] or drawing.places)
            script = drawing.script(place, 0)
            script["body"].insert(0, ["resolve", next(drawing.numbers), number, "r"])
            sends = ["send", next(drawing.numbers), *place, script, 0]
        return [drawing.minutes(60), sends]

    def _call(self) -> list[Any]:
        drawing = self.drawing
        below = [each for each in drawing.places if PLACES.index(each) > PLACES.index(self.place)]
        place = drawing.source.choice(below) if below and drawing.source.random() > 0.08 else self.place
        return [*place, drawing.script(place, self.depth - 1)]

    def _send(self) -> list[Any]:
        drawing = self.drawing
        place = drawing.source.choice(drawing.places)
        delay = drawing.minutes() if drawing.source.random() < 0.3 else 0
        return [*place, drawing.script(place, self.depth - 1), delay]

    def _fork(self) -> list[Any]:
        source = self.drawing.source
        how = source.choice(["gather", "gather", "select", "select", "as_completed", "first_completed", "group"])
        inner = replace(self, forks=self.forks - 1, is_branch=True, is_left=self.is_left or how == "first_completed")
        branches: list[dict[str, Any]] = [
            {"body": inner.body(3), "clean": self.cleans and source.random() < 0.6} for _ in range(source.randint(2, 3))
        ]
        if how != "group" and source.random() < 0.15:
            source.choice(branches)["body"].append(["fail", next(self.drawing.numbers), "fatal"])
        return [how, branches]


def drawn(seed: int) -> Program:
    """Return the program of a seed."""
    source = random.Random(seed)
    drawing = _Drawing(source)
    drawing.places = source.sample(PLACES, source.randint(2, 4))
    actions: list[dict[str, Any]] = []
    at = 0
    for number in range(source.randint(3, 9)):
        settles = source.random() < 0.8
        actions.append({**_action(drawing, is_first=number == 0), "at": at + number + 1, "settles": settles})
        if settles:
            at += STRIDE * source.randint(0, 15)
    kills = tuple((source.randint(1, 40), source.choice(["before", "after"])) for _ in range(source.randint(1, 5)))
    return Program(seed, tuple(_timed(actions)), kills)


def _timed(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let what is not waited for happen at one moment with what comes next."""
    for one, following in itertools.pairwise(actions):
        if following["do"] not in AT_ONCE or one["do"] not in AT_ONCE:
            one["settles"] = True
        if not one["settles"]:
            following["at"] = one["at"]
    actions[-1]["settles"] = True
    return actions


def _action(drawing: _Drawing, *, is_first: bool) -> dict[str, Any]:
    source = drawing.source
    kinds = ["send"] * 4 + ["signal_object"] * 3 + ["read"] + ["signal"] * 2 + ["cancel"] * 2 + ["kill"]
    kind = "send" if is_first else source.choice(kinds)
    if not is_first and drawing.awakeables and source.random() < 0.3:
        kind = "resolve"
    match kind:
        case "send":
            place = source.choice(drawing.places)
            delay = drawing.minutes() if source.random() < 0.15 else 0
            return {"do": kind, "place": place, "script": drawing.script(place, 2), "delay": delay}
        case "signal_object":
            place = source.choice(drawing.places)
            return {"do": kind, "place": place, "name": source.choice(SIGNALS), "value": source.choice("mno")}
        case "read":
            return {"do": kind, "place": source.choice(drawing.places)}
        case "resolve":
            value = None if source.random() < 0.3 else source.choice("mno")
            return {"do": kind, "awakeable": source.choice(drawing.awakeables), "value": value}
        case "signal":
            uid = source.choice(drawing.scripts)
            return {"do": kind, "uid": uid, "name": source.choice(SIGNALS), "value": source.choice("mno")}
        case _:
            return {"do": kind, "uid": source.choice(drawing.scripts)}
