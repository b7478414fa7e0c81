"""`ctx.model`: what is recorded of a call of a model before it is made, and of its answer."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

from ..journal.codec import unpack
from ..journal.command_records import ModelCallBegun, ModelUsage
from ..journal.errors import InvalidOutput, KeylaneError, RegistrationError
from ..journal.model_calls import calls_before
from ..objects.fingerprint import canonical
from ..objects.modelling import ModelAnswer
from ..objects.signature import result_form
from ..objects.types import boundary_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import ExclusiveContext
    from .invocation import Invocation
    from .step_plan import StepPlan

#: As many bytes tell one prompt from another.
DIGEST_BYTES: Final = 16
#: What is written as plain data, since its type says nothing of what it holds.
_HOLDING_OTHERS: Final = frozenset({dict, list, tuple, set, frozenset})


@dataclass(slots=True)
class ModelAsk:
    """What a step asks of a model.

    Args:
        model: The model that is asked.
        digest: Digest of what it is asked.
        lost: How many calls for the same answer have no known end.
        usage: What the answer took, once it is there.
    """

    model: str
    digest: bytes
    lost: int = 0
    usage: ModelUsage | None = None

    def take(self, name: str, answer: object) -> Any:
        """Take note of what an answer took; returns its value.

        Raises:
            InvalidOutput: It is no answer of a model.
        """
        if not isinstance(answer, ModelAnswer):
            reason = f"the function returned {type(answer).__name__}; it returns ModelAnswer(value, …)"
            raise InvalidOutput(f"answer of model call {name}", reason)
        told = cast("ModelAnswer[Any]", answer)
        self.usage = ModelUsage(
            told.model or self.model, told.input_tokens, told.output_tokens, told.cost, told.currency, self.lost
        )
        return told.value


def begun(ctx: ExclusiveContext, invocation: Invocation, plan: StepPlan, asks: ModelAsk) -> tuple[ModelCallBegun, bool]:
    """Return the record that goes ahead of a call: a run that finds it without an end knows that there was one.

    Returns:
        The record, and whether the call right before it has no known end.
    """
    made, asks.lost, is_again = calls_before(invocation.records, plan.index)
    reads, notes = ctx.carried()
    fact = ModelCallBegun(plan.index, plan.name, made + 1, asks.model, asks.digest, asks.lost, reads, notes)
    return fact, is_again


def prompt_digest(arguments: tuple[Any, ...]) -> bytes:
    """Return a digest that is equal for equal arguments, whatever the order of their fields."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for argument in arguments:
        part = _written(argument)
        # The length before each part keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _written(argument: Any) -> bytes:
    kind = cast("type[object]", type(argument))
    form: Any = Any if kind in _HOLDING_OTHERS else kind
    try:
        return canonical(unpack(boundary_of(form, where="argument").dump(argument)))
    except KeylaneError:
        # A client of a provider, say: what it is asked does not hang on it.
        return f"{kind.__module__}.{kind.__qualname__}".encode()


def answer_form(function: Callable[..., Any], name: str) -> Any:
    """Return the type of what a function answers, by its annotation; plain data where it says nothing.

    Raises:
        RegistrationError: It is annotated to return something else than an answer.
    """
    form = result_form(function)
    if form is Any or form is ModelAnswer:
        return Any
    if typing.get_origin(form) is ModelAnswer:
        return typing.get_args(form)[0]
    what = f"the function of model call {name} is annotated to return {getattr(form, '__name__', form)}"
    raise RegistrationError(what, remedy="have it return ModelAnswer(value, …), and annotate it `-> ModelAnswer[…]`")


def check_model(model: object) -> str:
    """Refuse what names no model.

    Raises:
        TypeError: That is so.
    """
    if not isinstance(model, str) or not model:
        raise TypeError(f'ctx.model: model is {model!r}; it names the model that is asked, model="…"')
    return model
