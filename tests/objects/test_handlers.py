"""Declaring object types and handlers: what works, and what every refusal says."""

import functools
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from keylane.journal.errors import RegistrationError, UnknownHandler
from keylane.objects.context import BlockingObjectContext, BlockingSharedContext, ObjectContext, SharedContext
from keylane.objects.policies import RetryPolicy
from keylane.objects.virtual_object import VirtualObject


class Ask(BaseModel):
    amount: int


class NoSchema:
    pass


def order(**options: Any) -> VirtualObject:
    """An object type."""
    return VirtualObject("Order", owner="refunds-oncall", **options)


def test_a_handler_knows_what_its_function_says() -> None:
    """Name, kind, types and the plain function are there for the runtime and for tests."""
    orders = order()

    @orders.handler
    async def refund(ctx: ObjectContext, request: Ask) -> list[Ask]:
        return [request]

    @orders.shared
    def count(ctx: BlockingSharedContext) -> int:
        return 1

    assert (str(refund), refund.kind, refund.is_blocking, refund.version) == ("Order.refund", "exclusive", False, 1)
    assert refund.input is not None
    assert (refund.input.form, refund.input.where, refund.output.form) == (Ask, "request", list[Ask])
    assert (count.kind, count.is_blocking, count.input) == ("shared", True, None)
    assert orders.handlers == {"refund": refund, "count": count}


def test_a_handler_does_not_change() -> None:
    """What was checked at registration stays true."""

    @order().handler
    async def refund(ctx: ObjectContext) -> None: ...

    with pytest.raises(AttributeError):
        refund.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_options_of_the_handler_win_over_those_of_its_object_type() -> None:
    """The nearest word counts."""
    orders = order(retry=RetryPolicy(attempts=3), idempotency_retention=timedelta(days=2))

    @orders.handler(name="pay-back", retry=RetryPolicy(attempts=5), private=True)
    async def refund(ctx: ObjectContext) -> None: ...

    @orders.handler()
    async def touch(ctx: ObjectContext) -> None: ...

    assert (refund.name, refund.retry, refund.is_private) == ("pay-back", RetryPolicy(attempts=5), True)
    assert (touch.retry, touch.idempotency_retention) == (RetryPolicy(attempts=3), timedelta(days=2))


def test_old_versions_are_kept_and_the_newest_is_called() -> None:
    """An invocation ends with the version that it began with."""
    orders = order()

    @orders.handler(name="refund", version=2)
    async def refund_2(ctx: ObjectContext, request: Ask | None) -> None: ...

    @orders.handler
    async def refund(ctx: ObjectContext, request: Ask) -> None: ...

    assert orders.handlers["refund"] is refund_2
    assert (orders.find("refund"), orders.find("refund", 1)) == (refund_2, refund)


def test_an_unknown_handler_is_named_beside_the_known_ones() -> None:
    """A misspelt name is found by reading the error."""
    orders = order()

    @orders.handler
    async def refund(ctx: ObjectContext) -> None: ...

    with pytest.raises(UnknownHandler, match="Order has no handler 'refnd'; known handlers: refund"):
        orders.find("refnd")
    with pytest.raises(UnknownHandler, match="version 7"):
        orders.find("refund", 7)


def test_an_exclusive_handler_may_ask_for_less() -> None:
    """A function that only reads may be registered as either."""

    @order().handler
    async def look(ctx: SharedContext) -> int:
        return 1

    assert look.kind == "exclusive"


def test_a_wrapped_function_is_registered_with_its_own_types() -> None:
    """A decorator that uses functools.wraps hides nothing."""

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*arguments: Any) -> Any:
            return await function(*arguments)

        return wrapper

    @order().handler
    @logged
    async def refund(ctx: ObjectContext, request: Ask) -> int:
        return 1

    assert refund.input is not None
    assert (refund.name, refund.input.form, refund.output.form) == ("refund", Ask, int)


async def no_context_annotation(ctx, request: Ask) -> int: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
async def no_annotation(ctx: ObjectContext, request) -> int: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
async def no_result(ctx: ObjectContext, request: Ask): ...  # noqa: ANN201
async def wrong_context(ctx: int) -> None: ...
async def awaiting_blocking(ctx: BlockingObjectContext) -> None: ...
def blocking_awaiting(ctx: ObjectContext) -> None: ...
async def two(ctx: ObjectContext, a: int, b: int) -> None: ...
async def default(ctx: ObjectContext, request: int = 1) -> None: ...
async def star(ctx: ObjectContext, *requests: int) -> None: ...
async def keywords(ctx: ObjectContext, **requests: int) -> None: ...
async def keyword_only(ctx: ObjectContext, *, request: int) -> None: ...
async def nothing() -> None: ...
async def unsupported(ctx: ObjectContext, request: NoSchema) -> None: ...
async def unsupported_result(ctx: ObjectContext) -> NoSchema: ...
async def unknown(ctx: ObjectContext, request: "Missing") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
async def unreadable(ctx: ObjectContext, request: int) -> None: ...
async def yielding(ctx: ObjectContext) -> AsyncIterator[int]:
    yield 1


async def _hidden(ctx: ObjectContext) -> None: ...


class InClass:
    async def method(self, ctx: ObjectContext, request: int) -> None: ...


unreadable.__annotations__["request"] = "1 +"

REFUSED: list[tuple[Any, str | None, str]] = [
    (no_context_annotation, "ctx", "has no annotation: annotate it, e.g. `ctx: ObjectContext`"),
    (no_annotation, "request", "parameter request of no_annotation has no annotation: annotate it with its type"),
    (no_result, "return", "the result of no_result has no annotation: annotate it, `-> None`"),
    (wrong_context, "ctx", "is annotated int: an exclusive handler written as `async def` takes ObjectContext"),
    (awaiting_blocking, "ctx", "takes ObjectContext; write plain `def` to keep BlockingObjectContext"),
    (blocking_awaiting, "ctx", "takes BlockingObjectContext; write `async def` to keep ObjectContext"),
    (two, "b", "takes a, b: a handler takes one argument or none: put them into one model"),
    (default, "request", "has a default: a caller always sends the argument"),
    (star, "requests", "takes *requests: int: take the context and one argument, both by position"),
    (keywords, "requests", "takes **requests: int"),
    (keyword_only, "request", "both by position"),
    (nothing, "ctx", "has no parameter: a handler takes the context first"),
    (unsupported, "request", "declare a pydantic model, a dataclass or plain types"),
    (unsupported_result, "return", "the result of unsupported_result"),
    (unknown, "request", "name 'Missing' is not defined: annotations are read at run time: import the name"),
    (unreadable, "request", "can't be read"),
    (yielding, None, "handler yielding yields: return one value"),
    (_hidden, "name", "'_hidden' can't name a handler of Order"),
    (InClass.method, "self", "handler InClass.method is a method: a handler is a function outside of any class"),
    (print, None, "a handler is a function"),
    (functools.partial(two), None, "a handler is a function"),
    (NoSchema, None, "NoSchema is a type: a handler is a function"),
]


@pytest.mark.parametrize(("function", "parameter", "words"), REFUSED)
def test_what_cannot_be_a_handler_is_refused_with_parameter_and_remedy(
    function: Any, parameter: str | None, words: str
) -> None:
    """Whoever imports the module reads what to write instead."""
    with pytest.raises(RegistrationError) as caught:
        order().handler(function)

    assert words in str(caught.value)
    assert caught.value.parameter == parameter


def test_an_exclusive_context_in_a_shared_handler_is_refused() -> None:
    """A shared handler never writes."""

    async def peek(ctx: ObjectContext) -> int:
        return 1

    with pytest.raises(RegistrationError, match="a shared handler written as `async def` takes SharedContext"):
        order().shared(peek)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_one_name_and_version_is_declared_once() -> None:
    """A second function under the same name would hide the first."""
    orders = order()

    @orders.handler
    async def refund(ctx: ObjectContext) -> None: ...

    with pytest.raises(RegistrationError, match=r"handler Order.refund, version 1, is declared twice"):
        orders.shared(name="refund")(lambda_like)


async def lambda_like(ctx: SharedContext) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "parameter", "words"),
    [
        ({"name": "1st"}, "name", "a name begins with a letter"),
        ({"name": ""}, "name", "can't name an object type"),
        ({"owner": "  "}, "owner", "has no owner: name the team that answers for stuck work"),
        ({"name": None}, "name", "None can't name an object type"),
        ({"owner": None}, "owner", "has no owner"),
        ({"owner": "\ud800"}, "owner", "has no owner"),
        ({"partitions": True}, "partitions", "partitions is True: use 1 to 16,384"),
        ({"backlog": 2**31}, "backlog", "at most 2,147,483,647"),
        ({"state": [int]}, "state", "write the types by name"),
        ({"state": {3: int}}, "state", "3 can't name a state value"),
        ({"state": {"n" * 257: int}}, "state", "at most 256 bytes"),
        ({"effects": None}, "effects", "effects is None: list what"),
        ({"partitions": 0}, "partitions", "use 1 to 16,384"),
        ({"partitions": 16_385}, "partitions", "use 1 to 16,384"),
        ({"backlog": 0}, "backlog", "1 or more"),
        ({"on_paused": "wait"}, "on_paused", '"hold" or "skip"'),
        ({"state": {"x": NoSchema}}, "state", "state x"),
        ({"partitions": "8"}, "partitions", "partitions is '8': use 1 to 16,384"),
        ({"backlog": "8"}, "backlog", "backlog is '8': it must be 1 or more"),
        ({"state_version": "2"}, "state_version", "state_version is '2': it must be 1 or more"),
        ({"retry": 3}, "retry", "retry is 3: use a RetryPolicy, such as RetryPolicy(attempts=3)"),
        ({"idempotency_retention": timedelta(days=401)}, "idempotency_retention", "at most 400 days"),
        ({"idempotency_retention": 30}, "idempotency_retention", "is 30: use a timedelta"),
    ],
)
def test_an_object_type_that_cannot_work_is_refused(wrong: dict[str, Any], parameter: str, words: str) -> None:
    """The error names the parameter and the remedy."""
    options: dict[str, Any] = {"name": "Order", "owner": "refunds-oncall", **wrong}

    with pytest.raises(RegistrationError) as caught:
        VirtualObject(**options)

    assert words in str(caught.value)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"retry": 3}, "retry is 3: use a RetryPolicy, such as RetryPolicy(attempts=3)"),
        ({"version": 0}, "version is 0: it must be 1 or more"),
        ({"version": "2"}, "version is '2': it must be 1 or more"),
        ({"version": 2**31}, "at most 2,147,483,647"),
        ({"idempotency_retention": 30}, "idempotency_retention is 30: use a timedelta"),
        ({"checkpoint": "never"}, "checkpoint is 'never'"),
    ],
)
def test_an_option_that_can_not_work_is_refused(wrong: dict[str, Any], words: str) -> None:
    """Where it is declared, and not when it is first needed."""

    async def refund(ctx: ObjectContext) -> None: ...

    with pytest.raises(RegistrationError) as caught:
        order().handler(**wrong)(refund)

    assert words in str(caught.value)
    assert caught.value.parameter == next(iter(wrong))


def test_an_option_that_does_not_exist_is_refused() -> None:
    """A misspelt option is not silently left out."""
    with pytest.raises(TypeError, match="retries"):
        order().handler(retries=3)(two)  # pyright: ignore[reportCallIssue]
