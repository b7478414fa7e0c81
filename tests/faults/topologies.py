"""Stores of several servers: three primaries with a replica each; a primary and a replica behind three sentinels."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import redis

from keylane.journal.embedded import bundled_binary
from keylane.journal.slots import SLOTS, key_of, slot_of

from .guards import OPEN, Guard, as_options
from .harness import ASK_SECONDS, NeverHappenedError, StoreServer, wait_for
from .network_server import NetworkServer, free_port

PRIMARIES = 3
SENTINELS = 3
SERVICE = "keylane"
#: How soon a cluster's nodes take one of them for dead.
DOWN_MS = 1_000
#: How soon sentinels do. They connect to the primary that has just risen no sooner than a second after they have heard
#: of it: with less than that and some time to spare, they take it for dead at once and give its place to the former
#: primary, if that is back already.
SENTINEL_DOWN_MS = 2_500
#: How soon where nothing is meant to fail over: longer than a busy machine lets a server stand still.
PATIENT_MS = 60_000
#: How long sentinels may take to find each other. One that a busy machine has held up for two seconds does nothing for
#: thirty, as often as that happens, and new ones are sooner ready than it is.
WATCHED_SECONDS = (20.0, 20.0, 60.0)
#: How much of their logs is told where they do not.
NEWEST_LINES = 40


class _Several(ABC):
    """Servers that are stopped together."""

    #: How many of them take writes while nothing is wrong with any.
    primary_count: ClassVar[int]

    def __init__(self) -> None:
        self.servers: list[NetworkServer] = []

    def __enter__(self) -> Self:
        """Start them."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    @abstractmethod
    def start(self) -> None:
        """Start them."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all and remove their directories."""
        self.close()

    def close(self) -> None:
        """Kill all and remove their directories."""
        for server in self.servers:
            server.__exit__(None, None, None)

    @abstractmethod
    def primary_of(self, key: bytes) -> NetworkServer:
        """Return the server that takes writes to a key."""

    @property
    def primaries(self) -> list[NetworkServer]:
        """The servers that take writes; one that is away is none of them."""
        return [server for server in self.servers if server.is_primary]

    @property
    def all_primaries(self) -> list[NetworkServer]:
        """The servers that take writes, all of them.

        Raises:
            NeverHappenedError: Some of them are away.
        """
        primaries = self.primaries
        if len(primaries) != self.primary_count:
            raise NeverHappenedError(f"{len(primaries)} of {self.primary_count} primaries are there")
        return primaries

    def cut_replication(self, primary: NetworkServer) -> None:
        """Have nothing more of a primary reach its replica: what is written from here on is lost with the primary."""
        replica = self.replica_of(primary)
        # A server that wants no password refuses one, so the replica does not get any further than that.
        replica.ask("CONFIG", "SET", "masterauth", "refused")
        primary.ask("CLIENT", "KILL", "TYPE", "replica")
        wait_for(lambda: primary.replicas == 0 and not replica.follows, "the replica is cut off")

    def replica_of(self, primary: NetworkServer) -> NetworkServer:
        found: list[NetworkServer] = []

        def look() -> bool:
            found[:] = [each for each in self.servers if each.is_running and each.primary_port == primary.port]
            return len(found) == 1

        wait_for(look, "the primary has a replica")
        return found[0]

    def heal_replication(self) -> None:
        """Let every replica follow again."""
        for server in self.servers:
            if server.is_running:
                wait_for(lambda server=server: server.ask("CONFIG", "SET", "masterauth", ""), "it may follow again")

    @abstractmethod
    def start_as_replica(self, server: NetworkServer) -> None:
        """Start a server that was killed, as the replica of the one that has its place."""

    def heal(self) -> None:
        """Start those that were killed, and let every replica follow again: what a test that failed has left undone."""
        for server in self.servers:
            if not server.is_running:
                self.start_as_replica(server)
        self.heal_replication()

    def ask(self, *words: Any) -> Any:
        """Send one command to the server that has its key, past the code under test."""
        return self.primary_of(key_of(words) or b"").ask(*words)

    def keys(self, pattern: str) -> list[bytes]:
        """Return the keys that match, sorted, of all servers that take writes."""
        return sorted(key for server in self.all_primaries for key in server.ask("KEYS", pattern))


class ClusterServers(_Several):
    """A cluster of three primaries with a replica each; any of them may be killed and started again.

    Args:
        options: Of each server.
        replicas: How many each primary has.
        guard: What they ask of whoever connects.
        down_ms: How long a node may be silent until it is taken for dead.
    """

    primary_count = PRIMARIES

    def __init__(self, *options: str, replicas: int = 1, guard: Guard = OPEN, down_ms: int = DOWN_MS) -> None:
        super().__init__()
        self._replicas = replicas
        self._guard = guard
        self._down_ms = down_ms
        self._options = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(DOWN_MS), "--cluster-require-full-coverage", "no"),
            *("--cluster-replica-validity-factor", "0"),
            *as_options(guard.cluster_settings),
            *options,
        )

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis+cluster://{self.places}"

    @property
    def places(self) -> str:
        """The hosts of a URL."""
        return ",".join(server.place for server in self.servers[:PRIMARIES])

    def start(self) -> None:
        """Start the servers and make a cluster of them."""
        for _ in range(PRIMARIES * (1 + self._replicas)):
            server = NetworkServer(*self._options, guard=self._guard)
            self.servers.append(server)
            server.start()
        for number, server in enumerate(self.servers[:PRIMARIES]):
            first, last = number * SLOTS // PRIMARIES, (number + 1) * SLOTS // PRIMARIES - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        self._wait_known()
        for number, replica in enumerate(self.servers[PRIMARIES:]):
            node = self.id_of(self.servers[number % PRIMARIES])
            wait_for(lambda replica=replica, node=node: replica.ask("CLUSTER", "REPLICATE", node), "a replica")
        self.wait_ok()
        # Only now: what gets lost while nodes come to know each other is said again after this time.
        for server in self.servers:
            server.ask("CONFIG", "SET", "cluster-node-timeout", self._down_ms)

    def _wait_known(self) -> None:
        count = len(self.servers)
        for server in self.servers:
            wait_for(lambda server=server: self._knows_all(server, count), "every node knows the others")

    @staticmethod
    def _knows_all(server: NetworkServer, count: int) -> bool:
        lines = server.ask("CLUSTER", "NODES").splitlines()
        return len(lines) == count and not any(b"handshake" in line for line in lines)

    def wait_ok(self) -> None:
        """Wait until every slot is served, and every primary has its replicas."""
        wait_for(self.is_settled, "every slot is served and every primary has its replicas")

    def is_settled(self) -> bool:
        """Return whether every slot is served, and every primary has its replicas."""
        infos = [server.ask("CLUSTER", "INFO") for server in self.servers]
        return (
            all(b"cluster_state:ok" in info and b"cluster_slots_fail:0" in info for info in infos)
            and [server.replicas for server in self.primaries] == [self._replicas] * PRIMARIES
        )

    @staticmethod
    def id_of(server: NetworkServer) -> str:
        """Return the id of a node."""
        return str(server.ask("CLUSTER", "MYID").decode())

    def primary_of(self, key: bytes) -> NetworkServer:
        """Return the primary that has the slot of a key, by what the primaries say of themselves."""
        slot = slot_of(key)
        for server in self.servers:
            if server.is_primary and self.has(server, slot):
                return server
        raise NeverHappenedError(f"no primary has slot {slot}")

    def has(self, server: NetworkServer, slot: int) -> bool:
        """Return whether a primary has a slot."""
        return any(first <= slot <= last for first, last in self.slots_of(server))

    def slots_of(self, server: NetworkServer) -> list[tuple[int, int]]:
        """Return the first and last slots of what a primary has."""
        return [
            (first, last) for first, last, (_, port, *_), *_ in server.ask("CLUSTER", "SLOTS") if port == server.port
        ]

    def start_as_replica(self, server: NetworkServer) -> None:
        """Start a server that was killed: the others tell it that it has been replaced."""
        server.start()

    def start_as_primary(self, server: NetworkServer) -> None:
        """Start a server that was killed as a primary, before anything has taken its place.

        A node that has just begun refuses its slots for two seconds, in which others could tell it that it lost them.
        """
        server.start()
        wait_for(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"), "it serves its slots")

    def other_primary(self, than: NetworkServer) -> NetworkServer:
        """Return a primary that is another one."""
        return next(server for server in self.servers if server is not than and server.is_primary)

    def keys_in(self, slot: int) -> list[bytes]:
        """Return keys of a slot, from the node that has it."""
        for server in self.servers:
            if server.is_primary and self.has(server, slot):
                return list(server.ask("CLUSTER", "GETKEYSINSLOT", slot, 1_000))
        return []

    def begin_move(self, slot: int, source: NetworkServer, target: NetworkServer) -> None:
        """Declare a slot to be on its way: from here on no new key is made in it."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: NetworkServer, target: NetworkServer, *, count: int = 100_000) -> int:
        """Move keys of a slot, and return how many."""
        moved = 0
        while moved < count and (keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, min(count - moved, 50))):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
            moved += len(keys)
        return moved

    def move_at_once(self, slot: int, source: NetworkServer, target: NetworkServer) -> None:
        """Move a slot as Valkey 9 does by itself: copied while it is written to, and handed over in a moment."""
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target))

    def end_move(self, slot: int, target: NetworkServer) -> None:
        """Declare a slot to have arrived."""
        node = self.id_of(target)
        target.ask("CLUSTER", "SETSLOT", slot, "NODE", node)
        for server in self.servers:
            if server is not target and server.is_primary:
                server.ask("CLUSTER", "SETSLOT", slot, "NODE", node)


class SentinelServers(_Several):
    """A primary and a replica that three sentinels watch.

    Args:
        options: Of each server.
        guard: What servers and sentinels ask of whoever connects.
        down_ms: How long a server may be silent until it is taken for dead.
    """

    primary_count = 1

    def __init__(self, *options: str, guard: Guard = OPEN, down_ms: int = SENTINEL_DOWN_MS) -> None:
        super().__init__()
        self._down_ms = down_ms
        self._guard = guard
        self._options = options
        self._directory = tempfile.TemporaryDirectory(prefix="kl-sentinel-")
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self.sentinel_ports: list[int] = []

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis+sentinel://{self.places}/{SERVICE}"

    @property
    def places(self) -> str:
        """The hosts of a URL."""
        return ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)

    def start(self) -> None:
        """Start the servers, then those that watch them."""
        primary = NetworkServer(*self._options, guard=self._guard)
        self.servers.append(primary)
        primary.start()
        replica = NetworkServer(*self._options, "--replicaof", f"127.0.0.1 {primary.port}", guard=self._guard)
        self.servers.append(replica)
        replica.start()
        wait_for(lambda: primary.replicas == 1, "the replica follows")
        for seconds in WATCHED_SECONDS:
            self._start_sentinels()
            try:
                wait_for(self.is_settled, "the sentinels know each other and the replica", seconds=seconds)
            except NeverHappenedError as error:
                error.add_note("\n".join(self.said("")[-NEWEST_LINES:]))
                if seconds == WATCHED_SECONDS[-1]:
                    raise
                self._begin_again()
            else:
                return

    def _start_sentinels(self) -> None:
        primary = self.primary
        self.sentinel_ports.clear()
        for number in range(SENTINELS):
            self._start_sentinel(number, primary)

    def _begin_again(self) -> None:
        """Go back to where no sentinel had been started: they may have given the primary's place away."""
        self._kill_sentinels()
        primary, replica = self.servers
        primary.ask("REPLICAOF", "NO", "ONE")
        replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        wait_for(lambda: primary.replicas == 1, "the replica follows")

    def _kill_sentinels(self) -> None:
        for process in self._sentinels:
            process.kill()
            process.wait()
        self._sentinels.clear()

    def _start_sentinel(self, number: int, primary: NetworkServer) -> None:
        port = free_port()
        self.sentinel_ports.append(port)
        folder = Path(self._directory.name) / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = [
            *(f"{name} {value}" for name, value in self._guard.listening(port).items()),
            *("bind 127.0.0.1", f"dir {folder}", f"logfile {folder / 'log'}"),
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_ms}",
            f"sentinel failover-timeout {SERVICE} 3000",
            *(f"{name} {value}" for name, value in self._guard.sentinel_settings(SERVICE).items()),
        ]
        configuration = folder / "sentinel.conf"
        configuration.write_text("\n".join(lines) + "\n")
        binary = self._guard.binary or str(bundled_binary())
        process = subprocess.Popen([binary, str(configuration), "--sentinel"], stdin=subprocess.DEVNULL)
        self._sentinels.append(process)

    def ask_sentinel(self, number: int, *words: Any) -> Any:
        """Ask one of the sentinels."""
        port, options = self.sentinel_ports[number], self._guard.sentinel_client
        client: Any = redis.Redis(host="127.0.0.1", port=port, protocol=2, socket_timeout=ASK_SECONDS, **options)
        client.response_callbacks.clear()
        with client:
            return client.execute_command(*words)

    def said(self, word: str) -> list[str]:
        """Return the lines of the sentinels' logs that have a word, those of the first sentinel first."""
        logs = (Path(self._directory.name, str(number), "log").read_text() for number in range(SENTINELS))
        return [line for log in logs for line in log.splitlines() if word in line]

    def is_settled(self) -> bool:
        """Return whether the sentinels agree on a primary and its replica, and nothing is under way."""
        if self.primary.replicas != 1:
            return False
        wanted = (SENTINELS - 1, 1, b"master", self.primary.port)
        return all(self._known(number) == wanted for number in range(SENTINELS))

    def _known(self, number: int) -> tuple[int, int, bytes, int]:
        flat = self.ask_sentinel(number, "SENTINEL", "MASTER", SERVICE)
        facts = dict(zip(flat[::2], flat[1::2], strict=True))
        replicas = [
            dict(zip(each[::2], each[1::2], strict=True))
            for each in self.ask_sentinel(number, "SENTINEL", "REPLICAS", SERVICE)
        ]
        live = sum(each[b"flags"] == b"slave" and each[b"master-link-status"] == b"ok" for each in replicas)
        return int(facts[b"num-other-sentinels"]), live, facts[b"flags"], int(facts[b"port"])

    def start_as_replica(self, server: NetworkServer) -> None:
        """Start a server that was killed, as the replica of the one that has its place.

        Until every sentinel names that one, they take the former primary for the primary again once it is back. Later
        they would tell it only after ten seconds that it is none any more.
        """
        wait_for(lambda: self.named == {self.primary.port}, "the sentinels name the new primary")
        server.start("--replicaof", f"127.0.0.1 {self.primary.port}")

    def start_as_primary(self, server: NetworkServer) -> None:
        """Start a server that was killed as a primary, before anything has taken its place, whatever it began as."""
        server.start("--replicaof", "no", "one")

    @property
    def named(self) -> set[int]:
        """The ports that the sentinels name as the primary's."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return {int(self.ask_sentinel(number, *words)[1]) for number in range(SENTINELS)}

    def close(self) -> None:
        """Kill all and remove their directories."""
        self._kill_sentinels()
        super().close()
        self._directory.cleanup()

    @property
    def primary(self) -> NetworkServer:
        """The server that takes writes.

        Raises:
            NeverHappenedError: There is none at the moment, or a former one has not heard yet that it is none.
        """
        return self.all_primaries[0]

    def primary_of(self, key: bytes) -> NetworkServer:
        """Return the only one that takes writes."""
        del key
        return self.primary


def servers_of(topology: str, *options: str) -> StoreServer | ClusterServers | SentinelServers:
    """Return the servers of a topology by its name, not started; one that is silent for a while stays what it is."""
    match topology:
        case "cluster":
            return ClusterServers(*options, down_ms=PATIENT_MS)
        case "sentinel":
            return SentinelServers(*options, down_ms=PATIENT_MS)
        case "single":
            return StoreServer(None, *options)
        case _:
            raise ValueError(f"{topology!r} is none of single, sentinel and cluster")


def kill_all(servers: Sequence[NetworkServer]) -> None:
    """SIGKILL servers."""
    for server in servers:
        server.kill()
