"""What is told of signals that nobody has waited for yet."""

from __future__ import annotations

from collections.abc import Sequence

from .blobs import size_of
from .codec import Undecodable
from .descriptions import WaitingSignal
from .keyspace import PartitionSpace
from .lane_reading import ask
from .mail import Mail
from .noted import Noted, moment
from .outcomes import Succeeded, decode_outcome
from .signals import EarlySignal
from .store import Store


def early_of(notes: Sequence[Noted]) -> tuple[WaitingSignal, ...]:
    """Return the signals that an invocation has got and not taken, in order."""
    mail, came_ms = Mail(), dict[bytes, int]()
    for note in notes:
        if note.record is not None:
            mail.note(note.record, note.at_ms)
            came_ms.update((each.message, note.at_ms) for each in mail.early[-1:] if each is note.record)
    return tuple(
        WaitingSignal(each.name, moment(came_ms[each.message]), each.by, _size_of(each.value)) for each in mail.early
    )


async def read_early(store: Store, space: PartitionSpace, key_text: str) -> tuple[WaitingSignal, ...]:
    """Return the signals to an object that nobody has taken, in order; what can't be read is passed over.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where they belong.
    """
    key = space.signals(key_text)
    (flat,) = await ask(store, [("HGETALL", key)], [key])
    found: dict[int, EarlySignal] = {}
    for field, data in zip(flat[::2], flat[1::2], strict=True):
        try:
            found[int(field)] = EarlySignal.decode(data)
        except (Undecodable, ValueError):
            continue
    return tuple(
        WaitingSignal(each.name, moment(each.at_ms), each.by, _size_of(each.value)) for _, each in sorted(found.items())
    )


def _size_of(value: bytes) -> int:
    try:
        outcome = decode_outcome(value)
    except Undecodable:
        return len(value)
    return size_of(outcome.result) if isinstance(outcome, Succeeded) else len(value)
