"""What the contexts take and give; never run, only checked."""

from collections.abc import Awaitable
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, assert_type
from uuid import UUID

from keylane import (
    Approval,
    Awakeable,
    BlockingObjectContext,
    BlockingSharedContext,
    DurableTask,
    EffectRejected,
    Key,
    ModelAnswer,
    ObjectContext,
    RetryPolicy,
    Sent,
    SharedContext,
    Succeeded,
    Unknown,
    WaitVerdict,
)

from .declared import (
    Ask,
    Done,
    blocking_refund,
    blocking_touch,
    count,
    refund,
    refund_many,
    send_charge,
    send_note,
    send_refund,
    touch,
)


async def read_order(key: str) -> Ask:
    return Ask(len(key))


def decide(amount: int, reason: str) -> Done:
    return Done(reason * amount)


def read_json(key: str) -> Any:
    return key


async def steps(ctx: ObjectContext) -> None:
    assert_type(await ctx.run("read", read_order, "k", timeout=timedelta(seconds=1)), Ask)
    assert_type(await ctx.run("decide", decide, 1, "b", retry=RetryPolicy(attempts=3), on_exhausted="raise"), Done)
    assert_type(await ctx.run("inline", lambda: 1), int)
    assert_type(await ctx.run("typed", read_json, "k", type=list[Ask]), list[Ask])
    assert_type(await ctx.run("typed", read_json, "k", type=Ask | None), Ask | None)


async def refused_steps(ctx: ObjectContext) -> None:
    await ctx.run("read", read_order, 3)  # type: ignore[arg-type]  # E another type of argument
    await ctx.run("read", read_order)  # type: ignore[arg-type, call-arg]  # E an argument is missing
    await ctx.run("read", read_order, key="k")  # type: ignore[call-overload]  # E arguments go by position
    await ctx.run("read", read_order, "k", on_exhausted="fail")  # type: ignore[call-overload]  # E no such choice
    await ctx.run("read", read_order, "k", timeout=3)  # type: ignore[call-overload]  # E a timeout is a timedelta
    _wrong: int = await ctx.run("read", read_order, "k")  # type: ignore[arg-type]  # E another result


async def ask_a_model(prompt: str) -> ModelAnswer[Ask]:
    return ModelAnswer(Ask(len(prompt)), input_tokens=1, cost=Decimal("0.01"))


def ask_plainly(prompt: str) -> ModelAnswer[list[Done]]:
    return ModelAnswer([Done(prompt)])


async def models(ctx: ObjectContext) -> None:
    assert_type(await ctx.model("ask", ask_a_model, "k", model="m-1", timeout=timedelta(seconds=1)), Ask)
    assert_type(await ctx.model("ask", ask_plainly, "k", model="m-1", retry=RetryPolicy(attempts=3)), list[Done])
    assert_type(await ctx.model("ask", read_json, "k", model="m-1", type=Ask | None), Ask | None)


def blocking_models(ctx: BlockingObjectContext) -> None:
    assert_type(ctx.model("ask", ask_plainly, "k", model="m-1"), list[Done])


async def refused_models(ctx: ObjectContext) -> None:
    await ctx.model("ask", ask_a_model, "k")  # type: ignore[call-overload]  # E no model is named
    await ctx.model("ask", ask_a_model, 3, model="m-1")  # type: ignore[arg-type]  # E another type of argument
    await ctx.model("ask", decide, 1, "b", model="m-1")  # type: ignore[arg-type, call-arg]  # E it returns no answer
    ModelAnswer("x", cost=0.1)  # type: ignore[arg-type]  # E a float is no amount


async def effects(ctx: ObjectContext, approval: Approval) -> None:
    assert_type(await ctx.effect(send_refund, operation_id="r-1", params=Ask(1)), Done)
    assert_type(await ctx.effect(send_refund, operation_id="r-1", params=Ask(1), approval=approval), Done)
    await ctx.effect(send_note, operation_id="n-1", params=None, release_lane=True)
    ctx.compensate("payment", send_refund, operation_id="r-1", params=Ask(1))
    ctx.compensate("room", decide, 1, "b", retry=RetryPolicy(attempts=3))
    match await ctx.effect_outcome(send_refund, operation_id="r-1", params=Ask(1)):
        case Succeeded(receipt):
            assert_type(receipt, Done)
        case EffectRejected() as rejected:
            assert_type(rejected.reason, str)
        case Unknown(since, why):
            assert_type(since, datetime)
            assert_type(why, str)


def blocking_effects(ctx: BlockingObjectContext) -> None:
    assert_type(ctx.effect(send_refund, operation_id="r-1", params=Ask(1)), Done)
    ctx.compensate("payment", send_refund, operation_id="r-1", params=Ask(1))
    assert_type(ctx.effect_outcome(send_note, operation_id="n", params="x"), Succeeded[None] | EffectRejected | Unknown)


async def undos(ctx: ObjectContext, approval: Approval, may_be: Approval | None) -> None:
    assert_type(await ctx.effect(send_charge, operation_id="c-1", params=Ask(1), compensate=True), Done)
    assert_type(
        await ctx.effect_outcome(send_charge, operation_id="c-1", params=Ask(1), approval=approval, compensate=True),
        Succeeded[Done] | EffectRejected | Unknown,
    )
    assert_type(await ctx.effect(send_charge, operation_id="c-1", params=Ask(1), compensate=bool(may_be)), Done)
    assert_type(await ctx.effect(send_charge, operation_id="c-1", params=Ask(1), approval=may_be), Done)
    ctx.compensate("payment", send_refund, operation_id="r-1", params=Ask(1), approval=approval)
    ctx.compensate("payment", send_refund, operation_id="r-1", params=Ask(1), approval=may_be)
    ctx.compensate("note", send_note, operation_id="n-1", params=None, approval=approval)


def blocking_undos(ctx: BlockingObjectContext, approval: Approval) -> None:
    assert_type(ctx.effect(send_charge, operation_id="c-1", params=Ask(1), approval=approval, compensate=True), Done)
    outcome = ctx.effect_outcome(send_charge, operation_id="c-1", params=Ask(1), compensate=True)
    assert_type(outcome, Succeeded[Done] | EffectRejected | Unknown)
    ctx.compensate("payment", send_refund, operation_id="r-1", params=Ask(1), approval=approval)


async def refused_undos(ctx: ObjectContext, approval: Approval) -> None:
    one = Ask(1)
    await ctx.effect(send_charge, operation_id="c", params=one, compensate=send_refund)  # type: ignore[arg-type]  # E yes or no
    await ctx.effect(send_charge, operation_id="c", params=one, compensate="undo")  # type: ignore[arg-type]  # E yes or no
    await ctx.effect_outcome(send_charge, operation_id="c", params=one, compensate=None)  # type: ignore[arg-type]  # E yes or no
    await ctx.effect(send_charge, operation_id="c", params=one, approval="refund.1")  # type: ignore[arg-type]  # E no approval
    await ctx.effect_outcome(send_charge, operation_id="c", params=one, approval=True)  # type: ignore[arg-type]  # E no approval
    ctx.compensate("p", send_refund, operation_id="r", params=one, approval="refund.1")  # type: ignore[call-overload]  # E no approval
    ctx.compensate("p", send_refund, operation_id="r", params="1", approval=approval)  # type: ignore[misc]  # E other parameters
    ctx.compensate("p", send_refund, operation_id="r", params=one, compensate=True)  # type: ignore[call-overload]  # E an undo has none
    ctx.compensate("p", decide, 1, "b", approval=approval)  # type: ignore[call-overload]  # E a function takes no approval


def blocking_refused_undos(ctx: BlockingObjectContext, approval: Approval) -> None:
    ctx.effect(send_charge, operation_id="c", params=Ask(1), compensate=1)  # type: ignore[arg-type]  # E yes or no
    ctx.effect_outcome(send_charge, operation_id="c", params=Ask(1), approval=3)  # type: ignore[arg-type]  # E no approval
    ctx.compensate("p", decide, 1, "b", approval=approval)  # type: ignore[call-overload]  # E a function takes no approval


async def refused_effects(ctx: ObjectContext, read: SharedContext) -> None:
    await ctx.effect(send_refund, operation_id="r-1", params="1")  # type: ignore[misc]  # E other parameters
    await ctx.effect(send_refund, params=Ask(1))  # type: ignore[call-arg]  # E an operation without a name
    ctx.compensate("p", send_refund, params=Ask(1))  # type: ignore[call-overload]  # E an undo without a name
    ctx.compensate("p", send_refund, operation_id="r", params="1")  # type: ignore[misc]  # E other parameters
    ctx.compensate("p", decide, 1, operation_id="r")  # type: ignore[call-overload]  # E a function has no operation id
    await ctx.effect(read_order, operation_id="r-1", params="k")  # type: ignore[arg-type]  # E a function is no effect
    await read.effect(send_refund, operation_id="r", params=Ask(1))  # type: ignore[attr-defined]  # E it only reads
    _wrong: int = await ctx.effect(send_refund, operation_id="r", params=Ask(1))  # type: ignore[arg-type]  # E another receipt


async def messages(ctx: ObjectContext) -> None:
    assert_type(await ctx.call(refund, "acme/1", Ask(1)), Done)
    assert_type(await ctx.call(blocking_refund, Key("acme", "1"), Ask(1)), Done)
    assert_type(await ctx.call(touch, "acme/1"), None)
    assert_type(await ctx.call(blocking_touch, "acme/1"), int)
    assert_type(await ctx.call(count, "acme/1"), int)
    assert_type(await ctx.call(refund_many, "acme/1", [Ask(1)]), dict[str, Done])
    assert_type(await ctx.call("Order", "acme/1", "refund", {"amount": 1}), Any)
    assert_type(await ctx.send(refund, "acme/1", Ask(1), delay=timedelta(hours=1)), Sent)
    assert_type(await ctx.send("Order", "acme/1", "touch", delay=0.5), Sent)
    assert_type(await ctx.attach("Order.3.0193"), Any)
    assert_type(await ctx.attach("Order.3.0193", Done), Done)
    assert_type(await ctx.attach("Order.3.0193", type=list[int]), list[int])
    await ctx.sleep(timedelta(days=1))
    await ctx.sleep(0.5)


async def waits(ctx: ObjectContext) -> None:
    awakeable = await ctx.awakeable(Done)
    assert_type(awakeable, Awakeable[Done])
    assert_type(awakeable.id, str)
    assert_type(await awakeable, Done)
    assert_type(await awakeable.wait(timeout=timedelta(days=1)), Done)
    assert_type(await (await ctx.awakeable(Done | None)).wait(), Done | None)
    assert_type(await ctx.awakeable(), Awakeable[Any])
    assert_type(await ctx.signal("paid", list[Ask]), list[Ask])
    assert_type(await ctx.signal("paid", Ask | None, timeout=3), Ask | None)
    assert_type(await ctx.resolve_awakeable("id", Ask(1)), WaitVerdict)
    assert_type(await ctx.reject_awakeable("id", "no", code="said-no"), WaitVerdict)
    assert_type(await ctx.send_signal("id", "paid", 3), WaitVerdict)
    assert_type(await ctx.send_signal(("Order", Key("acme", "1")), "paid", [Ask(1)], list[Ask]), WaitVerdict)


async def refused_waits(ctx: ObjectContext) -> None:
    await ctx.signal("paid")  # type: ignore[call-arg]  # E what it carries has to be said
    await ctx.signal(3, int)  # type: ignore[arg-type]  # E a name is text
    _wrong: int = await ctx.signal("paid", str)  # type: ignore[arg-type]  # E another type
    _other: int = await (await ctx.awakeable(str))  # type: ignore[arg-type]  # E another type


def blocking_waits(ctx: BlockingObjectContext) -> None:
    assert_type(ctx.awakeable(Done).wait(timeout=3), Done)
    assert_type(ctx.signal("paid", Ask), Ask)
    assert_type(ctx.send_signal("id", "paid", 3), WaitVerdict)


async def branches(ctx: ObjectContext) -> None:
    assert_type(await ctx.gather(ctx.run("decide", decide, 1, "b"), ctx.sleep(1)), tuple[Done, None])
    assert_type(await ctx.gather(*(ctx.call(blocking_touch, key) for key in ("t/a", "t/b"))), tuple[int, ...])
    three = await ctx.gather(ctx.call(touch, "t/a"), ctx.call(count, "t/a"), ctx.run("inline", lambda: "word"))
    assert_type(three, tuple[None, int, str])
    assert_type(await ctx.select(one=ctx.call(count, "t/a"), two=ctx.call(blocking_touch, "t/a")), tuple[str, int])
    async for done in ctx.as_completed(ctx.call(count, "t/a"), ctx.call(blocking_touch, "t/a")):
        assert_type(done, DurableTask[int])
        assert_type(await done, int)
    async with ctx.task_group() as group:
        task = group.create_task(ctx.run("read", read_order, "k"))
        assert_type(task, DurableTask[Ask])
        assert_type(await task, Ask)
        group.create_task(read_order)  # type: ignore[arg-type]  # E a function that is not called
    _wrong: tuple[int, int] = await ctx.gather(ctx.sleep(1), ctx.sleep(1))  # type: ignore[assignment]  # E other results


def blocking_messages(ctx: BlockingObjectContext) -> None:
    assert_type(ctx.call(refund, "acme/1", Ask(1)), Done)
    assert_type(ctx.call("Order", "acme/1", "touch"), Any)
    assert_type(ctx.send(touch, "acme/1", delay=1), Sent)
    assert_type(ctx.attach("Order.3.0193", Done), Done)
    ctx.sleep(timedelta(days=1))


async def refused_messages(ctx: ObjectContext, shared: SharedContext) -> None:
    await ctx.call(refund, "acme/1", "40.00")  # type: ignore[misc]  # E another type of argument
    await ctx.call(refund, "acme/1")  # type: ignore[arg-type]  # E the argument is missing
    await ctx.send(touch, "acme/1", Ask(1))  # type: ignore[misc]  # E the handler takes none
    await ctx.send(refund, "acme/1", Ask(1), delay="1 h")  # type: ignore[call-overload]  # E no time
    await ctx.call(refund, "acme/1", Ask(1), delay=1)  # type: ignore[call-overload]  # E a call is made now
    await shared.call(count, "acme/1")  # type: ignore[attr-defined]  # E a shared handler only reads


async def state(ctx: ObjectContext) -> None:
    assert_type(await ctx.get("proposal", Ask), Ask | None)
    assert_type(await ctx.get("proposals", list[Ask]), list[Ask] | None)
    assert_type(await ctx.get("either", Ask | int), Ask | int | None)
    assert_type(await ctx.get("nested", dict[str, Ask | None]), dict[str, Ask | None] | None)
    assert_type(await ctx.get("count", int, 0), int)
    assert_type(await ctx.state_keys(), list[str])
    ctx.set("proposal", Ask(1))
    ctx.set("proposals", [Ask(1)], list[Ask])
    ctx.clear("proposal")
    ctx.clear_all()
    await ctx.get("count")  # type: ignore[call-overload]  # E a value without a type
    ctx.key = Key("acme", "1")  # type: ignore[misc]  # E the key does not change


async def always(ctx: SharedContext) -> None:
    assert_type(ctx.key, Key)
    assert_type(ctx.invocation_id, str)
    assert_type(ctx.uuid(), UUID)
    assert_type(ctx.random(), Random)
    assert_type(await ctx.time(), datetime)
    assert_type(await ctx.get("count", int, 0), int)
    ctx.log.info("read")
    ctx.set("count", 1)  # type: ignore[attr-defined]  # E a shared handler never writes
    await ctx.run("read", read_order, "k")  # type: ignore[attr-defined]  # E a shared handler runs no step


async def takes_any_reader(ctx: SharedContext) -> int:
    return await ctx.get("count", int, 0)


async def helpers(ctx: ObjectContext) -> None:
    assert_type(await takes_any_reader(ctx), int)


def blocking(ctx: BlockingObjectContext) -> None:
    assert_type(ctx.run("decide", decide, 1, "b"), Done)
    assert_type(ctx.run("typed", read_json, "k", type=list[Ask]), list[Ask])
    assert_type(ctx.get("proposals", list[Ask]), list[Ask] | None)
    assert_type(ctx.get("count", int, 0), int)
    assert_type(ctx.state_keys(), list[str])
    assert_type(ctx.time(), datetime)
    assert_type(ctx.attempt, int)
    ctx.run("decide", decide, "1", "b")  # type: ignore[arg-type, call-arg]  # E another type of argument


def blocking_reader(ctx: BlockingSharedContext) -> None:
    assert_type(ctx.get("count", int), int | None)
    ctx.clear("count")  # type: ignore[attr-defined]  # E a shared handler never writes


async def mixed(ctx: ObjectContext) -> None:
    blocking_reader(ctx)  # type: ignore[arg-type]  # E an awaiting context where a blocking one is needed
    waiting: Awaitable[Ask | None] = ctx.get("proposal", Ask)
    await waiting
