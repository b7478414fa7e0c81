"""Lets invocations of other objects wait for the end of one that they did not ask for.

Whoever waits is noted in the store beside the records of the invocation, and is told by way of the outbox in the commit
that ends it. One that has ended answers at once, from its result.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ..journal import operations
from ..journal.batch import Commit
from ..journal.blobs import read_blob
from ..journal.errors import (
    CallError,
    Fenced,
    InternalError,
    KeylaneError,
    ResultExpired,
    StoreUnavailable,
)
from ..journal.history import read_result
from ..journal.messages import Attached, Held, closes
from ..journal.outcomes import Outcome, Replayed, Succeeded, decode_outcome, encode_outcome
from ..journal.records import Accepted, Cancelled, Completed, Killed
from ..journal.transitions import replay
from .endings import accept_in_order
from .failures import refused
from .invocation import Hold, Invocation
from .messages import deadlock
from .partition import OwnershipLost, Partition, Phase
from .replies import told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..journal.batch import Operation
    from ..journal.lane_reading import OpenInvocation
    from ..journal.requests import Request
    from ..journal.store import Store
    from ..objects.handler import Handler
    from .errands import Errands

logger = logging.getLogger("keylane.intake")

#: One that is not known yet may be on its way from another partition: it is looked for again, so often.
UNKNOWN_AGAIN_SECONDS: Final = 0.25
UNKNOWN_LOOKS: Final = 20
STORE_AGAIN_SECONDS: Final = 0.2
BEING_READ_AGAIN_SECONDS: Final = 0.02


@dataclass(slots=True)
class Attachment:
    """A request to be told of the end of an invocation.

    Args:
        partition: The partition of the invocation.
        entry: The request's entry in the inbox.
        request: The request.
        attached: Who asks, and for what.
        target: Raw id of the invocation that it is about in the end.
        looks: How often it was looked for in vain.
        key_text: Its object, once that is known.
    """

    partition: Partition
    entry: bytes
    request: Request
    attached: Attached
    target: bytes
    looks: int = 0
    key_text: str = ""

    @property
    def is_being_read(self) -> bool:
        """Whether somebody is about to bring it into memory, from a reading that may not have the note yet."""
        lane = self.partition.lanes.get(self.key_text)
        is_busy = lane is not None and bool(lane.loading or lane.pins)
        return is_busy or self.target in self.partition.finding


class Attaching:
    """The attachments to the invocations of one worker.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
        read: Reads invocations that are not in memory.
        arrived: Told of an invocation for which somebody waits who did not before.
    """

    def __init__(
        self,
        store: Store,
        errands: Errands,
        read: Callable[[Partition, Sequence[bytes]], Awaitable[list[OpenInvocation]]],
        arrived: Callable[[Invocation], None],
    ) -> None:
        self._store = store
        self._errands = errands
        self._read = read
        self._arrived = arrived

    def take(self, partition: Partition, entry: bytes, request: Request) -> None:
        """Take a request in; it stays in the inbox until it is noted or answered."""
        if request.caller is None or request.payload is None:
            partition.settle_entry(entry)
            return
        partition.serving.add(request.invocation)
        attached = Attached(request.caller, request.payload)
        self._seek(Attachment(partition, entry, request, attached, attached.target))

    def _seek(self, each: Attachment) -> None:
        partition = each.partition
        if partition.phase is Phase.LOST:
            return
        invocation = partition.open.get(each.target)
        if invocation is None or invocation.ended:
            self._errands.add(partial(self._look_up, each))
        elif invocation.hold is Hold.RECALLING:
            invocation.on_recalled.append(partial(self._seek, each))
        elif invocation.lane.error is not None or invocation.lane.refused:
            partition.recall_again.append(partial(self._seek, each))
        else:
            self._attach(each, invocation)

    def _attach(self, each: Attachment, invocation: Invocation) -> None:
        """Note one who waits with an invocation in memory."""
        lane, attached = invocation.lane, each.attached
        handler = cast("Handler[Any, Any] | None", invocation.handler)
        if self._refuses_circle(each, lane.key_text, "?" if handler is None else handler.name):
            return
        if not invocation.accepted:
            accept_in_order(lane, invocation)
        if attached not in invocation.attached:
            invocation.attached = (*invocation.attached, attached)
        lane.commit(self._writes(each), None, partial(self._attached, each, invocation))

    def _attached(self, each: Attachment, invocation: Invocation, now_ms: int, error: BaseException | None) -> None:
        del now_ms
        if isinstance(error, Fenced | OwnershipLost):
            return
        if error is not None:
            each.partition.recall_again.append(partial(self._seek, each))
            return
        self._note_done(each)
        if not invocation.ended:
            self._arrived(invocation)

    @staticmethod
    def _writes(each: Attachment) -> list[Operation]:
        return [
            operations.attach(each.partition.space, each.target, each.attached),
            operations.settle_entry(each.entry),
        ]

    @staticmethod
    def _note_done(each: Attachment) -> None:
        each.partition.serving.discard(each.request.invocation)
        each.partition.remember(each.request.invocation)

    def _refuses_circle(self, each: Attachment, key_text: str, handler: str) -> bool:
        """Refuse to let somebody wait for what waits for it: its lane is held until the one that waits has ended."""
        type_name, path = each.partition.space.type_name, each.attached.caller.path
        if not closes(path, type_name, key_text):
            return False
        self._answer(each, encode_outcome(refused(deadlock(path, Held(type_name, key_text, handler)))))
        return True

    async def _look_up(self, each: Attachment) -> None:
        """Answer for an invocation that is not in memory: it has ended, it is parked or scheduled, or it is unknown."""
        try:
            await self._look(each)
        except StoreUnavailable:
            self._errands.add_later(STORE_AGAIN_SECONDS, partial(self._look_up, each))
        except KeylaneError as error:
            self._answer(each, encode_outcome(refused(error)))
        except Exception:
            logger.exception("%s: an attachment failed", each.partition.invocation_id(each.target))
            self._answer(each, encode_outcome(refused(InternalError("the runtime failed on it; see its log"))))

    async def _look(self, each: Attachment) -> None:
        partition, space = each.partition, each.partition.space
        if self._is_back(each):
            return
        data = await read_result(self._store, space, each.target)
        if data is not None:
            await self._answer_with(each, decode_outcome(data))
            return
        (found,) = await self._read(partition, [each.target])
        if self._is_back(each):
            return
        accepted = found.records[0] if found.records else None
        if not isinstance(accepted, Accepted):
            self._look_again(each)
            return
        self._check_not_over(each, found)
        each.key_text = accepted.key
        if not self._refuses_circle(each, accepted.key, accepted.handler):
            partition.writer.commit(Commit(self._writes(each), partial(self._noted, each)))

    def _is_back(self, each: Attachment) -> bool:
        """Return whether it is in memory meanwhile, or not ours any more."""
        partition = each.partition
        invocation = partition.open.get(each.target)
        if invocation is not None and not invocation.ended:
            self._seek(each)
            return True
        return partition.phase is Phase.LOST

    async def _answer_with(self, each: Attachment, outcome: Outcome) -> None:
        match outcome:
            case Replayed(invocation=first):
                each.target = first
                self._seek(each)
            case Succeeded(result=reference, kept_with=str() as key_text):
                whole = await read_blob(self._store, each.partition.space, key_text, reference, "result")
                self._answer(each, encode_outcome(Succeeded(whole)))
            case _:
                self._answer(each, encode_outcome(outcome))

    def _look_again(self, each: Attachment) -> None:
        each.looks += 1
        if each.looks < UNKNOWN_LOOKS:
            self._errands.add_later(UNKNOWN_AGAIN_SECONDS, partial(self._look_up, each))
            return
        why = "nothing is known of it: no such invocation was asked for, or it ended longer ago than results are kept"
        raise CallError(why, invocation_id=each.partition.invocation_id(each.target))

    @staticmethod
    def _check_not_over(each: Attachment, found: OpenInvocation) -> None:
        """Raise for one that has ended and whose result is gone."""
        if found.undecodable is not None or not replay(found.records).is_terminal:
            return
        match found.records[-1]:
            case Completed():
                how = "completed"
            case Cancelled() | Killed():
                how = "cancelled"
            case _:
                how = "failed"
        raise ResultExpired(how, invocation_id=each.partition.invocation_id(each.target))

    def _noted(self, each: Attachment, now_ms: int, error: BaseException | None) -> None:
        """Make sure that whoever came into memory or ended while the note was written knows of it."""
        del now_ms
        partition = each.partition
        if isinstance(error, Fenced | OwnershipLost):
            return
        if error is not None:
            partition.recall_again.append(partial(self._seek, each))
            return
        self._note_done(each)
        self._errands.add(partial(self._make_sure, each))

    async def _make_sure(self, each: Attachment) -> None:
        partition = each.partition
        if partition.phase is Phase.LOST:
            return
        invocation = partition.open.get(each.target)
        if invocation is not None and not invocation.ended:
            if each.attached not in invocation.attached:
                invocation.attached = (*invocation.attached, each.attached)
            self._arrived(invocation)
            return
        if each.is_being_read:
            self._errands.add_later(BEING_READ_AGAIN_SECONDS, partial(self._make_sure, each))
            return
        try:
            data = await read_result(self._store, partition.space, each.target)
        except StoreUnavailable:
            self._errands.add_later(STORE_AGAIN_SECONDS, partial(self._make_sure, each))
            return
        if data is not None:
            await self._answer_with(each, decode_outcome(data))

    def _answer(self, each: Attachment, outcome: bytes) -> None:
        """Tell one who has attached; a second answer to the same wait is dropped by whoever it goes to."""
        partition = each.partition
        if partition.phase is Phase.LOST:
            return
        writes = [*told(partition, each.target, each.attached, outcome), operations.settle_entry(each.entry)]
        partition.writer.commit(Commit(writes, partial(self._answered, each), weight=len(outcome)))

    def _answered(self, each: Attachment, now_ms: int, error: BaseException | None) -> None:
        del now_ms
        if error is None:
            self._note_done(each)
        elif not isinstance(error, Fenced | OwnershipLost):
            each.partition.recall_again.append(partial(self._seek, each))


def refuse_attached(invocation: Invocation, attached: Attached, error: KeylaneError) -> None:
    """Have somebody wait for an invocation no longer, and tell it why."""
    invocation.attached = tuple(each for each in invocation.attached if each != attached)
    writes = told(invocation.lane.partition, invocation.raw_id, attached, encode_outcome(refused(error)))
    invocation.lane.commit(writes)
