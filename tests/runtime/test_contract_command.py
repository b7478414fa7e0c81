"""`keylane effects plan` and `keylane contract`, as their users run them."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Awaitable
from pathlib import Path

import anyio
import pytest

from keylane import Runtime, StoreUnavailable
from keylane.objects.app import load_app
from keylane.runtime.cli.contracts import contract, effects_plan
from keylane.runtime.cli.shell import ExitCode, Shell, WrongUse
from tests.runtime.shell_command import Done, run

SHOP = """
    from datetime import timedelta

    from keylane import App, Deduplicates, ObjectContext, Receiver, VirtualObject


    async def find(operation_id: str, cents: int) -> str | None: ...


    payments = Receiver(
        "payments", owner="payments-oncall", deduplicates=Deduplicates(timedelta(hours=24)), lookup=find
    )


    @payments.effect("refund")
    async def send_refund(operation_id: str, cents: int) -> str: ...


    printer = Receiver("printer", owner="office", runbook="look into the tray")


    @printer.effect("letter")
    async def print_letter(operation_id: str, text: str) -> None: ...


    order = VirtualObject("Order", owner="refunds-oncall", effects=[send_refund, print_letter], partitions=2)


    @order.handler(checkpoint="exit")
    async def refund(ctx: ObjectContext) -> None: ...


    app = App([order])
    bare = VirtualObject("Note", owner="office", partitions=2)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str) -> str:
    """Give the name of a module with an app, in a folder of its own."""
    name = f"shop_{namespace.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SHOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("KEYLANE_REDIS_URL", raising=False)
    return name


async def shell(*arguments: str) -> Done:
    """Run a command beside the worker of the test."""
    return await anyio.to_thread.run_sync(lambda: run(*arguments, cwd=Path.cwd()))


async def printed(work: Awaitable[ExitCode], capsys: pytest.CaptureFixture[str]) -> str:
    """Do the work of a command that succeeds, and return what it prints."""
    assert await work is ExitCode.DONE
    return capsys.readouterr().out


PEOPLE = Shell(None, "keylane", is_json=False, is_debug=False)
PROGRAMS = Shell(None, "keylane", is_json=True, is_debug=False)


@pytest.mark.anyio
async def test_plans_are_printed_without_a_store(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is done, when, by whom, and what a late call would do."""
    text = await printed(effects_plan(PEOPLE, f"{shop}:app", None), capsys)
    nothing = await printed(effects_plan(PEOPLE, f"{shop}:bare", None), capsys)

    assert "payments.refund, settled by payments-oncall" in text
    assert "30 s … 23 h 58 min  the same operation id is sent again" in text
    assert "people may: succeeded, hand-over; not-done from 1 min 40 s after the newest intent on" in text
    assert "late calls: A process that is stopped" in text
    assert "list them in VirtualObject(effects=[…])" in nothing


@pytest.mark.anyio
async def test_plans_have_a_form_for_programs(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the contract in ms and the times in seconds; of one receiver where that is asked for."""
    (plan,) = json.loads(await printed(effects_plan(PROGRAMS, f"{shop}:app", "printer"), capsys))

    assert (plan["receiver"], plan["effect"], plan["owner"]) == ("printer", "letter", "office")
    assert [(line["kind"], line["from_seconds"]) for line in plan["lines"]] == [("unknown", 30.0), ("ask people", 30.0)]
    assert plan["contract"]["in_flight_ms"] == 90_000
    with pytest.raises(WrongUse, match="no effect at 'nobody'; its receivers are payments, printer"):
        await effects_plan(PEOPLE, f"{shop}:app", "nobody")


def test_a_plan_is_a_command(shop: str) -> None:
    """With an exit code for what is not there."""
    done = run("effects", "plan", f"{shop}:app", "--receiver", "nobody", cwd=Path.cwd())

    assert (done.code, "its receivers are payments, printer" in done.err) == (2, True)


@pytest.mark.anyio
async def test_the_six_answers_come_from_the_declarations_alone(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no store runs, it is said that none was looked at."""
    text = await printed(contract(PEOPLE, f"{shop}:app"), capsys)

    assert "no store was looked at" in text
    assert [line[:2] for line in text.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5.", "6."]
    for words in (
        "Order.refund, checkpoint 'exit': results of steps are written with what has to be durable next",
        "a worker that is gone is replaced after 3 s",
        "payments.refund: sent again under the same id for up to 1 d",
        "printer.letter: never sent a second time by itself, and the receiver can't be asked: people settle it",
        "operation ids at payments: it knows one for 1 d",
        "late calls at printer: not recognised",
        "payments: payments-oncall within 1 d; it has no runbook",
        "stuck work and approvals of Order: refunds-oncall; anybody may approve",
    ):
        assert words in text, words


@pytest.mark.anyio
async def test_the_store_is_asked_too(shop: str, store_url: str, namespace: str) -> None:
    """What it keeps, what is registered there, and what waits for people."""
    where = ("--store", store_url, "--namespace", namespace, "--json")
    async with Runtime(load_app(f"{shop}:app"), store=store_url, namespace=namespace):
        told = await shell("contract", f"{shop}:app", *where)
    other = await shell("contract", f"{shop}:bare", *where)

    answers = told.json["answers"]
    assert (told.code, told.json["doubts"], told.json["app"]) == (0, [], ["Order"])
    assert "AOF fsync always" in told.json["store"]
    assert answers["loss"]["answer"][1].startswith("what was answered was synced to disk before")
    assert any("payments-oncall within 1 d, nothing waits" in each for each in answers["unknown"]["answer"])
    assert list(answers) == ["loss", "repeating", "validity", "fencing", "change", "unknown"]
    assert any(
        "has object type Order, which this app does not host" in each
        for each in other.json["answers"]["change"]["answer"]
    )


@pytest.mark.anyio
async def test_what_the_store_can_not_keep_is_said_by_the_exit_code(shop: str, store_url: str, namespace: str) -> None:
    """A receiver that offers nothing, on a store of which nothing was promised."""
    bare = load_app(f"{shop}:bare")
    async with Runtime(bare, store=store_url, namespace=namespace, durability="server"):
        pass
    told = await shell("contract", f"{shop}:app", "--store", store_url, "--namespace", namespace)

    assert told.code == 1
    assert "not kept: the store may lose what it has confirmed, and printer can't be asked" in told.out
    assert "is as safe as the server's own settings make it" in told.out


@pytest.mark.anyio
async def test_a_store_that_is_named_has_to_be_there(shop: str, tmp_path: Path) -> None:
    """Only where none is named does the sheet do without."""
    named = Shell(f"unix://{tmp_path}/nothing.sock", "keylane", is_json=False, is_debug=False)

    with pytest.raises(StoreUnavailable):
        await contract(named, f"{shop}:app")
