"""What falls due for the objects of a partition, rather than for one of their invocations: effects and proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .facts import often_made
from .fields import Layout, a_text, decode_tagged, one_of, pack


class AgendaKind(StrEnum):
    """What an item of the agenda is about."""

    EFFECT = "e"
    PROPOSAL = "p"
    #: One that was settled, or decided on: it is kept for a while, and then forgotten.
    OLD_EFFECT = "f"
    OLD_PROPOSAL = "q"
    #: An operation id that was reserved for an effect that is forgotten.
    RESERVED = "r"


#: What falls due without anybody waiting for it: records that have been kept for long enough.
FORGOTTEN: Final = frozenset({AgendaKind.OLD_EFFECT, AgendaKind.OLD_PROPOSAL, AgendaKind.RESERVED})


@often_made
@dataclass(frozen=True, slots=True)
class AgendaItem:
    """One effect or proposal of an object, as the partition's indexes name it.

    Args:
        kind: Which of the two, and whether it is to be forgotten.
        key: The object, as `tenant/key`.
        name: The operation id of an effect; the field of a proposal, its action and version; the
            receiver and the operation id, as `payments INV-1`, of one that was reserved.
    """

    kind: AgendaKind
    key: str
    name: str

    def encode(self) -> bytes:
        """Return the bytes of the item."""
        return pack((_ITEM, self.kind.value, self.key, self.name))

    @classmethod
    def decode(cls, data: bytes) -> AgendaItem:
        """Return the item that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _LAYOUTS, "agenda item")


# Tags of what lies beside records are disjoint from those of records, outcomes and requests.
_ITEM: Final = 160
_LAYOUTS: Final[Mapping[int, Layout[AgendaItem]]] = {_ITEM: Layout(AgendaItem, (one_of(AgendaKind), a_text, a_text))}
