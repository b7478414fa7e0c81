"""Asks the user's own function who may approve what: at each decision, and once more before an approval is used."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from .own_context import in_own_context
from .reads import is_from_outside

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..objects.approvals import Proposal
    from ..objects.virtual_object import VirtualObject
    from .slots import Slots

logger = logging.getLogger("keylane.effects")

#: Questions that are put at once.
AUTHORITY_SLOTS: Final = 32
#: How long an answer may take: a decision waits for it, and so does whatever comes for its object behind that.
AUTHORITY_SECONDS: Final = 5.0


class Question:
    """Whether somebody may approve a proposal.

    Args:
        virtual_object: The object type.
        tenant: Whose object it is; where there is much to ask, tenants take turns.
        approver: Who.
        proposal: What.
        done: Told why not, None if they may.
    """

    __slots__ = ("approver", "done", "proposal", "tenant", "virtual_object")

    def __init__(
        self,
        virtual_object: VirtualObject,
        tenant: str,
        approver: str,
        proposal: Proposal,
        done: Callable[[str | None], None],
    ) -> None:
        self.virtual_object = virtual_object
        self.tenant = tenant
        self.approver = approver
        self.proposal = proposal
        self.done = done


class NotSaid(str):
    """Why nobody can say whether somebody may approve: for a decision it counts as a no, for what is approved not."""

    __slots__ = ()


class Authority:
    """Asks for one worker who may approve; what can't be answered is answered with no."""

    def __init__(self) -> None:
        self.slots: Slots[Question]

    def ask(self, question: Question) -> None:
        """Put a question; its answer comes later, or at once where the type asks nobody."""
        if question.virtual_object.may_approve is None:
            question.done(None)
        else:
            self.slots.give(question)

    async def answer(self, virtual_object: VirtualObject, tenant: str, approver: str, proposal: Proposal) -> str | None:
        """Return why somebody may not approve a proposal, None if they may."""
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.ask(Question(virtual_object, tenant, approver, proposal, partial(_tell, future)))
        return await future

    async def turn(self, question: Question) -> None:
        """Answer one question."""
        question.done(await self._why_not(question))

    @staticmethod
    async def _why_not(question: Question) -> str | None:
        function, approver = question.virtual_object.may_approve, question.approver
        assert function is not None
        may: object = False
        try:
            with anyio.move_on_after(AUTHORITY_SECONDS) as limit:
                may = await in_own_context(function(approver, question.proposal))
        except BaseException as error:
            if is_from_outside(error):
                raise
            logger.exception("may_approve of %s failed for %s", question.virtual_object.name, question.proposal.id)
            return NotSaid(
                f"whether {approver} may approve it can't be said: may_approve failed with {type(error).__name__}"
            )
        if limit.cancelled_caught:
            return NotSaid(
                f"whether {approver} may approve it can't be said: may_approve took over {AUTHORITY_SECONDS:g} s"
            )
        return None if may is True else f"{approver} may not approve this"


def tenant_of(question: Question) -> str:
    """Return whose question it is."""
    return question.tenant


def _tell(future: asyncio.Future[str | None], answer: str | None) -> None:
    if not future.done():
        future.set_result(answer)
