"""SIGKILL while an invocation waits and others have its lane: it returns to fresh state, or is told what changed."""

from __future__ import annotations

import signal

import anyio
import pytest

from keylane import Accepted, Client, Handle, InvocationFailed
from tests.killed_catalogue import annotate, note, set_amount, wait_aside

from .fault_points import Action, Fault, Moment
from .harness import StoreServer, eventually_answers
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

APP = "tests.killed_catalogue:app"
KEY = "acme/a"
#: Long for what takes a moment on a quiet machine.
READY_SECONDS = 60.0
#: Commits of the worker that takes it over: word comes, the invocation returns and ends.
COMMITS = 2
#: What is killed at each time; at the others, in the night.
EACH_TIME = {(1, Moment.AFTER), (2, Moment.BEFORE)}
POINTS = [
    pytest.param(Fault(Action.KILL, moment, number), marks=() if (number, moment) in EACH_TIME else pytest.mark.nightly)
    for number in range(1, COMMITS + 1)
    for moment in Moment
]


async def left_aside(client: Client, worker: WorkerProcess) -> Handle[list[str]]:
    """Begin an invocation, and have another handler run once it has left its lane."""
    await worker.ready(READY_SECONDS)
    await client.call(annotate, KEY, "first", timeout=READY_SECONDS)
    handle = await client.send(wait_aside, KEY)

    async def waits() -> bool:
        return (await client.describe(handle.id)).status == "waiting"

    await eventually_answers(waits, "it waits", seconds=READY_SECONDS)
    # Were the lane held, this would wait for word that nobody sends.
    await client.call(annotate, KEY, "second", timeout=READY_SECONDS)
    return handle


async def give_word(client: Client, handle: Handle[list[str]]) -> None:
    """Say what it waits for, once, however often that is asked for."""
    told = await handle.signal("go", "on", message_id="word", timeout=READY_SECONDS)
    assert isinstance(told, Accepted)


async def test_one_whose_owner_dies_while_others_have_its_lane_returns_with_fresh_state(
    shared_server: StoreServer, namespace: str
) -> None:
    """Others have the lane under the next owner, too, until there is word."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            handle = await left_aside(client, first)
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready(READY_SECONDS)
            await client.call(annotate, KEY, "third", timeout=READY_SECONDS)
            await give_word(client, handle)
            assert await handle.result(timeout=READY_SECONDS) == ["first", "on", "third"]
            assert await client.call(note, KEY, timeout=READY_SECONDS) == "third, on"


@pytest.mark.parametrize("when", ["before the owner dies", "after it has died"])
async def test_one_whose_expectation_is_gone_is_told_so_by_the_next_owner(
    shared_server: StoreServer, namespace: str, when: str
) -> None:
    """What it expects is compared with what the first owner has read for it."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            handle = await left_aside(client, first)
            if when == "before the owner dies":
                await client.call(set_amount, KEY, 5, timeout=READY_SECONDS)
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready(READY_SECONDS)
            if when == "after it has died":
                await client.call(set_amount, KEY, 5, timeout=READY_SECONDS)
            await give_word(client, handle)
            with pytest.raises(InvocationFailed, match="'amount'") as failed:
                await handle.result(timeout=READY_SECONDS)
            assert failed.value.code == "superseded"
            assert await client.call(note, KEY, timeout=READY_SECONDS) == "second"


@pytest.mark.parametrize("point", POINTS, ids=str)
async def test_a_worker_killed_where_one_returns_to_its_lane_changes_nothing_of_what_it_sees(
    shared_server: StoreServer, namespace: str, point: Fault
) -> None:
    """Word is taken once, and the note is written once, whichever commit is the last of a worker."""
    async with Client(shared_server.url, namespace=namespace) as client, anyio.create_task_group() as tasks:
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            handle = await left_aside(client, first)
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=str(point)) as second:
            await second.ready(READY_SECONDS)
            tasks.start_soon(give_word, client, handle)
            assert await second.ended(READY_SECONDS) == -signal.SIGKILL, second.stderr
        with WorkerProcess(shared_server.url, namespace, app=APP) as third:
            await third.ready(READY_SECONDS)
            assert await handle.result(timeout=READY_SECONDS) == ["first", "on", "second"]
            await give_word(client, handle)
            assert await client.call(note, KEY, timeout=READY_SECONDS) == "second, on"
