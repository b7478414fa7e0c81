"""Reads the journals of invocations out of a store: one with all that it refers to, or every open one, page by page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Container, Sequence
from typing import Final

from .blobs import digest_in, is_reference, read_blob, references_in
from .codec import Undecodable
from .doctor.names import Structure
from .doctor.scanning import FOR_EVER, names_of, survey
from .errors import CallError, KeylaneError, ValueLost
from .exported import Journal, Written, decoded
from .idle_reading import read_states
from .key import InvocationId
from .keyspace import PartitionSpace
from .lane_reading import OpenInvocation, read_invocations, read_state
from .noted import Bound, named, read_stream, written_at_ms
from .records import Accepted, Record
from .scan import scan
from .snapshots import ObjectState
from .store import Store

#: States that are read in one turn: each may be large.
STATES_AT_ONCE: Final = 8
#: Records of one invocation that are exported.
RECORDS: Final = Bound(1_000_000, 1 << 30)


async def read_journal(store: Store, invocation: InvocationId) -> tuple[Journal, list[Written]]:
    """Read one journal with the object's state and all large values that these refer to.

    Raises:
        CallError: The invocation has no journal of its own: it was a short one, or nothing is kept of it.
        StoreError: It can't be read.
    """
    space = store.space(invocation.type_name, invocation.partition)
    entries, _ = await read_stream(store, space.invocation(invocation.raw), RECORDS)
    written = [Written(written_at_ms(entry[0]), named(entry[1]).get(b"r", b"")) for entry in entries]
    records, undecodable = decoded(written)
    accepted = records[0] if records else None
    if not isinstance(accepted, Accepted):
        why = "it was a short one, or nothing is kept of it" if undecodable is None else undecodable
        raise CallError(f"it has no journal of its own: {why}", invocation_id=str(invocation))
    state = await _state(store, space, accepted.key)
    journal = Journal(
        space.type_name, space.number, accepted.key, invocation.raw, records, written[0].at_ms, undecodable,
        state.values, state.version, await _large(store, space, accepted.key, records, state),
    )  # fmt: skip
    return journal, written


async def _state(store: Store, space: PartitionSpace, key_text: str) -> ObjectState:
    try:
        return await read_state(store, space, key_text)
    except Undecodable:
        return ObjectState({})


async def _large(
    store: Store, space: PartitionSpace, key_text: str, records: Sequence[Record], state: ObjectState
) -> dict[bytes, bytes]:
    """Return the large values that a journal refers to; a replay that needs one that is lost says so."""
    large: dict[bytes, bytes] = {}
    references = references_in(records) | {each for each in state.values.values() if is_reference(each)}
    for reference in references:
        try:
            large[digest_in(reference)] = await read_blob(store, space, key_text, reference, "a value")
        except ValueLost:
            continue
    return large


async def open_journals(store: Store, type_names: Container[str]) -> AsyncGenerator[Journal]:
    """Return the journals of all open invocations of some object types, a page of keys at a time.

    What is begun or ended meanwhile may be among them or not.

    Args:
        store: The open store.
        type_names: The types.

    Raises:
        StoreUnavailable: The store is away.
    """
    seen: set[bytes] = set()
    async for page in scan(store, f"{{{store.namespace}:".encode()):
        names = [
            name
            for name in names_of(store.namespace, page)
            if name.structure is Structure.INVOCATION and name.type_name in type_names
        ]
        by_space: dict[PartitionSpace, list[bytes]] = defaultdict(list)
        for each in await survey(store, names) if names else []:
            if each.left_ms == FOR_EVER and each.kind == b"stream" and each.name.rest not in seen:
                seen.add(each.name.rest)
                by_space[store.space(each.name.type_name, each.name.number)].append(each.name.rest)
        for space, ids in by_space.items():
            for start in range(0, len(ids), STATES_AT_ONCE):
                for journal in await _journals(store, space, ids[start : start + STATES_AT_ONCE]):
                    yield journal


async def _journals(store: Store, space: PartitionSpace, ids: Sequence[bytes]) -> list[Journal]:
    found = [each for each in await read_invocations(store, space, ids) if each.records or each.undecodable]
    keys = [_key_of(each) for each in found]
    states = await read_states(store, space, keys)
    return [
        Journal(
            space.type_name, space.number, key, each.raw_id, tuple(each.records), each.begun_ms, each.undecodable,
            {} if isinstance(state, KeylaneError) else state.values,
            1 if isinstance(state, KeylaneError) else state.version,
        )
        for each, key, state in zip(found, keys, states, strict=True)
    ]  # fmt: skip


def _key_of(found: OpenInvocation) -> str:
    accepted = found.records[0] if found.records else None
    return accepted.key if isinstance(accepted, Accepted) else ""
