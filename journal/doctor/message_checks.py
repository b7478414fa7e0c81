"""The numbers of messages, compared with what lies in the outboxes, in an order in which work under way never misleads.

Numbers only grow. A message is in its outbox from the batch that gives it its number up to the batch that notes its
arrival: so what is read first is compared with what must be there later.
"""

from __future__ import annotations

from typing import Any, Final

from ..codec import Undecodable
from ..keyspace import PartitionSpace
from ..numbering import HISTORY_FIELD, Counted
from ..store import Store
from .findings import Finding, Kind, NamedRepair, Place
from .names import printable

_HISTORY: Final = HISTORY_FIELD.encode()


async def check_sent(store: Store, space: PartitionSpace) -> list[Finding]:
    """Look at the numbers of a partition, and whether what has not arrived lies in the outboxes.

    Raises:
        StoreUnavailable: The store is away.
    """
    (flat,) = await store.together([("HGETALL", space.sent)])
    if isinstance(flat, Exception):
        return []
    found: list[Finding] = []
    for target, text in zip(flat[::2], flat[1::2], strict=True):
        if target == _HISTORY:
            continue
        counted = counted_of(target, text)
        if counted is None:
            found.append(_unreadable(space, target, text))
        elif counted.acknowledged > counted.assigned:
            why = f"{counted.acknowledged} messages to it have arrived by its numbers, and {counted.assigned} were sent"
            found.append(_disagree(space, target, why))
        elif counted.assigned > counted.acknowledged:
            found.extend(await _missing(store, space, target, counted))
    return found


def counted_of(target: bytes, text: bytes) -> Counted | None:
    """Return the numbers of an outbox, None where they or the partition that they are for can't be read."""
    type_name, dot, number = target.rpartition(b".")
    if not (type_name and dot and number.isdigit()):
        return None
    try:
        return Counted.read(text)
    except Undecodable:
        return None


async def _missing(store: Store, space: PartitionSpace, target: bytes, before: Counted) -> list[Finding]:
    """Compare what had been sent with the outbox, less what has arrived by then."""
    outbox = space.outbox(target.decode())
    (said,) = await store.together([("XINFO", "STREAM", outbox)])
    (text,) = await store.together([("HGET", space.sent, target)])
    after = counted_of(target, text) if isinstance(text, bytes) else None
    if after is None or after.acknowledged >= before.assigned:
        return []
    first, last, length = _span(said)
    wanted = range(after.acknowledged + 1, before.assigned + 1)
    is_whole = length and first <= wanted[0] and last >= wanted[-1] and length == last - first + 1
    if is_whole:
        return []
    cause = f"messages {wanted[0]} to {wanted[-1]} to it have not arrived, and not all of them are in the outbox"
    remedy = (
        "what its owner has in memory still arrives; the next owner logs what is lost, and calls get MessageLost: "
        "restart the owner where that does not come by itself"
    )
    return [Finding(Kind.MESSAGES_MISSING, _place(space, target), cause, remedy)]


def _span(said: Any) -> tuple[int, int, int]:
    """Return the first and the last number of an outbox and how many entries it has, zeros where there is none."""
    if isinstance(said, Exception):
        return 0, 0, 0
    facts = dict(zip(said[::2], said[1::2], strict=True))
    first, last = facts.get(b"first-entry"), facts.get(b"last-entry")
    if not first or not last:
        return 0, 0, 0
    return number_of(first[0]), number_of(last[0]), int(facts[b"length"])


def number_of(entry_id: bytes) -> int:
    """Return the number of a message by its entry in an outbox."""
    return int(entry_id.partition(b"-")[0])


async def check_outbox(store: Store, space: PartitionSpace, target: bytes) -> list[Finding]:
    """Look whether an outbox holds what was never given a number, or what has arrived by its numbers.

    Raises:
        StoreUnavailable: The store is away.
    """
    outbox = space.outbox(target.decode(errors="replace"))
    (before,) = await store.together([("HGET", space.sent, target)])
    ends = [("XRANGE", outbox, "-", "+", "COUNT", 1), ("XREVRANGE", outbox, "+", "-", "COUNT", 1)]
    firsts, lasts = await store.together(ends)
    (after,) = await store.together([("HGET", space.sent, target)])
    if any(isinstance(each, Exception) for each in (before, firsts, lasts, after)) or not firsts or not lasts:
        return []
    numbers = Counted() if after is None else counted_of(target, after)
    if numbers is None:
        # The hash of the numbers says so.
        return []
    if number_of(lasts[0][0]) > numbers.assigned:
        why = f"its outbox holds message {number_of(lasts[0][0])}, and its numbers end at {numbers.assigned}"
        return [_disagree(space, target, why)]
    was = None if before is None else counted_of(target, before)
    if was is not None and number_of(firsts[0][0]) <= was.acknowledged <= was.assigned:
        why = f"its outbox holds message {number_of(firsts[0][0])}, and {was.acknowledged} have arrived by its numbers"
        return [_disagree(space, target, why)]
    return []


def _place(space: PartitionSpace, target: bytes) -> Place:
    name = printable(space.outbox(target.decode(errors="replace")))
    return Place(space.type_name, space.number, name=name)


def repair_of(space: PartitionSpace, target: bytes) -> NamedRepair:
    """Return the repair of an outbox."""
    return NamedRepair(space.type_name, space.number, "outboxes", target)


def _disagree(space: PartitionSpace, target: bytes, cause: str) -> Finding:
    remedy = "its owner looks at the outbox, delivers what it did not know of, and writes the numbers anew"
    return Finding(Kind.NUMBERS_DISAGREE, _place(space, target), cause, remedy, repair_of(space, target))


def _unreadable(space: PartitionSpace, target: bytes, text: bytes) -> Finding:
    cause = f"its numbers can't be read ({text!r:.40}): no worker can open the partition"
    remedy = "an owner that has it open writes them anew; where none has, delete the field (HDEL) and repair then"
    return Finding(Kind.NUMBERS_UNREADABLE, _place(space, target), cause, remedy, repair_of(space, target))


def stuck(space: PartitionSpace, target: bytes, count: int, seconds: float) -> Finding:
    """Return the finding for messages that a live owner does not deliver."""
    cause = f"{count} messages in it have not arrived, and none of them did for {seconds:.1f} s, while its owner lives"
    remedy = "its owner reads the outbox again; look into its log: the receiver's store may refuse them"
    return Finding(Kind.MESSAGES_STUCK, _place(space, target), cause, remedy, repair_of(space, target))
