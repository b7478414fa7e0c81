"""The way from one partition to another: which messages have arrived, which are on their way, and which are to be read.

The numbers of an outbox never begin anew. What the receiver is told does, with each history of the sending partition:
it is told the number less that of the route's base.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..journal.codec import Undecodable
from ..journal.numbering import Base, Posted
from ..journal.outbox import Consignment
from ..journal.requests import Request, RequestKind

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from .partition import Partition

#: What one call delivers at most, so that it stays below 5 ms in the server; a single message may be larger.
MESSAGES_PER_CALL: Final = 128
BYTES_PER_CALL: Final = 1 << 20
#: So many messages of a route are kept in memory; those behind them are read from the outbox when their turn comes.
WINDOW_MESSAGES: Final = 512
WINDOW_BYTES: Final = 8 << 20


class Route:
    """The messages of a partition in our hands to another one.

    Args:
        partition: The sending partition.
        outbox: The name of the outbox.
        space: The receiving partition.
        assigned: The last number that is durable in the outbox.
        acknowledged: The last number that is known to have arrived.
        base: Where the numbers that the receiver is told begin.
    """

    __slots__ = (
        "_bytes",
        "_window",
        "acknowledged",
        "assigned",
        "base",
        "ceiling",
        "failures",
        "gap",
        "is_acknowledging",
        "is_again",
        "is_busy",
        "is_probed",
        "outbox",
        "partition",
        "space",
    )

    def __init__(
        self, partition: Partition, outbox: bytes, space: PartitionSpace, assigned: int, acknowledged: int, base: Base
    ) -> None:
        self.partition = partition
        self.outbox = outbox
        self.space = space
        self.assigned = assigned
        self.acknowledged = acknowledged
        self.base = base
        #: The last number that can have been sent in this history.
        self.ceiling = assigned
        #: Whether it is known in this tenure how far the receiver has come.
        self.is_probed = False
        #: Whether messages may have been sent before in another history.
        self.is_again = False
        self.gap: int | None = None
        self.is_busy = False
        self.is_acknowledging = False
        self.failures = 0
        self._window: deque[Posted] = deque()
        self._bytes = 0

    @property
    def history(self) -> str:
        """The history of the numbers that the receiver is told."""
        history, restarts = self.partition.history, self.base.restarts
        return f"{history}.{restarts}" if restarts else history

    @property
    def has_more(self) -> bool:
        """Whether something has not arrived yet, as far as is known."""
        return self.assigned > self.acknowledged

    @property
    def must_read(self) -> bool:
        """Whether what follows lies in the outbox and not in memory."""
        return not self._window and self.has_more

    def posted(self, message: Posted) -> None:
        """Take a message that has become durable."""
        is_next = self._last == self.assigned
        self.assigned = message.number
        if is_next and len(self._window) < WINDOW_MESSAGES and self._bytes < WINDOW_BYTES:
            self._keep(message)

    def read(self, messages: list[tuple[int, bytes]]) -> tuple[int, int] | None:
        """Take what the outbox holds behind the last number that has arrived.

        Returns:
            The first and the last number of what should be there and is not.
        """
        first = self.acknowledged + 1
        found = messages[0][0] if messages else self.assigned + 1
        for number, message in messages:
            self._keep(Posted(self.outbox, number, message))
        if found <= first:
            return None
        self.gap = self.acknowledged - self.base.before
        if not messages:
            self.acknowledged = self.assigned
        return first, found - 1

    def consignment(self) -> Consignment:
        """Return what is to be delivered next.

        The first delivery of a tenure carries only what the tenure before has left, perhaps nothing: what the receiver
        has beyond that was sent by a history of this partition that is lost, and must not be mistaken for ours.
        """
        messages: list[Posted] = []
        size = 0
        for each in self._window:
            size += len(each.message)
            is_full = len(messages) == MESSAGES_PER_CALL or (messages and size > BYTES_PER_CALL)
            if is_full or (not self.is_probed and each.number > self.ceiling):
                break
            messages.append(each)
        first = messages[0].number if messages else self.acknowledged + 1
        if messages:
            self.ceiling = max(self.ceiling, messages[-1].number)
        packed = [each.message for each in messages]
        again: list[bytes | None] = []
        if self.is_again:
            packed, again = _sent_again(packed)
        return Consignment(
            self.partition.space.name, self.history, first - self.base.before, packed, self.gap, again
        )  # fmt: skip

    def arrived(self, number: int) -> None:
        """Take note that the receiver has taken messages up to a number that it was told."""
        self.is_probed = True
        self.gap = None
        self.failures = 0
        self.acknowledged = max(self.acknowledged, number + self.base.before)
        self.ceiling = max(self.ceiling, self.acknowledged)
        while self._window and self._window[0].number <= self.acknowledged:
            self._bytes -= len(self._window.popleft().message)

    def go_back(self, number: int) -> None:
        """Begin again behind the number up to which the receiver has taken messages."""
        self.acknowledged = number + self.base.before
        self.is_probed = True
        self._window.clear()
        self._bytes = 0

    def restarted(self) -> Base:
        """Return the base of the history in which all that has not arrived is sent anew."""
        return Base(self.acknowledged, self.base.restarts + 1)

    def restart(self, base: Base) -> None:
        """Begin that history."""
        self.base = base
        self.is_again = True
        self.is_probed = False
        self.gap = None
        self.ceiling = self.acknowledged

    @property
    def _last(self) -> int:
        return self._window[-1].number if self._window else self.acknowledged

    def _keep(self, message: Posted) -> None:
        self._window.append(message)
        self._bytes += len(message.message)


def _sent_again(messages: list[bytes]) -> tuple[list[bytes], list[bytes | None]]:
    """Return messages marked as sent before, and the invocations that they ask for."""
    packed: list[bytes] = []
    again: list[bytes | None] = []
    for message in messages:
        try:
            request = Request.decode(message)
        except Undecodable:
            # The receiver puts it aside.
            packed.append(message)
            again.append(None)
            continue
        packed.append(replace(request, again=True).encode())
        # A reply asks for nothing: its caller knows whether it still waits for it.
        again.append(None if request.kind is RequestKind.REPLY else request.invocation)
    return packed, again
