"""The service over HTTP, with the runtime in its lifespan and a payment service that is a process of its own."""

from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx
import pytest

from examples.refund_order.approvers import Approvers
from examples.refund_order.models import Order
from examples.refund_order.orders import OrderStore
from examples.refund_order.payments.client import PaymentClient
from examples.refund_order.payments.wire import Behaviour
from examples.refund_order.policy import PolicyLog
from examples.refund_order.settings import RefundSettings
from examples.refund_order.web import application

pytestmark = pytest.mark.anyio
ADA, MALLORY = {"X-User": "ada@acme"}, {"X-User": "mallory@globex"}
REFUNDS = "/orders/o-1/refunds"
LIMIT_S = 20
NOES: tuple[tuple[str, str, object, tuple[int, str]], ...] = (
    ("POST", REFUNDS, {"amount": "1000.01"}, (409, "exceeds-order")),
    ("POST", REFUNDS, {"amount": "1.00", "reason": "chargeback"}, (403, "policy-refused")),
    ("POST", "/orders/o-9/refunds", {"amount": "1.00"}, (404, "order-unknown")),
    ("POST", REFUNDS, {"amount": 1.5}, (422, "invalid-body")),
    ("POST", REFUNDS, {"amount": "0.001"}, (422, "invalid-body")),
    ("PATCH", f"{REFUNDS}/1", {"amount": "1.00"}, (409, "not-proposed")),
    ("POST", f"{REFUNDS}/1/approve", {"proposal": "Order/acme/o-1#refund.1"}, (404, "refund-unknown")),
    ("GET", f"{REFUNDS}/1", None, (404, "refund-unknown")),
    ("GET", "/invocations/nonsense", None, (400, "invalid-key")),
    ("DELETE", REFUNDS, None, (405, "http")),
    ("GET", "/nowhere", None, (404, "http")),
)


class Process(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture
def settings(tmp_path: Path, payment_process: Process) -> RefundSettings:
    """An order over 1,000.00 of acme, which ada may approve refunds of."""
    OrderStore(tmp_path / "orders.sqlite").add([Order(key="acme/o-1", customer="c-7", amount=Decimal("1000.00"))])
    Approvers(tmp_path / "approvers.sqlite").set({"ada@acme": Decimal(1000), "mallory@globex": Decimal(1000)})
    PolicyLog(tmp_path / "policy.sqlite").create()
    return RefundSettings(
        files=tmp_path,
        cards_url=payment_process.url,
        policy_latency_ms=0,
        store=f"embedded:{tmp_path / 'store'}",
    )


@pytest.fixture
async def http(settings: RefundSettings) -> AsyncGenerator[httpx.AsyncClient]:
    asgi = application(settings)
    async with asgi.router.lifespan_context(asgi):
        transport = httpx.ASGITransport(asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://refunds", headers=ADA) as http:
            yield http


async def begun(http: httpx.AsyncClient, amount: str) -> dict[str, Any]:
    answer = await http.post(REFUNDS, json={"amount": amount}, headers={"Idempotency-Key": f"ticket-{amount}"})
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"{REFUNDS}/{answer.json()['number']}"
    return answer.json()


async def ended(http: httpx.AsyncClient, refund: dict[str, Any]) -> dict[str, Any]:
    """Look at a refund until it has ended, as a browser would."""
    with anyio.fail_after(LIMIT_S):
        while True:
            answer = await http.get(f"{REFUNDS}/{refund['number']}")
            if answer.status_code != 202:
                return answer.json()
            await anyio.sleep(0.01)


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return status and code of an answer that is a problem."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text
    told = answer.json()
    assert told["status"] == answer.status_code
    assert told["detail"]
    return answer.status_code, told["code"]


async def test_a_refund_is_begun_and_looked_at(http: httpx.AsyncClient) -> None:
    """202 with a place, at which it is found with its receipt in the end; the order adds it up."""
    done = await ended(http, await begun(http, "40.00"))

    assert (done["state"], done["receipt"]["amount"]) == ("refunded", "40.00")
    assert (await http.get("/orders/o-1")).json()["refunded"] == "40.00"
    assert [each["number"] for each in (await http.get(REFUNDS)).json()] == [1]


async def test_asking_again_under_the_same_key_is_one_refund(http: httpx.AsyncClient) -> None:
    """The second answer names the same refund; the same key for something else is a conflict."""
    first, again = await begun(http, "40.00"), await begun(http, "40.00")
    other = await http.post(REFUNDS, json={"amount": "41.00"}, headers={"Idempotency-Key": "ticket-40.00"})

    assert again["number"] == first["number"]
    assert problem(other) == (409, "idempotency-conflict")
    assert other.json()["fields"] == ["request.amount"]


async def test_an_order_of_any_letters_is_refunded_and_found(http: httpx.AsyncClient, settings: RefundSettings) -> None:
    """The place that is given leads to the refund: an error in its stead would be a refund that nobody knows of."""
    OrderStore(settings.files / "orders.sqlite").add([Order(key="acme/ö 😀", customer="c-7", amount=Decimal("10.00"))])
    answer = await http.post("/orders/ö 😀/refunds", json={"amount": "1.00"})
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == "/orders/%C3%B6%20%F0%9F%98%80/refunds/1"
    assert (await http.get(answer.headers["Location"])).json()["number"] == 1


async def test_an_approval_counts_for_what_was_seen(http: httpx.AsyncClient, payment_process: Process) -> None:
    """An old version is answered with 409 and the newer one; the right one is paid."""
    refund = await begun(http, "400.00")
    path = f"{REFUNDS}/{refund['number']}"
    amended = (await http.patch(path, json={"amount": "300.00"})).json()

    old = await http.post(f"{path}/approve", json={"proposal": refund["proposal"]["id"]})
    new = await http.post(f"{path}/approve", json={"proposal": amended["proposal"]["id"], "reason": "agreed"})
    done = await ended(http, refund)
    late = await http.post(f"{path}/decline", json={"proposal": amended["proposal"]["id"], "reason": "no"})

    assert problem(old) == (409, "superseded")
    assert old.json()["version"] == 2
    assert (new.status_code, new.json()["standing"]) == (200, "approved")
    assert (done["state"], done["receipt"]["amount"]) == ("refunded", "300.00")
    assert problem(late) == (409, "already-decided")
    async with PaymentClient(payment_process.url) as payments:
        assert [entry.terms.amount for entry in await payments.ledger()] == [Decimal("300.00")]


async def test_a_declined_refund_says_why(http: httpx.AsyncClient) -> None:
    """It ends as declined, with the reason."""
    refund = await begun(http, "400.00")

    await http.post(f"{REFUNDS}/1/decline", json={"proposal": refund["proposal"]["id"], "reason": "twice in a week"})

    done = await ended(http, refund)
    assert done["state"] == "declined"
    assert "twice in a week" in done["note"]


async def test_a_waiting_refund_is_cancelled(http: httpx.AsyncClient) -> None:
    """The answer says what that has come to, and the refund is withdrawn."""
    refund = await begun(http, "400.00")

    with anyio.fail_after(LIMIT_S):
        while (answer := await http.post(f"{REFUNDS}/1/cancel", json={"reason": "kept"})).status_code == 409:
            assert problem(answer) == (409, "not-to-be-cancelled")  # it is still on its way into its lane

    assert (answer.json()["outcome"], answer.json()["unknown"]) == ("cancelled", [])
    assert (await ended(http, refund))["state"] == "withdrawn"


async def test_nobody_reaches_into_another_tenant(http: httpx.AsyncClient) -> None:
    """The tenant is the caller's: others see no such order, and cannot decide on its proposals."""
    refund = await begun(http, "400.00")

    seen = await http.get(REFUNDS, headers=MALLORY)
    decided = await http.post(f"{REFUNDS}/1/approve", json={"proposal": refund["proposal"]["id"]}, headers=MALLORY)
    looked = await http.get(f"/invocations/{refund['invocation']}", headers=MALLORY)
    nobody = await http.get(REFUNDS, headers={"X-User": ""})

    assert seen.json() == []
    assert problem(decided)[0] == 404
    assert problem(looked)[0] == 404
    assert problem(nobody) == (401, "unauthenticated")


async def test_each_no_is_a_problem_with_a_code(http: httpx.AsyncClient) -> None:
    """Status and code say what is wrong, in one form for everything."""
    answers = {
        (method, path, str(body)): problem(await http.request(method, path, json=body))
        for method, path, body, _ in NOES
    }

    assert answers == {(method, path, str(body)): expected for method, path, body, expected in NOES}


async def test_a_slow_request_gets_an_id_instead_of_an_answer(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can't be answered in time is told where to look, and finds the refund there."""
    monkeypatch.setattr("examples.refund_order.web.refunds.ANSWER_SECONDS", 0)

    answer = await http.post(REFUNDS, json={"amount": "40.00"})

    assert answer.status_code == 202
    monkeypatch.undo()
    with anyio.fail_after(LIMIT_S):
        while (found := await http.get(answer.headers["Location"])).json().get("number") is None:
            await anyio.sleep(0.01)
    assert (await ended(http, found.json()))["state"] == "refunded"


@pytest.mark.parametrize("is_told", [True, False], ids=["by its settings", "by the environment"])
async def test_a_process_that_hosts_nothing_asks_those_that_do(
    http: httpx.AsyncClient, settings: RefundSettings, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    """The same routes over a client alone, on the store that it is told of: what one process begins, the other sees."""
    await begun(http, "40.00")
    store = settings.store
    assert store is not None
    monkeypatch.setenv("KEYLANE_REDIS_URL", store)
    asgi = application(settings.model_copy(update={"hosts_orders": False, "store": store if is_told else None}))

    async with asgi.router.lifespan_context(asgi):
        transport = httpx.ASGITransport(asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://other", headers=ADA) as other:
            done = await ended(other, {"number": 1})

    assert done["state"] == "refunded"


async def test_a_slow_receiver_keeps_nobody_waiting(http: httpx.AsyncClient, payment_process: Process) -> None:
    """While the money is on its way the refund is open, and the order says so."""
    async with PaymentClient(payment_process.url) as payments:
        await payments.set_behaviour(Behaviour(hold="before_answer"))
        refund = await begun(http, "40.00")
        with anyio.fail_after(LIMIT_S):
            while not (await payments.statistics()).held:
                await anyio.sleep(0.01)
        seen = (await http.get("/orders/o-1")).json()
        await payments.set_behaviour(Behaviour())

    assert (seen["refunded"], seen["pending"], seen["open"][0]["state"]) == ("0", "40.00", "sending")
    assert (await ended(http, refund))["state"] == "refunded"
