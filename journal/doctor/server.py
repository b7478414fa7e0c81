"""What each server is asked: its promise, its memory, what a small stream costs there, and which libraries it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..memory import memory_use_of
from ..node import Node
from ..promise import promise_of
from ..safety import Durability, ServerFacts, advice, parse_info
from ..store import Store
from .report import ServerReport

#: What the smallest stream takes, measured on Redis 7.0 and Valkey 9.1, by `stream-node-max-bytes`.
SMALL_STREAM_BYTES: Final = {4096: 4_336, 1024: 1_265, 512: 752, 256: 945}


async def read_servers(
    store: Store, facts: Mapping[Node, ServerFacts], durability: Durability, memory_limit_ratio: float
) -> dict[Node, ServerReport]:
    """Ask each server that is connected still for what its facts don't have.

    Raises:
        StoreUnavailable: One of them is away.
    """
    promised = promise_of(store, tuple(facts.values()), durability)
    several = len(facts) > 1
    return {
        node: await _read_server(node, facts[node], promised, memory_limit_ratio, is_one_of_several=several)
        for node in store.connected
        if node in facts
    }


async def _read_server(
    node: Node, facts: ServerFacts, promised: str, memory_limit_ratio: float, *, is_one_of_several: bool
) -> ServerReport:
    info = parse_info(await node.call("INFO", "memory"))
    return ServerReport(
        facts.name,
        facts.version,
        promised,
        stream_cost(facts.stream_node_max_bytes),
        advice(facts),
        int(info.get("used_memory", "0")),
        facts.maxmemory_bytes,
        facts.maxmemory_policy,
        facts.appendfsync if facts.has_append_only_file else None,
        facts.replicas,
        await _libraries(node),
        node.target if is_one_of_several else None,
        memory_use_of(info).ratio,
        memory_limit_ratio,
    )


def libraries_of(servers: Iterable[ServerReport]) -> tuple[str, ...]:
    """Return the libraries that any server has."""
    return tuple(sorted({name for server in servers for name in server.libraries}))


def stream_cost(node_bytes: int | None) -> str:
    """Say what the smallest stream costs on a server."""
    if node_bytes is None:
        return "the server does not tell its stream-node-max-bytes: a small stream costs about 4.3 kB at its default"
    known = SMALL_STREAM_BYTES.get(node_bytes)
    about = node_bytes + 240 if known is None else known
    return f"stream-node-max-bytes is {node_bytes}: a small stream costs about {about / 1000:.2g} kB"


async def _libraries(node: Node) -> tuple[str, ...]:
    found: list[Any] = await node.call("FUNCTION", "LIST", "LIBRARYNAME", "keylane_*")
    names = [dict(zip(each[::2], each[1::2], strict=True))[b"library_name"] for each in found]
    return tuple(sorted(name.decode() for name in names))
