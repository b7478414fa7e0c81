"""The facts of ownership: who holds a partition, what a would-be owner saw, and what a worker says of itself."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Final

from .doubt import DoubtSpan, Verdict
from .errors import StoreError
from .fields import Layout, a_number, a_text, decode_tagged, pack, sequence_of_bytes

TOKEN_BYTES = 16

# Leases are measured by a clock that goes on while the machine sleeps: a holder that slept must know that its lease ran
# out. macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the one that goes on.
_LEASE_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Return seconds on the clock by which leases are measured; it means nothing outside this machine."""
    return time.clock_gettime(_LEASE_CLOCK)


@dataclass(frozen=True, slots=True)
class Tenure:
    """One period of ownership of a partition; every write of the owner carries it.

    Args:
        epoch: Higher by one with each owner.
        token: Random bytes made at acquisition: two histories of one partition may share an epoch, never a token.
    """

    epoch: int
    token: bytes


def new_token() -> bytes:
    """Return the token of a tenure that is about to begin."""
    return secrets.token_bytes(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a partition's owner hash said when it was read.

    Args:
        epoch: The epoch of the last tenure; None for a partition that never had an owner.
        lease: The counter that the holder raises.
        released: Whether the holder has handed the partition over.
        worker: Who holds it, or held it.
        machine: Where that worker runs, as it describes it itself.
        lease_seconds: For how long it may be silent, 0 where it does not say.
    """

    epoch: int | None
    lease: int
    released: bool
    worker: str
    machine: str
    lease_seconds: float = 0.0


VACANT: Final = Observation(None, 0, released=False, worker="", machine="")


@dataclass(frozen=True, slots=True)
class Acquired:
    """A tenure that begins.

    Args:
        tenure: What every write carries from now on.
        now_ms: The partition's time.
        last_batch: Number of the last batch that the tenure before applied, 0 when there was none.
        last_serial: The serial of that batch.
        sent_at: When the acquisition was first sent, by `lease_clock`: the lease counts from there.
        history: The history that the partition goes on with.
        doubt: The span in which records may be missing, None where there is none.
        verdict: What was found out about the end of the history.
    """

    tenure: Tenure
    now_ms: int
    last_batch: int
    last_serial: int
    sent_at: float
    history: str = ""
    doubt: DoubtSpan | None = None
    verdict: Verdict = Verdict.WHOLE


@dataclass(frozen=True, slots=True)
class Poll:
    """One answered look at many partitions.

    Args:
        sent_at: Before the question was sent, by `lease_clock`.
        answered_at: After the last answer arrived.
        seen: What was found, in the order of the question; an error stands for a partition that can't be read.
    """

    sent_at: float
    answered_at: float
    seen: tuple[Observation | StoreError, ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """One answered look at the registry of live workers: the raw announcement of each."""

    sent_at: float
    answered_at: float
    announcements: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a worker says of itself in the registry.

    Args:
        counter: Raised with each announcement, so that a live worker's differs each time.
        hosts: The object types whose handlers it has.
        machine: Where it runs, as `Observation.machine`.
        library: The function library that it calls; a library that nobody announces may be deleted.
        draining: Whether it is about to leave and wants no partitions.
        lease_seconds: For how long it may be silent, 0 where it does not say.
    """

    counter: int
    hosts: tuple[str, ...]
    machine: str
    library: str
    draining: bool
    lease_seconds: float = 0.0


def _announcement(
    counter: int, hosts: tuple[bytes, ...], machine: str, library: str, draining: int, lease_ms: int = 0
) -> Announcement:
    names = tuple(name.decode() for name in hosts)
    return Announcement(counter, names, machine, library, draining != 0, lease_ms / 1000)


_TAG: Final = 1
_LAYOUTS: Final = {_TAG: Layout(_announcement, (a_number, sequence_of_bytes, a_text, a_text, a_number), (a_number,))}


def encode_announcement(announcement: Announcement) -> bytes:
    """Return the bytes that lie in the registry."""
    hosts = [name.encode() for name in announcement.hosts]
    lease_ms = int(announcement.lease_seconds * 1000)
    fields = (announcement.counter, hosts, announcement.machine, announcement.library, int(announcement.draining))
    return pack([_TAG, *fields, lease_ms])


def decode_announcement(data: bytes) -> Announcement:
    """Return what the bytes of the registry say.

    Raises:
        Undecodable: They are no announcement that this release knows.
    """
    return decode_tagged(data, _LAYOUTS, "announcement")
