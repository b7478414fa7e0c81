"""`keylane reconcile …` and `keylane alerts`, as their users run them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

from keylane import App, Receiver, Runtime, VirtualObject
from keylane.objects.context import ObjectContext
from keylane.testing import shift_clock
from tests.runtime.fake_bank import Bank, Receipt, Terms
from tests.runtime.shell_command import Done, run

pytestmark = pytest.mark.anyio

CASE = ("Order", "acme/o-1", "cheque-1")
WHY = ("--by", "ada", "--reason", "ticket 77")

bank = Bank()
blind = Receiver(
    "blind", owner="blind-oncall", runbook="Ask Ben.", in_flight=timedelta(seconds=20),
    reconcile_within=timedelta(hours=2),
)  # fmt: skip


@blind.effect("cheque", timeout=timedelta(milliseconds=300))
async def send_cheque(operation_id: str, terms: Terms) -> Receipt:
    return await bank.pay(operation_id, terms)


order = VirtualObject("Order", owner="tests", effects=[send_cheque], partitions=2)


@order.handler
async def cheque(ctx: ObjectContext, amount: int) -> str:
    return (await ctx.effect(send_cheque, operation_id="cheque-1", params=Terms(amount=amount))).id


async def test_an_operator_settles_an_effect_from_the_shell(store_url: str, namespace: str) -> None:
    """List, show, what is forbidden, hand-over, alert and receipt; exit codes say what became of each."""
    bank.empty()
    bank.whims.append("lose the answer")

    async def keylane(*words: str) -> Done:
        return await anyio.to_thread.run_sync(
            partial(run, *words, "--store", store_url, "--namespace", namespace)
        )  # fmt: skip

    async with Runtime(App([order]), store=store_url, namespace=namespace) as runtime:
        handle = await runtime.client.send(cheque, "acme/o-1", 7)
        with anyio.fail_after(20):
            while not await runtime.client.reconcile_list():
                await anyio.lowlevel.checkpoint()
        listed = await keylane("reconcile", "list", "--json")
        assert listed.code == 0, listed.err
        (case,) = listed.json
        assert (case["owner"], case["params"], case["allowed"]) == (
            "blind-oncall", {"amount": 7, "note": ""}, ["succeeded", "hand-over"],
        )  # fmt: skip
        shown = await keylane("reconcile", "show", *CASE)
        for text in ("blind-oncall", "Ask Ben.", "connection lost", "succeeded, hand-over", handle.id, '"amount": 7'):
            assert text in shown.out
        forbidden = await keylane("reconcile", "resend", *CASE, *WHY)
        assert (forbidden.code, "allowed: succeeded, hand-over" in forbidden.out) == (1, True)
        assert (await keylane("reconcile", "hand-over", *CASE, "--to", "bea", *WHY)).out == "done: it is unresolved\n"
        await shift_clock(runtime, timedelta(hours=3))
        alert: Any = None
        with anyio.fail_after(20):
            while alert is None:
                alert = next(iter(await runtime.client.alerts()), None)
        told = await keylane("alerts", "--json")
        assert (told.json["kind"], told.json["owner"]) == ("overdue", "bea")
        done = await keylane("reconcile", "succeeded", *CASE, '{"id": "paper", "amount": 7}', *WHY, "--json")
        assert (done.code, done.json["verdict"], done.json["state"]) == (0, "done", "succeeded")
        assert await handle.result(timeout=20) == "paper"


@pytest.mark.parametrize("words", [("reconcile", "list"), ("alerts",), ("approvals", "list")])
def test_a_namespace_that_nobody_works_in_is_said_to_be_one(
    store_url: str, namespace: str, words: tuple[str, ...]
) -> None:
    """Else a misspelt one would look as if nothing had to be done."""
    done = run(*words, "--json", "--store", store_url, "--namespace", namespace)

    assert (done.code, done.out) == (1, "")
    assert f"namespace '{namespace}' has no object types" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("reconcile", "not-done", *CASE, "--by", " ", "--reason", "why"), "go into the record"),
        (("reconcile", "lookup", *CASE, "--by", "ada", "--reason", ""), "go into the record"),
        (("approvals", "approve", "Order/acme/o-1#refund.1", "--by", ""), "--by goes into the record"),
        (("approvals", "decline", "Order/acme/o-1#refund.1", "--by", "ada", "--reason", ""), "go into the record"),
        (("approvals", "delegate", "Order/acme/o-1#refund.1", "--by", "", "--to", "bea"), "--by goes into the record"),
        (("reconcile", "hand-over", *CASE, *WHY, "--to", "bea", "--within-hours", "1e12"), "--within-hours"),
        (("reconcile", "resend", *CASE, *WHY, "--timeout", "inf"), "--timeout"),
    ],
)
def test_what_can_not_be_meant_is_wrong_use(store_url: str, namespace: str, words: tuple[str, ...], told: str) -> None:
    """Nobody to answer for it, no reason, and times beyond all calendars end with 2, and never as a bug of ours."""
    done = run(*words, "--store", store_url, "--namespace", namespace)

    assert done.code == 2, done.err
    assert told in done.err
