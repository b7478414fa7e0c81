"""Decisions over HTTP: people approve or decline what they have seen, in exactly the version that they have seen."""

from typing import assert_never

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keylane import AlreadyDecided, Decided, DecisionVerdict, Expired, NotPermitted, SupersededBy, UnknownTarget

from .callers import caller_of
from .problems import Problem
from .refunds import Reason, client_of, found


class Decision(Reason):
    """The body of a decision: the id of the proposal that was shown, and why."""

    proposal: str


async def approve(request: Request) -> Response:
    """Approve a refund."""
    decision = await _asked(request)
    by = caller_of(request).name
    return _told(await client_of(request).approve(decision.proposal, by=by, reason=decision.reason))


async def decline(request: Request) -> Response:
    """Decline a refund."""
    decision = await _asked(request)
    by = caller_of(request).name
    return _told(await client_of(request).decline(decision.proposal, by=by, reason=decision.reason))


async def _asked(request: Request) -> Decision:
    """Read a decision, which has to be about a proposal of the order that the path names."""
    decision = Decision.model_validate_json(await request.body())
    refund = await found(request)
    if not decision.proposal.startswith(f"Order/{refund.terms.order}#"):
        raise Problem(404, "approval-unknown", f"{decision.proposal} is not about order {refund.terms.order}")
    return decision


def _told(verdict: DecisionVerdict) -> Response:
    match verdict:
        case Decided():
            return JSONResponse({"standing": verdict.standing, "at": verdict.at.isoformat()})
        case AlreadyDecided():
            told = f"decided by {verdict.by} at {verdict.at.isoformat()}"
            raise Problem(409, "already-decided", told, by=verdict.by, at=verdict.at)
        case Expired():
            raise Problem(410, "approval-expired", "the time to decide has passed")
        case SupersededBy():
            raise Problem(409, "superseded", f"there is a version {verdict.version}", version=verdict.version)
        case NotPermitted():
            raise Problem(403, "not-permitted", verdict.why)
        case UnknownTarget():
            raise Problem(404, "approval-unknown", "nothing is known of this proposal")
        case _:
            assert_never(verdict)
