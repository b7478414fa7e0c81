"""Runs the invocations of a lane, one after the other, and decides what becomes of each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ..journal.codec import REFERENCE_BYTES, Undecodable
from ..journal.command_transitions import with_attempt_begun
from ..journal.errors import (
    Fenced,
    InternalError,
    InvalidInput,
    InvalidOutput,
    KeylaneError,
    PayloadTooLarge,
    RetryableError,
    Suspended,
    TerminalError,
)
from ..journal.outcomes import Rejected, Stopped, Succeeded
from ..journal.records import PauseReason
from ..journal.standing import Status
from ..journal.timeline import in_words as failure_in_words
from .aside import step_aside
from .blocking_context import BlockingExclusiveContext
from .bounds import check_packed, check_unpacked, has_too_many_records, why_too_many
from .cancel_delivery import is_due, is_only_cancelled, stopped, was_told
from .commands import in_words
from .compensation import is_begun, undo
from .context import ExclusiveContext
from .endings import finish, has_left, pause, retry_later
from .failures import failure_of
from .handler_thread import HandlerThread
from .invocation import Hold, Invocation
from .lane import Lane
from .large_reads import whole
from .migrations import bring_up_to_date
from .own_context import in_own_context
from .parking import park
from .partition import OwnershipLost, Phase
from .pausing import fulfil
from .replies import refuse

if TYPE_CHECKING:
    from ..objects.handler import Handler
    from ..objects.policies import RetryPolicy
    from ..objects.settings import Settings
    from .effects import Effects
    from .slots import Slots
    from .steps import Steps
    from .timers import Timers

logger = logging.getLogger("keylane.invocation")

#: How many invocations of one lane a slot runs before it gives way to another lane.
INVOCATIONS_PER_TURN = 16


class Execution:
    """Runs invocations on a worker.

    Args:
        settings: The effective settings.
        timers: Wakes an invocation whose next attempt is due.
        limiter: Bounds the threads that plain handlers run on.
    """

    def __init__(self, settings: Settings, timers: Timers, limiter: anyio.CapacityLimiter) -> None:
        self._retry = settings.retry
        self._records_max = settings.records_per_invocation
        self._details_limit_bytes = settings.payload_limit_bytes
        self._timers = timers
        self._limiter = limiter
        self._random = random.Random()  # noqa: S311
        self.steps: Steps
        self.messages: Effects
        self.slots: Slots[Lane]

    async def turn(self, lane: Lane) -> None:
        """Run a few invocations of a lane that no other slot has."""
        partition = lane.partition
        partition.running += 1
        try:
            for _ in range(INVOCATIONS_PER_TURN):
                invocation = lane.head()
                if invocation is None or partition.phase is not Phase.OPEN:
                    break
                lane.running = invocation
                if invocation.pause_wish is None:
                    await self._run_guarded(lane, invocation)
                if invocation.pause_wish is not None:
                    await fulfil(lane, invocation)
        finally:
            lane.running = None
            lane.busy = False
            partition.running -= 1
        if partition.phase is Phase.OPEN:
            partition.host.ready(lane)

    async def _run_guarded(self, lane: Lane, invocation: Invocation) -> None:
        """Keep the slot alive whatever one invocation does."""
        try:
            await self._run(lane, invocation)
        except (Fenced, OwnershipLost, Suspended):
            # Another owner, or another history of this lane: what was not durable is run again there.
            return
        except asyncio.CancelledError:
            if not invocation.ended or self.slots.is_closing:
                raise
            # It was killed while it was undone; the slot goes on with those behind it.
            await self.slots.absorb_cancel()
        except Exception as error:
            logger.exception("%s: the runtime itself failed", lane.partition.invocation_id(invocation.raw_id))
            await self._give_up(lane, invocation, error)

    async def _give_up(self, lane: Lane, invocation: Invocation, error: Exception) -> None:
        """Take out of the lane's way what the runtime itself can't run: parked where it is durable, else refused."""
        if invocation.ended or lane.refused or not lane.loaded:
            return
        failed = InternalError("the runtime failed on this invocation; see its log")
        if not invocation.accepted:
            self._refuse(lane, invocation, failed)
            return
        try:
            detail = f"the runtime failed on it: {type(error).__name__}"
            await pause(lane, invocation, PauseReason.RETRIES_SPENT, detail, failure_of(error))
            park(lane, invocation)
        except Exception:
            logger.exception("%s: nor can it be parked", lane.partition.invocation_id(invocation.raw_id))
            invocation.hold = Hold.PAUSED
            invocation.tell(failed)

    async def _run(self, lane: Lane, invocation: Invocation) -> None:
        if invocation.needs is not None:
            await pause(lane, invocation, PauseReason.NEEDS_VERSION, invocation.needs, None)
            park(lane, invocation)
            return
        _begin(lane, invocation)
        task = asyncio.current_task()
        own_task = None if invocation.handler.is_blocking else task
        ctx = ExclusiveContext(lane, invocation, self.steps, self.messages, own_task)
        try:
            if lane.is_outdated:
                await bring_up_to_date(ctx, lane, invocation)
            payload = invocation.payload
            if payload is not None and len(payload) == REFERENCE_BYTES:
                payload = await whole(ctx, lane, invocation, payload, "argument")
            arguments = arguments_of(invocation.handler, payload)
        except InvalidInput as error:
            await self._does_not_fit(lane, invocation, error)
            return
        except Suspended:
            self._unwound(lane, invocation)
            return
        try:
            invocation.task = task
            if lane.partition.spans.is_on:
                with lane.partition.spans.running(invocation):
                    packed = await self._result(invocation, ctx, arguments)
            else:
                packed = await self._result(invocation, ctx, arguments)
        except (TerminalError, InvalidOutput, PayloadTooLarge) as error:
            await self._rejected(lane, invocation, ctx, error)
        except BaseException as error:
            if ctx.ended_by is None and self._is_not_its_own(error):
                raise
            await self.slots.absorb_cancel()
            await self._raised(lane, invocation, ctx, error)
        else:
            await self._conclude(lane, invocation, ctx, Succeeded(packed))
        finally:
            invocation.task = None
            ctx.close()

    async def _rejected(self, lane: Lane, invocation: Invocation, ctx: ExclusiveContext, error: Exception) -> None:
        """End an invocation with the error of its handler, unless that was made of what ended the run from within."""
        if ctx.ended_by is not None:
            await self._raised(lane, invocation, ctx, error)
            return
        await self._conclude(lane, invocation, ctx, Rejected(failure_of(error, self._details_limit_bytes)))

    async def _raised(self, lane: Lane, invocation: Invocation, ctx: ExclusiveContext, error: BaseException) -> None:
        """Decide what becomes of an invocation whose handler has raised what is no end of it by itself."""
        if is_begun(invocation) and not _is_parked(invocation):
            await self._conclude(lane, invocation, ctx, None)
        elif ctx.ended_by is not None:
            await self._failed(lane, invocation, ctx, error)
        elif any(error is each for each in ctx.recorded_errors):
            # What another object answered is recorded: no further attempt could get another answer.
            await self._conclude(lane, invocation, ctx, Rejected(failure_of(error)))
        elif is_due(invocation) or (was_told(invocation) and is_only_cancelled(error)):
            # There is no later attempt of what is cancelled, also where its handler was not told in time.
            await self._conclude(lane, invocation, ctx, stopped(invocation))
        else:
            await self._failed(lane, invocation, ctx, error)

    async def _conclude(
        self, lane: Lane, invocation: Invocation, ctx: ExclusiveContext, outcome: Succeeded | Rejected | Stopped | None
    ) -> None:
        """End an invocation whose handler is through, once what has to be undone is.

        Args:
            lane: Its lane.
            invocation: The invocation.
            ctx: The context of its run.
            outcome: How its handler has ended; None where only the journal knows.
        """
        if ctx.is_stale:
            return
        if ctx.is_replaying and not is_begun(invocation) and not isinstance(outcome, Stopped):
            await _park_early(lane, invocation, ctx, outcome)
            return
        if not is_begun(invocation) and (isinstance(outcome, Succeeded) or not ctx.compensations):
            assert outcome is not None
            self._end(lane, invocation, ctx, outcome)
            return
        try:
            ended = None if isinstance(outcome, Succeeded) else outcome
            undone = await undo(ctx, lane, invocation, self.steps, self.messages, ended)
        except (Suspended, Fenced):
            if not ctx.is_stale:
                self._unwound(lane, invocation)
            return
        self._end(lane, invocation, ctx, undone)

    def _is_not_its_own(self, error: BaseException) -> bool:
        """Return whether an exception came to a handler from outside; whatever it raises itself is retried."""
        match error:
            case asyncio.CancelledError():
                return self.slots.is_closing
            case KeyboardInterrupt() | GeneratorExit():
                return True
            case _:
                return False

    async def _result(self, invocation: Invocation, ctx: ExclusiveContext, arguments: tuple[Any, ...]) -> bytes:
        handler = invocation.handler
        if handler.is_blocking:
            thread = HandlerThread(ctx)
            run = partial(thread.run, handler.function, BlockingExclusiveContext(ctx, thread), *arguments)
            value = await anyio.to_thread.run_sync(run, limiter=self._limiter, abandon_on_cancel=True)
        else:
            value = await self._returned(ctx, invocation, handler.function(ctx, *arguments))
        if ctx.ended_by is not None:
            # The handler swallowed what ended it; its value was built on nothing.
            raise ctx.ended_by
        if ctx.interrupted_by is not None:
            raise ctx.interrupted_by
        check_unpacked("result", "", value, self._details_limit_bytes)
        packed = handler.output.dump(value)
        check_packed("result", "", packed, self._details_limit_bytes)
        return packed

    async def _returned(self, ctx: ExclusiveContext, invocation: Invocation, coroutine: Any) -> Any:
        """Return what a handler returns, once its branches have ended too."""
        ctx.coroutine = coroutine
        try:
            value = await in_own_context(coroutine, ctx)
        except BaseException as error:
            if ctx.conductor is not None:
                if self._goes_on_after(error, ctx, invocation):
                    # What its branches did when they were cut off would be part of the journal, and the next attempt,
                    # in which they go on, would not come to it.
                    ctx.conductor.stop(Suspended())
                await ctx.conductor.close(is_failed=True)
            raise
        if ctx.conductor is not None:
            await ctx.conductor.close(is_failed=False)
        return value

    def _goes_on_after(self, error: BaseException, ctx: ExclusiveContext, invocation: Invocation) -> bool:
        """Return whether an invocation goes on from its journal after its handler has failed."""
        if not ctx.is_retried(error) or is_due(invocation) or was_told(invocation):
            return False
        policy = invocation.handler.retry or self._retry
        return policy.then != "fail" or not policy.is_spent(invocation.attempts + 1)

    def _end(
        self, lane: Lane, invocation: Invocation, ctx: ExclusiveContext, outcome: Succeeded | Rejected | Stopped
    ) -> None:
        if ctx.is_stale or invocation.ended:
            return
        delta = {} if isinstance(outcome, Rejected) else ctx.writes
        finish(lane, invocation, outcome, delta)

    async def _does_not_fit(self, lane: Lane, invocation: Invocation, error: InvalidInput) -> None:
        """Answer whose argument the code can't read; what has done something by other code is not over with that."""
        if not invocation.records:
            self._refuse(lane, invocation, error)
            return
        detail = f"the recorded argument does not fit this code: {error.message}"
        await pause(lane, invocation, PauseReason.DIVERGED, detail, None)
        park(lane, invocation)

    def _refuse(self, lane: Lane, invocation: Invocation, error: KeylaneError) -> None:
        """Answer what can't run, such as an argument that does not fit; one that was taken in ends as failed."""
        if invocation.accepted:
            finish(lane, invocation, Rejected(failure_of(error)), {})
            return
        lane.queue.pop(0)
        invocation.ended = True
        if invocation.entry is not None:
            refuse(lane.partition, invocation.raw_id, invocation.entry, invocation.client, error, invocation.caller)
        lane.partition.ended(invocation, error)

    def _unwound(self, lane: Lane, invocation: Invocation) -> None:
        """Take note of why a run ended from within: parked, or its lane has another history now."""
        if _is_parked(invocation):
            park(lane, invocation)
        elif has_left(invocation):
            step_aside(lane, invocation)

    async def _failed(self, lane: Lane, invocation: Invocation, ctx: ExclusiveContext, error: BaseException) -> None:
        if ctx.is_stale or invocation.ended:
            return
        if ctx.ended_by is not None:
            await _landed(lane, ctx)
            self._unwound(lane, invocation)
            return
        policy = invocation.handler.retry or self._retry
        attempt = invocation.attempts + 1
        try:
            if has_too_many_records(invocation, self._records_max):
                detail = f"{why_too_many(invocation)}; its handler failed with {type(error).__name__}"
                await pause(lane, invocation, PauseReason.TOO_MANY_RECORDS, detail, failure_of(error))
                park(lane, invocation)
                return
            if policy.is_spent(attempt):
                await self._spent(lane, invocation, ctx, policy, attempt, error)
                return
            wanted = error.retry_after if isinstance(error, RetryableError) else None
            delay = policy.delay(attempt, self._random.random, retry_after=wanted)
            logger.info("%s failed, attempt %d: %r", ctx.invocation_id, attempt, error)
            await retry_later(lane, invocation, error, delay.total_seconds())
        except Exception as refused:
            if not ctx.is_stale:
                raise
            # The lane runs it again from its journal.
            logger.info("%s: its failed attempt was not recorded: %s", ctx.invocation_id, refused)
            return
        self._hold_until_due(lane, invocation, int(delay.total_seconds() * 1000))

    def _hold_until_due(self, lane: Lane, invocation: Invocation, delay_ms: int) -> None:
        if is_due(invocation):
            # It was asked for while the failure was on its way, and has taken the due time away: it runs once more now.
            return
        invocation.hold = Hold.RETRYING
        release = partial(lane.partition.release_hold, lane, invocation)
        self._timers.call_when_due(lane.partition, invocation.raw_id, delay_ms, release)

    async def _spent(
        self,
        lane: Lane,
        invocation: Invocation,
        ctx: ExclusiveContext,
        policy: RetryPolicy,
        attempts: int,
        error: BaseException,
    ) -> None:
        failure = failure_of(error)
        if policy.then == "fail":
            await self._conclude(lane, invocation, ctx, Rejected(failure))
            return
        detail = f"the handler failed {attempts} times, the last time with {failure_in_words(failure)}"
        await pause(lane, invocation, PauseReason.RETRIES_SPENT, detail, failure)
        park(lane, invocation)


def _begin(lane: Lane, invocation: Invocation) -> None:
    lane.partition.meters.began(invocation)
    invocation.has_run = True
    # Another run kept it back, and is not the current one any more.
    invocation.kept_back = None
    if invocation.standing is not None:
        # What it waits for is due from now on, and not after an attempt that is to come.
        invocation.standing = with_attempt_begun(invocation.standing)


async def _park_early(
    lane: Lane, invocation: Invocation, ctx: ExclusiveContext, outcome: Succeeded | Rejected | None
) -> None:
    """Park an invocation whose handler has ended ahead of what it did in the recorded run: the code is another one."""
    left = ctx.left()
    assert left is not None
    now = f"raises {failure_in_words(outcome.failure)}" if isinstance(outcome, Rejected) else "ends"
    detail = f"recorded {in_words(left)}, the code now {now} ahead of that"
    await pause(lane, invocation, PauseReason.DIVERGED, detail, None)
    park(lane, invocation)


def _is_parked(invocation: Invocation) -> bool:
    return invocation.standing is not None and invocation.standing.status is Status.PAUSED


def arguments_of(handler: Handler[Any, Any], payload: bytes | None) -> tuple[Any, ...]:
    """Return what the handler is called with behind its context.

    Raises:
        InvalidInput: What came does not fit the declared type, or can't be read.
    """
    boundary = handler.input
    if boundary is None:
        return ()
    if payload is None:
        raise InvalidInput(boundary.where, "the handler takes an argument and none was given")
    try:
        return (boundary.load(payload),)
    except Undecodable as error:
        raise InvalidInput(boundary.where, str(error)) from error


async def _landed(lane: Lane, ctx: ExclusiveContext) -> None:
    """Wait until it is known what became of the results that a run had on their way: the next run begins from them."""
    gate = lane.gate() if ctx.in_flight else None
    if gate is not None:
        with contextlib.suppress(Exception):
            # What the store refuses takes the lane back to what is durable.
            await gate
