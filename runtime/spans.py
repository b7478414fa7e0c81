"""Where traces go through the engine: it calls these methods, which do nothing unless somebody traces.

The context of a trace travels as bytes: in requests, in the record that takes an invocation in, and with the calls and
messages of its handler. The span of an invocation has an id that follows from the invocation's, so that whatever
happens in any process, in any run of it, finds its parent; the span itself is made once, when the end is durable.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..journal.errors import RegistrationError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ..journal.effects import EffectEntry
    from ..journal.outcomes import Outcome
    from .invocation import Invocation
    from .orders import Order
    from .partition import Partition

#: A tracer provider; True for the global one, False or None for none.
Tracing: TypeAlias = "TracerProvider | bool | None"

_NOTHING: Final[AbstractContextManager[Any]] = nullcontext()


class Spans:
    """What the engine calls; here nobody traces."""

    __slots__ = ()

    #: Whether anybody traces; who is in a hurry looks at this first.
    is_on: bool = False

    def asking(self, kind: str, order: Order) -> AbstractContextManager[Any]:
        """Return the span of a client's call or send, whose context goes with it."""
        del kind, order
        return _NOTHING

    def carried(self) -> bytes | None:
        """Return the context of who is running now, as it is written down."""
        return None

    def of(self, invocation: Invocation) -> bytes | None:
        """Return the context of an invocation's own span, for what it asks of others."""
        del invocation
        return None

    def running(self, invocation: Invocation) -> AbstractContextManager[Any]:
        """Have what a handler's own code makes belong to the invocation."""
        del invocation
        return _NOTHING

    def step(self, invocation: Invocation, name: str, attempt: int) -> AbstractContextManager[Any]:
        """Return the span of one attempt of a step, which runs and is not replayed."""
        del invocation, name, attempt
        return _NOTHING

    def effect(self, partition: Partition, key_text: str, entry: EffectEntry, what: str) -> AbstractContextManager[Any]:
        """Return the span of one call, or look-up, of a receiver."""
        del partition, key_text, entry, what
        return _NOTHING

    def came_to(self, span: Any, answer: object) -> None:
        """Note what a call of a receiver has come to."""

    def ended(self, invocation: Invocation, outcome: Outcome) -> None:
        """Make the span of an invocation whose end is durable."""


NO_SPANS: Final = Spans()


def spans_of(tracing: Tracing) -> Spans:
    """Return what traces, by what a user asks for.

    Args:
        tracing: A tracer provider of OpenTelemetry; True for the global one, False for none.

    Raises:
        RegistrationError: It is something else, or OpenTelemetry is not installed.
    """
    if tracing is None or tracing is False:
        return NO_SPANS
    if tracing is not True and not hasattr(tracing, "get_tracer"):
        raise RegistrationError(
            f"tracing is {tracing!r}", parameter="tracing", remedy="give True, or a tracer provider of OpenTelemetry"
        )
    # Only who asks for traces needs the library for them.
    try:
        from .otel import OtelSpans  # noqa: PLC0415
    except ImportError as error:
        raise RegistrationError(
            "tracing was asked for, and opentelemetry-api is not installed",
            parameter="tracing",
            remedy="pip install 'keylane[otel]'",
        ) from error
    return OtelSpans(None if tracing is True else tracing)
