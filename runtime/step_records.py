"""The records of a step: what former runs have left of it, and how what it comes to now is made durable."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from ..journal import operations
from ..journal.codec import pack
from ..journal.command_records import (
    CancelDelivered,
    CompensationSkipped,
    ModelCallBegun,
    StepAttemptFailed,
    StepCompleted,
    StepFailed,
)
from ..journal.futures import resolve
from ..journal.place import format_place
from .cancel_delivery import cascade, told
from .checkpoints import IN_FLIGHT_MAX, keep_back
from .commands import diverge
from .endings import accept_in_order, acceptance, record, state_change, weigh_failure
from .large_values import kept_delta
from .replay import OF_GOING_STEPS

if TYPE_CHECKING:
    from ..journal.records import Record
    from ..objects.handler import Checkpoint
    from .conductor import Conductor
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .step_plan import StepPlan

NOTHING: Final = pack(None)

_Settled = TypeVar("_Settled", StepCompleted, StepFailed)


async def recorded(
    ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan
) -> StepCompleted | StepFailed | None:
    """Return what a former run recorded for this step; the code must ask for what the journal has."""
    while True:
        found = ctx.next_recorded()
        match found:
            case StepCompleted() | StepFailed() if _is_of(found, plan):
                ctx.pass_recorded()
                return found
            case StepAttemptFailed() | ModelCallBegun() if _is_of(found, plan):
                ctx.pass_recorded()
            case CompensationSkipped() if found.index == plan.index:
                # An undo that was given up is through, as one that has worked.
                ctx.pass_recorded()
                return StepCompleted(found.index, found.name, NOTHING)
            case None:
                return None
            case _:
                await diverge(ctx, lane, invocation, found, f"step {format_place(plan.index)} {plan.name!r}")


def _is_of(found: StepCompleted | StepFailed | StepAttemptFailed | ModelCallBegun, plan: StepPlan) -> bool:
    return (found.index, found.name) == (plan.index, plan.name)


def may_be_of(found: Record, plan: StepPlan) -> bool:
    """Return whether a record may stand at the place of a step; a cancellation may have come in place of any."""
    match found:
        case StepCompleted() | StepFailed() | StepAttemptFailed() | ModelCallBegun():
            return _is_of(found, plan)
        case _:
            return isinstance(found, CancelDelivered)


async def settle(ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
    """Wait until all that this step is built on is durable, its own acceptance included."""
    ctx.check_current()
    mode = mode_of(ctx, invocation)
    if mode == "async" and invocation.accepted and lane.unsettled <= ctx.in_flight < IN_FLIGHT_MAX:
        # Nothing but its own results is on the way.
        return
    if mode == "exit":
        if lane.is_settled_but_for_intake:
            return
    elif not invocation.accepted:
        accept_in_order(lane, invocation)
    gate = lane.gate()
    if gate is not None:
        await ctx.through(gate)


async def write_result(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, fact: _Settled) -> _Settled:
    """Write what a step has come to, and return it; in `exit` mode it is kept back until its handler ends."""
    if mode_of(ctx, invocation) == "exit" and not _is_paid_for(fact):
        ctx.check_current()
        kept_back = keep_back(invocation, fact, ctx.writes)
        ctx.pass_kept_back()
        if kept_back.is_full:
            await make_durable(ctx, lane, invocation, None, [])
        return fact
    if isinstance(fact, StepFailed):
        weigh_failure(lane, fact.error)
    await make_durable(ctx, lane, invocation, fact, [])
    if isinstance(fact, StepCompleted) and fact.usage is not None:
        lane.partition.meters.model_answered(invocation, fact.usage)
    return fact


async def tell_of_cancel(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan) -> NoReturn:
    """Record, in place of a step, that the handler is told of its cancel; its branches begin no step any more.

    Raises:
        Cancelled: Once that is durable.
    """
    if ctx.conductor is not None and not ctx.conductor.is_main_here:
        await ctx.conductor.held_back()
    fact = CancelDelivered(plan.index, *ctx.carried())
    await make_durable(ctx, lane, invocation, fact, cascade(lane, invocation))
    raise told(invocation)


async def make_durable(
    ctx: ExclusiveContext,
    lane: Lane,
    invocation: Invocation,
    fact: Record | None,
    more: list[operations.Operation],
) -> None:
    """Make a record durable, with what was kept back and the state written since the last one.

    The code of an `async` handler goes on when the result of a step is queued.
    """
    ctx.check_current()
    if ctx.conductor is not None:
        await _make_durable_in_turn(ctx, fact, more, ctx.conductor)
        return
    if not invocation.accepted:
        accept_in_order(lane, invocation)
    writes = acceptance(lane, invocation)
    if fact is not None:
        record(invocation, fact)
        writes.append(operations.record(lane.partition.space, invocation.raw_id, fact))
    delta = kept_delta(lane, ctx.writes) if ctx.writes else ctx.writes
    writes.extend(state_change(lane, invocation, delta))
    writes.extend(more)
    is_async = mode_of(ctx, invocation) == "async"
    if is_async and isinstance(fact, StepCompleted | StepFailed) and not _is_paid_for(fact):
        ctx.in_flight += 1
        lane.commit(writes, delta or None, partial(_note_durable_meanwhile, ctx, invocation, fact))
    else:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.commit(writes, delta or None, partial(_note_durable, invocation, fact, durable))
        await ctx.through(durable)
    ctx.pass_durable_point()
    if not isinstance(fact, OF_GOING_STEPS):
        ctx.replay_if_forced()


async def _make_durable_in_turn(
    ctx: ExclusiveContext, fact: Record | None, more: list[operations.Operation], conductor: Conductor
) -> None:
    """Record what a step of a branch has come to once all else is quiet, and wait until it is handed over."""
    assert isinstance(fact, StepCompleted | StepAttemptFailed | ModelCallBegun | StepFailed | CancelDelivered)

    def make() -> None:
        reads, notes = ctx.carried()
        conductor.write(replace(fact, reads=reads, notes=notes), more)

    is_over = not isinstance(fact, OF_GOING_STEPS)
    await conductor.at_turn(conductor.current, fact.index, make, works_on=not is_over)


def mode_of(ctx: ExclusiveContext, invocation: Invocation) -> Checkpoint:
    """Return when the result of a step is written now: those of branches, and undos, before the code goes on."""
    mode = invocation.handler.checkpoint
    if mode == "sync" or ctx.conductor is not None:
        return "sync"
    standing = invocation.standing
    return mode if standing is None or standing.extras.compensation is None else "sync"


def _is_paid_for(fact: StepCompleted | StepFailed) -> bool:
    """Return whether a result is the answer of a model: it is durable before anything else, whatever the mode."""
    return isinstance(fact, StepCompleted) and fact.usage is not None


def _note_durable(
    invocation: Invocation, fact: Record | None, future: asyncio.Future[None], now_ms: int, error: BaseException | None
) -> None:
    """Note a durable record for the next run, also when the one that wrote it waits no longer."""
    del now_ms
    if error is None and fact is not None:
        invocation.records.append(fact)
    resolve(future, None, error)


def _note_durable_meanwhile(
    ctx: ExclusiveContext, invocation: Invocation, fact: Record, now_ms: int, error: BaseException | None
) -> None:
    """Note a durable record while the code goes on; a refusal makes its run stale, which it finds at its next await."""
    del now_ms
    ctx.in_flight -= 1
    if error is None:
        invocation.records.append(fact)
