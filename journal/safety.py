"""What a server promises: its settings read as facts, the promise in one sentence, and what would break it.

The facts come from INFO and CONFIG GET. Where a server forbids CONFIG, what only CONFIG tells stays unknown and is
said to be unknown: nothing is guessed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, assert_never

import redis.exceptions

from .errors import RegistrationError, UnsafeStore
from .urls import Kind

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (8, 0)
STREAM_NODE_BYTES = 512

_SETTINGS = (
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "stream-node-max-bytes",
    "proto-max-bulk-len",
    "client-query-buffer-limit",
)
#: What a command holds beside its largest value: other values, each of them small, and the names of keys.
BESIDE_A_VALUE_BYTES = 4 << 20
_ACCEPT = "or accept it with allow_unsafe"


@dataclass(frozen=True, slots=True)
class Replicated:
    """The declared durability "this many replicas have it before it is said"."""

    replicas: int

    def __post_init__(self) -> None:
        if type(self.replicas) is not int:
            raise TypeError(f"Replicated takes a whole number of replicas, not {self.replicas!r}")
        if self.replicas < 1:
            raise ValueError(f"Replicated({self.replicas}) promises nothing: the smallest is Replicated(1)")


Durability = Literal["fsync", "server"] | Replicated


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself; None stands for what it did not say.

    Attributes:
        name: "Redis" or "Valkey".
        version: For people; `version_numbers` is for comparing.
        is_cluster: Whether the server is a node of a cluster.
        has_append_only_file: Whether each write is appended to a file.
        appendfsync: When that file is synced: always, everysec or no.
        syncs_during_rewrite: Whether it is synced also while the file is being rewritten.
        save_points: When snapshots are taken, in the server's words; empty for never.
        maxmemory_bytes: 0 for no limit.
        replicas: How many are connected.
        largest_word_bytes: How large one word of a command may be.
        largest_command_bytes: How large a command may be that has not been read to its end.
        config_refusal: Why CONFIG GET could not be read.
        is_primary: Whether it takes writes.
    """

    name: str
    version: str
    is_cluster: bool
    has_append_only_file: bool
    appendfsync: str | None
    syncs_during_rewrite: bool | None
    save_points: str | None
    maxmemory_bytes: int
    maxmemory_policy: str
    replicas: int
    stream_node_max_bytes: int | None
    config_refusal: str | None = None
    is_primary: bool = True
    largest_word_bytes: int | None = None
    largest_command_bytes: int | None = None

    @property
    def version_numbers(self) -> tuple[int, ...]:
        """The version as numbers, without what stands behind them."""
        return tuple(int(part) for part in self.version.split("-")[0].split(".") if part.isdecimal())


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason why the declared durability would not hold.

    Attributes:
        is_fatal: Whether Keylane can't work on such a server at all, so that accepting the risk does not help.
    """

    why: str
    remedy: str
    is_fatal: bool = False


async def read_facts(call: Callable[..., Awaitable[Any]]) -> ServerFacts:
    """Ask a server for its facts.

    Args:
        call: Sends one command, given as words, and returns the reply.
    """
    info = parse_info(await call("INFO"))
    try:
        reply = await call("CONFIG", "GET", *_SETTINGS)
    except redis.exceptions.ResponseError as error:
        return facts_of(info, None, config_refusal=str(error))
    return facts_of(info, parse_config(reply))


def parse_info(reply: bytes | str) -> dict[str, str]:
    """Read the reply of INFO."""
    lines = (line.partition(":") for line in _text(reply).splitlines())
    return {name: value for name, colon, value in lines if colon}


def is_cluster_node(info: Mapping[str, str]) -> bool:
    """Return whether a server is a node of a cluster, by the section `server` of INFO."""
    return "cluster" in (info.get("redis_mode"), info.get("server_mode"))


def parse_config(reply: Mapping[Any, Any] | Sequence[Any]) -> dict[str, str]:
    """Read the reply of CONFIG GET, in either version of the protocol."""
    words: Sequence[Any] = list(chain.from_iterable(reply.items())) if isinstance(reply, Mapping) else reply
    return {_text(name): _text(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def facts_of(
    info: Mapping[str, str], config: Mapping[str, str] | None, *, config_refusal: str | None = None
) -> ServerFacts:
    """Put what INFO and CONFIG said into facts."""
    settings = config or {}
    # On Valkey `redis_version` is the version of Redis that it is compatible with.
    is_valkey = info.get("server_name") == "valkey"
    rewrite = settings.get("no-appendfsync-on-rewrite")
    node_bytes = settings.get("stream-node-max-bytes")
    return ServerFacts(
        name="Valkey" if is_valkey else "Redis",
        version=info.get("valkey_version" if is_valkey else "redis_version", "0"),
        is_cluster=is_cluster_node(info),
        has_append_only_file=info.get("aof_enabled") == "1",
        appendfsync=settings.get("appendfsync"),
        syncs_during_rewrite=None if rewrite is None else rewrite == "no",
        save_points=settings.get("save"),
        maxmemory_bytes=int(info.get("maxmemory", "0")),
        maxmemory_policy=info.get("maxmemory_policy", "unknown"),
        replicas=int(info.get("connected_slaves", "0")),
        stream_node_max_bytes=None if node_bytes is None else int(node_bytes),
        config_refusal=config_refusal,
        is_primary=info.get("role", "master") == "master",
        largest_word_bytes=_number(settings.get("proto-max-bulk-len")),
        largest_command_bytes=_number(settings.get("client-query-buffer-limit")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def promise(facts: ServerFacts, durability: Durability = "server", kind: Kind = Kind.SERVER) -> str:
    """Say in one sentence what the server's settings keep safe, and what not.

    Args:
        facts: What the server said.
        durability: What the deployment declared.
        kind: How the server is reached, which tells whether a replica may take its place by itself.
    """
    kept, survives = _persistence(facts)
    if facts.replicas and (kind is not Kind.SERVER or isinstance(durability, Replicated)):
        return f"{kept}, {_counted(facts.replicas)}: {survives}; {_failover(facts, durability)}"
    if not facts.replicas:
        loss = ", not disk loss" if facts.has_append_only_file else ""
        return f"{kept}, no replica: {survives}{loss}"
    return f"{kept}, {_counted(facts.replicas)}: {survives}; after disk loss a replica has all but the last writes"


def _counted(replicas: int) -> str:
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def _failover(facts: ServerFacts, durability: Durability) -> str:
    if not isinstance(durability, Replicated):
        return "a failover to a replica loses what had not reached it, also of what was answered"
    of = "" if durability.replicas >= facts.replicas else f" of {facts.replicas}"
    if of:
        return (
            f"what is answered has reached {durability.replicas}{of} replicas, and a failover to one of those loses "
            "none of it"
        )
    return f"what is answered has reached {_counted(durability.replicas)}, and a failover loses none of it"


def _persistence(facts: ServerFacts) -> tuple[str, str]:
    if not facts.has_append_only_file:
        return _snapshots(facts)
    match facts.appendfsync:
        case "always" if facts.syncs_during_rewrite is False:
            return (
                "AOF fsync always but not during rewrites",
                "survives process restart, and machine restart but for them",
            )
        case "always":
            return "AOF fsync always", "survives process and machine restart"
        case "everysec":
            return "AOF fsync every second", "survives process restart, loses up to 2 seconds at machine restart"
        case "no":
            return (
                "AOF without fsync",
                "survives process restart, loses what the system had not written at machine restart",
            )
        case _:
            return (
                "AOF with an fsync policy that the server does not tell",
                "survives process restart, perhaps machine restart",
            )


def _snapshots(facts: ServerFacts) -> tuple[str, str]:
    if facts.save_points:
        return "no AOF, snapshots only", "loses everything since the last snapshot at any restart"
    if facts.save_points is None:
        return "no AOF, snapshots unknown", "loses everything since the last snapshot, if there is one, at any restart"
    return "no persistence", "survives no restart"


def advice(facts: ServerFacts) -> tuple[str, ...]:
    """Say what the server's settings cost, without being unsafe."""
    node_bytes = facts.stream_node_max_bytes
    if node_bytes is None or node_bytes <= STREAM_NODE_BYTES:
        return ()
    sentence = (
        f"stream-node-max-bytes is {node_bytes}, so that the smallest stream takes about that much memory; "
        f"CONFIG SET stream-node-max-bytes {STREAM_NODE_BYTES} brings it to 0.75 kB"
    )
    return (sentence,)


def doubts(
    facts: ServerFacts, durability: Durability, kind: Kind = Kind.SERVER, *, payload_limit_bytes: int = 0
) -> tuple[Doubt, ...]:
    """Return everything that stands against the declared durability, what can't be accepted first."""
    found = (
        _age(facts),
        _cluster(facts, kind),
        _primary(facts),
        _too_small_for(facts, payload_limit_bytes),
        _eviction(facts),
        _no_persistence(facts),
        _weaker_than(facts, durability),
    )
    return tuple(doubt for doubt in found if doubt is not None)


def check(
    facts: ServerFacts,
    durability: Durability,
    *,
    allow_unsafe: bool = False,
    kind: Kind = Kind.SERVER,
    payload_limit_bytes: int = 0,
) -> None:
    """Refuse a server that can't keep the declared durability.

    Args:
        facts: What the server said.
        durability: What the deployment declared.
        allow_unsafe: Accept every doubt except that Keylane can't work on the server at all.
        kind: How the server is reached.
        payload_limit_bytes: How large a single value may be.

    Raises:
        UnsafeStore: The first doubt, with its remedy.
    """
    for doubt in doubts(facts, durability, kind, payload_limit_bytes=payload_limit_bytes):
        if doubt.is_fatal or not allow_unsafe:
            raise UnsafeStore(doubt.why, doubt.remedy)


def check_declared(durability: object) -> None:
    """Refuse what is no durability where it is declared.

    Raises:
        RegistrationError: It is none.
    """
    if durability not in ("fsync", "server") and not isinstance(durability, Replicated):
        remedy = 'it must be "fsync", "server" or Replicated(n)'
        raise RegistrationError(f"durability is {durability!r}", parameter="durability", remedy=remedy)


def restart_may_lose(facts: ServerFacts, durability: Durability) -> bool:
    """Return whether a restart may cost the server what it has confirmed, by what was declared and by what it says."""
    return durability != "fsync" or _without_fsync(facts) is not None


def may_lose_confirmed(facts: ServerFacts, durability: Durability) -> bool:
    """Return whether what was answered may be lost, since nothing was promised or the server can't keep the promise."""
    return durability == "server" or _weaker_than(facts, durability) is not None


def _age(facts: ServerFacts) -> Doubt | None:
    oldest = OLDEST_VALKEY if facts.name == "Valkey" else OLDEST_REDIS
    if facts.version_numbers >= oldest:
        return None
    wanted = ".".join(str(number) for number in oldest)
    why = f"the server is {facts.name} {facts.version}, and {wanted} is the oldest that Keylane is made for"
    return Doubt(why, "use Redis 7.0 or later, or Valkey 8.0 or later", is_fatal=True)


def _cluster(facts: ServerFacts, kind: Kind) -> Doubt | None:
    if not facts.is_cluster or kind is Kind.CLUSTER:
        return None
    why = "the server is a node of a cluster, which holds only a part of the keys"
    return Doubt(why, "name the cluster: redis+cluster://host:port,host:port", is_fatal=True)


def _primary(facts: ServerFacts) -> Doubt | None:
    if facts.is_primary:
        return None
    why = "the server is a replica, which takes no writes"
    return Doubt(
        why, "name the primary, or the sentinels that know it: redis+sentinel://host:port/service", is_fatal=True
    )


def _too_small_for(facts: ServerFacts, payload_limit_bytes: int) -> Doubt | None:
    """Find limits of the server at which it would cut the connection in the middle of a command."""
    needed = payload_limit_bytes + BESIDE_A_VALUE_BYTES
    limits = {
        "proto-max-bulk-len": facts.largest_word_bytes,
        "client-query-buffer-limit": facts.largest_command_bytes,
    }
    for name, limit in limits.items():
        if limit is not None and limit < needed:
            why = f"{name} is {limit:,}, and a command with a value of the payload limit has up to {needed:,} bytes"
            return Doubt(why, f"raise {name}, or lower KEYLANE_PAYLOAD_LIMIT_BYTES", is_fatal=True)
    return None


def _eviction(facts: ServerFacts) -> Doubt | None:
    if facts.maxmemory_policy == "noeviction":
        return None
    why = f"maxmemory-policy is {facts.maxmemory_policy}: a full server would silently delete journals and results"
    return Doubt(why, f"set maxmemory-policy to noeviction, {_ACCEPT}")


def _no_persistence(facts: ServerFacts) -> Doubt | None:
    if facts.has_append_only_file or facts.save_points:
        return None
    if facts.save_points is None:
        why = f"the server has no append-only file, and it does not tell whether it takes snapshots ({_refusal(facts)})"
        return Doubt(why, f"set appendonly to yes, or let CONFIG GET be read, {_ACCEPT}")
    why = "the server has no persistence: a restart would lose every journal"
    return Doubt(why, f"set appendonly to yes and appendfsync to always, {_ACCEPT}")


def _weaker_than(facts: ServerFacts, durability: Durability) -> Doubt | None:
    match durability:
        case "server":
            return None
        case "fsync":
            return _without_fsync(facts)
        case Replicated(replicas=wanted):
            if facts.replicas >= wanted:
                return None
            why = f"durability is Replicated({wanted}), but the server has {facts.replicas} replicas connected"
            return Doubt(why, f"connect more replicas, or declare fewer, {_ACCEPT}")
        case _:
            assert_never(durability)


def _without_fsync(facts: ServerFacts) -> Doubt | None:
    remedy = f"set appendonly to yes and appendfsync to always, or declare durability 'server', {_ACCEPT}"
    if not facts.has_append_only_file:
        return Doubt("durability is 'fsync', but the server has no append-only file", remedy)
    if facts.appendfsync is None:
        why = f"durability is 'fsync', but the server does not tell whether appendfsync is always ({_refusal(facts)})"
        return Doubt(why, f"let CONFIG GET be read, or declare durability 'server', {_ACCEPT}")
    if facts.appendfsync != "always":
        why = (
            f"durability is 'fsync', but appendfsync is {facts.appendfsync}: the machine's end would lose answered work"
        )
        return Doubt(why, remedy)
    if facts.syncs_during_rewrite is False:
        why = (
            "durability is 'fsync', but no-appendfsync-on-rewrite is yes: nothing is synced while the file is rewritten"
        )
        return Doubt(why, f"set no-appendfsync-on-rewrite to no, or declare durability 'server', {_ACCEPT}")
    return None


def _refusal(facts: ServerFacts) -> str:
    return facts.config_refusal or "CONFIG GET did not name the setting"


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
