"""What lies in an inbox and what is announced: read back as it was written, and garbage refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.journal.codec import Undecodable
from keylane.journal.messages import Caller, Held, Reply, child_id, reply_id
from keylane.journal.requests import (
    INLINE_OUTCOME_BYTES,
    Answer,
    Request,
    RequestKind,
    ResumeOrder,
    announced_invocation,
)

RAW_ID = bytes(range(16))
CLIENT = b"client-1"

texts = st.text(st.characters(codec="utf-8"), max_size=40)
maybe_bytes = st.none() | st.binary(max_size=60)
held = st.builds(Held, texts, texts, texts)
callers = st.builds(
    Caller, texts, st.integers(0, 99), texts, st.binary(min_size=16, max_size=16), st.integers(0, 9), st.tuples(held)
)
requests = st.builds(
    Request,
    kind=st.sampled_from(RequestKind),
    invocation=st.binary(min_size=16, max_size=16),
    handler=texts,
    key=texts,
    payload=maybe_bytes,
    basis=maybe_bytes,
    idempotency_key=st.none() | texts,
    client=st.none() | st.binary(min_size=8, max_size=8),
    shared=st.booleans(),
    again=st.booleans(),
    delay_ms=st.integers(0, 2**48),
    caller=st.none() | callers,
    trace=st.none() | st.binary(min_size=25, max_size=25),
)


@given(requests)
def test_request_is_read_as_it_was_written(request: Request) -> None:
    """Every request survives the way through the inbox."""
    assert Request.decode(request.encode()) == request


@given(st.binary(max_size=200))
def test_garbage_in_an_inbox_is_undecodable(data: bytes) -> None:
    """Arbitrary bytes are either a request or `Undecodable`, never another exception."""
    try:
        request = Request.decode(data)
    except Undecodable:
        return
    assert len(request.invocation) == 16


@given(requests, st.data())
def test_damaged_request_is_read_or_undecodable(request: Request, data: st.DataObject) -> None:
    """One wrong byte in a request raises `Undecodable` and nothing else."""
    damaged = bytearray(request.encode())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(Undecodable):
        assert isinstance(Request.decode(bytes(damaged)), Request)


@pytest.mark.parametrize(
    "fields",
    [
        (96, RAW_ID[:15], "h", "t/k", None, None, None, None, 0),
        (96, RAW_ID, b"h", "t/k", None, None, None, None, 0),
        (96, RAW_ID, "h", "t/k", "text", None, None, None, 0),
        (96, RAW_ID, "h", "t/k", None, None, None, None),
        (96, RAW_ID, "h", "t/k", None, None, None, None, True),
        (64, RAW_ID, "h", "t/k", None, None, None, None, 0),
        (),
    ],
)
def test_request_with_a_wrong_field_is_undecodable(fields: tuple[object, ...]) -> None:
    """A field of another type, a missing one, a short id and a foreign tag are refused."""
    with pytest.raises(Undecodable):
        Request.decode(msgpack.packb(fields))


def test_request_of_a_later_release_is_read() -> None:
    """Fields that were added behind the known ones are left out."""
    request = Request(RequestKind.SEND, RAW_ID, "refund", "acme/o-1", b"\x01", again=True)
    fields: list[object] = msgpack.unpackb(request.encode())

    assert Request.decode(msgpack.packb([*fields, 0, None, None, "new"])) == request


def test_a_trace_stands_behind_all_that_an_earlier_release_reads() -> None:
    """One that knows of no traces reads the same request without it."""
    request = Request(RequestKind.SEND, RAW_ID, "refund", "acme/o-1", b"\x01", trace=bytes(25))
    fields: list[object] = msgpack.unpackb(request.encode())

    assert fields[-2:] == [None, bytes(25)]
    assert Request.decode(msgpack.packb(fields[:-1])) == replace(request, trace=None)


def test_the_bytes_of_a_message_are_golden() -> None:
    """What another object asks for, now and later, and what it is answered keep their form too."""
    caller = Caller("Desk", 7, "acme/d-1", RAW_ID, 3, (Held("Order", "acme/o-1", "refund"),))
    call = Request(RequestKind.OBJECT_CALL, RAW_ID, "reserve", "acme/s-1", b"\x01", caller=caller)
    later = Request(RequestKind.OBJECT_SEND, RAW_ID, "reserve", "acme/s-1", b"\x01", again=True, delay_ms=5_000)
    payload = Reply(RAW_ID, 3, b"\x92\x40\xc4\x01\x2a").encode()
    reply = Request(RequestKind.REPLY, reply_id(RAW_ID), "", "acme/d-1", payload)

    assert [each.encode().hex() for each in (call, later, reply)] == [
        (
            "9b63c410000102030405060708090a0b0c0d0e0fa772657365727665a861636d652f732d31c40101c0c0c00000c43b96"
            "a44465736b07a861636d652f642d31c410000102030405060708090a0b0c0d0e0f039193a54f72646572a861636d652f"
            "6f2d31a6726566756e64"
        ),
        ("9a64c410000102030405060708090a0b0c0d0e0fa772657365727665a861636d652f732d31c40101c0c0c002cd1388"),
        (
            "9965c41000010203040556d6e3fabe74aa28350ca0a861636d652f642d31c41c9479c410000102030405060708090a0b"
            "0c0d0e0f03c4059240c4012ac0c0c000"
        ),
    ]
    assert [Request.decode(each.encode()) for each in (call, later, reply)] == [call, later, reply]
    assert Reply.decode(payload) == Reply(RAW_ID, 3, b"\x92\x40\xc4\x01\x2a")


def test_the_ids_of_messages_are_golden() -> None:
    """A later release that replays a handler must ask for the same invocation as this one did."""
    assert child_id(RAW_ID, 3).hex() == "000102030405043a939eb6d897bbe9f4"
    assert reply_id(RAW_ID).hex() == "00010203040556d6e3fabe74aa28350c"
    assert child_id(RAW_ID, 3) != child_id(RAW_ID, 4)


@given(st.binary(max_size=100))
def test_garbage_is_no_caller_and_no_reply(data: bytes) -> None:
    """Arbitrary bytes are `Undecodable`."""
    for kind in (Caller, Reply):
        with pytest.raises(Undecodable):
            kind.decode(b"\x00" + data)


def test_request_bytes_are_golden() -> None:
    """The form in the inbox does not change: another release's requests lie there during a deploy."""
    request = Request(RequestKind.CALL, RAW_ID, "refund", "acme/o-1", b"\x01", None, "t-77", CLIENT, shared=True)

    assert request.encode().hex() == (
        "9960c410000102030405060708090a0b0c0d0e0fa6726566756e64a861636d652f6f2d31c40101c0a4742d3737c408636c69656e742d3101"
    )


def test_resume_order_is_read_as_it_was_written() -> None:
    """A resume order names its invocation, who asks and why."""
    order = ResumeOrder(RAW_ID, "ann", "bank is back")

    assert ResumeOrder.decode(order.encode()) == order


@given(st.binary(max_size=100))
def test_garbage_is_no_resume_order(data: bytes) -> None:
    """Arbitrary bytes are `Undecodable`."""
    with pytest.raises(Undecodable):
        ResumeOrder.decode(b"\x00" + data)


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=16, max_size=16), maybe_bytes)
def test_announcement_is_read_as_it_was_written(client: bytes, raw_id: bytes, outcome: bytes | None) -> None:
    """An announcement survives the channel, and its id is found without decoding it."""
    data = Answer(client, raw_id, outcome).encode()

    assert Answer.decode(data) == Answer(client, raw_id, outcome)
    assert announced_invocation(data) == raw_id


def test_long_outcome_is_not_sent_along() -> None:
    """Everybody who listens to a partition gets every announcement, so a long outcome stays in the result key."""
    short, long = b"x" * INLINE_OUTCOME_BYTES, b"x" * (INLINE_OUTCOME_BYTES + 1)

    assert Answer.decode(Answer(CLIENT, RAW_ID, short).encode()).outcome == short
    assert Answer.decode(Answer(CLIENT, RAW_ID, long).encode()).outcome is None


def test_announcement_for_nobody_in_particular_carries_its_id() -> None:
    """Without a client the id still stands where waiting processes look for it."""
    data = Answer(b"", RAW_ID, None).encode()

    assert announced_invocation(data) == RAW_ID


@given(st.binary(max_size=60))
def test_garbage_on_a_channel_is_no_announcement(data: bytes) -> None:
    """Arbitrary bytes have no id, and decoding them raises `Undecodable`."""
    assert announced_invocation(b"\x00" + data) is None
    with pytest.raises(Undecodable):
        Answer.decode(b"\x00" + data)
