"""How a handler is told that it is cancelled: once, in place of a command or of the end of a wait, in each replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..journal import operations
from ..journal.cancel_order import CancelOrder, cancel_id
from ..journal.command_records import CallCompleted, CallStarted, MessageSent
from ..journal.errors import Cancelled
from ..journal.outcomes import Stopped
from ..journal.requests import Request, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..journal.batch import Operation
    from .invocation import Invocation
    from .lane import Lane


def is_due(invocation: Invocation) -> bool:
    """Return whether its handler has to be told that it is cancelled; one that is through is told nothing any more."""
    standing = invocation.standing
    if standing is None:
        return False
    extras = standing.extras
    return extras.cancel is not None and not extras.is_cancel_delivered and extras.compensation is None


def was_told(invocation: Invocation) -> bool:
    """Return whether its handler was told that it is cancelled."""
    return invocation.standing is not None and invocation.standing.extras.is_cancel_delivered


def told(invocation: Invocation) -> Cancelled:
    """Return what is raised in the handler."""
    cancel = None if invocation.standing is None else invocation.standing.extras.cancel
    return Cancelled() if cancel is None else Cancelled(cancel.by, cancel.reason)


def stopped(invocation: Invocation, *, compensation_failed: bool = False) -> Stopped:
    """Return how an invocation ends that is cancelled."""
    cancel = told(invocation)
    return Stopped("cancelled", cancel.by, cancel.reason, compensation_failed=compensation_failed)


def is_only_cancelled(error: BaseException) -> bool:
    """Return whether a handler ended by what it was told, also where groups of tasks have wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(map(is_only_cancelled, group.exceptions))
    return isinstance(error, Cancelled)


def cascade(lane: Lane, invocation: Invocation) -> list[Operation]:
    """Return the messages that cancel what an invocation has called, and what it has sent where that was asked for."""
    cancel = None if invocation.standing is None else invocation.standing.extras.cancel
    if cancel is None:
        return []
    return cancels(lane, invocation, cancel.by, cancel.reason, cascades=cancel.cascades)


def cancels(lane: Lane, invocation: Invocation, by: str, reason: str, *, cascades: bool) -> list[Operation]:
    """Return the messages that cancel the children of an invocation.

    Each goes the way that the call or the message went before it, and so arrives behind it.

    Args:
        lane: The lane of the invocation.
        invocation: The parent.
        by: Who asks for it.
        reason: Why.
        cascades: Whether what it has sent is cancelled too.
    """
    return [_cancel(lane, child, by, reason, cascades=cascades) for child in _children(invocation, with_sent=cascades)]


def _children(invocation: Invocation, *, with_sent: bool) -> Iterable[CallStarted | MessageSent]:
    standing = invocation.standing
    answered = {each.index for each in invocation.records if isinstance(each, CallCompleted)}
    children: dict[bytes, CallStarted | MessageSent] = {}
    # A call that has left a moment ago is among the waits before it is among the durable records.
    for each in (*invocation.records, *(() if standing is None else standing.waits)):
        match each:
            case CallStarted() if each.index not in answered and each.is_of_a_handler:
                children[each.invocation] = each
            case MessageSent() if with_sent:
                children[each.invocation] = each
            case _:
                pass
    return children.values()


def _cancel(lane: Lane, child: CallStarted | MessageSent, by: str, reason: str, *, cascades: bool) -> Operation:
    order = CancelOrder(child.invocation, by, reason, cascades=cascades)
    request = Request(RequestKind.OBJECT_CANCEL, cancel_id(child.invocation), "", child.key, order.encode())
    return operations.post(lane.partition.space, f"{child.type_name}.{child.partition}", request.encode())
