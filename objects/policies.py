"""Retry policies of steps and invocations."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from ..journal.errors import RegistrationError

_ATTEMPTS_MAX: Final = 10_000
#: As long as anything is waited for.
_LONGEST_SECONDS: Final = timedelta(days=400).total_seconds()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently something is tried again: bounded, exponential, with jitter.

    Args:
        first: Pause after the first failed attempt.
        factor: By how much each pause is longer than the one before.
        cap: The longest pause.
        attempts: How many attempts there are in all, the first one included.
        jitter: The share of a pause that chance may take away, from 0 to 1, so that what failed together does not
            come back together.
        then: What becomes of an invocation whose attempts are spent: `"pause"` parks it for its owner, `"fail"`
            ends it. For a step, `ctx.run(…, on_exhausted=)` says it.

    Raises:
        RegistrationError: A value is out of its bounds.
    """

    first: timedelta = timedelta(milliseconds=50)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=10)
    attempts: int = 10
    jitter: float = 0.2
    then: Literal["pause", "fail"] = "pause"

    def __post_init__(self) -> None:
        for name, pause in (("first", self.first), ("cap", self.cap)):
            _require(_is_time(pause), name, pause, "a timedelta, such as timedelta(seconds=1)")
        nothing = timedelta(0)
        _require(self.first >= nothing, "first", self.first, "a pause of zero or more")
        _require(self.cap >= self.first, "cap", self.cap, "at least as much as first")
        _require(_is_number(self.factor) and self.factor >= 1, "factor", self.factor, "1 or more")
        is_count = type(self.attempts) is int and 1 <= self.attempts <= _ATTEMPTS_MAX
        _require(is_count, "attempts", self.attempts, f"1 to {_ATTEMPTS_MAX:,}")
        _require(_is_number(self.jitter) and 0 <= self.jitter <= 1, "jitter", self.jitter, "from 0 to 1")
        _require(self.then in ("pause", "fail"), "then", self.then, '"pause" or "fail"')

    def is_spent(self, attempt: int) -> bool:
        """Whether the attempt of this number, counted from 1, was the last one."""
        return attempt >= self.attempts

    def delay(self, attempt: int, random: Callable[[], float], *, retry_after: float | None = None) -> timedelta:
        """The pause after a failed attempt.

        Args:
            attempt: The number of the attempt that has failed, counted from 1.
            random: Gives a number from 0 up to 1.
            retry_after: Seconds that the error itself asks for; no more than 400 days, and what is no number at all
                counts for nothing: it may be what somebody else's header said.
        """
        if isinstance(retry_after, int | float):
            return timedelta(seconds=min(max(0.0, retry_after), _LONGEST_SECONDS))
        try:
            seconds = self.first.total_seconds() * self.factor ** (attempt - 1)
        except OverflowError:
            seconds = self.cap.total_seconds()
        return timedelta(seconds=min(seconds, self.cap.total_seconds()) * (1 - self.jitter * random()))


def _is_time(value: object) -> bool:
    return isinstance(value, timedelta)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _require(holds: bool, name: str, value: object, remedy: str) -> None:  # noqa: FBT001  the condition is the subject
    if not holds:
        raise RegistrationError(f"RetryPolicy: {name} is {value!r}", parameter=name, remedy=f"it must be {remedy}")
