"""The docket of an object: its effects and its proposals, in its owner's memory, with all that is queued."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from ..journal import operations
from ..journal.codec import Undecodable
from ..journal.docket_reading import hash_pages
from ..journal.effects import EffectEntry
from ..journal.errors import KeylaneError, StoreUnavailable
from ..journal.proposals import ProposalEntry, proposal_field
from .partition import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..journal.batch import Operation
    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store
    from .errands import Errands
    from .lane import Lane

logger = logging.getLogger("keylane.effects")

READ_AGAIN_SECONDS: Final = 0.2
#: Entries that one command reads of an object that has many: about 70 KiB of ordinary ones.
READ_AT_ONCE: Final = 256


class KnownEffects(Mapping[str, EffectEntry]):
    """The effects of an object, by operation id.

    Settled ones stay as they lie in the store until somebody asks for one: an object may have thousands of them, and so
    they take less than half of the memory, and nothing of it is for the garbage collector to look through.
    """

    __slots__ = ("_last", "_settled", "unsettled")

    def __init__(self) -> None:
        #: Those that are not settled: a few, where settled ones are kept by the thousand.
        self.unsettled: dict[str, EffectEntry] = {}
        self._settled: dict[str, bytes] = {}
        #: The one that was settled last: its handler asks for it at once.
        self._last: EffectEntry | None = None

    def note(self, entry: EffectEntry, data: bytes) -> None:
        """Note where an effect stands, and the bytes that say so."""
        if entry.is_settled:
            self.unsettled.pop(entry.operation, None)
            self._settled[entry.operation] = data
            self._last = entry
        else:
            self.unsettled[entry.operation] = entry

    def forget(self, operation: str) -> None:
        """Forget an effect."""
        self.unsettled.pop(operation, None)
        self._settled.pop(operation, None)

    def __getitem__(self, operation: str) -> EffectEntry:
        entry = self.unsettled.get(operation)
        if entry is not None:
            return entry
        data, last = self._settled[operation], self._last
        return last if last is not None and last.operation == operation else EffectEntry.decode(data)

    def get(self, operation: str, default: EffectEntry | None = None) -> EffectEntry | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return where an effect stands, and something else where there is none: most are asked for before they are."""
        if operation not in self:
            return default
        return self[operation]

    def __contains__(self, operation: object) -> bool:
        return operation in self.unsettled or operation in self._settled

    def __iter__(self) -> Iterator[str]:
        return chain(self._settled, self.unsettled)

    def __len__(self) -> int:
        return len(self._settled) + len(self.unsettled)


class Docket:
    """What an owner knows of one object's effects and proposals, with all that is queued.

    Args:
        space: The partition.
        key_text: The object.
        effects: Its effects, by operation id.
        proposals: Its proposals, by action and version.
    """

    __slots__ = ("_key_text", "_space", "effects", "proposals")

    def __init__(
        self,
        space: PartitionSpace,
        key_text: str,
        effects: KnownEffects,
        proposals: dict[str, ProposalEntry],
    ) -> None:
        self._space = space
        self._key_text = key_text
        self.effects = effects
        self.proposals = proposals

    @property
    def unsettled(self) -> Mapping[str, EffectEntry]:
        """Those of its effects that are not settled."""
        return self.effects.unsettled

    def write_effect(self, entry: EffectEntry) -> Operation:
        """Note where an effect stands; the operation goes into the next commit of the lane."""
        data = entry.encode()
        self.effects.note(entry, data)
        return operations.write_effect(self._space, self._key_text, entry.operation, data)

    def forget_effect(self, operation: str) -> Operation:
        """Forget an effect."""
        self.effects.forget(operation)
        return operations.forget_effect(self._space, self._key_text, operation)

    def write_proposal(self, entry: ProposalEntry) -> Operation:
        """Note where a proposal stands; the operation goes into the next commit of the lane."""
        self.proposals[entry.field] = entry
        return operations.write_proposal(self._space, self._key_text, entry)

    def forget_proposal(self, action: str, version: int) -> Operation:
        """Forget a proposal."""
        self.proposals.pop(proposal_field(action, version), None)
        return operations.forget_proposal(self._space, self._key_text, action, version)


class Dockets:
    """Reads dockets for one worker, when somebody needs one; most objects never do.

    Args:
        store: The open store.
        errands: Runs what takes more than one look.
    """

    def __init__(self, store: Store, errands: Errands) -> None:
        self._store = store
        self._errands = errands
        self._waiting: dict[Lane, list[Callable[[KeylaneError | None], None]]] = {}

    def read(self, lane: Lane, done: Callable[[KeylaneError | None], None]) -> None:
        """Read an object's docket, and say when it is in memory."""
        waiting = self._waiting.get(lane)
        if waiting is not None:
            waiting.append(done)
            return
        self._waiting[lane] = [done]
        lane.pins += 1
        self._errands.add(partial(self._read, lane))

    async def _read(self, lane: Lane) -> None:
        partition = lane.partition
        error: KeylaneError | None = None
        try:
            if partition.phase is not Phase.LOST and lane.docket is None:
                lane.docket = await read_docket(self._store, partition.space, lane.key_text)
        except StoreUnavailable:
            self._errands.add_later(READ_AGAIN_SECONDS, partial(self._read, lane))
            return
        except KeylaneError as refused:
            error = refused
        lane.pins -= 1
        for done in self._waiting.pop(lane, ()):
            done(error)

    async def wait(self, lane: Lane) -> None:
        """Read an object's docket and wait until it is in memory, or the partition is lost.

        Raises:
            WrongKeyType: A foreign key stands where it belongs.
            KeylaneError: Something in it can't be decoded by this code.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.read(lane, partial(_tell, future))
        await future


def docket_keys(space: PartitionSpace, key_text: str) -> tuple[bytes, bytes]:
    """Return where an object's effects and its proposals lie; what has none of either has no such key."""
    return space.effects(key_text), space.proposals(key_text)


def note_no_docket(lane: Lane) -> None:
    """Take note that an object has neither effects nor proposals: the store has said so while its lane was read.

    Nobody writes to a docket that is not in memory, so that nothing can have come into it meanwhile.
    """
    if lane.docket is None:
        lane.docket = Docket(lane.partition.space, lane.key_text, KnownEffects(), {})


async def read_docket(store: Store, space: PartitionSpace, key_text: str) -> Docket:
    """Read an object's docket: all of it, a page at a time, so that others have their turn at the store and here.

    It is its owner who reads it, and nobody else writes to it: what the first page says still holds at the last one.

    Raises:
        StoreUnavailable: The store is away.
        WrongKeyType: A foreign key stands where it belongs.
        KeylaneError: Something in it can't be decoded by this code, which leaves it where it is.
    """
    effects_key, proposals_key = docket_keys(space, key_text)
    effects = KnownEffects()
    proposals: dict[str, ProposalEntry] = {}
    try:
        async for turn in hash_pages(store, [effects_key, proposals_key], READ_AT_ONCE):
            for page in turn:
                for data in page.flat[1::2]:
                    if page.key == effects_key:
                        effects.note(EffectEntry.decode(data), data)
                    else:
                        proposal = ProposalEntry.decode(data)
                        proposals[proposal.field] = proposal
    except Undecodable as error:
        # Going on without it could do something twice.
        raise KeylaneError(
            f"{space} {key_text}: an effect or a proposal can't be read by this code: {error}"
        ) from error
    return Docket(space, key_text, effects, proposals)


def _tell(future: asyncio.Future[None], error: KeylaneError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
