"""What `inspect` says of an object: its state, its lane, its timeline, and garbage in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from keylane.journal import operations, reading
from keylane.journal.codec import pack
from keylane.journal.command_records import StepAttemptFailed, StepCompleted, StepFailed
from keylane.journal.errors import WrongKeyType
from keylane.journal.inbox import submit
from keylane.journal.key import new_invocation_id
from keylane.journal.leases import release
from keylane.journal.noted import Bound
from keylane.journal.object_description import What
from keylane.journal.operations import StateChange
from keylane.journal.outcomes import Rejected, Succeeded
from keylane.journal.records import (
    Accepted,
    Completed,
    Failed,
    Finished,
    Paused,
    PauseReason,
    Resumed,
)
from keylane.journal.requests import RequestKind
from keylane.journal.standing import Status
from tests.journal.written_journal import BROKEN, HOUR_MS, KEY, Journal, own_journal, request

pytestmark = pytest.mark.anyio


@pytest.fixture
async def journal(store_url: str, namespace: str) -> AsyncIterator[Journal]:
    async with own_journal(store_url, namespace) as journal:
        yield journal


async def test_an_object_that_nobody_ever_called_is_empty(journal: Journal) -> None:
    """Its partition's owner is known all the same."""
    told = await journal.inspect()

    assert not told.is_known
    assert (told.state, told.timeline, told.lane.open) == ((), (), ())
    assert (told.owner.worker, told.owner.epoch, told.owner.lease) == ("w1", 1, 0)
    assert told.in_charge == "refunds-oncall"


async def test_the_state_is_the_newest_snapshot_and_the_deltas_after_it(journal: Journal) -> None:
    """By name, packed, with sizes."""
    await journal.short(new_invocation_id(), StateChange({}, {"value": pack(1), "note": pack("x")}))
    await journal.short(new_invocation_id(), StateChange({"value": pack(70_000), "note": None}))
    await journal.short(new_invocation_id())

    told = await journal.inspect(timeline_entries=1)

    assert [(value.name, value.packed, value.size_bytes) for value in told.state] == [("value", pack(70_000), 5)]
    assert told.state_problem is None
    assert (len(told.timeline), told.is_timeline_cut) == (1, True)


async def test_a_state_that_lies_too_far_back_is_not_guessed(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded work, and a sentence in place of the values."""
    monkeypatch.setattr(reading, "HISTORY", Bound(8))
    await journal.short(new_invocation_id(), StateChange({"value": pack(1)}))
    for _ in range(10):
        await journal.short(new_invocation_id())

    told = await journal.inspect(timeline_entries=2)

    assert told.state == ()
    assert told.state_problem is not None
    assert "newest 8 entries" in told.state_problem


@pytest.mark.parametrize("garbage", [b"\xc1", pack([1]), pack({"value": 5}), pack({b"value": b"x"})])
async def test_a_state_that_cant_be_read_is_said_and_not_raised(journal: Journal, garbage: bytes) -> None:
    """The rest of the object is shown as usual."""
    raw_id = new_invocation_id()
    await journal.short(raw_id)
    await journal.write((b"a", journal.space.object(str(KEY)), 4, b"d", garbage, b"i", raw_id))

    told = await journal.inspect()

    assert told.state == ()
    assert told.state_problem is not None
    assert told.timeline[0].what is What.COMPLETED


async def test_the_lane_shows_its_holder_since_when_and_why_and_who_waits(journal: Journal) -> None:
    """In order of intake."""
    head, second, third = new_invocation_id(), new_invocation_id(), new_invocation_id()
    at = await journal.accept(head)
    await journal.accept(second, "add")
    await journal.accept(third)
    await journal.record(head, StepCompleted(0, "read order", pack("x")))

    told = await journal.inspect()

    lane = told.lane
    assert (lane.length, lane.is_runnable, lane.held_since) == (3, True, at)
    assert lane.holder is not None
    assert (lane.holder.id, lane.holder.status) == (f"Order.3.{head.hex()}", Status.RUNNING)
    assert "w1" in lane.holder.why
    assert [(each.handler, each.status) for each in lane.open[1:]] == [
        ("add", Status.QUEUED),
        ("refund", Status.QUEUED),
    ]
    assert all(head.hex() in each.why for each in lane.open[1:])


async def test_a_lane_is_held_from_the_end_of_the_one_before(journal: Journal) -> None:
    """Not from the moment at which its holder began to wait for it."""
    first, second = new_invocation_id(), new_invocation_id()
    await journal.accept(first)
    await journal.accept(second)
    at = await journal.end(first, Completed(), Succeeded(pack(1)))

    told = await journal.inspect()

    assert told.lane.held_since == at


async def test_a_lane_without_an_owner_says_that_it_waits_for_a_worker(journal: Journal) -> None:
    """Nobody runs it, whatever its records say."""
    await journal.accept(new_invocation_id())
    await release(journal.store, journal.space, journal.tenure)

    told = await journal.inspect()

    assert told.lane.holder is not None
    assert "worker" in told.lane.holder.why


async def test_a_paused_holder_says_who_has_to_resume_it(journal: Journal) -> None:
    """The reason why all the others wait."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.write(
        operations.record(journal.space, raw_id, Paused(PauseReason.DIVERGED, "other step")),
        *operations.park(str(KEY), raw_id),
    )

    told = await journal.inspect()

    assert told.lane.holder is not None
    assert told.lane.holder.why == "paused (diverged): other step; refunds-oncall has to resume it"
    assert told.lane.holder.pause is not None
    assert not told.lane.is_runnable


async def test_one_that_waits_for_its_next_attempt_says_when_it_is_due(journal: Journal) -> None:
    """With the number of the attempt and the last error."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.write(
        operations.record(journal.space, raw_id, StepAttemptFailed(0, "charge", 2, BROKEN, 60_000)),
        operations.schedule(raw_id, 60_000),
    )

    (told,) = (await journal.inspect()).lane.open

    assert told.retry_due_at is not None
    assert (told.status, told.failed_attempts) == (Status.WAITING, 2)
    assert told.why.startswith("attempt 3 of step 0 is due in ")
    assert told.why.endswith("after ValueError: no such card")


async def test_parked_invocations_that_left_the_lane_are_found_in_the_newest_history(journal: Journal) -> None:
    """An object type may let others pass a parked one; it must not be forgotten."""
    aside, ended = new_invocation_id(), new_invocation_id()
    await journal.accept(aside)
    await journal.write(
        operations.record(journal.space, aside, Paused(PauseReason.RETRIES_SPENT, "spent")),
        operations.leave_lane(journal.space, str(KEY), aside),
    )
    await journal.accept(ended)
    await journal.end(ended, Completed(), Succeeded(pack(1)))

    lane = (await journal.inspect()).lane

    assert lane.open == ()
    assert [each.id for each in lane.parked] == [f"Order.3.{aside.hex()}"]


async def test_a_long_lane_is_described_up_to_a_bound_and_its_length_told(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a reader sees that there are more."""
    monkeypatch.setattr(reading, "OPEN_MAX", 2)
    for _ in range(5):
        await journal.accept(new_invocation_id())

    lane = (await journal.inspect()).lane

    assert (len(lane.open), lane.length) == (2, 5)


async def test_requests_of_the_object_in_the_inbox_are_shown_and_others_are_not(journal: Journal) -> None:
    """What is garbage is passed over: the owner puts it aside."""
    mine, other = new_invocation_id(), new_invocation_id()
    await submit(journal.store, journal.space, request(mine))
    await submit(journal.store, journal.space, replace(request(other), key="acme/other"))
    await journal.store.call("XADD", journal.space.inbox, "*", "m", b"\xc1garbage")
    await journal.store.call("XADD", journal.space.inbox, "*", "foreign", b"field")

    lane = (await journal.inspect()).lane

    assert [(each.id, each.handler, each.kind) for each in lane.waiting] == [
        (f"Order.3.{mine.hex()}", "refund", RequestKind.SEND)
    ]
    assert (lane.inbox_length, lane.inbox_read) == (4, 4)


async def test_the_timeline_merges_the_object_with_its_long_invocations(journal: Journal) -> None:
    """Each fact once, in the order in which it happened, with names and what was written."""
    short, long = new_invocation_id(), new_invocation_id()
    await journal.short(short, StateChange({"value": pack(1)}))
    await journal.accept(long)
    await journal.write(
        operations.record(journal.space, long, StepCompleted(0, "read order", pack("x"))),
        operations.change(journal.space, str(KEY), long, StateChange({"value": None, "seen": pack("yes")})),
    )
    await journal.record(long, StepAttemptFailed(1, "charge", 1, BROKEN, 50))
    await journal.record(long, StepFailed(1, "charge", BROKEN))
    await journal.end(long, Failed(BROKEN), Rejected(BROKEN), StateChange({}, {"seen": pack("yes")}))

    told = await journal.inspect()

    assert [(event.what, event.name) for event in told.timeline] == [
        (What.COMPLETED, "add"),
        (What.ACCEPTED, "refund"),
        (What.STEP, "read order"),
        (What.STATE, ""),
        (What.STEP_RETRY, "charge"),
        (What.STEP_FAILED, "charge"),
        (What.FAILED, "refund"),
    ]
    assert told.timeline[0].invocation == f"Order.3.{short.hex()}"
    assert (told.timeline[3].wrote, told.timeline[3].cleared) == (("seen",), ("value",))
    assert told.timeline[4].detail == "attempt 1: ValueError: no such card; again after 50 ms"
    assert (told.timeline[6].detail, told.timeline[6].is_snapshot) == ("ValueError: no such card", True)
    assert all(event.size_bytes > 0 for event in told.timeline)


async def test_what_is_left_of_an_old_history_stands_in_the_timeline(journal: Journal) -> None:
    """As what it is, with what it keeps; one that can't be read is said to be so."""
    await journal.write(*operations.shrink(journal.space, str(KEY), {"seen": pack("yes")}))
    await journal.short(new_invocation_id(), StateChange({"value": pack(1)}))

    told = await journal.inspect()

    assert [(event.what, event.wrote, event.invocation is None) for event in told.timeline] == [
        (What.SHRUNK, ("seen",), True),
        (What.COMPLETED, ("value",), False),
    ]
    await journal.store.call("XADD", journal.space.object(str(KEY)), "*", "s", b"\xc1")
    assert [event.what for event in (await journal.inspect()).timeline][-1] is What.UNDECODABLE


async def test_pauses_and_resumptions_stand_in_the_timeline(journal: Journal) -> None:
    """With who did it and why."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.record(raw_id, Paused(PauseReason.OPERATOR, "looking", by="ada"), Resumed("bo", "looked"))

    told = await journal.inspect()

    assert [(event.what, event.detail) for event in told.timeline[1:]] == [
        (What.PAUSED, "operator by ada: looking"),
        (What.RESUMED, "by bo: looked"),
    ]


async def test_facts_of_one_millisecond_keep_the_order_of_the_object(journal: Journal) -> None:
    """One commit may hold the end of one invocation and all of the next."""
    first, second = new_invocation_id(), new_invocation_id()
    await journal.write(
        *operations.accept(journal.space, Accepted(first, "refund", 1, str(KEY), None)),
        operations.record(journal.space, first, StepCompleted(0, "one", b"")),
        operations.finish_short(journal.space, str(KEY), Finished(first, "refund", 1, None, "c"), None),
        *operations.finish_long(journal.space, str(KEY), first, Completed(), HOUR_MS),
        operations.finish_short(journal.space, str(KEY), Finished(second, "add", 1, None, "c"), None),
    )

    told = await journal.inspect()

    assert [(event.what, event.name) for event in told.timeline] == [
        (What.ACCEPTED, "refund"),
        (What.STEP, "one"),
        (What.COMPLETED, "refund"),
        (What.COMPLETED, "add"),
    ]


async def test_history_that_cant_be_read_is_shown_as_such(journal: Journal) -> None:
    """In its place, so that what lies around it can be judged."""
    raw_id = new_invocation_id()
    stream = journal.space.object(str(KEY))
    for fields in (
        (b"f", b"\xc1"),
        (b"f", operations.record(journal.space, raw_id, Completed())[4]),
        (b"a", pack("no pair")),
        (b"x", b"unknown field"),
    ):
        await journal.write((b"a", stream, 2, *fields))
    await journal.accept(raw_id)
    await journal.write((b"a", journal.space.invocation(raw_id), 2, b"r", b"\xc1"))

    told = await journal.inspect()

    assert [event.what for event in told.timeline] == [*[What.UNDECODABLE] * 4, What.ACCEPTED, What.UNDECODABLE]
    assert all(event.detail for event in told.timeline if event.what is What.UNDECODABLE)
    assert told.timeline[-1].invocation == f"Order.3.{raw_id.hex()}"


async def test_an_open_invocation_whose_records_are_gone_is_shown_as_such(journal: Journal) -> None:
    """Its place in the lane is there, and that is told."""
    raw_id = new_invocation_id()
    await journal.accept(raw_id)
    await journal.store.call("DEL", journal.space.invocation(raw_id))

    (told,) = (await journal.inspect()).lane.open

    assert (told.status, told.handler) == (None, None)
    assert "there are none" in told.why


async def test_a_foreign_key_in_the_place_of_a_stream_is_named(journal: Journal) -> None:
    """It is not touched, and not taken for an empty history."""
    await journal.store.call("SET", journal.space.object(str(KEY)), "foreign")

    with pytest.raises(WrongKeyType, match=r"acme/o-1001"):
        await journal.inspect()


async def test_bytes_of_the_owner_key_that_are_no_numbers_stop_no_reader(journal: Journal) -> None:
    """They tell nothing, and the rest is told."""
    await journal.accept(new_invocation_id())
    await journal.store.call("HSET", journal.space.owner, "lease", "x", "epoch", b"\xff", "time", "soon")

    told = await journal.inspect()

    assert (told.owner.epoch, told.owner.lease) == (None, 0)
    assert len(told.lane.open) == 1
