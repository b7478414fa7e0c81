"""The way of a cancel as its client sees it: the owner's word, the end of the invocation, and the report of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import anyio

from ..journal.cancel_order import CancelOrder
from ..journal.cancel_report import CancelReport, read_findings
from ..journal.codec import unpack
from ..journal.errors import CallError, CallTimeout, ResultExpired
from ..journal.inbox import leaves_no_trace
from ..journal.key import InvocationId, new_invocation_id
from ..journal.outcomes import Refused, Succeeded
from ..journal.requests import Request, RequestKind
from .bounds import check_decision, check_wish
from .cancelling import OVER
from .explaining import explained
from .handle import refusal_of
from .remote import Patience, Remote

if TYPE_CHECKING:
    from ..journal.store import Store

#: How long what was called is waited for once its caller has ended: a report can name what is ending still.
BELOW_SECONDS: Final = 5.0
LOOK_FIRST_SECONDS: Final = 0.01
LOOK_CAP_SECONDS: Final = 0.25


class CancelClient:
    """Asks owners to end invocations, for everybody in this process.

    Args:
        store: The open store.
        remote: The way to owners.
        client: Id of this process as one that waits for answers.
    """

    def __init__(self, store: Store, remote: Remote, client: bytes) -> None:
        self._store = store
        self._remote = remote
        self._client = client

    async def end(
        self, kind: RequestKind, invocation: InvocationId, by: str, reason: str, patience: Patience, *, cascades: bool
    ) -> CancelReport:
        """Have an invocation cancelled or killed, and wait until it has ended.

        Raises:
            CallError: Nothing is known of it, or it can't be done.
            CallTimeout: The time passed; what was asked for is done nevertheless. It says what that waits for.
            StoreError: The store was away for too long, or refused.
        """
        try:
            verdict = await self.order(kind, invocation, by, reason, patience, cascades=cascades)
            space = self._store.space(invocation.type_name, invocation.partition)
            # Of one that ended long ago its records may tell still how.
            with contextlib.suppress(ResultExpired):
                await self._remote.end_of(space, invocation.raw, patience)
        except CallTimeout as error:
            late = CallTimeout(error.timeout, invocation_id=str(invocation))
            raise await explained(self._store, late) from None
        return await self._report(invocation, patience, was_over=verdict == OVER, cascades=cascades)

    async def order(
        self, kind: RequestKind, invocation: InvocationId, by: str, reason: str, patience: Patience, *, cascades: bool
    ) -> str:
        """Ask the owner of an invocation for something, and return its word once that is durable.

        Raises:
            TypeError: Who asks, or why, is no text.
            InvalidInput: It is no cancel, and does not say who asks, or why.
            CallError: Nothing is known of the invocation, or it can't be done.
            CallTimeout: The time passed; the request stays where it is.
            StoreError: The store was away for too long, or refused.
        """
        # Whoever gives up what they have asked for themselves need not say why.
        check = check_wish if kind is RequestKind.CANCEL else check_decision
        check(by, reason)
        space = self._store.space(invocation.type_name, invocation.partition)
        if await self._remote.persist(lambda: leaves_no_trace(self._store, space, invocation.raw), patience):
            raise CallError("nothing is known of it: no such call was made, or it ended too long ago",
                            invocation_id=str(invocation))  # fmt: skip
        order = CancelOrder(invocation.raw, by, reason, cascades=cascades)
        request = Request(kind, new_invocation_id(), "", "", order.encode(), client=self._client)
        ended = await self._remote.ask(space, request, patience)
        match ended:
            case Succeeded():
                return str(unpack(ended.result))
            case Refused():
                raise refusal_of(ended, str(invocation))
            case _:
                raise CallError("its owner gave an answer that is none to this", invocation_id=str(invocation))

    async def _report(
        self, invocation: InvocationId, patience: Patience, *, was_over: bool, cascades: bool
    ) -> CancelReport:
        """Read what became of it, once what is to end with it has, or that has taken too long."""
        below = patience.up_to(BELOW_SECONDS)
        pause = LOOK_FIRST_SECONDS
        while True:
            found = await read_findings(self._store, invocation, cascades=cascades)
            if not found.still_stopping or below.is_spent:
                return found.report(str(invocation), was_over=was_over)
            await anyio.sleep(pause)
            pause = min(2 * pause, LOOK_CAP_SECONDS)
