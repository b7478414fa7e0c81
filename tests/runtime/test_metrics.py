"""The metrics of a worker, scraped from a real port."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import anyio
import pytest

from keylane import (
    InvocationFailed,
    ModelAnswer,
    ObjectContext,
    RegistrationError,
    RetryPolicy,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.runtime import meters
from keylane.runtime.meters import OTHER_TENANTS
from keylane.runtime.metric_table import METRICS, exported_name
from tests.runtime.scraping import of, scrape, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=2), attempts=3)
SETTINGS = Settings(partitions=1)
trouble: list[str] = []
begun: list[None] = []
shop = VirtualObject("Shop", owner="tests", state={"count": int})


@shop.handler
async def add(ctx: ObjectContext, by: int) -> int:
    count = await ctx.get("count", int, 0) + by
    ctx.set("count", count)
    return count


@shop.handler(retry=QUICK)
async def stumble(ctx: ObjectContext) -> None:
    await ctx.run("fail once", fail_once, "step", retry=QUICK)
    fail_once("handler")


@shop.handler
async def refuse(ctx: ObjectContext) -> None:
    raise TerminalError("no")


@shop.handler(retry=RetryPolicy(attempts=1))
async def give_up(ctx: ObjectContext) -> None:
    raise ValueError("no")


@shop.handler
async def ask(ctx: ObjectContext, prompt: str) -> str:
    first = await ctx.model("ask", answer, prompt, model="m-1")
    return await ctx.model("ask again", answer, first, model="m-1")


@shop.handler
async def ask_slowly(ctx: ObjectContext) -> str:
    return await ctx.model("ask", answer_too_late_once, model="m-1", timeout=timedelta(milliseconds=50), retry=QUICK)


async def answer_too_late_once() -> ModelAnswer[str]:
    begun.append(None)
    if len(begun) == 1:
        await anyio.sleep_forever()
    return ModelAnswer("", cost=None)


@shop.handler
async def get_stuck_once(ctx: ObjectContext) -> None:
    await ctx.run("get stuck", stuck_once)


async def stuck_once() -> None:
    begun.append(None)
    if len(begun) == 1:
        await anyio.sleep_forever()


@shop.handler
async def hold(ctx: ObjectContext) -> str:
    return await ctx.signal("go", str)


def answer(prompt: str) -> ModelAnswer[str]:
    return ModelAnswer(prompt, input_tokens=100, output_tokens=7, cost=Decimal("0.25"))


def fail_once(what: str) -> None:
    if what in trouble:
        trouble.remove(what)
        raise ValueError(what)


@pytest.fixture
async def runtime(store_url: str, namespace: str) -> AsyncGenerator[Runtime]:
    async with Runtime([shop], store=store_url, namespace=namespace, settings=SETTINGS, metrics_port=0) as runtime:
        yield runtime


async def test_what_ends_is_counted_by_handler_and_end(runtime: Runtime) -> None:
    """A scrape has what happened before it."""
    for _ in range(3):
        await runtime.client.call(add, "acme/a", 1)
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, "acme/a")
    scraped = await scrape(runtime)
    assert of(scraped, "keylane_invocations_total", object="Shop", handler="add", end="completed") == 3
    assert of(scraped, "keylane_invocations_total", object="Shop", handler="refuse", end="failed") == 1
    assert of(scraped, "keylane_lane_wait_seconds_count", object="Shop") == 4
    assert of(scraped, "keylane_lane_wait_seconds_bucket", object="Shop", le="+Inf") == 4
    batches = of(scraped, "keylane_commit_seconds_count")
    assert 1 <= batches == of(scraped, "keylane_commit_batch_size_count")
    assert of(scraped, "keylane_commit_batch_size_sum") >= 4
    assert of(scraped, "keylane_partitions", object="Shop") == 1


@pytest.mark.counts_runs
async def test_retries_and_pauses_are_counted(runtime: Runtime) -> None:
    """By what was tried again, and by the reason of the pause."""
    trouble.extend(["step", "handler"])
    await runtime.client.call(stumble, "acme/a")
    handle = await runtime.client.send(give_up, "acme/b")
    with anyio.fail_after(20):
        while (await handle.describe()).status != "paused":
            await anyio.sleep(0.01)
    scraped = await scrape(runtime)
    assert of(scraped, "keylane_retries_total", object="Shop", what="step") == 1
    assert of(scraped, "keylane_retries_total", object="Shop", what="handler") == 1
    assert of(scraped, "keylane_pauses_total", object="Shop", reason="retries_spent") == 1


@pytest.mark.counts_runs
async def test_a_job_costs_what_its_model_calls_cost(runtime: Runtime) -> None:
    """By handler and tenant; an invocation that asks nobody costs nothing and is not counted."""
    await runtime.client.call(ask, "acme/a", "hello")
    await runtime.client.call(ask, "acme/b", "hello")
    await runtime.client.call(ask, "zeta/a", "hello")
    await runtime.client.call(add, "acme/a", 1)
    scraped = await scrape(runtime)
    acme = {"object": "Shop", "handler": "ask", "tenant": "acme", "currency": "USD"}
    assert of(scraped, "keylane_job_cost_count", **acme) == 2
    assert of(scraped, "keylane_job_cost_sum", **acme) == 1.0
    assert of(scraped, "keylane_job_cost_sum", **{**acme, "tenant": "zeta"}) == 0.5
    assert len(scraped["keylane_job_cost_count"]) == 2
    model = {"object": "Shop", "handler": "ask", "model": "m-1"}
    assert of(scraped, "keylane_model_calls_total", **model) == 6
    assert of(scraped, "keylane_model_tokens_total", **model, direction="in") == 600
    assert of(scraped, "keylane_model_tokens_total", **model, direction="out") == 42


@pytest.mark.counts_runs
async def test_what_may_have_been_billed_twice_and_what_has_no_price_is_counted(runtime: Runtime) -> None:
    """A call that ran into its timeout may have been answered all the same; and a sum says what it leaves out."""
    begun.clear()
    await runtime.client.call(ask_slowly, "acme/a")
    scraped = await scrape(runtime)
    model = {"object": "Shop", "handler": "ask_slowly", "model": "m-1"}
    assert of(scraped, "keylane_model_calls_total", **model) == 2
    assert of(scraped, "keylane_model_calls_maybe_billed_twice_total", **model) == 1
    assert of(scraped, "keylane_model_answers_unpriced_total", **model) == 1


async def test_tenants_do_not_grow_without_end(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of them, they share one."""
    monkeypatch.setattr(meters, "TENANTS_MAX", 1)
    for tenant in ("acme", "beta", "zeta"):
        await runtime.client.call(ask, f"{tenant}/a", "hello")
    scraped = await scrape(runtime)
    counts = {dict(labels)["tenant"]: count for labels, count in scraped["keylane_job_cost_count"].items()}
    assert counts == {"acme": 1, OTHER_TENANTS: 2}


async def test_what_waits_has_an_age(runtime: Runtime) -> None:
    """One holds the lane, the next has waited behind it since it was taken in."""
    holding = await runtime.client.send(hold, "acme/a")
    with anyio.fail_after(20):
        while (await holding.describe()).status != "waiting":
            await anyio.sleep(0.01)
    behind = await runtime.client.send(add, "acme/a", 1)
    await behind.accepted(timeout=20)
    first = await scrape(runtime)
    second = await scrape(runtime)
    assert of(first, "keylane_queued_invocations", object="Shop") == 1
    assert of(first, "keylane_open_invocations", object="Shop") == 2
    age = [of(each, "keylane_queue_age_seconds", object="Shop") for each in (first, second)]
    assert 0 < age[0] < age[1]
    await holding.signal("go", "now")
    await behind.result(timeout=20)
    third = await scrape(runtime)
    assert of(third, "keylane_queue_age_seconds", object="Shop") == 0
    assert of(third, "keylane_queued_invocations", object="Shop") == 0


async def test_a_take_over_is_timed_where_there_was_work(store_url: str, namespace: str) -> None:
    """From when the next owner takes the partition to its first commit; one without work says nothing."""

    def opened() -> Runtime:
        return Runtime([shop], store=store_url, namespace=namespace, settings=SETTINGS, metrics_port=0)

    begun.clear()
    async with opened() as dead:
        handle = await dead.client.send(get_stuck_once, "acme/a")
        with anyio.fail_after(20):
            while not begun:
                await anyio.sleep(0.001)
        dead.worker.die()
    async with opened() as heir:
        await heir.client.attach(handle.id).result(timeout=20)
        scraped = await scrape(heir)
    assert of(scraped, "keylane_recovery_seconds_count", object="Shop") == 1
    assert of(scraped, "keylane_partitions_acquired_total", object="Shop", how="from a silent worker") == 1
    async with opened() as idle:
        await idle.client.call(add, "acme/d", 1)
        scraped = await scrape(idle)
    assert of(scraped, "keylane_recovery_seconds_count", object="Shop") == 0
    assert of(scraped, "keylane_partitions_acquired_total", object="Shop", how="free") == 1


async def test_every_metric_follows_the_conventions(runtime: Runtime) -> None:
    """Counters end in `_total`, times are in seconds, each has a help text that the README lists too."""
    text = await text_of(runtime)
    for metric in METRICS:
        name = exported_name(metric)
        assert name.startswith("keylane_")
        assert (name.endswith("_total")) == (metric.kind == "counter")
        if metric.kind != "gauge":
            assert f"# HELP {name} {metric.text}" in text
        assert "_ms" not in name
        assert metric.text.endswith(".")


async def test_a_port_that_is_taken_is_named(runtime: Runtime, store_url: str, namespace: str) -> None:
    """Whoever starts it is told which port, and what to do."""
    port = runtime.metrics_port
    other = Runtime([shop], store=store_url, namespace=namespace, settings=SETTINGS, metrics_port=port)
    with pytest.raises(RegistrationError, match=f"can't be shown on 127.0.0.1:{port}"):
        await other.__aenter__()


async def test_without_a_port_nothing_is_shown(store_url: str, namespace: str) -> None:
    """And nothing is counted."""
    async with Runtime([shop], store=store_url, namespace=namespace, settings=SETTINGS) as runtime:
        assert runtime.metrics_port is None
        (partition,) = runtime.worker.partitions
        assert partition.meters is meters.NO_METERS
        assert partition.writer.on_applied is None


async def test_the_environment_asks_for_numbers_and_spans(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deploys a worker need not change its code."""
    monkeypatch.setenv("KEYLANE_METRICS_PORT", "0")
    monkeypatch.setenv("KEYLANE_TRACING", "1")
    async with Runtime([shop], store=store_url, namespace=namespace) as runtime:
        assert of(await scrape(runtime), "keylane_partitions", object="Shop") == len(runtime.worker.partitions)
        assert all(partition.spans.is_on for partition in runtime.worker.partitions)


def test_the_libraries_are_loaded_only_when_they_are_asked_for() -> None:
    """Whoever wants no numbers and no spans needs no library for them; the client of the store loads what it likes."""
    code = (
        "import sys, keylane, keylane.runtime.cli.app;"
        "print([name for name in sys.modules if 'prometheus' in name or name == 'keylane.runtime.otel'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
