"""Which worker should own which partition, by rendezvous hashing: everybody who sees the same workers agrees.

This decides who *tries*; a lease decides who owns. While two workers see different sets of live workers, both may want
a partition or neither may, and the lease keeps them apart until they agree again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """A partition by its object type and number."""

    type_name: str
    number: int


@dataclass(frozen=True, slots=True, order=True)
class LiveWorker:
    """A worker that takes part.

    Args:
        worker: Its identity.
        hosts: The object types whose handlers it has.
    """

    worker: str
    hosts: frozenset[str]


def owner_of(partition: PartitionId, workers: Iterable[LiveWorker]) -> str | None:
    """Return the worker that should own a partition, or None when no live worker hosts its type.

    A worker that leaves moves its own partitions and no others; one that joins takes its share and moves no others.
    """
    name = f"{partition.type_name}\0{partition.number}\0".encode()
    scores = ((_score(name, each.worker), each.worker) for each in workers if partition.type_name in each.hosts)
    best = max(scores, default=None)
    return None if best is None else best[1]


def desired(worker: str, workers: Collection[LiveWorker], partitions: Iterable[PartitionId]) -> frozenset[PartitionId]:
    """Return the partitions that a worker should own.

    Args:
        worker: Whose share is asked for.
        workers: All that take part; a worker that is not among them should own nothing.
        partitions: Those that there are to divide.
    """
    return frozenset(partition for partition in partitions if owner_of(partition, workers) == worker)


def _score(partition_name: bytes, worker: str) -> bytes:
    return hashlib.blake2b(partition_name + worker.encode(), digest_size=8).digest()
