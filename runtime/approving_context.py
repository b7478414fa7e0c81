"""The part of an exclusive handler's context that proposes, and waits for decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..objects.approvals import Proposal
from ..objects.proposing import draft
from .orders import milliseconds
from .waiting_context import WaitingContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from ..objects.approvals import Approval


class ApprovingContext(WaitingContext):
    """What `ExclusiveContext` does for proposals."""

    __slots__ = ()

    async def propose(
        self,
        *,
        action: str,
        expires_in: timedelta | float | None = None,
        quorum: int = 1,
        notes: Mapping[str, Any] | None = None,
        concurrent: bool = False,
        **fields: Any,
    ) -> Proposal:
        """Propose something, or return what the recorded run has proposed."""
        self._check_command("propose")
        expires_in_ms = None if expires_in is None else milliseconds(expires_in, "expires_in")
        beside: Mapping[str, Any] = {} if notes is None else notes
        proposed = draft(
            action, fields, beside, expires_in_ms=expires_in_ms, quorum=quorum, concurrent=concurrent
        )  # fmt: skip
        proposing = self._messages.propose(self.own, self._lane, self._invocation, proposed)
        return await self.unbroken("propose", proposing)

    async def approval(
        self, proposal: Proposal, /, *, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Approval:
        """Wait for the decision on a proposal, or return the one that the recorded run was told."""
        self._check_command("approval")
        if not isinstance(proposal, Proposal):  # pyright: ignore[reportUnnecessaryIsInstance] - what a user gives is not checked
            raise TypeError(f"ctx.approval waits for the decision on a Proposal, not on {type(proposal).__name__}")
        if self.own.releases(expects, release_lane=release_lane):
            async with self.own.release_lane(expects=expects):
                return await self.approval(proposal)
        awaiting = self._messages.approval(self.own, self._lane, self._invocation, proposal)
        return await self.unbroken("approval", awaiting)
