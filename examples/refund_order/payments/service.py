"""The routes of the payment service, and of the switches by which it is made to misbehave.

POST /refunds, with the header `Idempotency-Key`: the operation id, percent-encoded where it is not ASCII

    201  a receipt: the money moved now
    200  a receipt with the header `Idempotent-Replayed: true`: it had moved before
    403  a rejection, the same one each time that this operation id is asked for within its retention
    400  no key, a key that is too long, or a body that can't be read, naming the fields
    422  the key is known with other terms, naming the fields that differ
    503  nothing was decided: come back after `Retry-After` seconds

GET /refunds/{operation id}: a receipt or a rejection; 404 (never arrived, not committed yet, not found yet, or
forgotten); 405 where the service offers no look-up.

GET /ledger: every movement of money, oldest first; GET /books.csv: the same as a table with a header.
GET /statistics: counts since this process began, as `wire.Statistics`.
GET and PUT /behaviour: all switches at once, as `wire.Behaviour`; what a PUT leaves out has its default, and whoever
was held goes on.

A duplicate that arrives while the first one is under way waits and gets the first one's answer (see
`ledger`); there is no "still in progress" answer that a caller would have to handle.
"""

import csv
import io
from urllib.parse import unquote

import anyio
import anyio.to_thread
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .dropping import Dropped
from .ledger import Ledger, OperationReused, Settled
from .switches import Switches
from .wire import Behaviour, LedgerEntry, LedgerPage, Problem, Receipt, RefundTerms, Rejection

KEY_LENGTH_MAX = 512


class PaymentService:
    """The service over one ledger.

    Args:
        ledger: Where money moves; the caller closes it.
        switches: How the service behaves.
    """

    def __init__(self, ledger: Ledger, switches: Switches | None = None) -> None:
        self._ledger = ledger
        self._switches = switches or Switches()

    def application(self) -> Starlette:
        """Build the ASGI application."""
        return Starlette(
            routes=[
                Route("/refunds", self.post_refund, methods=["POST"]),
                Route("/refunds/{operation_id:path}", self.get_refund, methods=["GET"]),
                Route("/ledger", self.get_ledger, methods=["GET"]),
                Route("/books.csv", self.get_books, methods=["GET"]),
                Route("/statistics", self.get_statistics, methods=["GET"]),
                Route("/behaviour", self.get_behaviour, methods=["GET"]),
                Route("/behaviour", self.put_behaviour, methods=["PUT"]),
            ]
        )

    async def post_refund(self, request: Request) -> Response:
        """Move money once for each operation id."""
        operation_id = unquote(request.headers.get("Idempotency-Key", ""))
        problem = _key_problem(operation_id)
        if problem is not None:
            return _json(problem, 400)
        try:
            terms = RefundTerms.model_validate_json(await request.body())
        except ValidationError as error:
            return _json(_body_problem(error), 400)
        return await self._refund(operation_id, terms)

    async def get_refund(self, request: Request) -> Response:
        """Look an operation up."""
        operation_id: str = request.path_params["operation_id"]
        self._switches.count("lookups")
        if not self._switches.behaviour.can_look_up:
            return _json(Problem(error="no_lookup", message="this service can't be asked about operations"), 405)
        answer = await anyio.to_thread.run_sync(self._ledger.find, operation_id, self._switches.promise)
        if answer is None:
            return _json(Problem(error="not_found", message=f"operation {operation_id!r} is not known"), 404)
        return _json(answer)

    async def get_ledger(self, _: Request) -> Response:
        """List every movement of money."""
        entries = await anyio.to_thread.run_sync(self._ledger.entries)
        return _json(LedgerPage(entries=entries))

    async def get_books(self, _: Request) -> Response:
        """List every movement of money as a table, as one would download it from such a service."""
        entries = await anyio.to_thread.run_sync(self._ledger.entries)
        return Response(_as_table(entries), media_type="text/csv")

    async def get_statistics(self, _: Request) -> Response:
        """Count what happened to the requests."""
        return _json(self._switches.statistics)

    async def get_behaviour(self, _: Request) -> Response:
        """Show the switches."""
        return _json(self._switches.behaviour)

    async def put_behaviour(self, request: Request) -> Response:
        """Set all switches at once; what is left out has its default."""
        try:
            self._switches.set(Behaviour.model_validate_json(await request.body()))
        except ValidationError as error:
            return _json(_body_problem(error), 400)
        return _json(self._switches.behaviour)

    async def _refund(self, operation_id: str, terms: RefundTerms) -> Response:
        fate = self._switches.arrive(operation_id)
        if fate.outcome == "busy":
            return _busy()
        await anyio.sleep(fate.latency_s)
        await self._switches.hold("before_commit")
        if fate.outcome == "lost":
            return Dropped()
        settle, promise = self._ledger.settle, self._switches.promise
        try:
            settled = await anyio.to_thread.run_sync(settle, operation_id, terms, self._switches.judge, promise)
        except OperationReused as error:
            self._switches.count("key_reused")
            return _json(Problem(error="key_reused", message=str(error), fields=error.fields), 422)
        if self._switches.takes_answer(fate):
            return Dropped()
        await anyio.sleep(fate.answer_delay_s)
        await self._switches.hold("before_answer")
        return self._answer(settled)

    def _answer(self, settled: Settled) -> Response:
        if settled.replayed:
            self._switches.count("replayed")
        match settled.answer:
            case Receipt():
                response = _json(settled.answer, 200 if settled.replayed else 201)
            case Rejection():
                self._switches.count("rejected")
                response = _json(settled.answer, 403)
        if settled.replayed:
            response.headers["Idempotent-Replayed"] = "true"
        return response


def _as_table(entries: tuple[LedgerEntry, ...]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("operation_id", "receipt", "amount", "order", "recipient", "committed_at"))
    for entry in entries:
        terms = entry.terms
        at = entry.committed_at.isoformat()
        writer.writerow((entry.operation_id, entry.receipt, terms.amount, terms.order, terms.recipient, at))
    return table.getvalue()


def _busy() -> Response:
    response = _json(Problem(error="busy", message="nothing was decided: come back later"), 503)
    response.headers["Retry-After"] = "0.05"
    return response


def _key_problem(operation_id: str) -> Problem | None:
    if not operation_id:
        message = "send the operation id in the header Idempotency-Key"
        return Problem(error="key_missing", message=message)
    if len(operation_id) > KEY_LENGTH_MAX:
        message = f"an operation id has at most {KEY_LENGTH_MAX} characters"
        return Problem(error="key_too_long", message=message)
    return None


def _body_problem(error: ValidationError) -> Problem:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    message = "; ".join(f"{_path(detail['loc'])}: {detail['msg']}" for detail in details)
    return Problem(error="body_invalid", message=message, fields=tuple(_path(detail["loc"]) for detail in details))


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "body"


def _json(content: BaseModel, status_code: int = 200) -> Response:
    return Response(content.model_dump_json(), status_code, media_type="application/json")
