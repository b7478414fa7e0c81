"""What all servers of a store promise together, and how many replicas a namespace's workers wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import redis.exceptions

from .errors import WrongKeyType
from .keyspace import durability_key
from .node import Node
from .refusals import key_error
from .safety import Durability, Replicated, ServerFacts, check, promise, read_facts
from .store import Store
from .urls import ClusterAddress, Kind, SentinelAddress

#: How long a cluster may take to tell which of its nodes have taken the place of others.
MAP_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 0.1
_REPLICATED = "replicated:"


def kind_of(store: Store) -> Kind:
    """Return the shape in which a store is reached."""
    match store.address:
        case ClusterAddress():
            return Kind.CLUSTER
        case SentinelAddress():
            return Kind.SENTINEL
        case _:
            return Kind.SERVER


async def read_all_facts(store: Store) -> tuple[ServerFacts, ...]:
    """Ask every server of a store that takes writes.

    Raises:
        StoreUnavailable: One of them is away.
    """
    return tuple((await read_facts_by_node(store)).values())


async def read_facts_by_node(store: Store, *, connected: bool = False) -> dict[Node, ServerFacts]:
    """Ask every server of a store that takes writes, and tell who said what.

    A node of a cluster that turns out to be a replica was one that took writes until a moment ago: the map is read
    anew, and what it says is given a while.

    Args:
        store: The open store.
        connected: Whether those that are not connected are left out.

    Raises:
        StoreUnavailable: One of them is away.
    """
    deadline = time.monotonic() + MAP_SECONDS
    while True:
        facts = {node: await read_facts(node.call) for node in (store.connected if connected else store.nodes)}
        is_right = not isinstance(store.address, ClusterAddress) or all(each.is_primary for each in facts.values())
        if is_right or time.monotonic() > deadline:
            return facts
        store.topology.lost()
        await anyio.sleep(LOOK_AGAIN_SECONDS)


def check_all(
    store: Store,
    facts: Sequence[ServerFacts],
    durability: Durability,
    *,
    allow_unsafe: bool = False,
    payload_limit_bytes: int = 0,
) -> None:
    """Refuse a store of which any server can't keep the declared durability.

    Raises:
        UnsafeStore: The first doubt, with its remedy.
    """
    for each in facts:
        check(
            each,
            durability,
            allow_unsafe=allow_unsafe,
            kind=kind_of(store),
            payload_limit_bytes=payload_limit_bytes,
        )


def promise_of(store: Store, facts: Sequence[ServerFacts], durability: Durability = "server") -> str:
    """Say in one sentence what the weakest of a store's servers keeps safe."""
    kind = kind_of(store)
    weakest = min(facts, key=_strength)
    sentence = promise(weakest, durability, kind)
    return f"{len(facts)} primaries, the weakest of them: {sentence}" if len(facts) > 1 else sentence


def _strength(facts: ServerFacts) -> tuple[int, ...]:
    ranks = {"no": 1, "everysec": 2, "always": 3}
    return (int(facts.has_append_only_file), ranks.get(facts.appendfsync or "", 0), facts.replicas)


async def declare_durability(store: Store, durability: Durability) -> None:
    """Write into the namespace how many replicas its workers wait for, so that clients wait for as many.

    What stands there already is not written again: a worker can begin also while the store's memory is full.

    Raises:
        StoreUnavailable: The store is away.
        StoreFull: The store has no memory for another word than the one that stands there.
        WrongKeyType: A foreign key stands in its place.
    """
    word = f"{_REPLICATED}{durability.replicas}" if isinstance(durability, Replicated) else durability
    key = durability_key(store.namespace)
    (found,) = await store.together([("TYPE", key)])
    if found not in {b"none", b"string"}:
        raise WrongKeyType(key.decode())
    if found == b"none" or await store.call("GET", key) != word.encode():
        await store.call("SET", key, word)


async def read_durability(store: Store) -> Durability | None:
    """Read what the namespace's workers have declared, None where none has begun yet.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in its place.
    """
    text = await _declared(store)
    if text == "fsync" or text == "server":  # noqa: PLR1714, told apart for the type checker
        return text
    count = text.removeprefix(_REPLICATED)
    return Replicated(int(count)) if text.startswith(_REPLICATED) and count.isdecimal() and int(count) else None


async def read_replicas(store: Store) -> int:
    """Read how many replicas the namespace's workers wait for.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands in its place.
    """
    text = (await _declared(store)).removeprefix(_REPLICATED)
    return int(text) if text.isdecimal() else 0


async def _declared(store: Store) -> str:
    key = durability_key(store.namespace)
    try:
        word = await store.call("GET", key)
    except redis.exceptions.ResponseError as error:
        raise key_error(error, key, store.url) from error
    return (word or b"").decode(errors="replace")
