"""`keylane deploy check`, `export`, `replay` and `restart`, as their users run them; and what a deploy does to work."""

from __future__ import annotations

import json
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane import App, Handle, Runtime
from keylane.objects.app import load_app
from keylane.testing import shift_clock
from tests.runtime.shell_command import Done, run
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

OLD = """
    from keylane import App, ObjectContext, VirtualObject

    order = VirtualObject("Order", owner="refunds-oncall", partitions=1)


    def note(text: str) -> str:
        with open("trail", "a") as trail:
            trail.write(text + "\\n")
        return text


    @order.handler
    async def refund(ctx: ObjectContext) -> str:
        first = await ctx.run("read order", note, "read order")
        await ctx.run("send refund", note, "send refund")
        await ctx.sleep(3600)
        return first


    app = App([order])
"""
SWAPPED = OLD.replace('"read order", note', '"send refund", note', 1).replace(
    'await ctx.run("send refund", note, "send refund")', 'await ctx.run("read order", note, "read order")'
)
FIXED = OLD.replace("return first", 'return f"{first}, and fixed"')


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> str:
    """Write an app, and return what the command line calls it."""
    Path(f"{name}.py").write_text(textwrap.dedent(text))
    return f"{name}:app"


def loaded(name: str, text: str) -> App:
    return load_app(written(name, text))


async def status(handle: Handle[Any], wanted: str) -> None:
    """Wait until an invocation stands so."""

    async def is_so() -> bool:
        return (await handle.describe()).status == wanted

    await eventually(is_so)


async def shell(*arguments: str) -> Done:
    """Run a command beside the worker of the test."""
    return await anyio.to_thread.run_sync(lambda: run(*arguments, cwd=Path.cwd()))


async def in_flight(store_url: str, namespace: str, name: str) -> str:
    """Have an invocation begin under the old code, and leave it to the next owner."""
    async with Runtime(loaded(name, OLD), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send("Order", "acme/o-1", "refund")
        await status(handle, "waiting")
        return handle.id


async def test_a_deploy_check_says_what_would_break_and_runs_nothing(store_url: str, namespace: str) -> None:
    """Its exit code is the verdict; the code that is there passes, and one that swaps two steps does not."""
    invocation_id = await in_flight(store_url, namespace, "shop_old1")
    where = ("--store", store_url, "--namespace", namespace)
    fine = await shell("deploy", "check", "shop_old1:app", *where, "--json")
    assert (fine.code, fine.json["may_deploy"], fine.json["journals"]) == (0, True, 1)

    reference = written("shop_swapped1", SWAPPED)
    broken = await shell("deploy", "check", reference, *where, "--json")
    assert (broken.code, broken.json["may_deploy"]) == (1, False)
    (one,) = broken.json["breaking"]
    assert one["recorded"] == "step 0 'read order'"
    assert one["attempted"] == "step 0 'send refund'"
    assert one["line"].endswith("shop_swapped1.py:15")
    assert (one["invocations"], one["keys"], one["named"]) == (1, 1, [invocation_id])

    told = await shell("deploy", "check", reference, *where)
    assert told.code == 1
    for text in ("1 of 1 open journals do not fit", "diverges: Order.refund", "'read order'", invocation_id):
        assert text in told.out
    assert Path("trail").read_text().splitlines() == ["read order", "send refund"]


async def test_a_journal_is_exported_and_replayed_without_a_store(store_url: str, namespace: str) -> None:
    """Through a file and through stdout; against the old code and against other code."""
    invocation_id = await in_flight(store_url, namespace, "shop_old2")
    where = ("--store", store_url, "--namespace", namespace)
    assert (await shell("export", invocation_id, "--out", "one.jsonl", *where)).code == 0
    printed = await shell("export", invocation_id, *where)
    assert printed.out == Path("one.jsonl").read_text()
    assert json.loads(printed.out.splitlines()[0])["form"] == 1

    fine = await shell("replay", "one.jsonl", "shop_old2:app", "--json")
    assert (fine.code, [each["fit"] for each in fine.json]) == (0, ["fits"])
    broken = await shell("replay", "one.jsonl", written("shop_swapped2", SWAPPED))
    assert (broken.code, "diverges" in broken.out) == (1, True)
    checked = await shell("deploy", "check", "shop_swapped2:app", "--file", "one.jsonl", "--json")
    assert (checked.code, checked.json["journals"]) == (1, 1)
    assert Path("trail").read_text().splitlines() == ["read order", "send refund"]


async def test_a_deploy_check_says_that_a_worker_would_be_refused(store_url: str, namespace: str) -> None:
    """The number of partitions is fixed at first use, so that code with another one does not start."""
    await in_flight(store_url, namespace, "shop_old4")
    reference = written("shop_other4", OLD.replace("partitions=1", "partitions=2"))
    where = ("--store", store_url, "--namespace", namespace)
    broken = await shell("deploy", "check", reference, *where, "--json")
    assert (broken.code, broken.json["may_deploy"], broken.json["breaking"]) == (1, False, [])
    assert broken.json["partitions"] == [{"type": "Order", "namespace": 1, "code": 2}]
    told = await shell("deploy", "check", reference, *where)
    assert "partitions: Order has 1 here and 2 in this code" in told.out


async def test_what_can_not_be_meant_is_wrong_use(store_url: str, namespace: str) -> None:
    """A file that is none, a type that is not hosted, an invocation that has no journal."""
    written("shop_old3", OLD)
    Path("none.jsonl").write_text("hello\n")
    Path("empty.jsonl").write_text("")
    assert (await shell("replay", "none.jsonl", "shop_old3:app")).code == 2
    assert (await shell("replay", "empty.jsonl", "shop_old3:app")).code == 2
    assert (await shell("replay", "missing.jsonl", "shop_old3:app")).code == 2
    where = ("--store", store_url, "--namespace", namespace)
    assert (await shell("deploy", "check", "shop_old3:app", "--type", "Other", *where)).code == 2
    assert (await shell("deploy", "check", "shop_old3:app", "--file", "empty.jsonl")).code == 2
    misspelt = await shell("deploy", "check", "shop_old3:app", *where)
    assert (misspelt.code, "no worker has run in it" in misspelt.err) == (1, True)
    unknown = await shell("export", "Order.0." + "0" * 32, *where)
    assert (unknown.code, "no journal of its own" in unknown.err) == (1, True)


async def test_swapped_steps_park_what_is_in_flight_at_once_and_fixed_code_resumes_it(
    store_url: str, namespace: str
) -> None:
    """With what is recorded, what is attempted and the line of the code; there is no retry loop."""
    invocation_id = await in_flight(store_url, namespace, "shop_old4")
    async with Runtime(loaded("shop_swapped4", SWAPPED), store=store_url, namespace=namespace) as runtime:
        await runtime.client.send("Order", "acme/o-1", "refund")
        handle = runtime.client.attach(invocation_id, str)
        await shift_clock(runtime, timedelta(hours=2))
        await status(handle, "paused")
        told = await handle.describe()
        assert told.pause is not None
        assert told.pause.reason == "diverged"
        assert told.pause.detail.startswith(
            "recorded step 0 'read order', the code now asks for step 0 'send refund' at"
        )
        assert told.pause.detail.endswith("shop_swapped4.py:15")
        assert told.failed_attempts == 0
        records = told.records
        await shift_clock(runtime, timedelta(hours=2))
        assert (await handle.describe()).records == records
    async with Runtime(loaded("shop_fixed4", FIXED), store=store_url, namespace=namespace) as runtime:
        where = ("--store", store_url, "--namespace", namespace, "--by", "ada", "--reason", "fixed")
        assert (await shell("resume", invocation_id, *where)).code == 0
        assert await runtime.client.attach(invocation_id, str).result(timeout=10) == "read order, and fixed"
    assert Path("trail").read_text().splitlines()[:2] == ["read order", "send refund"]


async def test_what_has_diverged_is_restarted_from_the_shell(store_url: str, namespace: str) -> None:
    """Where the swapped order is what is wanted: everything is done anew."""
    invocation_id = await in_flight(store_url, namespace, "shop_old5")
    swapped = SWAPPED.replace("await ctx.sleep(3600)", "await ctx.sleep(0.01)")
    async with Runtime(loaded("shop_swapped5", swapped), store=store_url, namespace=namespace) as runtime:
        await shift_clock(runtime, timedelta(hours=2))
        handle = runtime.client.attach(invocation_id, str)
        await status(handle, "paused")
        where = ("--store", store_url, "--namespace", namespace, "--by", "ada", "--reason", "swapped on purpose")
        refused = await shell("restart", invocation_id, "--keep", "9", *where)
        assert (refused.code, "can't be kept" in refused.err) == (1, True)
        assert (await shell("restart", invocation_id, "--keep", "0", *where)).code == 0
        assert await handle.result(timeout=10) == "read order"
    assert Path("trail").read_text().splitlines() == ["read order", "send refund", "read order", "read order"]


PAYING = """
    from keylane import App, ObjectContext, Receiver, VirtualObject


    async def find(operation_id: str, params: int) -> int | None:
        return None


    payments = Receiver("payments", owner="oncall", lookup=find)


    @payments.effect("refund", on_unknown="ask")
    async def send_refund(operation_id: str, params: int) -> int:
        raise OSError("the line is dead")


    order = VirtualObject("Order", owner="refunds-oncall", partitions=1, effects=[send_refund])


    @order.handler
    async def refund(ctx: ObjectContext) -> str:
        return type(await ctx.effect_outcome(send_refund, operation_id="r-1", params=7)).__name__


    app = App([order])
"""


async def test_a_deploy_check_names_effects_that_the_code_could_not_settle(store_url: str, namespace: str) -> None:
    """The invocation that asked has ended, so that no journal says so."""
    app = loaded("shop_paying1", PAYING)
    async with Runtime(app, store=store_url, namespace=namespace) as runtime:
        assert await runtime.client.call("Order", "acme/o-1", "refund") == "Unknown"
    where = ("--store", store_url, "--namespace", namespace)
    fine = await shell("deploy", "check", "shop_paying1:app", *where, "--json")
    assert (fine.code, fine.json["may_deploy"], fine.json["effects"]) == (0, True, [])

    reference = written("shop_paying2", PAYING.replace("params: int)", "params: list[int])"))
    broken = await shell("deploy", "check", reference, *where, "--json")
    assert (broken.code, broken.json["may_deploy"], broken.json["breaking"]) == (1, False, [])
    assert [(each["key"], each["operation"]) for each in broken.json["effects"]] == [("acme/o-1", "r-1")]
    told = await shell("deploy", "check", reference, *where)
    assert "payments.refund r-1 of Order acme/o-1 is un" in told.out
    assert "its parameters can't be read by this code" in told.out
