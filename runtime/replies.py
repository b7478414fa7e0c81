"""Tells those who wait for an invocation how it has ended, or that it was not taken in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..journal import operations
from ..journal.batch import Commit, CommitDone, Operation, unheard
from ..journal.errors import KeylaneError
from ..journal.key import new_invocation_id
from ..journal.messages import Attached, Caller, Reply, reply_id
from ..journal.outcomes import encode_outcome
from ..journal.requests import Request, RequestKind
from .failures import refused
from .large_values import USUAL_BYTES, weigh

if TYPE_CHECKING:
    from .invocation import Invocation
    from .lane import Lane
    from .partition import Partition

#: How long the answer to a request that leaves no history is kept when it is given while the store's memory is full.
FULL_RETENTION_MS = 30_000


def reply(partition: Partition, caller: Caller, raw_id: bytes, outcome: bytes) -> Operation:
    """Return what sends the outcome of a called invocation to its caller, by way of this partition's outbox."""
    payload = Reply(caller.invocation, caller.index, outcome).encode()
    message = Request(RequestKind.REPLY, reply_id(raw_id), "", caller.key, payload)
    return operations.post(partition.space, f"{caller.type_name}.{caller.partition}", message.encode())


def replies(lane: Lane, invocation: Invocation, outcome: bytes) -> list[Operation]:
    """Return what tells everybody in other partitions who waits for an invocation how it has ended.

    Args:
        lane: Its lane.
        invocation: The one that ends with the commit that this goes into.
        outcome: The encoded outcome, whole.
    """
    partition, raw_id = lane.partition, invocation.raw_id
    writes: list[Operation] = []
    if invocation.caller is not None:
        weigh(lane, outcome)
        writes.append(reply(partition, invocation.caller, raw_id, outcome))
    attached, invocation.attached = invocation.attached, ()
    for each in attached:
        weigh(lane, outcome)
        writes.extend(told(partition, raw_id, each, outcome))
    return writes


def told(partition: Partition, raw_id: bytes, attached: Attached, outcome: bytes) -> list[Operation]:
    """Return what tells one who has attached to an invocation how it has ended."""
    caller = attached.caller
    payload = Reply(caller.invocation, caller.index, outcome, attached.target).encode()
    # Each has an id of its own: several may go to one partition, and whoever is begun again may attach again.
    message = Request(RequestKind.REPLY, new_invocation_id(), "", caller.key, payload)
    posted = operations.post(partition.space, f"{caller.type_name}.{caller.partition}", message.encode())
    return [operations.detach(partition.space, raw_id, attached), posted]


def refuse(
    partition: Partition,
    raw_id: bytes,
    entry: bytes | None,
    client: bytes | None,
    error: KeylaneError,
    caller: Caller | None = None,
) -> None:
    """Write down that a request from the inbox was not taken in, and why."""
    outcome = encode_outcome(refused(error))
    answer(partition, raw_id, entry, client, outcome, caller=caller)


def answer(
    partition: Partition,
    raw_id: bytes,
    entry: bytes | None,
    client: bytes | None,
    outcome: bytes,
    done: CommitDone = unheard,
    *,
    lane: Lane | None = None,
    about: bytes | None = None,
    caller: Caller | None = None,
) -> None:
    """Write the outcome of a request that leaves no history, and tell whoever waits for it.

    With a lane, it is of one that is built on what goes before.
    """
    writes = answered(partition, raw_id, entry, client, outcome, caller=caller)
    if entry is not None:
        partition.remember(raw_id)
    weight = len(outcome) if len(outcome) > USUAL_BYTES else 0
    partition.writer.commit(Commit(writes, done, lane, about=about, weight=weight))


def answered(
    partition: Partition,
    raw_id: bytes,
    entry: bytes | None,
    client: bytes | None,
    outcome: bytes,
    *,
    caller: Caller | None = None,
) -> list[Operation]:
    """Return what writes the outcome of a request that leaves no history, and tells whoever waits for it."""
    # While memory is full nothing that could do without is left behind for long.
    kept_ms = FULL_RETENTION_MS if partition.memory.is_full else partition.result_retention_ms
    writes = [operations.result(partition.space, raw_id, outcome, kept_ms)]
    if entry is not None:
        writes.append(operations.settle_entry(entry))
    if client is not None:
        writes.append(operations.announce(client, raw_id, outcome))
    if caller is not None:
        writes.append(reply(partition, caller, raw_id, outcome))
    return writes
