"""The caller's side of the payment service: typed, and honest about what an error leaves open."""

from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from .wire import ANSWER, Behaviour, LedgerEntry, LedgerPage, Problem, Receipt, RefundTerms, Rejection, Statistics

_TOO_BUSY = frozenset({409, 429, 503})
_NOT_FOUND = 404
_SERVER_ERROR = 500
_CONNECTIONS_MAX = 256
_PLAIN = "/:;,!$&'()*+=@#"


class PaymentError(Exception):
    """The payment service gave no receipt and no rejection."""


class OutcomeUnknown(PaymentError):
    """The money may have moved or not: send again with the same operation id, or look it up."""


class NotSent(PaymentError):
    """No connection came about: this time nothing was sent. It says nothing about times before."""


class PaymentsBusy(PaymentError):
    """Nothing was decided yet.

    Attributes:
        retry_after_s: How long to wait before sending again with the same operation id.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the payment service asks to come back in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class RequestRefused(PaymentError):
    """The service did not take the request, and will not take the same one later.

    Attributes:
        problem: What it said; `problem.fields` are the names of the fields that it is about.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.error}: {problem.message}")
        self.problem = problem


class PaymentClient:
    """A client of the payment service, to be shared by all tasks of one event loop.

    Connections are opened when they are needed. `async with` or `aclose` closes them.

    Args:
        base_url: Where the service is.
        timeout_s: How long to wait for an answer; afterwards the outcome is unknown, not failed.
        transport: Where requests go instead of the network, for tests.
    """

    def __init__(
        self, base_url: str, *, timeout_s: float = 5.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        limits = httpx.Limits(max_connections=_CONNECTIONS_MAX, keepalive_expiry=30)
        self._http = httpx.AsyncClient(base_url=base_url, timeout=timeout_s, limits=limits, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def refund(self, operation_id: str, terms: RefundTerms) -> Receipt | Rejection:
        """Pay back, once for each operation id however often this is called with it.

        Raises:
            OutcomeUnknown: Timeout, lost connection or a failure of the service.
            NotSent: The service can't be reached.
            PaymentsBusy: The service asks to come back later.
            RequestRefused: The operation id is known with other terms, or the request is malformed.
        """
        # A header takes no more than ASCII, and an operation id may have a key of any letters in it.
        headers = {"Idempotency-Key": quote(operation_id, safe=_PLAIN)}
        response = await self._send("POST", "/refunds", body=terms, headers=headers)
        return ANSWER.validate_json(_checked(response, also=403).content)

    async def find(self, operation_id: str) -> Receipt | Rejection | None:
        """Look an operation up; None means that the service does not know it, now.

        Raises:
            OutcomeUnknown: The look-up itself had no answer.
            NotSent: The service can't be reached.
            RequestRefused: It offers no look-up.
        """
        response = await self._send("GET", f"/refunds/{quote(operation_id, safe='')}")
        if response.status_code == _NOT_FOUND:
            return None
        return ANSWER.validate_json(_checked(response).content)

    async def ledger(self) -> tuple[LedgerEntry, ...]:
        """Read every movement of money, oldest first."""
        response = await self._send("GET", "/ledger")
        return LedgerPage.model_validate_json(_checked(response).content).entries

    async def books(self) -> str:
        """Read every movement of money as a table with a header, as the service would give it to an auditor."""
        return _checked(await self._send("GET", "/books.csv")).text

    async def statistics(self) -> Statistics:
        response = await self._send("GET", "/statistics")
        return Statistics.model_validate_json(_checked(response).content)

    async def behaviour(self) -> Behaviour:
        return Behaviour.model_validate_json(_checked(await self._send("GET", "/behaviour")).content)

    async def set_behaviour(self, behaviour: Behaviour) -> None:
        _checked(await self._send("PUT", "/behaviour", body=behaviour))

    async def _send(
        self, method: str, path: str, *, body: BaseModel | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        content = None if body is None else body.model_dump_json()
        try:
            return await self._http.request(method, path, content=content, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSent(f"{method} {path} was not sent: {error or type(error).__name__}") from error
        except httpx.TransportError as error:
            raise OutcomeUnknown(f"{method} {path} had no answer: {error or type(error).__name__}") from error


def _checked(response: httpx.Response, *, also: int | None = None) -> httpx.Response:
    if response.is_success or response.status_code == also:
        return response
    if response.status_code in _TOO_BUSY:
        raise PaymentsBusy(_retry_after_s(response))
    if response.status_code >= _SERVER_ERROR:
        raise OutcomeUnknown(f"the payment service failed with status {response.status_code}")
    raise RequestRefused(_problem(response))


def _problem(response: httpx.Response) -> Problem:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError as error:
        raise PaymentError(f"status {response.status_code} without a reason: is this the payment service?") from error


def _retry_after_s(response: httpx.Response) -> float:
    """Read the header in its form of seconds; a date or nonsense counts as one second."""
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
