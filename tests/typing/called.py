"""What a call by reference takes and gives, from outside; never run, only checked."""

from typing import Any, assert_type

from keylane import (
    Accepted,
    AlreadyCompleted,
    BlockingClient,
    Client,
    Expired,
    Handle,
    Key,
    NotPermitted,
    UnknownTarget,
    WaitVerdict,
)

from .declared import Ask, Done, blocking_refund, blocking_touch, count, refund, refund_many, refund_or_none, touch


async def calls(client: Client) -> None:
    assert_type(await client.call(refund, "acme/1", Ask(1)), Done)
    assert_type(await client.call(blocking_refund, Key("acme", "1"), Ask(1), idempotency_key="ticket-77"), Done)
    assert_type(await client.call(touch, "acme/1"), None)
    assert_type(await client.call(blocking_touch, "acme/1", timeout=30), int)
    assert_type(await client.call(count, "acme/1"), int)
    assert_type(await client.call(refund_or_none, "acme/1", None), Done)
    assert_type(await client.call(refund_many, "acme/1", [Ask(1)]), dict[str, Done])
    assert_type(await client.call("Order", "acme/1", "refund", {"amount": 1}), Any)
    assert_type(await client.send(refund, "acme/1", Ask(1)), Handle[Done])
    assert_type(await (await client.send(touch, "acme/1")).result(), None)
    assert_type(client.attach("Order.3.0193", type=Done), Handle[Done])


async def messages(client: Client, blocking: BlockingClient) -> None:
    assert_type(await client.resolve_awakeable("Order.3.0193.7", Done("x"), by="ana", message_id="m"), WaitVerdict)
    assert_type(await client.signal("Order.3.0193", "paid", 3, timeout=3), WaitVerdict)
    assert_type(await client.signal_object("Order", Key("acme", "1"), "paid", [Ask(1)], list[Ask]), WaitVerdict)
    assert_type(await client.attach("Order.3.0193").signal("paid", 3), WaitVerdict)
    assert_type(blocking.reject_awakeable("Order.3.0193.7", "no"), WaitVerdict)
    match await client.signal("Order.3.0193", "paid", 3):
        case Accepted(replayed=replayed):
            assert_type(replayed, bool)
        case AlreadyCompleted(by=by):
            assert_type(by, str)
        case Expired() | UnknownTarget() | NotPermitted():
            pass


async def refused_messages(client: Client) -> None:
    await client.signal("Order.3.0193", "paid")  # type: ignore[call-arg]  # E the value is missing


async def refused_calls(client: Client) -> None:
    await client.call(refund, "acme/1", "40.00")  # type: ignore[misc]  # E another type of argument
    await client.call(refund, "acme/1")  # type: ignore[arg-type]  # E the argument is missing
    await client.call(touch, "acme/1", Ask(1))  # type: ignore[misc]  # E the handler takes none
    await client.call(refund, 7, Ask(1))  # type: ignore[call-overload]  # E a key that is a number
    await client.call(refund_many, "acme/1", ["x"])  # type: ignore[misc]  # E another type of element
    await client.call(refund, "acme/1", None)  # type: ignore[misc]  # E None where it is not allowed
    await client.send(refund, "acme/1", "40.00")  # type: ignore[misc]  # E the same for send
    _wrong: str = await client.call(blocking_touch, "acme/1")  # type: ignore[arg-type]  # E another result


def blocking_calls(client: BlockingClient) -> None:
    assert_type(client.call(refund, "acme/1", Ask(1)), Done)
    assert_type(client.call(touch, "acme/1"), None)
    client.call(refund, "acme/1", "40.00")  # type: ignore[misc]  # E another type of argument
