"""Stores that not everybody may use: passwords, a user with the documented rights and no others, and TLS."""

from __future__ import annotations

import asyncio
import gc
import re
import secrets
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
import redis.exceptions
from pydantic import BaseModel

from keylane import (
    Client,
    Deduplicates,
    Handle,
    InvocationCancelled,
    ObjectContext,
    Receiver,
    Runtime,
    Settings,
    StoreUnavailable,
    VirtualObject,
)
from keylane.journal import memory
from keylane.journal.doctor.checkup import Plan, check_up
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.leases import observe
from keylane.journal.memory import MemoryUse, MemoryWatch
from keylane.journal.store import Store
from keylane.journal.tenure import Observation
from tests.objects_catalogue import add, counter

from .guards import Certificates, Guard, made_certificates, needs_openssl
from .harness import eventually_answers
from .network_server import NetworkServer
from .topologies import SERVICE, ClusterServers, SentinelServers

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

README = Path(__file__).parents[2] / "README.md"
#: Longer than what lies in a record, so that it is kept beside it.
LETTER = "x" * 40_000
KEY = "acme/o-1"
SETTINGS = Settings(lease_seconds=0.9, renewal_seconds=0.2, partitions=4)
#: So long whoever is turned away tries again.
REFUSED_SECONDS = 0.5
NO_ANSWER = "no answer"
#: What a client reads whose certificate is missing or who speaks no TLS: the alert, or that the server has hung up.
TURNED_AWAY = ("certificate required", "reset by peer", "onnection lost", "closed")
#: What has to stand in URLs percent-encoded.
PASSWORD = "s3cr3t/@:+&"
ENCODED = "s3cr3t%2F%40%3A%2B%26"
SENTINEL_PASSWORD = "an0ther"
GUARD = Guard(password=secrets.token_hex(), sentinel_password=SENTINEL_PASSWORD)

Servers = NetworkServer | ClusterServers | SentinelServers


class Terms(BaseModel):
    """What is to be paid back."""

    amount: int


payments = Receiver("payments", owner="tests", deduplicates=Deduplicates(timedelta(hours=100)))


@payments.effect("refund")
async def send_refund(operation_id: str, terms: Terms) -> str:
    return f"{operation_id} {terms.amount}"


desk = VirtualObject("Desk", owner="tests", state={"letter": str}, effects=[send_refund])


async def write_letter() -> str:
    return LETTER


@desk.handler
async def refund(ctx: ObjectContext, amount: int) -> str:
    """Do one of everything: a step, a timer, a call, an approval, an effect, large values and state."""
    ctx.set("letter", await ctx.run("write", write_letter))
    await ctx.sleep(timedelta(milliseconds=50))
    await ctx.call(add, "acme/sum", amount)
    approval = await ctx.approval(await ctx.propose(action="refund", amount=amount, expires_in=timedelta(hours=1)))
    return await ctx.effect(send_refund, operation_id="refund-1", params=Terms(amount=amount), approval=approval)


@desk.handler
async def wait_for_long(ctx: ObjectContext) -> None:
    """Hold the lane until it is cancelled."""
    await ctx.sleep(timedelta(days=1))


async def does_everything(url: str, namespace: str) -> None:
    """Host objects, have them do what objects do from a client that goes through inboxes, and look at all of it."""
    async with (
        Runtime([desk, counter], store=url, namespace=namespace, settings=SETTINGS) as runtime,
        Client(url, namespace=namespace, settings=SETTINGS) as client,
    ):
        handle = await client.send(refund, KEY, 40, idempotency_key="once")
        await eventually_answers(client.approvals, "it is proposed")
        (waiting,) = await client.approvals()
        await client.approve(waiting.proposal, by="ann")
        assert (await handle.result(timeout=10)).endswith("refund-1 40")
        assert await client.call("Counter", "acme/sum", "get", timeout=10) == 40
        await cancelled(client, await client.send(wait_for_long, KEY))

        assert (await client.describe(handle.id)).id == handle.id
        assert (await client.inspect("Desk", KEY)).state
        assert (await client.explain("Desk", KEY)).matters == ()
        spaces = [partition.space for partition in runtime.worker.partitions]
        await eventually_answers(lambda: are_renewed(client.store, spaces), "leases are renewed")
        assert (await check_up(client.store, Plan(SETTINGS.lease_seconds))).findings == ()


async def are_renewed(store: Store, spaces: Sequence[PartitionSpace]) -> bool:
    """Return whether the thread of the leases, which has connections of its own, has reached every partition."""
    poll = await observe(store, spaces)
    return all(isinstance(seen, Observation) and seen.lease > 1 for seen in poll.seen)


async def cancelled(client: Client, handle: Handle[None]) -> None:
    await client.cancel(handle.id)
    with pytest.raises(InvocationCancelled):
        await handle.result(timeout=10)


def documented_rights(namespace: str) -> list[str]:
    """Return the README's rule for the user of a namespace called `shop`, for another namespace and password."""
    (line,) = re.findall(r"^ACL SETUSER keylane .*$", README.read_text(), re.MULTILINE)
    return line.replace("{shop", f"{{{namespace}").replace(">password", f">{PASSWORD}").split()


@pytest.fixture(scope="module")
def server() -> Iterator[NetworkServer]:
    with NetworkServer(guard=GUARD) as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterServers]:
    with ClusterServers(replicas=0, guard=GUARD) as servers:
        yield servers


@pytest.fixture(scope="module")
def watched() -> Iterator[SentinelServers]:
    with SentinelServers(guard=GUARD) as servers:
        yield servers


@pytest.fixture(params=["server", "cluster", "watched"])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Give a server, a cluster, and servers that sentinels watch: all want a password."""
    servers: Servers = request.getfixturevalue(request.param)
    return servers


def each(servers: Servers) -> list[NetworkServer]:
    """Return the servers one by one."""
    return [servers] if isinstance(servers, NetworkServer) else servers.servers


def url_of(servers: Servers, login: str, sentinel_password: str = SENTINEL_PASSWORD) -> str:
    """Return the URL for somebody."""
    match servers:
        case NetworkServer():
            return f"redis://{login}@{servers.place}"
        case ClusterServers():
            return f"redis+cluster://{login}@{servers.places}"
        case _:
            return f"redis+sentinel://{login}@{servers.places}/{SERVICE}?sentinel_password={sentinel_password}"


@contextmanager
def user(servers: Servers, rights: list[str]) -> Generator[None]:
    """Make a user on every server, and see that nothing of what it did was refused."""
    for each_server in each(servers):
        each_server.ask(*rights)
        each_server.ask("ACL", "LOG", "RESET")
    yield
    refused = [dict(zip(entry[::2], entry[1::2], strict=True)) for s in each(servers) for entry in s.ask("ACL", "LOG")]
    assert [(entry[b"reason"], entry[b"object"]) for entry in refused] == []


async def test_a_user_with_the_documented_rights_may_do_everything(servers: Servers, namespace: str) -> None:
    """And no right is asked for beyond them, not even one that could be done without."""
    with user(servers, documented_rights(namespace)):
        await does_everything(url_of(servers, f"keylane:{ENCODED}"), namespace)


async def refused(url: str, namespace: str) -> str:
    """Open a store in vain, until there is an answer to tell of, and return what is said."""
    said = NO_ANSWER
    while NO_ANSWER in said:
        with pytest.raises(StoreUnavailable) as caught:
            async with Store(url, namespace=namespace):
                pass
        said = str(caught.value)
    return said


async def all_refused(urls: Iterable[str], namespace: str) -> list[str]:
    """The same for several stores at once."""
    with anyio.fail_after(30):
        return await asyncio.gather(*(refused(url, namespace) for url in urls))


async def test_who_is_turned_away_is_told_why_in_time(
    server: NetworkServer,
    cluster: ClusterServers,
    watched: SentinelServers,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the words of the server, which are shown without what was said to it."""
    monkeypatch.setattr("keylane.journal.store.CONNECT_TIMEOUT_SECONDS", REFUSED_SECONDS)
    every: list[Servers] = [server, cluster, watched]
    wrong = [url_of(each, f"keylane:wrong-{ENCODED}") for each in every]
    nothing = [url_of(each, "").replace("@", "") for each in every]
    said = await all_refused(wrong + nothing, namespace)

    assert "s3cr3t" not in " ".join(said)
    for what in said[: len(wrong)]:
        assert "invalid username-password pair" in what
    for what in said[len(wrong) :]:
        assert "Authentication required" in what


async def test_sentinels_that_want_another_password_are_named_with_what_they_said(
    watched: SentinelServers, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the servers is not the sentinels', and a wrong one opens nothing."""
    monkeypatch.setattr("keylane.journal.store.CONNECT_TIMEOUT_SECONDS", REFUSED_SECONDS)
    with_wrong = url_of(watched, f":{GUARD.password}", sentinel_password="wr0ng")
    without = with_wrong.partition("?")[0]
    for said in await all_refused([with_wrong, without], namespace):
        for port in watched.sentinel_ports:
            assert f"127.0.0.1:{port}: invalid username-password pair" in said
        assert "wr0ng" not in said
        assert str(GUARD.password) not in said


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_certificates(tmp_path_factory.mktemp("tls"))


def tls_options(certificates: Certificates) -> str:
    """Return the options of a URL with all that the servers want to see."""
    shown = f"ssl_certfile={certificates.certificate}&ssl_keyfile={certificates.key}"
    return f"ssl_ca_certs={certificates.ca}&{shown}"


@pytest.fixture(scope="module", params=["server", "cluster", "sentinel"])
def tls_store(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[str]:
    """Give the URL, up to its options, of servers that speak TLS only and want a password, as their sentinels do."""
    guard = Guard(PASSWORD, PASSWORD, certificates, binary=shutil.which("redis-server"))
    login = f":{ENCODED}"
    match request.param:
        case "server":
            with NetworkServer(guard=guard) as server:
                yield f"rediss://{login}@{server.place}"
        case "cluster":
            with ClusterServers(replicas=0, guard=guard) as cluster:
                yield f"rediss+cluster://{login}@{cluster.places}"
        case _:
            with SentinelServers(guard=guard) as watched:
                yield f"rediss+sentinel://{login}@{watched.places}/{SERVICE}"


@needs_openssl
@pytest.mark.second_store
async def test_every_connection_speaks_tls(tls_store: str, certificates: Certificates, namespace: str) -> None:
    """Those of workers and clients, of notifications, of the thread of the leases, and to sentinels."""
    await does_everything(f"{tls_store}?{tls_options(certificates)}", namespace)


# asyncio leaves a connection over TLS to the garbage collector when it is cancelled in the turn in which it is made.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@needs_openssl
@pytest.mark.second_store
async def test_certificates_are_looked_at_on_both_sides(
    tls_store: str, certificates: Certificates, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that no known CA has signed for is left, as servers leave a client that shows nothing, or has no TLS."""
    monkeypatch.setattr("keylane.journal.store.CONNECT_TIMEOUT_SECONDS", REFUSED_SECONDS)
    _, _, without_ca = tls_options(certificates).partition("&")
    untrusted, nameless = f"{tls_store}?{without_ca}", f"{tls_store}?ssl_ca_certs={certificates.ca}"
    plain = tls_store.replace("rediss", "redis")

    said = await all_refused([untrusted, nameless, plain], namespace)

    assert "certificate verify failed" in said[0]
    for what in said[1:]:
        assert any(words in what for words in TURNED_AWAY), what
    # Here, where its warning is ignored, and not in whatever test comes next.
    gc.collect()


async def test_a_user_who_may_not_ask_for_the_memory_any_more_goes_on(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full server says so itself; only what is taken in is not stopped before that."""
    asked = asyncio.Event()
    look = MemoryWatch.look

    async def looked(self: MemoryWatch) -> MemoryUse:
        try:
            return await look(self)
        except redis.exceptions.ResponseError:
            asked.set()
            raise

    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(MemoryWatch, "look", looked)
    with NetworkServer() as server:
        async with Runtime([counter], store=server.url, namespace=namespace, settings=SETTINGS) as runtime:
            server.ask("ACL", "SETUSER", "default", "-info")
            with anyio.fail_after(10):
                await asked.wait()
            assert await runtime.client.call(add, KEY, 1, timeout=10) == 1
