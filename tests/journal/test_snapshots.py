"""An object's state out of its stream: the newest snapshot and the deltas after it, whatever stands between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.codec import Undecodable
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.operations import StateChange
from keylane.journal.snapshots import (
    Entry,
    ObjectState,
    decode_values,
    encode_values,
    fold,
    is_whole,
    newest_words,
    older_words,
)

names = st.sampled_from(["a", "b", "c", "né", "\udc80"])
deltas = st.dictionaries(names, st.one_of(st.none(), st.binary(max_size=4)), max_size=3)
#: What happens to an object, one thing after the other: a delta, a delta that is written as a snapshot, or an entry
#: that leaves the state alone.
histories = st.lists(st.tuples(st.sampled_from(["delta", "snapshot", "other"]), deltas), max_size=40)

History = list[tuple[str, dict[str, bytes | None]]]


@dataclass
class Told:
    """A history as a stream holds it, oldest entry first, and the state that a plain dict has come to."""

    entries: list[Entry] = field(default_factory=list[Entry])
    state: dict[str, bytes] = field(default_factory=dict[str, bytes])
    deltas: int = 0

    def tell(self, kind: str, delta: dict[str, bytes | None]) -> None:
        """Let one more thing happen."""
        written = [b"f", b"finished"]
        if kind != "other":
            for name, value in delta.items():
                if value is None:
                    self.state.pop(name, None)
                else:
                    self.state[name] = value
            snapshot = dict(self.state) if kind == "snapshot" else None
            self.deltas = 0 if kind == "snapshot" else self.deltas + 1
            written.extend(StateChange(delta, snapshot).fields())
        self.entries.append((b"%d-0" % (len(self.entries) + 1), written))


def told(history: History) -> Told:
    """Tell a history."""
    result = Told()
    for kind, delta in history:
        result.tell(kind, delta)
    return result


def newest_first(entries: list[Entry]) -> list[Entry]:
    return entries[::-1]


@given(history=histories)
def test_a_history_adds_up_to_what_a_dict_would_hold(history: History) -> None:
    """With any mixture of deltas and snapshots; and the deltas after the newest snapshot are counted."""
    expected = told(history)

    assert fold(newest_first(expected.entries)) == ObjectState(expected.state, expected.deltas)


@given(history=histories, at=st.integers(0, 40))
def test_what_lies_before_a_snapshot_does_not_matter(history: History, at: int) -> None:
    """A stream that was cut behind its snapshots adds up to the same."""
    expected = told([*history[:at], ("snapshot", {}), *history[at:]])
    rest = expected.entries[min(at, len(history)) :]

    assert fold(newest_first(rest)) == ObjectState(expected.state, expected.deltas)


@given(history=histories, sizes=st.lists(st.integers(1, 10), min_size=1, max_size=10))
def test_pieces_are_read_until_they_are_whole(history: History, sizes: list[int]) -> None:
    """However long the pieces are, newest first, as many as are asked for add up to the state of all."""
    expected = told(history)
    left = newest_first(expected.entries)
    read: list[Entry] = []
    for size in [*sizes, *[10] * len(history)]:
        piece, left = left[:size], left[size:]
        read.extend(piece)
        if is_whole(piece, size):
            break

    assert fold(read) == ObjectState(expected.state, expected.deltas)


def test_a_piece_is_whole_with_a_snapshot_or_at_the_beginning_of_the_stream() -> None:
    """A full piece without a snapshot says nothing about what lies before it."""
    plain, snapshot = (b"1-0", [b"d", b""]), (b"2-0", [b"f", b"s", b"s", b""])

    assert is_whole([], 1)
    assert is_whole([plain], 2)
    assert not is_whole([plain, plain], 2)
    assert is_whole([plain, snapshot], 2)
    # The value of a field may be spelled like the name of one.
    assert not is_whole([(b"3-0", [b"f", b"s"])], 1)


@given(values=deltas)
def test_values_come_back_as_they_were_written(values: dict[str, bytes | None]) -> None:
    """Names of any text, values of any bytes, and the mark of a value that was cleared."""
    assert decode_values(encode_values(values)) == values


GARBAGE = {
    "no msgpack": b"\xc1",
    "cut off": encode_values({"name": b"a value"})[:-1],
    "something behind it": encode_values({}) + b"\x00",
    "no map": msgpack.packb([1, 2]),
    "a value that is not packed": msgpack.packb({"name": 1}),
    "a name that is no text": msgpack.packb({b"name": b"value"}),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_bytes_that_are_no_values_are_undecodable(garbage: bytes) -> None:
    """Whatever they are instead."""
    with pytest.raises(Undecodable):
        decode_values(garbage)


@given(history=histories, at=st.integers(0, 39), letter=st.sampled_from([b"d", b"s"]))
def test_an_entry_that_the_state_needs_and_can_not_be_read_is_named(history: History, at: int, letter: bytes) -> None:
    """By the id under which a person finds it; one that lies before a snapshot is not needed."""
    expected = told(history)
    entries = list(expected.entries)
    entries.insert(at, (b"77-7", [b"f", b"finished", letter, b"\xc1"]))
    is_needed = not any(b"s" in fields[::2] for _, fields in expected.entries[at:])

    if is_needed:
        with pytest.raises(Undecodable, match="entry 77-7"):
            fold(newest_first(entries))
    else:
        assert fold(newest_first(entries)) == ObjectState(expected.state, expected.deltas)


def test_the_pieces_are_asked_for_from_the_newest_entry_back() -> None:
    """The second piece begins right before the last entry of the first, and is larger."""
    space = PartitionSpace("n", "Order", 0)
    first, second = newest_words(space, "acme/a"), older_words(space, "acme/a", b"5-3")

    assert first[:5] == ("XREVRANGE", space.object("acme/a"), "+", "-", "COUNT")
    assert second[:5] == ("XREVRANGE", space.object("acme/a"), b"(5-3", "-", "COUNT")
    assert second[5] > first[5]
