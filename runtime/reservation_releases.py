"""Lets go of operation ids that a receiver sees as they are, once the effect that had one is forgotten.

Between the call that reserves an id and the intent that uses it a handler may stand still for as long as it likes. So
an id is let go of only while no invocation of its object is open: whoever asks for it later reserves it anew, by a call
that goes the same way as the message from here, and behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.agenda import AgendaItem, AgendaKind
from ..journal.key import new_invocation_id
from ..journal.requests import RequestKind
from ..objects.reservations import RELEASE, RESERVATIONS, reservation_key
from .orders import order_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..journal.batch import Operation
    from ..journal.keyspace import PartitionSpace
    from .agenda import Agenda
    from .at_hand import AtHand
    from .lane import Lane
    from .orders import Order

#: How soon it is tried again of an object that has something open, in ms.
BUSY_MS: Final = 600_000
_LIMIT_BYTES: Final = 4_096


class ReservationReleases:
    """Lets go of operation ids for one worker.

    Args:
        at_hand: Brings objects into memory.
        agenda: Says when it is time.
    """

    def __init__(self, at_hand: AtHand, agenda: Agenda) -> None:
        self._at_hand = at_hand
        self._agenda = agenda
        #: Finds the partition of what is called.
        self.space_of: Callable[[Order], Awaitable[PartitionSpace]]
        agenda.on_due[AgendaKind.RESERVED] = self._due

    async def _due(self, lane: Lane, item: AgendaItem) -> None:
        """Let go of an id, unless it is in use again, or may be about to be."""
        partition = lane.partition
        receiver, _, operation = item.name.partition(" ")
        posted = await self._release(lane, receiver, operation)
        found = await self._at_hand.bring(partition, item.key)
        if found is None:
            return
        lane, docket = found
        off = operations.take_off_agenda(partition.space, item)
        if operation in docket.effects:
            # It is let go of when that is forgotten.
            lane.commit([off])
        elif _is_quiet(lane):
            lane.commit([off, posted])
        else:
            lane.commit([operations.put_on_agenda(partition.space, item, BUSY_MS)])
            self._agenda.ask_after(lane, BUSY_MS)

    async def _release(self, lane: Lane, receiver: str, operation: str) -> Operation:
        """Return the message that lets go of an id."""
        space = lane.partition.space
        claim, key = f"{space.type_name} {lane.key_text}", reservation_key(receiver, operation)
        order = order_of(
            RESERVATIONS, key, (RELEASE, claim), idempotency_key=None, payload_limit_bytes=_LIMIT_BYTES, is_inside=True
        )
        request = order.request(RequestKind.OBJECT_SEND, new_invocation_id(), None, None)
        return operations.post(space, (await self.space_of(order)).name, request.encode())


def _is_quiet(lane: Lane) -> bool:
    """Return whether no invocation of an object is open; those that have left its lane while they wait are aside."""
    return lane.is_settled and not lane.aside and all(each.ended for each in lane.queue)
