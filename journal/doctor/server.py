"""What the server is asked: its promise, its memory, what a small stream costs there, and which libraries it has."""

from __future__ import annotations

from typing import Any, Final

from ..safety import ServerFacts, advice, parse_info, promise
from ..store import Store
from .report import ServerReport

#: What the smallest stream takes, measured on Redis 7.0 and Valkey 9.1, by `stream-node-max-bytes`.
SMALL_STREAM_BYTES: Final = {4096: 4_336, 1024: 1_265, 512: 752, 256: 945}


async def read_server(store: Store, facts: ServerFacts) -> ServerReport:
    """Ask the server for what its facts don't have.

    Raises:
        StoreUnavailable: The store is away.
    """
    memory = parse_info(await store.call("INFO", "memory"))
    return ServerReport(
        facts.name,
        facts.version,
        promise(facts),
        stream_cost(facts.stream_node_max_bytes),
        advice(facts),
        int(memory.get("used_memory", "0")),
        facts.maxmemory_bytes,
        facts.maxmemory_policy,
        facts.appendfsync if facts.has_append_only_file else None,
        facts.replicas,
        await _libraries(store),
    )


def stream_cost(node_bytes: int | None) -> str:
    """Say what the smallest stream costs on a server."""
    if node_bytes is None:
        return "the server does not tell its stream-node-max-bytes: a small stream costs about 4.3 kB at its default"
    known = SMALL_STREAM_BYTES.get(node_bytes)
    about = node_bytes + 240 if known is None else known
    return f"stream-node-max-bytes is {node_bytes}: a small stream costs about {about / 1000:.2g} kB"


async def _libraries(store: Store) -> tuple[str, ...]:
    found: list[Any] = await store.call("FUNCTION", "LIST", "LIBRARYNAME", "keylane_*")
    names = [dict(zip(each[::2], each[1::2], strict=True))[b"library_name"] for each in found]
    return tuple(sorted(name.decode() for name in names))
