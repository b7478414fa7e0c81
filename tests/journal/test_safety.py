"""What a server promises, read from real servers with good and bad settings, and from replies as they would be."""

import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from keylane import RegistrationError, Runtime, VirtualObject
from keylane.journal.embedded import bundled_binary
from keylane.journal.endpoint import sight
from keylane.journal.errors import UnsafeStore
from keylane.journal.safety import (
    Durability,
    Replicated,
    ServerFacts,
    advice,
    check,
    doubts,
    facts_of,
    parse_config,
    parse_info,
    promise,
    read_facts,
)

pytestmark = pytest.mark.anyio

GOOD = ServerFacts(
    name="Valkey",
    version="9.1.2",
    is_cluster=False,
    has_append_only_file=True,
    appendfsync="always",
    syncs_during_rewrite=True,
    save_points="",
    maxmemory_bytes=0,
    maxmemory_policy="noeviction",
    replicas=0,
    stream_node_max_bytes=512,
    largest_word_bytes=512 << 20,
    largest_command_bytes=1 << 30,
)
UNTOLD = replace(
    GOOD,
    appendfsync=None,
    syncs_during_rewrite=None,
    save_points=None,
    stream_node_max_bytes=None,
    largest_word_bytes=None,
    largest_command_bytes=None,
    config_refusal="NOPERM no permission to run 'config|get'",
)
PAYLOAD_LIMIT_BYTES = 1 << 20
FROM_REPLICA = "after disk loss a replica has all but the last writes"
SAFE = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]

WITHOUT_CONFIG = ["--user", "default", "on", "nopass", "~*", "&*", "+@all", "-config"]

StartServer = Callable[..., str]


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.second_store)])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[StartServer]:
    """Give a function that starts a server with some settings and returns its URL."""
    binary = str(bundled_binary()) if request.param == "valkey" else str(shutil.which("redis-server"))
    processes: list[subprocess.Popen[bytes]] = []

    def run(*settings: str) -> str:
        socket_path = str(tmp_path / "s.sock")
        fixed = ["--port", "0", "--unixsocket", socket_path, "--dir", str(tmp_path), "--logfile", str(tmp_path / "log")]
        processes.append(subprocess.Popen([binary, *fixed, *settings]))
        while (seen := sight(socket_path)) is None or not seen.is_ready:
            assert processes[-1].poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.005)
        return f"unix://{socket_path}"

    yield run
    for process in processes:
        process.kill()
        process.wait()


async def facts_at(url: str, **options: Any) -> ServerFacts:
    """Read the facts as the library does, from a connection of either protocol version."""
    library: Any = redis.asyncio
    async with library.Redis.from_url(url, **options) as client:
        # The client's own reading of replies is not what the journal's connection does.
        client.response_callbacks.clear()
        return await read_facts(client.execute_command)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_facts_of_a_server_are_read_whole(start: StartServer, protocol: int) -> None:
    """Name, version and every setting come from the server, on both protocols and both implementations."""
    facts = await facts_at(start(*SAFE, "--maxmemory", "100mb", "--stream-node-max-bytes", "1024"), protocol=protocol)

    assert facts.name in {"Valkey", "Redis"}
    assert facts.version_numbers >= (7, 0)
    assert replace(facts, name="Valkey", version="9.1.2") == replace(
        GOOD, maxmemory_bytes=100 * 2**20, stream_node_max_bytes=1024
    )


@pytest.mark.one_server
async def test_valkey_is_known_by_its_own_version(store_url: str) -> None:
    """Valkey calls itself Redis 7.2.4 to those who ask for the version of Redis."""
    facts = await facts_at(store_url)

    assert facts.name == "Valkey"
    assert facts.version_numbers >= (9, 1)


@pytest.mark.one_server
async def test_the_embedded_store_keeps_the_default_durability(store_url: str) -> None:
    """No doubt, no advice, and the sentence of the documentation."""
    facts = await facts_at(store_url)

    check(facts, "fsync")
    assert doubts(facts, "fsync") == ()
    assert advice(facts) == ()
    assert promise(facts) == "AOF fsync always, no replica: survives process and machine restart, not disk loss"


@pytest.mark.parametrize(
    ("settings", "durability", "why"),
    [
        ([*SAFE, "--maxmemory-policy", "allkeys-lru"], "fsync", "maxmemory-policy is allkeys-lru"),
        ([*SAFE, "--maxmemory-policy", "volatile-ttl"], "server", "maxmemory-policy is volatile-ttl"),
        (["--appendonly", "no", "--save", ""], "server", "no persistence"),
        (["--appendonly", "no", "--save", "60 1"], "fsync", "no append-only file"),
        (["--appendonly", "yes", "--appendfsync", "everysec"], "fsync", "appendfsync is everysec"),
        (["--appendonly", "yes", "--appendfsync", "no"], "fsync", "appendfsync is no"),
        ([*SAFE, "--no-appendfsync-on-rewrite", "yes"], "fsync", "no-appendfsync-on-rewrite is yes"),
        (SAFE, Replicated(1), "0 replicas"),
        ([*SAFE, "--cluster-enabled", "yes"], "fsync", "node of a cluster"),
        ([*SAFE, "--proto-max-bulk-len", "1mb"], "server", "proto-max-bulk-len is 1,048,576"),
        ([*SAFE, "--client-query-buffer-limit", "4mb"], "server", "client-query-buffer-limit is 4,194,304"),
        ([*SAFE, *WITHOUT_CONFIG], "fsync", "does not tell whether appendfsync"),
        (
            ["--appendonly", "no", "--save", "", *WITHOUT_CONFIG],
            "server",
            "does not tell whether it takes snapshots",
        ),
    ],
)
async def test_a_server_that_can_not_keep_the_promise_is_refused_with_the_reason(
    start: StartServer, settings: list[str], durability: Durability, why: str
) -> None:
    """Each bad setting of a real server is found, and the error carries a remedy."""
    facts = await facts_at(start(*settings))

    with pytest.raises(UnsafeStore, match=why) as caught:
        check(facts, durability, payload_limit_bytes=PAYLOAD_LIMIT_BYTES)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        SAFE,
        ["--appendonly", "yes", "--appendfsync", "everysec"],
        ["--appendonly", "no", "--save", "60 1"],
        [*SAFE, *WITHOUT_CONFIG],
    ],
)
async def test_durability_server_takes_whatever_persistence_there_is(start: StartServer, settings: list[str]) -> None:
    """The user declared that the server's own policy is good enough."""
    check(await facts_at(start(*settings)), "server")


def test_doubts_can_be_accepted_except_where_nothing_would_work() -> None:
    """`allow_unsafe` is for risks, not for servers that lack the commands."""
    check(replace(GOOD, maxmemory_policy="allkeys-lru", appendfsync="no"), "fsync", allow_unsafe=True)

    with pytest.raises(UnsafeStore, match="oldest"):
        check(replace(GOOD, version="7.2.4"), "fsync", allow_unsafe=True)
    with pytest.raises(UnsafeStore, match="cluster"):
        check(replace(GOOD, is_cluster=True), "fsync", allow_unsafe=True)


@pytest.mark.parametrize(
    ("name", "version", "is_refused"),
    [
        ("Redis", "6.2.14", True),
        ("Redis", "7.0.0", False),
        ("Redis", "8.2.3", False),
        ("Redis", "255.255.255", False),
        ("Redis", "0", True),
        ("Valkey", "7.2.9", True),
        ("Valkey", "8.0.0-rc1", False),
        ("Valkey", "9.1.2", False),
    ],
)
def test_servers_older_than_the_supported_ones_are_refused(name: str, version: str, is_refused: bool) -> None:  # noqa: FBT001
    """Redis 7.0 and Valkey 8 are where support begins."""
    found = doubts(replace(GOOD, name=name, version=version), "fsync")

    assert bool(found) is is_refused


def test_a_server_that_would_cut_the_largest_commands_can_not_be_accepted() -> None:
    """It cuts the connection in their middle, and nothing would get past them any more."""
    with pytest.raises(UnsafeStore, match="lower KEYLANE_PAYLOAD_LIMIT_BYTES"):
        check(GOOD, "server", allow_unsafe=True, payload_limit_bytes=512 << 20)


def test_replicas_are_counted_against_the_declared_number() -> None:
    """Replicated(2) needs two of them."""
    assert doubts(replace(GOOD, replicas=1), Replicated(2))
    assert not doubts(replace(GOOD, replicas=2), Replicated(2))


def test_replicated_by_nobody_can_not_be_declared() -> None:
    """A promise of nothing is a mistake."""
    with pytest.raises(ValueError, match=r"Replicated\(0\)"):
        Replicated(0)


@pytest.mark.parametrize("declared", ["always", None, 1, ["fsync"]])
def test_what_is_no_durability_is_refused(declared: object) -> None:
    """Before a server is asked anything."""
    with pytest.raises(RegistrationError, match=r'it must be "fsync", "server" or Replicated\(n\)') as refused:
        Runtime([VirtualObject("Order", owner="ops")], durability=declared)  # pyright: ignore[reportArgumentType]

    assert refused.value.parameter == "durability"


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (GOOD, "AOF fsync always, no replica: survives process and machine restart, not disk loss"),
        (
            replace(GOOD, replicas=1),
            f"AOF fsync always, 1 replica: survives process and machine restart; {FROM_REPLICA}",
        ),
        (
            replace(GOOD, appendfsync="everysec", replicas=2),
            "AOF fsync every second, 2 replicas: survives process restart, loses up to 2 seconds at machine restart; "
            + FROM_REPLICA,
        ),
        (
            replace(GOOD, has_append_only_file=False),
            "no persistence, no replica: survives no restart",
        ),
    ],
)
def test_the_promise_is_one_sentence_made_of_the_facts(facts: ServerFacts, sentence: str) -> None:
    """What is printed at start says what survives and what does not."""
    assert promise(facts) == sentence


def test_what_is_not_known_is_not_promised() -> None:
    """Without CONFIG, the sentence and the refusals say so."""
    assert "does not tell" in promise(UNTOLD)
    assert "unknown" in promise(replace(UNTOLD, has_append_only_file=False))
    with pytest.raises(UnsafeStore, match="NOPERM"):
        check(UNTOLD, "fsync")


def test_large_stream_nodes_are_advised_against_with_their_cost() -> None:
    """A foreign server's setting is read and its price said."""
    (sentence,) = advice(replace(GOOD, stream_node_max_bytes=4096))

    assert "4096" in sentence
    assert advice(UNTOLD) == ()


def test_replies_are_read_from_bytes_and_from_text() -> None:
    """The connection may decode or not."""
    assert parse_info(b"# Server\r\nredis_version:7.0.1\r\n\r\n") == {"redis_version": "7.0.1"}
    assert parse_info("redis_version:7.0.1\r\n") == {"redis_version": "7.0.1"}
    assert parse_config([b"save", b"60 1"]) == parse_config({"save": "60 1"}) == {"save": "60 1"}
    assert facts_of({}, None).version_numbers == (0,)


@pytest.mark.parametrize("replicas", [0, -1, 1.5, float("nan"), "1", True, None])
def test_what_is_no_number_of_replicas_is_refused(replicas: Any) -> None:
    """A promise that could be met by nothing, or never."""
    with pytest.raises((TypeError, ValueError), match="Replicated"):
        Replicated(replicas)
