"""The hash slots of a cluster: which slot a key has, which key a command is about, and which host has which slot."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from .urls import Host

SLOTS: Final = 16_384

#: Commands that say how many keys they have, in front of them.
_WITH_KEY_COUNT: Final = ("FCALL", "FCALL_RO", "EVAL", "EVALSHA")
#: Commands about a server as a whole.
_KEYLESS: Final = frozenset({
    "ACL", "ASKING", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "FUNCTION", "INFO", "LATENCY", "PING", "ROLE",
    "SCAN", "SLOWLOG", "TIME", "WAIT",
})  # fmt: skip
#: Commands whose key stands behind a word that says what is asked of it.
_SECOND: Final = frozenset({"DEBUG", "MEMORY", "OBJECT", "XINFO"})


def slot_of(key: bytes) -> int:
    """Return the slot of a key: that of its hash tag, where it has one."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def key_of(words: Sequence[Any]) -> bytes | None:
    """Return the key by which a command is routed, None for one that any server answers about itself.

    A pattern of `KEYS` is routed like a key, so that one which begins with a hash tag finds all that the tag has.
    """
    verb = words[0]
    if verb in _WITH_KEY_COUNT:
        return _bytes(words[3]) if int(words[2]) else None
    if verb in _KEYLESS:
        return None
    position = 2 if verb in _SECOND else 1
    return _bytes(words[position]) if len(words) > position else None


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


@dataclass(frozen=True, slots=True)
class View:
    """What one node says of its cluster.

    Args:
        epoch: Higher with each failover that the node knows of: of two views the higher one is the newer.
        ranges: First and last slot, and the host of the primary that serves them.
        others: The hosts of replicas: one of them may be a primary by tomorrow.
    """

    epoch: int
    ranges: tuple[tuple[int, int, Host], ...]
    others: tuple[Host, ...]


def view_of(info: bytes, slots: Sequence[Any], asked: Host) -> View:
    """Read the replies of `CLUSTER INFO` and `CLUSTER SLOTS`.

    Args:
        info: The first reply.
        slots: The second reply.
        asked: The node that gave them; it may leave out its own name.
    """
    facts = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
    ranges: list[tuple[int, int, Host]] = []
    others: dict[Host, None] = {}
    for first, last, *servers in slots:
        hosts = [_host(cast("Sequence[Any]", server), asked) for server in servers]
        if hosts:
            ranges.append((first, last, hosts[0]))
            others.update((host, None) for host in hosts[1:])
    return View(int(facts.get(b"cluster_current_epoch", 0)), tuple(ranges), tuple(others))


def _host(server: Sequence[Any], asked: Host) -> Host:
    name = (server[0] or b"").decode()
    # A node that does not know how clients reach it says nothing, or a question mark.
    return Host(asked.name if name in {"", "?"} else name, int(server[1]))
