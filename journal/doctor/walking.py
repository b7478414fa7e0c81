"""The walk over every key of a namespace: each is looked at once, and what queues and streams say is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..code_registry import TypeCard
from ..key import format_id
from ..keyspace import PartitionSpace
from ..scan import SCAN_COUNT, scan
from ..store import Store
from ..surroundings import look
from .calls import Calls
from .docket_checks import check_effects, check_index, check_proposals, expiring_soon
from .examining import Unfinished, read_open_facts
from .facts import InvocationFacts
from .findings import Finding, FindingBook, Kind, LaneRepair, NamedRepair, Place
from .invocation_checks import INVOCATION_CHECKS, is_doubtful, lane_repair
from .kept_checks import check_object_values, check_values
from .message_checks import check_outbox, check_sent
from .names import TYPES, KeyName, Structure, printable
from .queue_checks import check_claims, check_due, check_lanes, check_runnable
from .ranking import BusyKeys, HeldLanes
from .reach import Reach
from .report import Doubtful
from .scanning import FOR_EVER, Standing, names_of, survey

#: So many invocations of which only their owners can tell are named.
DOUBTFUL_MAX: Final = 100
#: So many partitions that the registry does not have are looked at.
UNKNOWN_MAX: Final = 1_000
#: So many proposals that are about to expire are named, and those of the partition that is looked at then.
EXPIRING_MAX: Final = 20

#: Told how many places of the server's table were looked at, and how many keys of the namespace were among them.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Walk:
    """Walks over the keys of a namespace, and keeps no more of them than the report tells.

    Args:
        store: The open store.
        reach: Knows which partitions can be read; the others are passed over.
        types: The partition counts of the registry.
        in_charge: Who is in charge of each type.
        book: Where findings go.
        type_name: The one type that is looked at, None for all.
        limit: After so many keys the walk stops, None to come to the end.
        progress: Told how far it is.
    """

    store: Store
    reach: Reach
    types: Mapping[str, int]
    in_charge: Mapping[str, str]
    code: Mapping[str, TypeCard]
    book: FindingBook
    type_name: str | None = None
    limit: int | None = None
    progress: Progress | None = None
    keys: int = 0
    is_whole: bool = True
    open_by_status: Counter[str] = field(default_factory=Counter[str])
    open_by_space: Counter[PartitionSpace] = field(default_factory=Counter[PartitionSpace])
    unsettled_by_space: Counter[PartitionSpace] = field(default_factory=Counter[PartitionSpace])
    held: HeldLanes = field(default_factory=HeldLanes)
    busy: BusyKeys = field(default_factory=BusyKeys)
    doubtful: list[Doubtful] = field(default_factory=list[Doubtful])
    unknown: set[PartitionSpace] = field(default_factory=set[PartitionSpace])
    expiring: list[str] = field(default_factory=list[str])
    calls: Calls = field(init=False)
    _times: dict[PartitionSpace, int] = field(default_factory=dict[PartitionSpace, int])

    def __post_init__(self) -> None:
        """Begin without any call."""
        self.calls = Calls(self.store, self.reach)

    async def run(self) -> None:
        """Walk to the end, or to the limit.

        Raises:
            StoreUnavailable: The store is away.
        """
        namespace = self.store.namespace
        prefix = f"{{{namespace}:" if self.type_name is None else f"{{{namespace}:{self.type_name}:"
        looked = 0
        async for page in scan(self.store, prefix.encode(), nodes=self.store.connected):
            looked += SCAN_COUNT
            names = await self._readable(names_of(namespace, page))
            self.keys += len(names)
            if names:
                await self._take(await survey(self.store, names))
            if self.progress is not None:
                self.progress(looked, self.keys)
            if self.limit is not None and self.keys >= self.limit:
                self.is_whole = False
                return

    async def _readable(self, names: list[KeyName]) -> list[KeyName]:
        there = set(await self.reach.readable(map(self._space, names)))
        return [name for name in names if self._space(name) in there]

    async def _take(self, page: list[Standing]) -> None:
        sound = [each for each in page if self._is_sound(each)]
        await self._take_open([each for each in sound if each.name.structure is Structure.INVOCATION])
        lanes = [each.name for each in sound if each.name.structure is Structure.LANE]
        self.book.add(await check_lanes(self.store, [(self._space(name), name.rest.decode()) for name in lanes]))
        for each in sound:
            await self._take_queue(each)

    def _is_sound(self, standing: Standing) -> bool:
        """Return whether a key is one of ours and of its type; what is not is a finding."""
        name = standing.name
        self._note_partition(name)
        if standing.kind == b"none":
            return False
        if name.structure is None:
            self.book.add([_foreign(name)])
            return False
        if standing.kind != TYPES[name.structure]:
            self.book.add([_wrong_type(name, standing.kind)])
            return False
        if standing.left_ms == FOR_EVER:
            self.book.add([self._never_expires(name)])
        return True

    def _note_partition(self, name: KeyName) -> None:
        count = self.types.get(name.type_name)
        if (count is None or name.number >= count) and len(self.unknown) < UNKNOWN_MAX:
            self.unknown.add(self._space(name))

    def _space(self, name: KeyName) -> PartitionSpace:
        return self.store.space(name.type_name, name.number)

    @staticmethod
    def _never_expires(name: KeyName) -> Finding | None:
        match name.structure:
            case Structure.RESULT:
                cause = "a result that has no end to its keeping stays for ever"
                return _kept(name, Kind.RESULT_NEVER_EXPIRES, cause, "results")
            case Structure.CLAIMS:
                cause = "idempotency keys of a day that have no end to their keeping stay for ever"
                return _kept(name, Kind.CLAIMS_NEVER_EXPIRE, cause, "days")
            case _:
                return None

    async def _take_open(self, standings: list[Standing]) -> None:
        """Look at the invocations whose streams don't expire: they are open."""
        streams = [(self._space(each.name), each.name.rest) for each in standings if each.left_ms == FOR_EVER]
        waiting: list[InvocationFacts] = []
        for facts in await read_open_facts(self.store, streams, self.in_charge):
            if isinstance(facts, Unfinished):
                self.book.add([_unfinished(facts)])
                continue
            self.open_by_status["unreadable" if facts.standing is None else facts.standing.status.value] += 1
            self.open_by_space[facts.space] += 1
            self.held.note(facts)
            self.book.add(check(facts) for check in INVOCATION_CHECKS)
            waiting.append(facts)
            repair = lane_repair(facts)
            if repair is not None and is_doubtful(facts) and len(self.doubtful) < DOUBTFUL_MAX:
                self.doubtful.append(_doubtful(facts, repair))
        await self.calls.note(waiting)

    async def _take_queue(self, standing: Standing) -> None:
        name = standing.name
        match name.structure:
            case Structure.OBJECT:
                self.busy.note(self._space(name), name.rest.decode(), standing.entries)
            case Structure.RUNNABLE:
                self.book.add(await check_runnable(self.store, self._space(name)))
            case Structure.DUE:
                self.book.add(await check_due(self.store, self._space(name)))
            case Structure.SENT:
                self.book.add(await check_sent(self.store, self._space(name)))
            case Structure.OUTBOX:
                self.book.add(await check_outbox(self.store, self._space(name), name.rest))
            case Structure.BLOBS:
                self.book.add(await check_values(self.store, self._space(name)))
            case Structure.OBJECT_BLOBS:
                self.book.add(await check_object_values(self.store, self._space(name), name.rest.decode()))
            case Structure.CLAIMS:
                self.book.add(await check_claims(self.store, self._space(name), name.rest, name.raw))
            case _:
                await self._take_docket(name)

    async def _take_docket(self, name: KeyName) -> None:
        space, card = self._space(name), self.code.get(name.type_name)
        match name.structure:
            case Structure.EFFECTS:
                now_ms = await self._now_ms(space)
                self._note(space, *await check_effects(self.store, space, name.rest.decode(), now_ms, card))
            case Structure.PROPOSALS:
                self._note(space, *await check_proposals(self.store, space, name.rest.decode(), card))
            case Structure.AGENDA | Structure.QUEUE:
                self.book.add(await check_index(self.store, space, name.raw))
            case Structure.PROPOSED:
                self.book.add(await check_index(self.store, space, name.raw))
                if len(self.expiring) < EXPIRING_MAX:
                    self.expiring += await expiring_soon(self.store, space, await self._now_ms(space))
            case _:
                pass

    def _note(self, space: PartitionSpace, findings: list[Finding], unsettled: int) -> None:
        self.book.add(findings)
        self.unsettled_by_space[space] += unsettled

    async def _now_ms(self, space: PartitionSpace) -> int:
        """Return a partition's time; a moment later is early enough for what is hours late."""
        if space not in self._times:
            self._times[space] = (await look(self.store, space, [], []))[0].now_ms
        return self._times[space]


def _place(name: KeyName) -> Place:
    return Place(name.type_name, name.number, name=printable(name.raw))


def _foreign(name: KeyName) -> Finding:
    cause = "it stands under the tag of one of our partitions, and nothing of ours has such a name"
    remedy = "whoever wrote it takes it away; Keylane does not touch it"
    return Finding(Kind.FOREIGN_KEY, _place(name), cause, remedy)


def _wrong_type(name: KeyName, kind: bytes) -> Finding:
    wanted = TYPES[name.structure].decode() if name.structure is not None else ""
    cause = f"a {kind.decode()} stands where a {wanted} of ours belongs: everything that needs it is refused"
    remedy = "whoever wrote it renames it (RENAME); Keylane does not touch it"
    return Finding(Kind.WRONG_TYPE, _place(name), cause, remedy)


def _kept(name: KeyName, kind: Kind, cause: str, what: str) -> Finding:
    repair = NamedRepair(name.type_name, name.number, what, name.rest)
    return Finding(kind, _place(name), cause, "its owner gives it the retention that it would have", repair)


def _unfinished(ended: Unfinished) -> Finding:
    space = ended.space
    invocation = format_id(space.type_name, space.number, ended.raw_id)
    return Finding(
        Kind.INVOCATION_NEVER_EXPIRES,
        Place(space.type_name, space.number, invocation=invocation),
        "it has ended, and its records have no end to their keeping: they stay for ever",
        "its owner gives them the retention that they would have",
        NamedRepair(space.type_name, space.number, "streams", ended.raw_id),
    )


def _doubtful(facts: InvocationFacts, repair: LaneRepair) -> Doubtful:
    space, due_ms = facts.space, facts.retry_due_ms or 0
    return Doubtful(
        format_id(space.type_name, space.number, facts.raw_id),
        f"its attempt was due {(facts.now_ms - due_ms) / 1000:.0f} s ago and has no outcome: it runs, or never began",
        repair,
    )
