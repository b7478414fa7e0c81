"""Every bound: checked before anything is written, with an error that names what is too much and what to do."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from keylane import (
    Client,
    Handler,
    InvalidInput,
    InvocationFailed,
    InvocationPaused,
    ObjectContext,
    Overloaded,
    PayloadTooLarge,
    RetryPolicy,
    Runtime,
    Settings,
    SharedContext,
    TerminalError,
    VirtualObject,
)
from keylane.journal import inbox
from keylane.journal.key import new_invocation_id, partition_of
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.requests import Request, RequestKind
from keylane.journal.standing import Status
from keylane.objects.handler import NoInput
from keylane.runtime.inbox_page import ENTRIES_AT_FIRST, ENTRIES_MAX, PAGE_BYTES, InboxPage
from tests.plain import plain

pytestmark = pytest.mark.anyio

KEY = "acme/o-1"
MEGABYTE = 1 << 20
QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=1), attempts=10_000)

press = VirtualObject("Press", owner="tests", partitions=1)


@press.handler
async def echo(ctx: ObjectContext, value: bytes) -> bytes:
    return value


@press.handler
async def make(ctx: ObjectContext, size: int) -> bytes:
    return bytes(size)


@press.shared
async def make_shared(ctx: SharedContext, size: int) -> bytes:
    return bytes(size)


@press.handler
async def make_in_step(ctx: ObjectContext, size: int) -> int:
    return len(await ctx.run("make", bytes, size, type=bytes))


@press.handler
async def set_value(ctx: ObjectContext, size: int) -> None:
    ctx.set("value", bytes(size))


@press.handler
async def fail_with_details(ctx: ObjectContext, size: int) -> None:
    raise TerminalError("no", "no", {"data": bytes(size)})


@press.handler
async def fill(ctx: ObjectContext, count_and_size: tuple[int, int]) -> None:
    count, size = count_and_size
    for number in range(count):
        ctx.set(f"v{number}", os.urandom(size))


@press.handler
async def fill_more(ctx: ObjectContext, count_and_size: tuple[int, int]) -> None:
    count, size = count_and_size
    for number in range(count):
        ctx.set(f"w{number}", os.urandom(size))


@press.handler
async def set_name(ctx: ObjectContext, name: str) -> None:
    ctx.set(name, 1)


@press.handler
async def clear_names(ctx: ObjectContext, count: int) -> None:
    for number in range(count):
        ctx.clear(f"nothing {number}")


@press.handler
async def step_named(ctx: ObjectContext, name: str) -> int:
    return await ctx.run(name, one)


@press.handler
async def names(ctx: ObjectContext) -> list[str]:
    return await ctx.state_keys()


def one() -> int:
    return 1


@press.handler
async def many_steps(ctx: ObjectContext, count: int) -> int:
    for number in range(count):
        ran.append(number)
        await ctx.run("step", one)
    return count


ran: list[int] = []


def fail() -> int:
    raise ValueError("again")


@press.handler
async def retries_a_step(ctx: ObjectContext) -> int:
    return await ctx.run("fails", fail, retry=QUICK)


@press.handler(retry=QUICK)
async def retries_itself(ctx: ObjectContext) -> int:
    raise ValueError("again")


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    async with Runtime(press, store=store_url, namespace=namespace) as runtime:
        yield runtime


@pytest.fixture
async def outside(runtime: Runtime) -> AsyncIterator[Client]:
    generous = Settings(payload_limit_bytes=100 * MEGABYTE)
    async with Client(runtime.store_url, namespace=runtime.namespace, settings=generous) as client:
        yield client


def keys(runtime: Runtime) -> set[bytes]:
    tag = f"{{{runtime.namespace}:Press:0}}:"
    found = set(plain(runtime.store_url, "KEYS", f"{tag}*"))
    return {key for key in found if not key.endswith((b":owner", b":inbox"))}


# The size of single values, each way in.


@pytest.mark.parametrize("way", ["local", "local by name", "outside", "outside by name"])
async def test_an_argument_above_the_limit_is_refused_before_anything_is_written(
    runtime: Runtime, outside: Client, way: str
) -> None:
    """By the client's own limit, and by the owner's where the client's is another; with a key the same."""
    client = runtime.client if way.startswith("local") else outside
    key = "k" if way == "outside by name" else None
    target = ("Press", KEY, "echo") if way.endswith("by name") else (echo, KEY)
    call: Any = client.call
    with pytest.raises(PayloadTooLarge, match=r"argument has .* the limit is 1,048,576: keep the data elsewhere"):
        await call(*target, bytes(2 * MEGABYTE), idempotency_key=key, timeout=10)
    # What a refusal leaves is its own result, for whoever asks again.
    assert {key.split(b":")[3] for key in keys(runtime)} <= {b"r"}


@pytest.mark.parametrize("handler", [make, make_shared, make_in_step, set_value], ids=lambda each: each.name)
async def test_a_value_above_the_limit_fails_its_invocation_and_names_the_value(
    runtime: Runtime, outside: Client, handler: Handler[int, Any]
) -> None:
    """Result, step result and state value; the lane goes on, and nothing that was written before it stays."""
    what = {"make": "result", "make_shared": "result", "make_in_step": "step make", "set_value": "state value"}
    told = rf"{what[handler.name]} has 33,000,000 bytes, the limit is 1,048,576"
    for client in (runtime.client, outside):
        with pytest.raises(PayloadTooLarge, match=told):
            await client.call(handler, KEY, 33_000_000, timeout=10)
        assert await client.call(names, KEY, timeout=10) == []
    assert not any(b":b:" in key for key in keys(runtime))


async def test_details_of_an_error_above_the_limit_are_left_out(runtime: Runtime) -> None:
    """The error itself must reach its caller whatever it carries."""
    with pytest.raises(InvocationFailed) as failed:
        await runtime.client.call(fail_with_details, KEY, 2 * MEGABYTE, timeout=10)
    assert failed.value.code == "no"
    assert failed.value.details == "details of 2,097,163 bytes were left out, the limit is 1,048,576"


async def test_the_limit_of_details_is_the_limit_of_values(store_url: str, namespace: str) -> None:
    """An operator who lowers the one lowers the other."""
    settings = Settings(payload_limit_bytes=2_048)
    async with Runtime(press, store=store_url, namespace=namespace, settings=settings) as runtime:
        with pytest.raises(InvocationFailed) as failed:
            await runtime.client.call(fail_with_details, KEY, 4_096, timeout=10)
    assert "left out, the limit is 2,048" in failed.value.details


@press.handler
async def make_list(ctx: ObjectContext, size: int) -> list[bytes]:
    return [bytes(size), bytes(size)]


async def test_a_value_that_is_too_large_only_as_a_whole_is_refused_too(runtime: Runtime, outside: Client) -> None:
    """No part of it is above the limit."""
    for client in (runtime.client, outside):
        with pytest.raises(PayloadTooLarge, match=r"result has 1,200,\d+ bytes, the limit is 1,048,576"):
            await client.call(make_list, KEY, 600_000, timeout=10)


# The state of one object.


async def test_an_object_has_at_most_so_many_values(runtime: Runtime) -> None:
    """The write of one more fails its invocation with the count and the remedy; the object goes on with what it had."""
    await runtime.client.call(fill, KEY, (1_000, 10))

    with pytest.raises(
        PayloadTooLarge, match="the state of this object has 1,001 names, the limit is 1,000: keep what"
    ):
        await runtime.client.call(set_name, KEY, "one more")

    await runtime.client.call(set_name, KEY, "v7")
    assert len(await runtime.client.call(names, KEY)) == 1_000


async def test_an_invocation_names_at_most_so_many_values_between_two_durable_points(runtime: Runtime) -> None:
    """Also those that it clears, and that were never there."""
    await runtime.client.call(clear_names, KEY, 1_000)
    with pytest.raises(PayloadTooLarge, match="written since the last durable point has 1,001 names"):
        await runtime.client.call(clear_names, KEY, 1_001)


async def test_the_values_of_an_object_have_a_limit_together(store_url: str, namespace: str) -> None:
    """Whole ones and large ones count, and what is overwritten counts once."""
    settings = Settings(state_limit_bytes=4 * MEGABYTE)
    async with Runtime(press, store=store_url, namespace=namespace, settings=settings) as runtime:
        await runtime.client.call(fill, KEY, (4, 1_000_000))
        await runtime.client.call(fill, KEY, (4, 1_000_000))
        with pytest.raises(
            PayloadTooLarge, match=r"of this object has 4,2.* the limit is 4,194,304: clear what .* raise"
        ):
            await runtime.client.call(fill_more, KEY, (20, 10_000))
        await runtime.client.call(fill_more, KEY, (10, 10_000))
        assert len(await runtime.client.call(names, KEY)) == 14


# Names.


@pytest.mark.parametrize("handler", [set_name, step_named], ids=lambda each: each.name)
async def test_a_name_has_at_most_256_bytes(runtime: Runtime, handler: Handler[str, Any]) -> None:
    """Of UTF-8, for state values and steps alike."""
    await runtime.client.call(handler, KEY, "n" * 256)
    await runtime.client.call(handler, KEY, "ü" * 128)
    for name in ("n" * 257, "ü" * 129, "n" * 1_000_000):
        with pytest.raises(PayloadTooLarge, match=r"the name of .* the limit is 256: shorten it"):
            await runtime.client.call(handler, KEY, name)


async def test_an_idempotency_key_has_at_most_512_bytes(runtime: Runtime, outside: Client) -> None:
    """For every client, and for those that check nothing themselves."""
    for client in (runtime.client, outside):
        assert await client.call(echo, KEY, b"x", idempotency_key="k" * 512, timeout=10) == b"x"
        for key in ("k" * 513, "ü" * 257):
            with pytest.raises(PayloadTooLarge, match=r"idempotency_key has 51. bytes, the limit is 512: use a hash"):
                await client.call(echo, KEY, b"x", idempotency_key=key, timeout=10)

    with pytest.raises(PayloadTooLarge, match="idempotency_key"):
        await foreign(runtime, outside, Request(RequestKind.CALL, b"", "echo", KEY, b"\xc4\x00", None, "k" * 10_000))


async def test_the_name_of_a_handler_has_at_most_64_characters(runtime: Runtime, outside: Client) -> None:
    """A name that can't be one is not carried anywhere."""
    with pytest.raises(PayloadTooLarge, match=r"handler's name .* the limit is 64"):
        await outside.call("Press", KEY, "e" * 65, timeout=10)
    with pytest.raises(PayloadTooLarge, match="handler's name"):
        await foreign(runtime, outside, Request(RequestKind.CALL, b"", "e" * 10_000, KEY))


async def foreign(runtime: Runtime, outside: Client, request: Request) -> object:
    """Put a request into the inbox past every check, and wait for what comes of it."""
    raw_id = new_invocation_id()
    request = Request(
        request.kind, raw_id, request.handler, KEY, request.payload, request.basis, request.idempotency_key
    )
    plain(runtime.store_url, "XADD", f"{{{runtime.namespace}:Press:0}}:inbox", "*", "m", request.encode())
    return await outside.attach(f"Press.0.{raw_id.hex()}").result(timeout=10)


# The records of one invocation.


@pytest.fixture
async def few_records(store_url: str, namespace: str) -> AsyncIterator[Runtime]:
    settings = Settings(records_per_invocation=20)
    async with Runtime(press, store=store_url, namespace=namespace, settings=settings) as runtime:
        yield runtime


@pytest.mark.counts_runs
async def test_an_invocation_with_too_many_records_is_parked_before_its_next_step(few_records: Runtime) -> None:
    """With a reason that says what to do; it does not run a step that it could not record."""
    ran.clear()
    with pytest.raises(InvocationPaused, match=r"too_many_records.* 20 records.*raise KEYLANE_RECORDS_PER") as paused:
        await few_records.client.call(many_steps, KEY, 100, timeout=10)

    told = await few_records.client.describe(paused.value.invocation_id or "")
    assert (told.status, told.records, len(told.steps)) == (Status.PAUSED, 21, 19)
    assert len(ran) == 20


async def test_an_invocation_within_the_limit_ends(few_records: Runtime) -> None:
    """Its last record may be the one above the limit: an end always fits."""
    assert await few_records.client.call(many_steps, KEY, 19, timeout=10) == 19


async def test_with_a_higher_limit_it_goes_on_where_it_stood(store_url: str, namespace: str) -> None:
    """As its pause says."""
    settings = Settings(records_per_invocation=20)
    async with Runtime(press, store=store_url, namespace=namespace, settings=settings) as runtime:
        with pytest.raises(InvocationPaused) as paused:
            await runtime.client.call(many_steps, KEY, 40, timeout=10)
        invocation_id = paused.value.invocation_id or ""
        await runtime.client.resume(invocation_id, by="tests", reason="to see it park again", timeout=10)
        with pytest.raises(InvocationPaused):
            await runtime.client.attach(invocation_id, int).result(timeout=10)
    async with Runtime(press, store=store_url, namespace=namespace) as runtime:
        await runtime.client.resume(invocation_id, by="tests", reason="the limit is higher", timeout=10)
        assert await runtime.client.attach(invocation_id, int).result(timeout=10) == 40


@pytest.mark.parametrize("handler", [retries_a_step, retries_itself], ids=lambda each: each.name)
async def test_failed_attempts_count_as_records(few_records: Runtime, handler: Handler[NoInput, int]) -> None:
    """However patient the policy is."""
    with pytest.raises(InvocationPaused, match="too_many_records"):
        await few_records.client.call(handler, KEY, timeout=20)


# Inboxes, and how they are read.


async def test_an_inbox_of_large_requests_is_full_before_memory_is(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of entries alone would let ten gigabytes in; small requests still find room."""
    monkeypatch.setattr(inbox, "INBOX_LIMIT_BYTES", 8 * MEGABYTE)
    async with Client(store_url, namespace=namespace) as client:
        sent = 0

        async def until_full() -> None:
            nonlocal sent
            for sent in range(20):  # noqa: B007
                await client.send(echo, KEY, os.urandom(1_000_000))

        with pytest.raises(Overloaded, match="bytes of requests wait in the inbox"):
            await until_full()
        assert 6 <= sent <= 8
        await client.send(echo, KEY, b"small")


async def test_a_new_owner_takes_in_an_inbox_of_large_requests(store_url: str, namespace: str) -> None:
    """A page at a time, in order, and each of them is answered."""
    values = [bytes([number]) * 900_000 for number in range(40)]
    async with Client(store_url, namespace=namespace) as client:
        handles = [await client.send(echo, KEY, value) for value in values]
        async with Runtime(press, store=store_url, namespace=namespace):
            for handle, value in zip(handles, values, strict=True):
                assert await handle.result(timeout=20) == value


def test_a_reading_of_an_inbox_asks_for_as_much_as_fits_into_a_reply() -> None:
    """Many small requests, few large ones; at first it is not known which there are."""
    page = InboxPage()
    assert page.count == ENTRIES_AT_FIRST
    for _ in range(4):
        page.saw([b"small"] * page.count)
    assert page.count == ENTRIES_MAX
    page.saw([bytes(MEGABYTE)] * page.count)
    assert page.count * MEGABYTE <= PAGE_BYTES
    page.saw([bytes(MEGABYTE)] * page.count)
    assert page.count == 2
    page.saw([b"small"])
    assert page.count == 2
    page.saw([b"small"] * 2)
    assert page.count == 8


# The biggest run that is allowed.


@pytest.mark.slow
@pytest.mark.counts_runs
async def test_the_biggest_run_can_be_described_taken_over_and_parked(store_url: str, namespace: str) -> None:
    """Ten thousand records, with values up to the limit among them: no reply and no function call gets large."""
    async with Runtime(press, store=store_url, namespace=namespace) as runtime:
        plain(store_url, "CONFIG", "SET", "slowlog-log-slower-than", 5_000)
        plain(store_url, "SLOWLOG", "RESET")
        with pytest.raises(InvocationPaused, match="10,000 records") as paused:
            await runtime.client.call(huge, KEY, timeout=300)
        invocation_id = paused.value.invocation_id or ""
        sent_before = _sent(store_url)
        told = await runtime.client.describe(invocation_id)
        assert (told.status, told.is_cut, told.records) == (Status.PAUSED, True, 2_001)
        await runtime.client.inspect("Press", KEY)
        assert _sent(store_url) - sent_before < 12 * MEGABYTE
        # A machine with other work stops the server now and then, in whatever call it is.
        assert sum(words[0] == b"FCALL" for _, _, _, words, *_ in plain(store_url, "SLOWLOG", "GET", 128)) < 20
        plain(store_url, "CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    async with Runtime(
        press, store=store_url, namespace=namespace, settings=Settings(records_per_invocation=10_100)
    ) as runtime:
        await runtime.client.resume(invocation_id, by="tests", reason="more records", timeout=60)
        assert await runtime.client.attach(invocation_id, int).result(timeout=120) == 10_050


def _sent(store_url: str) -> int:
    return int(plain(store_url, "INFO", "stats")["total_net_output_bytes"])


@press.handler
async def huge(ctx: ObjectContext) -> int:
    for number in range(10_050):
        # One in a hundred is as large as a value may be.
        await ctx.run("step", sized, number)
    return 10_050


def sized(number: int) -> bytes:
    return os.urandom(1_000_000 if number % 100 == 0 else 100)


@pytest.mark.quiet
async def test_a_result_of_33_megabytes_does_not_slow_other_keys_down(runtime: Runtime) -> None:
    """It fails by itself, before anything is sent."""

    async def median_ms() -> float:
        spans: list[float] = []
        for number in range(150):
            began = time.perf_counter()
            await runtime.client.call(echo, f"acme/other-{number % 10}", b"x")
            spans.append((time.perf_counter() - began) * 1000)
        return statistics.median(spans)

    sent_before = int(plain(runtime.store_url, "INFO", "stats")["total_net_input_bytes"])
    alone = await median_ms()

    async def spoil() -> None:
        for _ in range(10):
            with pytest.raises(PayloadTooLarge):
                await runtime.client.call(make_in_step, KEY, 33_000_000)
            await asyncio.sleep(0)

    _, beside = await asyncio.gather(spoil(), median_ms())

    sent = int(plain(runtime.store_url, "INFO", "stats")["total_net_input_bytes"]) - sent_before
    assert sent < MEGABYTE
    assert beside < 20 * alone + 20


def test_all_of_these_keys_belong_to_one_partition() -> None:
    """The tests above read the store under this one."""
    assert PartitionSpace("n", "Press", partition_of(KEY, 1)).number == 0


DECISIONS = ("pause", "resume", "restart", "kill", "skip_compensation")


@pytest.mark.parametrize("act", DECISIONS)
async def test_who_decides_something_says_so_and_why(store_url: str, namespace: str, act: str) -> None:
    """A record without a name or a reason could not be asked about later; one that is too long would not be read."""
    invocation = f"Press.0.{new_invocation_id().hex()}"
    more = {"keep": 0} if act == "restart" else {}
    async with Client(store_url, namespace=namespace) as client:
        decide = partial(getattr(client, act), invocation, timeout=5, **more)
        with pytest.raises(InvalidInput, match="answer for it"):
            await decide(by=" ", reason="why")
        with pytest.raises(InvalidInput, match="goes into the record"):
            await decide(by="ada", reason="")
        with pytest.raises(PayloadTooLarge, match="in fewer words"):
            await decide(by="ada", reason="r" * 5_000)
        with pytest.raises(PayloadTooLarge, match="256"):
            await decide(by="a" * 300, reason="why")


async def test_whoever_cancels_need_not_say_why(store_url: str, namespace: str) -> None:
    """What is asked for by the one who has asked for the invocation speaks for itself."""
    async with Runtime([press], store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(echo, KEY, b"x", delay=timedelta(hours=1))
        assert (await handle.cancel()).outcome == "cancelled"
        with pytest.raises(PayloadTooLarge, match="in fewer words"):
            await handle.cancel(reason="r" * 5_000)
