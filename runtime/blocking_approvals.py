"""What `BlockingClient` says to proposals: as `ApprovalClient`, without await."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ..journal.key import Key
    from ..objects.approvals import ProposalStatus
    from ..objects.verdicts import DecisionVerdict
    from ..objects.virtual_object import VirtualObject
    from .approval_client import ProposalRef
    from .client import Client
    from .handle import Timeout

Result = TypeVar("Result")


class _How(NamedTuple):
    """What is said beside a decision."""

    by: str
    reason: str
    on_behalf_of: str | None
    message_id: str | None
    timeout: Timeout


class BlockingApprovals:
    """The part of `BlockingClient` that decides on proposals."""

    @abstractmethod
    def _run(self, ask: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result: ...

    def approve(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str = "",
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Approve a proposal; as `Client.approve`."""
        how = _How(by, reason, on_behalf_of, message_id, timeout)
        return self._run(lambda client: client.approve(proposal, **how._asdict()))

    def decline(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str,
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Decline a proposal; as `Client.decline`."""
        how = _How(by, reason, on_behalf_of, message_id, timeout)
        return self._run(lambda client: client.decline(proposal, **how._asdict()))

    def revoke(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        reason: str,
        on_behalf_of: str | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Take an approval back that no effect has used yet; as `Client.revoke`."""
        how = _How(by, reason, on_behalf_of, message_id, timeout)
        return self._run(lambda client: client.revoke(proposal, **how._asdict()))

    def delegate(
        self,
        proposal: ProposalRef,
        /,
        *,
        by: str,
        to: str,
        reason: str = "",
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> DecisionVerdict:
        """Let somebody else decide on one proposal in one's place; as `Client.delegate`."""
        return self._run(
            lambda client: client.delegate(
                proposal, by=by, to=to, reason=reason, message_id=message_id, timeout=timeout
            )
        )

    def approvals(
        self, object_type: VirtualObject | str | None = None, key: Key | str | None = None, /
    ) -> list[ProposalStatus]:
        """Return the proposals that wait for a decision, or all of one object; as `Client.approvals`."""
        return self._run(lambda client: client.approvals(object_type, key))

    def approval_status(self, proposal: ProposalRef, /) -> ProposalStatus | None:
        """Return where a proposal stands; as `Client.approval_status`."""
        return self._run(lambda client: client.approval_status(proposal))
