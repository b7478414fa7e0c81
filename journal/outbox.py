"""The two ends of the way between partitions: what lies in an outbox, and the call that delivers it to an inbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

import redis.exceptions

from .errors import KeylaneError, StoreError, WrongKeyType
from .keyspace import PartitionSpace
from .lane_reading import ask
from .link import LinkLost
from .numbering import AGAIN_FIELD, HISTORY_FIELD, Base, Counted
from .store import Store, is_missing_function, refusal, store_error


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store has of a partition's outboxes.

    Args:
        history: The history that the numbers were given out in, None where there are none.
        counted: The numbers of each outbox.
        bases: Where the numbers of an outbox began anew.
        is_again: Whether a message may have been sent before in another history.
    """

    history: str | None
    counted: dict[bytes, Counted]
    bases: dict[bytes, Base]
    is_again: bool


async def read_kept(store: Store, space: PartitionSpace) -> Kept:
    """Read how far a partition's messages have come: two small hashes, whatever lies in the outboxes.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of them belongs.
        Undecodable: They hold something else.
    """
    sent, based = await ask(store, [("HGETALL", space.sent), ("HGETALL", space.bases)], [space.sent, space.bases])
    numbers = dict(zip(sent[::2], sent[1::2], strict=True))
    bases = dict(zip(based[::2], based[1::2], strict=True))
    history = numbers.pop(HISTORY_FIELD.encode(), None)
    is_again = bases.pop(AGAIN_FIELD.encode(), None) is not None
    return Kept(
        None if history is None else history.decode(),
        {space.outbox(target.decode()): Counted.read(text) for target, text in numbers.items()},
        {space.outbox(target.decode()): Base.read(text) for target, text in bases.items()},
        is_again,
    )


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the receiver had taken of the messages of this history, before a delivery and after it."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Missing:
    """The receiver has taken the messages up to this number, and those that were sent do not follow it."""

    taken: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The receiver knows a later history of the sending partition."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Nothing is known, or the receiver's store takes nothing in: to be sent again."""

    why: str
    is_refused: bool = False


Delivery: TypeAlias = Arrived | Missing | Stale | Undelivered

#: Handed what became of a delivery; must not raise.
Delivered: TypeAlias = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class Consignment:
    """Messages of one history to one partition, with contiguous numbers.

    Args:
        source: The sending partition, as `Type.number`.
        history: The history of its numbers.
        first: The number of the first message; with none, the number of the next one.
        messages: Their bytes.
        gap: What the receiver said that it has, where all between that and the first is lost for good.
        again: The invocations that the messages ask for, None for one that asks for none; empty when none of them can
            have been sent before in another history.
    """

    source: str
    history: str
    first: int
    messages: Sequence[bytes]
    gap: int | None = None
    again: Sequence[bytes | None] = ()


def deliver(store: Store, space: PartitionSpace, consignment: Consignment, done: Delivered) -> None:
    """Put messages into a partition's inbox: those that it has not taken yet, in order, once.

    Args:
        store: The open store.
        space: The receiving partition.
        consignment: The messages.
        done: Handed what became of them.
    """
    keys = [space.owner, space.inbox, space.marks, space.inbox_channel]
    facts: list[Any] = [consignment.source, consignment.history, consignment.first]
    facts.append("" if consignment.gap is None else consignment.gap)
    for position, message in enumerate(consignment.messages):
        raw_id = consignment.again[position] if consignment.again else None
        facts.append(0 if raw_id is None else len(keys) + 1)
        facts.append(message)
        if raw_id is not None:
            keys += [space.result(raw_id), space.invocation(raw_id)]
    store.observer.before_send("deliver", str(space), consignment.first)
    answered = partial(_answered, store, space, consignment.first, done)
    store.submit_durably(space, (*store.words("deliver", keys), *facts), answered)


def _answered(store: Store, space: PartitionSpace, first: int, done: Delivered, reply: Any) -> None:
    store.observer.after_answer("deliver", str(space), first)
    match reply:
        case [int() as before, int() as after]:
            done(Arrived(before, after))
        case redis.exceptions.ResponseError():
            done(_refused(store, space, reply))
        case LinkLost():
            done(Undelivered(str(reply)))
        case _:
            done(Undelivered(repr(reply), is_refused=True))


def _refused(store: Store, space: PartitionSpace, reply: redis.exceptions.ResponseError) -> Delivery:
    if is_missing_function(reply):
        store.load_library_beside(space)
        return Undelivered(str(reply))
    refused = refusal(reply)
    match refused.code:
        case "GAP":
            return Missing(int(refused.text))
        case "STALE":
            return Stale()
        case _:
            error = store_error(reply, store.url)
            return Undelivered(str(error), is_refused=not isinstance(error, KeylaneError))


#: Handed the numbers and the bytes of messages, or the error; must not raise.
EntriesRead: TypeAlias = Callable[[list[tuple[int, bytes]] | StoreError], None]


def read_entries(store: Store, outbox: bytes, after: int, count: int, done: EntriesRead) -> None:
    """Read what an outbox holds behind a number."""
    words = ("XRANGE", outbox, f"{after + 1}-0", "+", "COUNT", count)
    store.submit(words, partial(_read, store, outbox, done))


def _read(store: Store, outbox: bytes, done: EntriesRead, reply: Any) -> None:
    if not isinstance(reply, list):
        is_foreign = str(reply).startswith("WRONGTYPE")
        name = outbox.decode(errors="replace")
        error = WrongKeyType(name) if is_foreign else store_error(reply, store.url)
        done(error if isinstance(error, StoreError) else StoreError(str(error)))
        return
    entries = cast("list[tuple[bytes, list[bytes]]]", reply)
    done([(int(name.partition(b"-")[0]), fields[1]) for name, fields in entries])


async def read_span(store: Store, outbox: bytes) -> tuple[int, int] | None:
    """Return the first and the last number of the messages that an outbox holds, None where it holds none.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in its place.
    """
    ends = [("XRANGE", outbox, "-", "+", "COUNT", 1), ("XREVRANGE", outbox, "+", "-", "COUNT", 1)]
    firsts, lasts = await ask(store, ends, [outbox, outbox])
    if not firsts or not lasts:
        return None
    return int(firsts[0][0].partition(b"-")[0]), int(lasts[0][0].partition(b"-")[0])


#: Messages that are read at once where all of an outbox is wanted.
_PAGE: Final = 100


async def read_messages(store: Store, outbox: bytes) -> list[bytes]:
    """Read all that an outbox holds; for the rare case that somebody has to look through it.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in its place.
    """
    messages: list[bytes] = []
    start: bytes | str = "-"
    while True:
        (page,) = await ask(store, [("XRANGE", outbox, start, "+", "COUNT", _PAGE)], [outbox])
        messages.extend(fields[1] for _, fields in page)
        if len(page) < _PAGE:
            return messages
        start = b"(" + page[-1][0]
