"""The state machine where several things are waited for, somebody asks for the end, or what was done is undone."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.command_records import (
    AwakeableMade,
    CallCompleted,
    CallStarted,
    CancelDelivered,
    CompensationSkipped,
    CompensationStarted,
    ModelCallBegun,
    StepAttemptFailed,
    StepCompleted,
    TimerFired,
    TimerSet,
    WaitCompleted,
    WaitExpired,
    WaitStarted,
    WaitWithdrawn,
)
from keylane.journal.outcomes import Failure
from keylane.journal.place import Path, Place, place_in
from keylane.journal.record_bytes import decode, encode
from keylane.journal.records import (
    Accepted,
    Cancelled,
    CancelRequested,
    Completed,
    Failed,
    Killed,
    PatchMarked,
    Paused,
    PauseReason,
    Record,
    Restarted,
    Resumed,
    SignalReceived,
)
from keylane.journal.standing import IllegalTransition, Status
from keylane.journal.transitions import advance, replay

ERROR = Failure("builtins.ValueError", "no", "terminal", None, "")
ACCEPTED = Accepted(b"i" * 16, "refund", 1, "acme/o-1")
TARGET = ("Stock", 3, "acme/s-1", "reserve", b"c" * 16)
CANCEL = CancelRequested(b"q" * 16, "ada", "ordered twice")
PATHS: tuple[Path, ...] = ((), (0, 0), (0, 1), (0, 1, 0, 0))


@dataclass
class Model:
    """What an invocation with branches is, in plain words."""

    next_index: dict[Path, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    failed: dict[Path, int] = field(default_factory=lambda: dict.fromkeys(PATHS, 0))
    waits: dict[Place, type] = field(default_factory=dict[Place, type])
    is_paused: bool = False
    is_retrying: bool = False
    is_cancelled: bool = False
    was_told: bool = False
    told_within: int = 0
    is_undone: bool = False
    has_failed_undo: bool = False
    tries_undo_again: bool = False
    received: int = 0
    ended: Status | None = None

    def place(self, path: Path) -> Place:
        return place_in(path, self.next_index[path])

    def is_free(self, path: Path) -> bool:
        return self.place(path) not in self.waits

    def legal(self) -> list[Record]:
        """Return records that may follow, one of each kind and place."""
        if self.ended is not None:
            return []
        always: list[Record] = [Killed("ada", ""), SignalReceived("go", None, bytes([self.received]) * 16, b"\x01")]
        if not self.is_cancelled:
            always.append(CANCEL)
        always.extend(self.ends())
        if self.is_paused:
            skipped = [CompensationSkipped(self.next_index[()], "undo", "ada", "")] if self.is_undone else []
            kept = sorted({self.next_index[()] // 2, self.next_index[()]})
            restarted = [] if self.is_undone else [Restarted(each, "ada", "") for each in kept]
            free: list[Record] = [*(skipped if self.is_free(()) else []), *restarted]
            return [*always, Resumed("ada", ""), Cancelled("ada", ""), *free]
        return [*always, *self.turns(), *(each for path in PATHS if self.is_free(path) for each in self.commands(path))]

    def ends(self) -> list[Record]:
        found: list[Record] = []
        for place, kind in self.waits.items():
            if kind is CallStarted:
                found.append(CallCompleted(place, b"\x01"))
            elif kind is TimerSet:
                found.append(TimerFired(place))
            else:
                found += [WaitCompleted(place, b"m" * 16, b"\x01"), WaitExpired(place)]
        return found

    def turns(self) -> list[Record]:
        told = [CancelDelivered(place) for place in self.waits] if self.is_cancelled and not self.was_told else []
        undone = [] if self.is_undone else [CompensationStarted(self.next_index[()], (), ERROR), Completed()]
        withdrawn = [WaitWithdrawn(place) for place in self.waits]
        reasons = [PauseReason.OPERATOR, *([PauseReason.COMPENSATION_FAILED] if self.is_undone else [])]
        paused = [Paused(reason, "", None, "ada") for reason in reasons]
        return [*told, *undone, *withdrawn, *paused, Failed(ERROR), Cancelled("ada", ""), PatchMarked("terms")]

    def commands(self, path: Path) -> list[Record]:
        place = self.place(path)
        told = [CancelDelivered(place)] if self.is_cancelled and not self.was_told else []
        return [
            *told,
            StepCompleted(place, "s", b"\x01"),
            StepAttemptFailed(place, "s", self.failed[path] + 1, ERROR, 50),
            ModelCallBegun(place, "s", 1, "m-1", b"d"),
            AwakeableMade(place),
            WaitCompleted(place, b"m" * 16, b"\x01"),
            CallStarted(place, *TARGET),
            TimerSet(place, 1_000),
            WaitStarted(place, "go", None, 1_000),
        ]

    def take(self, record: Record) -> None:
        match record:
            case Killed():
                self.ended = Status.KILLED
            case Cancelled():
                self.ended = Status.CANCELLED
            case Failed():
                self.ended = Status.FAILED
            case Completed():
                self.ended = Status.COMPLETED
            case SignalReceived():
                self.received += 1
            case CancelRequested():
                self.is_cancelled, self.is_retrying = True, False
                self.unpark()
            case Paused():
                self.is_paused, self.is_retrying = True, False
                self.has_failed_undo = record.reason is PauseReason.COMPENSATION_FAILED
            case Resumed():
                self.unpark()
                self.tries_undo_again = self.tries_undo_again or self.has_failed_undo
            case Restarted():
                self.unpark()
                self.was_told = self.was_told and record.kept >= self.told_within
                self.waits = {}
                self.next_index = {**dict.fromkeys(PATHS, 0), (): record.kept}
            case CompensationStarted():
                self.is_undone, self.waits, self.is_retrying = True, {}, False
                self.failed[()] = 0
            case PatchMarked():
                pass
            case _:
                self.take_command(record)

    def unpark(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.failed = dict.fromkeys(PATHS, 0)

    def take_command(self, record: Record) -> None:
        assert not isinstance(record, Accepted)
        place: Place = getattr(record, "index")  # noqa: B009, what is left has one
        path = () if isinstance(place, int) else place[:-1]
        match record:
            case StepAttemptFailed():
                self.failed[path] += 1
                self.is_retrying = path == ()
            case ModelCallBegun():
                self.is_retrying = False
            case CallStarted() | TimerSet() | WaitStarted():
                self.waits[place] = type(record)
                self.tries_undo_again = False
                if path == ():
                    self.failed[()] = 0
                self.is_retrying = False
            case _:
                was_waiting = self.waits.pop(place, None) is not None
                self.is_retrying = self.is_retrying and was_waiting and not isinstance(record, CancelDelivered)
                if isinstance(record, CancelDelivered):
                    self.was_told, self.told_within = True, self.next_index[()] + 1
                if isinstance(record, CompensationSkipped):
                    self.unpark()
                self.failed[path] = 0
                self.next_index[path] += 1


@st.composite
def programs(draw: st.DrawFn) -> list[Record]:
    """Draw the records of an invocation with branches, ended or not."""
    model = Model()
    records: list[Record] = [ACCEPTED]
    for _ in range(draw(st.integers(1, 40))):
        # What ends it is drawn seldom, so that programs grow.
        choices = [each for each in model.legal() if not isinstance(each, Killed | Failed | Cancelled | Completed)]
        choices = choices if draw(st.integers(0, 30)) else model.legal()
        if not choices:
            break
        record = draw(st.sampled_from(choices))
        model.take(record)
        records.append(record)
    return records


@given(programs())
def test_what_is_open_and_what_is_next_agree_with_the_model(records: list[Record]) -> None:
    """After each record the open waits, the next commands and what is asked for are those of the plain model."""
    model = Model()
    standing = advance(None, ACCEPTED)

    for record in records[1:]:
        standing = advance(standing, record)
        model.take(record)
        extras = standing.extras

        assert {wait.index: type(wait) for wait in standing.waits} == ({} if model.ended else model.waits)
        assert standing.steps == model.next_index[()]
        assert {path: extras.branches.get(path, 0) for path in PATHS[1:]} == {
            path: model.next_index[path] for path in PATHS[1:]
        }
        assert (extras.cancel is not None, extras.is_cancel_delivered) == (model.is_cancelled, model.was_told)
        assert (extras.compensation is not None) == model.is_undone
        assert extras.tries_undo_again == model.tries_undo_again
        assert (standing.status is Status.PAUSED) == (model.is_paused and model.ended is None)
        assert len(extras.signals) == model.received


@given(programs())
def test_the_records_mean_the_same_after_the_round_trip(records: list[Record]) -> None:
    """What is read back from the store means what was written, in one go or in two."""
    middle = len(records) // 2 or 1

    assert replay(decode(encode(record)) for record in records) == replay(records)
    assert replay(records[middle:], replay(records[:middle])) == replay(records)


@given(programs(), st.integers(0, 3), st.integers(1, 2))
def test_a_command_behind_or_ahead_of_its_branch_is_refused(records: list[Record], path: int, off: int) -> None:
    """No command takes the place of one that is settled, and the main branch leaves none out."""
    model = Model()
    for record in records[1:]:
        model.take(record)
    standing = replay(records)
    at = model.next_index[PATHS[path]]
    wrong = [at - off] + ([at + off] if path == 0 else [])

    for index in wrong:
        if index < 0:
            continue
        with pytest.raises(IllegalTransition):
            advance(standing, StepCompleted(place_in(PATHS[path], index), "s", b"\x01"))


@given(programs())
def test_what_is_not_waited_for_does_not_end(records: list[Record]) -> None:
    """An end without its beginning, a second delivery and a second request are refused."""
    standing = replay(records)
    nowhere: Place = (7, 7, 7)
    wrong: list[Record] = [CallCompleted(nowhere, b"\x01"), TimerFired(nowhere), WaitExpired(nowhere)]
    wrong.append(WaitWithdrawn(nowhere))
    if standing.extras.cancel is not None:
        wrong.append(CANCEL)
    if standing.extras.is_cancel_delivered or standing.extras.cancel is None:
        wrong.append(CancelDelivered(standing.steps))
    if standing.extras.compensation is not None:
        wrong += [CompensationStarted(standing.steps, (), ERROR), Completed(), Restarted(0, "ada", "")]

    for record in wrong:
        with pytest.raises(IllegalTransition):
            advance(standing, record)


def test_a_message_is_received_once() -> None:
    """A second copy of a signal is no second signal."""
    received = SignalReceived("go", None, b"m" * 16, b"\x01")
    standing = replay([ACCEPTED, received])

    with pytest.raises(IllegalTransition, match="received before"):
        advance(standing, received)
