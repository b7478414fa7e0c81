"""What is asked when an invocation is to be cancelled or killed, and the id of that request between objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from .fields import Layout, a_flag, a_text, decode_tagged, pack, some_bytes

_TIME_BYTES: Final = 6
_DIGEST_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """The payload of a request to cancel or to kill an invocation.

    Args:
        invocation: Raw id of the invocation.
        by: Who asks for it; empty where that is not said.
        reason: Why, likewise.
        cascades: Whether what it has sent is cancelled too, and what that has sent; what it calls always is.
    """

    invocation: bytes
    by: str = ""
    reason: str = ""
    cascades: bool = False

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_CANCEL_ORDER, self.invocation, self.by, self.reason, self.cascades))

    @classmethod
    def decode(cls, data: bytes) -> CancelOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _ORDERS, "cancel order")


_CANCEL_ORDER: Final = 116
_ORDERS: Final[Mapping[int, Layout[CancelOrder]]] = {
    _CANCEL_ORDER: Layout(CancelOrder, (some_bytes, a_text, a_text, a_flag))
}


def cancel_id(child: bytes) -> bytes:
    """Return the raw id of the message that cancels an invocation of another object: the same one in every replay."""
    return child[:_TIME_BYTES] + blake2b(child, digest_size=_DIGEST_BYTES, person=b"cancel").digest()
