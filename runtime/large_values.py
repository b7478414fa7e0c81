"""The large values of one object as its owner writes them: once, and referred to from then on.

What a commit of a lane is about to hold goes through `kept` first. A value up to the threshold stays as it is; of a
larger one the bytes go out with the next commit of the lane, unless the store has them already, and a reference takes
its place. Many values of middling size in one record or snapshot are treated like large ones, so that no single entry
of a stream grows without bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast

from ..journal import operations
from ..journal.batch import Operation
from ..journal.blobs import digest_in, digest_of, digests_in, is_reference, reference_to, size_of
from ..journal.operations import Delta
from ..journal.writer import BYTES_PER_BATCH

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane

#: Values up to this size are written without a second look; a batch of them is no burden.
USUAL_BYTES: Final = 1024
#: The values of one record, delta or snapshot that together have more than this are kept apart, save the usual ones.
MANY_BYTES: Final = 256 << 10
#: What an operation on the index costs the store, in bytes of a value that would cost it as much.
TOUCH_WEIGHT: Final = 4096

Values = TypeVar("Values", dict[str, bytes], dict[str, bytes | None])


class LargeValues:
    """What the owner knows of one object's large values: which the store has, and what goes out with the next commit.

    Args:
        lane: The object's lane.
        stored: Digests of those that are known to be in the store.
    """

    __slots__ = ("_due", "_lane", "_stored", "_weight")

    def __init__(self, lane: Lane, stored: Iterable[bytes] = ()) -> None:
        self._lane = lane
        #: Those that the store has by the time that the commits queued so far are applied.
        self._stored = set(stored)
        self._due: list[tuple[list[Operation], int]] = []
        self._weight = 0

    @property
    def is_due(self) -> bool:
        """Whether the next commit carries something for it."""
        return self._weight > 0

    def keep(self, packed: bytes, limit_bytes: int) -> bytes:
        """Return what stands for a value: itself up to the limit, else a reference to bytes that are written."""
        if len(packed) <= limit_bytes:
            self._weight += len(packed)
            return packed
        partition, digest = self._lane.partition, digest_of(packed)
        if digest in self._stored:
            self.touch(digest)
        else:
            self._stored.add(digest)
            keeping = operations.keep_blob(partition.space, self._lane.key_text, digest, packed)
            self._add(keeping, len(packed) + TOUCH_WEIGHT)
            partition.store.blob_cache.put(digest, packed)
        return reference_to(packed, digest)

    def touch(self, digest: bytes) -> None:
        """Note that a value is referred to now, so that it outlives what refers to it by the retention."""
        self._add([operations.touch_blob(self._lane.partition.space, self._lane.key_text, digest)], TOUCH_WEIGHT)

    def weigh(self, size_bytes: int) -> None:
        """Note that the next commit is larger than usual by so much."""
        self._weight += size_bytes

    def overwrite(self, delta: Delta) -> None:
        """Let values that are about to be overwritten outlive the histories and results that hold them too."""
        queued = self._lane.queued
        for name, value in delta.items():
            old = queued.get(name)
            if old is not None and old != value and is_reference(old):
                self.touch(digest_in(old))

    def forget(self, digest: bytes) -> None:
        """Take note that a value is being deleted; used once more, it is written once more."""
        self._stored.discard(digest)

    def forget_all(self) -> None:
        """Take note that commits were refused, so that what is in the store is not known."""
        self._stored.clear()

    def take(self) -> tuple[list[tuple[list[Operation], int]], list[Operation], int]:
        """Return what is due with the next commit.

        Returns:
            Commits of their own that have to go ahead of it, each with its weight, where all of it together would keep
            the store too long; what goes into it; and its weight.
        """
        due, weight = self._due, self._weight
        self._due, self._weight = [], 0
        if weight <= BYTES_PER_BATCH or len(due) <= 1:
            return [], [operation for group, _ in due for operation in group], weight
        ahead: list[tuple[list[Operation], int]] = []
        for group, group_weight in due:
            weight -= group_weight
            if ahead and ahead[-1][1] + group_weight <= BYTES_PER_BATCH:
                ahead[-1] = ([*ahead[-1][0], *group], ahead[-1][1] + group_weight)
            else:
                ahead.append((group, group_weight))
        return ahead, [], weight

    def _add(self, group: list[Operation], weight: int) -> None:
        self._due.append((group, weight))
        self._weight += weight


def large_values(lane: Lane) -> LargeValues:
    """Return what is known of a lane's large values."""
    if lane.large is None:
        lane.large = LargeValues(lane)
    return lane.large


def found_in(lane: Lane, values: Mapping[str, bytes], digests: Iterable[bytes]) -> LargeValues | None:
    """Return what a lane's state and open invocations say about its large values, None when there are none."""
    stored = {*digests_in(values.values()), *digests}
    return LargeValues(lane, stored) if stored else None


def weigh(lane: Lane, packed: bytes) -> None:
    """Note that the next commit carries bytes that no value of the object stands for, where they are many."""
    if len(packed) > USUAL_BYTES:
        large_values(lane).weigh(len(packed))


def kept(lane: Lane, packed: bytes) -> bytes:
    """Return what stands for a value in what the next commit of a lane writes."""
    if len(packed) <= USUAL_BYTES:
        return packed
    return large_values(lane).keep(packed, lane.partition.blob_threshold_bytes)


def kept_for(lane: Lane, invocation: Invocation, packed: bytes) -> bytes:
    """Do as `kept`, and protect the value for as long as the invocation is open."""
    if len(packed) <= USUAL_BYTES:
        return packed
    stored = kept(lane, packed)
    note(invocation, stored)
    return stored


def note(invocation: Invocation, stored: bytes) -> None:
    """Protect a value for as long as an invocation is open whose records refer to it."""
    if is_reference(stored):
        if invocation.refers is None:
            invocation.refers = set()
        invocation.refers.add(digest_in(stored))


def kept_delta(lane: Lane, delta: Delta) -> Delta:
    """Return writes as the next commit of a lane holds them."""
    large = lane.large
    for packed in delta.values():
        if packed is not None and len(packed) > USUAL_BYTES:
            large = large_values(lane)
            delta = _kept_all(large, delta, lane.partition.blob_threshold_bytes)
            break
    if large is not None:
        large.overwrite(delta)
    return delta


def compact(lane: Lane, values: Values) -> Values:
    """Return the values of one entry, of which there may be so many that even those below the threshold are a burden.

    The bytes of those that are kept apart go out with the next commit of the lane.
    """
    if len(values) * lane.partition.blob_threshold_bytes <= MANY_BYTES:
        return values
    if sum(len(packed) for packed in values.values() if packed is not None) <= MANY_BYTES:
        return values
    return _kept_all(large_values(lane), values, USUAL_BYTES)


def _kept_all(large: LargeValues, values: Values, limit_bytes: int) -> Values:
    whole = sum(len(packed) for packed in values.values() if packed is not None and len(packed) <= limit_bytes)
    limit_bytes = limit_bytes if whole <= MANY_BYTES else USUAL_BYTES
    kept_ones: dict[str, bytes | None] = dict(values)
    for name, packed in values.items():
        if packed is not None and len(packed) > USUAL_BYTES:
            kept_ones[name] = large.keep(packed, limit_bytes)
    return cast("Values", kept_ones)


def let_go(lane: Lane, invocation: Invocation) -> None:
    """Let the large values of an invocation that ends outlive it by the retention of its records."""
    refers, invocation.refers = invocation.refers, None
    if refers:
        large = large_values(lane)
        for digest in refers:
            large.touch(digest)


def total_bytes(values: Iterable[bytes | None]) -> int:
    """Return how many bytes values have, whole or referred to."""
    return sum(size_of(packed) for packed in values if packed is not None)
