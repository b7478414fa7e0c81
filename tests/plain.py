"""Plain commands to a store, past the code under test."""

from __future__ import annotations

from typing import Any, cast

import redis

from keylane.journal.slots import key_of, slot_of
from keylane.journal.urls import ClusterAddress, SentinelAddress, parse_store_url

_client = cast("Any", redis.Redis)


def plain(url: str, *words: Any) -> Any:
    """Send one command over a connection of its own to the server that has its key, and return its raw reply."""
    with _client.from_url(server_of(url, words)) as client:
        return client.execute_command(*words)


def server_of(url: str, words: tuple[Any, ...]) -> str:
    """Return the URL of the server of a store that a command belongs to."""
    address = parse_store_url(url)
    match address:
        case ClusterAddress(hosts=hosts):
            key = key_of(words) or b""
            for first, last, (name, port, *_), *_ in plain(f"redis://{hosts[0]}", "CLUSTER", "SLOTS"):
                if first <= slot_of(key) <= last:
                    return f"redis://{name.decode()}:{port}"
            raise LookupError(f"nobody has the slot of {key!r}")
        case SentinelAddress(hosts=hosts, service=service):
            name, port = plain(f"redis://{hosts[0]}", "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
            return f"redis://{name.decode()}:{int(port)}"
        case _:
            return url
