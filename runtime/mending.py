"""What an owner does when it is asked to repair its partition: each thing is looked at, and written if it is broken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..journal import operations
from ..journal.batch import Commit, Operation
from ..journal.blobs import parts_of
from ..journal.codec import Undecodable, pack
from ..journal.errors import Fenced, InternalError, KeylaneError, WrongKeyType
from ..journal.futures import resolve
from ..journal.history import read_result
from ..journal.lane_reading import OpenInvocation, ask, read_invocations
from ..journal.outcomes import (
    IdempotencyEntry,
    OutcomeMark,
    Rejected,
    Stopped,
    Succeeded,
    decode_outcome,
    encode_outcome,
)
from ..journal.recall import DAY_MS
from ..journal.records import Accepted, Cancelled, Completed, Failed, Killed, Record, Scheduled
from ..journal.repair_order import NAMED_MAX, RepairOrder
from ..journal.requests import Request
from .failures import refused
from .found_invocations import is_over, is_scheduled
from .lane_mending import FOR_EVER, LaneMending, loaded
from .partition import OwnershipLost
from .replies import answer

if TYPE_CHECKING:
    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store
    from .docket_mending import DocketMending
    from .errands import Errands
    from .inbox_reader import InboxReader
    from .outbox import Outbox
    from .partition import Partition
    from .waits import Waits

logger = logging.getLogger("keylane.worker")

#: Looks at one named thing, adds what it has to write, and says what that does.
_Look: TypeAlias = "Callable[[Partition, bytes, list[Operation]], Awaitable[list[str]]]"


class Mending:
    """Carries out repair orders for one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        lanes: Mends lanes.
        inboxes: Reads inboxes again.
        waits: Ends the waits for calls that are lost.
        outbox: Looks at outboxes again.
        dockets: Mends what names effects and proposals.
    """

    def __init__(
        self,
        store: Store,
        errands: Errands,
        lanes: LaneMending,
        inboxes: InboxReader,
        waits: Waits,
        outbox: Outbox,
        dockets: DocketMending,
    ) -> None:
        self._store = store
        self._errands = errands
        self._lanes = lanes
        self._inboxes = inboxes
        self._waits = waits
        self._outbox = outbox
        self._dockets = dockets

    def take(self, partition: Partition, request: Request, entry: bytes) -> None:
        """Take a repair order in; its answer says what was done."""
        partition.serving.add(request.invocation)
        # Not one of the few runners: it waits for lanes to be read, which is their work.
        self._errands.begin(partial(self._mend, partition, request, entry))

    async def _mend(self, partition: Partition, request: Request, entry: bytes) -> None:
        try:
            order = RepairOrder.decode(request.payload or b"")
            did = await self._carry_out(partition, request.key, order)
            outcome = encode_outcome(Succeeded(pack(did)))
            for sentence in did:
                logger.warning("%s: repaired for %s: %s", partition.space, order.by, sentence)
        except (Fenced, OwnershipLost):
            # The order lies in the inbox still, for the next owner.
            return
        except KeylaneError as error:
            outcome = encode_outcome(refused(error))
        except Exception:
            logger.exception("%s: a repair failed", partition.space)
            outcome = encode_outcome(refused(InternalError("the runtime failed on this repair; see its log")))
        finally:
            partition.serving.discard(request.invocation)
        answer(partition, request.invocation, entry, request.client, outcome)

    async def _carry_out(self, partition: Partition, key_text: str, order: RepairOrder) -> list[str]:
        did: list[str] = []
        if key_text:
            did.extend(await self._lanes.mend(partition, key_text, order.lane[:NAMED_MAX]))
        if order.reads_inbox:
            did.extend(await self._inboxes.read_again(partition))
        writes: list[Operation] = []
        looks: list[tuple[_Look, Sequence[bytes]]] = [
            (self._due, order.due),
            (self._streams, order.streams),
            (self._results, order.results),
            (self._days, order.days),
            (self._claims, order.claims),
            (self._calls, order.calls),
            (self._outboxes, order.outboxes),
            (self._values, order.values),
            (self._dockets.mend, order.docket),
        ]
        for look, names in looks:
            for name in names[:NAMED_MAX]:
                try:
                    did.extend(await look(partition, name, writes))
                except WrongKeyType as error:
                    # What else is named has nothing to do with it.
                    did.append(f"left something as it is: {error.message}")
        if writes:
            await _durable(partition, writes)
        return did

    async def _due(self, partition: Partition, raw_id: bytes, writes: list[Operation]) -> list[str]:
        """Take out a due time that belongs to nothing open, or enter the lost one of what begins later."""
        space = partition.space
        (score,) = await ask(self._store, [("ZSCORE", space.due, raw_id)], [space.due])
        (found,) = await read_invocations(self._store, space, [raw_id])
        if score is None:
            return self._begin_later(partition, found, writes)
        if raw_id in partition.open or not is_over(found):
            return []
        writes.append(operations.unschedule(raw_id))
        return [f"took out the due time of {partition.invocation_id(raw_id)}, which has ended or is gone"]

    def _begin_later(self, partition: Partition, found: OpenInvocation, writes: list[Operation]) -> list[str]:
        """Enter the due time of an invocation that is scheduled, by its records."""
        raw_id = found.raw_id
        last = next((each for each in found.records if isinstance(each, Scheduled)), None)
        if last is None or not is_scheduled(found) or raw_id in partition.open or partition.was_released(raw_id):
            return []
        left_ms = max(found.begun_ms + last.delay_ms - partition.now_ms(), 0)
        writes.append(operations.schedule(raw_id, left_ms))
        partition.host.due_in(partition, left_ms)
        return [f"entered the due time of {partition.invocation_id(raw_id)}, which is to begin later"]

    async def _streams(self, partition: Partition, raw_id: bytes, writes: list[Operation]) -> list[str]:
        """Let the records of an invocation that has ended expire."""
        stream = partition.space.invocation(raw_id)
        (found,) = await read_invocations(self._store, partition.space, [raw_id])
        if raw_id in partition.open or not found.records or not is_over(found) or not await self._is_kept(stream):
            return []
        writes.append(operations.keep_for(stream, partition.history_retention_ms))
        return [f"gave the records of {partition.invocation_id(raw_id)} their retention"]

    async def _results(self, partition: Partition, raw_id: bytes, writes: list[Operation]) -> list[str]:
        """Let a result expire."""
        result = partition.space.result(raw_id)
        if not await self._is_kept(result):
            return []
        writes.append(operations.keep_for(result, partition.result_retention_ms))
        return [f"gave the result of {partition.invocation_id(raw_id)} its retention"]

    async def _days(self, partition: Partition, day: bytes, writes: list[Operation]) -> list[str]:
        """Let the idempotency keys of a day expire."""
        if not day.isdigit() or not await self._is_kept(partition.space.idempotency(int(day))):
            return []
        kept_ms = partition.tombstone_retention_ms + DAY_MS
        writes.append(operations.forget_day(partition.space, int(day), kept_ms))
        return [f"gave the idempotency keys of day {int(day)} their retention"]

    async def _is_kept(self, key: bytes) -> bool:
        """Return whether a key would stay for ever."""
        (left_ms,) = await ask(self._store, [("PTTL", key)], [key])
        return left_ms == FOR_EVER

    async def _claims(self, partition: Partition, name: bytes, writes: list[Operation]) -> list[str]:
        """Note how the invocation of an idempotency key ended."""
        day, _, digest = name.partition(b":")
        space = partition.space
        (data,) = await ask(self._store, [("HGET", space.idempotency(int(day)), digest)], [space.owner])
        if data is None:
            return []
        entry = IdempotencyEntry.decode(data)
        if entry.outcome != "?" or entry.invocation in partition.open:
            return []
        mark = await self._mark(partition, entry.invocation)
        invocation = partition.invocation_id(entry.invocation)
        if mark is None:
            return [
                f"nothing is kept of {invocation}: how it ended, nobody can say; its idempotency key stays as it is"
            ]
        writes.append(operations.remember(space, int(day), digest, replace(entry, outcome=mark)))
        return [f"noted with its idempotency key how {invocation} ended"]

    async def _calls(self, partition: Partition, raw_id: bytes, writes: list[Operation]) -> list[str]:
        """Tell a caller that its call is lost."""
        del writes
        (found,) = await read_invocations(self._store, partition.space, [raw_id])
        accepted = found.records[0] if found.records else None
        if not isinstance(accepted, Accepted):
            return []
        lane = await loaded(partition, accepted.key)
        if not await self._waits.fail_if_lost(self._store, partition, raw_id):
            return []
        gate = lane.gate()
        if gate is not None:
            await gate
        return [f"ended the call of {partition.invocation_id(raw_id)} that nothing was left of, with MessageLost"]

    async def _outboxes(self, partition: Partition, name: bytes, writes: list[Operation]) -> list[str]:
        """Look at an outbox again, and write its numbers anew."""
        del writes
        target = name.decode(errors="replace")
        type_name, dot, number = target.rpartition(".")
        if not (type_name and dot and number.isdigit()):
            return []
        if await self._outbox.look_again(partition, target):
            return [f"delivers messages to {target} that it did not know of"]
        return [f"wrote the numbers of the messages to {target} anew"]

    async def _values(self, partition: Partition, member: bytes, writes: list[Operation]) -> list[str]:
        """Enter a large value into the index, unless it is gone or entered already."""
        space = partition.space
        key_text, digest = parts_of(member)
        words = [("ZSCORE", space.blob_index, member), ("HEXISTS", space.blobs(key_text), digest)]
        score, is_there = await ask(self._store, words, [space.blob_index, space.blobs(key_text)])
        if score is not None or not is_there:
            return []
        writes.append(operations.touch_blob(space, key_text, digest))
        return [f"entered large value {digest.hex()} of {key_text} into the index"]

    async def _mark(self, partition: Partition, raw_id: bytes) -> OutcomeMark | None:
        """Return how an invocation ended, None where that is not known or it has not."""
        space = partition.space
        (found,) = await read_invocations(self._store, space, [raw_id])
        last = found.records[-1] if found.records else None
        match last:
            case Completed():
                return "c"
            case Failed():
                return "f"
            case Cancelled() | Killed():
                return "x"
            case _:
                return await self._mark_of_result(space, raw_id, last)

    async def _mark_of_result(self, space: PartitionSpace, raw_id: bytes, last: Record | None) -> OutcomeMark | None:
        data = await read_result(self._store, space, raw_id)
        if last is not None or data is None:
            return None
        try:
            outcome = decode_outcome(data)
        except Undecodable:
            return None
        match outcome:
            case Succeeded():
                return "c"
            case Rejected():
                return "f"
            case Stopped():
                return "x"
            case _:
                return None


async def _durable(partition: Partition, writes: list[Operation]) -> None:
    """Write something that belongs to no lane, and wait until it is durable."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(now_ms: int, error: BaseException | None) -> None:
        resolve(future, now_ms, error)

    partition.writer.commit(Commit(writes, done))
    await future
