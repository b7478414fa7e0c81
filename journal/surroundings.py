"""What is read beside an invocation or an object: its partition's owner and time, and who is in charge of its type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .descriptions import ObjectPause, PartitionOwner
from .keyspace import PartitionSpace, owners_key, types_key
from .lane_reading import ask
from .noted import moment
from .store import Store

_FIELDS = (
    "worker", "machine", "epoch", "lease", "released", "time", "offset", "doubt_from", "doubt_until", "doubt", "losses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The circumstances of a reading.

    Args:
        owner: Who owns the partition.
        now_ms: The partition's time.
        in_charge: Who is in charge of the object type, None where nobody has said so.
        is_type_known: Whether the namespace has the object type.
        full: Why no step is started and nothing is taken in, None while there is room in the store.
        pauses: What stops the exclusive work of the object that is read, where that is known.
    """

    owner: PartitionOwner
    now_ms: int
    in_charge: str | None
    is_type_known: bool
    full: str | None = None
    pauses: tuple[ObjectPause, ...] = ()

    @property
    def now(self) -> datetime:
        """The partition's time."""
        return moment(self.now_ms)


async def look(
    store: Store, space: PartitionSpace, commands: Sequence[tuple[Any, ...]], keys: Sequence[bytes]
) -> tuple[Surroundings, list[Any]]:
    """Read the surroundings together with what else is wanted, in one turn.

    Args:
        store: The open store.
        space: The partition.
        commands: Further reads.
        keys: The key that each of them reads.

    Returns:
        The surroundings, and the replies to the further reads.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where one of ours belongs.
    """
    owners, types = owners_key(store.namespace), types_key(store.namespace)
    own = [
        ("HMGET", space.owner, *_FIELDS),
        ("TIME",),
        ("HGET", owners, space.type_name),
        ("HEXISTS", types, space.type_name),
    ]
    replies = await ask(store, [*own, *commands], [space.owner, space.owner, owners, types, *keys])
    held, clock, in_charge, is_type_known, *others = replies
    worker, machine, epoch, lease, released, last_ms, offset_ms, *doubt = (_text(value) for value in held)
    owner = PartitionOwner(worker, machine, _number(epoch), _number(lease) or 0, released == "1", *_doubt(*doubt))
    server_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000 + (_number(offset_ms) or 0)
    now_ms = max(server_ms, _number(last_ms) or 0)
    memory = store.memory_of(space)
    if memory.use is None:
        await memory.look()
    full = memory.why if memory.is_full else None
    return Surroundings(owner, now_ms, _text(in_charge), bool(is_type_known), full), others


def _doubt(
    from_ms: str | None, until_ms: str | None, why: str | None, losses: str | None
) -> tuple[datetime | None, datetime | None, str | None, int]:
    """Return what the owner's hash says of records that may be missing."""
    since, until = _number(from_ms), _number(until_ms)
    reason = None if why is None else why.partition(":")[0]
    span = (None if since is None else moment(since), None if until is None else moment(until))
    return *span, reason, _number(losses) or 0


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _number(text: str | None) -> int | None:
    """Return a number of the owner's hash; what is none was written by somebody else and tells nothing."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
