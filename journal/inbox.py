"""The two ends of a partition's inbox: anybody submits, the owner reads in order of intake."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import redis.exceptions

from .errors import KeylaneError, Overloaded, SchemaMismatch, StoreError, StoreUnavailable, WrongKeyType
from .futures import resolve_reply
from .keyspace import SCHEMA_VERSION, PartitionSpace
from .library import FINISHING
from .link import LinkLost
from .refusals import key_error
from .requests import Request
from .store import Store, is_missing_function, refusal, store_error

logger = logging.getLogger("keylane.inbox")

#: Entries that an inbox holds at most while nobody takes them in.
INBOX_LIMIT: Final = 10_000
#: Memory that it may take; looked at for large requests only.
INBOX_LIMIT_BYTES: Final = 256 << 20
#: How long a submission is tried when its caller named no limit: an acknowledgement is never waited for without one.
SUBMISSION_LIMIT_SECONDS: Final = 30.0
#: What a caller is told to wait when an inbox is full.
FULL_INBOX_RETRY_SECONDS: Final = 1.0

RESUBMIT_FIRST_SECONDS: Final = 0.05
RESUBMIT_CAP_SECONDS: Final = 1.0

#: How much of an inbox is looked through for a request.
TRACE_PAGES: Final = 20
TRACE_PAGE_ENTRIES: Final = 100

#: Where an owner that has read nothing yet begins.
START: Final = b"0-0"
#: What a submission answers instead of an entry id when the request is already past the inbox.
KNOWN: Final = b"KNOWN"

_LAST_SEQUENCE: Final = 2**64 - 1

#: Handed the id of the inbox entry or `KNOWN`, or the error; must not raise.
Submitted: TypeAlias = Callable[[bytes | KeylaneError], None]


class Submission:
    """One request on its way into an inbox: sent again under the same id for as long as its fate is unknown.

    Args:
        store: The open store.
        space: The partition.
        request: What to put into its inbox.
        done: Called once with the verdict of the store.
        limit_seconds: How long to try.
    """

    __slots__ = ("_deadline", "_delay", "_done", "_request", "_space", "_store", "_timer")

    def __init__(
        self,
        store: Store,
        space: PartitionSpace,
        request: Request,
        done: Submitted,
        limit_seconds: float = SUBMISSION_LIMIT_SECONDS,
    ) -> None:
        self._store = store
        self._space = space
        self._request = request
        self._done: Submitted | None = done
        self._deadline = asyncio.get_running_loop().time() + limit_seconds
        self._delay = RESUBMIT_FIRST_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._send()

    def cancel(self) -> None:
        """Stop trying; what is on the wire may still arrive."""
        self._done = None
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> None:
        space, request = self._space, self._request
        keys = (
            space.owner,
            space.inbox,
            space.inbox_channel,
            space.result(request.invocation),
            space.invocation(request.invocation),
        )
        verb = FINISHING["submit"] if request.may_exceed_memory else "submit"
        words = (*self._store.words(verb, keys), INBOX_LIMIT, request.encode(), INBOX_LIMIT_BYTES)
        self._store.observer.before_send("submit", str(space), 0)
        self._store.submit_durably(space, words, self._answered)

    def _answered(self, reply: Any) -> None:
        self._store.observer.after_answer("submit", str(self._space), 0)
        if self._done is None:
            return
        if isinstance(reply, bytes):
            self._finish(reply)
        elif isinstance(reply, LinkLost):
            # Whether it was applied is unknown, so the owner is told to look for the first one.
            self._request = replace(self._request, again=True)
            self._try_again(str(reply))
        elif is_missing_function(reply):
            self._store.load_library_beside(self._space)
            self._try_again(str(reply))
        else:
            self._refused(store_error(reply, self._store.url))

    def _refused(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self._try_again(error.why)
        elif isinstance(error, KeylaneError):
            self._finish(error)
        else:
            self._finish(_call_error(error))

    def _try_again(self, why: str) -> None:
        loop = asyncio.get_running_loop()
        left = self._deadline - loop.time()
        if left <= 0 or self._store.is_closed:
            self._finish(StoreUnavailable(self._store.url, f"{why}; whether the request was taken in is unknown"))
            return
        self._timer = loop.call_later(min(self._delay, left), self._send)
        self._delay = min(self._delay * 2, RESUBMIT_CAP_SECONDS)

    def _finish(self, verdict: bytes | KeylaneError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(verdict)


def _call_error(error: Exception) -> KeylaneError:
    """Translate a refusal of the function; anything else that the server says is reported as it is."""
    if not isinstance(error, redis.exceptions.ResponseError):
        return StoreError(str(error))
    refused = refusal(error)
    match refused.code:
        case "OVERLOADED":
            return Overloaded(FULL_INBOX_RETRY_SECONDS, f"{refused.text} wait in the inbox of this partition")
        case "SCHEMA":
            return SchemaMismatch("schema version", refused.text, SCHEMA_VERSION)
        case "WRONGKEYTYPE":
            return WrongKeyType(refused.text)
        case _:
            return StoreError(str(error))


async def submit(
    store: Store, space: PartitionSpace, request: Request, *, limit_seconds: float = SUBMISSION_LIMIT_SECONDS
) -> bytes:
    """Put a request into a partition's inbox.

    Args:
        store: The open store.
        space: The partition.
        request: What is asked of its owner.
        limit_seconds: How long to try; after a lost answer the same request is sent again.

    Returns:
        The id of the inbox entry, or `KNOWN` when the owner has dealt with the request already.

    Raises:
        Overloaded: The inbox is full; nothing was written.
        StoreUnavailable: The store gave no answer within the limit; whether the request was taken in is unknown.
        StoreFull: The store has no memory for it; nothing was written.
        SchemaMismatch: The partition was written by another release.
        WrongKeyType: A foreign key stands where the inbox belongs.
    """
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    submission = Submission(store, space, request, partial(resolve_reply, future), limit_seconds)
    try:
        return await future
    finally:
        submission.cancel()


async def read_after(store: Store, space: PartitionSpace, cursor: bytes, count: int) -> list[tuple[bytes, bytes]]:
    """Read what came into an inbox behind a point.

    Args:
        store: The open store.
        space: The partition.
        cursor: Id of the last entry that was read, `START` at first.
        count: How many entries at most.

    Returns:
        Pairs of entry id and the request's bytes, in order of intake; an entry of a foreign form has no bytes.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where the inbox belongs.
    """
    try:
        entries = await store.call("XRANGE", space.inbox, b"(" + cursor, "+", "COUNT", count)
    except redis.exceptions.ResponseError as error:
        raise key_error(error, space.inbox, store.url) from error
    return [(entry, fields[1] if fields[:1] == [b"m"] else b"") for entry, fields in entries or ()]


async def leaves_no_trace(store: Store, space: PartitionSpace, raw_id: bytes) -> bool:
    """Tell whether nobody has anything of a request: it lies in no inbox, has no records and no result.

    An id that was given out is in one of these places until its retention has passed. With a very long inbox the answer
    is no, because not all of it is looked through.

    Raises:
        StoreUnavailable: The store is away.
    """
    if await _is_written(store, space, raw_id):
        return False
    cursor = START
    for _ in range(TRACE_PAGES):
        entries = await read_after(store, space, cursor, TRACE_PAGE_ENTRIES)
        # The id stands in the bytes of its request; another one that holds it by chance only makes the answer a no.
        if any(raw_id in data for _, data in entries):
            return False
        if len(entries) < TRACE_PAGE_ENTRIES:
            # Whoever took the request in between the two readings has written something of it.
            return not await _is_written(store, space, raw_id)
        cursor = entries[-1][0]
    return False


async def _is_written(store: Store, space: PartitionSpace, raw_id: bytes) -> bool:
    return await store.call("EXISTS", space.result(raw_id), space.invocation(raw_id)) > 0


def comparable(entry: bytes) -> tuple[int, int]:
    """Return an entry id as numbers that sort as the stream does."""
    time_ms, _, sequence = entry.partition(b"-")
    return int(time_ms), int(sequence or 0)


def just_before(entry: bytes) -> bytes:
    """Return the id behind which an entry is the next one, whatever else the inbox holds."""
    time_ms, sequence = comparable(entry)
    return b"%d-%d" % ((time_ms, sequence - 1) if sequence else (time_ms - 1, _LAST_SEQUENCE))
