"""Messages together with large values, full memory, evicted lanes and bounds: each alone works, so must all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Literal

import anyio
import pytest

from keylane import App, Client, InvocationPaused, ObjectContext, Runtime, Settings, VirtualObject

from .harness import StoreServer, eventually, eventually_answers
from .memory_filler import Filler

pytestmark = pytest.mark.anyio

LARGE_BYTES = 100_000
PARTITIONS = 2
SETTINGS = Settings(lease_seconds=0.6, renewal_seconds=0.15, sweep_seconds=0.2)

gates: dict[str, anyio.Event] = {}

archive = VirtualObject("Archive", owner="archive-team", partitions=PARTITIONS, state={"text": bytes})
reader = VirtualObject("Reader", owner="archive-team", partitions=PARTITIONS, state={"seen": int})


async def pass_gate(name: str) -> None:
    await gates[name].wait()


@archive.handler
async def keep(ctx: ObjectContext, text: bytes) -> bytes:
    ctx.set("text", text)
    return text[::-1]


@archive.handler
async def gated(ctx: ObjectContext, name: str) -> str:
    await ctx.run("wait", pass_gate, name)
    return name


@reader.handler
async def exchange(ctx: ObjectContext, count: int) -> int:
    """Hand a large text over, and count what comes back."""
    answer = await ctx.call(keep, ctx.key, bytes(range(100)) * (count // 100))
    await ctx.run("look", str, "seen")
    ctx.set("seen", len(answer))
    return len(answer) if answer[:2] == bytes((99, 98)) else -1


@reader.handler
async def mirror(ctx: ObjectContext, size_bytes: int) -> int:
    return len(await ctx.call(keep, ctx.key, bytes(size_bytes)))


@reader.handler
async def wait_for(ctx: ObjectContext, name: str) -> str:
    return await ctx.call(gated, "acme/gated", name)


@reader.handler
async def tell(ctx: ObjectContext, name: str) -> str:
    await ctx.run("first", str, name)
    await ctx.run("wait", pass_gate, name)
    return (await ctx.send(keep, "acme/told", name.encode())).id


@reader.handler
async def tell_often(ctx: ObjectContext, count: int) -> int:
    for number in range(count):
        await ctx.send(keep, f"acme/{number}", b"")
    return count


speaker = VirtualObject("Speaker", owner="archive-team", partitions=1)


@speaker.handler
async def one_more(ctx: ObjectContext) -> int:
    return 1


@speaker.handler
async def say(ctx: ObjectContext) -> int:
    return await ctx.call(one_more, "acme/other")


one = App([speaker])
app = App([archive, reader])


def hosting(store_url: str, namespace: str, settings: Settings = SETTINGS) -> Runtime:
    return Runtime(app, store=store_url, namespace=namespace, settings=settings)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with hosting(store_url, namespace) as runtime:
        yield runtime


async def test_large_arguments_and_results_pass_between_objects_whole(runtime: Runtime) -> None:
    """Each object keeps large values on its own side; what crosses over must need nothing of the other."""
    assert await runtime.client.call(exchange, "acme/one", LARGE_BYTES, timeout=20) == LARGE_BYTES


async def test_the_largest_value_passes_between_objects(store_url: str, namespace: str) -> None:
    """What a message adds to a value must not make it one that is too large."""
    limit_bytes = 4_096
    # Three bytes say that it is a value of so many bytes.
    largest = limit_bytes - 3
    settings = SETTINGS.model_copy(update={"payload_limit_bytes": limit_bytes})
    async with hosting(store_url, namespace, settings) as runtime:
        assert await runtime.client.call(mirror, "acme/one", largest, timeout=20) == largest


async def test_large_messages_survive_a_hand_over(store_url: str, namespace: str) -> None:
    """The next owner reads the reply out of the journal alone."""
    async with hosting(store_url, namespace) as runtime:
        gates["over"] = anyio.Event()
        handle = await runtime.client.send(wait_for, "acme/over", "over")
        large = await runtime.client.send(exchange, "acme/large", LARGE_BYTES)
        await eventually(lambda: bool(runtime.worker.partitions), "partitions are owned")
    async with hosting(store_url, namespace) as runtime:
        gates["over"].set()
        assert await runtime.client.attach(large.id, type=int).result(timeout=20) == LARGE_BYTES
        assert await runtime.client.attach(handle.id, type=str).result(timeout=20) == "over"


async def test_a_lane_that_waits_for_a_reply_leaves_memory_and_goes_on(store_url: str, namespace: str) -> None:
    """A caller needs no place in memory while its callee is busy, and is found again by its reply."""
    settings = SETTINGS.model_copy(update={"waiting_residency_seconds": 0.05, "resident_lanes": 1})
    async with hosting(store_url, namespace, settings) as runtime:
        gates["evicted"] = anyio.Event()
        handle = await runtime.client.send(wait_for, "acme/evicted", "evicted")

        def lanes() -> set[str]:
            return {key for each in runtime.worker.partitions for key in each.lanes}

        await eventually(lambda: "acme/gated" in lanes(), "the callee runs")
        number = 0
        with anyio.fail_after(20):
            while "acme/evicted" in lanes():
                # Each of these wants a place in memory; the one that waits is to give way to them.
                await runtime.client.call(keep, f"acme/other-{number}", b"", timeout=10)
                number += 1
        gates["evicted"].set()

        assert await handle.result(timeout=20) == "evicted"


async def test_a_message_waits_for_room_in_a_full_store(own_server: StoreServer, namespace: str) -> None:
    """Nothing of it is written while there is none, and it leaves by itself when there is some."""
    async with hosting(own_server.url, namespace) as runtime:
        client = runtime.client
        gates["full"] = anyio.Event()
        handle = await client.send(tell, "acme/full", "full")
        await handle.accepted(timeout=10)
        await eventually(lambda: any(each.running for each in runtime.worker.partitions), "it runs")
        filler = Filler(own_server)
        filler.fill_to(0.95)
        await eventually(
            lambda: all(each.memory.is_full for each in client.store.nodes), "the store is seen to be full"
        )
        gates["full"].set()
        await eventually(lambda: any(each.sleepers for each in runtime.worker.partitions), "it waits for room")
        assert not [key for key in own_server.ask("KEYS", "*") if b":x:" in key]
        filler.empty()

        sent = await handle.result(timeout=20)
        assert await client.attach(sent, type=bytes).result(timeout=20) == b"lluf"


async def test_messages_count_among_the_records_that_an_invocation_may_have(store_url: str, namespace: str) -> None:
    """It parks before the first one too many, and says so."""
    settings = SETTINGS.model_copy(update={"records_per_invocation": 10})
    async with hosting(store_url, namespace, settings) as runtime:
        with pytest.raises(InvocationPaused, match="records"):
            await runtime.client.call(tell_often, "acme/often", 20, timeout=20)


@pytest.mark.quiet
async def test_delayed_calls_that_the_store_refuses_itself_stay_in_the_inbox(
    own_server: StoreServer, namespace: str
) -> None:
    """They are taken in when there is room, each once."""
    async with (
        hosting(own_server.url, namespace) as runtime,
        Client(own_server.url, namespace=namespace, settings=SETTINGS) as remote,
    ):
        delay = timedelta(milliseconds=1)
        handles = [await remote.send(keep, "acme/later", bytes((number,)), delay=delay) for number in range(3)]
        # At once, before the owner has taken all of them in.
        own_server.ask("CONFIG", "SET", "maxmemory", 1)
        await eventually(lambda: any(each.inbox.behind for each in runtime.worker.partitions), "one was put back")
        own_server.ask("CONFIG", "SET", "maxmemory", 0)

        assert [await handle.result(timeout=20) for handle in handles] == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize(("durability", "kept"), [("fsync", 0), ("server", 2)])
async def test_messages_that_arrived_are_kept_where_their_receiver_may_lose_them(
    store_url: str, namespace: str, durability: Literal["fsync", "server"], kept: int
) -> None:
    """With an fsync before each answer nothing that has arrived can be lost, and nothing is kept."""
    settings = SETTINGS.model_copy(update={"partitions": 1})
    async with Runtime(one, store=store_url, namespace=namespace, settings=settings, durability=durability) as runtime:
        for _ in range(2):
            assert await runtime.client.call(say, "acme/one", timeout=10) == 1
        store = runtime.client.store
        outbox = store.space("Speaker", 0).outbox("Speaker.0")

        async def entries() -> bool:
            # Two calls, and as many replies.
            return await store.call("XLEN", outbox) == 2 * kept

        await eventually_answers(entries, "as many as are kept")
