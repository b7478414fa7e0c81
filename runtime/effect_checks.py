"""What is looked at before an effect is intended: the approval that it uses up, and the facts that it depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ..journal import codec
from ..journal.errors import PayloadTooLarge
from ..journal.utf8 import LONE_SURROGATE, utf8_bytes
from ..objects.approvals import Approval
from ..objects.receivers import Effect
from .own_context import in_own_context

if TYPE_CHECKING:
    from ..journal.batch import Operation
    from .lane import Lane


SHOWN_CHARACTERS: Final = 40


class ApprovalCheck(Protocol):
    """Decides whether an approval allows an effect, and uses it up."""

    async def check(self, lane: Lane, approval: str) -> None:
        """Look before an intent whether the time of an approval has passed, and whether those who gave it still may.

        Args:
            lane: The lane of the object, whose docket is in memory.
            approval: Action and version of the proposal, as `refund.3`.

        Raises:
            ApprovalUnfit: It has passed, or they may not.
            RetryableError: Whether they may can't be said now.
        """
        ...

    def consume(
        self, lane: Lane, approval: Approval, effect: Effect[Any, Any], operation: str, params: bytes
    ) -> list[Operation]:
        """Return what uses an approval up, in the commit of the intent.

        Args:
            lane: The lane of the object, whose docket is in memory.
            approval: The approval, as the handler has it.
            effect: The effect.
            operation: The operation id.
            params: The packed parameters.

        Raises:
            ApprovalUnfit: It does not allow this; nothing is written.
        """
        ...


def check_asked(call: str, effect: object, approval: object) -> None:
    """Refuse what is no effect, and what is no approval, before anything of it is looked at.

    Args:
        call: What the handler called, for the message.
        effect: What it wants to have done.
        approval: What is to allow it.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(effect, Effect):
        name = getattr(effect, "__qualname__", type(effect).__name__)
        raise TypeError(f"ctx.{call} takes an effect, which {name} is not: declare it with @receiver.effect(…)")
    if approval is not None and not isinstance(approval, Approval):
        kind = type(approval).__name__
        raise TypeError(f"approval= of ctx.{call} is the Approval that ctx.approval returned, not {kind}")


def check_operation(operation_id: object, limit: int) -> None:
    """Refuse what can't name an operation.

    Args:
        operation_id: What a handler wrote.
        limit: How many bytes it may have.

    Raises:
        TypeError: It is no text, is empty, or has a lone surrogate, which no receiver could be told.
        PayloadTooLarge: It is longer.
    """
    if type(operation_id) is not str or not operation_id:
        raise TypeError(f"operation_id is text that names the business operation, not {operation_id!r}")
    size = utf8_bytes(operation_id)
    if size is None:
        raise TypeError(f"operation_id {operation_id[:SHOWN_CHARACTERS]!r} {LONE_SURROGATE}; replace it")
    if size > limit:
        raise PayloadTooLarge("operation_id", size, limit, remedy="shorten it, and put data into the parameters")


async def checked(
    lane: Lane, effect: Effect[Any, Any], params: bytes, approval: str, approvals: ApprovalCheck | None
) -> bytes | None:
    """Look at the facts that an effect depends on, and return them, packed.

    Raises:
        TerminalError: They refuse the effect.
        Exception: They can't be looked at now.
    """
    if approval and approvals is not None:
        await approvals.check(lane, approval)
    if effect.recheck is None:
        return None
    facts = await in_own_context(effect.recheck(effect.params.load(params)))
    try:
        return codec.pack(facts)
    except codec.NotEncodable:
        return codec.pack(repr(facts))
