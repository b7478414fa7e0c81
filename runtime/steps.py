"""`ctx.run`: a step is tried until it has a result, and the result is recorded before anybody sees it."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.to_thread

from ..journal import operations
from ..journal.codec import REFERENCE_BYTES
from ..journal.command_records import StepAttemptFailed, StepCompleted, StepFailed
from ..journal.errors import (
    InvalidOutput,
    PayloadTooLarge,
    RetryableError,
    Suspended,
    TerminalError,
    fields_of,
)
from ..journal.errors import (
    StepFailed as StepFailedError,
)
from ..journal.place import format_place, place_bytes
from ..journal.records import PauseReason
from .bounds import SHORT_NAME, check_name, check_packed, check_unpacked, has_too_many_records, why_too_many
from .cancel_delivery import is_due
from .commands import diverge, loaded, park
from .failures import failure_of, terminal_error
from .large_reads import whole
from .large_values import kept_for
from .models import begun
from .own_context import in_own_context, in_thread
from .parking import has_to_stop
from .partition import Phase
from .step_plan import StepPlan, StepPlans
from .step_records import make_durable, may_be_of, mode_of, recorded, settle, tell_of_cancel, write_result

if TYPE_CHECKING:
    from ..objects.settings import Settings
    from .compensation import Compensation
    from .conductor import Conductor
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition
    from .slots import Slots
    from .timers import Timers


class Steps:
    """Runs the steps of a worker's invocations.

    Args:
        settings: The effective settings.
        slots: Gets a slot back while a step waits for its next attempt.
        timers: Wakes a step whose next attempt is due.
        limiter: Bounds the threads that plain functions run on.
    """

    def __init__(self, settings: Settings, slots: Slots[Lane], timers: Timers, limiter: anyio.CapacityLimiter) -> None:
        self._slots = slots
        self._timers = timers
        self._limiter = limiter
        self._plans = StepPlans(settings.retry)
        self._payload_limit_bytes = settings.payload_limit_bytes
        self._records_max = settings.records_per_invocation
        self._random = random.Random()  # noqa: S311

    def now(self, partition: Partition) -> datetime:
        """Return a partition's time."""
        return datetime.fromtimestamp(partition.now_ms() / 1000, tz=UTC)

    async def run(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        name: str,
        action: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        *,
        is_of_a_model: bool = False,
    ) -> Any:
        """Return a step's recorded result, running it first where there is none.

        Raises:
            TerminalError: The step raised one, now or in the recorded run.
            StepFailed: Its attempts are spent and `on_exhausted="raise"`.
        """
        if type(name) is not str or len(name) > SHORT_NAME:
            check_name("step", name)
        make = self._plans.make_asking if is_of_a_model else self._plans.make
        plan = make(name, ctx.take_index(), action, arguments, options)
        if ctx.conductor is not None:
            settled = await self._in_branch(ctx, lane, invocation, plan, ctx.conductor)
        else:
            settled = await recorded(ctx, lane, invocation, plan) if ctx.is_replaying else None
            if settled is None:
                settled = await self._begin(ctx, lane, invocation, plan)
        if isinstance(settled, StepFailed):
            raise _error_of(settled)
        packed = settled.result
        if len(packed) == REFERENCE_BYTES:
            packed = await whole(ctx, lane, invocation, packed, f"result of step {name}")
        return await loaded(ctx, lane, invocation, plan.boundary, packed, f"result of step {name!r}")

    async def _begin(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan
    ) -> StepCompleted | StepFailed:
        if plan.asks is not None or (invocation.accepted and lane.is_settled):
            # What is written ahead of a call of a model is durable after all that it is built on.
            ctx.check_current()
        else:
            await settle(ctx, lane, invocation)
        if (
            lane.partition.memory.is_full
            or has_to_stop(lane, invocation)
            or has_too_many_records(invocation, self._records_max)
        ):
            await self.may_begin(ctx, lane, invocation)
        return await self._try(ctx, lane, invocation, plan)

    async def _in_branch(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan, conductor: Conductor
    ) -> StepCompleted | StepFailed:
        """Return what a step of a branch has come to: handed over in the order of the journal, or run beside others."""
        branch = conductor.current
        found = conductor.replay.at(plan.index)
        if found is not None and not may_be_of(found, plan):
            await diverge(ctx, lane, invocation, found, f"step {format_place(plan.index)} {plan.name!r}")
        settled = await conductor.turn_of_step(branch, plan.index)
        if settled is None:
            try:
                with conductor.working(branch, plan.index):
                    settled = await self._begin(ctx, lane, invocation, plan)
            except asyncio.CancelledError:
                await conductor.turn_of_cut(branch)
                raise
        assert isinstance(settled, StepCompleted | StepFailed)
        return settled

    async def undo(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, undone: Compensation) -> None:
        """Run an undo, unless it is recorded that it has worked or was given up; one that fails for good parks.

        Raises:
            Suspended: It is parked, or this run is not the current one any more.
        """
        plan = self._plans.make(undone.step_name, ctx.index, undone.action, undone.arguments, dict(undone.options))
        plan.on_exhausted = "park"
        if plan.is_coroutine:
            plan.action = partial(_without_a_handler, plan.action)
        ctx.index += 1
        if ctx.is_replaying and await recorded(ctx, lane, invocation, plan) is not None:
            return
        await self.may_begin(ctx, lane, invocation)
        with ctx.in_step(plan.name):
            await self._try(ctx, lane, invocation, plan)

    async def undo_later(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, name: str, error: BaseException
    ) -> None:
        """Wait until an undo is to be tried again that could not be begun, as one that is a step would.

        Raises:
            Suspended: Its attempts are spent and it is parked, or this run is not the current one any more.
        """
        plan = self._plans.make(name, ctx.index, _nothing, (), {})
        attempt = 1 + (0 if invocation.standing is None else invocation.standing.attempts_of(plan.index))
        if plan.retry.is_spent(attempt):
            await self._park_undo(ctx, lane, invocation, plan, error)
        await self._wait(ctx, lane, invocation, plan, attempt, error)
        await self.may_begin(ctx, lane, invocation)

    async def may_begin(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
        """Wait until the store has room for what a command records; one record too many parks the invocation.

        Raises:
            Suspended: It is parked, its object or itself is to be paused, or this run is not the current one any more.
        """
        if is_due(invocation):
            # In place of the command its handler is told that it is cancelled, which needs no room.
            return
        if lane.partition.memory.is_full:
            await self._room(ctx, lane, invocation)
        if ctx.conductor is not None:
            await ctx.conductor.until_live()
        if has_to_stop(lane, invocation):
            raise ctx.end(Suspended())
        if has_too_many_records(invocation, self._records_max):
            await park(ctx, lane, invocation, PauseReason.TOO_MANY_RECORDS, why_too_many(invocation), None)

    async def _room(self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
        """Wait until the store has room for what a step records; the slot serves others meanwhile."""
        partition = lane.partition
        if partition.phase is not Phase.OPEN:
            raise ctx.end(Suspended())
        # Several branches may wait for room, each by itself.
        name = invocation.raw_id if ctx.conductor is None else invocation.raw_id + place_bytes(ctx.place)
        room = partition.sleepers[name] = partition.memory.room()
        with self._slots.lent():
            try:
                await room
            except Suspended as suspended:
                raise ctx.end(suspended) from None
            finally:
                partition.sleepers.pop(name, None)
        ctx.check_current()

    async def _try(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan
    ) -> StepCompleted | StepFailed:
        while True:
            if is_due(invocation):
                await tell_of_cancel(ctx, lane, invocation, plan)
            standing = invocation.standing if invocation.kept_back is None else None
            attempt = 1 + (standing.attempts_of(plan.index) if standing else 0)
            if plan.asks is not None:
                fact, is_again = begun(ctx, invocation, plan, plan.asks)
                await make_durable(ctx, lane, invocation, fact, [])
                lane.partition.meters.model_asked(invocation, fact, is_again=is_again)
            try:
                if lane.partition.spans.is_on:
                    with lane.partition.spans.step(invocation, plan.name, attempt):
                        packed = await self._attempt(plan)
                else:
                    packed = await self._attempt(plan)
            except TerminalError as error:
                if plan.on_exhausted == "park":
                    await self._park_undo(ctx, lane, invocation, plan, error)
                return await write_result(ctx, lane, invocation, self._failed(ctx, plan, error))
            except BaseException as error:
                if _is_not_its_own(error):
                    raise
                if is_due(invocation):
                    # There is no later attempt of what is cancelled.
                    continue
                if plan.retry.is_spent(attempt):
                    return await self._exhausted(ctx, lane, invocation, plan, attempt, error)
                await self._wait(ctx, lane, invocation, plan, attempt, error)
                await self.may_begin(ctx, lane, invocation)
            else:
                reads, notes = ctx.carried()
                usage = None if plan.asks is None else plan.asks.usage
                is_kept_back = usage is None and mode_of(ctx, invocation) == "exit"
                result = packed if is_kept_back else kept_for(lane, invocation, packed)
                fact = StepCompleted(plan.index, plan.name, result, reads, notes, usage)
                return await write_result(ctx, lane, invocation, fact)

    async def _attempt(self, plan: StepPlan) -> bytes:
        if plan.timeout is not None:
            with anyio.fail_after(plan.timeout.total_seconds()):
                value = await self._called(plan)
        else:
            value = await self._called(plan)
        try:
            if plan.asks is not None:
                value = plan.asks.take(plan.name, value)
            check_unpacked("step", plan.name, value, self._payload_limit_bytes)
            packed = plan.boundary.dump(value)
            check_packed("step", plan.name, packed, self._payload_limit_bytes)
        except (InvalidOutput, PayloadTooLarge) as error:
            # Running it again would give the same kind of value, and perhaps the outside action twice.
            raise TerminalError(error.message, code=error.code, details=fields_of(error)) from error
        return packed

    def _called(self, plan: StepPlan) -> Awaitable[Any]:
        return plan.action(*plan.arguments) if plan.is_coroutine else self._in_thread(plan)

    async def _in_thread(self, plan: StepPlan) -> Any:
        run = partial(plan.action, *plan.arguments)
        value = await anyio.to_thread.run_sync(in_thread, run, limiter=self._limiter, abandon_on_cancel=True)
        return await value if inspect.isawaitable(value) else value

    def _failed(self, ctx: ExclusiveContext, plan: StepPlan, error: TerminalError) -> StepFailed:
        reads, notes = ctx.carried()
        return StepFailed(plan.index, plan.name, failure_of(error, self._payload_limit_bytes), reads, notes)

    async def _exhausted(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        plan: StepPlan,
        attempts: int,
        error: BaseException,
    ) -> StepFailed:
        failure = failure_of(error)
        text = f"{type(error).__name__}: {failure.message}"
        if plan.on_exhausted == "raise":
            spent = StepFailedError(plan.name, attempts, text)
            return await write_result(ctx, lane, invocation, self._failed(ctx, plan, spent))
        if plan.on_exhausted == "park":
            await self._park_undo(ctx, lane, invocation, plan, error)
        detail = f"step {plan.name!r} failed {attempts} times, the last time with {text}"
        return await park(ctx, lane, invocation, PauseReason.RETRIES_SPENT, detail, failure)

    async def _park_undo(
        self, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, plan: StepPlan, error: BaseException
    ) -> NoReturn:
        """Park an invocation whose undo has failed for good: a person tries it again, or gives it up."""
        failure = failure_of(error)
        detail = f"{plan.name!r} failed for good with {type(error).__name__}: {failure.message}"
        await park(ctx, lane, invocation, PauseReason.COMPENSATION_FAILED, detail, failure)

    async def _wait(
        self,
        ctx: ExclusiveContext,
        lane: Lane,
        invocation: Invocation,
        plan: StepPlan,
        attempt: int,
        error: BaseException,
    ) -> None:
        """Record a failed attempt and wait until the next is due; the slot serves others meanwhile.

        What is cancelled meanwhile has no next one, and what is to be paused waits for it no longer.
        """
        wanted = error.retry_after if isinstance(error, RetryableError) else None
        delay = plan.retry.delay(attempt, self._random.random, retry_after=wanted)
        delay_ms = max(int(delay.total_seconds() * 1000), 1)
        lane.partition.meters.retried(lane.partition, "step" if plan.asks is None else "model call")
        reads, notes = ctx.carried()
        fact = StepAttemptFailed(plan.index, plan.name, attempt, failure_of(error), delay_ms, reads, notes)
        if ctx.conductor is not None:
            await make_durable(ctx, lane, invocation, fact, [])
            await ctx.conductor.next_attempt(plan.index)
            return
        await make_durable(ctx, lane, invocation, fact, [operations.schedule(invocation.raw_id, delay_ms)])
        if is_due(invocation):
            # It was asked for while that was on its way, and has taken the due time away.
            return
        if invocation.pause_wish is not None:
            raise ctx.end(Suspended())
        with self._slots.lent():
            try:
                await self._timers.due(lane.partition, invocation.raw_id, delay_ms)
            except Suspended as suspended:
                # A handler that swallows it must not be taken to have succeeded.
                raise ctx.end(suspended) from None
        ctx.check_current()


def _without_a_handler(action: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    """Call what undoes something as a handler is called: none is around it that would see what it may not raise."""
    return in_own_context(action(*arguments))


def _is_not_its_own(error: BaseException) -> bool:
    """Return whether an exception came to a step from outside; whatever it raises itself is retried."""
    match error:
        case asyncio.CancelledError():
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0
        case KeyboardInterrupt() | GeneratorExit():
            return True
        case _:
            return False


def _error_of(settled: StepFailed) -> TerminalError:
    return terminal_error(settled.error)


def _nothing() -> None:
    pass
