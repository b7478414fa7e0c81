"""How an invocation ended, as kept in its result key, and what an idempotency key remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from .codec import Undecodable
from .fields import Layout, a_flag, a_number, a_text, decode_tagged, nested, optional, pack, some_bytes, text_of


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of user code as it is written down.

    Args:
        type_name: Qualified name of the exception's type.
        message: Its text.
        code: Stable code of a `TerminalError`, else the code of the error tree that applies.
        details: Packed details of a `TerminalError`.
        traceback: Where it was raised, for people.
    """

    type_name: str
    message: str
    code: str
    details: bytes | None
    traceback: str


FailureFields: TypeAlias = tuple[str, str, str, bytes | None, str]


def fields_of_failure(failure: Failure) -> FailureFields:
    """Return the fields of a failure in the order in which they are written."""
    return (failure.type_name, failure.message, failure.code, failure.details, failure.traceback)


FAILURE_LAYOUT: Final = Layout(Failure, (a_text, a_text, a_text, optional(some_bytes), a_text))


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The invocation completed.

    Args:
        result: The packed output, or a reference to it.
        kept_with: The object, as `tenant/key`, with whose large values the output is kept; None for a whole one.
    """

    result: bytes
    kept_with: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The invocation ran and failed."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Refused:
    """The invocation never ran: the owner did not accept it, and says why as an error of the tree.

    Args:
        code: Code of the error.
        message: Its text.
        fields: Its packed fields.
    """

    code: str
    message: str
    fields: bytes


@dataclass(frozen=True, slots=True)
class Replayed:
    """The idempotency key was known: the answer is that of the first invocation that used it.

    Args:
        invocation: Raw id of the first invocation.
        first_at_ms: Partition time at which that one was accepted.
    """

    invocation: bytes
    first_at_ms: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The invocation was cancelled or killed before it had a result.

    Args:
        how: Which of the two.
        by: Who asked for it; empty where that was not said.
        reason: Why, likewise.
        compensation_failed: Whether something that was to be undone was not.
    """

    how: Literal["cancelled", "killed"]
    by: str = ""
    reason: str = ""
    compensation_failed: bool = False


Outcome: TypeAlias = Succeeded | Rejected | Refused | Replayed | Stopped

# Tags of outcomes and of records are disjoint, so that one is never taken for the other.
_SUCCEEDED: Final = 64
_REJECTED: Final = 65
_REFUSED: Final = 66
_REPLAYED: Final = 67
_SUCCEEDED_LARGE: Final = 72
_STOPPED: Final = 73


OUTCOME_LAYOUTS: Final[Mapping[int, Layout[Outcome]]] = {
    _SUCCEEDED: Layout(Succeeded, (some_bytes,)),
    _SUCCEEDED_LARGE: Layout(Succeeded, (some_bytes, a_text)),
    _REJECTED: Layout(Rejected, (nested(FAILURE_LAYOUT),)),
    _REFUSED: Layout(Refused, (a_text, a_text, some_bytes)),
    _REPLAYED: Layout(Replayed, (some_bytes, a_number)),
    _STOPPED: Layout(Stopped, (text_of("cancelled", "killed"), a_text, a_text, a_flag)),
}


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the bytes of an outcome."""
    match outcome:
        case Succeeded(kept_with=None):
            return pack((_SUCCEEDED, outcome.result))
        case Succeeded():
            return pack((_SUCCEEDED_LARGE, outcome.result, outcome.kept_with))
        case Rejected():
            return pack((_REJECTED, fields_of_failure(outcome.failure)))
        case Refused():
            return pack((_REFUSED, outcome.code, outcome.message, outcome.fields))
        case Replayed():
            return pack((_REPLAYED, outcome.invocation, outcome.first_at_ms))
        case Stopped():
            return pack((_STOPPED, outcome.how, outcome.by, outcome.reason, outcome.compensation_failed))


def decode_outcome(data: bytes) -> Outcome:
    """Return the outcome that bytes hold.

    Raises:
        Undecodable: They hold none.
    """
    return decode_tagged(data, OUTCOME_LAYOUTS, "outcome")


def first_of(data: bytes | None) -> bytes | None:
    """Return the raw id of the invocation that the bytes of an outcome stand for, where its idempotency key was known.

    Raises:
        Undecodable: They hold no outcome.
    """
    outcome = None if data is None else decode_outcome(data)
    return outcome.invocation if isinstance(outcome, Replayed) else None


#: `?` not ended yet, `c` completed, `f` failed, `x` cancelled or killed.
OutcomeMark: TypeAlias = Literal["?", "c", "f", "x"]

_MARKS: Final = {b"?": "?", b"c": "c", b"f": "f", b"x": "x"}
_ID_BYTES: Final = 16
_DIGEST_BYTES: Final = 8
_TIME_BYTES: Final = 6
_ENTRY_BYTES: Final = _ID_BYTES + 2 * _DIGEST_BYTES + 1 + _TIME_BYTES


@dataclass(frozen=True, slots=True)
class IdempotencyEntry:
    """What is remembered of an idempotency key, also as its tombstone.

    Args:
        invocation: Raw id of the first invocation that used the key.
        fingerprint: Digest of the handler and the typed arguments without unset fields.
        raw_digest: Digest of the arguments byte by byte.
        outcome: How that invocation ended.
        accepted_at_ms: Partition time of its acceptance.
    """

    invocation: bytes
    fingerprint: bytes
    raw_digest: bytes
    outcome: OutcomeMark
    accepted_at_ms: int

    def encode(self) -> bytes:
        """Return the entry in its 39 bytes, which differ in length for no entry."""
        time = self.accepted_at_ms.to_bytes(_TIME_BYTES, "big")
        return self.invocation + self.fingerprint + self.raw_digest + self.outcome.encode() + time

    @classmethod
    def decode(cls, data: bytes) -> IdempotencyEntry:
        """Return the entry that bytes hold; what a later version adds behind them is left out.

        Raises:
            Undecodable: They hold none.
        """
        mark = _MARKS.get(data[_ENTRY_BYTES - _TIME_BYTES - 1 : _ENTRY_BYTES - _TIME_BYTES])
        if len(data) < _ENTRY_BYTES or mark is None:
            raise Undecodable(f"{len(data)} bytes are not an idempotency entry")
        digests = data[_ID_BYTES:]
        return cls(
            invocation=data[:_ID_BYTES],
            fingerprint=digests[:_DIGEST_BYTES],
            raw_digest=digests[_DIGEST_BYTES : 2 * _DIGEST_BYTES],
            outcome=cast("OutcomeMark", mark),
            accepted_at_ms=int.from_bytes(data[_ENTRY_BYTES - _TIME_BYTES : _ENTRY_BYTES], "big"),
        )
