import csv
import signal
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Protocol

import anyio
import httpx
import pytest

from examples.refund_order.payments.client import (
    NotSent,
    OutcomeUnknown,
    PaymentClient,
    PaymentError,
    PaymentsBusy,
    RequestRefused,
)
from examples.refund_order.payments.ledger import Ledger
from examples.refund_order.payments.service import PaymentService
from examples.refund_order.payments.switches import Switches
from examples.refund_order.payments.wire import Behaviour, Receipt, RefundTerms, Rejection, Statistics

pytestmark = pytest.mark.anyio
Terms = Callable[..., RefundTerms]


class Clock(Protocol):
    def advance(self, by: timedelta) -> None: ...


class Process(Protocol):
    behaviour: Behaviour

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self, how: signal.Signals = ...) -> None: ...


async def test_a_refund_is_answered_with_a_receipt(payments: PaymentClient, terms: Terms) -> None:
    """The receipt names operation and terms, and the ledger has one entry with the same number."""
    receipt = await payments.refund("acme/o-1/refund-1", terms("40.00"))

    assert isinstance(receipt, Receipt)
    assert (receipt.operation_id, receipt.terms) == ("acme/o-1/refund-1", terms("40.00"))
    assert [entry.receipt for entry in await payments.ledger()] == [receipt.receipt]


async def test_a_repetition_says_that_it_is_one(ledger: Ledger, terms: Terms) -> None:
    """The first answer is 201, each later one 200 with a header, and the body is the same to the byte."""
    headers, body = {"Idempotency-Key": "refund-1"}, terms().model_dump_json()
    transport = httpx.ASGITransport(PaymentService(ledger).application())
    async with httpx.AsyncClient(transport=transport, base_url="http://payments") as http:
        first = await http.post("/refunds", content=body, headers=headers)
        again = await http.post("/refunds", content=body, headers=headers)

    assert (first.status_code, again.status_code) == (201, 200)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.content == first.content


async def test_amounts_travel_as_strings(ledger: Ledger, terms: Terms) -> None:
    """A receipt has its amount as a decimal string, and a number with a point in a request is refused."""
    transport = httpx.ASGITransport(PaymentService(ledger).application())
    async with httpx.AsyncClient(transport=transport, base_url="http://payments") as http:
        headers = {"Idempotency-Key": "refund-1"}
        number = await http.post(
            "/refunds", content='{"order": "o", "recipient": "c", "amount": 40.1}', headers=headers
        )
        text = await http.post(
            "/refunds", content='{"order": "o", "recipient": "c", "amount": "40.1"}', headers=headers
        )

    assert (number.status_code, number.json()["fields"]) == (400, ["amount"])
    assert text.json()["terms"]["amount"] == "40.10"


async def test_fifty_duplicates_at_once_move_money_once(payments: PaymentClient, terms: Terms) -> None:
    """Of 50 concurrent requests with one operation id one moves the money, and all get its receipt."""
    await payments.set_behaviour(Behaviour(latency_ms=5, latency_spread_ms=20))
    answers: list[Receipt | Rejection] = []

    async def send() -> None:
        answers.append(await payments.refund("refund-1", terms()))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(send)

    assert len(answers) == 50
    assert len({answer.model_dump_json() for answer in answers}) == 1
    assert len(await payments.ledger()) == 1
    assert (await payments.statistics()) == Statistics(requests=50, sent_again=49, replayed=49)


async def test_other_terms_are_refused_naming_the_fields(payments: PaymentClient, terms: Terms) -> None:
    """The same operation id with another amount is refused, and the ledger stays as it was."""
    await payments.refund("refund-1", terms("40.00"))

    with pytest.raises(RequestRefused) as caught:
        await payments.refund("refund-1", terms("41.00"))

    assert (caught.value.problem.error, caught.value.problem.fields) == ("key_reused", ("amount",))
    assert [entry.terms.amount for entry in await payments.ledger()] == [Decimal("40.00")]


async def test_a_request_without_operation_id_is_refused(payments: PaymentClient, terms: Terms) -> None:
    """Without an operation id nothing moves."""
    with pytest.raises(RequestRefused, match="key_missing"):
        await payments.refund("", terms())
    with pytest.raises(RequestRefused, match="key_too_long"):
        await payments.refund("x" * 513, terms())

    assert await payments.ledger() == ()


async def test_after_its_retention_an_operation_id_is_not_known(
    payments: PaymentClient, terms: Terms, clock: Clock
) -> None:
    """A caller that re-sends later than the retention pays twice: that is the limit of deduplication."""
    await payments.refund("refund-1", terms())

    clock.advance(timedelta(hours=25))
    await payments.refund("refund-1", terms())

    assert [entry.operation_id for entry in await payments.ledger()] == ["refund-1", "refund-1"]


async def test_a_rejection_moves_nothing_and_stays(payments: PaymentClient, terms: Terms) -> None:
    """A business rejection is an answer, found by look-up, and the same after the cause has gone."""
    await payments.set_behaviour(Behaviour(reject_above=Decimal(30), unknown_orders=frozenset({"acme/o-9"})))
    above = await payments.refund("refund-1", terms("40.00"))
    unknown = await payments.refund("refund-2", terms("20.00", order="acme/o-9"))
    await payments.set_behaviour(Behaviour())

    again = await payments.refund("refund-1", terms("40.00"))

    assert isinstance(above, Rejection)
    assert isinstance(unknown, Rejection)
    assert (above.reason, unknown.reason) == ("amount_above_limit", "order_unknown")
    assert await payments.find("refund-2") == unknown
    assert again == above
    assert await payments.ledger() == ()


async def test_a_look_up_of_an_unknown_operation_finds_nothing(payments: PaymentClient) -> None:
    """Absence is an answer of its own, not an error."""
    assert await payments.find("acme/o-1/refund-1") is None


async def test_a_lost_answer_is_found_by_look_up(payment_process: Process, terms: Terms) -> None:
    """After commit-then-drop the caller knows nothing, the look-up knows the receipt, and a re-send gets it."""
    async with PaymentClient(payment_process.url) as payments:
        await payments.set_behaviour(Behaviour(drop_next=1))

        with pytest.raises(OutcomeUnknown):
            await payments.refund("acme/%C3%B6-1/refund-1", terms())

        found = await payments.find("acme/%C3%B6-1/refund-1")
        assert isinstance(found, Receipt)
        assert await payments.refund("acme/%C3%B6-1/refund-1", terms()) == found
        assert len(await payments.ledger()) == 1
        assert (await payments.statistics()).dropped == 1


async def test_a_refund_survives_the_death_of_the_service_right_after_its_commit(
    payment_process: Process, terms: Terms
) -> None:
    """Killed between commit and answer, the service knows the refund when it is back: one entry, the same receipt."""
    outcomes: list[Exception] = []
    async with PaymentClient(payment_process.url, timeout_s=30) as payments, anyio.create_task_group() as group:
        await payments.set_behaviour(Behaviour(answer_delay_ms=20_000))

        async def send() -> None:
            try:
                await payments.refund("refund-1", terms())
            except OutcomeUnknown as error:
                outcomes.append(error)

        group.start_soon(send)
        committed = await _committed(payments, "refund-1")
        await anyio.to_thread.run_sync(payment_process.stop, signal.SIGKILL)
        await anyio.to_thread.run_sync(payment_process.start)

        assert await payments.find("refund-1") == committed
        assert await payments.refund("refund-1", terms()) == committed
        assert len(await payments.ledger()) == 1
    assert len(outcomes) == 1


async def test_fifty_duplicates_at_once_over_sockets_with_lost_answers(payment_process: Process, terms: Terms) -> None:
    """Also over real connections, half of which are lost after the commit, the money moves once."""
    async with PaymentClient(payment_process.url, timeout_s=30) as payments:
        await payments.set_behaviour(Behaviour(latency_spread_ms=30, drop_probability=0.5, seed=7))
        receipts: list[Receipt | Rejection] = []

        async def send() -> None:
            with anyio.fail_after(30):
                while True:
                    try:
                        receipts.append(await payments.refund("refund-1", terms()))
                    except OutcomeUnknown:
                        continue
                    return

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(send)

        assert len(receipts) == 50
        assert len({receipt.model_dump_json() for receipt in receipts}) == 1
        assert len(await payments.ledger()) == 1
        assert (await payments.statistics()).dropped > 10


async def test_a_held_request_goes_on_when_the_switches_are_set(payments: PaymentClient, terms: Terms) -> None:
    """Held before the commit nothing has moved, held before the answer it has; both go on with the next switches."""
    entries: list[int] = []
    async with anyio.create_task_group() as group:
        # The first one goes on when the second is to be held at another point, and is held there once more.
        behaviours = (Behaviour(hold="before_commit"), 1), (Behaviour(hold="before_answer"), 3)
        for number, (behaviour, held) in enumerate(behaviours):
            await payments.set_behaviour(behaviour)
            group.start_soon(payments.refund, f"refund-{number}", terms())
            with anyio.fail_after(10):
                while (await payments.statistics()).held != held:
                    await anyio.lowlevel.checkpoint()
            entries.append(len(await payments.ledger()))
        await payments.set_behaviour(Behaviour())

    assert entries == [0, 2]


async def test_a_lost_request_moves_nothing(payment_process: Process, terms: Terms) -> None:
    """Its caller sees what it sees after a lost answer, and the look-up shows the difference."""
    async with PaymentClient(payment_process.url) as payments:
        await payments.set_behaviour(Behaviour(lose_next=1))

        with pytest.raises(OutcomeUnknown):
            await payments.refund("refund-1", terms())

        assert await payments.find("refund-1") is None
        assert (await payments.ledger(), (await payments.statistics()).lost) == ((), 1)


async def test_a_busy_service_has_decided_nothing(payments: PaymentClient, terms: Terms) -> None:
    """It says when to come back, and then takes the same operation id."""
    await payments.set_behaviour(Behaviour(busy_next=1))

    with pytest.raises(PaymentsBusy):
        await payments.refund("refund-1", terms())

    assert await payments.find("refund-1") is None
    assert isinstance(await payments.refund("refund-1", terms()), Receipt)


async def test_without_look_up_an_operation_is_not_told(payments: PaymentClient, terms: Terms) -> None:
    """It is refused, which is another answer than that nothing was found."""
    await payments.refund("refund-1", terms())
    await payments.set_behaviour(Behaviour(can_look_up=False))

    with pytest.raises(RequestRefused, match="no_lookup"):
        await payments.find("refund-1")


async def test_everything_new_can_be_refused(payments: PaymentClient, terms: Terms) -> None:
    """What was decided before stays as it was."""
    before = await payments.refund("refund-1", terms())
    await payments.set_behaviour(Behaviour(refuse=True))

    assert isinstance(await payments.refund("refund-2", terms()), Rejection)
    assert await payments.refund("refund-1", terms()) == before


async def test_the_books_are_a_table(payments: PaymentClient, terms: Terms) -> None:
    """One line for each movement of money, with the operation id that the service saw."""
    receipt = await payments.refund("acme/o-1/refund-1", terms("40.00"))

    assert isinstance(receipt, Receipt)
    lines = list(csv.DictReader((await payments.books()).splitlines()))
    assert [(line["operation_id"], line["receipt"], line["amount"]) for line in lines] == [
        ("acme/o-1/refund-1", receipt.receipt, "40.00")
    ]


async def test_a_process_starts_with_the_switches_that_it_is_given(payment_process: Process, terms: Terms) -> None:
    """So a service that is killed and started again promises what it promised before."""
    payment_process.stop()
    payment_process.behaviour = Behaviour(deduplicates=False)
    payment_process.start()

    async with PaymentClient(payment_process.url) as payments:
        for _ in range(2):
            await payments.refund("refund-1", terms())
        assert len(await payments.ledger()) == 2


async def test_a_client_tells_busy_from_unknown_and_from_refused() -> None:
    """Each kind of answer that is none has an error of its own, with the time to wait where the service said it."""
    answers = iter(
        [
            httpx.Response(503, headers={"Retry-After": "2.5"}),
            httpx.Response(429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
            httpx.Response(500),
            httpx.Response(404, text="not here"),
        ]
    )
    terms = RefundTerms(order="o", recipient="c", amount=Decimal(1))
    async with PaymentClient("http://payments", transport=httpx.MockTransport(lambda _: next(answers))) as payments:
        with pytest.raises(PaymentsBusy) as seconds:
            await payments.refund("refund-1", terms)
        with pytest.raises(PaymentsBusy) as date:
            await payments.refund("refund-1", terms)
        with pytest.raises(OutcomeUnknown):
            await payments.refund("refund-1", terms)
        with pytest.raises(PaymentError, match="is this the payment service"):
            await payments.refund("refund-1", terms)

    assert (seconds.value.retry_after_s, date.value.retry_after_s) == (2.5, 1.0)


async def test_a_service_that_cannot_be_reached_got_nothing(payment_process: Process, terms: Terms) -> None:
    """A refused connection is not an unknown outcome: nothing was sent."""
    await anyio.to_thread.run_sync(payment_process.stop)

    async with PaymentClient(payment_process.url) as payments:
        with pytest.raises(NotSent):
            await payments.refund("refund-1", terms())


async def test_malformed_switches_are_refused(payments: PaymentClient, ledger: Ledger) -> None:
    """A misspelt switch is named instead of being ignored."""
    transport = httpx.ASGITransport(PaymentService(ledger).application())
    async with httpx.AsyncClient(transport=transport, base_url="http://payments") as http:
        response = await http.put("/behaviour", content='{"latency": 5}')

    assert (response.status_code, response.json()["fields"]) == (400, ["latency"])


def test_which_answers_are_lost_depends_on_seed_and_operation_alone() -> None:
    """Two runs lose the same answers, in whatever order the requests arrive."""
    behaviour = Behaviour(drop_probability=0.5, seed=3)
    operations = [f"refund-{number}" for number in range(40)]
    forwards, backwards = Switches(behaviour), Switches(behaviour)

    lost = {operation: forwards.arrive(operation).drops_by_chance for operation in operations}
    lost_backwards = {operation: backwards.arrive(operation).drops_by_chance for operation in reversed(operations)}

    assert lost == lost_backwards
    assert set(lost.values()) == {True, False}


async def _committed(payments: PaymentClient, operation_id: str) -> Receipt | Rejection:
    """Wait until the service says that an operation is committed."""
    with anyio.fail_after(10):
        while (answer := await payments.find(operation_id)) is None:
            await anyio.lowlevel.checkpoint()
    return answer
