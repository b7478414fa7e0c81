"""Writes golden journals that are not there yet: `python -m tests.golden.make`. What is there is never written anew."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from keylane import Handle, Runtime
from keylane.journal.codec import unpack
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.exported import lines_of
from keylane.journal.key import parse_id
from keylane.journal.open_journals import read_journal
from keylane.runtime import failures
from keylane.testing import shift_clock
from tests.golden import shop

JOURNALS = Path(__file__).parent / "journals"
Scenario = Callable[[Runtime], Awaitable[str]]


async def _status(handle: Handle[Any], wanted: str) -> str:
    with anyio.fail_after(20):
        while (await handle.describe()).status != wanted:
            await anyio.sleep(0.01)
    return handle.id


async def _ordered(runtime: Runtime) -> str:
    item = shop.Item(name="tea", price=Decimal("2.50"))
    handle = await runtime.client.send(shop.order, "acme/ordered", item)
    return await _status(handle, "waiting")


async def _ordered_and_done(runtime: Runtime) -> str:
    invocation_id = await _ordered(runtime)
    await shift_clock(runtime, timedelta(days=31))
    await runtime.client.attach(invocation_id).result(timeout=20)
    return invocation_id


async def _delivered(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.deliver, "acme/delivered", "tea")
    await handle.result(timeout=20)
    return handle.id


async def _not_delivered(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.deliver, "acme/not-delivered", "nothing")
    return await _status(handle, "failed")


async def _insisted(runtime: Runtime) -> str:
    shop.trouble.update({"first": 2, "second": 99, "last": 1, "handler": 2})
    handle = await runtime.client.send(shop.insist, "acme/insisted")
    await handle.result(timeout=20)
    return handle.id


async def _paused_and_resumed(runtime: Runtime) -> str:
    shop.trouble.update({"second": 99, "last": 4})
    handle = await runtime.client.send(shop.insist, "acme/resumed")
    await _status(handle, "paused")
    await runtime.client.resume(handle.id, reason="repaired", by="ada", timeout=20)
    await handle.result(timeout=20)
    return handle.id


async def _paused(runtime: Runtime) -> str:
    shop.trouble.update({"second": 99, "last": 99})
    handle = await runtime.client.send(shop.insist, "acme/paused")
    return await _status(handle, "paused")


async def _restarted(runtime: Runtime) -> str:
    shop.trouble.update({"second": 99, "last": 3})
    handle = await runtime.client.send(shop.insist, "acme/restarted")
    await _status(handle, "paused")
    shop.trouble.update({"second": 0, "last": 0})
    await runtime.client.restart(handle.id, keep=1, reason="the second is repaired", by="ada", timeout=20)
    await handle.result(timeout=20)
    return handle.id


async def _patched(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.change, "acme/patched")
    await handle.result(timeout=20)
    return handle.id


async def _closed_by_an_old_version(runtime: Runtime) -> str:
    newest = shop.shop.find("close")
    registered: Any = shop.shop
    registered._newest["close"] = shop.close_v1
    try:
        handle = await runtime.client.send("Shop", "acme/closed", "close")
        return await _status(handle, "waiting")
    finally:
        registered._newest["close"] = newest


async def _scheduled(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.change, "acme/scheduled", delay=timedelta(days=300))
    return await _status(handle, "scheduled")


async def _released(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.change, "acme/released", delay=timedelta(hours=1))
    await _status(handle, "scheduled")
    await shift_clock(runtime, timedelta(hours=2))
    await handle.result(timeout=20)
    return handle.id


async def _large(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.plain, "acme/large", "x" * 20_000)
    await handle.result(timeout=20)
    return handle.id


async def _compared(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.compare, "acme/compared", ["tea", "salt", "rice"])
    await handle.result(timeout=20)
    return handle.id


async def _asked(runtime: Runtime) -> tuple[Handle[Any], str]:
    """Have an invocation wait for its awakeable, with a signal for it that nobody has asked for yet."""
    handle = await runtime.client.send(shop.approve, "acme/approved")
    await _status(handle, "waiting")
    await handle.signal("note", "early")
    (awakeable,) = (await runtime.client.inspect("Shop", "acme/approved")).state
    return handle, unpack(awakeable.packed)


async def _waits_for_approval(runtime: Runtime) -> str:
    return (await _asked(runtime))[0].id


async def _approved(runtime: Runtime) -> str:
    handle, awakeable_id = await _asked(runtime)
    await runtime.client.resolve_awakeable(awakeable_id, "granted")
    await handle.result(timeout=20)
    return handle.id


async def _consulted(runtime: Runtime) -> str:
    shop.trouble.update({"first": 1, "tea": 1})
    handle = await runtime.client.send(shop.consult, "acme/consulted", ["tea", "salt"])
    await handle.result(timeout=20)
    return handle.id


async def _proposed(runtime: Runtime, key: str) -> Handle[Any]:
    handle = await runtime.client.send(shop.pay, key, shop.Item(name="tea", price=Decimal("2.50")))
    await _status(handle, "waiting")
    return handle


async def _waits_for_a_decision(runtime: Runtime) -> str:
    return (await _proposed(runtime, "acme/proposed")).id


async def _paid(runtime: Runtime) -> str:
    handle = await _proposed(runtime, "acme/paid")
    await runtime.client.approve("Till/acme/paid#pay.1", by="ada", reason="as agreed", timeout=20)
    await handle.result(timeout=20)
    return handle.id


async def _cancelled(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.lend, "acme/cancelled")
    await _status(handle, "waiting")
    await handle.cancel(reason="ordered twice", by="ada", timeout=20)
    return await _status(handle, "cancelled")


async def _cancelled_with_an_undo_given_up(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.lend, "acme/given-up")
    await _status(handle, "waiting")
    shop.trouble["write off"] = 99
    await handle.cancel(reason="ordered twice", by="ada")
    await _status(handle, "paused")
    await runtime.client.skip_compensation(handle.id, reason="written off by hand", by="ada", timeout=20)
    return await _status(handle, "cancelled")


async def _killed(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.lend, "acme/killed")
    await _status(handle, "waiting")
    await runtime.client.kill(handle.id, reason="beyond repair", by="ada", timeout=20)
    return handle.id


async def _sold_and_undone(runtime: Runtime) -> str:
    handle = await runtime.client.send(shop.sell, "acme/sold", shop.Item(name="tea", price=Decimal("2.50")))
    return await _status(handle, "failed")


SCENARIOS: dict[str, Scenario] = {
    "ordered": _ordered,
    "ordered_and_done": _ordered_and_done,
    "delivered": _delivered,
    "not_delivered": _not_delivered,
    "insisted": _insisted,
    "paused_and_resumed": _paused_and_resumed,
    "paused": _paused,
    "restarted": _restarted,
    "patched": _patched,
    "closed_by_an_old_version": _closed_by_an_old_version,
    "scheduled": _scheduled,
    "released": _released,
    "large": _large,
    "compared": _compared,
    "waits_for_approval": _waits_for_approval,
    "approved": _approved,
    "consulted": _consulted,
    "waits_for_a_decision": _waits_for_a_decision,
    "paid": _paid,
    "cancelled": _cancelled,
    "cancelled_with_an_undo_given_up": _cancelled_with_an_undo_given_up,
    "killed": _killed,
    "sold_and_undone": _sold_and_undone,
}


def _left_out(*_: object) -> list[str]:
    return ["(left out)"]


async def main() -> None:
    """Write what is missing; where its code lay on the machine that ran it is nobody's business."""
    failures.traceback = SimpleNamespace(format_exception=_left_out)  # pyright: ignore[reportAttributeAccessIssue]
    for name, scenario in SCENARIOS.items():
        path = JOURNALS / f"{name}.jsonl"
        if path.exists():
            continue
        shop.trouble.clear()
        with tempfile.TemporaryDirectory() as folder:
            async with EmbeddedStore(Path(folder)) as store, Runtime(shop.app, store=store.url) as runtime:
                invocation = parse_id(await scenario(runtime))
                lines = lines_of(*(await read_journal(runtime.client.store, invocation)))
        path.write_text("".join(f"{line}\n" for line in lines))
        print(f"{name}: written")  # noqa: T201


if __name__ == "__main__":
    anyio.run(main)
