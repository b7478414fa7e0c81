"""What was not found is looked for once more behind all that was on its way, before anybody is told that it is nowhere.

A reading may come before a commit whose answer is there first, or from a server that has been replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from keylane import App, CallError, ObjectContext, Runtime, VirtualObject
from keylane.journal.key import parse_id
from keylane.journal.lane_reading import OpenInvocation
from keylane.journal.store import Store
from keylane.objects.verdicts import Accepted, UnknownTarget
from keylane.runtime import reviving, signal_intake
from tests.faults.harness import eventually_answers

pytestmark = pytest.mark.anyio

KEY = "acme/s-1"
sleeper = VirtualObject("Sleeper", owner="tests", partitions=1)


@sleeper.handler
async def nap(ctx: ObjectContext) -> None:
    await ctx.sleep(3600)


@sleeper.handler
async def listen(ctx: ObjectContext) -> str:
    return await ctx.signal("word", str)


async def left_waiting(store_url: str, namespace: str, handler: Any) -> str:
    """Have an invocation wait, and return its id once its owner has gone: the next one has not read it yet."""
    async with Runtime(App(sleeper), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(handler, KEY)
        await eventually_answers(lambda: waits(runtime, handle.id), "it waits")
        return handle.id


async def waits(runtime: Runtime, invocation_id: str) -> bool:
    return (await runtime.client.describe(invocation_id)).status == "waiting"


def blind(monkeypatch: pytest.MonkeyPatch, module: Any, times: int) -> list[bytes]:
    """Have the first readings of invocations find nothing."""
    read, looked_for = module.read_invocations, list[bytes]()

    async def missed(store: Store, space: Any, ids: Sequence[bytes]) -> list[OpenInvocation]:
        looked_for.extend(ids)
        if len(looked_for) <= times:
            return [OpenInvocation(raw_id, []) for raw_id in ids]
        return await read(store, space, ids)

    monkeypatch.setattr(module, "read_invocations", missed)
    return looked_for


async def test_a_cancel_finds_what_one_reading_has_missed(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that nothing is known of it, its caller would leave it asleep for an hour."""
    invocation_id = await left_waiting(store_url, namespace, nap)
    async with Runtime(App(sleeper), store=store_url, namespace=namespace) as runtime:
        looked_for = blind(monkeypatch, reviving, 1)
        report = await runtime.client.cancel(invocation_id, timeout=10)

    assert report.outcome == "cancelled"
    assert looked_for[:2] == [parse_id(invocation_id).raw] * 2


async def test_a_signal_finds_what_one_reading_has_missed(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that there is no such target, its sender would send it no more."""
    invocation_id = await left_waiting(store_url, namespace, listen)
    async with Runtime(App(sleeper), store=store_url, namespace=namespace) as runtime:
        looked_for = blind(monkeypatch, signal_intake, 1)
        verdict = await runtime.client.signal(invocation_id, "word", "go", timeout=10)

        assert isinstance(verdict, Accepted)
        assert await runtime.client.attach(invocation_id).result(timeout=10) == "go"
    assert looked_for[:2] == [parse_id(invocation_id).raw] * 2


async def test_what_two_readings_do_not_find_is_unknown(
    store_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is kept waiting for what is nowhere."""
    async with Runtime(App(sleeper), store=store_url, namespace=namespace) as runtime:
        sent = await runtime.client.send(nap, KEY)
        nobody = sent.id[:-1] + ("0" if sent.id[-1] != "0" else "1")
        looked_for = blind(monkeypatch, signal_intake, 0)

        assert await runtime.client.signal(nobody, "word", "go", timeout=10) == UnknownTarget()
        assert looked_for == [parse_id(nobody).raw] * 2
        with pytest.raises(CallError, match="nothing is known of it"):
            await runtime.client.cancel(nobody, timeout=10)
