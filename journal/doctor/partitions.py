"""Reads partitions: the owner's hash, and how much lies in each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..due import ms_of
from ..keyspace import PartitionSpace
from ..store import Store
from .clocks import read_clocks
from .facts import Backlog

#: Partitions that one turn is about.
AT_ONCE: Final = 128
_COMMANDS: Final = 7


@dataclass(frozen=True, slots=True)
class Reading:
    """A partition, read once.

    Args:
        owner: The fields of its owner hash, without the ring of answers and without the token's bytes.
        now_ms: The partition's time.
        backlog: What lies in it; open invocations are counted elsewhere.
        earliest_due: Raw id and time of what is due first.
        earliest_history: The object whose history is to be looked at first, and when.
    """

    owner: Mapping[str, str]
    now_ms: int
    backlog: Backlog
    earliest_due: tuple[bytes, int] | None
    earliest_history: tuple[bytes, int] | None


async def read_partitions(store: Store, spaces: Sequence[PartitionSpace]) -> dict[PartitionSpace, Reading]:
    """Read partitions, some in each turn. What is of a wrong type counts as empty: that is a finding by itself.

    Raises:
        StoreUnavailable: The store is away.
    """
    found: dict[PartitionSpace, Reading] = {}
    for start in range(0, len(spaces), AT_ONCE):
        piece = spaces[start : start + AT_ONCE]
        clocks = await read_clocks(store)
        replies = await store.together([words for space in piece for words in _words(space)])
        for at, space in enumerate(piece):
            found[space] = _reading(replies[_COMMANDS * at : _COMMANDS * (at + 1)], clocks.of(space))
    return found


def _words(space: PartitionSpace) -> list[tuple[Any, ...]]:
    return [
        ("HGETALL", space.owner),
        ("XLEN", space.inbox),
        ("SCARD", space.runnable),
        ("ZCARD", space.due),
        ("XLEN", space.undecodable),
        ("ZRANGE", space.due, 0, 0, "WITHSCORES"),
        ("ZRANGE", space.history, 0, 0, "WITHSCORES"),
    ]


def _reading(replies: Sequence[Any], clock_ms: int) -> Reading:
    flat, *counts, first, history = replies
    owner = {} if isinstance(flat, Exception) else _owner(flat)
    inbox, runnable, due, undecodable = (count if isinstance(count, int) else 0 for count in counts)
    offset_ms = _number(owner.get("offset", "0"))
    now_ms = max(clock_ms + offset_ms, _number(owner.get("time", "0")))
    backlog = Backlog(inbox, runnable, due, undecodable)
    return Reading(owner, now_ms, backlog, _first(first), _first(history))


def _owner(flat: Sequence[bytes]) -> dict[str, str]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    told = {name.decode(errors="replace"): value for name, value in pairs}
    return {
        name: "held" if name == "token" else value.decode(errors="replace")
        for name, value in told.items()
        if not (name.startswith("a") and name[1:].isdigit())
    }


def _first(reply: Any) -> tuple[bytes, int] | None:
    return None if isinstance(reply, Exception) or not reply else (reply[0], ms_of(reply[1]))


def _number(text: str) -> int:
    return int(text) if text.removeprefix("-").isdigit() else 0
