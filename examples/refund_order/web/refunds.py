"""Refunds over HTTP: each route is one call of the client."""

from typing import Final
from urllib.parse import quote

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from keylane import CallError, CallTimeout, Client

from ..models import OPEN, AmendRequest, Amount, Model, Refund, RefundRequest
from ..order import amend, history, propose, status
from .callers import Caller, caller_of, key_of
from .problems import Problem

#: How long a request is kept waiting before it gets an id instead of an answer.
ANSWER_SECONDS: Final = 10.0


class Amended(Model):
    """The body of a change: the new amount."""

    amount: Amount


class Reason(Model):
    """The body of what may have a reason."""

    reason: str = Field(default="", max_length=500)


def client_of(request: Request) -> Client:
    return request.app.state.client


async def get_order(request: Request) -> Response:
    """Say what is refunded and what is open."""
    told = await client_of(request).call(status, key_of(request), timeout=ANSWER_SECONDS)
    return Response(told.model_dump_json(), media_type="application/json")


async def get_refunds(request: Request) -> Response:
    """Tell all refunds of an order."""
    told = await client_of(request).call(history, key_of(request), timeout=ANSWER_SECONDS)
    return JSONResponse([each.model_dump(mode="json") for each in told])


async def get_refund(request: Request) -> Response:
    """Tell one refund."""
    return _answer(await found(request))


async def post_refund(request: Request) -> Response:
    """Begin a refund: 202, with the place where it can be looked at. The header `Idempotency-Key` makes it one."""
    key, client = key_of(request), client_of(request)
    asked = RefundRequest.model_validate_json(await request.body())
    name = request.headers.get("Idempotency-Key")
    try:
        refund = await client.call(propose, key, asked, idempotency_key=name, timeout=ANSWER_SECONDS)
    except CallTimeout as error:
        if error.invocation_id is None:
            raise
        place = f"/invocations/{error.invocation_id}"
        return JSONResponse({"invocation": error.invocation_id}, 202, headers={"Location": place})
    # A header takes no more than ASCII, and by now the refund has begun: whoever got an error would ask once more.
    place = f"/orders/{quote(key.key, safe='')}/refunds/{refund.number}"
    return Response(refund.model_dump_json(), 202, headers={"Location": place}, media_type="application/json")


async def patch_refund(request: Request) -> Response:
    """Change the amount of a refund that waits for approval."""
    amount = Amended.model_validate_json(await request.body()).amount
    asked = AmendRequest(number=request.path_params["number"], amount=amount)
    return _answer(await client_of(request).call(amend, key_of(request), asked, timeout=ANSWER_SECONDS))


async def cancel_refund(request: Request) -> Response:
    """Ask for the end of a refund, and tell what that has stopped, what it could not, and what nobody knows."""
    caller, refund = caller_of(request), await found(request)
    reason = Reason.model_validate_json(await request.body() or b"{}").reason
    client = client_of(request)
    try:
        report = await client.cancel(refund.invocation, by=caller.name, reason=reason, timeout=ANSWER_SECONDS)
    except CallError as error:
        if type(error) is not CallError:
            raise
        # It was asked for a moment ago and is on its way into its lane, or it has ended long ago.
        raise Problem(409, "not-to-be-cancelled", str(error)) from error
    told = {name: getattr(report, name) for name in ("outcome", "stopped", "committed", "unknown", "left_running")}
    return JSONResponse(told)


async def get_invocation(request: Request) -> Response:
    """Tell what became of a request that had got an id instead of an answer."""
    caller, name = caller_of(request), request.path_params["invocation"]
    client = client_of(request)
    described = await client.describe(name)
    if described.key is None or not _is_of(caller, described.key):
        raise Problem(404, "not-found", f"nothing is known of {name}")
    try:
        refund = await client.attach(name, type=Refund).result(timeout=0)
    except CallTimeout:
        return JSONResponse({"invocation": name, "status": described.status}, 202)
    return _answer(refund)


async def found(request: Request) -> Refund:
    """Return the refund that a path names.

    Raises:
        Problem: There is none.
    """
    key, number = key_of(request), request.path_params["number"]
    for refund in await client_of(request).call(history, key, timeout=ANSWER_SECONDS):
        if refund.number == number:
            return refund
    raise Problem(404, "refund-unknown", f"order {key.key} has no refund {number}")


def _is_of(caller: Caller, key: str) -> bool:
    return key.startswith(f"{caller.tenant}/")


def _answer(refund: Refund) -> Response:
    status_code = 202 if refund.state in OPEN else 200
    return Response(refund.model_dump_json(), status_code, media_type="application/json")
