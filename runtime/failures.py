"""Exceptions of user code as they are written down, and as they are raised again at each replay."""

from __future__ import annotations

import reprlib
import traceback
from dataclasses import replace
from enum import Enum
from typing import cast

from ..journal import codec
from ..journal.errors import (
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    Deadlock,
    EffectConflict,
    EffectRejected,
    InvocationFailed,
    KeylaneError,
    StepFailed,
    Superseded,
    TerminalError,
    code_of,
    error_from,
    fields_of,
)
from ..journal.outcomes import Failure, Refused

TRACEBACK_LIMIT_CHARACTERS = 1500
#: What is longer of an error is cut: each failed attempt is recorded with its error.
MESSAGE_LIMIT_CHARACTERS = 10_000
DETAILS_LIMIT_BYTES = 1_048_576


def failure_of(error: BaseException, details_limit_bytes: int = DETAILS_LIMIT_BYTES) -> Failure:
    """Return an exception as it is written down; details that are larger than a value may be are left out."""
    text = "".join(traceback.format_exception(error))
    details = _details(error)
    return Failure(
        type_name=f"{type(error).__module__}.{type(error).__qualname__}",
        message=_message(error),
        code=_code(error),
        details=None if details is None else _packed_details(details, details_limit_bytes),
        traceback=text[-TRACEBACK_LIMIT_CHARACTERS:],
    )


def _message(error: BaseException) -> str:
    text = _spelled(error)
    text = "\n".join((text, *map(str, getattr(error, "__notes__", ()))))
    left_out = len(text) - MESSAGE_LIMIT_CHARACTERS
    return text if left_out <= 0 else f"{text[:MESSAGE_LIMIT_CHARACTERS]}… ({left_out} more characters)"


def _spelled(error: BaseException) -> str:
    try:
        if isinstance(error, KeylaneError):
            return error.message
        return _with_first(error, str(error)) or type(error).__name__
    except Exception:  # noqa: BLE001, the text is user code
        return "its text can't be made"


def _with_first(error: BaseException, text: str) -> str:
    """Return the text of a group with that of the first error in it, which says what is wrong."""
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    return text if first is error else f"{text}: {type(first).__name__}: {_message(first)}"


def _details(error: BaseException) -> object:
    match error:
        case StepFailed():
            return {"name": error.name, "attempts": error.attempts, "error": _writable(error.error)}
        case Deadlock():
            return {"path": list(error.path)}
        case ApprovalDeclined() | ApprovalExpired() | ApprovalUnfit() | EffectRejected() | EffectConflict():
            return _own_fields(error)
        case TerminalError() | InvocationFailed():
            return error.details
        case KeylaneError():
            return fields_of(error)
        case _:
            return None


def _own_fields(error: KeylaneError) -> dict[str, object]:
    # A receiver's words, too, may be text that no bytes can carry; the error is still what it is.
    fields = fields_of(error).items()
    return {name: _writable(value) for name, value in fields if name not in TerminalError.field_names}


def failure_with_fields(error: TerminalError) -> Failure:
    """Return an error as the end of a wait is written down: `terminal_error` raises it as what it is."""
    return replace(failure_of(error), details=codec.pack(_own_fields(error)), traceback="")


def _code(error: BaseException) -> str:
    match error:
        case TerminalError() | InvocationFailed():
            return _word(error.code)
        case KeylaneError():
            return code_of(error)
        case _:
            return "error"


def _word(code: object) -> str:
    """Return a code as the word that it stands for: of a member of an enum, its value."""
    plain: object = code.value if isinstance(code, Enum) else code
    word = plain if isinstance(plain, str) else reprlib.repr(plain)
    return word[:MESSAGE_LIMIT_CHARACTERS]


def _packed_details(details: object, limit_bytes: int) -> bytes:
    # The details of an error must never keep it from being recorded.
    try:
        packed = codec.pack(details)
    except codec.NotEncodable:
        packed = codec.pack(reprlib.repr(details))
    if len(packed) > limit_bytes:
        return codec.pack(f"details of {len(packed):,} bytes were left out, the limit is {limit_bytes:,}")
    return packed


def terminal_error(failure: Failure) -> TerminalError:
    """Return the error that a recorded failure stands for, the same at each replay."""
    details = None if failure.details is None else codec.unpack(failure.details)
    match failure.code, details:
        case StepFailed.code, {"name": str() as name, "attempts": int() as attempts, "error": str() as error}:
            return StepFailed(name, attempts, error)
        case code, dict() if code in _REBUILT:
            fields = {**cast("dict[str, object]", details), "code": code}
            return cast("TerminalError", error_from(code, failure.message, fields))
        case _:
            return TerminalError(failure.message, code=failure.code, details=details)


#: Errors that a wait raises as what they are, with their fields.
_REBUILT = frozenset(
    {
        EffectRejected.code,
        EffectConflict.code,
        ApprovalDeclined.code,
        ApprovalExpired.code,
        ApprovalUnfit.code,
        Superseded.code,
    }
)


def refused(error: KeylaneError) -> Refused:
    """Return what becomes of a request that is not taken in, or of a call that is lost."""
    fields = fields_of(error)
    try:
        packed = codec.pack(fields)
    except codec.NotEncodable:
        # What was wrong with a request may be that it can't be written down, and its sender has to be told so.
        packed = codec.pack({name: _writable(value) for name, value in fields.items()})
    return Refused(code_of(error), _escaped(error.message), packed)


def _writable(value: object) -> object:
    try:
        codec.pack(value)
    except codec.NotEncodable:
        return _escaped(str(value))
    return value


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
