"""One trace from the client through handlers, steps, calls and effects, over suspensions and take-overs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from keylane import (
    BlockingObjectContext,
    Client,
    Deduplicates,
    InvocationFailed,
    ObjectContext,
    Receiver,
    Runtime,
    Settings,
    TerminalError,
    VirtualObject,
)
from keylane.journal.requests import Request, RequestKind
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

SETTINGS = Settings(partitions=1)
bank = Bank(is_deduplicating=True)
steps: list[str] = []
stuck: list[str] = []
payments = Receiver("payments", owner="tests", deduplicates=Deduplicates(timedelta(hours=1)))


@payments.effect("refund", timeout=timedelta(seconds=2))
async def send_refund(operation_id: str, terms: Terms) -> Receipt:
    with trace.get_tracer("bank", tracer_provider=OWN[0]).start_as_current_span("bank"):
        return await bank.pay(operation_id, terms)


def tell_of(receipt: str) -> None:
    steps.append(receipt)


order = VirtualObject("Order", owner="tests", effects=[send_refund])
desk = VirtualObject("Desk", owner="tests")
#: The provider of the test that runs.
OWN: list[TracerProvider] = []


@desk.handler
async def refund(ctx: ObjectContext, amount: int) -> str:
    """A step, a wait, a call of another object that has an effect, and a message."""
    await ctx.run("look", look, "desk")
    await ctx.sleep(0.01)
    receipt = await ctx.call(pay, "acme/o-1", amount)
    await ctx.send(tell, "acme/o-2", receipt)
    return receipt


@order.handler
async def pay(ctx: ObjectContext, amount: int) -> str:
    await ctx.run("look", look, "order")
    return (await ctx.effect(send_refund, operation_id="refund-1", params=Terms(amount=amount))).id


@order.handler
def tell(ctx: BlockingObjectContext, receipt: str) -> None:
    ctx.run("tell", tell_of, receipt)


@desk.handler
async def get_stuck(ctx: ObjectContext) -> str:
    await ctx.run("first", look, "first")
    await ctx.run("stuck", get_stuck_once)
    return await ctx.call(pay, "acme/o-1", 7)


@desk.handler
async def refuse(ctx: ObjectContext) -> None:
    raise TerminalError("no")


async def look(what: str) -> None:
    with trace.get_tracer("shop", tracer_provider=OWN[0]).start_as_current_span(f"own {what}"):
        steps.append(what)


async def get_stuck_once() -> None:
    stuck.append("")
    if len(stuck) == 1:
        await anyio.sleep_forever()


class Traces:
    """A provider that keeps what it is told of."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> dict[str, list[ReadableSpan]]:
        """The spans that have ended, by name."""
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans[name]
        return span

    def parents(self) -> set[tuple[str, str]]:
        """The tree: name of each span and name of its parent."""
        names = {each.context.span_id: each.name for each in self.exporter.get_finished_spans() if each.context}
        return {
            (each.name, "" if each.parent is None else names.get(each.parent.span_id, "?"))
            for each in self.exporter.get_finished_spans()
        }

    def trace_ids(self) -> set[int]:
        return {each.context.trace_id for each in self.exporter.get_finished_spans() if each.context}


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    OWN[:] = [traces.provider]
    steps.clear()
    stuck.clear()
    bank.empty()
    yield traces
    traces.provider.shutdown()


def opened(store_url: str, namespace: str, traces: Traces) -> Runtime:
    return Runtime([order, desk], store=store_url, namespace=namespace, settings=SETTINGS, tracing=traces.provider)


@pytest.fixture
async def runtime(store_url: str, namespace: str, traces: Traces) -> AsyncIterator[Runtime]:
    async with opened(store_url, namespace, traces) as runtime:
        yield runtime


async def until(traces: Traces, name: str) -> None:
    with anyio.fail_after(20):
        while name not in traces.spans:
            await anyio.sleep(0.005)


WHOLE = {
    ("call Desk.refund", ""),
    ("Desk.refund", "call Desk.refund"),
    ("step look", "Desk.refund"),
    ("own desk", "step look"),
    ("Order.pay", "Desk.refund"),
    ("step look", "Order.pay"),
    ("own order", "step look"),
    ("effect payments.refund", "Order.pay"),
    ("bank", "effect payments.refund"),
    ("Order.tell", "Desk.refund"),
    ("step tell", "Order.tell"),
}


@pytest.mark.parametrize("force", [None, "suspend", "replay"])
async def test_one_trace_goes_from_the_client_to_the_effect(runtime: Runtime, traces: Traces, force: Any) -> None:
    """Each thing that is done has one span, however often its handler is replayed, and each span its parent."""
    runtime.worker.force(force)
    await runtime.client.call(refund, "acme/d-1", 7)
    await until(traces, "Order.tell")
    assert traces.parents() == WHOLE
    assert len(traces.trace_ids()) == 1
    counts = {name: len(spans) for name, spans in traces.spans.items()}
    assert counts == {name: 2 if name == "step look" else 1 for name in counts}


async def test_a_client_elsewhere_begins_the_trace(runtime: Runtime, traces: Traces) -> None:
    """Its request carries the context to the owner; one inside a span of its own carries that."""
    tracer = trace.get_tracer("web", tracer_provider=traces.provider)
    async with Client(runtime.store_url, namespace=runtime.namespace, tracing=traces.provider) as client:
        with tracer.start_as_current_span("web request"):
            handle = await client.send(refund, "acme/d-1", 7)
        await handle.result(timeout=20)
    await until(traces, "Order.tell")
    assert len(traces.trace_ids()) == 1
    assert {("send Desk.refund", "web request"), ("Desk.refund", "send Desk.refund")} <= traces.parents()


async def test_a_trace_goes_on_after_a_take_over(store_url: str, namespace: str, traces: Traces) -> None:
    """Whoever goes on finds the context with the invocation; what was done is not told again."""
    async with opened(store_url, namespace, traces) as dead:
        handle = await dead.client.send(get_stuck, "acme/d-1")
        with anyio.fail_after(20):
            while not stuck:
                await anyio.sleep(0.005)
        dead.worker.die()
    async with opened(store_url, namespace, traces) as heir:
        await heir.client.attach(handle.id).result(timeout=20)
    assert len(traces.trace_ids()) == 1
    assert len(traces.spans["step first"]) == 1
    # The one that was cut off has a span as well: it had run.
    assert len(traces.spans["step stuck"]) == 2
    assert len(traces.spans["Desk.get_stuck"]) == 1
    expected = {
        ("Desk.get_stuck", "send Desk.get_stuck"),
        ("Order.pay", "Desk.get_stuck"),
        ("effect payments.refund", "Order.pay"),
    }
    assert expected <= traces.parents()


async def test_what_fails_says_so(runtime: Runtime, traces: Traces) -> None:
    """The span of the invocation, and that of the client's call."""
    with pytest.raises(InvocationFailed):
        await runtime.client.call(refuse, "acme/d-1")
    span = traces.one("Desk.refuse")
    assert not span.status.is_ok
    assert span.attributes is not None
    assert (span.attributes["keylane.end"], span.attributes["keylane.key"]) == ("failed", "acme/d-1")


async def test_a_span_lasts_from_intake_to_the_end(runtime: Runtime, traces: Traces) -> None:
    """All that is done for an invocation lies within its span."""
    await runtime.client.call(refund, "acme/d-1", 7)
    outer, inner = traces.one("Desk.refund"), traces.one("Order.pay")
    assert outer.start_time is not None
    assert inner.start_time is not None
    assert outer.end_time is not None
    assert inner.end_time is not None
    assert outer.start_time <= inner.start_time <= inner.end_time <= outer.end_time


async def test_work_without_a_client_that_traces_is_a_trace_of_its_own(
    runtime: Runtime, traces: Traces, store_url: str
) -> None:
    """It is one trace all the same."""
    async with Client(store_url, namespace=runtime.namespace) as client:
        await client.call(refund, "acme/d-1", 7)
    await until(traces, "Order.tell")
    assert len(traces.trace_ids()) == 1
    assert ("Desk.refund", "") in traces.parents()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_sampler_decides_for_all_of_a_trace(store_url: str, namespace: str, ratio: float) -> None:
    """No part of a trace is without the others."""
    traces = Traces(sampler=TraceIdRatioBased(ratio))
    OWN[:] = [traces.provider]
    bank.empty()
    async with opened(store_url, namespace, traces) as runtime, Client(store_url, namespace=namespace) as client:
        await client.call(refund, "acme/d-1", 7)
        names = set(traces.spans)
        del runtime
    assert ("Desk.refund" in names, "effect payments.refund" in names) == (ratio == 1, ratio == 1)
    traces.provider.shutdown()


async def test_without_tracing_nothing_is_carried(store_url: str, namespace: str) -> None:
    """Requests and records are as small as before."""
    request = Request(RequestKind.SEND, bytes(16), "refund", "acme/d-1")
    assert len(Request.decode(request.encode()).encode()) == len(request.encode())
    async with Runtime([order, desk], store=store_url, namespace=namespace, settings=SETTINGS) as runtime:
        OWN[:] = [TracerProvider()]
        handle = await runtime.client.send(refund, "acme/d-1", 7)
        await handle.result(timeout=20)
        partitions = runtime.worker.partitions
        assert not any(each.spans.is_on for each in partitions)
