"""Takes calls in: from the inbox and from callers in this process, in the order in which they come."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ..journal import operations
from ..journal.batch import Commit
from ..journal.blobs import is_reference
from ..journal.codec import REFERENCE_BYTES, Undecodable
from ..journal.errors import (
    CallError,
    InternalError,
    InvalidInput,
    KeylaneError,
    Overloaded,
    PayloadTooLarge,
    StoreFull,
    UnknownHandler,
)
from ..journal.key import Key
from ..journal.messages import Held, closes
from ..journal.outcomes import Outcome
from ..journal.requests import Request, RequestKind
from .claims import Claims
from .door import DoorClosed
from .invocation import Hold, Invocation
from .messages import deadlock
from .orders import check_call
from .partition import OwnershipLost
from .replies import refuse
from .scheduling import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..objects.handler import Handler
    from .acceptances import Acceptances
    from .attaching import Attaching
    from .cancelling import Cancelling
    from .deciding import Deciding
    from .partition import Partition
    from .pausing import Pauses
    from .probes import Probes
    from .reconciling import Reconciling
    from .resuming import Resuming
    from .signal_intake import SignalIntake
    from .validating import Validating
    from .waits import Waits

logger = logging.getLogger("keylane.intake")

#: What stays where it is in the inbox while the store's memory is full.
_WAITING_FOR_ROOM = frozenset(
    {
        RequestKind.SEND,
        RequestKind.OBJECT_CALL,
        RequestKind.OBJECT_SEND,
        RequestKind.OBJECT_SIGNAL,
        RequestKind.OBJECT_CANCEL,
    }
)
_SIGNALS = frozenset({RequestKind.SIGNAL, RequestKind.OBJECT_SIGNAL})
#: What ends an invocation, or lets it end.
_ENDINGS = frozenset({RequestKind.CANCEL, RequestKind.KILL, RequestKind.OBJECT_CANCEL, RequestKind.SKIP_COMPENSATION})
#: What a caller is told to wait for when a lane's backlog is full.
BACKLOG_RETRY_SECONDS = 1.0
#: What a caller is told to wait for when the worker has too much in hand.
WORKER_RETRY_SECONDS = 0.5
#: How many calls of one partition a worker has in hand at most, for each of its slots.
CALLS_PER_SLOT = 64


class Intake:
    """Takes calls in for one worker.

    Args:
        serve_read: Runs a shared handler for a request from the inbox.
        calls_max: How many calls of one partition the worker has in hand at most.
        repair: Carries out an order to repair.
        acceptances: Commits that calls were taken in.
    """

    def __init__(
        self,
        serve_read: Callable[[Partition, Handler[Any, Any], Request, bytes | None], None],
        calls_max: int,
        repair: Callable[[Partition, Request, bytes], None],
        acceptances: Acceptances,
    ) -> None:
        self._serve_read = serve_read
        self._repair = repair
        self._calls_max = calls_max
        self._unaccepted = acceptances.unaccepted
        self.waits: Waits
        self.validating: Validating
        self.pauses: Pauses
        self.resuming: Resuming
        self.probes: Probes
        self.signals: SignalIntake
        self.attaching: Attaching
        self.cancelling: Cancelling
        self.deciding: Deciding
        self.reconciling: Reconciling
        self._claims = Claims()

    def take_entry(self, partition: Partition, entry: bytes, data: bytes) -> None:
        """Take an inbox entry in; what can't be read is kept aside, and others go on."""
        try:
            request = Request.decode(data)
        except Undecodable:
            writes = [operations.keep_undecodable(data), operations.settle_entry(entry)]
            partition.writer.commit(Commit(writes, weight=len(data)))
            return
        if partition.is_known(request.invocation):
            self._settle_copy(partition, entry, request)
            return
        try:
            self._take_request(partition, entry, request)
        except KeylaneError as error:
            self._refuse(partition, entry, request, error)
        except Exception:
            # One request that we stumble over must not keep the others, here and after each restart.
            logger.exception("%s: a request can't be taken in", partition.invocation_id(request.invocation))
            error = InternalError("the runtime failed on this request; see its log")
            self._refuse(partition, entry, request, error)

    @staticmethod
    def _refuse(partition: Partition, entry: bytes, request: Request, error: KeylaneError) -> None:
        refuse(partition, request.invocation, entry, request.client, error, request.caller)
        if request.kind is RequestKind.OBJECT_SEND:
            # Nobody waits for it, so somebody has to be told.
            logger.error(
                "%s: a message of another object to %s at %s was refused: %s; %s has to look into it",
                partition.invocation_id(request.invocation), request.handler, request.key, error.message,
                partition.virtual_object.owner,
            )  # fmt: skip

    def take_ahead(self, partition: Partition, entry: bytes, data: bytes) -> bool:
        """Deal with an inbox entry that need not wait for room in the store, and return whether it was one.

        What lets something go on and what only reads is taken in. A caller that waits is told that there is no room;
        what was sent stays where it is.
        """
        try:
            request = Request.decode(data)
        except Undecodable:
            return False
        handler = partition.virtual_object.handlers.get(request.handler)
        is_read = handler is not None and handler.kind == "shared"
        if request.kind in _WAITING_FOR_ROOM and not is_read:
            return False
        if request.kind is RequestKind.CALL and not is_read and not partition.is_known(request.invocation):
            error = StoreFull(partition.memory.why)
            refuse(partition, request.invocation, entry, request.client, error)
            return True
        self.take_entry(partition, entry, data)
        return True

    def _settle_copy(self, partition: Partition, entry: bytes, request: Request) -> None:
        known = partition.open.get(request.invocation)
        if known is None or known.entry != entry:
            partition.writer.commit(Commit([operations.settle_entry(entry)]))

    def _take_request(self, partition: Partition, entry: bytes, request: Request) -> None:
        if request.kind in _SIGNALS:
            self.signals.take(partition, entry, request)
            return
        if request.kind is RequestKind.REPLY:
            # Its sender has checked what it carries; a caller that never heard of it would wait for ever.
            self.waits.take_reply(partition, entry, request)
            return
        self._check_size(partition, request.payload)
        self._check_size(partition, request.basis)
        check_call(request.handler, request.idempotency_key)
        take = self._order_taker(request.kind)
        if take is not None:
            take(partition, entry, request)
            return
        handler = find_handler(partition, request.handler, is_inside=request.kind.is_message)
        if handler.kind == "shared":
            if request.delay_ms:
                raise CallError(f"{handler} is shared: it leaves no history, so it can't be asked for later")
            self._serve_read(partition, handler, request, entry)
            return
        caller = request.caller
        if caller is not None and closes(caller.path, partition.space.type_name, request.key):
            raise deadlock(caller.path, Held(partition.space.type_name, request.key, handler.name))
        invocation = Invocation(request.invocation, handler, request.payload)
        invocation.entry = entry
        invocation.client = request.client
        invocation.caller = caller
        invocation.trace = request.trace
        if request.delay_ms:
            self._take_later(partition, request, invocation)
        else:
            self._enter(partition, request.key, invocation, request.basis, request.idempotency_key, request.kind)

    def _order_taker(self, kind: RequestKind) -> Callable[[Partition, bytes, Request], None] | None:
        """Return what takes an order in that runs no handler; None for a request that does."""
        match kind:
            case RequestKind.RESUME | RequestKind.RESTART:
                return self.resuming.take
            case RequestKind.PAUSE:
                return self.pauses.take
            case RequestKind.REPAIR:
                return self._take_repair
            case RequestKind.ATTACH:
                return self.attaching.take
            case RequestKind.PROBE:
                return self.probes.take
            case RequestKind.DECIDE:
                return self.deciding.take
            case RequestKind.RECONCILE:
                return self.reconciling.take
            case _:
                return self.cancelling.take if kind in _ENDINGS else None

    def _take_repair(self, partition: Partition, entry: bytes, request: Request) -> None:
        self._repair(partition, request, entry)

    def _take_later(self, partition: Partition, request: Request, invocation: Invocation) -> None:
        """Take in what is to begin later, once it is known that its idempotency key is new."""
        key_text = str(Key.parse(request.key))
        put = partial(schedule, partition, key_text, invocation, request.delay_ms)
        if request.idempotency_key is not None or invocation.handler.validate is not None:
            invocation.lane = partition.lane(key_text)
        if request.idempotency_key is not None:
            self._claims.claim(invocation.lane, invocation, request.basis, request.idempotency_key)
            if invocation.ended:
                return
        if invocation.handler.validate is not None:
            self.validating.begin(invocation, is_sent=request.kind is RequestKind.OBJECT_SEND)
        if invocation.hold is Hold.RECALLING:
            partition.open[invocation.raw_id] = invocation
        _once_decided(invocation, put)

    def take_call(
        self,
        partition: Partition,
        handler: Handler[Any, Any],
        key_text: str,
        payload: bytes | None,
        basis: bytes | None,
        idempotency_key: str | None,
        raw_id: bytes,
    ) -> asyncio.Future[Outcome]:
        """Take a call of this process in.

        Raises:
            CallError: It was refused; nothing of it is written.
            StoreFull: Nothing is taken in at the moment.
            DoorClosed: It has to go through the inbox.
        """
        partition.memory.check()
        if partition.inbox.behind is not None:
            # What this caller has put into the inbox before may be among what was put back.
            raise DoorClosed
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._check_size(partition, payload)
        invocation = Invocation(raw_id, handler, payload)
        invocation.listeners.append(partial(_tell, future))
        if partition.spans.is_on:
            invocation.trace = partition.spans.carried()
        self._enter(partition, key_text, invocation, basis, idempotency_key)
        return future

    def _enter(
        self,
        partition: Partition,
        key_text: str,
        invocation: Invocation,
        basis: bytes | None,
        idempotency_key: str | None,
        kind: RequestKind = RequestKind.CALL,
    ) -> None:
        lane = invocation.lane = partition.lane(key_text)
        # A message of another object is taken in whatever is before it; a call of one is told, as its outcome.
        if len(lane.queue) >= partition.backlog and kind is not RequestKind.OBJECT_SEND:
            raise Overloaded(BACKLOG_RETRY_SECONDS)
        if not kind.is_message and partition.in_hand.has_no_room(self._calls_max, lane.key.tenant):
            raise Overloaded(WORKER_RETRY_SECONDS, "this worker has as many calls in hand as it may")
        if idempotency_key is not None:
            self._claims.claim(lane, invocation, basis, idempotency_key)
            if invocation.ended:
                return
        if invocation.handler.validate is not None:
            self.validating.begin(invocation, is_sent=kind is RequestKind.OBJECT_SEND)
        partition.enter(lane, invocation)
        self._unaccepted.append(invocation)
        if invocation.caller is not None:
            self.probes.arrived(lane)

    @staticmethod
    def _check_size(partition: Partition, payload: bytes | None) -> None:
        limit = partition.settings.payload_limit_bytes
        if payload is None:
            return
        if len(payload) > limit:
            raise PayloadTooLarge("argument", len(payload), limit)
        if len(payload) == REFERENCE_BYTES and is_reference(payload):
            raise InvalidInput("argument", "its extension type is reserved")


def find_handler(partition: Partition, name: str, *, is_inside: bool = False) -> Handler[Any, Any]:
    """Return a hosted handler; another object may ask for a private one too.

    Raises:
        UnknownHandler: The type has none of this name.
        CallError: It is private.
    """
    virtual_object = partition.virtual_object
    handler = virtual_object.handlers.get(name)
    if handler is None:
        raise UnknownHandler(virtual_object.name, name, tuple(virtual_object.handlers))
    if handler.is_private and not is_inside:
        raise CallError(f"{handler} is private: only other handlers may call it")
    return handler


def _once_decided(invocation: Invocation, put: Callable[[], None]) -> None:
    """Go on with an invocation when it is known to be taken in, which is to be found out more than once."""
    if invocation.ended:
        return
    if invocation.hold is Hold.RECALLING:
        invocation.on_recalled.append(partial(_once_decided, invocation, put))
    else:
        put()


def _tell(future: asyncio.Future[Outcome], outcome: Outcome | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, OwnershipLost):
        future.set_exception(DoorClosed())
    elif isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
