"""Messages damaged by hand on their way: one sweep of the doctor names it, and a repair lets callers go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane import Handle, InvocationFailed, Runtime
from keylane.journal.doctor import delivering
from keylane.journal.doctor.repairing import repair
from keylane.journal.key import parse_id
from keylane.journal.messages import child_id, reply_id
from keylane.journal.numbering import Counted
from keylane.journal.requests import Request, RequestKind
from tests.faults.harness import eventually_answers
from tests.runtime.ward import CALLED, KEY, Ward, a_send, add, ask_for, gate_of

pytestmark = pytest.mark.anyio

TARGET = "Job.0"


async def calling(ward: Ward, runtime: Runtime, gate: Path) -> tuple[Handle[str], bytes]:
    """Have an object wait for another one, which has begun; returns the caller, and the raw id of the called one."""
    handle = await runtime.client.send(ask_for, KEY, str(gate))

    async def is_settled() -> bool:
        has_begun = await ward.redis("LLEN", ward.space.lane(CALLED)) == 1
        return has_begun and await ward.redis("EXISTS", ward.space.outbox(TARGET)) == 0

    await eventually_answers(is_settled, "the called one has begun")
    return handle, child_id(parse_id(handle.id).raw, 0)


@pytest.mark.parametrize("is_resident", [True, False])
async def test_a_call_of_which_nothing_is_left_is_named_and_its_caller_told(
    ward: Ward, tmp_path: Path, *, is_resident: bool
) -> None:
    """It would wait for ever."""
    async with ward.worker() as runtime:
        handle, callee = await calling(ward, runtime, gate_of(tmp_path))
    await ward.redis("DEL", ward.space.invocation(callee), ward.space.lane(CALLED))
    await ward.redis("SREM", ward.space.runnable, CALLED)
    async with ward.worker() as runtime:
        if is_resident:
            # It comes into memory, with all of its lane.
            await runtime.client.send(add, KEY)
        report = await ward.sweep()
        assert [finding.kind.value for finding in report.findings] == ["call-lost"]
        assert report.findings[0].place.key == KEY
        done = await ward.repaired()

        assert "MessageLost" in done[0].did[0]
        with pytest.raises(InvocationFailed, match="lost on its way"):
            await runtime.client.attach(handle.id).result(timeout=10)
        assert await repair(ward.store, report, "a test") != []
        assert await ward.kinds() == []


@pytest.mark.parametrize("place", ["outbox", "inbox", "reply-outbox", "reply-inbox"])
async def test_a_call_that_is_somewhere_on_its_way_is_not_lost(ward: Ward, tmp_path: Path, place: str) -> None:
    """As a message or as a reply, in an outbox or in an inbox."""
    async with ward.worker() as runtime:
        _, callee = await calling(ward, runtime, gate_of(tmp_path))
    await ward.redis("DEL", ward.space.invocation(callee), ward.space.lane(CALLED))
    await ward.redis("SREM", ward.space.runnable, CALLED)
    assert "call-lost" in await ward.kinds()
    is_reply = place.startswith("reply")
    kind, raw_id = (RequestKind.REPLY, reply_id(callee)) if is_reply else (RequestKind.OBJECT_CALL, callee)
    message = Request(kind, raw_id, "", KEY, None).encode()
    stream = ward.space.outbox(TARGET) if place.endswith("outbox") else ward.space.inbox
    await ward.redis("XADD", stream, "*", "m", message)

    assert "call-lost" not in await ward.kinds()


async def numbers(ward: Ward) -> Counted:
    return Counted.read(await ward.redis("HGET", ward.space.sent, TARGET))


@pytest.mark.parametrize(
    ("text", "kind"), [("2:7", "message-numbers-disagree"), ("many", "message-numbers-unreadable")]
)
async def test_numbers_that_make_no_sense_are_named_and_written_anew(
    ward: Ward, tmp_path: Path, text: str, kind: str
) -> None:
    """By the owner that has them in memory."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, _ = await calling(ward, runtime, gate)
        before = await numbers(ward)
        await ward.redis("HSET", ward.space.sent, TARGET, text)

        assert await ward.kinds() == [kind]
        await ward.repaired()
        assert await numbers(ward) == before
        gate.touch()
        assert await handle.result(timeout=10) == "went on"


async def put_into_outbox(ward: Ward, number: int, request: Request) -> None:
    await ward.redis("XADD", ward.space.outbox(TARGET), f"{number}-1", "m", request.encode())


async def test_a_message_that_has_no_number_is_named_and_delivered(ward: Ward, tmp_path: Path) -> None:
    """The numbers were lost: whatever the partition sends next would be refused."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, _ = await calling(ward, runtime, gate)
        before = await numbers(ward)
        request = a_send("add")
        await put_into_outbox(ward, before.assigned + 1, request)

        assert await ward.kinds() == ["message-numbers-disagree"]
        done = await ward.repaired()
        assert "did not know of" in done[0].did[0]
        raw_id = request.invocation

        async def is_taken_in() -> object:
            return await ward.redis("EXISTS", ward.space.invocation(raw_id), ward.space.result(raw_id))

        await eventually_answers(is_taken_in, "it is delivered")
        gate.touch()
        assert await handle.result(timeout=10) == "went on"
        assert await ward.kinds() == []


async def test_messages_that_a_live_owner_leaves_in_an_outbox_are_named_and_delivered(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody wrote them and their number, and told nobody."""
    monkeypatch.setattr(delivering, "STUCK_SECONDS", 0.3)
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, _ = await calling(ward, runtime, gate)
        before = await numbers(ward)
        await put_into_outbox(ward, before.assigned + 1, a_send("add"))
        await ward.redis("HSET", ward.space.sent, TARGET, str(Counted(before.assigned + 1, before.acknowledged)))

        assert await ward.kinds() == ["messages-stuck"]
        await ward.repaired()
        gate.touch()
        assert await handle.result(timeout=10) == "went on"
        assert await ward.kinds() == []


async def test_messages_that_are_gone_from_an_outbox_are_named(ward: Ward, tmp_path: Path) -> None:
    """They were not delivered, and by their numbers they should be there; the next owner gives them up."""
    async with ward.worker() as runtime:
        await calling(ward, runtime, gate_of(tmp_path))
    before = await numbers(ward)
    await ward.redis("HSET", ward.space.sent, TARGET, str(Counted(before.assigned + 2, before.acknowledged)))
    report = await ward.sweep()

    kinds = [finding.kind.value for finding in report.findings]
    assert kinds == ["messages-missing", "partition-without-owner", "type-without-worker"]
    assert "2 messages in its outboxes" in report.findings[1].cause
    async with ward.worker():

        async def is_given_up() -> bool:
            return await ward.kinds() == []

        await eventually_answers(is_given_up, "the next owner has given them up")


async def test_a_message_that_has_arrived_and_lies_there_still_is_taken_out(ward: Ward, tmp_path: Path) -> None:
    """It would stay until the next message goes the same way."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, _ = await calling(ward, runtime, gate)
        assert (await numbers(ward)).acknowledged >= 1
        await put_into_outbox(ward, 1, a_send("add"))

        assert await ward.kinds() == ["message-numbers-disagree"]
        await ward.repaired()
        assert await ward.redis("EXISTS", ward.space.outbox(TARGET)) == 0
        gate.touch()
        await handle.result(timeout=10)


async def test_marks_that_are_behind_are_put_right_by_the_next_message(ward: Ward, tmp_path: Path) -> None:
    """Sender and receiver find out by themselves; until then nothing is on its way and nothing is wrong."""
    gate = gate_of(tmp_path)
    async with ward.worker() as runtime:
        handle, _ = await calling(ward, runtime, gate)
        await ward.redis("HDEL", ward.space.marks, TARGET)
        assert await ward.kinds() == []
        gate.touch()
        # The reply goes the same way.
        assert await handle.result(timeout=10) == "went on"
        assert await ward.kinds() == []
