"""Sharded pub/sub on a connection of its own: it comes back, subscribes anew, and tells of gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from keylane.journal import store as store_module
from keylane.journal import subscription as module
from keylane.journal.errors import StoreUnavailable
from keylane.journal.observer import NoObserver, Observer
from keylane.journal.store import Store
from keylane.journal.subscription import Subscription
from tests.faults.harness import eventually
from tests.faults.proxy import Proxy
from tests.plain import plain

# One connection to one server; what a cluster adds is in `test_cluster.py`.
pytestmark = pytest.mark.one_server


class Listener:
    """A subscription, with everything that it was told."""

    def __init__(self, store: Store, observer: Observer | None = None) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.gaps = 0
        self.subscription = Subscription(
            store.new_connection, on_message=self.take, on_gap=self.count_gap, observer=observer
        )

    def take(self, channel: bytes, payload: bytes) -> None:
        if payload == b"poison":
            raise ValueError(payload)
        self.messages.append((channel, payload))

    def count_gap(self) -> None:
        self.gaps += 1


@asynccontextmanager
async def listening(
    url: str, namespace: str, *channels: bytes, observer: Observer | None = None
) -> AsyncGenerator[Listener]:
    # The connection is not opened by the store here, so the store itself need not be.
    listener = Listener(Store(url, namespace=namespace), observer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.subscription.run)
        for channel in channels:
            assert await listener.subscription.subscribed(channel, 5)
        yield listener
        tasks.cancel_scope.cancel()


def publish(url: str, channel: bytes, *payloads: bytes) -> list[int]:
    return [plain(url, "SPUBLISH", channel, payload) for payload in payloads]


@pytest.fixture
def channel(namespace: str) -> bytes:
    return f"{{{namespace}}}:out".encode()


@pytest.mark.anyio
async def test_a_server_that_never_shakes_hands_holds_up_no_opening(
    namespace: str, short_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one that can't be listened to now, and is tried again: nobody waits for it without an end."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(store_module, "CONNECT_TIMEOUT_SECONDS", 0.5)
    socket = str(short_path / "silent")

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)
        await reader.read(-1)

    connected: list[asyncio.StreamWriter] = []
    async with await asyncio.start_unix_server(keep_silent, socket):
        listener = Listener(Store(f"unix://{socket}", namespace=namespace))
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(10):
                await tasks.start(listener.subscription.run)
                while len(connected) < 2:
                    await anyio.sleep(0.01)
            assert not listener.subscription.is_up
            tasks.cancel_scope.cancel()
        with pytest.raises(StoreUnavailable, match=r"within 0\.5 s: no answer"):
            async with Store(f"unix://{socket}", namespace=namespace, answer_timeout_seconds=0.1):
                pass
        for writer in connected:
            writer.close()
    assert "results arrive by polling: no answer" in caplog.text


@pytest.mark.anyio
async def test_messages_arrive_in_order_on_their_channel(store_url: str, namespace: str, channel: bytes) -> None:
    """What is published on a subscribed channel arrives once, with its channel; other channels stay silent."""
    other = channel + b"2"
    async with listening(store_url, namespace, channel) as listener:
        publish(store_url, other, b"not wanted")
        publish(store_url, channel, b"1", b"2", b"3")

        await eventually(lambda: len(listener.messages) == 3, "three messages")

    assert listener.messages == [(channel, b"1"), (channel, b"2"), (channel, b"3")]


@pytest.mark.anyio
async def test_channels_come_and_go(store_url: str, namespace: str, channel: bytes) -> None:
    """A channel that is given up sends nothing more, and can be wanted again."""
    async with listening(store_url, namespace, channel) as listener:
        listener.subscription.unsubscribe(channel)
        await eventually(lambda: publish(store_url, channel, b"unheard") == [0], "the server has dropped the channel")

        assert await listener.subscription.subscribed(channel, 5)
        publish(store_url, channel, b"heard")
        await eventually(lambda: (channel, b"heard") in listener.messages, "the message")

    assert listener.messages[-1] == (channel, b"heard")


@pytest.mark.anyio
async def test_many_channels_share_the_connection(store_url: str, namespace: str) -> None:
    """A hundred partitions are heard over one connection."""
    channels = [f"{{{namespace}:{number}}}:out".encode() for number in range(100)]
    async with listening(store_url, namespace, *channels) as listener:
        for channel in channels:
            publish(store_url, channel, channel)

        await eventually(lambda: len(listener.messages) == 100, "all messages")

    assert listener.messages == [(channel, channel) for channel in channels]


@pytest.mark.anyio
async def test_killed_connection_comes_back_and_tells_of_the_gap(
    store_url: str, namespace: str, channel: bytes, tmp_path: Path
) -> None:
    """After a cut every channel is subscribed anew, and once messages arrive again the listener is told to look."""
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        async with listening(proxy.url, namespace, channel, channel + b"2") as listener:
            for cut in range(1, 4):
                gaps = listener.gaps
                assert proxy.cut() == 1

                await eventually(lambda gaps=gaps: listener.gaps == gaps + 1, "the gap is told once")
                assert publish(store_url, channel, b"%d" % cut) == [1]
                assert publish(store_url, channel + b"2", b"%d" % cut) == [1]
                await eventually(lambda cut=cut: len(listener.messages) == 2 * cut, "messages arrive again")


@pytest.mark.anyio
async def test_connection_killed_by_the_server_comes_back(store_url: str, namespace: str, channel: bytes) -> None:
    """CLIENT KILL costs the messages of a moment and nothing else."""
    async with listening(store_url, namespace, channel) as listener:
        gaps = listener.gaps
        assert plain(store_url, "CLIENT", "KILL", "TYPE", "pubsub") == 1

        await eventually(lambda: listener.gaps > gaps, "the gap is told")
        publish(store_url, channel, b"after")
        await eventually(lambda: listener.messages == [(channel, b"after")], "messages arrive again")


@pytest.mark.anyio
async def test_channel_wanted_while_the_connection_is_down_is_subscribed_later(
    store_url: str, namespace: str, channel: bytes, tmp_path: Path
) -> None:
    """Wanting a channel needs no connection; it is subscribed to when there is one."""
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        proxy.refuse()
        async with listening(proxy.url, namespace) as listener:
            assert not await listener.subscription.subscribed(channel, 0.05)

            proxy.heal()
            assert await listener.subscription.subscribed(channel, 5)
            assert listener.subscription.is_subscribed(channel)


@pytest.mark.anyio
async def test_message_that_cannot_be_dealt_with_costs_no_other(
    store_url: str, namespace: str, channel: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in the listener is logged, and the next message arrives."""
    async with listening(store_url, namespace, channel) as listener:
        publish(store_url, channel, b"poison", b"good")

        await eventually(lambda: listener.messages == [(channel, b"good")], "the good one")

    assert "could not be dealt with" in caplog.text


@pytest.mark.anyio
async def test_observer_drops_messages(store_url: str, namespace: str, channel: bytes) -> None:
    """The seam at which tests lose every message is asked for each."""

    class Deaf(NoObserver):
        def deliver(self, channel: bytes) -> bool:
            return not channel.endswith(b":out")

    loud = channel + b"2"
    async with listening(store_url, namespace, channel, loud, observer=Deaf()) as listener:
        publish(store_url, channel, b"dropped")
        publish(store_url, loud, b"heard")

        await eventually(lambda: listener.messages != [], "the message that passes")

    assert listener.messages == [(loud, b"heard")]


@pytest.mark.anyio
async def test_silent_connection_is_given_up(
    store_url: str, namespace: str, channel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that says nothing, not even to a PING, is replaced; nobody has to notice the silence."""
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.4)
    with Proxy(Path(urlsplit(store_url).path), tmp_path / "p") as proxy:
        async with listening(proxy.url, namespace, channel) as listener:
            gaps = listener.gaps
            proxy.stall()
            await eventually(lambda: not listener.subscription.is_subscribed(channel), "the silence is noticed")

            proxy.heal()
            await eventually(lambda: listener.gaps > gaps, "a new connection")
            publish(store_url, channel, b"after")
            await eventually(lambda: (channel, b"after") in listener.messages, "messages arrive again")


@pytest.mark.anyio
async def test_quiet_connection_is_kept(
    store_url: str, namespace: str, channel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without messages answers the PING and stays."""
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    async with listening(store_url, namespace, channel) as listener:
        gaps = listener.gaps
        for _ in range(20):
            await anyio.sleep(0.02)

        assert listener.gaps == gaps
        assert listener.subscription.is_subscribed(channel)
