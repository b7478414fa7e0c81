"""What `describe` says of streams that the journal's own operations wrote, and of garbage in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from keylane.journal import operations, reading
from keylane.journal.codec import pack
from keylane.journal.command_records import StepAttemptFailed, StepCompleted, StepFailed, WaitCompleted
from keylane.journal.descriptions import Place, ResultKind
from keylane.journal.inbox import submit
from keylane.journal.key import InvocationId, new_invocation_id
from keylane.journal.leases import release
from keylane.journal.noted import Bound, read_stream
from keylane.journal.outcomes import Outcome, Refused, Rejected, Replayed, Succeeded, encode_outcome
from keylane.journal.records import (
    AttemptFailed,
    Completed,
    Failed,
    Paused,
    PauseReason,
    Resumed,
)
from keylane.journal.standing import Status
from tests.journal.written_journal import BROKEN, HOUR_MS, KEY, Journal, own_journal, request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def journal(store_url: str, namespace: str) -> AsyncIterator[Journal]:
    async with own_journal(store_url, namespace) as journal:
        yield journal


async def test_an_unknown_id_is_answered_and_not_raised(journal: Journal) -> None:
    """There is no status, and a sentence says what that may mean."""
    told = await journal.describe(new_invocation_id())

    assert (told.is_known, told.place, told.status) == (False, Place.NOWHERE, None)
    assert "never asked for" in told.note
    assert told.owner.worker == "w1"


async def test_an_id_of_a_type_that_the_namespace_does_not_have_says_so(journal: Journal) -> None:
    """A wrong namespace is the usual reason, so it is named."""
    told = await reading.describe(journal.store, InvocationId("Nothing", 0, new_invocation_id()))

    assert not told.is_known
    assert "'Nothing'" in told.note
    assert journal.store.namespace in told.note


async def test_an_accepted_invocation_shows_object_handler_and_time(journal: Journal) -> None:
    """What its first record says."""
    raw_id = new_invocation_id()
    at = await journal.accept(raw_id)

    told = await journal.describe(raw_id)

    assert (told.place, told.status) == (Place.JOURNAL, Status.QUEUED)
    assert (told.object_name, told.key, told.handler, told.version) == ("Order", "acme/o-1001", "refund", 1)
    assert told.accepted_at == at
    assert told.ended_at is told.result is told.pause is None
    assert told.read_at >= at


async def test_steps_are_named_in_order_with_their_attempts_and_sizes(journal: Journal) -> None:
    """One that is being tried again is the last, with its error and the time of its next attempt."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.record(raw_id, StepAttemptFailed(0, "read order", 1, BROKEN, 50))
    await journal.record(raw_id, StepCompleted(0, "read order", pack("order")))
    await journal.record(raw_id, StepFailed(1, "ask", BROKEN))
    at = await journal.write(
        operations.record(journal.space, raw_id, StepAttemptFailed(2, "charge", 1, BROKEN, 5_000)),
        operations.schedule(raw_id, 5_000),
    )

    told = await journal.describe(raw_id)

    assert told.status is Status.WAITING
    shape = [(step.name, step.is_settled, step.failed_attempts, step.size_bytes) for step in told.steps]
    assert shape == [("read order", True, 1, 6), ("ask", True, 0, None), ("charge", False, 1, None)]
    assert told.steps[1].error == told.steps[2].error == told.error == BROKEN
    assert told.retry_due_at == at + timedelta(seconds=5)


async def test_a_paused_invocation_names_reason_and_who_is_in_charge(journal: Journal) -> None:
    """Somebody has to know that it is theirs."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.record(raw_id, AttemptFailed(1, BROKEN, 10))
    at = await journal.record(raw_id, Paused(PauseReason.RETRIES_SPENT, "failed twice", BROKEN))

    told = await journal.describe(raw_id)

    assert told.status is Status.PAUSED
    assert told.pause is not None
    assert (told.pause.reason, told.pause.detail) == (PauseReason.RETRIES_SPENT, "failed twice")
    assert (told.pause.since, told.pause.in_charge) == (at, "refunds-oncall")
    assert told.failed_attempts == 1


async def test_a_resumed_invocation_is_queued_again_with_its_attempts_counted_anew(journal: Journal) -> None:
    """The words of the state machine, not of the last pause."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.record(raw_id, AttemptFailed(1, BROKEN, 10), Paused(PauseReason.RETRIES_SPENT, "failed twice"))
    await journal.record(raw_id, Resumed("ada", "fixed"))

    told = await journal.describe(raw_id)

    assert (told.status, told.pause, told.failed_attempts) == (Status.QUEUED, None, 0)


async def test_an_ended_invocation_tells_whether_its_result_is_kept(journal: Journal) -> None:
    """And for how long, by the store's clock."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    at = await journal.end(raw_id, Completed(), Succeeded(pack("receipt")))

    told = await journal.describe(raw_id)
    await journal.store.call("DEL", journal.space.result(raw_id))
    later = await journal.describe(raw_id)

    assert (told.status, told.ended_at) == (Status.COMPLETED, at)
    assert told.result is not None
    assert told.result.kind is ResultKind.SUCCEEDED
    assert told.result.expires_at is not None
    assert abs(told.result.expires_at - at - timedelta(hours=1)) < timedelta(seconds=10)
    assert (later.status, later.result) == (Status.COMPLETED, None)
    assert "no longer kept" in later.note


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        (Succeeded(pack(1)), Status.COMPLETED, ResultKind.SUCCEEDED),
        (Rejected(BROKEN), Status.FAILED, ResultKind.FAILED),
        (Refused("invalid-input", "invalid input at amount", pack({})), None, ResultKind.REFUSED),
        (Replayed(bytes(16), 1), None, ResultKind.REPLAYED),
    ],
)
async def test_one_of_which_only_the_result_is_kept_is_described_by_it(
    journal: Journal, outcome: Outcome, status: Status | None, kind: ResultKind
) -> None:
    """A short invocation has no stream; refused and replayed ones never ran."""
    raw_id = new_invocation_id()
    await journal.write(operations.result(journal.space, raw_id, encode_outcome(outcome), HOUR_MS))

    told = await journal.describe(raw_id)

    assert (told.place, told.status, told.key) == (Place.RESULT, status, None)
    assert told.result is not None
    assert told.result.kind is kind
    assert told.note


async def test_a_replayed_id_names_the_first_one(journal: Journal) -> None:
    """So that a reader can go on there."""
    raw_id, first = new_invocation_id(), new_invocation_id()
    await journal.write(operations.result(journal.space, raw_id, encode_outcome(Replayed(first, 1)), HOUR_MS))

    told = await journal.describe(raw_id)

    assert told.result is not None
    assert told.result.first == f"Order.3.{first.hex()}"


async def test_a_request_that_nobody_has_taken_in_is_found_in_the_inbox(journal: Journal) -> None:
    """It is queued, and the note says what it waits for."""
    raw_id = new_invocation_id()
    await submit(journal.store, journal.space, request(raw_id))
    held = await journal.describe(raw_id)
    await release(journal.store, journal.space, journal.tenure)
    released = await journal.describe(raw_id)

    assert (held.place, held.status, held.key, held.handler) == (Place.INBOX, Status.QUEUED, str(KEY), "refund")
    assert held.asked_at is not None
    assert "owner" in held.note
    assert "worker" in released.note
    assert released.owner.holder is None


async def test_records_that_cant_be_read_are_said_and_not_raised(journal: Journal) -> None:
    """The rest is told as far as it goes."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.write((b"a", journal.space.invocation(raw_id), 2, b"r", b"\xc1garbage"))
    told = await journal.describe(raw_id)
    await journal.record(raw_id, Paused(PauseReason.UNDECODABLE, "entry 1-0"))
    parked = await journal.describe(raw_id)
    await journal.record(raw_id, WaitCompleted(0, new_invocation_id(), b""))
    completed = await journal.describe(raw_id)

    assert (told.status, told.handler) == (Status.QUEUED, "refund")
    assert told.undecodable is not None
    assert parked.status is Status.PAUSED
    assert parked.pause is not None
    assert parked.undecodable == told.undecodable
    assert completed.status is Status.PAUSED


async def test_records_in_an_illegal_order_are_said_and_not_raised(journal: Journal) -> None:
    """A reader is not the one to stop at it."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.record(raw_id, StepCompleted(5, "fifth", b""))

    told = await journal.describe(raw_id)

    assert told.status is Status.RUNNING
    assert told.undecodable is not None
    assert "step 0 is next" in told.undecodable


async def test_a_result_that_cant_be_read_is_said_and_not_raised(journal: Journal) -> None:
    """Also where it is all that there is."""
    raw_id = new_invocation_id()
    await journal.write(operations.result(journal.space, raw_id, b"\xc1", HOUR_MS))

    told = await journal.describe(raw_id)

    assert told.result is not None
    assert (told.place, told.status, told.result.kind) == (Place.RESULT, None, ResultKind.UNDECODABLE)


async def test_describe_reads_no_more_records_than_its_bound_and_says_so(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is that of the newest record all the same."""
    monkeypatch.setattr(reading, "RECORDS", Bound(3))
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    for index in range(6):
        await journal.record(raw_id, StepCompleted(index, f"step {index}", b""))
    await journal.end(raw_id, Failed(BROKEN), Rejected(BROKEN))

    told = await journal.describe(raw_id)

    assert told.is_cut
    assert [step.index for step in told.steps] == [0, 1]
    assert (told.status, told.error) == (Status.FAILED, BROKEN)


async def test_a_stream_is_read_in_pages_from_either_end(journal: Journal) -> None:
    """Nothing is read twice or left out between two pages."""
    for number in range(40):
        await journal.write((b"a", journal.space.object("acme/pages"), 2, b"n", b"%d" % number))
    stream = journal.space.object("acme/pages")

    forward, forward_cut = await read_stream(journal.store, stream, Bound(100))
    backward, backward_cut = await read_stream(journal.store, stream, Bound(30), newest_first=True)
    large, large_cut = await read_stream(journal.store, stream, Bound(100, 20))

    assert [int(fields[1]) for _, fields in forward] == list(range(40))
    assert [int(fields[1]) for _, fields in backward] == list(range(39, 9, -1))
    assert (forward_cut, backward_cut, large_cut) == (False, True, True)
    assert len(large) == 16
