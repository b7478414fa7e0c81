"""Messages, calls and sleeps while workers are killed, connections are cut and hints are lost."""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest

from keylane import Client, Runtime
from keylane.journal.key import parse_id
from keylane.journal.observer import NoObserver
from tests.messages_catalogue import BURST, Errand, Round, app, books, count, emit, errand, leave, sleep
from tests.objects_catalogue import marks

from .harness import StoreServer, eventually, eventually_answers
from .proxy import Proxy
from .worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

APP = "tests.messages_catalogue:app"
SEED = "KEYLANE_MESSAGES_SEED"
#: Long for what takes a minute on a quiet machine.
LIMIT_SECONDS = 1_800.0


async def test_ten_messages_of_a_hundred_while_everything_fails_are_each_taken_once_in_order(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The short form: 1,000 messages between 40 objects, with a seed that stays the same."""
    await exchange(shared_server, proxy, namespace, seed="1", objects=40, messages=1_000)


@pytest.mark.nightly
async def test_ten_thousand_messages_while_everything_fails_are_each_taken_once_in_order(
    shared_server: StoreServer, proxy: Proxy, namespace: str
) -> None:
    """The long form: between 200 objects, with a seed of its own each time; it is printed, and can be given."""
    seed = os.environ.get(SEED) or secrets.token_hex(4)
    await exchange(shared_server, proxy, namespace, seed=seed, objects=200, messages=10_000)


async def exchange(
    server: StoreServer, proxy: Proxy, namespace: str, *, seed: str, objects: int, messages: int
) -> None:
    """Have objects send each other messages, kill workers and cut connections meanwhile, and compare the books."""
    choose = random.Random(seed)
    kills = cuts = 0
    began = time.monotonic()
    async with Client(server.url, namespace=namespace) as client, AsyncExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(proxy.url, namespace, app=APP)) for _ in range(2)]
        await workers[0].ready()
        bursts = [(each, number) for number in range(messages // (objects * BURST) + 1) for each in range(objects)]
        bursts = bursts[: messages // BURST]
        while bursts or await taken(client, objects) < messages:
            # A part at a time, so that all of it is under way while things go wrong.
            for each, number in bursts[: len(bursts) // 8 + 10]:
                await client.send(emit, f"acme/{each}", Round(seed=seed, number=number, objects=objects))
            del bursts[: len(bursts) // 8 + 10]
            for _ in range(choose.randrange(3)):
                await anyio.sleep(choose.uniform(0, 0.1))
                cuts += proxy.cut()
            if choose.random() < 0.5:
                kills += 1
                place = choose.randrange(2)
                workers[place].kill()
                workers[place] = stack.enter_context(WorkerProcess(proxy.url, namespace, app=APP))
                await workers[place].ready()
            assert time.monotonic() - began < LIMIT_SECONDS
        wrong = await wrong_books(client, objects)
        await eventually_answers(lambda: is_clean(client, namespace), "no message is left on its way")
    sys.stderr.write(
        f"\n{SEED}={seed}: {messages} messages between {objects} objects, {kills} workers killed, {cuts} connections "
        f"cut, {time.monotonic() - began:.1f} s\n"
    )
    assert wrong == []


async def taken(client: Client, objects: int) -> int:
    """Return how many messages have been taken."""
    total = 0
    for each in range(objects):
        _, received = await client.call(books, f"acme/{each}", timeout=30)
        total += sum(len(sequences) for sequences in received.values())
    return total


async def wrong_books(client: Client, objects: int) -> list[str]:
    """Compare what each object has sent with what its receivers have taken: all of it, once, in order."""
    kept = {f"acme/{each}": await client.call(books, f"acme/{each}", timeout=30) for each in range(objects)}
    sent = {(sender, receiver): number for sender, (sent, _) in kept.items() for receiver, number in sent.items()}
    received = {
        (sender, receiver): sequences for receiver, (_, taken) in kept.items() for sender, sequences in taken.items()
    }
    return [
        f"{sender} has sent {sent.get((sender, receiver), 0)} to {receiver}, which has taken {sequences}"
        for (sender, receiver) in sent.keys() | received.keys()
        if (sequences := received.get((sender, receiver), [])) != list(range(sent.get((sender, receiver), 0)))
    ]


async def is_clean(client: Client, namespace: str) -> bool:
    """Return whether nothing lies in outboxes and inboxes."""
    keys = await client.store.call("KEYS", f"{{{namespace}:*")
    lengths = [await client.store.call("XLEN", key) for key in keys if key.endswith(b":inbox")]
    return not any(lengths) and not [key for key in keys if key.partition(b"}:")[2].startswith(b"x:")]


@pytest.mark.parametrize("at", range(1, 9))
async def test_a_call_survives_the_death_of_both_sides_at_every_commit(
    shared_server: StoreServer, namespace: str, trail: Path, at: int
) -> None:
    """Killed after each commit in turn: no recorded step is run again, and what is called is called once."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=f"kill:after:{at}") as first:
            handle = await client.send(errand, "acme/1", Errand(trail=str(trail)))
            await eventually(lambda: first.returncode is not None or is_done(trail), "the end of one of the two")
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            result = await handle.result(timeout=10)
            assert await client.call(count, "acme/1", timeout=10) == 1

    words = [word for word, _ in marks(trail)]
    assert words == sorted(words, key=["first", "serve", "last"].index)
    assert result == [dict(reversed(marks(trail)))[word] for word in ("first", "serve", "last")] or len(words) > 3
    assert set(result) <= {token for _, token in marks(trail)}


def is_done(trail: Path) -> bool:
    return [word for word, _ in marks(trail)][-1:] == ["last"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
async def test_a_worker_killed_around_a_delivery_delivers_once(
    shared_server: StoreServer, namespace: str, trail: Path, moment: str, at: int
) -> None:
    """Before it, the next owner sends what the outbox holds; after it, the receiver knows the number."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP, faults=f"kill:{moment}:{at}:deliver") as first:
            handle = await client.send(errand, "acme/1", Errand(trail=str(trail)))
            await first.ended(20)
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            await handle.result(timeout=10)
            assert await client.call(count, "acme/1", timeout=10) == 1

    assert [word for word, _ in marks(trail)] == ["first", "serve", "last"]


async def test_a_sleep_survives_its_worker_and_is_never_too_short(
    shared_server: StoreServer, namespace: str, trail: Path
) -> None:
    """Killed in the middle of it: the next owner wakes it, at its time and not before, and runs no step again."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            await first.ready()
            handle = await client.send(sleep, "acme/1", Errand(trail=str(trail), seconds=1.5))
            began = time.monotonic()
            await eventually_answers(lambda: has_status(client, handle.id, "waiting"), "it sleeps")
            first.kill()
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            slept = await handle.result(timeout=10)

    assert slept >= 1.5
    assert time.monotonic() - began >= 1.5
    assert [word for word, _ in marks(trail)] == ["begun", "ended"]


async def test_what_is_due_while_nobody_lives_begins_once_in_order_when_somebody_does(
    shared_server: StoreServer, namespace: str
) -> None:
    """Scheduled, its worker killed, its time passed: the next owner puts all of it into its lane in order."""
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=APP) as first:
            await first.ready()
            handles = [
                await client.send(leave, "acme/1", str(number), delay=timedelta(milliseconds=1_500 - number * 10))
                for number in range(20)
            ]
            for handle in handles:
                await eventually_answers(lambda handle=handle: has_status(client, handle.id, "scheduled"), "scheduled")
            first.kill()
        # What counts is when each was taken in, which a busy machine spreads.
        due = {handle.id: (await handle.describe()).retry_due_at for handle in handles}
        last_due = max(at for at in due.values() if at is not None)
        await eventually_answers(lambda: has_passed(client, last_due), "all are due")
        with WorkerProcess(shared_server.url, namespace, app=APP) as second:
            await second.ready()
            assert [await handle.result(timeout=10) for handle in handles] == [str(number) for number in range(20)]
            timeline = (await client.inspect("Clerk", "acme/1", timeline_entries=200)).timeline
    ended = [event.invocation for event in timeline if event.what == "completed"]
    assert ended == sorted(due, key=lambda each: (due[each], bytes.fromhex(each[-32:])))


async def has_passed(client: Client, at: datetime) -> bool:
    """Return whether a time has passed by the store's clock."""
    seconds, microseconds = map(int, await client.store.call("TIME"))
    return seconds + microseconds / 1e6 > at.timestamp()


async def has_status(client: Client, invocation_id: str, status: str) -> bool:
    return (await client.describe(invocation_id)).status == status


class Deaf(NoObserver):
    """Keeps back every pub/sub message."""

    def deliver(self, channel: bytes) -> bool:
        """Let nothing pass."""
        del channel
        return False


async def test_without_any_hint_only_latency_suffers(shared_server: StoreServer, namespace: str, trail: Path) -> None:
    """The sweep finds messages, replies and answers."""
    with WorkerProcess(shared_server.url, namespace, app=APP, faults="drop") as worker:
        await worker.ready()
        async with Client(shared_server.url, namespace=namespace) as client:
            began = time.monotonic()
            result = await client.call(errand, "acme/1", Errand(trail=str(trail)), timeout=20)
            assert len(result) == 3
            # The call, its message and its reply each wait for a sweep at most, of 0.2 s here.
            assert time.monotonic() - began < 5
            assert await client.call(count, "acme/1", timeout=20) == 1


async def test_a_reply_that_comes_while_its_caller_has_no_owner_waits_for_the_next_one(
    shared_server: StoreServer, namespace: str, trail: Path, tmp_path: Path
) -> None:
    """Two types, two workers: the caller's is killed before the reply, which lies in its inbox until then."""
    gate = tmp_path / "gate"
    callers, callees = "tests.messages_catalogue:callers", "tests.messages_catalogue:callees"
    async with Client(shared_server.url, namespace=namespace) as client:
        with WorkerProcess(shared_server.url, namespace, app=callees) as callee:
            await callee.ready()
            with WorkerProcess(shared_server.url, namespace, app=callers) as first:
                await first.ready()
                handle = await client.send(errand, "acme/1", Errand(trail=str(trail), gate=str(gate)))
                await eventually(lambda: "serve" in [word for word, _ in marks(trail)], "the call has arrived")
                first.kill()
            gate.touch()
            space = client.space_of(parse_id(handle.id))
            await eventually_answers(lambda: has_entries(client, space.inbox), "the reply lies in the inbox")
            with WorkerProcess(shared_server.url, namespace, app=callers) as second:
                await second.ready()
                assert len(await handle.result(timeout=10)) == 3
    assert [word for word, _ in marks(trail)] == ["first", "serve", "last"]


async def has_entries(client: Client, stream: bytes) -> bool:
    return await client.store.call("XLEN", stream) > 0


class Dropping(NoObserver):
    """Has the answers swallowed to what is sent from a delivery on, when told to."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.is_armed = False
        self.delivered = 0

    def before_send(self, what: str, partition: str, number: int) -> None:
        """Begin to swallow."""
        del partition, number
        if what == "deliver" and self.is_armed:
            self.is_armed = False
            self.delivered = self._proxy.calls["deliver"]
            self._proxy.drop_replies(only="deliver")


async def test_a_connection_that_loses_answers_to_deliveries_delivers_once(
    shared_server: StoreServer, proxy: Proxy, namespace: str, trail: Path
) -> None:
    """What the receiver has taken and the sender has not heard of is sent again, and dropped there."""
    observer = Dropping(proxy)
    async with Runtime(app, store=proxy.url, namespace=namespace, observer=observer) as runtime:
        for number in range(8):
            # The connection of deliveries is known by them once there was one.
            observer.is_armed = number > 0
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one_errand, runtime, number, trail)
                if number:
                    await eventually(lambda: not observer.is_armed, "a delivery is sent")
                    await eventually(lambda: proxy.calls["deliver"] > observer.delivered, "it has arrived")
                    proxy.cut(only="deliver")
                    proxy.heal()
        for number in range(8):
            assert await runtime.client.call(count, f"acme/{number}", timeout=20) == 1
    words = [word for word, _ in marks(trail)]
    assert (words.count("first"), words.count("serve"), words.count("last")) == (8, 8, 8)


async def one_errand(runtime: Runtime, number: int, trail: Path) -> None:
    await runtime.client.call(errand, f"acme/{number}", Errand(trail=str(trail)), timeout=20)
