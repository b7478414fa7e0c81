"""A checkup of a namespace: owners are watched while every key is looked at once, and then everything is judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

import anyio

from ..code_registry import TypeCard, read_code
from ..errors import StoreUnavailable, UnknownObject, WrongKeyType
from ..keyspace import PartitionSpace
from ..node import Node
from ..noted import moment
from ..promise import kind_of, read_facts_by_node
from ..safety import Durability, ServerFacts
from ..store import MEMORY_LIMIT_RATIO, Store
from ..types_registry import read_owners, read_types
from ..urls import ClusterAddress
from .clocks import read_clocks
from .delivering import Deliveries
from .facts import First, LeaseHealth, PartitionFacts, Sign, TypeFacts
from .findings import FindingBook
from .inboxes import Inbox, age_ms, read_inbox, still_repeated
from .partition_checks import PARTITION_CHECKS, memory_has_room, server_is_safe, type_has_a_worker
from .partitions import Reading, read_partitions
from .paused import pauses_in_words
from .ranking import BusyKeys, takes_most
from .reach import Reach
from .report import BusyKey, Looked, PartitionReport, Report, ServerReport, owner_words
from .server import libraries_of, read_servers
from .walking import Progress, Walk
from .watching import Watch

#: So often a checkup of a cluster begins again whose partitions have stopped or gone on meanwhile.
ATTEMPTS: Final = 3
#: The traffic of the busiest objects is measured over at least this long.
TRAFFIC_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What a checkup looks at.

    Args:
        lease_seconds: For how long the deployment's owners may be silent.
        durability: What the deployment declares.
        memory_limit_ratio: The part of a server's memory at which owners take nothing more in.
        type_name: The one type that is looked at, None for all.
        limit: After so many keys the walk stops, None to come to the end.
        progress: Told how far the walk is.
    """

    lease_seconds: float
    durability: Durability = "fsync"
    memory_limit_ratio: float = MEMORY_LIMIT_RATIO
    type_name: str | None = None
    limit: int | None = None
    progress: Progress | None = None


async def check_up(store: Store, plan: Plan) -> Report:
    """Look at a namespace, and change nothing.

    Args:
        store: The open store.
        plan: What to look at.

    Raises:
        StoreUnavailable: The store is away.
        UnknownObject: The plan names a type that the namespace does not have.
        WrongKeyType: A foreign key stands where a registry belongs.
    """
    began = time.monotonic()
    for _ in range(ATTEMPTS - 1 if isinstance(store.address, ClusterAddress) else 0):
        try:
            return await _check_up(store, plan, began)
        except (StoreUnavailable, ExceptionGroup) as error:
            # A partition that could be read has stopped on the way: it is left out from the start.
            if not _is_unavailable(error):
                raise
    return await _check_up(store, plan, began)


async def _check_up(store: Store, plan: Plan, began: float) -> Report:
    types, in_charge, code = await _types(store, plan), await read_owners(store), await read_code(store)
    return await _Checkup(store, plan, Reach(store), types, in_charge, code).run(began)


def _is_unavailable(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return cast("ExceptionGroup[Exception]", error).subgroup(StoreUnavailable) is not None
    return isinstance(error, StoreUnavailable)


async def _types(store: Store, plan: Plan) -> dict[str, int]:
    types = await read_types(store)
    if plan.type_name is None:
        return types
    if plan.type_name not in types:
        raise UnknownObject(plan.type_name, tuple(sorted(types)))
    return {plan.type_name: types[plan.type_name]}


@dataclass(slots=True)
class _Checkup:
    """One checkup: what it has read so far."""

    store: Store
    plan: Plan
    reach: Reach
    types: Mapping[str, int]
    in_charge: Mapping[str, str]
    code: Mapping[str, TypeCard]
    book: FindingBook = field(default_factory=FindingBook)
    notes: list[str] = field(default_factory=list[str])

    async def run(self, began: float) -> Report:
        store, plan = self.store, self.plan
        facts_of_servers = await read_facts_by_node(store, connected=True)
        spaces = await self._spaces()
        before = await read_partitions(store, spaces)
        deliveries = Deliveries(store, self.reach)
        unsent = await deliveries.begin(spaces)
        inboxes = await self._inboxes(before)
        walk = Walk(
            store, self.reach, self.types, self.in_charge, self.code, self.book,
            plan.type_name, plan.limit, plan.progress,
        )  # fmt: skip
        watch = Watch(store, spaces, plan.lease_seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await walk.run()
        busy = await self._busy(walk.busy, inboxes.values())
        spaces += sorted(walk.unknown, key=str)
        after = await read_partitions(store, spaces)
        oldest = await self._oldest(after, inboxes)
        self.book.add(await walk.calls.lost())
        facts = [self._partition(space, before, after, oldest, unsent.get(space, 0), watch, walk) for space in spaces]
        self.book.add(check(each) for each in facts for check in PARTITION_CHECKS)
        self.book.add(await deliveries.stuck({each.space for each in facts if each.is_live}))
        for inbox in inboxes.values():
            self.book.add(await still_repeated(store, inbox))
        types = self._types(facts, watch)
        self.book.add(type_has_a_worker(each) for each in types)
        health = {each.space: each.health for each in facts}
        held = await walk.held.told(store, health)
        reports = await read_servers(store, facts_of_servers, plan.durability, plan.memory_limit_ratio)
        self._judge(reports, facts_of_servers)
        self.book.add(await self.reach.confirmed())
        self._note_what_was_left_out(walk)
        return Report(
            namespace=store.namespace,
            read_at=moment((await read_clocks(store)).latest),
            servers=tuple(reports.values()),
            workers=watch.workers(),
            types={each.name: (each.partitions, each.in_charge) for each in types},
            partitions=tuple(_told(each) for each in facts if _is_worth_telling(each)),
            held_lanes=held,
            busy_keys=busy,
            doubtful=tuple(walk.doubtful),
            findings=self.book.findings,
            left_out=self.book.left_out,
            looked=Looked(
                walk.keys,
                dict(walk.open_by_status),
                walk.is_whole and not self.notes,
                tuple(self.notes),
                time.monotonic() - began,
                max((each.health.watched_seconds for each in facts), default=0.0),
            ),
            notices=(
                *self._notices(watch, libraries_of(reports.values()), types, walk, facts),
                *(lopsided for each in busy if (lopsided := takes_most(each, walk.busy.entries)) is not None),
                *await pauses_in_words(store, spaces, self.in_charge),
            ),
        )

    async def _spaces(self) -> list[PartitionSpace]:
        """Return the partitions of the registry that can be read."""
        counts = self.types.items()
        return await self.reach.readable(self.store.space(name, at) for name, count in counts for at in range(count))

    def _judge(self, reports: Mapping[Node, ServerReport], facts: Mapping[Node, ServerFacts]) -> None:
        kind = kind_of(self.store)
        for node, server in reports.items():
            self.book.add(server_is_safe(facts[node], self.plan.durability, kind, server.place))
            self.book.add([memory_has_room(server)])

    async def _inboxes(self, readings: Mapping[PartitionSpace, Reading]) -> dict[PartitionSpace, Inbox]:
        found: dict[PartitionSpace, Inbox] = {}
        for space, reading in readings.items():
            if not reading.backlog.inbox:
                continue
            try:
                found[space] = await read_inbox(self.store, space)
            except WrongKeyType:
                # The walk says so.
                continue
            if found[space].is_cut:
                looked_at, there = found[space].looked_at, reading.backlog.inbox
                self.notes.append(f"the inbox of {space} has {there} entries, of which {looked_at} were looked at")
        return found

    async def _busy(self, busy: BusyKeys, inboxes: Iterable[Inbox]) -> tuple[BusyKey, ...]:
        """Measure what the busiest objects get just now."""
        for inbox in inboxes:
            for key, count in inbox.by_key.items():
                busy.waiting[inbox.space.type_name, key] += count
        before, began = await busy.added(self.store), time.monotonic()
        if before:
            await anyio.sleep(TRAFFIC_SECONDS)
        return busy.told(before, await busy.added(self.store), time.monotonic() - began)

    async def _oldest(
        self, readings: Mapping[PartitionSpace, Reading], inboxes: Mapping[PartitionSpace, Inbox]
    ) -> dict[PartitionSpace, First]:
        """Return the oldest requests that lie in their inboxes still."""
        clocks = await read_clocks(self.store)
        found: dict[PartitionSpace, First] = {}
        for space, inbox in inboxes.items():
            if inbox.oldest is not None and readings[space].backlog.inbox:
                again = await read_inbox(self.store, space)
                is_unmoved = again.oldest == inbox.oldest
                found[space] = First(inbox.oldest, age_ms(inbox.oldest, clocks.of(space)), is_unmoved)
        return found

    def _partition(
        self,
        space: PartitionSpace,
        before: Mapping[PartitionSpace, Reading],
        after: Mapping[PartitionSpace, Reading],
        oldest: Mapping[PartitionSpace, First],
        unsent: int,
        watch: Watch,
        walk: Walk,
    ) -> PartitionFacts:
        earlier, reading, name = before.get(space), after[space], space.type_name
        backlog = reading.backlog
        return PartitionFacts(
            space,
            self.types.get(name),
            reading.owner,
            reading.now_ms,
            watch.health(space) if space in before else LeaseHealth(Sign.UNREADABLE),
            replace(backlog, open=walk.open_by_space[space], unsent=unsent, unsettled=walk.unsettled_by_space[space]),
            oldest.get(space),
            _past(earlier and earlier.earliest_due, reading.earliest_due, reading.now_ms),
            self.in_charge.get(name),
            any(worker.is_live and name in worker.hosts for worker in watch.workers()),
            _past(earlier and earlier.earliest_history, reading.earliest_history, reading.now_ms),
        )

    def _types(self, facts: list[PartitionFacts], watch: Watch) -> list[TypeFacts]:
        workers = watch.workers()
        return [
            TypeFacts(
                name,
                count,
                self.in_charge.get(name),
                tuple(worker.worker for worker in workers if worker.is_live and name in worker.hosts),
                sum(each.space.type_name == name and each.backlog.has_work for each in facts),
            )
            for name, count in sorted(self.types.items())
        ]

    def _note_what_was_left_out(self, walk: Walk) -> None:
        if walk.calls.left_out:
            self.notes.append(f"{walk.calls.left_out} calls that wait for their replies were not traced")
        if self.reach.away:
            self.notes.append(f"{len(self.reach.away)} partitions can't be read now: they were not looked at")
        silent = [node.target for node in self.store.nodes if node not in self.store.connected]
        if silent:
            self.notes.append(f"{', '.join(silent)} can't be reached: what is there was not looked at")
        if not walk.is_whole:
            self.notes.append(f"the walk stopped after {walk.keys} keys, as it was told: the others were not looked at")

    def _notices(
        self, watch: Watch, libraries: tuple[str, ...], types: list[TypeFacts], walk: Walk, facts: list[PartitionFacts]
    ) -> tuple[str, ...]:
        workers = watch.workers()
        called = {worker.library for worker in workers if worker.is_live} | {self.store.library.name}
        notices = [f"worker {each.worker} is announced and silent" for each in workers if not each.is_live]
        notices += [f"worker {each.worker} can't be read: {each.problem}" for each in workers if each.problem]
        notices += _losses(facts)
        notices += walk.expiring
        notices += [f"no live worker calls the functions of {name}" for name in libraries if name not in called]
        notices += [
            f"no live worker hosts {each.name}, which has no work" for each in types if _rests(each, self.reach)
        ]
        if walk.held.count > len(walk.held):
            notices.append(f"{walk.held.count} lanes are held; the {len(walk.held)} with most behind them are told of")
        if not self.types:
            notices.append("the namespace has no object types: no worker has run in it")
        return tuple(notices)


def _losses(facts: list[PartitionFacts]) -> list[str]:
    return [
        f"{each.space} has lost the end of its history {each.owner['losses']} times; its owners' logs say what"
        for each in facts
        if each.owner.get("losses", "0") != "0"
    ]


def _rests(facts: TypeFacts, reach: Reach) -> bool:
    is_seen = all(space.type_name != facts.name for space in reach.away)
    return is_seen and not facts.workers and not facts.partitions_with_work


def _past(before: tuple[bytes, int] | None, after: tuple[bytes, int] | None, now_ms: int) -> First | None:
    """Return what should have been dealt with first, when its time is past."""
    if after is None or after[1] > now_ms:
        return None
    return First(after[0], now_ms - after[1], before == after)


def _is_worth_telling(facts: PartitionFacts) -> bool:
    return facts.health.epoch is not None or facts.backlog.has_work or bool(facts.backlog.undecodable)


def _told(facts: PartitionFacts) -> PartitionReport:
    return PartitionReport(
        facts.space.type_name, facts.space.number, facts.health, facts.backlog, owner_words(facts.owner)
    )
