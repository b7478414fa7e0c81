"""Repairs what a checkup has found: owners are asked through their inboxes, and what ownership lost is given back."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio

from ..codec import Undecodable, unpack
from ..errors import KeylaneError, StoreUnavailable
from ..inbox import submit
from ..key import new_invocation_id
from ..keyspace import PartitionSpace
from ..outcomes import Refused, Succeeded, decode_outcome
from ..refusals import key_error
from ..repair_order import NAMED_MAX, RepairOrder
from ..requests import Request, RequestKind
from ..store import Refusal, Store
from .facts import Sign
from .findings import InboxRepair, LaneRepair, NamedRepair, OwnerRepair, Repair
from .report import Repaired, Report

#: Orders that wait for their answers at once.
AT_ONCE: Final = 100
#: How long an owner is waited for; what it does later it does all the same.
ANSWER_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """A request to an owner.

    Args:
        space: The partition.
        key: The lane that is looked at, empty for none.
        order: What may be damaged.
    """

    space: PartitionSpace
    key: str
    order: RepairOrder

    def __str__(self) -> str:
        """Return what it is about."""
        return f"{self.space.type_name} {self.key}" if self.key else str(self.space)


@dataclass(slots=True)
class _Names:
    """What is named in the orders of one partition, by the field of the order."""

    by_field: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    reads_inbox: bool = False


def orders_of(store: Store, repairs: Iterable[Repair], by: str) -> list[Order]:
    """Return the orders that repairs come to: one for each lane, and for each partition what else there is."""
    lanes: dict[tuple[PartitionSpace, str], list[bytes]] = defaultdict(list)
    names: dict[PartitionSpace, _Names] = defaultdict(_Names)
    for repair in repairs:
        space = store.space(repair.object_name, repair.partition)
        match repair:
            case LaneRepair():
                lanes[space, repair.key].extend(repair.ids)
            case NamedRepair():
                names[space].by_field[repair.what].append(repair.name)
            case InboxRepair():
                names[space].reads_inbox = True
            case OwnerRepair():
                pass
    orders = [
        Order(space, key, RepairOrder(by, lane=piece))
        for (space, key), ids in lanes.items()
        for piece in _pieces(dict.fromkeys(ids)) or [()]
    ]
    for space, named in names.items():
        orders.extend(
            Order(space, "", replace(RepairOrder(by), **{what: piece})) for what, piece in _named_pieces(named)
        )
        if named.reads_inbox:
            orders.append(Order(space, "", RepairOrder(by, reads_inbox=True)))
    return orders


def _named_pieces(named: _Names) -> list[tuple[str, tuple[bytes, ...]]]:
    return [(what, piece) for what, names in named.by_field.items() for piece in _pieces(dict.fromkeys(names))]


def _pieces(names: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    all_names = tuple(names)
    return [all_names[start : start + NAMED_MAX] for start in range(0, len(all_names), NAMED_MAX)]


async def repair(store: Store, report: Report, by: str) -> list[Repaired]:
    """Repair what a report has found and can be repaired.

    Args:
        store: The open store.
        report: The report.
        by: Who asks for it; it stands in the log of the owners.

    Returns:
        What was done about each.

    Raises:
        StoreUnavailable: The store is away.
    """
    wanted: list[Repair] = [finding.repair for finding in report.findings if finding.repair is not None]
    done = [await _mend_owner(store, each, report) for each in wanted if isinstance(each, OwnerRepair)]
    orders = orders_of(store, [*wanted, *(each.repair for each in report.doubtful)], by)
    live = {store.space(each.object_name, each.number) for each in report.partitions if each.health.sign is Sign.LIVE}
    for start in range(0, len(orders), AT_ONCE):
        done.extend(await _ask_owners(store, orders[start : start + AT_ONCE], live))
    return done


async def _mend_owner(store: Store, wanted: OwnerRepair, report: Report) -> Repaired:
    space = store.space(wanted.object_name, wanted.partition)
    partitions, _ = report.types[wanted.object_name]
    try:
        fields: list[bytes] = await store.fcall("mend", [space.owner], [partitions])
    except (Refusal, StoreUnavailable) as refused:
        return Repaired(str(space), refused=f"its owner hash was left alone: {refused}")
    names = ", ".join(name.decode() for name in fields)
    return Repaired(str(space), (f"gave its owner hash back: {names}",) if fields else ())


async def _ask_owners(store: Store, orders: Sequence[Order], live: set[PartitionSpace]) -> list[Repaired]:
    """Put orders into inboxes and wait for what live owners make of them."""
    asked = [(order, new_invocation_id()) for order in orders]
    done: list[Repaired] = []
    waits: list[tuple[Order, bytes]] = []
    for order, raw_id in asked:
        request = Request(RequestKind.REPAIR, raw_id, "", order.key, order.order.encode())
        try:
            await submit(store, order.space, request)
        except KeylaneError as error:
            done.append(Repaired(str(order), refused=error.message))
            continue
        if order.space in live:
            waits.append((order, raw_id))
        else:
            done.append(Repaired(str(order), waits=True))
    return [*done, *await _answers(store, waits)]


async def _answers(store: Store, waits: list[tuple[Order, bytes]]) -> list[Repaired]:
    done: list[Repaired] = []
    deadline = time.monotonic() + ANSWER_SECONDS
    while waits and time.monotonic() < deadline:
        results = [order.space.result(raw_id) for order, raw_id in waits]
        replies = await _results(store, results)
        done.extend(_repaired(order, data) for (order, _), data in zip(waits, replies, strict=True) if data is not None)
        waits = [each for each, data in zip(waits, replies, strict=True) if data is None]
        if waits:
            await anyio.sleep(POLL_SECONDS)
    return [*done, *(Repaired(str(order), waits=True) for order, _ in waits)]


async def _results(store: Store, results: Sequence[bytes]) -> list[bytes | None]:
    """Return what is there of results; one whose server does not answer may come later."""
    replies = await store.each([("GET", result) for result in results])
    for reply, result in zip(replies, results, strict=True):
        if isinstance(reply, Exception) and not isinstance(reply, StoreUnavailable):
            raise key_error(reply, result, store.url) from reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def _repaired(order: Order, data: bytes) -> Repaired:
    try:
        outcome = decode_outcome(data)
        did: Any = unpack(outcome.result) if isinstance(outcome, Succeeded) else ()
    except Undecodable as error:
        return Repaired(str(order), refused=f"its owner's answer can't be read: {error.message}")
    match outcome:
        case Succeeded():
            return Repaired(str(order), tuple(str(sentence) for sentence in did))
        case Refused():
            return Repaired(str(order), refused=outcome.message)
        case _:
            return Repaired(str(order), refused="its owner's answer is none to a repair")
