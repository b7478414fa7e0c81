"""The public test kit: time that jumps while everything waits, and never while anything runs."""

from __future__ import annotations

import itertools
import time
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from keylane import (
    BlockingObjectContext,
    CallError,
    CallTimeout,
    Handler,
    InvocationPaused,
    ObjectContext,
    RegistrationError,
    RetryableError,
    RetryPolicy,
    Settings,
    SharedContext,
    VirtualObject,
    WaitTimeout,
)
from keylane.journal import clock
from keylane.journal.errors import StoreUnavailable
from keylane.journal.key import partition_of
from keylane.journal.object_description import What
from keylane.journal.scan import scan
from keylane.journal.standing import Status
from keylane.journal.store import Store
from keylane.runtime import virtual_time
from keylane.testing import Force, Harness, NotSettled, harness, shift_clock

pytestmark = pytest.mark.anyio

MONTH = timedelta(days=30)
DAY = timedelta(days=1)
SLACK = timedelta(minutes=1)
#: More than a worker takes up at once of what falls due.
CROWD = 100
#: Where others keep the machine busy, one of a few is not disturbed.
TRIES = 10
gates: dict[str, anyio.Event] = {}
trail: list[str] = []

order = VirtualObject("Order", owner="tests", state={"status": str})
customer = VirtualObject("Customer", owner="tests", state={"mails": list[str]})


@order.handler
async def refund(ctx: ObjectContext, days: int) -> str:
    """Steps, a wait of days, a step that is tried again hours later, a call and a message for later."""
    ctx.set("status", await ctx.run("read order", read_order, str(ctx.key)))
    await ctx.sleep(timedelta(days=days))
    status = await ctx.run("ask the bank", ask_the_bank)
    ctx.set("status", status)
    mails = await ctx.call(tell, str(ctx.key), status)
    await ctx.send(tell, str(ctx.key), "how was it?", delay=timedelta(days=7))
    return f"{status} after {mails} mail"


@customer.handler
async def tell(ctx: ObjectContext, text: str) -> int:
    mails = [*await ctx.get("mails", list[str], []), text]
    ctx.set("mails", mails)
    return len(mails)


@customer.shared
async def mails(ctx: SharedContext) -> list[str]:
    return await ctx.get("mails", list[str], [])


@order.handler
async def nap(ctx: ObjectContext, days: float) -> float:
    began = await ctx.time()
    await ctx.sleep(timedelta(days=days))
    return ((await ctx.time()) - began) / DAY


@order.handler
def nap_in_a_thread(ctx: BlockingObjectContext, days: float) -> float:
    began = ctx.time()
    ctx.sleep(timedelta(days=days))
    return (ctx.time() - began) / DAY


@order.handler
async def nap_each_day(ctx: ObjectContext, days: int) -> list[float]:
    began = await ctx.time()
    woke: list[float] = []
    for _ in range(days):
        await ctx.sleep(DAY)
        woke.append(((await ctx.time()) - began) / DAY)
    return woke


@order.handler
async def nap_twice(ctx: ObjectContext) -> list[float]:
    began = await ctx.time()
    return [((await nap_a_day(ctx)) - began) / DAY for _ in range(2)]


async def nap_a_day(ctx: ObjectContext) -> datetime:
    await ctx.sleep(DAY)
    return await ctx.time()


@order.handler
async def wait_in_a_step(ctx: ObjectContext, name: str) -> float:
    began = await ctx.time()
    await ctx.run("wait", wait_for, name)
    return ((await ctx.time()) - began) / DAY


@order.handler(retry=RetryPolicy(first=DAY, cap=DAY, attempts=4))
async def fail_three_times(ctx: ObjectContext) -> int:
    trail.append("attempt")
    if len(trail) < 4:
        raise ValueError("not yet")
    return len(trail)


@order.handler(retry=RetryPolicy(first=DAY, cap=DAY, attempts=2))
async def always_fail(ctx: ObjectContext) -> None:
    raise ValueError("never")


@order.handler
async def count_attempts(ctx: ObjectContext) -> int:
    """Count how often the handler is begun while it waits three times and takes two steps."""
    trail.append("run")
    for _ in range(3):
        await ctx.sleep(DAY)
    for name in ("first", "second"):
        await ctx.run(name, str)
    return len(trail)


@order.handler
async def nothing(ctx: ObjectContext) -> None:
    pass


@order.handler
async def approve(ctx: ObjectContext, days: int) -> str:
    """Ask a customer, and wait for the answer for so many days."""
    await ctx.run("read order", read_order, str(ctx.key))
    await ctx.send(tell, str(ctx.key), "is that all right?")
    try:
        answer = await ctx.signal("answer", str, timeout=timedelta(days=days))
    except WaitTimeout:
        answer = "expired"
    await ctx.call(tell, str(ctx.key), answer)
    return answer


def read_order(key: str) -> str:
    return f"paid {key}"


def ask_the_bank() -> str:
    trail.append("asked")
    if len(trail) < 3:
        raise RetryableError("closed", retry_after=timedelta(hours=8))
    return "refunded"


async def wait_for(name: str) -> None:
    gates.setdefault(f"{name} began", anyio.Event()).set()
    await gates[name].wait()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    gates.clear()
    trail.clear()


@pytest.fixture
async def h(store_url: str) -> Harness:
    return harness([order, customer], store=store_url)


@pytest.mark.quiet
async def test_thirty_days_of_steps_retries_calls_and_messages_pass_in_less_than_a_second() -> None:
    """With a store and a worker of the test's own, which are started and stopped in that time."""
    took: list[float] = []
    while len(took) < TRIES and min(took, default=1.0) >= 1.0:
        trail.clear()
        began = time.monotonic()
        async with harness([order, customer]) as h:
            then = h.now()

            assert await h.call(refund, "acme/o-1", 30) == "refunded after 1 mail"
            assert MONTH + timedelta(hours=16) <= h.now() - then < MONTH + timedelta(hours=16) + SLACK
            await h.advance(timedelta(days=7))

            assert await h.call(mails, "acme/o-1") == ["refunded", "how was it?"]
        took.append(time.monotonic() - began)

    assert min(took) < 1.0


@pytest.mark.quiet
async def test_an_expiry_in_thirty_days_with_signals_steps_and_two_objects_takes_less_than_a_second() -> None:
    """One proposal expires, and another one is answered on its twelfth day."""
    took: list[float] = []
    while len(took) < TRIES and min(took, default=1.0) >= 1.0:
        began = time.monotonic()
        async with harness([order, customer]) as h:
            then = h.now()
            assert await h.call(approve, "acme/o-1", 30) == "expired"
            assert MONTH <= h.now() - then < MONTH + SLACK

            asked = await h.send(approve, "acme/o-2", 30)
            await h.advance(timedelta(days=12))
            await asked.signal("answer", "yes")
            assert await asked.result(timeout=10) == "yes"

            assert MONTH + timedelta(days=12) <= h.now() - then < MONTH + timedelta(days=12) + SLACK
            assert await h.call(mails, "acme/o-1") == ["is that all right?", "expired"]
            assert await h.call(mails, "acme/o-2") == ["is that all right?", "yes"]
        took.append(time.monotonic() - began)

    assert min(took) < 1.0


def test_a_force_that_does_not_exist_is_refused() -> None:
    """A test that means to replay does not run without."""
    with pytest.raises(RegistrationError, match="force is 'replays': use suspend or replay"):
        harness(order, force="replays")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("force", [None, "suspend"])
@pytest.mark.parametrize("handler", [nap, nap_in_a_thread], ids=lambda each: each.name)
async def test_time_jumps_to_what_is_due_and_no_further(
    store_url: str, handler: Handler[float, float], force: Force | None
) -> None:
    """A handler that sleeps for thirty days wakes thirty days later."""
    async with harness([order, customer], store=store_url, force=force) as h:
        assert await h.call(handler, "acme/o-1", 30.0) == pytest.approx(30.0, abs=0.001)


async def test_a_worker_that_has_lost_its_partitions_does_not_stop_the_loop(store_url: str) -> None:
    """As when the server was started anew: what is still on its way gets its answer, and partitions are had again."""
    async with harness([order, customer], store=store_url, auto_advance=False) as h:
        for partition in h.runtime.worker.partitions:
            partition.lose()
        h.client.store.submit(("PING",), lambda _: None)
        assert not h.client.store.is_quiet
        await h.settled()


async def test_the_clock_goes_on_when_the_store_is_there_again(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away just when time jumps is no failure of the harness."""
    errors = [StoreUnavailable("the store", "away"), StoreUnavailable("the store", "away")]

    async def shift(store: Store, by: timedelta) -> None:
        if errors:
            raise errors.pop()
        await clock.shift_clock(store, by)

    monkeypatch.setattr(virtual_time, "shift_clock", shift)
    async with harness([order, customer], store=store_url) as h:
        assert await h.call(nap, "acme/o-1", 30.0, timeout=20) == pytest.approx(30.0, abs=0.001)
    assert not errors


async def test_time_stands_still_while_nobody_waits_for_an_answer(h: Harness) -> None:
    """What was sent waits for its time, for as long as the test does other things."""
    async with h:
        handle = await h.send(nap, "acme/o-1", 30.0)
        await handle.accepted(timeout=5)
        await h.settled()

        assert (await handle.describe()).status is Status.WAITING
        assert await handle.result(timeout=5) == pytest.approx(30.0, abs=0.001)


async def test_time_stands_still_while_a_step_runs(h: Harness) -> None:
    """Also when another handler waits, and somebody waits for it."""
    gates["slow"] = anyio.Event()
    async with h, anyio.create_task_group() as tasks:
        took: list[float] = []

        async def call_slow() -> None:
            took.append(await h.call(wait_in_a_step, "acme/o-1", "slow"))

        tasks.start_soon(call_slow)
        napping = await h.send(nap, "acme/o-2", 30.0)
        with anyio.move_on_after(0.3):
            await napping.result()
        assert (await napping.describe()).status is Status.WAITING

        gates["slow"].set()
        assert await napping.result(timeout=5) == pytest.approx(30.0, abs=0.001)
        assert took[0] < 0.1


async def test_a_shared_handler_that_runs_keeps_the_time(store_url: str) -> None:
    """It has no lane and no slot, and is code of the user all the same."""
    reader = VirtualObject("Reader", owner="tests")
    gates["read"] = anyio.Event()

    @reader.shared
    async def slow_read(ctx: SharedContext) -> None:
        await wait_for("read")

    async with harness([order, reader], store=store_url) as h, anyio.create_task_group() as tasks:
        tasks.start_soon(h.call, slow_read, "acme/r-1")
        napping = await h.send(nap, "acme/o-2", 30.0)
        with anyio.move_on_after(0.3):
            await napping.result()
        assert (await napping.describe()).status is Status.WAITING

        gates["read"].set()
        await napping.result(timeout=5)


async def test_awaiting_the_acceptance_of_what_queues_behind_a_wait_does_not_move_the_time(h: Harness) -> None:
    """The owner's verdict needs no time to pass."""
    async with h:
        first = await h.send(nap, "acme/o-1", 30.0)
        then = h.now()

        second = await h.send(nothing, "acme/o-1")
        await second.accepted(timeout=5)
        await h.settled()

        assert h.now() - then < SLACK
        assert (await first.describe()).status is Status.WAITING


async def test_retries_of_handlers_wait_in_virtual_time(h: Harness) -> None:
    """Three pauses of a day each; and a handler whose attempts are spent is paused days later."""
    async with h:
        then = h.now()
        assert await h.call(fail_three_times, "acme/o-1") == 4
        assert h.now() - then > timedelta(days=1.5)

        with pytest.raises(InvocationPaused):
            await h.call(always_fail, "acme/o-1")


async def test_what_falls_due_on_the_way_runs_at_its_own_time(h: Harness) -> None:
    """A handler that wakes each day for ten days sees ten days, also when they pass in one leap."""
    async with h:
        handle = await h.send(nap_each_day, "acme/o-1", 10)
        await h.advance(timedelta(days=9, hours=12))
        assert (await handle.describe()).status is Status.WAITING

        await h.advance(timedelta(hours=12))

        assert await handle.result(timeout=5) == pytest.approx(list(range(1, 11)), abs=0.001)


async def test_time_passes_by_request_while_a_handler_runs(h: Harness) -> None:
    """A step that waits for the test must not keep the test from going on."""
    gates["step"], gates["step began"] = anyio.Event(), anyio.Event()
    async with h:
        handle = await h.send(wait_in_a_step, "acme/o-1", "step")
        await gates["step began"].wait()

        await h.advance(timedelta(days=2))
        gates["step"].set()

        assert await handle.result(timeout=5) == pytest.approx(2.0, abs=0.001)


async def test_very_many_that_fall_due_at_once_have_all_had_their_turn_before_time_goes_on(store_url: str) -> None:
    """A worker takes them up in parts; each wakes at its time, also the last one."""
    keys = (f"acme/{number}" for number in itertools.count())
    in_one_partition = (key for key in keys if partition_of(key, 16) == 0)
    async with harness(order, store=store_url, settings=Settings(partitions=16)) as h:
        handles = [await h.send(nap_twice, key) for key in itertools.islice(in_one_partition, CROWD)]
        await h.advance(timedelta(days=2, hours=12))

        for handle in handles:
            assert await handle.result(timeout=20) == pytest.approx([1.0, 2.0], abs=0.01)


async def test_a_test_is_told_what_keeps_it_from_settling(h: Harness) -> None:
    """By handler and key."""
    gates["step"] = anyio.Event()
    async with h:
        handle = await h.send(wait_in_a_step, "acme/o-1", "step")

        with pytest.raises(NotSettled, match=r"Order\.wait_in_a_step at acme/o-1 run"):
            await h.settled(timeout=0.2)
        gates["step"].set()
        await handle.result(timeout=5)


async def test_results_and_histories_are_gone_after_their_retention(h: Harness) -> None:
    """When the time has passed, they have been looked for."""
    async with h:
        handle = await h.send(refund, "acme/o-1", 1)
        await handle.result(timeout=5)
        assert len((await h.inspect("Order", "acme/o-1")).timeline) > 1

        await h.advance(timedelta(days=8))

        with pytest.raises(CallError, match="longer ago than results are kept"):
            await handle.result(timeout=5)
        assert [event.what for event in (await h.inspect("Order", "acme/o-1")).timeline] == [What.SHRUNK]


async def test_time_does_not_go_back(h: Harness) -> None:
    """A negative span is refused."""
    async with h:
        with pytest.raises(ValueError, match="never goes back"):
            await h.advance(timedelta(seconds=-1))


async def test_what_is_no_time_that_can_pass_is_refused(h: Harness) -> None:
    """By the harness and by `shift_clock`: a number of days would be one of nothing, and a calendar has an end."""
    async with h:
        for wrong, why in (
            (3, "takes a timedelta"),
            ("3", "takes a timedelta"),
            (timedelta.max, "at most 40,000 days"),
        ):
            given: Any = wrong
            with pytest.raises((TypeError, ValueError), match=why):
                await h.advance(given)
            with pytest.raises((TypeError, ValueError), match=why):
                await shift_clock(h.runtime, given)
        assert h.now().year < 3000


async def test_an_open_harness_is_not_opened_again(h: Harness) -> None:
    """Its first worker would go on behind the second one's back."""
    async with h:
        with pytest.raises(RuntimeError, match="open already"):
            await h.__aenter__()


async def test_time_stays_where_it_is_when_nothing_jumps_by_itself(store_url: str) -> None:
    """With `auto_advance=False` the test moves it alone."""
    async with harness(order, store=store_url, auto_advance=False) as h:
        handle = await h.send(nap, "acme/o-1", 30.0)
        with anyio.move_on_after(0.2):
            await handle.result()
        assert (await handle.describe()).status is Status.WAITING

        await h.advance(MONTH)
        await handle.result(timeout=5)


@pytest.mark.counts_runs
@pytest.mark.parametrize(("force", "runs"), [(None, 1), ("suspend", 4), ("replay", 6)])
async def test_what_is_forced_replays_a_handler_after_each_wait_or_each_record(
    store_url: str, force: Force | None, runs: int
) -> None:
    """Three waits are four runs and two steps two more; without a switch, the handler stays in memory."""
    async with harness(order, store=store_url, force=force) as h:
        assert await h.call(count_attempts, "acme/o-1") == runs


@pytest.mark.parametrize("force", ["suspend", "replay"])
async def test_what_is_forced_changes_nothing_that_can_be_seen(store_url: str, force: Force) -> None:
    """Steps, retries, calls and messages come to the same."""
    async with harness([order, customer], store=store_url, force=force) as h:
        assert await h.call(refund, "acme/o-1", 30) == "refunded after 1 mail"
        await h.advance(timedelta(days=7))

        assert await h.call(mails, "acme/o-1") == ["refunded", "how was it?"]
    assert trail == ["asked"] * 3


async def test_the_variable_forces_where_a_test_says_nothing(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a whole suite runs that way."""
    monkeypatch.setenv("KEYLANE_TEST_FORCE", "suspend")
    async with harness(order, store=store_url) as h:
        assert await h.call(count_attempts, "acme/o-1") == 4


@pytest.mark.one_server  # a cluster has more partitions than a test asks for
async def test_settings_of_the_test_count(store_url: str) -> None:
    """What is not said comes from the app, but for the partitions."""
    async with harness(order, store=store_url, settings=Settings(partitions=3)) as h:
        assert len(h.runtime.worker.partitions) == 3
    async with harness(order, store=store_url) as h:
        assert len(h.runtime.worker.partitions) == 2


async def test_a_test_that_waits_in_vain_is_told_so(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is due, so no time that passes brings the answer."""
    monkeypatch.setattr("keylane.runtime.virtual_time.HINT_SECONDS", 0.05)
    gates["step"] = anyio.Event()
    async with h:
        with pytest.raises(InvocationPaused):
            await h.call(always_fail, "acme/o-1")
        behind = await h.send(nothing, "acme/o-1")

        with pytest.raises(CallTimeout):
            await behind.result(timeout=0.5)

    assert "nothing is due" in caplog.text


async def test_a_harness_leaves_nothing_behind_in_a_shared_store(store_url: str) -> None:
    """The tests that come after it would look through it at every jump of their clocks."""
    async with harness(order, store=store_url) as h:
        await h.call(nap, "acme/o-1", 3.0)
        assert await keys_of(store_url, h.namespace)

    assert not await keys_of(store_url, h.namespace)


async def test_what_a_failed_test_has_written_stays(store_url: str) -> None:
    """For whoever looks for the cause."""
    h = harness(order, store=store_url)

    async def fail() -> None:
        async with h:
            await h.call(nap, "acme/o-1", 3.0)
            raise ValueError("the test failed")

    with pytest.raises(ValueError, match="the test failed"):
        await fail()

    assert await keys_of(store_url, h.namespace)


async def keys_of(store_url: str, namespace: str) -> list[bytes]:
    async with Store(store_url, namespace=namespace) as store:
        return [key async for page in scan(store, f"{{{namespace}:".encode()) for key in page]


async def test_a_closed_harness_says_that_it_is_not_open(h: Harness) -> None:
    """And how it is opened."""
    with pytest.raises(RuntimeError, match="async with"):
        h.now()
