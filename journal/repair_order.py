"""What an owner is asked to put right in its partition: names of what may be damaged, each looked at before a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .fields import Layout, a_number, a_text, decode_tagged, pack, sequence_of_bytes

#: So many things are named in one order at most: what it takes to look at them fits into one turn.
NAMED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """The payload of a request to repair; the request's key is the lane that is looked at, empty for none.

    Args:
        by: Who asks for it.
        lane: Raw ids of invocations that may belong into the lane.
        due: Raw ids whose due times may belong to nothing.
        streams: Raw ids whose ended streams may be kept for ever.
        results: Raw ids whose results may be kept for ever.
        days: Days whose idempotency keys may be kept for ever, each as a number in ASCII.
        claims: Idempotency keys whose invocations may have ended, each as `day:digest`.
        reads_inbox: Whether entries of the inbox may have been passed over.
        calls: Raw ids of invocations whose calls of other objects may be lost.
        outboxes: Partitions, as `Type.number`, to which messages may be stuck.
        values: Large values that may be missing in the index of the partition, each as the index names it.
        docket: Effects and proposals of which agenda, queue or open proposals may say something wrong, each as these
            name it.
    """

    by: str
    lane: tuple[bytes, ...] = ()
    due: tuple[bytes, ...] = ()
    streams: tuple[bytes, ...] = ()
    results: tuple[bytes, ...] = ()
    days: tuple[bytes, ...] = ()
    claims: tuple[bytes, ...] = ()
    reads_inbox: bool = False
    calls: tuple[bytes, ...] = ()
    outboxes: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()
    docket: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        names = (self.lane, self.due, self.streams, self.results, self.days, self.claims)
        later = (self.calls, self.outboxes, self.values, *((self.docket,) if self.docket else ()))
        return pack((_REPAIR_ORDER, self.by, *names, int(self.reads_inbox), *later))

    @classmethod
    def decode(cls, data: bytes) -> RepairOrder:
        """Return the order that bytes hold; what a later version adds behind it is left out.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _ORDERS, "repair order")


def _order(by: str, *fields: object) -> RepairOrder:
    names, reads_inbox, later = fields[:_NAMES_COUNT], fields[_NAMES_COUNT], fields[_NAMES_COUNT + 1 :]
    return RepairOrder(by, *names, bool(reads_inbox), *later)  # pyright: ignore[reportArgumentType, reportCallIssue], the readers have checked them


_REPAIR_ORDER: Final = 121
_NAMES_COUNT: Final = 6
_NAMES: Final = (sequence_of_bytes,) * _NAMES_COUNT
_LATER: Final = (sequence_of_bytes,) * 4
_ORDERS: Final[Mapping[int, Layout[RepairOrder]]] = {_REPAIR_ORDER: Layout(_order, (a_text, *_NAMES, a_number), _LATER)}
