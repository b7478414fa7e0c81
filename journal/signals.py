"""Signals and awakeables as they lie in the store: the ids that are given out, what is sent, and what came early."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from .errors import InvalidKey
from .fields import Layout, a_number, a_text, decode_tagged, optional, pack, some_bytes
from .key import InvocationId, format_id, hint, parse_id
from .place import Place, a_place, format_place, parse_place

#: Signals that may wait for one object, and for one invocation, before somebody takes them.
SIGNALS_MAX: Final = 1_000
#: Tells two requests with the same message id apart: the one that was taken in from one that came again.
NONCE_BYTES: Final = 8
_DIGEST_BYTES: Final = 8
_ID_BYTES: Final = 16
_AWAKEABLE: Final = re.compile(r"(.+\.[0-9a-f]{32})\.([0-9]+(?:-[0-9]+)*)")


class AwakeableId(NamedTuple):
    """The parts of an awakeable's id; `str()` gives its text form.

    Args:
        invocation: The invocation that made it.
        place: The place of the command that did.
    """

    invocation: InvocationId
    place: Place

    def __str__(self) -> str:
        return f"{self.invocation}.{format_place(self.place)}"


def format_awakeable(type_name: str, partition: int, raw: bytes, place: Place) -> str:
    """Return the text form of an awakeable's id: `Order.3.0193….7`."""
    return f"{format_id(type_name, partition, raw)}.{format_place(place)}"


def parse_awakeable(text: str) -> AwakeableId:
    """Read the text form of an awakeable's id.

    Raises:
        InvalidKey: It is not one.
    """
    found = _AWAKEABLE.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    place = None if found is None else parse_place(found[2])
    if found is None or place is None:
        looks = "an awakeable's id looks like Order.3.019a….7 (an invocation id, and a place)"
        raise InvalidKey(text, f"{looks}{hint(text)}")
    return AwakeableId(parse_id(found[1]), place)


def message_raw_id(target: str, message_id: str) -> bytes:
    """Return the raw id of a message that its sender has given an id: the same one for the same target."""
    text = f"{target}\0{message_id}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=_ID_BYTES, person=b"message").digest()


@dataclass(frozen=True, slots=True)
class SignalOrder:
    """The payload of a request that sends a signal or completes an awakeable.

    Args:
        invocation: Raw id of the invocation that it is for; None where it is for an object.
        name: Name of the signal; empty for an awakeable.
        awakeable: Place at which the awakeable was made; None for a signal.
        value: The encoded outcome: a value, or the failure of a rejection.
        by: Who sends it, as far as they said.
        nonce: Random bytes of this request.
    """

    invocation: bytes | None
    name: str
    awakeable: Place | None
    value: bytes
    by: str
    nonce: bytes

    @property
    def digest(self) -> bytes:
        """What tells another content under the same message id."""
        return blake2b(pack((self.name, self.value)), digest_size=_DIGEST_BYTES).digest()

    def encode(self) -> bytes:
        """Return the bytes of the order."""
        return pack((_SIGNAL_ORDER, self.invocation, self.name, self.awakeable, self.value, self.by, self.nonce))

    @classmethod
    def decode(cls, data: bytes) -> SignalOrder:
        """Return the order that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _ORDERS, "signal order")


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """A signal to an object that nobody waited for when it came.

    Args:
        message: Id of the message, by which a second copy is known.
        name: Name of the signal.
        value: The encoded outcome.
        by: Who sent it, as far as they said.
        at_ms: When it came, by the partition's time.
    """

    message: bytes
    name: str
    value: bytes
    by: str
    at_ms: int

    def encode(self) -> bytes:
        """Return the bytes of the signal."""
        return pack((_EARLY_SIGNAL, self.message, self.name, self.value, self.by, self.at_ms))

    @classmethod
    def decode(cls, data: bytes) -> EarlySignal:
        """Return the signal that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        return decode_tagged(data, _EARLY, "early signal")


#: Early signals of an object, by the number that says in which order they came.
Early: TypeAlias = Mapping[int, EarlySignal]

# Tags of payloads are disjoint from those of requests, records and outcomes.
_SIGNAL_ORDER: Final = 128
_EARLY_SIGNAL: Final = 129
_ORDERS: Final[Mapping[int, Layout[SignalOrder]]] = {
    _SIGNAL_ORDER: Layout(
        SignalOrder, (optional(some_bytes), a_text, optional(a_place), some_bytes, a_text, some_bytes)
    )
}
_EARLY: Final[Mapping[int, Layout[EarlySignal]]] = {
    _EARLY_SIGNAL: Layout(EarlySignal, (some_bytes, a_text, some_bytes, a_text, a_number))
}
