"""Errors that end an invocation as failed, and are never retried. `errors` draws the whole tree."""

from typing import Any

from .root_error import KeylaneError


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
    """An effect was not done and will not be: its receiver said so, or a person who has settled it by hand.

    Attributes:
        operation_id: The operation id.
        reason: What the receiver said, or the evidence that the person gave.
        by: Who settled it; empty where the receiver said so.
    """

    code = "effect-rejected"
    field_names = (*TerminalError.field_names, "operation_id", "reason", "by")
    operation_id: str = ""
    reason: str = ""
    by: str = ""

    def __init__(self, operation_id: str, reason: str, by: str = "") -> None:
        said = f"{operation_id} was not done, says {by}" if by else f"the receiver rejected {operation_id}"
        super().__init__(f"{said}: {reason}")
        self.operation_id = operation_id
        self.reason = reason
        self.by = by


class EffectConflict(TerminalError):
    """An operation id was used before for something else: another effect, or other parameters.

    Attributes:
        operation_id: The operation id.
        fields: The parameters that differ; empty where it is another effect.
        holder: The object that has the id, where the receiver sees ids as they are and another one has it.
        effect: The other effect, as `payments.refund`; empty where it is not another one that has the id.
    """

    code = "effect-conflict"
    field_names = (*TerminalError.field_names, "operation_id", "fields", "holder", "effect")
    operation_id: str = ""
    fields: tuple[str, ...] = ()
    holder: str = ""
    effect: str = ""

    def __init__(self, operation_id: str, fields: tuple[str, ...] = (), holder: str = "", effect: str = "") -> None:
        what = f"with other {', '.join(fields) or 'parameters'}"
        what = f"by {holder}" if holder else f"as {effect}, which is another effect" if effect else what
        remedy = "an operation id names one business operation: give another operation another id"
        super().__init__(f"operation {operation_id!r} was asked for {what}; {remedy}")
        self.operation_id = operation_id
        self.fields = fields
        self.holder = holder
        self.effect = effect


class ApprovalDeclined(TerminalError):
    """Who decides on a proposal has said no.

    Attributes:
        proposal_id: The proposal.
        by: Who said so.
        reason: Why.
    """

    code = "approval-declined"
    field_names = (*TerminalError.field_names, "proposal_id", "by", "reason")
    proposal_id: str = ""
    by: str = ""
    reason: str = ""

    def __init__(self, proposal_id: str, by: str, reason: str) -> None:
        super().__init__(f"{by} declined {proposal_id}: {reason}")
        self.proposal_id = proposal_id
        self.by = by
        self.reason = reason


class ApprovalExpired(TerminalError):
    """Nobody decided on a proposal in time, or its approval was not used in time.

    Attributes:
        proposal_id: The proposal.
    """

    code = "approval-expired"
    field_names = (*TerminalError.field_names, "proposal_id")
    proposal_id: str = ""

    def __init__(self, proposal_id: str) -> None:
        super().__init__(f"the time of {proposal_id} has passed: propose it anew")
        self.proposal_id = proposal_id


class ApprovalUnfit(TerminalError):
    """An approval does not allow the effect that it was given to: nothing was sent.

    Attributes:
        proposal_id: The proposal.
        why: What does not fit.
        fields: The fields of the proposal that the effect has otherwise.
    """

    code = "approval-unfit"
    field_names = (*TerminalError.field_names, "proposal_id", "why", "fields")
    proposal_id: str = ""
    why: str = ""
    fields: tuple[str, ...] = ()

    def __init__(self, proposal_id: str, why: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(f"{proposal_id} does not allow this: {why}")
        self.proposal_id = proposal_id
        self.why = why
        self.fields = fields


class Rejected(TerminalError):
    """Raise it in the function of an effect where the receiver said that it did not and will not do it.

    It speaks of the operation id, whichever attempt gets the answer. What is said of one request alone, such as that
    the caller is not authorised or asks too often, may be said to a repeat of what was done: let that leave as it is.

    Args:
        reason: What it said.
    """

    code = "rejected"
    field_names = (*TerminalError.field_names, "reason")
    reason: str = ""

    def __init__(self, reason: str) -> None:
        super().__init__(f"rejected: {reason}")
        self.reason = reason


class Superseded(TerminalError):
    """What the handler had expected no longer holds when it got its lane back.

    Attributes:
        by: What has come in between.
        names: The state values that others have changed.
    """

    code = "superseded"
    field_names = (*TerminalError.field_names, "by", "names")
    by: str = ""
    names: tuple[str, ...] = ()

    def __init__(self, by: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(f"superseded by {by}: read the state again and decide anew", details={"names": list(names)})
        self.by = by
        self.names = names


class Deadlock(TerminalError):
    """A call would have closed a circle of invocations that wait for each other."""

    code = "deadlock"
    field_names = (*TerminalError.field_names, "path")
    path: tuple[str, ...] = ()

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"this call would wait for itself: {' → '.join(path)}; use send, or release the lane first")
        self.path = path


class WaitTimeout(TerminalError):
    """What a handler waited for did not come in time.

    Attributes:
        what: What it waited for, e.g. `signal 'paid'`.
        waited: For how long, e.g. `30 s`.
    """

    code = "wait-timeout"
    field_names = (*TerminalError.field_names, "what", "waited")
    what: str = ""
    waited: str = ""

    def __init__(self, what: str, waited: str) -> None:
        super().__init__(f"{what} did not come within {waited}")
        self.what = what
        self.waited = waited
