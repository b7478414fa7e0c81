"""What a long run has written down: each journal that is still kept must be whole, legal and ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from keylane.journal.command_records import StepCompleted
from keylane.journal.place import Place
from keylane.journal.record_bytes import decode
from keylane.journal.records import Finished, Record
from keylane.journal.standing import IllegalTransition
from keylane.journal.transitions import replay

from .soak_store import Servers


def wrong_journals(server: Servers, namespace: str) -> list[str]:
    """Return what is wrong with the streams of invocations and objects after everything has ended."""
    wrong: list[str] = []
    for key in server.keys(f"{{{namespace}:*}}:i:*"):
        records = [decode(each) for each in values(server, key, b"r")]
        if records:
            wrong += [f"{key!r}: {each}" for each in wrong_records(records)]
    for key in server.keys(f"{{{namespace}:*}}:o:*"):
        finished = [decode(each) for each in values(server, key, b"f")]
        ends = Counter(each.invocation for each in finished if isinstance(each, Finished))
        wrong += [f"{key!r}: {each.hex()} has ended {times} times" for each, times in ends.items() if times > 1]
    return wrong


def wrong_records(records: list[Record]) -> list[str]:
    """Return what is wrong with the records of one invocation."""
    try:
        standing = replay(records)
    except IllegalTransition as error:
        return [str(error)]
    wrong = [] if standing.is_terminal else [f"it is {standing.status}"]
    done = Counter(each.index for each in records if isinstance(each, StepCompleted))
    wrong += [f"its step {place} has ended {times} times" for place, times in done.items() if times > 1]
    # Of a branch, the first number says where it leaves the main branch.
    places: list[Place] = [place for each in records if (place := getattr(each, "index", None)) is not None]
    reached = sorted({place if isinstance(place, int) else place[0] for place in places})
    return wrong if reached == list(range(len(reached))) else [*wrong, f"its commands were recorded as {places}"]


def values(server: Servers, key: bytes, name: bytes) -> Iterator[bytes]:
    """Return the values of one field of a stream's entries; nothing of one that has expired meanwhile."""
    entries: list[tuple[bytes, list[Any]]] = server.ask("XRANGE", key, "-", "+")
    for _, fields in entries:
        yield from (value for field, value in zip(fields[::2], fields[1::2], strict=True) if field == name)
