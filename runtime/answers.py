"""Waiting, outside the owner, for how invocations end.

An announcement on the partition's channel ends a wait at once. It is a hint only: a wait also looks at the store by
itself, 50 ms after it began and then ever more rarely up to the sweep interval, so a lost message costs latency and
nothing else.
Nothing here awaits: a wait is one future, and whatever happens meanwhile happens in callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from ..journal.blobs import digest_in, whole
from ..journal.codec import Undecodable
from ..journal.errors import CallError, KeylaneError, ResultExpired, StoreError, StoreUnavailable
from ..journal.key import format_id
from ..journal.keyspace import PartitionSpace
from ..journal.outcomes import Outcome, Succeeded, decode_outcome
from ..journal.record_bytes import decode
from ..journal.records import Cancelled, Completed, Failed, Killed, Paused
from ..journal.refusals import key_error
from ..journal.requests import Answer, announced_invocation
from ..journal.store import Store
from ..journal.subscription import Listening
from .idle import unheard
from .wheel import Wheel

logger = logging.getLogger("keylane.client")

FIRST_LOOK_SECONDS: Final = 0.05
#: Looks of one process per second: with very many waits, each of them looks more rarely.
LOOKS_PER_SECOND: Final = 2_000
#: What a caller is told whose client is closed under it.
CLOSED: Final = "the client was closed before its answer came; what was taken in of it goes on"
#: A channel on which nobody has waited for so long is given up.
CHANNEL_IDLE_SECONDS: Final = 60.0

#: What had become of an invocation, by its last record.
_HAD: Final[Mapping[type, str]] = {
    Completed: "completed",
    Failed: "failed",
    Cancelled: "been cancelled",
    Killed: "been killed",
}

#: What a wait ends with; `Paused` ends it too, since only a person can make the invocation go on.
Ended: TypeAlias = Outcome | Paused


class Watch:
    """One invocation whose end, or acceptance, somebody in this process waits for."""

    __slots__ = (
        "acceptances",
        "found_ended",
        "futures",
        "is_looking",
        "is_news_due",
        "looks",
        "raw_id",
        "slot",
        "space",
    )

    def __init__(self, space: PartitionSpace, raw_id: bytes) -> None:
        self.space = space
        self.raw_id = raw_id
        self.futures: list[asyncio.Future[Ended]] = []
        self.acceptances: list[asyncio.Future[Ended | None]] = []
        self.looks = 0
        self.slot = 0
        self.is_looking = False
        self.is_news_due = False
        self.found_ended = False


class Answers:
    """The waits of one process.

    Args:
        store: The open store.
        sweep_seconds: How long a wait goes without a look at most.
    """

    def __init__(self, store: Store, *, sweep_seconds: float = 1.0) -> None:
        self.subscription: Listening = store.new_subscription(on_message=self.announced, on_gap=self.look_at_all)
        self.deadlines: Wheel[asyncio.Future[Any]] = Wheel(_time_out)
        self._store = store
        self._sweep_seconds = sweep_seconds
        self._watches: dict[bytes, Watch] = {}
        self._looks: Wheel[Watch] = Wheel(self._look_again)
        self._brooms: Wheel[str] = Wheel(self.sweep_channels)
        self._used_channels: set[bytes] = set()
        self._is_broom_set = False
        self._is_closed = False
        #: Called whenever a wait begins; must not raise.
        self.on_wait: Callable[[], None] = unheard

    @property
    def waiting(self) -> int:
        """How many invocations are waited for."""
        return len(self._watches)

    @property
    def is_awaited(self) -> bool:
        """Whether the end of anything is waited for."""
        return any(watch.futures for watch in self._watches.values())

    def close(self) -> None:
        """Give up all waits and timers."""
        self._is_closed = True
        for wheel in (self.deadlines, self._looks, self._brooms):
            wheel.close()
        for watch in tuple(self._watches.values()):
            self._fail(watch, CallError(CLOSED))

    def expect(self, space: PartitionSpace, raw_id: bytes) -> asyncio.Future[Ended]:
        """Begin to wait for the end of an invocation; `forget` has to be called in any case.

        Returns:
            The end. Its exceptions are those of the journal: `ResultExpired`, `Undecodable`.
        """
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._watch(space, raw_id).futures.append(future)
        return future

    def expect_acceptance(self, space: PartitionSpace, raw_id: bytes) -> asyncio.Future[Ended | None]:
        """Begin to wait until the owner has taken an invocation in; `forget` has to be called in any case.

        Returns:
            None for one that goes on, else its end.
        """
        future: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        self._watch(space, raw_id).acceptances.append(future)
        return future

    def forget(self, raw_id: bytes, future: asyncio.Future[Any]) -> None:
        """Stop waiting, whether it has come or not."""
        watch = self._watches.get(raw_id)
        if watch is None:
            return
        for futures in (watch.futures, watch.acceptances):
            if future in futures:
                futures.remove(future)
        if not watch.futures and not watch.acceptances:
            self._remove(watch)

    def look(self, raw_id: bytes) -> None:
        """Look at the store for an invocation that is waited for, now."""
        watch = self._watches.get(raw_id)
        if watch is not None:
            self._look(watch)

    def look_at_all(self) -> None:
        """Look for everything that is waited for, in the order in which the waits began."""
        for watch in tuple(self._watches.values()):
            self._look(watch)

    def announced(self, channel: bytes, payload: bytes) -> None:
        """Take an announcement; most are about invocations that others wait for."""
        del channel
        raw_id = announced_invocation(payload)
        if raw_id is None:
            return
        watch = self._watches.get(raw_id)
        if watch is None:
            return
        outcome = Answer.decode(payload).outcome
        if outcome is None:
            self._look(watch)
        else:
            self._found(watch, outcome)

    def _watch(self, space: PartitionSpace, raw_id: bytes) -> Watch:
        watch = self._watches.get(raw_id)
        if watch is None:
            if self._is_closed:
                raise CallError(CLOSED)
            watch = self._watches[raw_id] = Watch(space, raw_id)
            watch.slot = self._looks.add(watch, FIRST_LOOK_SECONDS)
            self._use(space.answer_channel)
            self.on_wait()
        return watch

    def _use(self, channel: bytes) -> None:
        self._used_channels.add(channel)
        self.subscription.subscribe(channel)
        if not self._is_broom_set:
            self._is_broom_set = True
            self._brooms.add("channels", CHANNEL_IDLE_SECONDS)

    def sweep_channels(self, what: str) -> None:
        """Give up the channels that were not used since the last time and on which nobody waits."""
        needed = {watch.space.answer_channel for watch in self._watches.values()}
        for channel in self.subscription.wanted - needed - self._used_channels:
            self.subscription.unsubscribe(channel)
        self._used_channels.clear()
        self._is_broom_set = bool(self.subscription.wanted)
        if self._is_broom_set:
            self._brooms.add(what, CHANNEL_IDLE_SECONDS)

    def _look_again(self, watch: Watch) -> None:
        if self._watches.get(watch.raw_id) is not watch:
            return
        self._look(watch)
        watch.looks += 1
        interval = min(FIRST_LOOK_SECONDS * 2**watch.looks, self._sweep_seconds)
        watch.slot = self._looks.add(watch, max(interval, len(self._watches) / LOOKS_PER_SECOND))

    def _look(self, watch: Watch) -> None:
        """Read the result and the last record in one turn; what is told during a look is looked for after it."""
        if watch.is_looking:
            watch.is_news_due = True
            return
        watch.is_looking = True
        space, raw_id = watch.space, watch.raw_id
        result = ("GET", space.result(raw_id))
        last = ("XREVRANGE", space.invocation(raw_id), "+", "-", "COUNT", "1")
        self._store.submit_all((result, last), partial(self._saw, watch))

    def _saw(self, watch: Watch, replies: list[Any]) -> None:
        result, last_record = replies
        if isinstance(result, bytes):
            self._found(watch, result)
            last_record = None
        self._saw_last_record(watch, last_record)

    def _saw_last_record(self, watch: Watch, reply: Any) -> None:
        watch.is_looking = False
        if watch.is_news_due and self._watches.get(watch.raw_id) is watch:
            watch.is_news_due = False
            self._look(watch)
        if not isinstance(reply, list) or not reply:
            return
        acceptances, watch.acceptances = watch.acceptances, []
        _settle(acceptances, None)
        if watch.futures:
            self._take_last_record(watch, reply)
        else:
            self._remove(watch)

    def _take_last_record(self, watch: Watch, reply: Any) -> None:
        try:
            record = decode(reply[0][1][1])
        except (Undecodable, LookupError, TypeError) as error:
            # The owner parks what it can't read; a reader only leaves it alone.
            logger.warning("a record of an awaited invocation can't be read: %s", error)
            return
        match record:
            case Paused():
                self._resolve(watch, record)
            case Completed() | Failed() | Cancelled() | Killed():
                self._ended_without_result(watch, _HAD[type(record)])
            case _:
                pass

    def _ended_without_result(self, watch: Watch, outcome: str) -> None:
        """Look once more: the end may have been written between the two readings. Then it has expired."""
        if watch.found_ended:
            space = watch.space
            invocation_id = format_id(space.type_name, space.number, watch.raw_id)
            self._fail(watch, ResultExpired(outcome, invocation_id=invocation_id))
        else:
            watch.found_ended = True
            self._look(watch)

    def _found(self, watch: Watch, data: bytes) -> None:
        if self._store.replicas:
            # It is written, and perhaps not yet where a failover leaves it.
            result = ("GET", watch.space.result(watch.raw_id))
            self._store.submit_durably(watch.space, result, partial(self._found_durable, watch))
        else:
            self._take(watch, data)

    def _found_durable(self, watch: Watch, reply: Any) -> None:
        if isinstance(reply, bytes) and self._watches.get(watch.raw_id) is watch:
            self._take(watch, reply)

    def _take(self, watch: Watch, data: bytes) -> None:
        try:
            outcome = decode_outcome(data)
        except Undecodable as error:
            self._fail(watch, error)
            return
        match outcome:
            case Succeeded(kept_with=str() as key_text):
                key = watch.space.blobs(key_text)
                saw = partial(self._saw_output, watch, outcome.result, key)
                self._store.submit(("HGET", key, digest_in(outcome.result)), saw)
            case _:
                self._resolve(watch, outcome)

    def _saw_output(self, watch: Watch, reference: bytes, key: bytes, reply: Any) -> None:
        """Take a large output, which is kept beside its result; when no answer came, the next look finds it."""
        if self._watches.get(watch.raw_id) is not watch:
            return
        try:
            if isinstance(reply, Exception):
                raise key_error(reply, key, self._store.url)
            self._resolve(watch, Succeeded(whole(reference, reply, "result")))
        except StoreUnavailable:
            return
        except StoreError as error:
            self._fail(watch, error)

    def _resolve(self, watch: Watch, ended: Ended) -> None:
        self._remove(watch)
        _settle(watch.futures, ended)
        _settle(watch.acceptances, ended)

    def _fail(self, watch: Watch, error: KeylaneError) -> None:
        self._remove(watch)
        for future in (*watch.futures, *watch.acceptances):
            if not future.done():
                future.set_exception(error)

    def _remove(self, watch: Watch) -> None:
        if self._watches.get(watch.raw_id) is watch:
            del self._watches[watch.raw_id]
            self._looks.discard(watch, watch.slot)


def _settle(futures: Sequence[asyncio.Future[Any]], result: Ended | None) -> None:
    for future in futures:
        if not future.done():
            future.set_result(result)


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
