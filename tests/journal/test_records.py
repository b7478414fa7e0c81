"""Records and outcomes: exact, small, fast enough, and readable for ever."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import cast, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.codec import Undecodable
from keylane.journal.command_records import (
    ApprovalAwaited,
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
    CompensationStarted,
    EffectStarted,
    MessageSent,
    ModelCallBegun,
    ModelUsage,
    Proposed,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from keylane.journal.messages import Caller, Held
from keylane.journal.outcomes import (
    Failure,
    IdempotencyEntry,
    Outcome,
    Refused,
    Rejected,
    Replayed,
    Stopped,
    Succeeded,
    decode_outcome,
    encode_outcome,
)
from keylane.journal.record_bytes import decode, encode
from keylane.journal.records import (
    Accepted,
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Finished,
    Killed,
    PatchMarked,
    Paused,
    PauseReason,
    Record,
    Released,
    Restarted,
    Resumed,
    Scheduled,
    SignalReceived,
)

GOLDEN = Path(__file__).parent / "golden" / "records"
RAW_ID = bytes(range(16))
DIGEST = bytes(range(16, 32))
FAILURE = Failure("shop.NoStock", "none of 7 left: ü", "no_stock", b"\xc0", 'File "shop.py", line 3\n')
BARE_FAILURE = Failure("builtins.ValueError", "", "terminal", None, "")
#: Stands for a value of 70,000 bytes: extension type 64 with a digest and a size.
REFERENCE = b"\xc7\x14\x40" + bytes(range(32, 48)) + b"\x00\x01\x11\x70"
USAGE = ModelUsage("m-1-0925", 1_200, 80, Decimal("0.0310"), "USD", 2)
UNPRICED = ModelUsage("m-1-0925", 1_200, 80, None, "USD")
READS = {"balance": b"\x2a", "limit": None}

PATH = (Held("Order", "acme/o-1001", "refund"), Held("Desk", "acme/d-1", "approve"))
CALLER = Caller("Desk", 7, "acme/d-1", DIGEST, 3, PATH)

RECORDS: dict[str, Record] = {
    "accepted": Accepted(RAW_ID, "refund", 1, "acme/o-1001", b"\x91\x01", DIGEST, b"client01"),
    "accepted_bare": Accepted(RAW_ID, "refund", 1, "acme/o-1001"),
    "step_completed": StepCompleted(0, "read order", b"\x05", READS, (b"\x01", b"\x02")),
    "step_completed_bare": StepCompleted(300, "read order", b"\x05"),
    "step_completed_by_a_model": StepCompleted(1, "decide", b"\x05", READS, (b"\x01",), USAGE),
    "step_completed_at_an_unknown_price": StepCompleted((0, 1, 0), "decide", b"\x05", usage=UNPRICED),
    "model_call_begun": ModelCallBegun(1, "decide", 3, "m-1", DIGEST, 2, READS, (b"\x01",)),
    "step_attempt_failed": StepAttemptFailed(1, "policy check", 2, FAILURE, 100, READS, (b"\x01",)),
    "step_failed": StepFailed(1, "policy check", FAILURE, READS, (b"\x01",)),
    "attempt_failed": AttemptFailed(3, BARE_FAILURE, 200),
    "paused": Paused(PauseReason.RETRIES_SPENT, "10 attempts", FAILURE),
    "paused_by_operator": Paused(PauseReason.OPERATOR, "under repair", None, "ada"),
    "paused_diverged": Paused(PauseReason.DIVERGED, "recorded run a, attempted run b"),
    "paused_undecodable": Paused(PauseReason.UNDECODABLE, "record 3"),
    "resumed": Resumed("ada", "repaired"),
    "completed": Completed(),
    "failed": Failed(FAILURE),
    "accepted_of_a_caller": Accepted(RAW_ID, "reserve", 1, "acme/s-1", b"\x01", caller=CALLER),
    "accepted_in_a_trace": Accepted(RAW_ID, "reserve", 1, "acme/s-1", b"\x01", trace=RAW_ID + b"12345678\x01"),
    "scheduled": Scheduled(86_400_000),
    "released": Released(),
    "message_sent": MessageSent(2, "Stock", 3, "acme/s-1", "reserve", RAW_ID, 5_000, READS, (b"\x01",)),
    "message_sent_bare": MessageSent(2, "Stock", 3, "acme/s-1", "reserve", RAW_ID),
    "call_started": CallStarted(3, "Stock", 3, "acme/s-1", "reserve", RAW_ID, READS, (b"\x01",)),
    "call_completed": CallCompleted(3, b"\x92\x40\xc4\x01\x2a"),
    "timer_set": TimerSet(4, 60_000, READS, (b"\x01",)),
    "timer_fired": TimerFired(4),
    "finished": Finished(RAW_ID, "add", 2, b"\x03", "c", DIGEST),
    "finished_failed": Finished(RAW_ID, "add", 1, None, "f"),
    "accepted_large": Accepted(RAW_ID, "refund", 1, "acme/o-1001", REFERENCE),
    "step_completed_large": StepCompleted(0, "read order", REFERENCE, {"balance": REFERENCE}),
    "finished_large": Finished(RAW_ID, "add", 2, REFERENCE, "c"),
    "finished_cancelled": Finished(RAW_ID, "add", 1, None, "x"),
    "finished_killed": Finished(RAW_ID, "add", 1, None, "k"),
    "paused_compensation_failed": Paused(PauseReason.COMPENSATION_FAILED, "'undo reserve' failed for good", FAILURE),
    "paused_value_lost": Paused(PauseReason.VALUE_LOST, "state balance is missing"),
    "call_started_in_a_branch": CallStarted((2, 0, 1), "Stock", 3, "acme/s-1", "reserve", RAW_ID),
    "call_started_releasing": CallStarted(3, "Stock", 3, "acme/s-1", "reserve", RAW_ID, releases=True),
    "timer_set_releasing": TimerSet(4, 60_000, READS, (b"\x01",), releases=True),
    "step_completed_in_a_branch": StepCompleted((0, 1, 0), "read order", b"\x05"),
    "awakeable_made": AwakeableMade(5, READS, (b"\x01",)),
    "wait_started": WaitStarted(6, "approved", None, 60_000, READS, (b"\x01",)),
    "wait_started_on_an_awakeable": WaitStarted((0, 1, 2), "", 5, releases=True),
    "wait_completed": WaitCompleted(6, RAW_ID, b"\x92\x40\xc4\x01\x2a", "ada", READS, (b"\x01",)),
    "wait_expired": WaitExpired(6),
    "signal_received": SignalReceived("approved", None, RAW_ID, b"\x92\x40\xc4\x01\x2a", "ada"),
    "signal_received_for_an_awakeable": SignalReceived("", (0, 1, 0), RAW_ID, b"\x92\x40\xc4\x01\x2a"),
    "wait_withdrawn": WaitWithdrawn((0, 1, 2), READS, (b"\x01",)),
    "cancel_requested": CancelRequested(RAW_ID, "ada", "ordered twice", cascades=True),
    "cancel_delivered": CancelDelivered(7, READS, (b"\x01",)),
    "cancelled": Cancelled("ada", "ordered twice"),
    "killed": Killed("ada", "beyond repair"),
    "compensation_started": CompensationStarted(3, ("charge", "reserve"), FAILURE),
    "compensation_started_by_cancel": CompensationStarted(3, ("charge",)),
    "compensation_skipped": CompensationSkipped(8, "undo reserve", "ada", "done by hand"),
    "effect_started": EffectStarted(9, "refund-1", "refund", "payments", DIGEST, READS, (b"\x01",)),
    "effect_started_releasing": EffectStarted((0, 1, 2), "refund-1", "refund", "payments", DIGEST, releases=True),
    "effect_started_settling": EffectStarted(12, "refund-1", "refund", "payments", DIGEST, settles=True),
    "proposed": Proposed(10, "refund", 3, b"\x80", READS, (b"\x01",)),
    "approval_awaited": ApprovalAwaited(11, "refund", 3, READS, (b"\x01",), releases=True),
    "patch_marked": PatchMarked("new terms"),
    "restarted": Restarted(3, "ada", "repaired"),
    "restarted_in_a_version": Restarted(0, "ada", "version 1 is gone", 2),
    "paused_too_many_records": Paused(PauseReason.TOO_MANY_RECORDS, "it has 10,000 records"),
    "paused_needs_version": Paused(PauseReason.NEEDS_VERSION, "needs version 1 of handler 'refund'"),
    "paused_migration_failed": Paused(PauseReason.MIGRATION_FAILED, "migrate raised KeyError: 'name'", BARE_FAILURE),
}
OUTCOMES: dict[str, Outcome] = {
    "outcome_succeeded": Succeeded(b"\x2a"),
    "outcome_succeeded_large": Succeeded(REFERENCE, "acme/o-1001"),
    "outcome_rejected": Rejected(FAILURE),
    "outcome_refused": Refused("overloaded", "1,000 wait already", b"\x80"),
    "outcome_cancelled": Stopped("cancelled", "ada", "ordered twice"),
    "outcome_killed": Stopped("killed", "ada", "beyond repair", compensation_failed=True),
    "outcome_replayed": Replayed(RAW_ID, 1_764_000_000_000),
}
ENTRY = IdempotencyEntry(RAW_ID, b"finger-8", b"rawraw-8", "c", 1_764_000_000_000)


def packed(value: object) -> bytes:
    return msgpack.packb(value)


def fields_of(data: bytes) -> list[object]:
    return cast("list[object]", msgpack.unpackb(data, strict_map_key=False))


def every_record() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())


@pytest.mark.parametrize("name", RECORDS)
def test_a_golden_record_decodes_for_ever(name: str) -> None:
    """The bytes that were written once hold the same record in every later version."""
    data = (GOLDEN / f"{name}.msgpack").read_bytes()

    assert decode(data) == RECORDS[name]


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_golden_outcome_decodes_for_ever(name: str) -> None:
    """The same for outcomes."""
    data = (GOLDEN / f"{name}.msgpack").read_bytes()

    assert decode_outcome(data) == OUTCOMES[name]


def test_a_golden_idempotency_entry_decodes_for_ever() -> None:
    """The same for what is remembered of an idempotency key."""
    data = (GOLDEN / "idempotency_entry.bin").read_bytes()

    assert IdempotencyEntry.decode(data) == ENTRY


def test_every_golden_file_is_read_by_a_test() -> None:
    """No golden file lies there without a test that decodes it."""
    names = {path.name for path in GOLDEN.iterdir()}

    assert names == {f"{name}.msgpack" for name in RECORDS | OUTCOMES} | {"idempotency_entry.bin"}


def test_every_kind_of_record_has_a_golden_file() -> None:
    """A record that is added without a golden file is noticed."""
    assert {type(record) for record in RECORDS.values()} == set(get_args(Record))
    assert {type(outcome) for outcome in OUTCOMES.values()} == set(Outcome.__args__)


@every_record()
def test_a_record_is_equal_after_the_round_trip(record: Record) -> None:
    """Nothing of a record is lost in its bytes."""
    assert decode(encode(record)) == record


@every_record()
def test_fields_of_a_later_version_are_let_be(record: Record) -> None:
    """A worker of this version reads what the next one wrote behind the fields that it knows."""
    known = fields_of(encode(record))
    match record:
        case Accepted(caller=caller, trace=None):
            known.extend([None] if caller is not None else [None, None])
        case StepCompleted(usage=None):
            known.append(None)
        case CallStarted(releases=False) | TimerSet(releases=False) | WaitStarted(releases=False):
            known.append(False)
        case EffectStarted(settles=False):
            known.extend([False] if record.releases else [False, False])
        case ApprovalAwaited(releases=False):
            known.append(False)
        case WaitCompleted(of_object=False):
            known.append(False)
        case _:
            pass
    later = packed([*known, {"new": 1}, None])

    assert decode(later) == record


@every_record()
def test_a_record_that_is_cut_short_is_undecodable(record: Record) -> None:
    """No prefix of a record is taken for a record."""
    data = encode(record)

    for length in range(len(data)):
        with pytest.raises(Undecodable):
            decode(data[:length])


@every_record()
def test_a_record_with_a_field_of_another_kind_is_undecodable(record: Record) -> None:
    """A field that holds something else is never handed on as what it should be."""
    whole = fields_of(encode(record))

    for place in range(1, len(whole)):
        changed = [*whole[:place], 1.5, *whole[place + 1 :]]
        with pytest.raises(Undecodable):
            decode(packed(changed))


@every_record()
def test_a_record_costs_at_most_80_bytes_over_its_payload(record: Record) -> None:
    """The format itself stays small; names, texts and packed values are the user's."""
    assert len(encode(record)) - payload_of(record) <= 80


def payload_of(value: object) -> int:
    """Return how many bytes of a record are the user's: texts and packed values, but no ids and digests."""
    match value:
        case str():
            return len(value.encode())
        case bytes():
            return 0 if value in {RAW_ID, DIGEST, b"client01"} else len(value)
        case dict():
            items = cast("dict[str, object]", value).items()
            return sum(payload_of(name) + payload_of(item) for name, item in items)
        case tuple():
            return sum(payload_of(item) for item in cast("tuple[object, ...]", value))
        case _ if is_dataclass(value):
            return sum(payload_of(getattr(value, part.name)) for part in fields(value))
        case _:
            return 0


def test_an_unknown_tag_is_undecodable() -> None:
    """A record of a kind that this version lacks is parked, not guessed at."""
    with pytest.raises(Undecodable, match="unknown tag 63"):
        decode(packed([63, "x"]))


def test_an_outcome_is_not_taken_for_a_record() -> None:
    """The tags of records and of outcomes are disjoint."""
    for outcome in OUTCOMES.values():
        with pytest.raises(Undecodable):
            decode(encode_outcome(outcome))
    for record in RECORDS.values():
        with pytest.raises(Undecodable):
            decode_outcome(encode(record))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x80", b"\x01", b"\x91\xc0", b"\x91\xc3", b"\x91\xa1\xff"])
def test_what_is_no_tagged_array_is_undecodable(data: bytes) -> None:
    """Bytes that are msgpack of another shape, or none at all, are refused by name."""
    with pytest.raises(Undecodable):
        decode(data)
    with pytest.raises(Undecodable):
        decode_outcome(data)


@given(st.binary(max_size=200))
def test_garbage_raises_undecodable_and_nothing_else(data: bytes) -> None:
    """Whatever lies in a stream, a reader meets one exception only."""
    for read in (decode, decode_outcome, IdempotencyEntry.decode):
        try:
            read(data)
        except Undecodable:
            continue


@given(st.sampled_from(sorted(RECORDS)), st.data())
def test_a_flipped_byte_raises_undecodable_or_nothing(name: str, data: st.DataObject) -> None:
    """The same for bytes that were a record once."""
    whole = bytearray(encode(RECORDS[name]))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    try:
        decode(bytes(whole))
    except Undecodable:
        return


def test_deeply_nested_garbage_is_undecodable() -> None:
    """Nesting beyond any limit is refused like other garbage."""
    with pytest.raises(Undecodable):
        decode(b"\x91" * 100_000)


@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_any_text_can_be_written_down(text: str) -> None:
    """A message with a lone surrogate, as Python makes for file names, does not stop a record from being written."""
    record = Failed(Failure("builtins.OSError", text, "terminal", None, text))

    assert decode(encode(record)) == record


def test_a_failure_of_a_full_size_is_written_whole() -> None:
    """A long traceback and a big result keep their length."""
    record = StepAttemptFailed(0, "s", 1, Failure("t", "m" * 70_000, "c", b"d" * 70_000, "t" * 70_000), 50)

    assert decode(encode(record)) == record


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_an_outcome_is_equal_after_the_round_trip(outcome: Outcome) -> None:
    """Nothing of an outcome is lost in its bytes, and what a later version adds is let be."""
    data = encode_outcome(outcome)
    later = packed([*fields_of(data), "new"])

    assert decode_outcome(data) == outcome
    assert decode_outcome(later) == outcome


@pytest.mark.parametrize("mark", ["?", "c", "f", "x"])
def test_an_idempotency_entry_has_39_bytes(mark: str) -> None:
    """A tombstone has a fixed size whatever it says."""
    entry = IdempotencyEntry(RAW_ID, b"f" * 8, b"r" * 8, mark, 2**48 - 1)  # pyright: ignore[reportArgumentType]

    data = entry.encode()

    assert len(data) == 39
    assert IdempotencyEntry.decode(data) == entry
    assert IdempotencyEntry.decode(data + b"later") == entry


@pytest.mark.parametrize("data", [b"", ENTRY.encode()[:-1], ENTRY.encode().replace(b"c\x01", b"z\x01")])
def test_a_malformed_idempotency_entry_is_undecodable(data: bytes) -> None:
    """A cut entry or an unknown mark is refused."""
    with pytest.raises(Undecodable):
        IdempotencyEntry.decode(data)
