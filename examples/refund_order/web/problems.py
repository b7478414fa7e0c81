"""Errors as answers: problem details (RFC 9457), with the stable code of the error."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from keylane import (
    CallTimeout,
    Draining,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvocationFailed,
    KeylaneError,
    Overloaded,
    PayloadTooLarge,
    ResultExpired,
    StoreError,
)

MEDIA_TYPE: Final = "application/problem+json"
#: What the order object says no with, and as what that is told.
STATUS_OF: Final[Mapping[str, int]] = {
    "order-unknown": 404,
    "refund-unknown": 404,
    "policy-refused": 403,
    "exceeds-order": 409,
    "refund-open": 409,
    "not-proposed": 409,
}
BUSY_SECONDS: Final = 1.0


class Problem(Exception):
    """An answer that is none of the good ones.

    Args:
        status: The HTTP status.
        code: A stable word for programs.
        detail: What a person should know.
        more: Further members of the answer.
        headers: Headers of the answer.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more
        self.headers = dict(headers or {})

    def response(self) -> Response:
        content = {"type": "about:blank", "status": self.status, "code": self.code, "detail": self.detail, **self.more}
        body = json.dumps(content, default=str)
        return Response(body, self.status, self.headers, media_type=MEDIA_TYPE)


def problem_of(error: KeylaneError) -> Problem:
    """Say what an error of the client means to who has asked over HTTP."""
    match error:
        case InvocationFailed():
            return Problem(STATUS_OF.get(error.code, 422), error.code, str(error), details=error.details)
        case IdempotencyConflict():
            return Problem(409, error.code, str(error), fields=error.fields)
        case InvalidInput():
            return Problem(422, error.code, str(error), path=error.path)
        case InvalidKey():
            return Problem(400, error.code, str(error))
        case PayloadTooLarge():
            return Problem(413, error.code, str(error))
        case ResultExpired():
            return Problem(410, error.code, str(error))
        case Overloaded() | Draining():
            return _later(error, error.retry_after or BUSY_SECONDS)
        case StoreError() | CallTimeout():
            return _later(error, BUSY_SECONDS)
        case _:
            return Problem(500, error.code, str(error))


def _later(error: KeylaneError, seconds: float) -> Problem:
    return Problem(503, error.code, str(error), headers={"Retry-After": f"{max(1, round(seconds))}"})


async def _answer_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, KeylaneError)
    return problem_of(error).response()


async def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    details = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [{"path": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in details]
    return Problem(422, "invalid-body", "the body is not what is asked for", problems=problems).response()


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Problem(error.status_code, "http", error.detail, headers=error.headers).response()


HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Any]]] = {
    Problem: _answer_problem,
    KeylaneError: _answer_error,
    ValidationError: _answer_invalid,
    HTTPException: _answer_http,
}
