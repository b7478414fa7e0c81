"""The bytes of large values, for handlers that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ..journal.blobs import digest_in, is_reference, read_blob
from ..journal.errors import StoreError, StoreUnavailable
from ..journal.records import PauseReason
from .commands import park
from .failures import failure_of
from .large_values import note

if TYPE_CHECKING:
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane

READ_AGAIN_SECONDS = 0.2


async def whole(ctx: ExclusiveContext, lane: Lane, invocation: Invocation, stored: bytes, what: str) -> bytes:
    """Return the bytes of a value that an exclusive handler uses.

    One that is lost parks the invocation: whatever its handler made of the gap would be written over what was there.

    Args:
        ctx: The run that uses it.
        lane: Its lane.
        invocation: Its invocation.
        stored: The value, or a reference to it.
        what: What the value is, for messages.

    Raises:
        Suspended: The run ends here.
    """
    if not is_reference(stored):
        return stored
    note(invocation, stored)
    partition = lane.partition
    at_hand = partition.store.blob_cache.get(digest_in(stored))
    while at_hand is None:
        try:
            gate = lane.gate()
            if gate is not None:
                await ctx.through(gate)
            at_hand = await read_blob(partition.store, partition.space, lane.key_text, stored, what)
        except StoreUnavailable:
            await anyio.sleep(READ_AGAIN_SECONDS)
        except StoreError as error:
            ctx.check_current()
            await park(ctx, lane, invocation, PauseReason.VALUE_LOST, error.message, failure_of(error))
        ctx.check_current()
    return at_hand
