"""What is used wrongly from outside is refused at once, with a word on what to write."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from keylane import (
    CallError,
    Client,
    InvalidInput,
    ObjectContext,
    RegistrationError,
    Runtime,
    StoreError,
    StoreUnavailable,
    VirtualObject,
)
from keylane.journal.embedded import EmbeddedStore
from keylane.testing import harness
from tests.faults.harness import StoreServer

pytestmark = pytest.mark.anyio

KEY = "acme/t-1"
#: Far less than what a client waits for a store that is away.
AT_ONCE_SECONDS = 4.0
Use = Callable[[Any], Awaitable[Any]]
thing = VirtualObject("Thing", owner="tests")


@thing.handler
async def one(ctx: ObjectContext) -> int:
    return 1


SOME_ID = "Thing.0.0193a1b2c3d47e5f8a9b0c1d2e3f4a5b"
WHO = {"by": "ana", "reason": "asked for"}
#: Something of each part of a client.
USES: list[Use] = [
    lambda client: client.call(one, KEY),
    lambda client: client.send(one, KEY),
    lambda client: client.attach(SOME_ID).result(),
    lambda client: client.attach(SOME_ID).accepted(),
    lambda client: client.describe(SOME_ID),
    lambda client: client.inspect("Thing", KEY),
    lambda client: client.explain("Thing", KEY),
    lambda client: client.cancel(SOME_ID),
    lambda client: client.kill(SOME_ID, **WHO),
    lambda client: client.pause("Thing", KEY, **WHO),
    lambda client: client.resume(SOME_ID, **WHO),
    lambda client: client.signal_object("Thing", KEY, "go", 1),
    lambda client: client.resolve_awakeable(f"{SOME_ID}.0", 1),
    lambda client: client.approve(f"Thing/{KEY}#refund.1", by="ana"),
    lambda client: client.approvals("Thing", KEY),
    lambda client: client.reconcile_lookup("Thing", KEY, "refund-1", **WHO),
    lambda client: client.reconcile_list(),
    lambda client: client.alerts(),
]


async def refused(client: Client, use: Use, why: str) -> None:
    with anyio.fail_after(AT_ONCE_SECONDS), pytest.raises(StoreError, match=why):
        await use(client)


@pytest.mark.parametrize("use", USES)
async def test_a_client_that_is_not_open_is_refused_at_once(store_url: str, namespace: str, use: Use) -> None:
    """Before its block and behind it: nobody would ever connect, and nothing is said to go on that never began."""
    async with Runtime(thing, store=store_url, namespace=namespace):
        client = Client(store_url, namespace=namespace)
        await refused(client, use, "not open")
        async with client:
            assert await client.call(one, KEY) == 1
        await refused(client, use, "not open")


@pytest.mark.parametrize("use", USES)
async def test_a_client_of_another_loop_is_refused_at_once(store_url: str, namespace: str, use: Use) -> None:
    """Its answers come to the loop that it was opened in, so nobody would be woken; its own loop goes on."""
    async with Runtime(thing, store=store_url, namespace=namespace) as runtime:
        for client in (runtime.client, Client(store_url, namespace=namespace)):
            if client is not runtime.client:
                await client.__aenter__()
            await anyio.to_thread.run_sync(asyncio.run, refused(client, use, "another event loop"))
            assert await client.call(one, KEY) == 1
        await client.__aexit__(None, None, None)


async def test_a_client_is_opened_once(store_url: str, namespace: str) -> None:
    """A second time would leave the first one's connections behind, or come to what was closed."""
    async with Client(store_url, namespace=namespace) as client:
        with pytest.raises(StoreError, match="make another one"):
            await client.__aenter__()
    with pytest.raises(StoreError, match="make another one"):
        await client.__aenter__()


@pytest.mark.parametrize("use", [USES[0], USES[1], USES[5], USES[11]])
async def test_who_waits_for_the_store_is_told_when_the_client_is_closed(use: Use) -> None:
    """At once: nobody would ever send what they have asked for, and whether it was taken in is not claimed."""
    with StoreServer() as server:
        async with Runtime(thing, store=server.url):
            client = Client(server.url)
            async with client:
                assert await client.call(one, KEY) == 1
                server.stop()
                waiting = asyncio.ensure_future(use(client))
                for _ in range(5):
                    await asyncio.sleep(0)
            server.go_on()
            with anyio.fail_after(AT_ONCE_SECONDS), pytest.raises((CallError, StoreUnavailable)):
                await waiting


#: What takes an object type, and is given something else.
NO_TYPES: list[Use] = [
    lambda client: client.inspect([thing], KEY),
    lambda client: client.explain(5, KEY),
    lambda client: client.effects(one, KEY),
    lambda client: client.alerts(5),
    lambda client: client.approvals([thing], KEY),
    lambda client: client.pause(5, KEY, **WHO),
    lambda client: client.resume(thing.find("one"), KEY, **WHO),
    lambda client: client.signal_object([thing], KEY, "go", 1),
    lambda client: client.reconcile_list(5),
    lambda client: client.reconcile_show(5, KEY, "refund-1"),
    lambda client: client.reconcile_lookup(5, KEY, "refund-1", **WHO),
]
#: What a client is told wrongly, and what its refusal says.
WRONG: list[tuple[Use, str]] = [
    *((use, "object type is given itself, or by its name") for use in NO_TYPES),
    (lambda client: client.inspect("Thing", KEY, timeline_entries=-1), "timeline_entries is -1"),
    (lambda client: client.explain("Thing", KEY, entries="5"), "entries is a whole number"),
    (lambda client: client.effects("Thing", KEY, limit=None), "limit is a whole number"),
    (lambda client: client.alerts(limit=math.nan), "limit is a whole number"),
    (lambda client: client.reconcile_list(limit=10**30), "limit is 10"),
    (lambda client: client.reconcile_list(receiver=5), "receiver is text"),
    (lambda client: client.reconcile_show("Thing", KEY, 5), "operation_id is text"),
    (lambda client: client.reconcile_show("Thing", KEY, "\ud800"), "lone surrogate"),
    (lambda client: client.reconcile_resend("Thing", KEY, None, **WHO), "operation_id is text"),
    (lambda client: client.reconcile_not_done("Thing", KEY, ["refund-1"], **WHO), "operation_id is text"),
    (lambda client: client.reconcile_hand_over("Thing", KEY, "r", to="bea", within=24, **WHO), "takes a timedelta"),
]


async def test_a_client_refuses_what_it_can_not_ask_for(store_url: str) -> None:
    """An owner could not read it, and its caller would wait for ever."""
    async with harness(thing, store=store_url) as h:
        await h.call(one, KEY)
        for use, why in WRONG:
            with anyio.fail_after(AT_ONCE_SECONDS), pytest.raises((TypeError, ValueError, InvalidInput), match=why):
                await use(h.client)


async def test_a_time_that_no_float_can_hold_is_a_time(store_url: str) -> None:
    """A wait is as good as endless with it, and a delay is refused as any other that is too long."""
    async with harness(thing, store=store_url) as h:
        assert await h.client.call(one, KEY, timeout=10**400) == 1
        with pytest.raises(ValueError, match="between 0 and"):
            await h.client.send(one, KEY, delay=10**400)
        assert await h.client.call(one, KEY, timeout=timedelta.max) == 1


NO_SETTINGS: Any = {"lease_seconds": 5}
#: As code calls it that no type checker looks at.
unchecked_client: Any = Client
WRONG_ARGUMENTS: list[tuple[Callable[[str], Any], str]] = [
    (lambda url: Runtime(thing, store=url, settings=NO_SETTINGS), r"give keylane\.Settings"),
    (lambda url: unchecked_client(url, settings=NO_SETTINGS), r"give keylane\.Settings"),
    (lambda url: unchecked_client(url, namespace=None), "namespace is text"),
    (lambda url: unchecked_client(url, tracing="yes"), "give True"),
    (lambda url: unchecked_client(url.encode()), "text, not bytes"),
    (lambda url: unchecked_client(f"embedded:{url}\0"), "no URL can carry"),
    (lambda url: unchecked_client(f"embedded:{url}\udcff"), "no URL can carry"),
]


@pytest.mark.parametrize(("make", "why"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_refused_where_it_is_given(store_url: str, make: Callable[[str], Any], why: str) -> None:
    """Not by what happens to trip over it."""
    with pytest.raises((StoreError, RegistrationError), match=why):
        make(store_url)


@pytest.mark.parametrize("port", [-1, 65_536, "9464", True])
async def test_what_is_no_port_shows_no_metrics(store_url: str, namespace: str, port: Any) -> None:
    """The bounds of the environment's variable hold for the argument, too."""
    with pytest.raises(RegistrationError, match="number from 0 to 65535"):
        async with Runtime(thing, store=store_url, namespace=namespace, metrics_port=port):
            pass


async def test_a_file_is_no_folder_of_a_store(tmp_path: Path) -> None:
    """Nobody runs a server there, and nobody can start one."""
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(StoreError, match="no server runs on this folder"):
        Client(f"embedded:{path}")
    with pytest.raises(StoreError, match="name another folder"):
        async with EmbeddedStore(path):
            pass
