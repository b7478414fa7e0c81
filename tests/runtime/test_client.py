"""`Client` by reference and by name, against an owner made by hand and a door made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest

from keylane.journal import store as store_module
from keylane.journal.codec import pack, unpack
from keylane.journal.embedded import EmbeddedStore
from keylane.journal.errors import (
    CallError,
    CallTimeout,
    IdempotencyConflict,
    InvalidInput,
    InvalidKey,
    InvocationFailed,
    InvocationPaused,
    PayloadTooLarge,
    StoreUnavailable,
    UnknownHandler,
    UnknownObject,
    code_of,
    fields_of,
)
from keylane.journal.key import Key, parse_id, partition_of
from keylane.journal.outcomes import Failure, Outcome, Refused, Rejected, Replayed, Succeeded
from keylane.journal.records import Paused, PauseReason
from keylane.journal.requests import Request, RequestKind, ResumeOrder
from keylane.journal.store import Store
from keylane.journal.types_registry import register_types
from keylane.objects.context import ObjectContext, SharedContext
from keylane.objects.settings import Settings
from keylane.objects.virtual_object import VirtualObject
from keylane.runtime.client import Client
from keylane.runtime.door import DoorClosed
from tests.faults.harness import eventually
from tests.runtime.hand_owner import HandOwner

KEY = "acme/o-1001"
PARTITIONS = 4

order = VirtualObject("Order", owner="refunds-oncall", partitions=PARTITIONS)


@dataclass
class Ask:
    amount: Decimal
    note: str = ""


@dataclass
class Done:
    receipt: str


@order.handler
async def refund(ctx: ObjectContext, request: Ask) -> Done:
    return Done(f"{ctx.key}: {request.amount}")


@order.handler
async def touch(ctx: ObjectContext) -> None:
    del ctx


@order.handler(private=True)
async def inner(ctx: ObjectContext) -> None:
    del ctx


@order.shared
async def count(ctx: SharedContext) -> int:
    del ctx
    return 1


DONE = Succeeded(pack({"receipt": "r-1"}))


@pytest.fixture
async def store(store_url: str, namespace: str) -> AsyncGenerator[Store]:
    async with Store(store_url, namespace=namespace) as store:
        yield store


@pytest.fixture
async def client(store: Store) -> AsyncGenerator[Client]:
    async with Client(store, settings=Settings(sweep_seconds=0.2)) as client:
        yield client


@pytest.fixture
def owner(store: Store) -> HandOwner:
    return HandOwner(store, store.space("Order", partition_of(KEY, PARTITIONS)))


@pytest.fixture
async def known(store: Store) -> None:
    """The namespace knows the type, as after its first worker."""
    await register_types(store, {"Order": PARTITIONS}, {"Order": "refunds-oncall"})


@asynccontextmanager
async def answering(owner: HandOwner, *outcomes: Outcome) -> AsyncGenerator[list[Request]]:
    """Answer the next requests in turn, and tell what they were."""
    requests: list[Request] = []

    async def answer() -> None:
        for outcome in outcomes:
            request = await owner.next()
            requests.append(request)
            await owner.end(request, outcome)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        yield requests


def refused(error: CallError) -> Refused:
    return Refused(code_of(error), error.message, pack(fields_of(error)))


@pytest.mark.anyio
async def test_call_by_reference_sends_typed_bytes_and_returns_the_declared_type(
    client: Client, owner: HandOwner
) -> None:
    """The request carries what the owner needs, and the output comes back as the handler's type."""
    async with answering(owner, DONE) as requests:
        done = await client.call(refund, KEY, Ask(Decimal("40.00")), idempotency_key="t-77", timeout=10)

    [request] = requests
    assert done == Done("r-1")
    assert (request.kind, request.handler, request.key) == (RequestKind.CALL, "refund", KEY)
    assert unpack(request.payload or b"") == {"amount": Decimal("40.00"), "note": ""}
    assert unpack(request.basis or b"") == {"amount": Decimal("40.00")}
    assert request.idempotency_key == "t-77"
    assert not request.shared
    assert not request.again


@pytest.mark.anyio
async def test_handler_without_input_is_called_without(client: Client, owner: HandOwner) -> None:
    """No argument is no payload; a shared handler says so; a `Key` is as good as its text."""
    async with answering(owner, Succeeded(pack(None)), Succeeded(pack(7))) as requests:
        await client.call(touch, Key.parse(KEY), timeout=10)
        assert await client.call(count, KEY, timeout=timedelta(seconds=10)) == 7

    assert [(request.payload, request.shared) for request in requests] == [(None, False), (None, True)]


@pytest.mark.anyio
@pytest.mark.usefixtures("known")
async def test_call_by_name_sends_plain_values_and_returns_them(client: Client, owner: HandOwner) -> None:
    """Without the code, values go as they are, and the owner validates."""
    async with answering(owner, DONE) as requests:
        done = await client.call("Order", KEY, "refund", {"amount": "40.00"}, idempotency_key="t", timeout=10)

    [request] = requests
    assert done == {"receipt": "r-1"}
    assert unpack(request.payload or b"") == {"amount": "40.00"}
    assert request.basis is None


@pytest.mark.anyio
@pytest.mark.usefixtures("known")
async def test_unknown_object_names_the_known_ones(client: Client) -> None:
    """A type that the namespace does not have is an error at once, with the types that it has."""
    with pytest.raises(UnknownObject) as caught:
        await client.call("Odrer", KEY, "refund", timeout=10)

    assert caught.value.known == ("Order",)


@pytest.mark.anyio
async def test_type_may_appear_after_it_was_unknown(client: Client, owner: HandOwner, store: Store) -> None:
    """That a type was unknown is not remembered."""
    with pytest.raises(UnknownObject):
        await client.call("Order", KEY, "refund", timeout=10)
    await register_types(store, {"Order": PARTITIONS}, {"Order": "books"})

    async with answering(owner, DONE):
        assert await client.call("Order", KEY, "refund", timeout=10)


@pytest.mark.anyio
async def test_namespace_decides_the_number_of_partitions(client: Client, store: Store) -> None:
    """A declaration that was changed since the first use does not send requests elsewhere."""
    await register_types(store, {"Order": 1}, {"Order": "books"})
    async with answering(HandOwner(store, store.space("Order", 0)), DONE):
        assert await client.call(refund, KEY, Ask(Decimal(1)), timeout=10) == Done("r-1")


@pytest.mark.anyio
async def test_wrong_argument_is_refused_before_anything_is_sent(client: Client, store: Store) -> None:
    """A client that has the types validates, with the path of the field; nothing reaches the store."""
    with pytest.raises(InvalidInput) as caught:
        await client.call(refund, KEY, Ask(amount="forty"))  # type: ignore[arg-type]

    assert "amount" in caught.value.path
    assert await store.call("KEYS", f"*{client.store.namespace}*") == []


@pytest.mark.anyio
@pytest.mark.parametrize("rest", [(), (Ask(Decimal(1)), 2)])
async def test_wrong_number_of_arguments_is_a_type_error(client: Client, rest: tuple[Any, ...]) -> None:
    """As for a plain function."""
    call: Any = client.call
    with pytest.raises(TypeError, match="one argument"):
        await call(refund, KEY, *rest)
    with pytest.raises(TypeError, match="no argument"):
        await call(touch, KEY, 1)
    with pytest.raises(TypeError, match="by name"):
        await call("Order", KEY)


@pytest.mark.anyio
async def test_idempotency_key_is_text(client: Client) -> None:
    """The owner could not read another one, and nobody would answer the call."""
    with pytest.raises(TypeError, match="idempotency_key is text, not int"):
        await client.call(touch, KEY, idempotency_key=77)  # type: ignore[call-overload]


@pytest.mark.anyio
async def test_private_handler_is_not_called_from_outside(client: Client) -> None:
    """Only other handlers may call it."""
    with pytest.raises(CallError, match="private"):
        await client.call(inner, KEY)


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["no-slash", "/o", "acme/", "acme/\ud800", 7])
async def test_text_that_is_no_key_is_refused(client: Client, key: Any) -> None:
    """Both ways of calling say what a key looks like."""
    with pytest.raises(InvalidKey):
        await client.call(touch, key)
    with pytest.raises(InvalidKey):
        await client.call("Order", key, "touch")


@pytest.mark.anyio
async def test_argument_above_the_limit_is_refused(store: Store) -> None:
    """The bound is checked where the value is made, and the error has both sizes."""
    async with Client(store, settings=Settings(payload_limit_bytes=1024)) as client:
        with pytest.raises(PayloadTooLarge) as caught:
            await client.call(refund, KEY, Ask(Decimal(1), "x" * 2000))

    assert caught.value.limit == 1024
    assert caught.value.size_bytes > 2000


@pytest.mark.anyio
async def test_failed_invocation_raises_what_the_handler_said(client: Client, owner: HandOwner) -> None:
    """Message, code and details of a `TerminalError` reach the caller, with the id."""
    failure = Failure("shop.Declined", "card declined", "card-declined", pack({"left": Decimal("1.5")}), "")
    async with answering(owner, Rejected(failure)) as requests:
        with pytest.raises(InvocationFailed) as caught:
            await client.call(refund, KEY, Ask(Decimal(1)), timeout=10)

    error = caught.value
    assert (error.message, error.code, error.details) == ("card declined", "card-declined", {"left": Decimal("1.5")})
    assert parse_id(error.invocation_id or "").raw == requests[0].invocation


@pytest.mark.anyio
async def test_refusal_raises_the_error_of_the_owner(client: Client, owner: HandOwner) -> None:
    """An error of the tree crosses the process with its fields, and gets the id of the call."""
    async with answering(owner, refused(UnknownHandler("Order", "refnud", ("refund",)))):
        with pytest.raises(UnknownHandler) as caught:
            await client.call(refund, KEY, Ask(Decimal(1)), timeout=10)

    assert caught.value.known == ("refund",)
    assert (caught.value.invocation_id or "").startswith("Order.")


@pytest.mark.anyio
@pytest.mark.usefixtures("known")
async def test_paused_invocation_names_reason_and_owner(client: Client, owner: HandOwner) -> None:
    """A person has to act, and the caller learns at once who."""

    async def pause() -> None:
        request = await owner.next()
        await owner.accept(request)
        await owner.write(request, Paused(PauseReason.RETRIES_SPENT, "the bank is down"))
        await owner.announce(request, None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pause)
        with pytest.raises(InvocationPaused) as caught:
            await client.call(refund, KEY, Ask(Decimal(1)), timeout=10)

        error = caught.value
        assert (error.reason, error.owner, error.detail) == ("retries_spent", "refunds-oncall", "the bank is down")


@pytest.mark.anyio
async def test_timed_out_call_is_attached_to_by_its_id(client: Client, owner: HandOwner) -> None:
    """The id in the timeout leads to the result, by plain values or by a type."""
    with pytest.raises(CallTimeout) as caught:
        await client.call(refund, KEY, Ask(Decimal(1)), timeout=0.1)
    await owner.end(await owner.next(), DONE)

    invocation_id = caught.value.invocation_id or ""
    assert await client.attach(invocation_id).result(timeout=10) == {"receipt": "r-1"}
    assert await client.attach(invocation_id, Done).result(timeout=10) == Done("r-1")


@pytest.mark.anyio
async def test_send_is_durable_without_a_worker(client: Client, owner: HandOwner) -> None:
    """A send returns when the request lies in the inbox; its result comes when somebody has done it."""
    handle = await client.send(refund, KEY, Ask(Decimal(1)))
    request = await owner.next()
    assert request.kind is RequestKind.SEND
    assert parse_id(handle.id).raw == request.invocation

    await owner.end(request, DONE)
    assert await handle.result(timeout=10) == Done("r-1")
    verdict = await handle.accepted(timeout=10)
    assert not verdict.replayed
    assert verdict.first_at is not None
    assert abs(verdict.first_at - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.anyio
async def test_verdict_says_replayed_and_since_when(client: Client, owner: HandOwner) -> None:
    """A known idempotency key is marked, and the result is the first one's."""
    first = await client.send(refund, KEY, Ask(Decimal(1)), idempotency_key="t")
    await owner.end(first_request := await owner.next(), DONE)
    again = await client.send(refund, KEY, Ask(Decimal(1)), idempotency_key="t")
    await owner.end(await owner.next(), Replayed(first_request.invocation, 1_700_000_000_000))

    verdict = await again.accepted(timeout=10)

    assert verdict.replayed
    assert verdict.first_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert await again.result(timeout=10) == await first.result(timeout=10)


@pytest.mark.anyio
async def test_verdict_may_be_a_refusal(client: Client, owner: HandOwner) -> None:
    """`accepted` raises what the owner said, fields included."""
    handle = await client.send(refund, KEY, Ask(Decimal(45)), idempotency_key="t")
    await owner.end(await owner.next(), refused(IdempotencyConflict(("request.amount",))))

    with pytest.raises(IdempotencyConflict) as caught:
        await handle.accepted(timeout=10)
    with pytest.raises(IdempotencyConflict):
        await handle.result(timeout=10)
    assert caught.value.fields == ("request.amount",)


@pytest.mark.anyio
async def test_no_verdict_without_an_owner(client: Client) -> None:
    """Nobody takes in: the wait for the verdict ends with the timeout, and the request stays."""
    handle = await client.send(touch, KEY)

    with pytest.raises(CallTimeout):
        await handle.accepted(timeout=0.1)


@pytest.mark.anyio
async def test_sends_and_calls_of_one_client_keep_their_order(client: Client, owner: HandOwner) -> None:
    """What is awaited in turn lies in the inbox in that order."""
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            await client.send(touch, KEY)
        tasks.start_soon(client.call, touch, KEY)
        kinds = [(await owner.next()).kind for _ in range(6)]
        assert kinds == [RequestKind.SEND] * 5 + [RequestKind.CALL]
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_resume_goes_through_the_inbox_of_the_invocation(client: Client, owner: HandOwner) -> None:
    """The request names the parked invocation, who asks and why, and carries the key of its lane."""
    parked = await client.send(refund, KEY, Ask(Decimal(1)))
    await owner.accept(await owner.next())

    async with answering(owner, Succeeded(pack(None))) as requests:
        await client.resume(parked.id, reason="bank is back", by="ann", timeout=10)

    [request] = requests
    assert (request.kind, request.key) == (RequestKind.RESUME, KEY)
    assert ResumeOrder.decode(request.payload or b"") == ResumeOrder(parse_id(parked.id).raw, "ann", "bank is back")


@pytest.mark.anyio
async def test_resume_of_what_was_never_parked_is_refused(client: Client) -> None:
    """An id without records can't be resumed; nothing is sent."""
    handle = await client.send(touch, KEY)

    with pytest.raises(CallError, match="not paused"):
        await client.resume(handle.id, reason="x", by="ann")


@pytest.mark.anyio
async def test_attach_refuses_what_is_no_id(client: Client) -> None:
    """A text of another form is an error at once."""
    with pytest.raises(InvalidKey):
        client.attach("Order-3-0193")


@pytest.mark.anyio
async def test_store_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first contact fails with a clear error, within seconds."""
    monkeypatch.setattr(store_module, "CONNECT_TIMEOUT_SECONDS", 0.2)
    with anyio.fail_after(5), pytest.raises(StoreUnavailable):
        async with Client("unix:///nowhere/at/all"):
            pass


@pytest.mark.anyio
async def test_embedded_store_is_found_by_its_folder(tmp_path: Path, namespace: str) -> None:
    """A client never starts a server: it finds the one that runs, or says who starts one."""
    url = f"embedded:{tmp_path / 'kept'}"
    with pytest.raises(StoreUnavailable, match="keylane dev"):
        Client(url)

    async with EmbeddedStore(tmp_path / "kept"), Client(url, namespace=namespace) as client:
        assert (await client.send(touch, KEY)).id.startswith("Order.")


class Door:
    """An owner in this process, made by hand: answers as it is told."""

    def __init__(self, taken_in: bytes = b"0-0") -> None:
        self.taken_in = taken_in
        self.calls: list[tuple[Any, ...]] = []
        self.future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.acceptance: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_shared(self, handler_name: str) -> bool:
        return handler_name == "count"

    def call(self, *arguments: Any) -> asyncio.Future[Outcome]:
        self.calls.append(arguments)
        return self.future

    async def read(self, *arguments: Any) -> Outcome:
        self.calls.append(arguments)
        return await self.future

    def accepted(self, raw_id: bytes) -> asyncio.Future[None]:
        del raw_id
        return self.acceptance


class Routes:
    """Leads every key to one door."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def route(self, object_name: str, key_text: str) -> Door:
        del object_name, key_text
        return self._door

    def partitions(self, object_name: str) -> int | None:
        return PARTITIONS if object_name == "Order" else None


@asynccontextmanager
async def at_home(store: Store, door: Door) -> AsyncGenerator[Client]:
    async with Client(store, local=Routes(door)) as client:
        yield client


@pytest.mark.anyio
async def test_owner_in_this_process_is_called_directly(store: Store) -> None:
    """Nothing goes through the store; by reference and by name, exclusive and shared."""
    door = Door()
    door.future.set_result(DONE)
    async with at_home(store, door) as client:
        assert await client.call(refund, KEY, Ask(Decimal(1)), idempotency_key="t") == Done("r-1")
        assert await client.call("Order", KEY, "refund", {"amount": 1}, timeout=5) == {"receipt": "r-1"}
        assert await client.call("Order", KEY, "count") == {"receipt": "r-1"}

    exclusive, by_name, shared = door.calls
    assert exclusive[:2] == ("refund", KEY)
    assert exclusive[3:5] == (pack({"amount": Decimal(1)}), "t")
    assert by_name[3:5] == (None, None)
    assert shared[0] == "count"
    assert await store.call("KEYS", f"*{store.namespace}*") == []


@pytest.mark.anyio
async def test_call_does_not_overtake_a_send_that_is_not_taken_in(store: Store, owner: HandOwner) -> None:
    """After a send the next call goes through the inbox too, until the owner has taken the send in."""
    door = Door()
    door.future.set_result(DONE)
    async with at_home(store, door) as client:
        await client.send(touch, KEY)
        async with answering(owner, DONE, DONE) as requests:
            await client.call(refund, KEY, Ask(Decimal(1)), timeout=10)
        assert [request.kind for request in requests] == [RequestKind.SEND, RequestKind.CALL]
        assert door.calls == []

        door.taken_in = b"9999999999999-0"
        await client.call(refund, KEY, Ask(Decimal(1)), timeout=10)
        assert len(door.calls) == 1


@pytest.mark.anyio
async def test_closed_door_sends_the_call_to_the_inbox_under_the_same_id(store: Store, owner: HandOwner) -> None:
    """A partition that was lost in the middle: the same id is asked for again, marked as such."""
    door = Door()
    door.future.set_exception(DoorClosed())
    async with at_home(store, door) as client, answering(owner, DONE) as requests:
        assert await client.call(refund, KEY, Ask(Decimal(1)), timeout=10) == Done("r-1")

    [request] = requests
    assert request.invocation == door.calls[0][5]
    assert request.again


@pytest.mark.anyio
async def test_closed_door_attaches_to_what_the_store_has(store: Store, owner: HandOwner) -> None:
    """One whose end is durable is not put into the inbox again; its outcome is the answer."""
    door = Door()
    async with at_home(store, door) as client, anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call(refund, KEY, Ask(Decimal(1)), timeout=10))

        tasks.start_soon(call)
        await eventually(lambda: door.calls, "the call is at the door")
        raw_id = door.calls[0][5]
        await owner.end(Request(RequestKind.CALL, raw_id, "refund", KEY), DONE, announce=False)
        door.future.set_exception(DoorClosed())
        await eventually(lambda: results == [Done("r-1")], "the result")

        assert await store.call("XLEN", store.space("Order", partition_of(KEY, PARTITIONS)).inbox) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("is_durable", [True, False])
async def test_id_is_given_out_only_once_acceptance_is_durable(store: Store, *, is_durable: bool) -> None:
    """A caller that gives up gets the id when the acceptance has been committed, and none when it can't be."""
    door = Door()
    errors: list[CallTimeout] = []
    async with at_home(store, door) as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(CallTimeout) as caught:
                await client.call(refund, KEY, Ask(Decimal(1)), timeout=0.03)
            errors.append(caught.value)

        tasks.start_soon(call)
        await eventually(door.future.done, "the timeout")
        await anyio.wait_all_tasks_blocked()
        assert errors == []

        if is_durable:
            door.acceptance.set_result(None)
        else:
            door.acceptance.set_exception(DoorClosed())
        await eventually(lambda: errors, "the error")

    assert (errors[0].invocation_id is not None) == is_durable


@pytest.mark.anyio
async def test_replayed_call_in_this_process_is_followed(store: Store, owner: HandOwner) -> None:
    """The first invocation of an idempotency key is looked up, wherever it ran."""
    first = Request(RequestKind.CALL, bytes(range(16)), "refund", KEY)
    await owner.end(first, DONE)
    door = Door()
    door.future.set_result(Replayed(first.invocation, 5))
    async with at_home(store, door) as client:
        assert await client.call(refund, KEY, Ask(Decimal(1)), timeout=10) == Done("r-1")
