"""Every error that Keylane raises.

    KeylaneError
    ├─ TerminalError(message, code, details)      never retried
    │  ├─ StepFailed · Superseded · Deadlock(path) · WaitTimeout(what, waited)
    │  ├─ EffectRejected(operation_id, reason, by) · EffectConflict(operation_id, fields)
    │  ├─ ApprovalDeclined(by, reason) · ApprovalExpired · ApprovalUnfit(why, fields)
    │  └─ Rejected(reason)                        raised by the function of an effect
    ├─ RetryableError(message, retry_after)
    │  └─ NotSent(reason)                         raised by the function of an effect
    ├─ CallError(invocation_id)
    │  ├─ UnknownObject · UnknownHandler · InvalidKey · InvalidInput(path) · InvalidOutput(path)
    │  ├─ PayloadTooLarge(value, limit) · IdempotencyConflict(fields) · ResultExpired(outcome)
    │  ├─ InvocationRefused(reason, reason_code, details) · MigrationFailed(versions)
    │  ├─ Overloaded(retry_after) · Draining(retry_after) · CallTimeout · MessageLost
    │  └─ InvocationFailed · InvocationCancelled · InvocationPaused(reason, owner)
    ├─ StoreError
    │  └─ StoreUnavailable · StoreFull · UnsafeStore(why, remedy) · SchemaMismatch · WrongKeyType · ValueLost
    ├─ RegistrationError(parameter, remedy)
    └─ InternalError                              our bug
    BaseException: Suspended · Fenced             inside a handler, never to be caught
    BaseException: Cancelled                      inside a handler that is cancelled: clean up, and raise it again

An error crosses processes as its code, its message and its fields: `code_of`, `fields_of` and
`error_from` are the two directions. Pickling restores the same parts and calls no constructor, so
a subclass in user code may have any signature.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from .call_errors import (
    CallError,
    CallTimeout,
    Draining,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvalidOutput,
    InvocationCancelled,
    InvocationFailed,
    InvocationPaused,
    InvocationRefused,
    MessageLost,
    MigrationFailed,
    Overloaded,
    PayloadTooLarge,
    ResultExpired,
    UnknownHandler,
    UnknownObject,
)
from .root_error import KeylaneError
from .terminal_errors import (
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    Deadlock,
    EffectConflict,
    EffectRejected,
    Rejected,
    StepFailed,
    Superseded,
    TerminalError,
    WaitTimeout,
)

__all__ = [
    "ApprovalDeclined",
    "ApprovalExpired",
    "ApprovalUnfit",
    "CallError",
    "CallTimeout",
    "Cancelled",
    "Deadlock",
    "Draining",
    "EffectConflict",
    "EffectRejected",
    "Fenced",
    "IdempotencyConflict",
    "InternalError",
    "InvalidInput",
    "InvalidKey",
    "InvalidOutput",
    "InvocationCancelled",
    "InvocationFailed",
    "InvocationPaused",
    "InvocationRefused",
    "KeylaneError",
    "MessageLost",
    "MigrationFailed",
    "NotSent",
    "Overloaded",
    "PayloadTooLarge",
    "RegistrationError",
    "Rejected",
    "ResultExpired",
    "RetryableError",
    "SchemaMismatch",
    "StepFailed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Superseded",
    "Suspended",
    "TerminalError",
    "UnknownHandler",
    "UnknownObject",
    "UnsafeStore",
    "ValueLost",
    "WaitTimeout",
    "WrongKeyType",
    "code_of",
    "error_from",
    "fields_of",
]


class RetryableError(KeylaneError):
    """Raise it in a handler or a step to be tried again, after `retry_after` if it is given.

    Args:
        message: What happened.
        retry_after: Seconds, or a timedelta, up to 400 days; None leaves the pause to the retry policy.
    """

    code = "retryable"
    field_names = ("retry_after",)
    retry_after: float | None = None

    def __init__(self, message: str = "", retry_after: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after


class NotSent(RetryableError):
    """Raise it in the function of an effect where nothing has left for sure, such as a connection that was refused.

    Args:
        reason: What happened.
        retry_after: Seconds, or a timedelta, up to 400 days; None leaves the pause to the retry policy.
    """

    code = "not-sent"
    field_names = (*RetryableError.field_names, "reason")
    reason: str = ""

    def __init__(self, reason: str, retry_after: timedelta | float | None = None) -> None:
        super().__init__(f"nothing was sent: {reason}", retry_after)
        self.reason = reason


class StoreError(KeylaneError):
    """Something is wrong with the store, not with the call."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store can't be reached or does not answer."""

    code = "store-unavailable"
    field_names = ("url", "why")
    url: str = ""
    why: str = ""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the store at {url} can't be reached: {why}")
        self.url = url
        self.why = why


class StoreFull(StoreError):
    """The store has no memory left and takes in nothing new."""

    code = "store-full"
    field_names = ("why",)
    why: str = ""

    def __init__(self, why: str = "maxmemory is reached") -> None:
        super().__init__(f"the store is full, nothing was taken in: {why}")
        self.why = why


class UnsafeStore(StoreError):
    """The server's settings can't keep the declared promise.

    Attributes:
        why: What the setting would cost.
        remedy: What to change, or how to accept it.
    """

    code = "unsafe-store"
    field_names = ("why", "remedy")
    why: str = ""
    remedy: str = ""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy


class SchemaMismatch(StoreError):
    """The namespace was written with other settings or by another release."""

    code = "schema-mismatch"
    field_names = ("what", "found", "expected")
    what: str = ""
    found: str = ""
    expected: str = ""

    def __init__(self, what: str, found: object, expected: object) -> None:
        message = (
            f"the namespace has {what} {found}, this process expects {expected}: "
            "use the release and the settings that wrote it, or another namespace"
        )
        super().__init__(message)
        self.what = what
        self.found = str(found)
        self.expected = str(expected)


class WrongKeyType(StoreError):
    """A key of the store that Keylane uses holds something that Keylane did not write; it is not touched."""

    code = "wrong-key-type"
    field_names = ("key",)
    key: str = ""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} holds a value that Keylane did not write: move it away, or use another namespace")
        self.key = key


class ValueLost(StoreError):
    """A large value that was written once is no longer in the store, or not as it was; nothing is written in its place.

    Attributes:
        what: Which value, e.g. `state proposal`.
        digest: The digest under which its bytes were kept.
        problem: What was found instead.
    """

    code = "value-lost"
    field_names = ("what", "digest", "problem")
    what: str = ""
    digest: str = ""
    problem: str = ""

    def __init__(self, what: str, digest: str, problem: str) -> None:
        super().__init__(
            f"{what} {problem} in the store (digest {digest}): restore it from a backup, then resume what waits for it"
        )
        self.what = what
        self.digest = digest
        self.problem = problem


class RegistrationError(KeylaneError):
    """A declaration that can't work, found when the module is imported.

    Attributes:
        parameter: The parameter at fault, where it is one.
        remedy: What to write instead.
    """

    code = "registration"
    field_names = ("what", "parameter", "remedy")
    what: str = ""
    parameter: str | None = None
    remedy: str = ""

    def __init__(self, what: str, *, parameter: str | None = None, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.parameter = parameter
        self.remedy = remedy


class InternalError(KeylaneError):
    """A bug of Keylane: please report it with its message."""

    code = "internal"

    def __init__(self, message: str = "") -> None:
        super().__init__(f"{message} (this is a bug in Keylane, please report it)")


class _ControlFlow(BaseException):
    """Ends a run of a handler from within; outside `Exception` so that user code does not catch it."""

    code: ClassVar[str]
    why: ClassVar[str]

    def __init__(self) -> None:
        super().__init__(
            f"{self.why} If you see this, an `except BaseException:` or a bare `except:` around an await on ctx "
            "has caught it: write `except Exception:` instead, or raise it again."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class Suspended(_ControlFlow):
    """This run of the handler ends here; the invocation goes on later from its journal."""

    code = "suspended"
    why = "Keylane ends this run of the handler here; it goes on later, by itself, from its journal."


class Fenced(_ControlFlow):
    """Another worker owns this object now; nothing that this run does is written any more."""

    code = "fenced"
    why = "Another worker owns this object now and runs the handler; nothing that this run does is kept any more."


class Cancelled(BaseException):
    """Somebody has cancelled this invocation: raised once, by the next await on ctx that records something.

    Clean up in `finally:`, or in `except Cancelled:` and raise it again; the awaits on ctx work there as before, and
    are recorded. A handler that swallows it and returns completes its invocation.

    Attributes:
        by: Who asked for it; empty where that was not said.
        reason: Why, likewise.
    """

    code: ClassVar[str] = "cancelled"

    def __init__(self, by: str = "", reason: str = "") -> None:
        whom = f" by {by}" if by else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"this invocation is cancelled{whom}{why}")
        self.by = by
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.by, self.reason)


def code_of(error: KeylaneError) -> str:
    """The code of the kind of error, also where the instance carries a code of the user's."""
    return type(error).code


def fields_of(error: KeylaneError) -> dict[str, Any]:
    """The facts of an error as plain values, for `error_from` in another process."""
    return {name: getattr(error, name) for name in error.field_names}


def error_from(code: str, message: str, fields: Mapping[str, Any]) -> KeylaneError:
    """Rebuild an error from what crossed the wire.

    A code that this release does not know becomes a `CallError` that carries it; missing fields keep the
    defaults of their class, and unknown ones are dropped, so that releases may differ.
    """
    kind = _KINDS.get(code, CallError)
    error = kind.__new__(kind, message)
    error.__dict__.update((name, fields[name]) for name in kind.field_names if name in fields)
    if code not in _KINDS:
        error.code = code
    return error


def _family(kind: type[KeylaneError]) -> Iterator[type[KeylaneError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


# Taken once, here: a subclass in user code must not take over the code of its parent.
_KINDS: dict[str, type[KeylaneError]] = {kind.code: kind for kind in _family(KeylaneError)}

# Records and tracebacks have the full names of errors: these have had this module's for as long as there are records.
for _kind in _family(TerminalError):
    _kind.__module__ = __name__
