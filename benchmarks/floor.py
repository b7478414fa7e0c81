"""The floor: the bare commit path that the engine's speed is measured against.

It has what a durable lane on Redis can't do without: one lane per key, released as soon as the commit is queued; an
answer that waits until that commit is durable; all commits of a turn in one pipeline, one function call per partition
with its epoch and batch number; pydantic at the boundary, msgpack records, a result key that expires. It has nothing
else: no recovery, retries, idempotency, leases, inbox, shared handlers or errors. One pipeline is under way at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import msgpack
from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from . import workloads
from .harness import Call
from .workloads import STEPS, Add, Count, charge, pay

PARTITIONS = 16
LANE_SLOTS = 256
EPOCH = b"1"
RESULT_RETENTION_MS = b"600000"
SOCKET_TIMEOUT_SECONDS = 10.0

#: A letter of `lua/floor.lua`, a key, and the two arguments of the letter.
Operation = tuple[bytes, str, bytes, bytes]
Handler = Callable[["Context", Add], Awaitable[Count]]

add_type = TypeAdapter(Add)
count_type = TypeAdapter(Count)


def pack(value: Any) -> bytes:
    return msgpack.packb(value)


def unpack(data: bytes) -> Any:
    return msgpack.unpackb(data)


class Commit:
    """Operations of one partition, and the future that gets `answer` once they are durable."""

    __slots__ = ("answer", "durable", "operations")

    def __init__(self, operations: list[Operation], durable: asyncio.Future[bytes], answer: bytes) -> None:
        self.operations = operations
        self.durable = durable
        self.answer = answer


class Partition:
    """The commits that one function call writes together, and its number."""

    __slots__ = ("batch", "owner", "queued", "tag")

    def __init__(self, number: int) -> None:
        self.tag = f"{{floor:{number}}}"
        self.owner = f"{self.tag}:owner"
        self.queued: list[Commit] = []
        self.batch = 0

    def next_call(self, commits: list[Commit]) -> tuple[Any, ...]:
        """Spell the function call that applies commits."""
        self.batch += 1
        positions = {self.owner: 1}
        words: list[bytes | int] = []
        for commit in commits:
            for letter, key, first, second in commit.operations:
                position = positions.setdefault(key, len(positions) + 1)
                words += (letter, position, first, second)
        return ("FCALL", "floor_commit", len(positions), *positions, EPOCH, self.batch, *words)


class Committer:
    """Sends what is queued in all partitions in one pipeline per turn.

    Args:
        redis: A connection that does not send again by itself.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._ready: set[Partition] = set()
        self._wake = asyncio.Event()

    def commit(self, partition: Partition, commit: Commit) -> None:
        """Queue a commit; it goes out with the others of this turn."""
        partition.queued.append(commit)
        self._ready.add(partition)
        self._wake.set()

    async def run(self) -> None:
        """Send turn after turn until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            # One more turn of the loop lets everybody who is ready join this pipeline.
            await asyncio.sleep(0)
            while self._ready:
                await self._send_turn()

    async def _send_turn(self) -> None:
        ready, self._ready = self._ready, set()
        pipeline = self._redis.pipeline(transaction=False)
        sent: list[Commit] = []
        for partition in ready:
            commits, partition.queued = partition.queued, []
            pipeline.execute_command(*partition.next_call(commits))
            sent += commits
        await pipeline.execute()
        for commit in sent:
            commit.durable.set_result(commit.answer)


class Invocation:
    """One call that waits for its lane."""

    __slots__ = ("answer", "argument", "handler", "name")

    def __init__(self, name: str, handler: Handler, argument: bytes, answer: asyncio.Future[bytes]) -> None:
        self.name = name
        self.handler = handler
        self.argument = argument
        self.answer = answer


class Lane:
    """One key: its state as queued, and the calls that wait for it."""

    __slots__ = ("is_taken", "last", "partition", "queue", "state", "stream")

    def __init__(self, partition: Partition, key: str) -> None:
        self.partition = partition
        self.stream = f"{partition.tag}:o:{key}"
        self.queue: deque[Invocation] = deque()
        self.is_taken = False
        self.state: dict[str, int] = {}
        self.last: asyncio.Future[bytes] | None = None


class Context:
    """What a handler gets.

    Args:
        committer: Takes the commits.
        lane: The key's lane.
        invocation: The call.
    """

    __slots__ = ("_committer", "_invocation", "_lane", "_step", "changed")

    def __init__(self, committer: Committer, lane: Lane, invocation: Invocation) -> None:
        self._committer = committer
        self._lane = lane
        self._invocation = invocation
        self._step = 0
        self.changed: dict[str, int] = {}

    async def get(self, name: str) -> int | None:
        return self._lane.state.get(name)

    def set(self, name: str, value: int) -> None:
        self._lane.state[name] = self.changed[name] = value

    async def run(self, name: str, action: Callable[[], Awaitable[dict[str, int]]]) -> dict[str, int]:
        """Run a step once everything before it is durable, and return when its record is."""
        lane = self._lane
        if lane.last is not None and not lane.last.done():
            await lane.last
        result = await action()
        self._step += 1
        changed, self.changed = self.changed, {}
        record = pack((self._invocation.name, self._step, "run", name, result))
        delta = pack(changed) if changed else b""
        lane.last = durable = asyncio.get_running_loop().create_future()
        self._committer.commit(lane.partition, Commit([(b"a", lane.stream, record, delta)], durable, b""))
        await durable
        return result


class Floor:
    """Lanes on a fixed number of slots; open it with `open_floor`.

    Args:
        committer: Takes the commits.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._partitions = [Partition(number) for number in range(PARTITIONS)]
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._idle: deque[asyncio.Future[Lane]] = deque()
        self._calls = 0

    async def call(self, handler: Handler, key: str, argument: Add) -> Count:
        """Run a handler in its lane and return its result once that is durable."""
        lane = self._lanes.get(key) or self._new_lane(key)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls += 1
        payload = pack(add_type.dump_python(argument))
        lane.queue.append(Invocation(f"inv_{self._calls:016x}", handler, payload, answer))
        if not lane.is_taken:
            lane.is_taken = True
            self._give(lane)
        return count_type.validate_python(unpack(await answer))

    async def prepare(self, redis: Any) -> None:
        """Load the function and own every partition."""
        await redis.function_load((Path(__file__).parent / "lua" / "floor.lua").read_text(), replace=True)
        for partition in self._partitions:
            await redis.execute_command("HSET", partition.owner, "epoch", EPOCH, "batch", 0)

    async def run_slot(self) -> None:
        """Serve one ready lane after the other until cancelled."""
        while True:
            lane = self._ready.popleft() if self._ready else await self._wait_for_lane()
            while lane.queue:
                await self._invoke(lane, lane.queue.popleft())
            lane.is_taken = False

    async def _invoke(self, lane: Lane, invocation: Invocation) -> None:
        context = Context(self._committer, lane, invocation)
        argument = add_type.validate_python(unpack(invocation.argument))
        result = pack(count_type.dump_python(await invocation.handler(context, argument)))
        record = pack((invocation.name, "add", invocation.argument, result, time.time()))
        operations: list[Operation] = [
            (b"a", lane.stream, record, pack(context.changed)),
            (b"r", f"{lane.partition.tag}:r:{invocation.name}", result, RESULT_RETENTION_MS),
        ]
        # The lane goes on at once; the answer waits until the commit is durable.
        lane.last = invocation.answer
        self._committer.commit(lane.partition, Commit(operations, invocation.answer, result))

    def _new_lane(self, key: str) -> Lane:
        # A plain checksum would put keys that differ in a digit into few partitions, and make fewer calls of a turn.
        digest = blake2b(key.encode(), digest_size=1).digest()
        lane = self._lanes[key] = Lane(self._partitions[digest[0] % PARTITIONS], key)
        return lane

    def _give(self, lane: Lane) -> None:
        if self._idle:
            self._idle.popleft().set_result(lane)
        else:
            self._ready.append(lane)

    async def _wait_for_lane(self) -> Lane:
        turn: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        return await turn


async def add(ctx: Context, request: Add) -> Count:
    """Add to the key's count."""
    count = (await ctx.get("count") or 0) + request.n
    ctx.set("count", count)
    return Count(count=count)


async def add_in_steps(ctx: Context, request: Add) -> Count:
    """Add to the key's count after three recorded steps."""
    for _ in range(STEPS):
        await ctx.run("charge", charge)
    return await add(ctx, request)


async def refund(ctx: Context, request: Add) -> Count:
    """Add to the key's count once a receiver was asked: what is intended is written first, then what came of it."""
    await ctx.run("intent", charge)
    await pay("refund-1", request)
    await ctx.run("outcome", charge)
    return await add(ctx, request)


HANDLERS: dict[workloads.Handler, Handler] = {
    workloads.Handler.ADD: add,
    workloads.Handler.ADD_IN_STEPS: add_in_steps,
    workloads.Handler.REFUND: refund,
}


def adding(floor: Floor, handler: workloads.Handler) -> Call:
    """Return the call that adds one to a key.

    Args:
        floor: An open floor.
        handler: Which handler does it.
    """
    called = HANDLERS[handler]

    async def call(key: str) -> int:
        return (await floor.call(called, key, Add(n=1))).count

    return call


@asynccontextmanager
async def open_floor(store_url: str) -> AsyncGenerator[Floor]:
    """Open the floor on a store.

    Args:
        store_url: Of a running server, as redis-py writes it.
    """
    # redis-py's types are incomplete, and this much of it is not worth a protocol of our own.
    client: Any = Redis
    redis = client.from_url(store_url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=SOCKET_TIMEOUT_SECONDS)
    async with redis, anyio.create_task_group() as tasks:
        committer = Committer(redis)
        floor = Floor(committer)
        await floor.prepare(redis)
        tasks.start_soon(committer.run)
        for _ in range(LANE_SLOTS):
            tasks.start_soon(floor.run_slot)
        yield floor
        tasks.cancel_scope.cancel()
