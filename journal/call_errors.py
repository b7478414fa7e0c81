"""Errors that a caller gets: the call was refused, or did not end with a result. `errors` draws the whole tree."""

from typing import Any, Final

from .root_error import KeylaneError

_SHOWN_CHARACTERS: Final = 80


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


class MigrationFailed(CallError):
    """An object's state can't be brought to the version that this code declares; nothing of it was changed.

    Attributes:
        from_version: The version that the state was written by.
        to_version: The version that this code declares.
    """

    code = "migration-failed"
    field_names = (*CallError.field_names, "from_version", "to_version")
    from_version: int = 1
    to_version: int = 1

    def __init__(self, why: str, from_version: int, to_version: int, *, invocation_id: str | None = None) -> None:
        message = f"the state of version {from_version} can't be brought to version {to_version}: {why}"
        super().__init__(message, invocation_id=invocation_id)
        self.from_version = from_version
        self.to_version = to_version


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
    """A value is larger than it may be, or there is more of something than there may be.

    Attributes:
        value: Which value, e.g. `request` or `state proposal`.
        size_bytes: How large it is when packed; for what is counted, how many there are.
        limit: How large it may be, in bytes; for what is counted, how many there may be.
    """

    code = "payload-too-large"
    field_names = (*CallError.field_names, "value", "size_bytes", "limit")
    value: str = ""
    size_bytes: int = 0
    limit: int = 0

    def __init__(
        self,
        value: str,
        size_bytes: int,
        limit: int,
        *,
        unit: str = "bytes",
        remedy: str = "keep the data elsewhere and pass a reference, or raise KEYLANE_PAYLOAD_LIMIT_BYTES",
        invocation_id: str | None = None,
    ) -> None:
        message = f"{value} has {size_bytes:,} {unit}, the limit is {limit:,}: {remedy}"
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
        what = "the arguments, and the first ones are no longer kept"
        if fields is not None:
            what = ", ".join(fields) or "which fields were left out"
        message = f"this idempotency key belongs to another call; they differ in {what}; a new request needs a new key"
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


class InvocationRefused(CallError):
    """The handler's validator refused the call: nothing of it was queued or recorded.

    Attributes:
        reason: What the validator said.
        reason_code: Its stable word: the code of the `TerminalError` that it raised, else `invalid`; `validator-failed`
            and `validator-timeout` where the validator itself is at fault.
        details: Plain data, from the `TerminalError`.
    """

    code = "invocation-refused"
    field_names = (*CallError.field_names, "reason", "reason_code", "details")
    reason: str = ""
    reason_code: str = ""
    details: Any = None

    def __init__(
        self, handler: str, reason: str, reason_code: str, details: Any = None, *, invocation_id: str | None = None
    ) -> None:
        super().__init__(f"{handler} refuses the call: {reason}", invocation_id=invocation_id)
        self.reason = reason
        self.reason_code = reason_code
        self.details = details


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


class MessageLost(CallError):
    """A message to another object was lost with what its store had confirmed: whether the call ran is not known."""

    code = "message-lost"

    def __init__(self, *, invocation_id: str | None = None) -> None:
        message = "the call was lost on its way, or its object has lost it: whether anything of it ran is not known"
        super().__init__(message, invocation_id=invocation_id)


class CallTimeout(CallError):
    """The caller's timeout passed; the invocation itself goes on.

    Attributes:
        timeout: The timeout, in seconds.
        why: What the call waits for, as far as that could be read: who holds its lane, since when and for what.
    """

    code = "call-timeout"
    field_names = (*CallError.field_names, "timeout", "why")
    timeout: float = 0.0
    why: str = ""

    def __init__(self, timeout: float, why: str = "", *, invocation_id: str | None = None) -> None:
        what = "the call goes on, attach to it by its id"
        if invocation_id is None:
            what = "the call may have been taken in: repeat it with an idempotency key"
        reason = f": {why}" if why else ""
        super().__init__(f"no answer within {timeout:g} s{reason}; {what}", invocation_id=invocation_id)
        self.timeout = timeout
        self.why = why


class InvocationFailed(CallError):
    """The handler ended with a `TerminalError`, whose message, code and details these are."""

    code = "invocation-failed"
    field_names = (*CallError.field_names, "code", "details")
    details: Any = None

    def __init__(
        self, message: str, code: str = "terminal", details: Any = None, *, invocation_id: str | None = None
    ) -> None:
        super().__init__(message, invocation_id=invocation_id)
        self.code = code
        self.details = details


class InvocationCancelled(CallError):
    """The invocation was cancelled or killed before it had a result.

    Attributes:
        how: `cancelled` or `killed`; a killed one had no chance to clean up.
        by: Who asked for it; empty where that was not said.
        reason: Why, likewise.
        compensation_failed: Whether something that was to be undone was not.
    """

    code = "invocation-cancelled"
    field_names = (*CallError.field_names, "how", "by", "reason", "compensation_failed")
    how: str = "cancelled"
    by: str = ""
    reason: str = ""
    compensation_failed: bool = False

    def __init__(
        self,
        how: str = "cancelled",
        by: str = "",
        reason: str = "",
        *,
        compensation_failed: bool = False,
        invocation_id: str | None = None,
    ) -> None:
        whom = f" by {by}" if by else ""
        why = f": {reason}" if reason else ""
        left = "; something that was to be undone was not" if compensation_failed else ""
        super().__init__(
            f"the invocation was {how}{whom} before it had a result{why}{left}", invocation_id=invocation_id
        )
        self.how = how
        self.by = by
        self.reason = reason
        self.compensation_failed = compensation_failed


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
