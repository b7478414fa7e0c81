from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.tenure import VACANT, Announcement, Observation, encode_announcement
from keylane.runtime.assignment import LiveWorker
from keylane.runtime.liveness import LeaseWatch, Neighbours, Stillness, Verdict

LEASE = 3.0
HELD = Observation(4, 17, released=False, worker="w2", machine="m")


def watched(watch: LeaseWatch, seen: Observation, *times: float) -> list[Verdict]:
    """Poll at each of the times; an answer takes 10 ms."""
    return [watch.poll(seen, sent_at=at, answered_at=at + 0.01) for at in times]


def test_a_counter_that_stands_still_for_a_lease_has_expired() -> None:
    """The time counts from the answer that saw the counter first to the sending of the poll that saw it last."""
    verdicts = watched(LeaseWatch(LEASE), HELD, 100, 101, 102, 103.005, 103.02)

    assert verdicts == ["held", "held", "held", "held", "expired"]


def test_a_counter_that_moves_begins_the_lease_anew() -> None:
    """One renewal is a full lease."""
    watch = LeaseWatch(LEASE)

    assert watched(watch, HELD, 100, 101, 102)[-1] is Verdict.HELD
    assert watched(watch, replace(HELD, lease=18), 102.9, 104, 105, 105.8)[-1] is Verdict.HELD
    assert watched(watch, replace(HELD, lease=18), 106)[-1] is Verdict.EXPIRED


def test_a_new_tenure_with_an_equal_counter_is_a_new_lease() -> None:
    """Each tenure counts from zero, so the counter alone does not tell two holders apart."""
    watch = LeaseWatch(LEASE)

    assert watched(watch, HELD, 100, 101, 102)[-1] is Verdict.HELD
    assert watched(watch, replace(HELD, epoch=5), 103.1, 104)[-1] is Verdict.HELD


@pytest.mark.parametrize(("theirs", "expires_at"), [(0.0, 103.02), (1.0, 103.02), (5.0, 105.02)])
def test_the_longer_one_of_both_leases_counts(theirs: float, expires_at: float) -> None:
    """A holder that was started with a longer lease than ours goes on serving for as long."""
    watch, seen = LeaseWatch(LEASE), replace(HELD, lease_seconds=theirs)

    before = [*(at for at in (100, 101, 102, 103, 104) if at < expires_at), expires_at - 0.02]
    assert set(watched(watch, seen, *before)) == {Verdict.HELD}
    assert watched(watch, seen, expires_at) == [Verdict.EXPIRED]


def test_unanswered_polls_do_not_expire_a_lease() -> None:
    """While the store is away its holder can't renew either: a silence of the store is no silence of the holder."""
    watch = LeaseWatch(LEASE)

    assert watched(watch, HELD, 100, 101)[-1] is Verdict.HELD
    # The polls from 102 to 130 got no answer, so the watch was not told of them.
    assert watched(watch, HELD, 130, 131, 132)[-1] is Verdict.HELD
    assert watched(watch, HELD, 133.1)[-1] is Verdict.EXPIRED


def test_a_paused_observer_concludes_nothing_from_its_own_pause() -> None:
    """Two looks a lease apart prove nothing about a holder that may have been paused with the observer."""
    assert watched(LeaseWatch(LEASE), HELD, 100, 160) == ["held", "held"]


def test_a_slow_answer_is_a_pause() -> None:
    """A store that took seconds to answer the observer took seconds to answer the holder."""
    watch = LeaseWatch(LEASE)
    watched(watch, HELD, 100, 101, 102)

    assert watch.poll(HELD, sent_at=103, answered_at=109) is Verdict.HELD
    assert watched(watch, HELD, 110)[-1] is Verdict.HELD


def test_a_verdict_does_not_outlive_the_observers_pause() -> None:
    """Who saw a lease expire and then slept must look for a lease again."""
    watch = LeaseWatch(LEASE)
    assert watched(watch, HELD, 100, 101, 102, 103.1)[-1] is Verdict.EXPIRED

    assert watched(watch, HELD, 110)[-1] is Verdict.HELD


def test_a_partition_without_holder_needs_no_waiting() -> None:
    """A partition that never had an owner, and one that was handed over, may be taken at once."""
    assert watched(LeaseWatch(LEASE), VACANT, 100) == ["vacant"]
    assert watched(LeaseWatch(LEASE), replace(HELD, released=True), 100) == ["released"]


@given(
    st.lists(
        st.tuples(st.floats(0.05, 1.8), st.floats(0, 0.4), st.sampled_from([1, 1, 1, 2])), min_size=1, max_size=40
    ),
    st.floats(0, 1e9),
)
def test_no_lease_expires_that_was_not_seen_unchanged_for_its_whole_length(
    polls: list[tuple[float, float, int]], begin: float
) -> None:
    """At any pace, an expired verdict means that the last answers, all alike and close together, span a lease."""
    watch = LeaseWatch(LEASE)
    now, history = begin, list[tuple[float, float, int]]()
    for wait, flight, counter in polls:
        sent_at, now = now + wait, now + wait + flight
        history.append((sent_at, now, counter))
        verdict = watch.poll(replace(HELD, lease=counter), sent_at=sent_at, answered_at=now)

        if verdict is Verdict.EXPIRED:
            assert spans_a_lease(history)


def spans_a_lease(history: list[tuple[float, float, int]]) -> bool:
    last_sent, answered, counter = history[-1]
    for _, earlier, seen in reversed(history):
        if seen != counter or answered - earlier > LEASE / 2:
            return False
        answered = earlier
        if last_sent - earlier >= LEASE:
            return True
    return False


def test_stillness_is_never_negative() -> None:
    """A first look proves no time at all."""
    assert Stillness[int](1.0).poll(1, sent_at=5.0, answered_at=5.5) == 0.0


def announced(
    counter: int,
    *hosts: str,
    machine: str = "m",
    draining: bool = False,
    library: str = "l1",
    lease_seconds: float = 0.0,
) -> bytes:
    return encode_announcement(Announcement(counter, hosts or ("Order",), machine, library, draining, lease_seconds))


def neighbours() -> Neighbours:
    return Neighbours("w1", lease_seconds=LEASE)


def see(watch: Neighbours, at: float, **announcements: bytes) -> list[str]:
    """Poll once, and return the names of the live workers."""
    own = announced(int(at * 1000))
    watch.poll({"w1": own, **announcements}, sent_at=at, answered_at=at + 0.01)
    return [each.worker for each in watch.live]


def test_a_worker_counts_as_alive_until_its_announcement_stood_still_for_a_lease() -> None:
    """A newcomer can't tell the dead from the living before it has watched them for a lease."""
    watch = neighbours()
    still = announced(7)

    assert see(watch, 100, w2=still) == ["w1", "w2"]
    for at in (101, 102, 103):
        assert see(watch, at, w2=still) == ["w1", "w2"]
    assert see(watch, 103.1, w2=still) == ["w1"]


def test_a_worker_with_a_longer_lease_is_given_that_long() -> None:
    """It announces itself as rarely as its own lease allows."""
    watch = neighbours()
    longer, shorter = announced(7, lease_seconds=2 * LEASE), announced(7, lease_seconds=LEASE / 2)
    for at in (100, 101, 102, 103):
        assert see(watch, at, w2=longer, w3=shorter) == ["w1", "w2", "w3"]
    for at in (103.1, 104, 105, 106):
        assert see(watch, at, w2=longer, w3=shorter) == ["w1", "w2"]
    assert see(watch, 106.1, w2=longer, w3=shorter) == ["w1"]


def test_a_live_worker_is_known_by_any_change_of_its_announcement() -> None:
    """A worker that goes on announcing itself stays alive, and one that comes back is alive at once."""
    watch = neighbours()
    for at in (100, 101, 102, 103, 104):
        assert see(watch, at, w2=announced(at)) == ["w1", "w2"]
    for at in (105, 106, 107, 108):
        see(watch, at, w2=announced(1))
    assert see(watch, 108.1, w2=announced(1)) == ["w1"]

    assert see(watch, 108.2, w2=announced(2)) == ["w1", "w2"]


def test_a_pause_of_the_observer_neither_kills_nor_revives() -> None:
    """After a gap the living are given a lease anew, and the dead stay dead until they speak."""
    watch = neighbours()
    for at in (100, 101, 102, 103.1):
        see(watch, at, w2=announced(1), w3=announced(at if isinstance(at, int) else 103))
    assert [each.worker for each in watch.live] == ["w1", "w3"]

    assert see(watch, 200, w2=announced(1), w3=announced(103)) == ["w1", "w3"]
    assert see(watch, 201, w2=announced(1), w3=announced(103)) == ["w1", "w3"]


def test_this_worker_never_counts_itself_dead() -> None:
    """Its own announcement is as old as its last poll, whatever the clock says."""
    watch = neighbours()
    for at in (100, 101, 102, 103, 104):
        watch.poll({"w1": announced(1)}, sent_at=at, answered_at=at + 0.01)

    assert [each.worker for each in watch.live] == ["w1"]
    assert watch.forgettable() == []


def test_a_draining_worker_is_given_nothing() -> None:
    """It lives, holds what it holds, and takes no part in the division."""
    watch = neighbours()

    assert see(watch, 100, w2=announced(1, draining=True, library="l2")) == ["w1"]
    assert watch.libraries == {"l1", "l2"}
    assert watch.suspects() == [("w2", "m")]


def test_an_announcement_that_can_not_be_read_is_given_nothing_and_forgotten_when_still() -> None:
    """What a foreign release wrote takes no part; it is taken out like any other that stands still."""
    watch = neighbours()

    assert see(watch, 100, w2=b"not ours") == ["w1"]
    for at in range(101, 104):
        see(watch, at, w2=b"not ours")
    see(watch, 103.1, w2=b"not ours")
    see(watch, 164, w2=b"not ours")

    assert watch.forgettable() == [("w2", b"not ours")]


def test_a_dead_workers_announcement_is_forgotten_after_a_minute() -> None:
    """Not before, and only with the announcement that was seen."""
    watch = neighbours()
    for at in (100, 101, 102, 103.1):
        see(watch, at, w2=announced(1))

    see(watch, 162, w2=announced(1))
    assert watch.forgettable() == []
    see(watch, 164, w2=announced(1))
    assert watch.forgettable() == [("w2", announced(1))]

    see(watch, 165)
    assert watch.forgettable() == []


def test_a_worker_that_is_known_to_be_dead_need_not_stand_still() -> None:
    """Its machine said so; only a new announcement would prove it wrong."""
    watch = neighbours()
    see(watch, 100, w2=announced(1))

    assert watch.bury(["w2", "w9", "w1"])
    assert [each.worker for each in watch.live] == ["w1"]
    assert see(watch, 100.5, w2=announced(1)) == ["w1"]
    assert watch.suspects() == []


def test_a_poll_says_whether_partitions_must_be_divided_anew() -> None:
    """A counter that moves changes nothing; a worker that comes, goes or hosts something else does."""
    watch = neighbours()
    own = announced(1)

    def poll(at: float, **others: bytes) -> bool:
        return watch.poll({"w1": own, **others}, sent_at=at, answered_at=at)

    assert poll(100)
    assert not poll(100.1)
    assert poll(100.2, w2=announced(1))
    assert not poll(100.3, w2=announced(2))
    assert poll(100.4, w2=announced(3, "Order", "Customer"))
    assert watch.live[1] == LiveWorker("w2", frozenset({"Order", "Customer"}))
    assert poll(100.5)


@pytest.mark.parametrize("gap", [0.1, 1.0, 1.49])
def test_the_pace_of_polls_does_not_matter_below_half_a_lease(gap: float) -> None:
    """However often one looks, a lease is a lease."""
    watch, at = LeaseWatch(LEASE), 100.0
    while watch.poll(HELD, sent_at=at, answered_at=at) is not Verdict.EXPIRED:
        at += gap

    assert LEASE <= at - 100 < LEASE + gap
