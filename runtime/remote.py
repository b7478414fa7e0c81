"""The way to an owner in another process: a request in its inbox, and the wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from ..journal.errors import CallError, CallTimeout, KeylaneError, StoreUnavailable
from ..journal.inbox import KNOWN, SUBMISSION_LIMIT_SECONDS, Submission, leaves_no_trace, submit
from ..journal.key import format_id
from ..journal.keyspace import PartitionSpace
from ..journal.outcomes import Replayed
from ..journal.requests import Request
from ..journal.store import Store
from .answers import Answers, Ended

#: The first call to a partition waits so long for its channel, so that the answer is heard; it is found without, too.
SUBSCRIBE_SECONDS: Final = 0.25

#: A wait for an id that says nothing makes sure after so long that the id is known at all, and then ever more rarely.
FIRST_CHECK_SECONDS: Final = 2.0
LOOK_AGAIN_SECONDS: Final = 0.05
CHECK_CAP_SECONDS: Final = 60.0
#: How long making sure may take beyond the caller's own time.
LAST_CHECK_SECONDS: Final = 0.5

Result = TypeVar("Result")


class Patience:
    """How long a caller waits in all, over everything that its call has to wait for.

    Args:
        seconds: From now on; None waits for as long as it takes.
    """

    __slots__ = ("seconds", "until")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.until = None if seconds is None else asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left."""
        return None if self.until is None else max(self.until - asyncio.get_running_loop().time(), 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left == 0.0

    def up_to(self, seconds: float) -> Patience:
        """Return the patience for a part of the waiting."""
        left = self.left
        return Patience(seconds if left is None else min(left, seconds))

    @property
    def submission_seconds(self) -> float:
        """How long a request may take to become durable, which is never waited for without a limit."""
        left = self.left
        return SUBMISSION_LIMIT_SECONDS if left is None else left

    def spent(self, space: PartitionSpace, raw_id: bytes) -> CallTimeout:
        """Return what a caller is told whose patience has run out."""
        return CallTimeout(self.seconds or 0.0, invocation_id=format_id(space.type_name, space.number, raw_id))


class Remote:
    """Calls through inboxes, and waits for ids, for everybody in this process.

    Args:
        store: The open store.
        answers: The waits of this process.
    """

    def __init__(self, store: Store, answers: Answers) -> None:
        self.store = store
        self.answers = answers
        #: By partition tag, the last entry that this process put into the inbox. An owner here has to have taken it in
        #: before a call may go to it directly, or the call would overtake a `send` before it.
        self.last_entries: dict[bytes, bytes] = {}

    async def persist(self, look: Callable[[], Awaitable[Result]], patience: Patience) -> Result:
        """Look something up in the store, again and again while no answer comes.

        Raises:
            StoreUnavailable: None came in time.
        """
        seconds = patience.submission_seconds
        why = f"no answer within {seconds:g} s"
        with anyio.move_on_after(seconds):
            while True:
                try:
                    return await look()
                except StoreUnavailable as error:
                    why = error.why or why
                if self.store.is_closed:
                    break
                await anyio.sleep(LOOK_AGAIN_SECONDS)
        raise StoreUnavailable(self.store.url, f"{why}; nothing was asked of it")

    async def put(self, space: PartitionSpace, request: Request, patience: Patience) -> bytes:
        """Put a request into an inbox; it is durable when this returns.

        Raises:
            CallError: The partition does not take it in.
            StoreError: The store does not; after `StoreUnavailable` whether it did is unknown.
        """
        entry = await submit(self.store, space, request, limit_seconds=patience.submission_seconds)
        self.note_entry(space, entry)
        return entry

    def note_entry(self, space: PartitionSpace, entry: bytes) -> None:
        """Remember what was put into an inbox last."""
        if entry != KNOWN:
            self.last_entries[space.tag] = entry

    async def ask(self, space: PartitionSpace, request: Request, patience: Patience) -> Ended:
        """Put a request into an inbox and wait for its end.

        Raises:
            CallTimeout: The time passed after the request had become durable.
            StoreUnavailable: It passed before; whether the request was taken in is unknown.
            KeylaneError: The request was refused.
        """
        await self._listen(space)
        asked = _Asked(self, space, request)
        submission = Submission(self.store, space, request, asked.submitted, patience.submission_seconds)
        try:
            ended = await self.until(asked.future, patience)
        except TimeoutError:
            raise asked.timed_out(patience) from None
        finally:
            submission.cancel()
            self.answers.forget(request.invocation, asked.future)
        return await self.follow(space, ended, patience) if isinstance(ended, Replayed) else ended

    async def end_of(self, space: PartitionSpace, raw_id: bytes, patience: Patience) -> Ended:
        """Wait for the end of an invocation, which may have come long ago.

        Raises:
            CallTimeout: The time passed.
            CallError: Nothing is known of it.
            ResultExpired: It ended so long ago that its result is no longer kept.
        """
        return await self.follow(space, await self._end_of(space, raw_id, patience), patience)

    async def follow(self, space: PartitionSpace, ended: Ended, patience: Patience) -> Ended:
        """Wait for the first invocation of an idempotency key, which lies in the same partition as those after it."""
        while isinstance(ended, Replayed):
            ended = await self._end_of(space, ended.invocation, patience)
        return ended

    async def acceptance_of(self, space: PartitionSpace, raw_id: bytes, patience: Patience) -> Ended | None:
        """Wait until the owner has taken an invocation in.

        Returns:
            None for one that goes on, else how it ended, which may be a refusal.

        Raises:
            CallTimeout: The time passed; the request stays in the inbox.
            CallError: Nothing is known of it.
        """
        return await self._looked_for(space, raw_id, self.answers.expect_acceptance, patience)

    async def until(self, future: asyncio.Future[Result], patience: Patience) -> Result:
        """Wait for a future as long as patience lasts.

        Raises:
            TimeoutError: It has run out; the future has ended with that.
        """
        left = patience.left
        if left is None:
            return await future
        deadlines = self.answers.deadlines
        slot = deadlines.add(future, left)
        try:
            return await future
        finally:
            deadlines.discard(future, slot)

    def unknown_fate(self, patience: Patience, why: str | None = None) -> StoreUnavailable:
        """Return what a caller is told of a call of which the store has said nothing."""
        told = f"no answer within {patience.seconds:g} s{'' if why is None else f' ({why})'}"
        return StoreUnavailable(self.store.url, f"{told}; whether the call was taken in is unknown")

    async def _end_of(self, space: PartitionSpace, raw_id: bytes, patience: Patience) -> Ended:
        return await self._looked_for(space, raw_id, self.answers.expect, patience)

    async def _looked_for(
        self,
        space: PartitionSpace,
        raw_id: bytes,
        expect: Callable[[PartitionSpace, bytes], asyncio.Future[Result]],
        patience: Patience,
    ) -> Result:
        """Wait for news of an id, and from time to time make sure that there can be any."""
        await self._listen(space)
        check_seconds = FIRST_CHECK_SECONDS
        while True:
            future = expect(space, raw_id)
            self.answers.look(raw_id)
            try:
                return await self.until(future, patience.up_to(check_seconds))
            except TimeoutError:
                if patience.is_spent:
                    raise await self._spent(space, raw_id, patience) from None
            finally:
                self.answers.forget(raw_id, future)
            await self._check_trace(space, raw_id)
            check_seconds = min(2 * check_seconds, CHECK_CAP_SECONDS)

    async def _spent(self, space: PartitionSpace, raw_id: bytes, patience: Patience) -> CallTimeout:
        """Return what a caller is told whose patience has run out, having made sure that there can be an answer at all.

        Raises:
            CallError: Nothing is known of the id.
        """
        with anyio.move_on_after(LAST_CHECK_SECONDS):
            await self._check_trace(space, raw_id)
        return patience.spent(space, raw_id)

    async def _check_trace(self, space: PartitionSpace, raw_id: bytes) -> None:
        """Raise when nothing is known of an id: a wait for it would never end."""
        try:
            is_unknown = await leaves_no_trace(self.store, space, raw_id)
        except StoreUnavailable:
            return
        if is_unknown:
            invocation_id = format_id(space.type_name, space.number, raw_id)
            why = "nothing is known of it: no such call was made, or it ended longer ago than results are kept"
            raise CallError(why, invocation_id=invocation_id)

    async def _listen(self, space: PartitionSpace) -> None:
        subscription = self.answers.subscription
        if subscription.is_up and not subscription.is_subscribed(space.answer_channel):
            await subscription.subscribed(space.answer_channel, SUBSCRIBE_SECONDS)


class _Asked:
    """A request on its way, and whether the store has it."""

    __slots__ = ("entry", "future", "raw_id", "remote", "space")

    def __init__(self, remote: Remote, space: PartitionSpace, request: Request) -> None:
        self.remote = remote
        self.space = space
        self.raw_id = request.invocation
        self.entry: bytes | None = None
        self.future = remote.answers.expect(space, self.raw_id)

    def submitted(self, verdict: bytes | KeylaneError) -> None:
        """Take the store's word for the request."""
        if isinstance(verdict, bytes):
            self.entry = verdict
            self.remote.note_entry(self.space, verdict)
            if verdict == KNOWN:
                self.remote.answers.look(self.raw_id)
        elif not self.future.done():
            self.future.set_exception(verdict)

    def timed_out(self, patience: Patience) -> KeylaneError:
        """Return what the passing of the time means."""
        if self.entry is not None:
            return patience.spent(self.space, self.raw_id)
        return self.remote.unknown_fate(patience, self.remote.store.why_waiting(self.space))
