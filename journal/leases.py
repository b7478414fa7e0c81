"""The calls of ownership: acquire, renew, release and observe partitions, announce a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import redis.exceptions

from .cluster import Cluster
from .cluster_leases import ClusterLeases
from .connections import sync_client_to
from .doubt import DoubtSpan, Remembered, Verdict
from .errors import InternalError, SchemaMismatch, StoreError, StoreUnavailable, WrongKeyType
from .keyspace import PartitionSpace, registry_key
from .renewals import Leases, NotRenewed, Renewal, Renewed, SentinelLeases, SyncLeases, TenureLost
from .server_identity import ServerIdentity
from .store import Refusal, Store, refusal
from .tenure import (
    VACANT,
    Acquired,
    Announcement,
    Observation,
    Poll,
    Registry,
    Tenure,
    encode_announcement,
    lease_clock,
    new_token,
)
from .urls import ClusterAddress, SentinelAddress

__all__ = [
    "Leases",
    "NotRenewed",
    "Renewal",
    "Renewed",
    "SyncLeases",
    "TenureLost",
    "acquire",
    "announce",
    "observe",
    "release",
    "sync_leases",
    "withdraw",
    "withdraw_dead",
]

#: How soon an acquisition is asked for again after its answer was lost.
ASK_AGAIN_SECONDS = 0.05


async def acquire(
    store: Store,
    space: PartitionSpace,
    seen: Observation,
    *,
    partitions: int,
    worker: str,
    machine: str,
    lease_seconds: float,
    restart_may_lose: bool = False,
    reach_seconds: float = 60.0,
    remembered: Remembered | None = None,
) -> Acquired | None:
    """Begin a tenure, provided that the partition is still as it was seen.

    Args:
        store: The open store.
        space: The partition.
        seen: What the decision to take it was made on.
        partitions: How many partitions the type has; written at first use and compared from then on.
        worker: This worker.
        machine: Where it runs.
        lease_seconds: For how long the worker may be silent before others, whose own lease may be a shorter one, take
            the partition from it. For as long a lost answer is asked for again: an older tenure would begin expired.
        restart_may_lose: Whether a restart may cost the server what it has confirmed.
        reach_seconds: How far before the start of a server that may know less than the one before a loss may reach, and
            how long from now on work is in doubt.
        remembered: What this worker knows of its own last tenure of the partition.

    Returns:
        The tenure, or None when the partition has moved on: somebody else got it, or its holder renewed.

    Raises:
        SchemaMismatch: It was written with another partition count or by a release with another schema.
        WrongKeyType: Its owner key is somebody else's.
        StoreUnavailable: No answer came; whether a tenure began is unknown, and if one did, nobody will renew it.
    """
    token = new_token()
    epoch = "" if seen.epoch is None else seen.epoch
    known = _known(remembered)
    loss = (int(restart_may_lose), int(reach_seconds * 1000), *known)
    server = await store.identity_of(space)
    args = (partitions, epoch, seen.lease, token, worker, machine, *_told(server), *loss, int(lease_seconds * 1000))
    # The lease counts from before the first time that these words were sent: any of them may be the one that counted.
    sent_at = lease_clock()
    answer = await _acquire(store, space, args, sent_at + lease_seconds)
    if answer is None:
        return None
    acquired = _acquired(answer, token, sent_at)
    if not await _is_on(store, space, server):
        # It was compared with, and has noted, a server that is not the one which has the partition: once more.
        await release(store, space, acquired.tenure)
        return None
    return acquired


async def _acquire(store: Store, space: PartitionSpace, args: tuple[Any, ...], deadline: float) -> Any:
    """Ask until there is an answer; None where the partition has moved on."""
    while True:
        try:
            answer = await _change(store, "acquire", space, args)
            # What is read from here on, and told to callers, must not be what a failover takes back.
            await store.settle(space)
        except StoreUnavailable:
            if lease_clock() > deadline:
                raise
            await anyio.sleep(ASK_AGAIN_SECONDS)
        except Refusal as refused:
            if refused.code == "MOVED_ON":
                return None
            raise _named(refused, space) from refused
        else:
            return answer


async def _is_on(store: Store, space: PartitionSpace, server: ServerIdentity | None) -> bool:
    """Return whether a partition is still on the server that it was on."""
    present = await store.identity_of(space)
    return present is server or (present is not None and server is not None and present.is_same(server))


def _known(remembered: Remembered | None) -> tuple[Any, ...]:
    if remembered is None:
        return ("", b"", 0, 0)
    return (remembered.epoch, remembered.token, remembered.batch, int(remembered.is_newest))


def _told(identity: ServerIdentity | None) -> tuple[str, str, int]:
    """Return what the function is told of the server that has a partition."""
    return ("", "", 0) if identity is None else (str(identity), identity.former_replication_id, identity.started_ms)


def _acquired(answer: Any, token: bytes, sent_at: float) -> Acquired:
    epoch, now_ms, batch, serial, history, from_ms, until_ms, verdict = answer
    doubt = DoubtSpan(from_ms, until_ms) if until_ms >= 0 else None
    tenure = Tenure(epoch, token)
    return Acquired(tenure, now_ms, batch, serial, sent_at, history.decode(), doubt, Verdict(verdict.decode()))


async def release(store: Store, space: PartitionSpace, tenure: Tenure) -> bool:
    """Hand a partition over: whoever wants it next need not wait for the lease.

    Returns:
        Whether it was this tenure's to hand over; doing it twice is no error.

    Raises:
        WrongKeyType: Its owner key is somebody else's.
        StoreUnavailable: No answer came; the lease will run out by itself.
    """
    try:
        await _change(store, "release", space, (tenure.epoch, tenure.token))
    except Refusal as refused:
        if refused.code == "FENCED":
            return False
        raise _named(refused, space) from refused
    return True


async def observe(store: Store, spaces: Sequence[PartitionSpace]) -> Poll:
    """Look at many partitions in one turn.

    One whose server gave no answer has `StoreUnavailable` in its place: from that nothing may be concluded about it.

    Raises:
        StoreUnavailable: No server of the store can be reached.
    """
    commands = [store.words("observe", [space.owner], read_only=True) for space in spaces]
    sent_at = lease_clock()
    # From before the first sending, also where it had to be sent again: less time counts as seen than has passed.
    replies = await store.each_fcall(commands)
    answered_at = lease_clock()
    seen = tuple(_observation(space, reply) for space, reply in zip(spaces, replies, strict=True))
    return Poll(sent_at, answered_at, seen)


async def announce(store: Store, worker: str, announcement: Announcement) -> Registry:
    """Say that a worker lives, and read what all of them say.

    Raises:
        WrongKeyType: The registry's key is somebody else's.
        StoreUnavailable: No answer came.
    """
    sent_at = lease_clock()
    flat = await _registry(store, "announce", (worker, encode_announcement(announcement)))
    answered_at = lease_clock()
    names: list[bytes] = flat[::2]
    return Registry(sent_at, answered_at, {name.decode(): raw for name, raw in zip(names, flat[1::2], strict=True)})


async def withdraw(store: Store, worker: str) -> None:
    """Take this worker out of the registry, at the end of an orderly shutdown.

    Raises:
        WrongKeyType: The registry's key is somebody else's.
        StoreUnavailable: No answer came.
    """
    await _registry(store, "withdraw", (worker, b""))


async def withdraw_dead(store: Store, dead: Sequence[tuple[str, bytes]]) -> None:
    """Take others out of the registry, unless their announcement changed since it was seen.

    Raises:
        WrongKeyType: The registry's key is somebody else's.
        StoreUnavailable: No answer came.
    """
    if dead:
        await _registry(store, "withdraw", tuple(word for pair in dead for word in pair))


async def _change(store: Store, verb: str, space: PartitionSpace, args: tuple[Any, ...]) -> Any:
    store.observer.before_send(verb, str(space), 0)
    answer = await store.fcall(verb, [space.owner], args)
    store.observer.after_answer(verb, str(space), 0)
    return answer


async def _registry(store: Store, verb: str, args: tuple[Any, ...]) -> Any:
    key = registry_key(store.namespace)
    store.observer.before_send(verb, "workers", 0)
    try:
        answer = await store.fcall(verb, [key], args)
    except Refusal as refused:
        raise WrongKeyType(key.decode()) from refused
    store.observer.after_answer(verb, "workers", 0)
    return answer


def _named(refused: Refusal, space: PartitionSpace) -> Exception:
    """Return the error of the tree that a refusal stands for."""
    if refused.code == "WRONGKEYTYPE":
        return WrongKeyType(refused.text)
    if refused.code == "SCHEMA":
        found, _, expected = refused.text.partition(" ")
        return SchemaMismatch(f"schema version and partition count of {space}:", found, expected)
    return InternalError(f"{space}: {refused}")


def _observation(space: PartitionSpace, reply: Any) -> Observation | StoreError:
    if isinstance(reply, StoreError):
        return reply
    if isinstance(reply, redis.exceptions.ResponseError):
        named = _named(refusal(reply), space)
        return named if isinstance(named, StoreError) else StoreError(str(named))
    epoch, lease, released, worker, machine, lease_ms = reply
    if epoch is None:
        return VACANT
    held = (_text(worker), _text(machine))
    try:
        return Observation(int(epoch), int(lease or 0), released == b"1", *held, int(lease_ms or 0) / 1000)
    except ValueError:
        return StoreError(f"{space.owner.decode()} holds something else than numbers; `keylane doctor` repairs it")


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def sync_leases(store: Store, *, timeout_seconds: float) -> Leases:
    """Return the renewals of a thread, over connections of its own.

    Args:
        store: The store; it need not be open, except that in a cluster it knows where to begin when it is.
        timeout_seconds: How long a renewal may take before it is tried over a new connection; a third of a lease
            leaves time for that.
    """
    match store.address:
        case SentinelAddress() as sentinels:
            return SentinelLeases(sentinels, store.library, timeout_seconds)
        case ClusterAddress():
            assert isinstance(store.topology, Cluster)
            return ClusterLeases(store.topology, store.library, timeout_seconds)
        case server:
            return SyncLeases(sync_client_to(server, timeout_seconds=timeout_seconds), store.library)
