"""The context of shared handlers: durable values, and nothing to write with."""

from __future__ import annotations

import logging
import random
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from ..journal.blobs import is_reference
from ..journal.codec import REFERENCE_BYTES
from ..journal.errors import InvalidOutput
from ..objects.context import SharedContext
from ..objects.types import boundary_of
from .log import InvocationLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from ..journal.key import Key

#: What only exclusive handlers have, for those who look for it in a shared one.
_EXCLUSIVE_ONLY = frozenset(
    {"approval", "attempt", "call", "clear", "clear_all", "model", "patched", "propose", "run", "send", "set", "sleep"}
)


class ReadingContext(SharedContext):
    """What a shared handler gets: durable values, and nothing to write with."""

    __slots__ = ("_fetch", "_invocation_id", "_key", "_now", "_random", "_type_name", "_values")

    def __init__(
        self,
        type_name: str,
        key: Key,
        values: Mapping[str, bytes],
        invocation_id: str,
        now: Callable[[], datetime],
        fetch: Callable[[bytes, str], Awaitable[bytes]],
    ) -> None:
        self._now = now
        self._fetch = fetch
        self._random: random.Random | None = None
        self._type_name = type_name
        self._key = key
        self._values = values
        self._invocation_id = invocation_id

    def __getattr__(self, name: str) -> Any:
        """Say of what a shared handler lacks where it is to be had."""
        return lacking(name)

    @property
    def key(self) -> Key:
        """The object."""
        return self._key

    @property
    def invocation_id(self) -> str:
        """The invocation's id."""
        return self._invocation_id

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries type and key."""
        return InvocationLog(self._type_name, self._key, self._invocation_id, 1, _always)

    async def get(self, name: str, type: Any, default: Any = None) -> Any:
        """Return a durable state value."""
        packed = self._values.get(name)
        if packed is None:
            return default
        if len(packed) == REFERENCE_BYTES and is_reference(packed):
            packed = await self._fetch(packed, f"state {name}")
        return boundary_of(type, where=f"state {name}", refusal=InvalidOutput).load(packed)

    async def state_keys(self) -> list[str]:
        """Return the names of the durable state values."""
        return sorted(self._values)

    async def time(self) -> datetime:
        """Return the partition's time."""
        return self._now()

    def random(self) -> random.Random:
        """Return random numbers of this invocation's own."""
        if self._random is None:
            self._random = random.Random(self._invocation_id)  # noqa: S311
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.UUID(int=self.random().getrandbits(128), version=4)


def lacking(name: str) -> NoReturn:
    """Raise for an attribute that the context of a shared handler does not have.

    Raises:
        AttributeError: In any case.
    """
    if name in _EXCLUSIVE_ONLY:
        raise AttributeError(
            f"ctx.{name} does not exist in a shared handler: it reads what is durable and leaves no history; "
            "declare the handler with @….handler instead, or call one that is"
        )
    raise AttributeError(name)


def _always() -> bool:
    return True
