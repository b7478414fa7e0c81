"""How a client ends invocations: with their handlers' knowledge, without it, or with an undo given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal.key import parse_id
from ..journal.requests import RequestKind
from .handle import Timeout, seconds_of
from .open_client import OpenClient
from .remote import Patience

if TYPE_CHECKING:
    from ..journal.cancel_report import CancelReport


class EndingClient(OpenClient):
    """The part of `Client` that ends invocations."""

    async def cancel(
        self,
        invocation_id: str,
        *,
        cascade_to_sends: bool = False,
        reason: str = "",
        by: str = "",
        timeout: Timeout = None,
    ) -> CancelReport:
        """Cancel an invocation, and wait until it has ended.

        One that has not begun ends at once. Another one is told at its next durable point, where `Cancelled` is raised
        in its handler; a step that runs is let finish. What it calls is cancelled too. Once the request is durable, the
        cancel is processed whatever dies meanwhile.

        Args:
            invocation_id: The invocation.
            cascade_to_sends: Whether what it has sent is cancelled too, and what that has sent.
            reason: Why, for the record.
            by: Who decides it, for the record.
            timeout: How long to wait; the cancel goes on afterwards.

        Returns:
            What became of it: a handler that returns before it is told has completed, and the report says so.

        Raises:
            InvalidKey: The text is no invocation id.
            CallError: Nothing is known of it.
            CallTimeout: The time passed.
            StoreError: The store was away for too long, or refused.
        """
        invocation, patience = parse_id(invocation_id), Patience(seconds_of(timeout))
        return await self._cancels.end(
            RequestKind.CANCEL, invocation, by, reason, patience, cascades=cascade_to_sends
        )  # fmt: skip

    async def kill(self, invocation_id: str, *, reason: str, by: str, timeout: Timeout = None) -> CancelReport:
        """End an invocation at once: its handler is told nothing, cleans nothing up and undoes nothing.

        Its lane is free from then on. What it has called is cancelled; its callers get `InvocationCancelled`.

        Args:
            invocation_id: The invocation.
            reason: Why, for the record.
            by: Who decides it, for the record.
            timeout: How long to wait; it is killed afterwards nevertheless.

        Raises:
            InvalidKey: The text is no invocation id.
            InvalidInput: `by` or `reason` is empty.
            CallError: Nothing is known of it.
            CallTimeout: The time passed.
            StoreError: The store was away for too long, or refused.
        """
        invocation, patience = parse_id(invocation_id), Patience(seconds_of(timeout))
        return await self._cancels.end(RequestKind.KILL, invocation, by, reason, patience, cascades=False)

    async def skip_compensation(self, invocation_id: str, *, reason: str, by: str, timeout: Timeout = None) -> None:
        """Give up the undo that has failed; those before it are undone still, and the end says that one was not.

        To try it again, `resume` the invocation.

        Args:
            invocation_id: The invocation, which is paused with the reason `compensation_failed`.
            reason: Why, for the record.
            by: Who decides it, for the record.
            timeout: How long to wait for the owner's verdict.

        Raises:
            InvalidInput: `by` or `reason` is empty.
            CallError: No undo of it has failed, or nothing is known of it.
            CallTimeout: The time passed; the request stays where it is.
        """
        invocation, patience = parse_id(invocation_id), Patience(seconds_of(timeout))
        await self._cancels.order(
            RequestKind.SKIP_COMPENSATION, invocation, by, reason, patience, cascades=False
        )  # fmt: skip
