"""Errors: one tree, stable codes, and facts that survive the way to another process."""

import pickle
from collections.abc import Iterator

import pytest

from keylane.journal import errors
from keylane.journal.codec import NotEncodable, Undecodable, pack, unpack
from keylane.journal.errors import (
    ApprovalDeclined,
    ApprovalExpired,
    ApprovalUnfit,
    CallError,
    CallTimeout,
    Deadlock,
    Draining,
    EffectConflict,
    EffectRejected,
    Fenced,
    IdempotencyConflict,
    InternalError,
    InvalidInput,
    InvalidKey,
    InvalidOutput,
    InvocationCancelled,
    InvocationFailed,
    InvocationPaused,
    InvocationRefused,
    KeylaneError,
    MessageLost,
    MigrationFailed,
    NotSent,
    Overloaded,
    PayloadTooLarge,
    RegistrationError,
    Rejected,
    ResultExpired,
    RetryableError,
    SchemaMismatch,
    StepFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Superseded,
    Suspended,
    TerminalError,
    UnknownHandler,
    UnknownObject,
    UnsafeStore,
    ValueLost,
    WaitTimeout,
    WrongKeyType,
    code_of,
    error_from,
    fields_of,
)

ID = "Order.3.0193a0b0c0d0e0f00102030405060708"

# One of each kind, with the code that it has for ever.
EXAMPLES: dict[str, KeylaneError] = {
    "keylane": KeylaneError("something"),
    "terminal": TerminalError("no stock", "no-stock", {"left": 7}),
    "step-failed": StepFailed("read order", 10, "OSError: gone"),
    "effect-rejected": EffectRejected("refund-1", "not in their books", "ada"),
    "effect-conflict": EffectConflict("refund-1", ("amount",)),
    "rejected": Rejected("card closed"),
    "approval-declined": ApprovalDeclined("Order/acme/o-1001#refund.3", "ada", "too much"),
    "approval-expired": ApprovalExpired("Order/acme/o-1001#refund.3"),
    "approval-unfit": ApprovalUnfit("Order/acme/o-1001#refund.3", "amount is another", ("amount",)),
    "superseded": Superseded("version 2"),
    "wait-timeout": WaitTimeout("signal 'paid'", "30 s"),
    "deadlock": Deadlock(("Order acme/1", "Customer acme/2", "Order acme/1")),
    "retryable": RetryableError("busy", 0.5),
    "not-sent": NotSent("connection refused", 0.5),
    "call": CallError("refused", invocation_id=ID),
    "unknown-object": UnknownObject("Ordr", ("Customer", "Order")),
    "unknown-handler": UnknownHandler("Order", "refnd", ("refund",), invocation_id=ID),
    "invalid-key": InvalidKey("o-1001", "the tenant is missing"),
    "invalid-input": InvalidInput("request.items[2].amount", "Field required", invocation_id=ID),
    "invalid-output": InvalidOutput("result.at", "Input should be a datetime"),
    "payload-too-large": PayloadTooLarge("request", 2_000_000, 1_048_576),
    "idempotency-conflict": IdempotencyConflict(("request.amount",), invocation_id=ID),
    "result-expired": ResultExpired("completed", invocation_id=ID),
    "overloaded": Overloaded(0.25),
    "draining": Draining(1.0),
    "call-timeout": CallTimeout(30, invocation_id=ID),
    "message-lost": MessageLost(invocation_id=ID),
    "invocation-refused": InvocationRefused("Order.refund", "too late", "late", {"by": 2}, invocation_id=ID),
    "migration-failed": MigrationFailed("KeyError: 'name'", 1, 2, invocation_id=ID),
    "invocation-failed": InvocationFailed("no stock", "no-stock", [1], invocation_id=ID),
    "invocation-cancelled": InvocationCancelled(invocation_id=ID),
    "invocation-paused": InvocationPaused("retries_spent", "refunds-oncall", "OSError: gone", invocation_id=ID),
    "store": StoreError("no"),
    "store-unavailable": StoreUnavailable("redis://localhost", "connection refused"),
    "store-full": StoreFull(),
    "unsafe-store": UnsafeStore("maxmemory-policy is allkeys-lru, which drops records", "set it to noeviction"),
    "schema-mismatch": SchemaMismatch("partitions", 16, 32),
    "wrong-key-type": WrongKeyType("{keylane:Order:3}:in"),
    "value-lost": ValueLost("state proposal", "00" * 16, "is missing"),
    "registration": RegistrationError("handler refund takes *args", parameter="args", remedy="take one argument"),
    "internal": InternalError("a record out of order"),
    "not-encodable": NotEncodable("items[2]", "socket", "its type has no form on the wire"),
    "undecodable": Undecodable("it ends too early", 7),
}


def facts(error: KeylaneError) -> tuple[object, ...]:
    """Everything that an error says."""
    return type(error), code_of(error), error.message, str(error), error.args, fields_of(error), vars(error)


def tree() -> Iterator[type[KeylaneError]]:
    """Every error class of the module."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, KeylaneError):
            yield value


def test_every_error_has_its_code() -> None:
    """Codes never change, and no error is without an example here."""
    assert {code: code_of(error) for code, error in EXAMPLES.items()} == {code: code for code in EXAMPLES}
    assert {kind.code for kind in tree()} <= EXAMPLES.keys()


def test_every_error_is_drawn_in_the_tree() -> None:
    """The head of the module shows the whole tree."""
    drawn = errors.__doc__ or ""

    assert [kind.__name__ for kind in tree() if kind.__name__ not in drawn] == []


def test_an_error_that_ends_an_invocation_keeps_its_full_name() -> None:
    """Records and tracebacks have it, wherever the class is written down."""
    kinds = [kind for kind in tree() if issubclass(kind, TerminalError)]

    assert TerminalError in kinds
    assert {kind.__module__ for kind in kinds} == {"keylane.journal.errors"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_error_survives_pickling(code: str) -> None:
    """A pickled error is the same in all that it says."""
    error = EXAMPLES[code]

    assert facts(pickle.loads(pickle.dumps(error))) == facts(error)  # noqa: S301  our own bytes


@pytest.mark.parametrize("code", sorted(EXAMPLES.keys() - {"not-encodable", "undecodable"}))
def test_an_error_crosses_processes_as_code_message_and_fields(code: str) -> None:
    """An error that was packed and rebuilt elsewhere says the same."""
    error = EXAMPLES[code]

    rebuilt = error_from(code_of(error), error.message, unpack(pack(fields_of(error))))

    assert type(rebuilt) is type(error)
    assert (str(rebuilt), fields_of(rebuilt)) == (str(error), fields_of(error))


def test_the_code_of_a_users_error_reaches_the_caller() -> None:
    """What a handler put into its TerminalError is what the caller finds in InvocationFailed."""
    failed = InvocationFailed("no stock", "no-stock", {"left": 7}, invocation_id=ID)

    rebuilt = error_from(code_of(failed), failed.message, fields_of(failed))

    assert isinstance(rebuilt, InvocationFailed)
    assert (rebuilt.message, rebuilt.code, rebuilt.details) == ("no stock", "no-stock", {"left": 7})


def test_a_code_of_a_later_release_is_kept() -> None:
    """An unknown refusal is still a refusal, with its code and message."""
    error = error_from("quota-exceeded", "too many refunds today", {"limit": 3})

    assert type(error) is CallError
    assert (error.code, str(error)) == ("quota-exceeded", "too many refunds today")


def test_fields_of_another_release_do_no_harm() -> None:
    """A missing field has its default and an unknown one is dropped."""
    error = error_from("overloaded", "full", {"colour": "red"})

    assert isinstance(error, Overloaded)
    assert (error.retry_after, error.invocation_id) == (1.0, None)


class CardDeclined(TerminalError):
    """A user's own error with a signature of its own."""

    def __init__(self, *, card: str) -> None:
        super().__init__(f"card {card} declined")
        self.card = card


def test_a_users_subclass_with_its_own_signature_survives_pickling() -> None:
    """Pickling calls no constructor, so keyword-only ones do no harm."""
    error = CardDeclined(card="4242")
    error.add_note("asked twice")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes

    assert (type(copy), copy.card, str(copy), copy.__notes__) == (CardDeclined, "4242", str(error), ["asked twice"])


def test_a_users_subclass_does_not_take_over_the_code_of_its_parent() -> None:
    """What crosses the wire as a TerminalError is rebuilt as one."""
    assert code_of(CardDeclined(card="1")) == "terminal"
    assert type(error_from("terminal", "no", {})) is TerminalError


@pytest.mark.parametrize("kind", [Suspended, Fenced])
def test_control_flow_is_no_exception_and_says_which_clause_to_write(kind: type[Suspended]) -> None:
    """`except Exception` lets it pass; whoever catches it otherwise is told what to write."""
    copy = pickle.loads(pickle.dumps(kind()))  # noqa: S301  our own bytes

    assert not isinstance(copy, Exception)
    assert "write `except Exception:` instead" in str(copy)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnknownObject("Ordr", ("Customer", "Order")), "no object type 'Ordr'; known object types: Customer, Order"),
        (UnknownHandler("Order", "x"), "Order has no handler 'x'; there are no handlers"),
        (InvalidInput("request.amount", "Field required"), "invalid input at request.amount: Field required"),
        (IdempotencyConflict(None), "the first ones are no longer kept"),
        (IdempotencyConflict(()), "they differ in which fields were left out"),
        (CallTimeout(30, invocation_id=ID), f"attach to it by its id (invocation {ID})"),
        (CallTimeout(30), "repeat it with an idempotency key"),
        (InvocationPaused("diverged", "ada"), "paused (diverged); ada has to resume it"),
        (PayloadTooLarge("request", 2_000_000, 1_048_576), "request has 2,000,000 bytes, the limit is 1,048,576"),
    ],
)
def test_a_message_says_what_and_what_to_do(error: KeylaneError, words: str) -> None:
    """Messages are built from the fields and teach."""
    assert words in str(error)
