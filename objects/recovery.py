"""What is to be done about an effect whose outcome is not known: decided by its contract and the time alone.

A look-up comes first wherever there is one: it changes nothing at the receiver, and after a lost answer it mostly finds
the receipt. If it finds nothing, and the receiver takes an operation id once, the same id is sent again at once: that
settles it now, while absence would have to wait until nothing can be under way any more. Where neither is possible,
absence is waited for. What even that leaves open goes before people, while the receiver is still asked now and then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ..journal.ledger import EventKind

if TYPE_CHECKING:
    from ..journal.effects import EffectEntry
    from .receivers import Effect
    from .settings import Settings

#: Between look-ups, and between resends: the first pause, doubled up to the last one, in ms.
LOOKUP_FIRST_MS: Final = 500
LOOKUP_LAST_MS: Final = 300_000
#: For how long look-ups that fail are repeated, from when absence would count, before people are asked as well, in ms.
LOOKUP_PATIENCE_MS: Final = 3_600_000
_CACHED_CONTRACTS: Final = 1024
#: How many attempts there are before people are asked, where the receiver knows an id for longer than about a day.
ATTEMPTS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Contract:
    """What a receiver promises about one effect, in ms.

    Args:
        dedup_ms: For how long it knows an operation id; None if it takes one again.
        can_look_up: Whether it can be asked what became of an operation id.
        lag_ms: How long after it was done something can be found.
        found_ms: For how long something can be found; None for ever.
        absent_means_not_done: Whether absence, once it counts, says that it was not done.
        in_flight_ms: The longest time from the first byte of a call until it can still take effect.
        may_be_late: Whether a stopped process may send after its time.
        lease_ms: The lease of a partition.
        asks_people: Whether people decide at once, whatever else the receiver offers.
        send_within_ms: How long after its intent the first byte of a call may leave.
    """

    dedup_ms: int | None
    can_look_up: bool
    lag_ms: int
    found_ms: int | None
    absent_means_not_done: bool
    in_flight_ms: int
    may_be_late: bool
    lease_ms: int
    asks_people: bool = False
    send_within_ms: int = 0

    @property
    def leaves_within_ms(self) -> int:
        """How long after it was decided on the first byte of a call leaves at the latest, late calls aside."""
        return max(self.lease_ms, self.send_within_ms)

    @property
    def can_settle(self) -> bool:
        """Whether the receiver offers anything by which an unknown outcome could be settled without people."""
        return self.can_look_up or self.dedup_ms is not None


@dataclass(frozen=True, slots=True)
class Question:
    """What is known of an effect that is in question, by the partition's time in ms.

    Args:
        first_ms: When its first intent was recorded.
        send_before_ms: Until when its newest attempt may have sent its first byte.
        lookups: How many times the receiver was asked since then.
        last_lookup_ms: When it was asked last, read before the request left; None if it was not.
        was_absent: Whether the last answer was that it knows nothing of it.
        attempt: How many attempts may have reached it, the newest included.
        since_ms: Since when the outcome of the newest attempt is unknown.
    """

    first_ms: int
    send_before_ms: int
    lookups: int
    last_lookup_ms: int | None
    was_absent: bool
    attempt: int = 1
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the receiver, at a time."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the same operation id again, at a time: the receiver takes it once."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AttemptAnew:
    """Make another attempt: it is certain that nothing was done, and nothing can be under way."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class AskPeople:
    """Put it before a person: nothing that the contract allows can tell.

    Args:
        why: The reason, for that person.
        look_again_ms: When the receiver is asked once more meanwhile; None if that is of no use.
    """

    why: str
    look_again_ms: int | None = None


NextAction: TypeAlias = LookUp | Resend | AttemptAnew | AskPeople
AllowedAct: TypeAlias = Literal["lookup", "succeeded", "not-done", "resend", "hand-over"]


def contract_under(effect: Effect[Any, Any], settings: Settings) -> Contract:
    """Return what the receiver of an effect promises about it, under the settings of a deployment."""
    return contract_of(effect, int(settings.lease_seconds * 1000), int(settings.send_within_seconds * 1000))


@lru_cache(maxsize=_CACHED_CONTRACTS)
def contract_of(effect: Effect[Any, Any], lease_ms: int, send_within_ms: int = 0) -> Contract:
    """Return what the receiver of an effect promises about it.

    Args:
        effect: The effect, as it was declared.
        lease_ms: The lease of a partition.
        send_within_ms: How long after its intent the first byte of a call may leave.
    """
    receiver = effect.receiver
    return Contract(
        dedup_ms=None if receiver.deduplicates is None else _ms(receiver.deduplicates.retention),
        can_look_up=receiver.lookup is not None,
        lag_ms=_ms(receiver.lookup_lag),
        found_ms=None if receiver.lookup_retention is None else _ms(receiver.lookup_retention),
        absent_means_not_done=receiver.absent_means == "not_done",
        in_flight_ms=_ms(effect.in_flight),
        may_be_late=receiver.late_calls == "possible",
        lease_ms=lease_ms,
        asks_people=effect.on_unknown == "ask" and receiver.can_settle,
        send_within_ms=send_within_ms,
    )


def question_of(entry: EffectEntry) -> Question:
    """Return what an entry tells of an effect whose outcome is unknown. Only look-ups of its newest attempt count."""
    lookups = 0
    last: int | None = None
    was_absent = False
    for event in reversed(entry.life):
        if event.kind in _BEGINNINGS:
            break
        if event.kind in _LOOKUPS:
            if last is None:
                last, was_absent = event.at_ms, event.kind is EventKind.ABSENT
            lookups += 1
    # Those that never left say nothing of the receiver: after an outage it would be asked minutes late.
    unsent = sum(event.kind is EventKind.NOT_SENT for event in entry.life)
    attempt = max(entry.attempt - unsent, 1)
    return Question(entry.first_ms, entry.send_before_ms, lookups, last, was_absent, attempt, entry.since_ms)


def next_action(contract: Contract, question: Question, now_ms: int) -> NextAction:
    """Return what is to be done next about an effect in question; times that it names are never past.

    Args:
        contract: What the receiver promises.
        question: What is known.
        now_ms: The partition's time.
    """
    if contract.asks_people:
        return AskPeople(_DECLARED)
    if not contract.can_settle:
        return AskPeople(_NEITHER)
    if absence_counts(contract, question):
        return _after_absence(contract, question, now_ms)
    if question.lookups == 0 and _can_find(contract, question, now_ms):
        return LookUp(now_ms)
    resend_ms = _resend_at(contract, question, now_ms)
    if resend_ms is not None:
        return Resend(resend_ms)
    lookup_ms = _look_up_at(contract, question, now_ms)
    if lookup_ms is not None:
        return LookUp(lookup_ms)
    return AskPeople(_why(contract, question, now_ms), _look_again(contract, question, now_ms))


def allowed_acts(contract: Contract, question: Question, now_ms: int) -> frozenset[AllowedAct]:
    """Return what a person may do about an effect in question.

    "Not done" is open only once nothing of the newest attempt can be under way; a resend only where it can't do twice
    what it asks for; a look-up for as long as an attempt may be found.
    """
    acts: set[AllowedAct] = {"succeeded", "hand-over"}
    if now_ms >= quiet_from(contract, question):
        acts.add("not-done")
    found_until = None if contract.found_ms is None else quiet_from(contract, question) + contract.found_ms
    if contract.can_look_up and (found_until is None or now_ms < found_until):
        acts.add("lookup")
    if may_resend(contract, question, now_ms) or _is_certainly_not_done(contract, question, now_ms):
        acts.add("resend")
    return frozenset(acts)


def quiet_from(contract: Contract, question: Question) -> int:
    """Return from when on no attempt can take effect any more, late calls aside, in ms."""
    return question.send_before_ms + contract.in_flight_ms


def may_resend(contract: Contract, question: Question, now_ms: int) -> bool:
    """Return whether a call that begins now reaches the receiver while it still knows the operation id."""
    if contract.dedup_ms is None:
        return False
    return now_ms + contract.in_flight_ms + contract.leaves_within_ms < question.first_ms + contract.dedup_ms


def absence_counts(contract: Contract, question: Question) -> bool:
    """Return whether the last look-up found nothing at a time at which it would have found what was done.

    That is from when nothing is under way and the lag has passed, and until what was done first may be forgotten. For
    the latter a look-up is given as long to arrive as a call.
    """
    asked_ms = question.last_lookup_ms
    if not contract.can_look_up or asked_ms is None or not question.was_absent:
        return False
    if asked_ms < _counts_from(contract, question):
        return False
    if contract.found_ms is None:
        return True
    return asked_ms + contract.in_flight_ms + contract.lease_ms < question.first_ms + contract.found_ms


def may_ever_resend(contract: Contract) -> bool:
    """Return whether a receiver that takes an operation id once knows it for long enough to be sent it again."""
    return contract.dedup_ms is None or contract.in_flight_ms + contract.leaves_within_ms < contract.dedup_ms


def may_ever_count(contract: Contract) -> bool:
    """Return whether there is a time at which absence counts, where the first attempt is sent at the last moment."""
    if contract.found_ms is None:
        return True
    quiet = contract.leaves_within_ms + contract.in_flight_ms + contract.lag_ms
    return quiet + contract.in_flight_ms + contract.lease_ms < contract.found_ms


def pause_ms(times: int) -> int:
    """Return the pause after something was tried so many times, in ms."""
    return min(LOOKUP_FIRST_MS << min(max(times - 1, 0), 32), LOOKUP_LAST_MS)


def _counts_from(contract: Contract, question: Question) -> int:
    return quiet_from(contract, question) + contract.lag_ms


def _after_absence(contract: Contract, question: Question, now_ms: int) -> NextAction:
    if _is_certainly_not_done(contract, question, now_ms):
        return AttemptAnew(now_ms)
    resend_ms = _resend_at(contract, question, now_ms)
    if resend_ms is not None:
        return Resend(resend_ms)
    why = _LATE if contract.absent_means_not_done else _SAYS_NOTHING
    return AskPeople(why, _look_again(contract, question, now_ms))


def _is_certainly_not_done(contract: Contract, question: Question, now_ms: int) -> bool:
    """Absence says so, and a call of a stopped process can't do it beside another attempt."""
    if not (contract.absent_means_not_done and absence_counts(contract, question)):
        return False
    return not contract.may_be_late or may_resend(contract, question, now_ms)


def _can_find(contract: Contract, question: Question, at_ms: int) -> bool:
    if not contract.can_look_up:
        return False
    return contract.found_ms is None or at_ms < question.first_ms + contract.found_ms


def _resend_at(contract: Contract, question: Question, now_ms: int) -> int | None:
    if contract.dedup_ms is None or not may_resend(contract, question, now_ms) or question.attempt >= ATTEMPTS_MAX:
        return None
    pause = 0 if question.attempt == 1 else pause_ms(question.attempt - 1)
    # The last moment at which it is allowed, rather than none.
    last_ms = question.first_ms + contract.dedup_ms - contract.in_flight_ms - contract.leaves_within_ms - 1
    return max(now_ms, min(question.since_ms + pause, last_ms))


def _look_up_at(contract: Contract, question: Question, now_ms: int) -> int | None:
    if not _can_find(contract, question, now_ms):
        return None
    counts_from = _counts_from(contract, question)
    asked_ms = question.since_ms if question.last_lookup_ms is None else question.last_lookup_ms
    at_ms = asked_ms + pause_ms(question.lookups)
    if asked_ms < counts_from <= at_ms:
        at_ms = counts_from
    at_ms = max(at_ms, now_ms)
    is_patient = at_ms <= counts_from + LOOKUP_PATIENCE_MS
    return at_ms if is_patient and _can_find(contract, question, at_ms) else None


def _look_again(contract: Contract, question: Question, now_ms: int) -> int | None:
    asked_ms = now_ms if question.last_lookup_ms is None else question.last_lookup_ms
    at_ms = max(now_ms, asked_ms + LOOKUP_LAST_MS)
    return at_ms if _can_find(contract, question, at_ms) else None


def _why(contract: Contract, question: Question, now_ms: int) -> str:
    if may_resend(contract, question, now_ms):
        return _NO_USE
    if not contract.can_look_up:
        return _WINDOW_PASSED
    return _NO_ANSWER if _can_find(contract, question, now_ms) else _FORGOTTEN


def _ms(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


_BEGINNINGS: Final = frozenset({EventKind.INTENDED, EventKind.RESENT})
_LOOKUPS: Final = frozenset({EventKind.ABSENT, EventKind.LOOKUP_FAILED})

_DECLARED: Final = "the effect is declared to be settled by people"
_NEITHER: Final = "the receiver can't be asked what became of it, and would do it again if it were sent again"
_LATE: Final = (
    "the receiver knows nothing of it, but a call of a stopped process may still arrive, and beside a second one it "
    "would be done twice"
)
_SAYS_NOTHING: Final = "the receiver knows nothing of it, and by its contract that does not mean that it was not done"
_WINDOW_PASSED: Final = "the receiver may have forgotten the operation id: sent again, it could be done twice"
_NO_USE: Final = f"{ATTEMPTS_MAX} attempts have brought no answer"
_NO_ANSWER: Final = "look-ups have brought no answer that counts"
_FORGOTTEN: Final = "the receiver may have forgotten what it did: that nothing is found there means nothing any more"
