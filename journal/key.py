"""Keys of objects, the partition that a key belongs to, and invocation ids."""

import os
import re
import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from .errors import InvalidKey
from .utf8 import LONE_SURROGATE, utf8_bytes

PART_LIMIT_BYTES: Final = 512
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_ID: Final = re.compile(rf"({_NAME.pattern})\.(0|[1-9][0-9]{{0,5}})\.([0-9a-f]{{32}})")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object of a type: `Key("acme", "o-1001")`, written `acme/o-1001`.

    Args:
        tenant: Opaque text without a slash.
        key: Opaque text.

    Raises:
        InvalidKey: A part is empty, above 512 bytes of UTF-8, or not text, or the tenant has a slash.
    """

    tenant: str
    key: str

    def __post_init__(self) -> None:
        _check_part("tenant", self.tenant)
        _check_part("key", self.key)
        if "/" in self.tenant:
            raise InvalidKey(str(self), "a tenant has no slash; the first slash ends it, so put the rest into the key")

    @classmethod
    def parse(cls, key: object) -> Self:
        """Split `tenant/key` at its first slash; a `Key` is returned as it is.

        Raises:
            InvalidKey: There is no slash, or a part is not allowed.
        """
        if isinstance(key, cls):
            return key
        if not isinstance(key, str):
            raise InvalidKey(key, 'write it as "tenant/key" or Key(tenant, key)')
        tenant, slash, rest = key.partition("/")
        if not slash:
            raise InvalidKey(key, 'the tenant is missing; write "tenant/key", e.g. "acme/o-1001"')
        return cls(tenant, rest)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.key}"


def _check_part(what: str, part: object) -> None:
    # Most parts are short ASCII: two cheap looks settle them without encoding anything.
    if type(part) is str and part.isascii() and 0 < len(part) <= PART_LIMIT_BYTES:
        return
    if not isinstance(part, str):
        raise InvalidKey(part, f"the {what} is not text; convert it with str() first")
    if not part:
        raise InvalidKey(part, f"the {what} is empty; both parts of tenant/key need at least one character")
    size = utf8_bytes(part)
    if size is None:
        raise InvalidKey(part, f"the {what} {LONE_SURROGATE}; replace it")
    if size > PART_LIMIT_BYTES:
        raise InvalidKey(part, f"the {what} has {size} bytes of UTF-8, at most {PART_LIMIT_BYTES} are allowed; hash it")


def key_text(name: bytes) -> str | None:
    """Return the `tenant/key` that bytes of the store spell, None where they spell none."""
    try:
        return str(Key.parse(name.decode()))
    except (UnicodeDecodeError, InvalidKey):
        return None


def is_name(text: object) -> bool:
    """Whether it is a text that may name an object type or a handler."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def partition_of(key_text: str, partitions: int) -> int:
    """The partition of `tenant/key` among so many."""
    return int.from_bytes(blake2b(key_text.encode(), digest_size=8).digest(), "big") % partitions


class InvocationId(NamedTuple):
    """The parts of an invocation id; `str()` gives its text form."""

    type_name: str
    partition: int
    raw: bytes

    def __str__(self) -> str:
        return format_id(*self)


def new_invocation_id() -> bytes:
    """Make 16 bytes that sort by time: 48 bits of milliseconds, then 80 random bits."""
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10)


def hint(given: object) -> str:
    """Return what to write instead of something that has an id, to stand at the end of a refusal."""
    if isinstance(given, str):
        return ""
    return "; write its .id" if isinstance(getattr(given, "id", None), str) else f", not a {type(given).__name__}"


def format_id(type_name: str, partition: int, raw: bytes) -> str:
    """The text form of an invocation id: `Order.3.0193…`."""
    return f"{type_name}.{partition}.{raw.hex()}"


def parse_id(text: str) -> InvocationId:
    """Read the text form of an invocation id.

    Raises:
        InvalidKey: It is not one.
    """
    found = _ID.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise InvalidKey(
            text, f"an invocation id looks like Order.3.019a… (type, partition, 32 hex digits){hint(text)}"
        )
    return InvocationId(found[1], int(found[2]), bytes.fromhex(found[3]))
