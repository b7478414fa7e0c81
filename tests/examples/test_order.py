"""The order's own logic, run as the plain function that it is, over a context that only remembers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from examples.refund_order import services
from examples.refund_order.models import Order, Receipt, RefundRequest
from examples.refund_order.order import operation_id_of, refund, send_refund, status
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import OutcomeUnknown, PaymentClient
from examples.refund_order.payments.wire import Behaviour, RefundTerms
from examples.refund_order.policy import PolicyCheck, PolicyLog
from keylane import Key, ObjectContext, RetryableError, SharedContext, TerminalError

pytestmark = pytest.mark.anyio
KEY = Key("acme", "o-1")


class RememberingContext:
    """Steps run at once, state lives in a dictionary."""

    def __init__(self) -> None:
        self.key = KEY
        self.state: dict[str, Any] = {}
        self.steps: list[str] = []

    async def get(self, name: str, _: object, default: object = None) -> object:
        return self.state.get(name, default)

    def set(self, name: str, value: object) -> None:
        self.state[name] = value

    async def run(self, name: str, action: Callable[..., Awaitable[object]], *arguments: object) -> object:
        self.steps.append(name)
        return await action(*arguments)


@pytest.fixture
def log(tmp_path: Path) -> PolicyLog:
    log = PolicyLog(tmp_path / "policy.sqlite")
    log.create()
    return log


@pytest.fixture(autouse=True)
async def around(tmp_path: Path, log: PolicyLog, payments: PaymentClient) -> AsyncGenerator[None]:
    """An order over 100.00 and the systems around it."""
    orders = OrderStore(tmp_path / "orders.sqlite")
    orders.add([Order(key=str(KEY), customer="customer-7", amount=Decimal("100.00"))])
    policy = PolicyCheck(log, latency_ms=0, decided_by_people_above=Decimal("80.00"))
    with services.use(services.Services(orders, policy, payments)):
        yield


@pytest.fixture
def ctx() -> RememberingContext:
    return RememberingContext()


async def ask(ctx: RememberingContext, amount: str) -> Receipt:
    result = await refund.function(cast("ObjectContext", ctx), RefundRequest(amount=Decimal(amount)))
    return result.receipt


async def test_partial_refunds_have_ids_of_their_own(ctx: RememberingContext, payments: PaymentClient) -> None:
    """Two refunds of the same amount are two operations, and the status adds them up."""
    receipts = [await ask(ctx, "40.00"), await ask(ctx, "40.00")]

    found = await status.function(cast("SharedContext", ctx))
    assert [receipt.operation_id for receipt in receipts] == ["acme/o-1/refund-1", "acme/o-1/refund-2"]
    assert (found.refunded, list(found.receipts)) == (Decimal("80.00"), receipts)
    assert len(await payments.ledger()) == 2


async def test_a_refund_above_what_is_left_is_refused_before_anybody_is_asked(
    ctx: RememberingContext, log: PolicyLog, payments: PaymentClient
) -> None:
    """The policy check costs money: it is not asked about a refund that can't be."""
    await ask(ctx, "70.00")

    with pytest.raises(TerminalError, match=r"40\.00 is more than the 30\.00 that is left") as caught:
        await ask(ctx, "40.00")

    assert (caught.value.code, caught.value.details) == ("exceeds-order", {"left": Decimal("30.00")})
    assert len(log.questions()) == 1
    assert len(await payments.ledger()) == 1


async def test_a_refund_against_the_policy_is_not_sent(ctx: RememberingContext, payments: PaymentClient) -> None:
    """A "no" of the policy check ends the refund, with the reason."""
    with pytest.raises(TerminalError, match="decided by people") as caught:
        await ask(ctx, "90.00")

    assert caught.value.code == "policy-refused"
    assert ctx.steps == ["read order", "policy check"]
    assert await payments.ledger() == ()


async def test_an_unknown_order_is_refused(ctx: RememberingContext) -> None:
    """What the order store does not know is not refunded."""
    ctx.key = Key("acme", "o-2")

    with pytest.raises(TerminalError) as caught:
        await ask(ctx, "10.00")

    assert caught.value.code == "order-unknown"


async def test_a_rejected_refund_leaves_its_id_used(ctx: RememberingContext, payments: PaymentClient) -> None:
    """After a rejection the next refund has another id, since the service keeps the rejection under the old one."""
    await payments.set_behaviour(Behaviour(reject_above=Decimal("50.00")))
    with pytest.raises(TerminalError) as caught:
        await ask(ctx, "60.00")

    receipt = await ask(ctx, "40.00")

    assert (caught.value.code, caught.value.details) == ("payment-rejected", {"reason": "amount_above_limit"})
    assert receipt.operation_id == "acme/o-1/refund-2"


async def test_a_refund_that_runs_again_from_the_same_state_moves_no_money(
    ctx: RememberingContext, payments: PaymentClient
) -> None:
    """A worker that repeats a refund whose end was not recorded sends the same id, and gets the same receipt."""
    before = dict(ctx.state)
    first = await ask(ctx, "40.00")

    ctx.state = before
    again = await ask(ctx, "40.00")

    assert again == first
    assert len(await payments.ledger()) == 1


async def test_an_operation_id_is_ascii_and_tells_keys_apart() -> None:
    """It goes into an HTTP header whatever the key is, and no two keys share one."""
    keys = [Key("acme", "ö 1"), Key("acme", "%C3%B6 1"), Key("acme", "a/b"), Key("a", "cme/a/b")]

    ids = [operation_id_of(key, 1) for key in keys]

    assert all(name.isascii() and " " not in name for name in ids)
    assert len(set(ids)) == len(keys)


async def test_each_kind_of_no_answer_becomes_the_right_error(payments: PaymentClient, tmp_path: Path) -> None:
    """Busy is tried again when the service says, an unknown outcome as it is, a refused request never."""
    answers = iter([httpx.Response(503, headers={"Retry-After": "7"}), httpx.Response(500)])
    terms = RefundTerms(order=str(KEY), recipient="customer-7", amount=Decimal(1))
    async with PaymentClient("http://payments", transport=httpx.MockTransport(lambda _: next(answers))) as failing:
        inner = services.current()
        with services.use(services.Services(inner.orders, inner.policy, failing)):
            with pytest.raises(RetryableError) as busy:
                await send_refund("refund-1", terms)
            with pytest.raises(OutcomeUnknown):
                await send_refund("refund-1", terms)
    await send_refund("refund-1", terms)

    with pytest.raises(TerminalError) as refused:
        await send_refund("refund-1", terms.model_copy(update={"amount": Decimal(2)}))

    assert busy.value.retry_after == timedelta(seconds=7).total_seconds()
    assert refused.value.code == "payment-request-refused"
