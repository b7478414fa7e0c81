"""What is done about an unknown outcome: the rules, for any contract at any time."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.ledger import EventKind, Happened
from keylane.objects.recovery import (
    ATTEMPTS_MAX,
    LOOKUP_LAST_MS,
    LOOKUP_PATIENCE_MS,
    AskPeople,
    AttemptAnew,
    Contract,
    LookUp,
    NextAction,
    Question,
    Resend,
    absence_counts,
    allowed_acts,
    next_action,
    pause_ms,
    question_of,
    quiet_from,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
T0 = 1_700_000_000_000

spans = st.integers(0, 3 * DAY) | st.integers(0, 5 * MINUTE)
contracts = st.builds(
    Contract,
    dedup_ms=st.none() | spans,
    can_look_up=st.booleans(),
    lag_ms=spans,
    found_ms=st.none() | spans,
    absent_means_not_done=st.booleans(),
    in_flight_ms=st.integers(1, 10 * MINUTE),
    may_be_late=st.booleans(),
    lease_ms=st.integers(100, 30_000),
    asks_people=st.just(value=False),
    send_within_ms=st.sampled_from([0, 10_000]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Contract, Question, int]:
    """A contract, what is known of an effect in question, and a time; often at the edges of what the contract says."""
    contract = draw(contracts)
    intended = T0 + draw(spans)
    since = intended + draw(st.integers(0, 10 * MINUTE))
    send_before = intended + draw(st.integers(0, 30_000))
    first = draw(st.sampled_from([T0, intended]))
    flight = contract.in_flight_ms + contract.leaves_within_ms
    edges = [send_before + contract.in_flight_ms, send_before + contract.in_flight_ms + contract.lag_ms]
    edges += [first + span - delay for span in (contract.dedup_ms, contract.found_ms) if span for delay in (0, flight)]
    moments = st.builds(int.__add__, st.sampled_from(edges), st.integers(-1, 1)) | spans.map(lambda span: since + span)
    lookups = draw(st.integers(0, 40))
    asked = max(since, draw(moments)) if lookups else None
    absent = bool(lookups) and draw(st.booleans())
    question = Question(first, send_before, lookups, asked, absent, draw(st.integers(1, 20)), since)
    return contract, question, max(since, asked or 0, draw(moments))


def moment_of(action: NextAction, now: int) -> int:
    """When an action takes place."""
    return now if isinstance(action, AskPeople) else action.at_ms


@given(cases())
def test_absence_counts_only_when_nothing_can_be_under_way_and_nothing_forgotten(
    case: tuple[Contract, Question, int],
) -> None:
    """It was asked for after the last moment of sending, the flight and the lag, and inside the look-up retention."""
    contract, question, _ = case
    if not absence_counts(contract, question):
        return

    assert question.was_absent
    assert question.last_lookup_ms is not None
    assert question.last_lookup_ms >= question.send_before_ms + contract.in_flight_ms + contract.lag_ms
    if contract.found_ms is not None:
        assert question.last_lookup_ms < question.first_ms + contract.found_ms


@given(cases())
def test_another_attempt_follows_only_from_absence_that_is_certain(case: tuple[Contract, Question, int]) -> None:
    """By contract it means that nothing was done, and a late call can't come, or is recognised."""
    contract, question, now = case
    action = next_action(contract, question, now)
    if not isinstance(action, AttemptAnew):
        return

    assert contract.absent_means_not_done
    assert absence_counts(contract, question)
    if contract.may_be_late:
        assert contract.dedup_ms is not None
        assert now + contract.in_flight_ms + contract.lease_ms < question.first_ms + contract.dedup_ms


@given(cases())
def test_a_resend_arrives_while_the_receiver_knows_the_id(case: tuple[Contract, Question, int]) -> None:
    """Even if it is sent at the last moment and takes as long as it may."""
    contract, question, now = case
    action = next_action(contract, question, now)
    if not isinstance(action, Resend):
        return

    assert contract.dedup_ms is not None
    leaves_ms = max(contract.lease_ms, contract.send_within_ms)
    assert action.at_ms + contract.in_flight_ms + leaves_ms < question.first_ms + contract.dedup_ms


@given(cases())
def test_look_ups_happen_only_where_there_is_one_and_inside_its_retention(case: tuple[Contract, Question, int]) -> None:
    """Beyond it, what is not found may have been forgotten."""
    contract, question, now = case
    action = next_action(contract, question, now)
    at_ms = action.look_again_ms if isinstance(action, AskPeople) else getattr(action, "at_ms", None)
    if at_ms is None or isinstance(action, Resend | AttemptAnew):
        return

    assert contract.can_look_up
    assert contract.found_ms is None or at_ms < question.first_ms + contract.found_ms


@given(cases())
def test_nothing_is_planned_for_the_past(case: tuple[Contract, Question, int]) -> None:
    """An action that is due is due now."""
    contract, question, now = case

    assert moment_of(next_action(contract, question, now), now) >= now


@given(cases())
def test_a_receiver_that_offers_nothing_goes_to_people_at_once(case: tuple[Contract, Question, int]) -> None:
    """Whatever the time, and whatever else it says; and nothing is sent again by hand either."""
    contract, question, now = case
    nothing = replace(contract, dedup_ms=None, can_look_up=False)

    assert isinstance(next_action(nothing, question, now), AskPeople)
    assert not allowed_acts(nothing, question, now) & {"resend", "lookup"}


@given(cases())
def test_people_decide_at_once_where_that_is_declared(case: tuple[Contract, Question, int]) -> None:
    """Also where the receiver could be asked."""
    contract, question, now = case

    action = next_action(replace(contract, asks_people=True), question, now)

    assert isinstance(action, AskPeople)
    assert action.look_again_ms is None


@given(cases())
def test_the_first_thing_is_a_look_up_where_there_is_one(case: tuple[Contract, Question, int]) -> None:
    """It changes nothing at the receiver, so it comes before a resend."""
    contract, question, now = case
    fresh = replace(question, lookups=0, last_lookup_ms=None, was_absent=False)
    can_find = contract.can_look_up and (contract.found_ms is None or now < question.first_ms + contract.found_ms)

    assert isinstance(next_action(contract, fresh, now), LookUp) == can_find


@given(cases())
def test_the_pause_between_look_ups_is_bounded(case: tuple[Contract, Question, int]) -> None:
    """At most five minutes after the last one, or now."""
    contract, question, now = case
    action = next_action(contract, question, now)
    if not isinstance(action, LookUp) or question.last_lookup_ms is None:
        return

    assert action.at_ms <= max(now, question.last_lookup_ms + LOOKUP_LAST_MS)
    assert action.at_ms > question.last_lookup_ms or action.at_ms == now


@given(cases())
def test_what_people_may_do_is_what_the_contract_allows(case: tuple[Contract, Question, int]) -> None:
    """They can always say what they know of, and that nothing was done once nothing can be under way."""
    contract, question, now = case
    acts = allowed_acts(contract, question, now)

    assert acts >= {"succeeded", "hand-over"}
    assert ("not-done" in acts) == (now >= question.send_before_ms + contract.in_flight_ms)
    if "resend" in acts:
        in_window = contract.dedup_ms is not None and (
            now + contract.in_flight_ms + contract.lease_ms < question.first_ms + contract.dedup_ms
        )
        certain = absence_counts(contract, question) and contract.absent_means_not_done and not contract.may_be_late
        assert in_window or certain


LOOKUP = Contract(
    dedup_ms=None,
    can_look_up=True,
    lag_ms=10_000,
    found_ms=None,
    absent_means_not_done=True,
    in_flight_ms=60_000,
    may_be_late=False,
    lease_ms=3_000,
)
FRESH = Question(T0, T0 + 2_000, 0, None, was_absent=False, since_ms=T0 + 1_000)


def asked(question: Question, at_ms: int, *, absent: bool = True) -> Question:
    """The question after one more look-up that found nothing, or failed."""
    return replace(question, lookups=question.lookups + 1, last_lookup_ms=at_ms, was_absent=absent)


def test_a_look_up_is_planned_for_the_moment_at_which_absence_counts() -> None:
    """Not a pause later: it is the first that can tell."""
    counts_from = T0 + 2_000 + 60_000 + 10_000
    question = replace(FRESH, lookups=10, last_lookup_ms=counts_from - 1, was_absent=True)

    assert next_action(LOOKUP, question, counts_from - 1) == LookUp(counts_from)
    assert next_action(LOOKUP, asked(question, counts_from), counts_from) == AttemptAnew(counts_from)


def test_absence_is_never_enough_where_a_late_call_would_do_it_twice() -> None:
    """People decide, and the receiver is asked again meanwhile."""
    contract = replace(LOOKUP, may_be_late=True)
    now = T0 + HOUR
    action = next_action(contract, asked(FRESH, now), now)

    assert isinstance(action, AskPeople)
    assert "late" in action.why or "still arrive" in action.why
    assert action.look_again_ms == now + LOOKUP_LAST_MS
    assert "resend" not in allowed_acts(contract, asked(FRESH, now), now)


def test_a_resend_follows_the_first_look_up_that_found_nothing() -> None:
    """Where the receiver takes an operation id once there is nothing to wait for."""
    both = replace(LOOKUP, dedup_ms=DAY)

    assert next_action(both, FRESH, T0 + 1_000) == LookUp(T0 + 1_000)
    assert next_action(both, asked(FRESH, T0 + 1_000), T0 + 1_100) == Resend(T0 + 1_100)


def test_pauses_between_resends_grow() -> None:
    """A receiver that is down is not asked without a pause."""
    dedup = replace(LOOKUP, can_look_up=False, dedup_ms=DAY)
    since = FRESH.since_ms
    times = [next_action(dedup, replace(FRESH, attempt=attempt), since) for attempt in (1, 2, 3, 4, 30)]

    pauses = [0, 500, 1_000, 2_000, LOOKUP_LAST_MS]
    assert times == [Resend(since + pause) for pause in pauses]


def test_attempts_that_never_left_make_no_pause_longer() -> None:
    """After an outage in which nothing could be sent, the first call without an answer is followed up at once."""
    refused = (Happened(T0, EventKind.INTENDED), Happened(T0, EventKind.NOT_SENT)) * 9
    life = (*refused, Happened(T0, EventKind.INTENDED, 10), Happened(T0 + 5, EventKind.UNKNOWN, 10))
    entry = an_entry(10, life, send_before_ms=T0 + 9, since_ms=T0 + 5)

    dedup = replace(LOOKUP, can_look_up=False, dedup_ms=DAY)
    assert next_action(dedup, question_of(entry), T0 + 5) == Resend(T0 + 5)
    again = (*life, Happened(T0 + 5, EventKind.RESENT, 11), Happened(T0 + 6, EventKind.UNKNOWN, 11))
    assert question_of(replace(entry, attempt=11, life=again)).attempt == 2


def test_people_are_asked_after_very_many_attempts() -> None:
    """A receiver that is down for days is not sent the same id for a year; people may still have it sent."""
    dedup = replace(LOOKUP, can_look_up=False, dedup_ms=365 * DAY)
    question = replace(FRESH, attempt=ATTEMPTS_MAX)

    assert isinstance(next_action(dedup, replace(FRESH, attempt=ATTEMPTS_MAX - 1), T0 + DAY), Resend)
    assert isinstance(next_action(dedup, question, T0 + DAY), AskPeople)
    assert "resend" in allowed_acts(dedup, question, T0 + DAY)


def test_the_last_moment_of_the_window_is_used() -> None:
    """Rather than none, where the pause would go beyond it."""
    dedup = replace(LOOKUP, can_look_up=False, dedup_ms=HOUR)
    last = T0 + HOUR - 60_000 - 3_000 - 1
    question = replace(FRESH, attempt=30, since_ms=last - 1_000)

    assert next_action(dedup, question, last - 1_000) == Resend(last)
    assert next_action(dedup, question, last) == Resend(last)
    assert isinstance(next_action(dedup, question, last + 1), AskPeople)


def test_look_ups_that_fail_for_an_hour_go_before_people_who_need_not_ask_by_hand() -> None:
    """The receiver is still asked, every five minutes, for as long as something could be found."""
    now = quiet_from(LOOKUP, FRESH) + LOOKUP.lag_ms + LOOKUP_PATIENCE_MS
    question = replace(FRESH, lookups=30, last_lookup_ms=now, was_absent=False)

    action = next_action(LOOKUP, question, now)

    assert isinstance(action, AskPeople)
    assert action.look_again_ms == now + LOOKUP_LAST_MS


def test_beyond_the_look_up_retention_absence_says_nothing() -> None:
    """What was found once may have been forgotten since."""
    contract = replace(LOOKUP, found_ms=2 * MINUTE)
    late = T0 + 2 * MINUTE - 60_000 - 3_000

    assert absence_counts(replace(contract, in_flight_ms=10_000), asked(FRESH, T0 + 40_000))
    assert not absence_counts(contract, asked(FRESH, late))
    assert isinstance(next_action(contract, asked(FRESH, T0 + HOUR), T0 + HOUR), AskPeople)


def test_pauses_double_up_to_the_last() -> None:
    """From half a second to five minutes."""
    assert [pause_ms(times) for times in (0, 1, 2, 3, 10, 11, 10_000)] == [
        500, 500, 1_000, 2_000, 256_000, LOOKUP_LAST_MS, LOOKUP_LAST_MS,
    ]  # fmt: skip


def test_look_ups_of_an_earlier_attempt_are_not_counted() -> None:
    """They say nothing of the newest one."""
    life = (
        Happened(T0, EventKind.INTENDED, 1),
        Happened(T0 + 5, EventKind.UNKNOWN, 1),
        Happened(T0 + 6, EventKind.ABSENT, 1),
        Happened(T0 + 7, EventKind.RESENT, 2),
        Happened(T0 + 8, EventKind.UNKNOWN, 2),
    )
    entry = an_entry(2, life, send_before_ms=T0 + 9, since_ms=T0 + 8)
    later = replace(
        entry, life=(*life, Happened(T0 + 9, EventKind.ABSENT, 2), Happened(T0 + 20, EventKind.LOOKUP_FAILED, 2))
    )

    assert question_of(entry) == Question(T0, T0 + 9, 0, None, was_absent=False, attempt=2, since_ms=T0 + 8)
    assert question_of(later) == Question(T0, T0 + 9, 2, T0 + 20, was_absent=False, attempt=2, since_ms=T0 + 8)


def an_entry(attempt: int, life: tuple[Happened, ...], *, send_before_ms: int, since_ms: int) -> EffectEntry:
    return EffectEntry(
        operation="refund-1", effect="refund", receiver="payments", state=EffectState.UNKNOWN, params=b"", digest=b"",
        attempt=attempt, invocation=b"", first_ms=T0, intended_ms=T0, send_before_ms=send_before_ms, since_ms=since_ms,
        life=life,
    )  # fmt: skip
