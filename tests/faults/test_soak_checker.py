"""The checker of the long run is held against histories that are right and histories that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from .soak_checker import check_all, check_cancel, check_counter, check_flaky, check_steps, check_waits
from .soak_history import HistoryFile, Kind, Operation

KEY = "acme/one"


def call(
    name: str,
    sent: float,
    answered: float | None = None,
    value: object = None,
    *,
    kind: Kind = Kind.ADD,
    is_idempotent: bool = False,
    given_up: str | None = None,
) -> Operation:
    return Operation(
        name, kind, KEY, kind.value, sent, is_idempotent, answered=answered, value=value, given_up=given_up
    )  # fmt: skip


def read(name: str, sent: float, answered: float, value: int) -> Operation:
    return call(name, sent, answered, value, kind=Kind.READ)


def lost(name: str, sent: float) -> Operation:
    return call(name, sent, given_up="StoreUnavailable")


RIGHT = {
    "one after the other": ([call("a", 1, 2, 1), call("b", 3, 4, 2)], 2),
    "at the same time, either way": ([call("a", 1, 4, 2), call("b", 2, 3, 1)], 2),
    "an answer that nobody saw": ([call("a", 1, 2, 1), lost("b", 3), call("c", 4, 5, 3)], 3),
    "a call that never ran": ([call("a", 1, 2, 1), lost("b", 3)], 1),
    "a lost call that ran late": ([lost("a", 1), call("b", 2, 3, 1), call("c", 4, 5, 3)], 3),
    "a read during an add": ([call("a", 1, 5, 1), read("r", 2, 3, 1), read("s", 2, 3, 0)], 1),
    "a read of what nobody was answered": ([lost("a", 1), read("r", 2, 3, 1)], 1),
}

WRONG = {
    "an add that answers what was before it": ([call("a", 1, 2, 0), lost("b", 1)], 1),
    "a value twice": ([call("a", 1, 4, 1), call("b", 2, 3, 1)], 2),
    "an answer that is lost": ([call("a", 1, 2, 1), call("b", 3, 4, 2)], 1),
    "counted twice": ([call("a", 1, 2, 1)], 2),
    "a lost call counted twice": ([call("a", 1, 2, 1), lost("b", 3)], 3),
    "behind an answer that came before": ([call("a", 1, 2, 2), call("b", 3, 4, 1)], 2),
    "a read behind an answer": ([call("a", 1, 2, 1), read("r", 3, 4, 0)], 1),
    "a read behind a read": ([call("a", 1, 9, 1), read("r", 2, 3, 1), read("s", 4, 5, 0)], 1),
    "an add behind a read": ([call("a", 2.5, 9, 1), call("b", 1, 9, 2), read("r", 1.5, 2, 1)], 2),
    "a read of what never was": ([call("a", 1, 2, 1), read("r", 3, 4, 2)], 1),
    "a lost call that ran before it was sent": ([call("a", 1, 2, 2), lost("b", 3)], 2),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_legal_history_of_a_counter_passes(name: str) -> None:
    """What a counter that counts each call once may answer is not complained about."""
    assert check_counter(*RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_an_illegal_history_of_a_counter_is_found(name: str) -> None:
    """Each way of being wrong is seen."""
    assert check_counter(*WRONG[name]) != []


def run(name: str, sent: float, answered: float, marks: list[str]) -> Operation:
    return call(name, sent, answered, marks, kind=Kind.STEPS)


ONE = ["1", "2", "3"]
TWO = [*ONE, "4", "5", "6"]
TRAIL = [("first", "1"), ("second", "2"), ("third", "3"), ("first", "4"), ("second", "5"), ("third", "6")]


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        ([run("a", 1, 2, ONE), run("b", 3, 4, TWO)], TWO),
        ([run("a", 1, 2, ONE), call("b", 3, kind=Kind.STEPS)], TWO),
        ([run("a", 1, 2, ONE), call("b", 3, kind=Kind.STEPS)], ONE),
    ],
)
def test_runs_of_steps_whose_marks_are_kept_once_pass(runs: list[Operation], kept: list[str]) -> None:
    """Runs in a row, and one that nobody saw the end of."""
    assert check_steps(runs, kept, [*TRAIL, ("second", "7")]) == []


@pytest.mark.parametrize(
    ("runs", "kept"),
    [
        pytest.param([run("a", 1, 2, ONE)], TWO, id="one too many"),
        pytest.param([run("a", 1, 2, ONE), run("b", 3, 4, TWO)], ONE, id="one too few"),
        pytest.param([run("a", 1, 2, TWO), run("b", 3, 4, ONE)], TWO, id="in the wrong order"),
        pytest.param([run("a", 1, 3, ONE), run("b", 2, 3, ONE)], TWO, id="the same answer twice"),
        pytest.param([run("a", 1, 2, ["1", "2", "2"])], ["1", "2", "2"], id="a mark twice"),
        pytest.param([run("a", 1, 2, ["1", "2", "8"])], ["1", "2", "8"], id="a mark that no step made"),
        pytest.param([run("a", 1, 2, ["1", "2"])], ["1", "2"], id="half a run"),
    ],
)
def test_runs_of_steps_that_can_not_be_are_found(runs: list[Operation], kept: list[str]) -> None:
    """Each way of being wrong is seen."""
    assert check_steps(runs, kept, TRAIL) != []


def test_a_flaky_call_counts_once_and_has_run_three_times() -> None:
    """Its failed attempts leave nothing behind."""
    calls = [call("a", 1, 2, 3, kind=Kind.FLAKY), call("b", 1, kind=Kind.FLAKY)]

    assert check_flaky(calls, 1, {"a": 3}) == []
    assert check_flaky(calls, 2, {"a": 4, "b": 3}) == []
    assert check_flaky(calls, 0, {"a": 3}) != []
    assert check_flaky(calls, 3, {"a": 3}) != []
    assert check_flaky(calls, 1, {"a": 2}) != []


def test_each_acknowledged_message_is_seen_once_and_in_order() -> None:
    """A message that was lost, seen twice, or overtaken by another is found."""
    assert check_waits([call("a", 1, 2, [0, 1, 2]), call("b", 1)], 3) == []
    for seen in ([0, 2], [0, 1, 1, 2], [1, 0, 2], []):
        assert len(check_waits([call("a", 1, 2, seen, kind=Kind.WAITS)], 3)) == 1


BOOKED = ["book", "clean", "undo"]


@pytest.mark.parametrize(
    ("outcome", "undone", "words"),
    [
        ("cancelled", [], []),
        ("cancelled", ["booking"], ["undo"]),
        ("cancelled", ["booking"], ["book", "undo"]),
        ("cancelled", ["booking"], BOOKED),
        ("cancelled", ["booking"], ["book", "book", "clean", "clean", "undo", "undo"]),
    ],
)
def test_an_acknowledged_cancel_passes_wherever_it_found_the_handler(
    outcome: str, undone: list[str], words: list[str]
) -> None:
    """Before it began, before its step, and while it slept; also where a step ran again after a kill."""
    assert check_cancel(call("a", 1, 2, [outcome, undone], kind=Kind.CANCEL), words) == []


@pytest.mark.parametrize(
    ("outcome", "undone", "words"),
    [
        pytest.param("completed", ["booking"], BOOKED, id="not cancelled"),
        pytest.param("cancelled", [], ["book"], id="not undone"),
        pytest.param("cancelled", ["booking"], ["book", "clean"], id="undone by word only"),
        pytest.param("cancelled", [], BOOKED, id="undone without a word"),
        pytest.param("cancelled", ["booking"], ["clean", "undo"], id="cleaned up what it never did"),
    ],
)
def test_an_acknowledged_cancel_that_was_not_processed_is_found(
    outcome: str, undone: list[str], words: list[str]
) -> None:
    """Each way of being wrong is seen."""
    assert check_cancel(call("a", 1, 2, [outcome, undone], kind=Kind.CANCEL), words) != []


def test_a_call_that_must_have_an_answer_and_has_none_is_found() -> None:
    """One that is asked again until it is answered, and one whose id was given out."""
    by_id = call("a", 1)
    by_id.invocation = "Counter.0.1"

    assert check_all([call("b", 1), lost("c", 1), call("d", 1, 2, 1)]) == []
    assert len(check_all([by_id, call("e", 1, is_idempotent=True)])) == 2


def test_a_history_outlives_its_process_and_a_torn_line(tmp_path: Path) -> None:
    """What is read back is what was noted, also where the process died in the middle of a line."""
    path = tmp_path / "history"
    before = HistoryFile(path)
    first, second = call("a", 1), call("b", 2, is_idempotent=True)
    before.sent(first)
    before.answered(first, 7)
    before.sent(second)
    path.write_bytes(path.read_bytes()[:-3])
    after = HistoryFile(path)
    third = call("c", 3)
    after.sent(third)
    after.learned(third, invocation="Counter.0.1")

    assert after.read() == [first, third]
