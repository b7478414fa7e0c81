"""The recovery plan of an effect in sentences: what happens, and when, while nobody knows whether it was done.

Nothing here says what is done: `next_action` is asked, as the runtime asks it, on a clock that is only counted. The
receiver of the plan knows nothing at every look-up, and its answers to resends are lost: each line that can come comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from .receivers import Effect, Receiver
from .recovery import (
    LOOKUP_LAST_MS,
    AllowedAct,
    AskPeople,
    AttemptAnew,
    Contract,
    LookUp,
    NextAction,
    Question,
    Resend,
    allowed_acts,
    contract_under,
    next_action,
    quiet_from,
)
from .settings import Settings

#: More than the longest lag and flight that can be declared take, with a look-up every five minutes.
ROUNDS_MAX: Final = 20_000

PlanKind: TypeAlias = Literal["unknown", "look up", "resend", "attempt anew", "ask people"]
_ACTS: Final[tuple[AllowedAct, ...]] = ("lookup", "succeeded", "not-done", "resend", "hand-over")


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One thing that happens, perhaps several times.

    Args:
        kind: What.
        from_ms: When it happens first, in ms after the first intent.
        until_ms: When it happens last.
        times: How often, at most.
        sentence: What that means, for people.
    """

    kind: PlanKind
    from_ms: int
    until_ms: int
    times: int
    sentence: str


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What is done about an unknown outcome of one effect.

    Args:
        receiver: Name of the receiver.
        effect: Name of the effect.
        owner: Who settles what stays unknown.
        contract: What the receiver promises.
        promises: The same in sentences.
        lines: What happens, in the order in which it first happens.
        late_calls: What a call that arrives after its time would do.
        acts: What a person may do once it lies with people.
        not_done_from_ms: How long after the newest intent a person may mark it as not done.
    """

    receiver: str
    effect: str
    owner: str
    contract: Contract
    promises: tuple[str, ...]
    lines: tuple[PlanLine, ...]
    late_calls: str
    acts: tuple[AllowedAct, ...]
    not_done_from_ms: int


def plan_of(effect: Effect[Any, Any], settings: Settings) -> RecoveryPlan:
    """Return the recovery plan of an effect.

    Args:
        effect: The effect, as it was declared.
        settings: The settings of the deployment.
    """
    contract = contract_under(effect, settings)
    happened = list(simulated(contract, effect.timeout // _MS))
    asked_at, question, _ = happened[-1]
    return RecoveryPlan(
        receiver=effect.receiver.name,
        effect=effect.name,
        owner=effect.receiver.owner,
        contract=contract,
        promises=tuple(_promises(effect.receiver, effect)),
        lines=tuple(_lines(effect, contract, happened)),
        late_calls=_late_calls(contract),
        acts=tuple(act for act in _ACTS if act in allowed_acts(contract, question, asked_at)),
        not_done_from_ms=_quiet_after(contract),
    )


def simulated(contract: Contract, timeout_ms: int) -> Iterator[tuple[int, Question, NextAction]]:
    """Give each action that follows on a call without an answer, with its time after the intent and what was known.

    It ends with what no further look-up would change: people are asked, or another attempt is made.

    Args:
        contract: What the receiver promises.
        timeout_ms: How long a call may take.
    """
    now_ms = timeout_ms
    question = Question(0, contract.leaves_within_ms, 0, None, was_absent=False, attempt=1, since_ms=timeout_ms)
    for _ in range(ROUNDS_MAX):
        action = next_action(contract, question, now_ms)
        match action:
            case LookUp(at_ms):
                yield at_ms, question, action
                now_ms = at_ms
                question = replace(question, lookups=question.lookups + 1, last_lookup_ms=at_ms, was_absent=True)
            case Resend(at_ms):
                yield at_ms, question, action
                now_ms = at_ms + timeout_ms
                question = Question(
                    0,
                    at_ms + contract.leaves_within_ms,
                    0,
                    None,
                    was_absent=False,
                    attempt=question.attempt + 1,
                    since_ms=now_ms,
                )
            case AttemptAnew() | AskPeople():
                yield now_ms, question, action
                return


def in_words(span: timedelta | int) -> str:
    """Return a span for people, in its two largest units.

    Args:
        span: A span, or a number of ms.
    """
    rest = span // _MS if isinstance(span, timedelta) else span
    if rest < _MINUTE:
        return f"{rest / 1000:g} s"
    parts: list[str] = []
    for unit, length in (("d", 24 * 60 * _MINUTE), ("h", 60 * _MINUTE), ("min", _MINUTE), ("s", 1000)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


_MS: Final = timedelta(milliseconds=1)
_MINUTE: Final = 60_000


def _promises(receiver: Receiver, effect: Effect[Any, Any]) -> Iterator[str]:
    if receiver.deduplicates is not None:
        yield f"takes an operation id once, and knows one for {in_words(receiver.deduplicates.retention)}"
    else:
        yield "would do again an operation id that it is sent again"
    yield _looked_up(receiver)
    yield f"a call that has begun can take effect for up to {in_words(effect.in_flight)}"
    if receiver.late_calls == "impossible":
        yield "a call can't arrive after its time"


def _looked_up(receiver: Receiver) -> str:
    if receiver.lookup is None:
        return "can't be asked what became of an operation id"
    lag = f", {in_words(receiver.lookup_lag)} after it was done" if receiver.lookup_lag else ""
    kept = "" if receiver.lookup_retention is None else f", for {in_words(receiver.lookup_retention)}"
    means = "was not done" if receiver.absent_means == "not_done" else "may have been done all the same"
    return f"can be asked what became of an operation id{lag}{kept}; what it does not know of {means}"


def _lines(
    effect: Effect[Any, Any], contract: Contract, happened: list[tuple[int, Question, NextAction]]
) -> Iterator[PlanLine]:
    timeout_ms = effect.timeout // _MS
    yield PlanLine("unknown", timeout_ms, timeout_ms, 1, _UNKNOWN.format(span=in_words(timeout_ms)))
    asked = [at_ms for at_ms, _, action in happened if isinstance(action, LookUp)]
    if asked:
        yield PlanLine("look up", asked[0], asked[-1], len(asked), _look_ups(contract, asked))
    sent = [at_ms for at_ms, _, action in happened if isinstance(action, Resend)]
    if sent:
        yield PlanLine("resend", sent[0], sent[-1], len(sent), _resends(contract, sent))
    at_ms, _, action = happened[-1]
    match action:
        case AttemptAnew():
            yield PlanLine("attempt anew", at_ms, at_ms, 1, _ANEW)
        case AskPeople(why, look_again_ms):
            yield PlanLine("ask people", at_ms, at_ms, 1, _people(effect.receiver, why, look_again_ms))
        case _:
            return


def _look_ups(contract: Contract, times: list[int]) -> str:
    counts_from = _quiet_after(contract) + contract.lag_ms
    means = (
        f"; that it knows nothing counts from {in_words(counts_from)} after the newest intent on"
        if any(at_ms >= counts_from for at_ms in times)
        else ""
    )
    return f"the receiver is asked what became of it, and what it finds settles it{_again(times)}{means}"


def _quiet_after(contract: Contract) -> int:
    return quiet_from(contract, Question(0, contract.leaves_within_ms, 0, None, was_absent=False))


def _resends(contract: Contract, times: list[int]) -> str:
    window = in_words((contract.dedup_ms or 0) - contract.in_flight_ms - contract.leaves_within_ms)
    return f"the same operation id is sent again, at the latest {window} after the first intent{_again(times)}"


def _again(times: list[int]) -> str:
    if len(times) == 1:
        return ""
    longest = max(after - before for before, after in pairwise(times))
    return f", {len(times)} times with growing pauses of up to {in_words(longest)}"


def _people(receiver: Receiver, why: str, look_again_ms: int | None) -> str:
    within = in_words(receiver.reconcile_within)
    again = f"; the receiver is asked every {in_words(LOOKUP_LAST_MS)} meanwhile" if look_again_ms is not None else ""
    return f"{receiver.owner} has to settle it within {within}, since {why}{again}"


def _late_calls(contract: Contract) -> str:
    if not contract.may_be_late:
        return "By its contract no call can arrive after its time."
    return f"{_STOPPED} {_what_late_calls_do(contract)}"


def _what_late_calls_do(contract: Contract) -> str:
    if contract.dedup_ms is not None:
        return f"The receiver knows an operation id for {in_words(contract.dedup_ms)}, and takes it once for so long."
    if contract.can_look_up:
        return "Therefore nothing is sent a second time by itself, not even where the receiver knows nothing of it."
    return "Nothing is sent a second time by itself; who marks it as not done must know that no late call can come."


_UNKNOWN: Final = (
    "no answer within {span}, an error that says nothing, or a worker that is gone: the outcome is unknown, and the "
    "handler waits"
)
_ANEW: Final = "it is certain that nothing was done: another attempt is made under the same operation id"
_STOPPED: Final = "A process that is stopped between its last look at the clock and the first byte may send late."
