"""What the senders of probes ask of the store: which lanes stood still before, and whether probes are taken out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, cast

from .keyspace import PartitionSpace
from .store import Store

#: Where reading begins, and ends.
START: Final = b"0"


@dataclass(frozen=True, slots=True)
class Page:
    """Some lanes in which calls waited behind holders that waited for calls themselves.

    Args:
        keys: Their objects, as `tenant/key`.
        following: Where the next page begins, `START` behind the last one.
    """

    keys: list[str]
    following: bytes


#: Handed a page, or the exception that stands for it; must not raise.
PageRead: TypeAlias = Callable[[Page | Exception], None]


def read_blocked(store: Store, space: PartitionSpace, cursor: bytes, count: int, done: PageRead) -> None:
    """Read about so many of the lanes of a partition in which calls were noted to wait."""
    store.submit(("SSCAN", space.blocked, cursor, "COUNT", count), partial(_read, done))


def _read(done: PageRead, reply: Any) -> None:
    if isinstance(reply, Exception):
        done(reply)
        return
    following, keys = cast("tuple[bytes, list[bytes]]", reply)
    done(Page([key.decode(errors="replace") for key in keys], following))


def if_taken(store: Store, space: PartitionSpace, entry: bytes, go_on: Callable[[], None]) -> None:
    """Go on if an inbox holds an entry no longer: somebody reads it."""

    def told(reply: Any) -> None:
        if reply == []:
            go_on()

    store.submit(("XRANGE", space.inbox, entry, entry), told)
