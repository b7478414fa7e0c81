"""Validators: what looks at a call of an exclusive handler before it enters the lane, and may refuse it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..journal.errors import RegistrationError
from .signature import Signature, read_signature

_REMEDY = "a validator returns nothing: it refuses by raising a TerminalError or a ValueError"


@dataclass(frozen=True, slots=True)
class Validator:
    """The validator of a handler.

    Attributes:
        function: The plain function, for unit tests too.
        is_blocking: Whether it is a plain `def`, run in a thread.
    """

    function: Callable[..., Any]
    is_blocking: bool


def validator_of(function: Callable[..., Any], handler: Signature, what: str) -> Validator:
    """Check a validator against the handler that it is for.

    Args:
        function: The validator.
        handler: What the handler takes.
        what: The handler as errors call it.

    Raises:
        RegistrationError: It can't be a validator, or takes another argument than the handler.
    """
    signature = read_signature(function, "shared")
    name = function.__qualname__.replace("<locals>.", "")
    if signature.output.form not in (None, type(None)):
        raise RegistrationError(f"validator {name} of {what} returns a value", parameter="validate", remedy=_REMEDY)
    wanted = None if handler.input is None else handler.input.form
    taken = None if signature.input is None else signature.input.form
    if wanted != taken:
        remedy = "give it the same argument as the handler, annotated alike"
        raise RegistrationError(
            f"validator {name} takes {_shown(taken)}, {what} takes {_shown(wanted)}",
            parameter="validate",
            remedy=remedy,
        )
    return Validator(function, signature.is_blocking)


def _shown(form: Any) -> str:
    if form is None:
        return "no argument"
    return form.__name__ if isinstance(form, type) else str(form)
