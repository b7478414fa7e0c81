"""The long form of the fault tests: everything goes wrong at random, and every answer is held against every other."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from keylane import Client
from tests.objects_catalogue import marks

from .harness import NeverHappenedError, eventually, eventually_answers
from .linearizability import calls_of, is_linearizable
from .soak_checker import by_key, check_all, check_cancel, check_counter, check_flaky, check_steps, check_waits
from .soak_faults import Deployment, Load, remaining
from .soak_history import HistoryFile, Kind, Operation
from .soak_journal import wrong_journals
from .soak_store import SeveralFaults, StoreFaults
from .soak_waits import EACH
from .topologies import ClusterServers, SentinelServers

pytestmark = pytest.mark.anyio

SEED = "KEYLANE_SOAK_SEED"
MINUTES = "KEYLANE_SOAK_MINUTES"
SETTLE_SECONDS = 60.0
#: The longest outage of the store and a lease are a small part of this; the rest is for slow machines.
SILENCE_SECONDS = 15.0
#: What no process may say, whatever happens around it.
OURS = re.compile(
    r"Traceback|InternalError|a bug in Keylane|never retrieved|never awaited|Exception ignored", re.IGNORECASE
)


@pytest.mark.slow
async def test_half_a_minute_of_random_faults_loses_and_doubles_nothing(tmp_path: Path, namespace: str) -> None:
    """The short form, with a seed that stays the same."""
    await soak(tmp_path, namespace, seed="1", seconds=20)


@pytest.mark.nightly
async def test_minutes_of_random_faults_lose_and_double_nothing(tmp_path: Path, namespace: str) -> None:
    """The long form, with a seed of its own each time; it is printed, and can be given."""
    seed = os.environ.get(SEED) or secrets.token_hex(4)
    await soak(tmp_path, namespace, seed=seed, seconds=60 * float(os.environ.get(MINUTES, "30")))


@pytest.mark.nightly
@pytest.mark.one_server
@pytest.mark.parametrize("topology", ["cluster", "sentinel"])
async def test_minutes_of_failovers_lose_and_double_nothing_that_a_replica_has_to_have(
    tmp_path: Path, namespace: str, topology: str
) -> None:
    """The same on servers with replicas, primaries of which die, and are replaced, in the middle of all else."""
    seed = os.environ.get(SEED) or secrets.token_hex(4)
    store = SeveralFaults(ClusterServers() if topology == "cluster" else SentinelServers())
    seconds = 60 * float(os.environ.get(MINUTES, "30"))
    await soak(tmp_path, namespace, seed=seed, seconds=seconds, store=store)
    slowest = max(store.promotions, default=0.0)
    sys.stderr.write(f"promotions: {len(store.promotions)}, the slowest after {slowest:.1f} s\n")


async def soak(folder: Path, namespace: str, *, seed: str, seconds: float, store: StoreFaults | None = None) -> None:
    """Run a deployment under faults, let it come to rest, and check all that it has said."""
    sys.stderr.write(f"\n{SEED}={seed}, histories and logs in {folder}\n")
    wrong: list[str] = []
    async with Deployment(folder, seed, namespace, Load(), store=store) as deployment:
        await deployment.faults.run(seconds)
        wrong += deployment.unexpected_ends
        await deployment.finish()
        finished = eventually(lambda: deployment.is_finished, "every call has an answer", seconds=SETTLE_SECONDS)
        wrong += await what_never_happened(finished)
        operations = histories(deployment)
        wrong += silences(operations, deployment.store.outages)
        async with Client(deployment.server.url, namespace=namespace) as client:
            wrong += await wrong_objects(client, operations, folder)
            rest = eventually_answers(
                lambda: has_rest(deployment, namespace), "nothing is left to be done", seconds=SETTLE_SECONDS
            )
            wrong += await what_never_happened(rest)
        wrong += wrong_journals(deployment.server, namespace)
        await deployment.drain()
        wrong += [each for slot in deployment.slots for each in slot.wrong]
    wrong += wrong_logs(deployment)
    sys.stderr.write(summary(operations, deployment))
    assert wrong == [], f"{SEED}={seed}: {len(wrong)} things are wrong, first\n" + "\n".join(wrong[:20])


async def what_never_happened(waiting: Awaitable[None]) -> list[str]:
    """Wait, and return what was waited for in vain: what else is wrong may tell why."""
    try:
        await waiting
    except NeverHappenedError as error:
        return [str(error)]
    return []


def histories(deployment: Deployment) -> list[Operation]:
    """Return what all callers have noted."""
    files = [HistoryFile(deployment.folder / f"history-{slot.name}") for slot in deployment.slots]
    return [operation for file in files for operation in file.read()]


async def wrong_objects(client: Client, operations: list[Operation], folder: Path) -> list[str]:
    """Hold every object's state and lane against what its callers saw."""
    wrong = check_all(operations)
    for key, calls in by_key(operations, Kind.ADD, Kind.READ).items():
        final = await client.call("Counter", key, "get", timeout=10)
        wrong += check_counter(calls, final)
        if not is_linearizable(calls_of(calls), final=final):
            wrong.append(f"{key}: no order of its calls explains what they were answered")
        wrong += await open_work(client, "Counter", key)
    for key, calls in by_key(operations, Kind.STEPS).items():
        kept: list[str] = await client.call("Steps", key, "done", timeout=10)
        wrong += [
            f"{key}: {each}" for each in check_steps(calls, kept, marks(folder / f"trail-{key.replace('/', '-')}"))
        ]
        wrong += await open_work(client, "Steps", key)
    for key, calls in by_key(operations, Kind.FLAKY).items():
        [final, _] = await client.call("Trouble", key, "values", timeout=10)
        executions = {each.name: len(marks(folder / f"trail-{each.name}")) for each in calls}
        wrong += [f"{key}: {each}" for each in check_flaky(calls, final or 0, executions)]
        wrong += await open_work(client, "Trouble", key)
    return wrong + await wrong_waits(client, operations, folder)


async def wrong_waits(client: Client, operations: list[Operation], folder: Path) -> list[str]:
    """Hold what waited, or was cancelled, against what was acknowledged to those who did it."""
    waits = by_key(operations, Kind.WAITS)
    wrong: list[str] = []
    for key, calls in waits.items():
        wrong += check_waits(calls, EACH)
        wrong += await open_work(client, "Waiter", key)
    for key, calls in by_key(operations, Kind.CANCEL).items():
        for each in calls:
            wrong += check_cancel(each, [word for word, _ in marks(folder / f"trail-{each.name}")])
        wrong += await open_work(client, "Sleeper", key)
    return wrong


def silences(operations: list[Operation], outages: Sequence[tuple[float, float]]) -> list[str]:
    """Return the times that were too long for nobody anywhere to get an answer, whatever went wrong.

    How long a killed store takes to be back is its own affair, and the machine's.
    """
    times = sorted(each.answered for each in operations if each.answered is not None)
    return [
        f"nobody got an answer for {later - earlier:.1f} s from {earlier:.6f} on"
        for earlier, later in pairwise(times)
        if later - earlier - sum(overlap((earlier, later), each) for each in outages) > SILENCE_SECONDS
    ]


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(min(one[1], other[1]) - max(one[0], other[0]), 0.0)


async def open_work(client: Client, object_name: str, key: str) -> list[str]:
    """Return the invocations of an object that have not ended."""
    lane = (await client.inspect(object_name, key)).lane
    return [f"{object_name} {key} still has {each}" for each in (*lane.open, *lane.parked, *lane.waiting)]


async def has_rest(deployment: Deployment, namespace: str) -> bool:
    return not remaining(deployment.server, namespace)


def wrong_logs(deployment: Deployment) -> list[str]:
    """Return what processes have said that only a defect of ours can make them say."""
    return [
        f"{name}: {text[max(found.start() - 200, 0) : found.start() + 2000]}\n[…]\n{text[-2000:]}"
        for name, text in deployment.logs().items()
        if not name.endswith("-start") and (found := OURS.search(text))
    ]


def summary(operations: list[Operation], deployment: Deployment) -> str:
    """Return in a few lines what the run consisted of, for whoever wants to judge how much it shows."""
    asked = Counter(each.kind for each in operations)
    answered = Counter(each.kind for each in operations if each.is_answered)
    calls = ", ".join(f"{answered[kind]} of {asked[kind]} {kind}" for kind in Kind)
    faults = ", ".join(f"{count} {name}" for name, count in sorted(deployment.faults.counts.items()))
    slowest = max((each for each in operations if each.is_answered), key=seconds_of)
    return f"answered: {calls}\nfaults: {faults}\nslowest: {seconds_of(slowest):.1f} s, {str(slowest)[:200]}\n"


def seconds_of(operation: Operation) -> float:
    return 0.0 if operation.answered is None else operation.answered - operation.sent
