"""A plain model of what operations do to a partition, to compare a store with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from keylane.journal.batch import Operation
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.store import Store

#: A stream's entries: the time in their ids, and their fields and values.
Entries = list[tuple[int, list[bytes]]]


@dataclass
class Contents:
    """Everything that a partition holds, in plain values."""

    streams: dict[bytes, Entries] = field(default_factory=dict[bytes, Entries])
    results: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    hashes: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict[bytes, dict[bytes, bytes]])
    lists: dict[bytes, list[bytes]] = field(default_factory=dict[bytes, list[bytes]])
    runnable: set[bytes] = field(default_factory=set[bytes])
    due: dict[bytes, int] = field(default_factory=dict[bytes, int])
    indexes: dict[bytes, dict[bytes, int]] = field(default_factory=dict[bytes, dict[bytes, int]])
    used: dict[bytes, int] = field(default_factory=dict[bytes, int])
    sets: dict[bytes, set[bytes]] = field(default_factory=dict[bytes, set[bytes]])
    expiring: set[bytes] = field(default_factory=set[bytes])


@dataclass
class Model:
    """Applies operations to plain values, one after the other.

    Args:
        space: The names of the fixed keys.
        contents: What it has come to.
        counted: The last number given out in each outbox, and the last one acknowledged.
    """

    space: PartitionSpace
    contents: Contents = field(default_factory=Contents)
    history: str = ""
    counted: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    was_taken_out: bool = False

    def apply(self, operations: list[Operation], now_ms: int) -> None:
        """Apply a commit that the store applied at a time."""
        for operation in operations:
            letter, *arguments = operation
            getattr(self, f"_{letter.decode()}")(*arguments, now_ms=now_ms)

    def _a(self, key: bytes, count: int, *fields: bytes, now_ms: int) -> None:
        assert count == len(fields)
        self.contents.streams.setdefault(key, []).append((now_ms, list(fields)))

    def _s(self, key: bytes, value: bytes, kept_ms: int, *, now_ms: int) -> None:
        del now_ms, kept_ms
        self.contents.results[key] = value
        self.contents.expiring.add(key)

    def _e(self, key: bytes, kept_ms: int, *, now_ms: int) -> None:
        del now_ms, kept_ms
        if key in self.contents.streams or key in self.contents.hashes:
            self.contents.expiring.add(key)

    def _h(self, key: bytes, name: bytes | str, value: bytes | str, *, now_ms: int) -> None:
        del now_ms
        self.contents.hashes.setdefault(key, {})[_as_bytes(name)] = _as_bytes(value)

    def _x(self, key: bytes, message: bytes, *, now_ms: int) -> None:
        assigned, acknowledged = self.counted.get(key, (0, 0))
        self.contents.streams.setdefault(key, []).append((assigned + 1, [b"m", message]))
        self._count(key, assigned + 1, acknowledged, now_ms)
        self._h(self.space.sent, b"history", self.history, now_ms=now_ms)

    def _y(self, key: bytes, number: int, *, now_ms: int) -> None:
        assigned, acknowledged = self.counted.get(key, (0, 0))
        self._count(key, assigned, max(acknowledged, number), now_ms)
        left = [entry for entry in self.contents.streams.pop(key, []) if entry[0] > number]
        if left:
            self.contents.streams[key] = left

    def _count(self, key: bytes, assigned: int, acknowledged: int, now_ms: int) -> None:
        self.counted[key] = assigned, acknowledged
        self._h(self.space.sent, self.space.target(key), b"%d:%d" % (assigned, acknowledged), now_ms=now_ms)

    def _t(self, key: bytes, kept_ms: int, *, now_ms: int) -> None:
        if key in self.contents.streams:
            entries = self.contents.streams[key]
            self.contents.streams[key] = [entry for entry in entries if entry[0] >= now_ms - kept_ms]

    def _k(self, key: bytes, *, now_ms: int) -> None:
        del now_ms
        self.contents.streams.pop(key, None)
        self.contents.expiring.discard(key)

    def _n(self, key: bytes, delay_ms: int, member: bytes | str, *, now_ms: int) -> None:
        self.contents.indexes.setdefault(key, {})[_as_bytes(member)] = now_ms + delay_ms

    def _o(self, key: bytes, member: bytes | str, *, now_ms: int) -> None:
        del now_ms
        index = self.contents.indexes.get(key, {})
        index.pop(_as_bytes(member), None)
        if not index:
            self.contents.indexes.pop(key, None)

    def _q(self, key: bytes, raw_id: bytes, lane: str, *, now_ms: int) -> None:
        del now_ms
        self.contents.lists.setdefault(key, []).append(raw_id)
        self.contents.runnable.add(lane.encode())

    def _f(self, key: bytes, raw_id: bytes, lane: str, *, now_ms: int) -> None:
        del now_ms
        self.contents.lists.setdefault(key, []).insert(0, raw_id)
        self.contents.runnable.add(lane.encode())

    def _u(self, key: bytes, raw_id: bytes, lane: str, *, now_ms: int) -> None:
        del now_ms
        ids = self.contents.lists.get(key, [])
        if raw_id in ids:
            ids.remove(raw_id)
        if not ids:
            self.contents.lists.pop(key, None)
            self.contents.runnable.discard(lane.encode())

    def _r(self, key: bytes, count: int, *rest: Any, now_ms: int) -> None:
        del now_ms
        *ids, works, lane = rest
        assert count == len(ids)
        self.contents.lists.pop(key, None)
        if ids:
            self.contents.lists[key] = ids
        if works == b"1":
            self.contents.runnable.add(lane.encode())
        else:
            self.contents.runnable.discard(lane.encode())

    def _w(self, lane: str, *, now_ms: int) -> None:
        del now_ms
        self.contents.runnable.add(lane.encode())

    def _l(self, lane: str, *, now_ms: int) -> None:
        del now_ms
        self.contents.runnable.discard(lane.encode())

    def _d(self, raw_id: bytes, delay_ms: int, *, now_ms: int) -> None:
        self.contents.due[raw_id] = now_ms + delay_ms

    def _c(self, raw_id: bytes, *, now_ms: int) -> None:
        del now_ms
        self.contents.due.pop(raw_id, None)

    def _i(self, entry: bytes, *, now_ms: int) -> None:
        del now_ms
        inbox = self.contents.streams[self.space.inbox]
        self.contents.streams[self.space.inbox] = [each for each in inbox if b"%d-0" % each[0] != entry]

    def _b(self, data: bytes, *, now_ms: int) -> None:
        self._a(self.space.undecodable, 2, b"m", data, now_ms=now_ms)
        self.contents.expiring.add(self.space.undecodable)

    def _j(self, key: bytes, later_ms: int, member: bytes, *, now_ms: int) -> None:
        del key
        self.contents.used[member] = now_ms + later_ms

    def _z(self, key: bytes, member: bytes, before_ms: int, *, now_ms: int) -> None:
        del key, now_ms
        self.was_taken_out = member in self.contents.used and self.contents.used[member] <= before_ms
        if self.was_taken_out:
            del self.contents.used[member]

    def _g(self, key: bytes, name: bytes, *, now_ms: int) -> None:
        del now_ms
        fields = self.contents.hashes.get(key, {})
        if self.was_taken_out:
            fields.pop(name, None)
        if not fields:
            self.contents.hashes.pop(key, None)
        self.was_taken_out = False

    def _G(self, key: bytes, name: bytes | str, *, now_ms: int) -> None:  # noqa: N802, the letter of the operation
        del now_ms
        fields = self.contents.hashes.get(key, {})
        fields.pop(_as_bytes(name), None)
        if not fields:
            self.contents.hashes.pop(key, None)
            self.contents.expiring.discard(key)

    def _m(self, key: bytes, member: bytes, *, now_ms: int) -> None:
        del now_ms
        self.contents.sets.setdefault(key, set()).add(member)

    def _v(self, key: bytes, member: bytes, *, now_ms: int) -> None:
        del now_ms
        members = self.contents.sets.get(key, set())
        members.discard(member)
        if not members:
            self.contents.sets.pop(key, None)

    def _p(self, message: bytes, *, now_ms: int) -> None:
        """Announce: nothing is left of it."""


async def read(store: Store, space: PartitionSpace) -> Contents:
    """Return what a partition of a store holds, all but its owner's hash."""
    found = Contents()
    for key in await store.call("KEYS", space.tag + b"*"):
        if key == space.owner:
            continue
        match await store.call("TYPE", key):
            case b"stream":
                entries: list[Any] = await store.call("XRANGE", key, "-", "+")
                found.streams[key] = [(int(name.partition(b"-")[0]), fields) for name, fields in entries]
            case b"string":
                found.results[key] = await store.call("GET", key)
            case b"hash":
                found.hashes[key] = pairs(await store.call("HGETALL", key))
            case b"list":
                found.lists[key] = await store.call("LRANGE", key, 0, -1)
            case b"set" if key != space.runnable:
                found.sets[key] = set(await store.call("SMEMBERS", key))
            case b"set":
                found.runnable.update(await store.call("SMEMBERS", key))
            case _:
                scores = pairs(await store.call("ZRANGE", key, 0, -1, "WITHSCORES"))
                times = {member: int(score) for member, score in scores.items()}
                named = {space.due: found.due, space.blob_index: found.used}
                (named[key] if key in named else found.indexes.setdefault(key, {})).update(times)
        if await store.call("PTTL", key) >= 0:
            found.expiring.add(key)
    return found


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """Return the pairs of a flat answer."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _as_bytes(word: bytes | str) -> bytes:
    return word.encode() if isinstance(word, str) else word
