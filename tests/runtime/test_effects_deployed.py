"""New code and effects that are not settled: the deploy check says which ones it could neither send nor look up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from keylane import App, ObjectContext, Receiver, Runtime, Unknown, VirtualObject
from keylane.journal.open_journals import open_journals
from keylane.runtime.deploy_check import Verdict, as_facts
from keylane.runtime.effects_check import UnfitEffect, unfit_effects
from tests.runtime.fake_bank import Bank, Receipt, Terms

pytestmark = pytest.mark.anyio

bank = Bank()
SOON = 20.0


class OtherTerms(Terms):
    """What a later version of the code takes."""

    currency: str


class MoreTerms(Terms):
    """What a later version takes that reads the earlier ones too."""

    currency: str = "EUR"


def desk(kind: type[Terms], *, is_declared: bool = True) -> VirtualObject:
    """Return the object type as a version of the code has it."""
    receiver = Receiver("payments", owner="oncall", lookup=bank.find)

    async def send(operation_id: str, terms: Any) -> Receipt:
        return await bank.pay(operation_id, terms)

    send.__annotations__["terms"] = kind
    refund = receiver.effect("refund", timeout=timedelta(milliseconds=300), on_unknown="ask")(send)
    made = VirtualObject("Desk", owner="tests", effects=[refund] if is_declared else [], partitions=1)

    @made.handler
    async def pay(ctx: ObjectContext, operation: str) -> bool:  # pyright: ignore[reportUnusedFunction]
        outcome = await ctx.effect_outcome(refund, operation_id=operation, params=Terms(amount=7))
        return isinstance(outcome, Unknown)

    return made


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (desk(Terms), None),
        (desk(MoreTerms), None),
        (desk(OtherTerms), "its parameters can't be read by this code: "),
        (desk(Terms, is_declared=False), "this code has no such effect"),
    ],
    ids=["the same", "a field more that may be missing", "a field more", "none"],
)
async def test_an_effect_that_new_code_can_not_settle_is_told_of(
    store_url: str, namespace: str, code: VirtualObject, why: str | None
) -> None:
    """Also where no invocation waits for it any more, whose journal would say so; what is settled needs no code."""
    bank.empty()
    async with Runtime([desk(Terms)], store=store_url, namespace=namespace) as runtime:
        assert not await runtime.client.call("Desk", "acme/d", "pay", "done")
        bank.whims.append("lose the answer")
        assert await runtime.client.call("Desk", "acme/d", "pay", "open")
        with anyio.fail_after(SOON):
            while not await runtime.client.reconcile_list():
                await anyio.lowlevel.checkpoint()
        store = runtime.client.store
        assert not [journal async for journal in open_journals(store, {"Desk"})]
        found = await unfit_effects(App([code]), store, {"Desk": 1})

    if why is None:
        assert found == []
        return
    (unfit,) = found
    assert (unfit.key, unfit.operation, unfit.effect, unfit.state) == (
        "acme/d", "open", "payments.refund", "unresolved",
    )  # fmt: skip
    assert unfit.why.startswith(why)


def test_a_deploy_is_refused_for_an_effect_alone() -> None:
    """No journal breaks, and the verdict is no all the same."""
    verdict = Verdict()
    assert verdict.may_deploy
    verdict.effects.append(UnfitEffect("Desk", "acme/d", "open", "payments.refund", "unknown", "no such effect"))
    assert not verdict.may_deploy
    (told,) = as_facts(verdict)["effects"]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    assert told["operation"] == "open"
