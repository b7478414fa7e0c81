"""The spans of the engine for OpenTelemetry; needs the libraries of the extra `otel`."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
    use_span,
)

from ..journal.key import format_id
from ..journal.outcomes import Outcome, Rejected, Succeeded
from .meters import end_of, handler_name_of
from .spans import Spans

if TYPE_CHECKING:
    from ..journal.effects import EffectEntry
    from .invocation import Invocation
    from .orders import Order
    from .partition import Partition

_SCOPE: Final = "keylane"
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
#: A trace's id, a span's id, and one byte of flags: what `traceparent` says, without its spelling.
CARRIED_BYTES: Final = _TRACE_BYTES + _SPAN_BYTES + 1

#: The ids that the next span is to have: of the trace, where it begins one, and its own.
_chosen: ContextVar[tuple[int, int] | None] = ContextVar("keylane_chosen_ids", default=None)


class _ChosenIds:
    """Gives spans the ids that were chosen for them, and all others those that they would have had."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def generate_trace_id(self) -> int:
        chosen = _chosen.get()
        return self._usual.generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = _chosen.get()
        return self._usual.generate_span_id() if chosen is None else chosen[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class OtelSpans(Spans):
    """Makes spans.

    Args:
        provider: Of tracers; None for the global one.
    """

    __slots__ = ("_tracer",)

    is_on = True

    def __init__(self, provider: TracerProvider | None) -> None:
        tracer: Any = trace.get_tracer(_SCOPE, tracer_provider=provider)
        usual = getattr(tracer, "id_generator", None)
        if usual is not None and not isinstance(usual, _ChosenIds):
            # A tracer of the SDK has its own; those of the provider's other tracers stay as they are.
            tracer.id_generator = _ChosenIds(usual)
        self._tracer = tracer

    @contextmanager
    def asking(self, kind: str, order: Order) -> Generator[Any]:
        """Make the span of a client's call, for as long as it lasts, or of its send."""
        name = f"{kind} {order.object_name}.{order.handler_name}"
        attributes = {"keylane.object": order.object_name, "keylane.key": order.key_text}
        span_kind = SpanKind.CLIENT if kind == "call" else SpanKind.PRODUCER
        with self._tracer.start_as_current_span(name, kind=span_kind, attributes=attributes) as span:
            order.trace = self.carried()
            yield span

    def carried(self) -> bytes | None:
        """Return the context of the current span."""
        context = trace.get_current_span().get_span_context()
        return _packed(context) if context.is_valid else None

    def of(self, invocation: Invocation) -> bytes | None:
        """Return the context of an invocation's span."""
        return _packed(self._context_of(invocation))

    def _context_of(self, invocation: Invocation) -> SpanContext:
        parent = _parent_of(invocation)
        span_id = _span_id(invocation.raw_id)
        if parent is not None:
            return SpanContext(parent.trace_id, span_id, is_remote=True, trace_flags=parent.trace_flags)
        trace_id = int.from_bytes(invocation.raw_id, "big")
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=self._flags_of(trace_id))

    def _flags_of(self, trace_id: int) -> TraceFlags:
        """Return whether a trace that begins here is sampled: what the sampler says again when its span is made."""
        sampler = getattr(self._tracer, "sampler", None)
        if sampler is None:
            return TraceFlags(TraceFlags.DEFAULT)
        is_sampled = sampler.should_sample(None, trace_id, _SCOPE).decision.is_sampled()
        return TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)

    def running(self, invocation: Invocation) -> Any:
        """Have the spans of a handler's own code be children of the invocation's."""
        return use_span(
            NonRecordingSpan(self._context_of(invocation)), record_exception=False, set_status_on_exception=False
        )

    def step(self, invocation: Invocation, name: str, attempt: int) -> Any:
        """Make the span of one attempt of a step."""
        attributes = {**_about(invocation), "keylane.step": name, "keylane.attempt": attempt}
        context = _in_context(self._context_of(invocation))
        return self._tracer.start_as_current_span(f"step {name}", context=context, attributes=attributes)

    def effect(self, partition: Partition, key_text: str, entry: EffectEntry, what: str) -> Any:
        """Make the span of one call, or look-up, of a receiver; its parent is the invocation that asked first."""
        asked_by = partition.open.get(entry.invocation)
        context = Context() if asked_by is None else _in_context(self._context_of(asked_by))
        attributes = {
            "keylane.object": partition.space.type_name,
            "keylane.key": key_text,
            "keylane.invocation": format_id(partition.space.type_name, partition.number, entry.invocation),
            "keylane.receiver": entry.receiver,
            "keylane.operation": entry.operation,
            "keylane.attempt": entry.attempt,
        }
        name = f"{what} {entry.receiver}.{entry.effect}"
        return self._tracer.start_as_current_span(name, context=context, kind=SpanKind.CLIENT, attributes=attributes)

    def came_to(self, span: Span, answer: object) -> None:
        """Note what a call of a receiver has come to."""
        span.set_attribute("keylane.outcome", type(answer).__name__.lower())

    def ended(self, invocation: Invocation, outcome: Outcome) -> None:
        """Make the span of an invocation, from its intake to now."""
        parent = _parent_of(invocation)
        own, about = self._context_of(invocation), _about(invocation)
        token = _chosen.set((own.trace_id, own.span_id))
        try:
            span = self._tracer.start_span(
                f"{about['keylane.object']}.{about['keylane.handler']}",
                context=Context() if parent is None else _in_context(parent),
                kind=SpanKind.SERVER,
                attributes=about,
                start_time=_begun_ns(invocation),
            )
        finally:
            _chosen.reset(token)
        span.set_attribute("keylane.end", end_of(outcome))
        if not isinstance(outcome, Succeeded):
            told = outcome.failure.message if isinstance(outcome, Rejected) else end_of(outcome)
            span.set_status(Status(StatusCode.ERROR, told))
        span.end()


def _parent_of(invocation: Invocation) -> SpanContext | None:
    carried = invocation.trace
    if carried is None or len(carried) != CARRIED_BYTES:
        return None
    trace_id = int.from_bytes(carried[:_TRACE_BYTES], "big")
    span_id = int.from_bytes(carried[_TRACE_BYTES:-1], "big")
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(carried[-1]))


def _packed(context: SpanContext) -> bytes:
    flags = bytes([context.trace_flags & 0xFF])
    return context.trace_id.to_bytes(_TRACE_BYTES, "big") + context.span_id.to_bytes(_SPAN_BYTES, "big") + flags


def _span_id(raw_id: bytes) -> int:
    """Return the id of an invocation's span: the same one in each process; never 0, which is none."""
    return int.from_bytes(blake2b(raw_id, digest_size=_SPAN_BYTES, person=b"span").digest(), "big") or 1


def _in_context(parent: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _about(invocation: Invocation) -> dict[str, str]:
    lane = invocation.lane
    return {
        "keylane.object": lane.partition.space.type_name,
        "keylane.key": lane.key_text,
        "keylane.handler": handler_name_of(invocation),
        "keylane.invocation": lane.partition.invocation_id(invocation.raw_id),
    }


def _begun_ns(invocation: Invocation) -> int:
    """Return when an invocation was taken in, by whichever clock has told that."""
    if invocation.begun_ms is not None:
        return invocation.begun_ms * 1_000_000
    return time.time_ns() - int((time.monotonic() - invocation.arrived_at) * 1e9)
