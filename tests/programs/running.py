"""Runs a program on the engine with workers that die, and compares what came of it with what may come of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import Any, Final, cast

import anyio

from keylane import App, InvocationCancelled, InvocationFailed, Settings
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.runtime.handle import Handle

from .expecting import SCHEDULES, SEARCHED, outcomes, plain, searched, written
from .generating import Program
from .mortal import MortalHarness
from .scripts import NAMES, STUMBLED, Ledger, handler_of, ledgers, objects, word_of

RUN_SECONDS: Final = 30.0
#: By then every wait has ended in its own way.
ALL_ENDED: Final = timedelta(days=90)
#: What an action sets going has this long before the next one, in milliseconds; retries are due within moments.
COME_TO_REST_MS: Final = 1_000
PARTITIONS: Final = 2
SETTINGS: Final = Settings(
    partitions=PARTITIONS,
    result_retention_seconds=300 * 86_400,
    tombstone_retention_days=400,
    retry_first_seconds=0.001,
)
RESULTS: Final = ("run", "falter", "step", "awakeable")


class Disagreement(AssertionError):
    """A program has come to something that it may not come to."""


@dataclass
class Played:
    """A program that is under way.

    Args:
        program: The program.
        h: Its harness.
        tag: Its tenant.
    """

    program: Program
    h: MortalHarness
    tag: str
    handles: dict[int, Handle[Any]] = field(default_factory=dict[int, Handle[Any]])
    answers: list[Any] = field(default_factory=list[Any])

    @property
    def ledger(self) -> Ledger:
        """What it has done outside."""
        return ledgers[self.tag]

    async def play(self) -> None:
        """Do what clients do, each thing at its minute, and let all of it end."""
        began_ms = await self.h.now_ms()
        for action in self.program.actions:
            moment_ms = began_ms + action["at"] * 60_000
            if await self.h.now_ms() < moment_ms:
                await self.h.until(moment_ms)
            self.answers.append(await self._do(action))
            if action["settles"]:
                await self.h.until(await self.h.now_ms() + COME_TO_REST_MS)
        await self.h.until(await self.h.now_ms() + ALL_ENDED // timedelta(milliseconds=1))

    def _id(self, uid: int) -> str | None:
        handle = self.handles.get(uid)
        return handle.id if handle is not None else self.ledger.invocations.get(uid)

    async def _do(self, action: dict[str, Any]) -> Any:
        client = self.h.client
        match action["do"]:
            case "send":
                await self._send(action)
                return "sent"
            case "signal_object":
                type_name, key = action["place"]
                target = f"{self.tag}/{key}"
                return word_of(await client.signal_object(type_name, target, action["name"], action["value"]))
            case "read":
                return await self._state(*action["place"])
            case "resolve":
                return await self._resolve(action)
            case kind:
                target = self._id(action["uid"])
                if target is None:
                    return "unknown"
                if kind == "signal":
                    return word_of(await client.signal(target, action["name"], action["value"]))
                if kind == "kill":
                    report = await client.kill(target, by="tests", reason="drawn")
                else:
                    report = await client.cancel(target, by="tests", reason="drawn")
                return str(report.outcome)

    async def _send(self, action: dict[str, Any]) -> None:
        (type_name, key), script = action["place"], action["script"]
        handle = await self.h.client.send(
            type_name, f"{self.tag}/{key}", handler_of(script), script,
            delay=timedelta(minutes=action["delay"]) if action["delay"] else None,
        )  # fmt: skip
        self.handles[script["uid"]] = handle

    async def _resolve(self, action: dict[str, Any]) -> str:
        found = self.ledger.awakeables.get(action["awakeable"])
        if found is None:
            return "UnknownTarget"
        if action["value"] is None:
            return word_of(await self.h.client.reject_awakeable(found, "rejected", code="rejected"))
        return word_of(await self.h.client.resolve_awakeable(found, action["value"]))

    async def _state(self, type_name: str, key: str) -> dict[str, Any]:
        found = await self.h.client.call(type_name, f"{self.tag}/{key}", "state")
        return {name: found.get(name) for name in NAMES}

    async def outcome(self, places: list[str]) -> dict[str, Any]:
        """Return what it has come to, as the model tells it."""
        ids = {**self.ledger.invocations, **{uid: handle.id for uid, handle in self.handles.items()}}
        ends = {uid: await self._end(each) for uid, each in ids.items()}
        return plain({
            "answers": self.answers,
            "ends": ends,
            "undone": {uid: list(dict.fromkeys(each)) for uid, each in self.ledger.undone.items()},
            "states": {place: await self._state(*place.split()) for place in places},
        })  # fmt: skip

    async def _end(self, invocation_id: str) -> list[Any] | None:
        described = await self.h.client.describe(invocation_id)
        if described.status not in ENDED:
            return [described.status, str(described.pause)]
        try:
            return ["completed", await self.h.client.attach(invocation_id).result(timeout=10)]
        except InvocationFailed as error:
            return ["failed", error.code]
        except InvocationCancelled as error:
            return [error.how, None]

    # What holds for every program.

    def check_runs(self) -> None:
        """Check that each run saw what the one before it saw, and that each result comes of a step that was run."""
        for uid, runs in self.ledger.runs.items():
            longest: list[Any] = []
            for each in runs:
                run = each[: each.index(STUMBLED)] if STUMBLED in each else each
                common = min(len(run), len(longest))
                if told(run, longest)[:common] != told(longest, longest)[:common]:
                    raise Disagreement(f"script {uid}: a run saw {longest}, and the next one {run}")
                longest = max(longest, run, key=len)
            for number, kind, got in longest:
                if kind == "run" and not self.ledger.executions[number]:
                    raise Disagreement(f"step {number} has the result {got} and never ran")

    async def check_results(self) -> None:
        """Check that what was answered is what the last run saw: the same executions of the same steps."""
        for uid, handle in self.handles.items():
            end = await self._end(handle.id)
            if end is not None and end[0] == "completed" and end[1] != ["swallowed"]:
                returned, seen = tokens_of(end[1]), tokens_of(self.ledger.runs[uid][-1])
                if not returned <= seen | self._tokens_below():
                    raise Disagreement(f"script {uid} answered {sorted(returned - seen)}, which no last run has seen")

    def _tokens_below(self) -> set[str]:
        return {each for runs in self.ledger.runs.values() for each in tokens_of(runs[-1])}

    async def check_nothing_is_left(self, ends: dict[str, Any]) -> None:
        """Check that nothing is open, due, in a lane, in an inbox or in an outbox any more.

        Args:
            ends: What invocations have come to, for those who look for the reason.
        """
        store = self.h.client.store
        left: list[str] = []
        for space in (store.space(each.name, number) for each in objects for number in range(PARTITIONS)):
            for key in (space.due, space.runnable, space.inbox, *await store.call("KEYS", space.lane("*"))):
                kind = await store.call("TYPE", key)
                count = 0 if kind == b"none" else await store.call(LENGTHS[kind], key)
                if count:
                    left.append(f"{key.decode()} has {count}")
        if left:
            open_ = {uid: end for uid, end in ends.items() if end is None or end[0] not in ENDED}
            raise Disagreement("; ".join([*left, f"open: {open_}"]))

    async def check_progress(self) -> None:
        """Check by the doctor that every open invocation has what lets it go on."""
        report = await check_up(self.h.client.store, Plan(SETTINGS.lease_seconds))
        if report.findings:
            raise Disagreement("; ".join(f"{each.kind} {each.place}: {each.cause}" for each in report.findings))


ENDED: Final = frozenset({"completed", "failed", "cancelled", "killed"})
LENGTHS: Final = {b"zset": "ZCARD", b"set": "SCARD", b"stream": "XLEN", b"list": "LLEN", b"hash": "HLEN"}


def told(run: list[Any], longest: list[Any]) -> list[Any]:
    """Return what a run saw, without what the clock said behind the last thing that was recorded with a result."""
    results = [number for number, saw in enumerate(longest) if saw[1] in RESULTS]
    last = max(results, default=-1)
    return [saw if at < last else without_times(saw) for at, saw in enumerate(run)]


def without_times(value: Any) -> Any:
    """Return what was seen without what the clock said."""
    match value:
        case str() if value.startswith("time#"):
            return "time"
        case list():
            return [without_times(each) for each in cast("list[Any]", value)]
        case _:
            return value


def tokens_of(value: Any) -> set[str]:
    """Return the results of steps that are somewhere in a value."""
    match value:
        case str():
            return {value} if "#" in value else set()
        case list():
            return {token for each in cast("list[Any]", value) for token in tokens_of(each)}
        case _:
            return set()


async def checked(program: Program, store_url: str, *, is_examined: bool = False, tries: int = SEARCHED) -> list[str]:
    """Run a program and check what came of it.

    Args:
        program: The program.
        store_url: The store.
        is_examined: Whether the doctor looks at the store in the end.
        tries: How many schedules are searched for an outcome that none of the first ones has.

    Returns:
        Where its workers were killed.

    Raises:
        Disagreement: It has come to what it may not come to.
    """
    allowed = [*outcomes(program, SCHEDULES)]
    places = sorted({place for each in allowed for place in each["states"]})
    tag = f"p{program.seed}"
    ledgers.pop(tag, None)
    app = App(objects, settings=SETTINGS)
    with anyio.fail_after(RUN_SECONDS):
        async with MortalHarness(app, kills=program.kills, store=store_url, settings=SETTINGS) as h:
            played = Played(program, h, tag)
            await played.play()
            if is_examined:
                await played.check_progress()
            found = await played.outcome(places)
            played.check_runs()
            await played.check_results()
            await played.check_nothing_is_left(found["ends"])
            killed = h.killed
    check(program, found, allowed, tries)
    ledgers.pop(tag, None)
    return killed


def check(program: Program, found: dict[str, Any], allowed: list[dict[str, Any]], tries: int) -> None:
    """Check that an outcome is one that some schedule of the model has.

    Raises:
        Disagreement: None of those that were tried has it.
    """
    text = _without_untouched(found)
    if any(_without_untouched(each) == text for each in allowed):
        return
    nearest = searched(program, partial(_distance, found), tries)
    if _without_untouched(nearest) != text:
        raise Disagreement(f"no schedule of the model comes to this:\n{_differences(found, nearest)}")


def _distance(found: dict[str, Any], expected: dict[str, Any]) -> int:
    if _without_untouched(found) == _without_untouched(expected):
        return 0
    return 1 + sum(
        each != other
        for part in found
        for each, other in zip_longest(_leaves(found[part]), _leaves(expected[part]))
    )  # fmt: skip


def _leaves(value: Any) -> Iterator[Any]:
    match value:
        case dict():
            yield from _leaves(list(cast("dict[str, Any]", value).values()))
        case list():
            for each in cast("list[Any]", value):
                yield from _leaves(each)
        case _:
            yield value


def _without_untouched(outcome: dict[str, Any]) -> str:
    """Return an outcome as text, without objects that have no state."""
    states = {place: each for place, each in outcome["states"].items() if any(each.values())}
    return written({**outcome, "states": states})


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> str:
    lines: list[str] = []
    for part in ("answers", "ends", "undone", "states"):
        one, other = _items(found[part]), _items(expected[part])
        for name in sorted(one.keys() | other.keys(), key=str):
            if one.get(name) != other.get(name):
                lines.append(f"  {part} {name}:\n    found    {json.dumps(one.get(name))}")
                lines.append(f"    expected {json.dumps(other.get(name))}")
    return "\n".join(lines)


def _items(part: Any) -> dict[Any, Any]:
    if isinstance(part, dict):
        return cast("dict[Any, Any]", part)
    return dict(enumerate(cast("list[Any]", part)))
