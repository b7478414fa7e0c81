"""Every error that Keylane raises.

    KeylaneError
    ├─ TerminalError(message, code, details)      never retried
    │  └─ StepFailed · EffectRejected · Superseded · Deadlock(path)
    ├─ RetryableError(message, retry_after)
    ├─ CallError(invocation_id)
    │  ├─ UnknownObject · UnknownHandler · InvalidKey · InvalidInput(path) · InvalidOutput(path)
    │  ├─ PayloadTooLarge(value, limit) · IdempotencyConflict(fields) · ResultExpired(outcome)
    │  ├─ Overloaded(retry_after) · Draining(retry_after) · CallTimeout
    │  └─ InvocationFailed · InvocationCancelled · InvocationPaused(reason, owner)
    ├─ StoreError
    │  └─ StoreUnavailable · StoreFull · UnsafeStore(why, remedy) · SchemaMismatch · WrongKeyType
    ├─ RegistrationError(parameter, remedy)
    └─ InternalError                              our bug
    BaseException: Suspended · Fenced             inside a handler, never to be caught

An error crosses processes as its code, its message and its fields: `code_of`, `fields_of` and
`error_from` are the two directions. Pickling restores the same parts and calls no constructor, so
a subclass in user code may have any signature.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

_SHOWN_CHARACTERS: Final = 80


class KeylaneError(Exception):
    """The root of all errors that a user may catch.

    Attributes:
        code: Stable name of the kind of error, the same in every release.
        message: What happened, without the id that some kinds add when printed.
    """

    code: str = "keylane"
    field_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """What happened, in one sentence."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__.copy())


def _revive(kind: type[BaseException], arguments: tuple[object, ...], state: dict[str, object]) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class TerminalError(KeylaneError):
    """Raise it in a handler or a step to end the invocation as failed: it is never retried.

    Args:
        message: What the caller is told.
        code: A stable word for programs, e.g. `"card-declined"`.
        details: Plain data for the caller: what `Values` of the documentation can carry.
    """

    code = "terminal"
    field_names = ("code", "details")
    details: Any = None

    def __init__(self, message: str = "", code: str | None = None, details: Any = None) -> None:
        super().__init__(message)
        self.code = type(self).code if code is None else code
        self.details = details


class StepFailed(TerminalError):
    """A step spent its attempts and was declared with `on_exhausted="raise"`."""

    code = "step-failed"
    field_names = (*TerminalError.field_names, "name", "attempts", "error")
    name: str = ""
    attempts: int = 0
    error: str = ""

    def __init__(self, name: str, attempts: int, error: str) -> None:
        super().__init__(f"step {name!r} failed {attempts} times, the last time with {error}")
        self.name = name
        self.attempts = attempts
        self.error = error


class EffectRejected(TerminalError):
    """The receiver of an effect said that it did not and will not do it."""

    code = "effect-rejected"
    field_names = (*TerminalError.field_names, "operation_id", "reason")
    operation_id: str = ""
    reason: str = ""

    def __init__(self, operation_id: str, reason: str) -> None:
        super().__init__(f"the receiver rejected {operation_id}: {reason}")
        self.operation_id = operation_id
        self.reason = reason


class Superseded(TerminalError):
    """What the handler had expected no longer holds when it got its lane back."""

    code = "superseded"
    field_names = (*TerminalError.field_names, "by")
    by: str = ""

    def __init__(self, by: str) -> None:
        super().__init__(f"superseded by {by}: read the state again and decide anew")
        self.by = by


class Deadlock(TerminalError):
    """A call would have closed a circle of invocations that wait for each other."""

    code = "deadlock"
    field_names = (*TerminalError.field_names, "path")
    path: tuple[str, ...] = ()

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"this call would wait for itself: {' → '.join(path)}; use send, or release the lane first")
        self.path = path


class RetryableError(KeylaneError):
    """Raise it in a handler or a step to be tried again, after `retry_after` if it is given.

    Args:
        message: What happened.
        retry_after: Seconds, or a timedelta; None leaves the pause to the retry policy.
    """

    code = "retryable"
    field_names = ("retry_after",)
    retry_after: float | None = None

    def __init__(self, message: str = "", retry_after: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after


class CallError(KeylaneError):
    """A call was refused, or did not end with a result.

    Attributes:
        invocation_id: The invocation that the error is about, where there is one.
    """

    code = "call"
    field_names = ("invocation_id",)
    invocation_id: str | None = None

    def __init__(self, message: str = "", *, invocation_id: str | None = None) -> None:
        super().__init__(message)
        self.invocation_id = invocation_id

    def __str__(self) -> str:
        if self.invocation_id is None:
            return self.message
        return f"{self.message} (invocation {self.invocation_id})"


class UnknownObject(CallError):
    """No object type of this name is hosted here."""

    code = "unknown-object"
    field_names = (*CallError.field_names, "name", "known")
    name: str = ""
    known: tuple[str, ...] = ()

    def __init__(self, name: str, known: tuple[str, ...] = (), *, invocation_id: str | None = None) -> None:
        super().__init__(f"no object type {name!r}; {_known('object types', known)}", invocation_id=invocation_id)
        self.name = name
        self.known = known


class UnknownHandler(CallError):
    """The object type has no handler of this name."""

    code = "unknown-handler"
    field_names = (*CallError.field_names, "object_name", "name", "known")
    object_name: str = ""
    name: str = ""
    known: tuple[str, ...] = ()

    def __init__(
        self, object_name: str, name: str, known: tuple[str, ...] = (), *, invocation_id: str | None = None
    ) -> None:
        message = f"{object_name} has no handler {name!r}; {_known('handlers', known)}"
        super().__init__(message, invocation_id=invocation_id)
        self.object_name = object_name
        self.name = name
        self.known = known


def _known(what: str, names: tuple[str, ...]) -> str:
    return f"known {what}: {', '.join(names)}" if names else f"there are no {what}"


class InvalidKey(CallError):
    """A key or an invocation id that can't be one.

    Attributes:
        value: What was given.
        reason: Why it can't be a key, and what to write instead.
    """

    code = "invalid-key"
    field_names = (*CallError.field_names, "value", "reason")
    value: str = ""
    reason: str = ""

    def __init__(self, value: object, reason: str) -> None:
        # A lone surrogate may be what is wrong with it, and has to cross the wire in this error.
        text = (value if isinstance(value, str) else repr(value)).encode(errors="backslashreplace").decode()
        super().__init__(f"invalid key {_short(text)!r}: {reason}")
        self.value = text
        self.reason = reason


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 20]}…{text[-19:]}"


class InvalidInput(CallError):
    """An argument that does not fit the handler's declared type.

    Attributes:
        path: The offending field, e.g. `request.items[2].amount`.
        reason: What is wrong with it.
    """

    code = "invalid-input"
    field_names = (*CallError.field_names, "path", "reason")
    path: str = ""
    reason: str = ""

    def __init__(self, path: str, reason: str, *, invocation_id: str | None = None) -> None:
        super().__init__(f"invalid input at {path}: {reason}", invocation_id=invocation_id)
        self.path = path
        self.reason = reason


class InvalidOutput(CallError):
    """A result, a state value or a step's result that does not fit its declared type or can't be written down.

    Attributes:
        path: The offending field, e.g. `result.receipt.at`.
        reason: What is wrong with it.
    """

    code = "invalid-output"
    field_names = (*CallError.field_names, "path", "reason")
    path: str = ""
    reason: str = ""

    def __init__(self, path: str, reason: str, *, invocation_id: str | None = None) -> None:
        super().__init__(f"invalid output at {path}: {reason}", invocation_id=invocation_id)
        self.path = path
        self.reason = reason


class PayloadTooLarge(CallError):
    """A single value is larger than the payload limit.

    Attributes:
        value: Which value, e.g. `request` or `state proposal`.
        size_bytes: How large it is when packed.
        limit: How large it may be, in bytes.
    """

    code = "payload-too-large"
    field_names = (*CallError.field_names, "value", "size_bytes", "limit")
    value: str = ""
    size_bytes: int = 0
    limit: int = 0

    def __init__(self, value: str, size_bytes: int, limit: int, *, invocation_id: str | None = None) -> None:
        message = (
            f"{value} has {size_bytes:,} bytes, the limit is {limit:,}: "
            "keep the data elsewhere and pass a reference, or raise KEYLANE_PAYLOAD_LIMIT_BYTES"
        )
        super().__init__(message, invocation_id=invocation_id)
        self.value = value
        self.size_bytes = size_bytes
        self.limit = limit


class IdempotencyConflict(CallError):
    """The idempotency key was used before, for another call.

    Attributes:
        fields: Paths of the fields that differ; None when the first arguments are no longer kept. Empty when all
            values are the same, and only which fields were left out differs.
    """

    code = "idempotency-conflict"
    field_names = (*CallError.field_names, "fields")
    fields: tuple[str, ...] | None = None

    def __init__(self, fields: tuple[str, ...] | None = None, *, invocation_id: str | None = None) -> None:
        what = "the arguments, which are no longer kept" if fields is None else ", ".join(fields)
        message = (
            f"this idempotency key belongs to another call; they differ in {what}: use a new key for a new request"
        )
        super().__init__(message, invocation_id=invocation_id)
        self.fields = fields


class ResultExpired(CallError):
    """The call ran before; its result has outlived its retention and it is not run again.

    Attributes:
        outcome: What had come of it, e.g. `completed` or `failed`.
    """

    code = "result-expired"
    field_names = (*CallError.field_names, "outcome")
    outcome: str = ""

    def __init__(self, outcome: str, *, invocation_id: str | None = None) -> None:
        message = f"known call, its result has expired; it had {outcome} and is not run again"
        super().__init__(message, invocation_id=invocation_id)
        self.outcome = outcome


class Overloaded(CallError):
    """A bound is reached: nothing was taken in, try again after `retry_after` seconds."""

    code = "overloaded"
    field_names = (*CallError.field_names, "retry_after", "what")
    retry_after: float = 1.0
    what: str = ""

    def __init__(
        self, retry_after: float, what: str = "the backlog of this key is full", *, invocation_id: str | None = None
    ) -> None:
        super().__init__(f"{what}: try again in {retry_after:g} s", invocation_id=invocation_id)
        self.retry_after = retry_after
        self.what = what


class Draining(CallError):
    """The worker is stopping: nothing was taken in, try again after `retry_after` seconds."""

    code = "draining"
    field_names = (*CallError.field_names, "retry_after")
    retry_after: float = 1.0

    def __init__(self, retry_after: float, *, invocation_id: str | None = None) -> None:
        message = f"this worker is stopping and takes in nothing new: try again in {retry_after:g} s"
        super().__init__(message, invocation_id=invocation_id)
        self.retry_after = retry_after


class CallTimeout(CallError):
    """The caller's timeout passed; the invocation itself goes on."""

    code = "call-timeout"
    field_names = (*CallError.field_names, "timeout")
    timeout: float = 0.0

    def __init__(self, timeout: float, *, invocation_id: str | None = None) -> None:
        what = (
            "attach to it by its id"
            if invocation_id
            else "it may have been taken in: repeat it with an idempotency key"
        )
        super().__init__(f"no answer within {timeout:g} s; the call goes on, {what}", invocation_id=invocation_id)
        self.timeout = timeout


class InvocationFailed(CallError):
    """The handler ended with a `TerminalError`, whose message, code and details these are."""

    code = "invocation-failed"
    field_names = (*CallError.field_names, "code", "details")
    details: Any = None

    def __init__(
        self, message: str, code: str = TerminalError.code, details: Any = None, *, invocation_id: str | None = None
    ) -> None:
        super().__init__(message, invocation_id=invocation_id)
        self.code = code
        self.details = details


class InvocationCancelled(CallError):
    """The invocation was cancelled or killed before it had a result."""

    code = "invocation-cancelled"

    def __init__(self, *, invocation_id: str | None = None) -> None:
        super().__init__("the invocation was cancelled before it had a result", invocation_id=invocation_id)


class InvocationPaused(CallError):
    """The invocation waits for a person.

    Attributes:
        reason: Why it is parked, e.g. `retries_spent` or `diverged`.
        owner: Who is in charge, as the object type declares it.
        detail: What happened last.
    """

    code = "invocation-paused"
    field_names = (*CallError.field_names, "reason", "owner", "detail")
    reason: str = ""
    owner: str = ""
    detail: str = ""

    def __init__(self, reason: str, owner: str, detail: str = "", *, invocation_id: str | None = None) -> None:
        told = f": {detail}" if detail else ""
        super().__init__(f"paused ({reason}){told}; {owner} has to resume it", invocation_id=invocation_id)
        self.reason = reason
        self.owner = owner
        self.detail = detail


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
