"""What is ready to be done, handed out to tenants in turn, so that one that asks for much does not make others wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Turns(Generic[Work]):
    """A queue for each tenant that has something ready, first in, first out; the tenants take turns.

    Args:
        tenant_of: Says whose a piece of work is.
    """

    __slots__ = ("_length", "_order", "_queues", "_tenant_of")

    def __init__(self, tenant_of: Callable[[Work], str]) -> None:
        self._tenant_of = tenant_of
        self._queues: dict[str, deque[Work]] = {}
        #: The tenants that have something ready, the next one first.
        self._order: deque[str] = deque()
        self._length = 0

    def __len__(self) -> int:
        """Return how much is ready."""
        return self._length

    def has(self, work: Work) -> bool:
        """Return whether something of the same tenant is ready."""
        return self._tenant_of(work) in self._queues

    def put(self, work: Work) -> None:
        """Add a piece of work behind those of its tenant; a tenant that had none comes after the others."""
        tenant = self._tenant_of(work)
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = deque()
            self._order.append(tenant)
        queue.append(work)
        self._length += 1

    def take(self) -> Work:
        """Return the first piece of the tenant whose turn it is.

        Raises:
            IndexError: Nothing is ready.
        """
        order = self._order
        queue = self._queues[order[0]]
        work = queue.popleft()
        self._length -= 1
        if not queue:
            del self._queues[order.popleft()]
        elif len(order) > 1:
            order.rotate(-1)
        return work
