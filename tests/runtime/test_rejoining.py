"""Where invocations come back into the list of their lane."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from keylane import VirtualObject
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.records import Accepted, Paused, PauseReason
from keylane.journal.transitions import replay
from keylane.runtime.aside import returning
from keylane.runtime.endings import back_in_order, rejoining

KEY = "acme/o-1"
SPACE = PartitionSpace("keylane", "Skipped", 0)


def an_invocation(number: int, *, is_paused: bool = False) -> Any:
    raw_id = bytes([number]) * 16
    records = [Accepted(raw_id, "work", 1, KEY), *([Paused(PauseReason.OPERATOR, "")] if is_paused else [])]
    return SimpleNamespace(raw_id=raw_id, accepted=True, ended=False, standing=replay(records))


def a_lane(first: Any) -> Any:
    partition = SimpleNamespace(
        space=SPACE,
        virtual_object=VirtualObject("Skipped", owner="tests", on_paused="skip"),
        parked=cast("dict[bytes, Any]", {}),
    )
    return SimpleNamespace(partition=partition, key_text=KEY, queue=[first], aside=(), running=first, loaded=True)


def entered(writes: list[Any]) -> list[bytes]:
    """Return who is put at the head of the list, in this order."""
    return [each[2] for each in writes if each[0] == b"f"]


def test_what_runs_keeps_its_place_before_what_is_resumed() -> None:
    """It is taken out and put back, so that an owner that comes goes on with it first."""
    running, resumed = an_invocation(1), an_invocation(2)
    assert entered(rejoining(a_lane(running), resumed, is_aside=True, running=running)) == [b"\2" * 16, b"\1" * 16]
    assert entered(returning(a_lane(running), resumed)) == [b"\2" * 16, b"\1" * 16]


def test_what_has_left_the_list_with_its_pause_is_not_put_back() -> None:
    """Its run has not ended in memory while its pause is on its way; once resumed, the list would name it twice."""
    running, resumed = an_invocation(1, is_paused=True), an_invocation(2)
    assert entered(rejoining(a_lane(running), resumed, is_aside=True, running=running)) == [b"\2" * 16]
    assert entered(returning(a_lane(running), resumed)) == [b"\2" * 16]


def test_a_lane_that_is_not_in_memory_keeps_those_that_only_its_list_names() -> None:
    """Its order is mended by moving what is known, not by writing a list that lacks the others."""
    first, behind = an_invocation(1), an_invocation(2)
    lane = a_lane(first)
    lane.queue.append(behind)
    assert [each[0] for each in back_in_order(lane, [first])] == [b"r"]
    lane.loaded = False
    assert [(each[0], each[2]) for each in back_in_order(lane, [first])] == [(b"u", b"\2" * 16), (b"q", b"\2" * 16)]
