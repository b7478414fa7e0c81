"""What an exclusive handler may put before people: proposals, and the wait for what they decide."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from .approvals import Approval, Proposal


class Approving(ABC):
    """Proposals and approvals of an `async def` handler."""

    __slots__ = ()

    @abstractmethod
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
        """Propose something that people decide on (`client.approve`, `keylane approvals approve`).

        ```python
        proposal = await ctx.propose(action="refund", amount=request.amount, recipient=placed.customer,
                                     expires_in=timedelta(hours=48))
        ```

        The decision is bound to the action, the version and exactly these fields: an effect that it is to allow has to
        have each of them with the same value. Versions count per object and action. A newer proposal takes the place
        of older ones of its action that nothing has come of yet, approved ones included; who waits for those is told.

        Args:
            action: What is to be done: the name of the effect.
            expires_in: Seconds, or a timedelta, by the partition's time: for so long it can be approved, and its
                approval used.
            quorum: How many people have to approve; one who declines is enough to decline.
            notes: What people should know beside it. The decision is not bound to these.
            concurrent: Whether it stands beside other proposals of its action, and takes the place of none.
            fields: What the decision is about, one at least. Values come back as plain data: dicts where models were
                given.

        Raises:
            InvalidInput: The action is no name, the quorum no number from 1 to 32, there are no fields, or a value
                can't be written down or is a NaN.
            PayloadTooLarge: All of it has more than 64 KiB, or the object has 200 open proposals.
        """

    @abstractmethod
    async def approval(
        self, proposal: Proposal, /, *, release_lane: bool = False, expects: Iterable[str] = ()
    ) -> Approval:
        """Wait until people have decided on a proposal of this object; once they have, this returns at once.

        Any invocation of the object may wait, as often as it likes. The lane stays held meanwhile, unless it is
        released; the wait costs no concurrency and outlives this process. The approval allows one effect, once.

        Args:
            proposal: The proposal, as `ctx.propose` returned it; it may have been kept in the state since.
            release_lane: Whether others may change this object meanwhile; see `ObjectContext.release_lane`.
            expects: Names of state values that nobody else may have changed when it returns, with `release_lane=True`.

        Raises:
            ApprovalDeclined: Somebody who may decide has said no, or has taken the approval back.
            ApprovalExpired: Its time has passed.
            Superseded: A newer proposal has taken its place; or others have changed what was expected to stay.
            ApprovalUnfit: It is no proposal of this object, or was altered.
        """


class BlockingApproving(ABC):
    """Proposals and approvals of a plain `def` handler; a wait ends its thread, and it is replayed afterwards."""

    __slots__ = ()

    @abstractmethod
    def propose(
        self,
        *,
        action: str,
        expires_in: timedelta | float | None = None,
        quorum: int = 1,
        notes: Mapping[str, Any] | None = None,
        concurrent: bool = False,
        **fields: Any,
    ) -> Proposal:
        """Propose something that people decide on; see `ObjectContext.propose`."""

    @abstractmethod
    def approval(self, proposal: Proposal, /, *, release_lane: bool = False, expects: Iterable[str] = ()) -> Approval:
        """Wait until people have decided on a proposal; see `ObjectContext.approval`."""
