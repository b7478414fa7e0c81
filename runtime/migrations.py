"""State that the code of another version wrote: brought to this one's when it is used, or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..journal import codec
from ..journal.codec import REFERENCE_BYTES
from ..journal.errors import InvalidOutput, KeylaneError, MigrationFailed, PayloadTooLarge, Suspended
from ..journal.records import PauseReason
from ..journal.timeline import in_words
from .bounds import NAME_LIMIT_BYTES, STATE_NAMES_MAX
from .endings import pause
from .failures import failure_of
from .large_reads import whole
from .large_values import kept_delta, total_bytes

if TYPE_CHECKING:
    from ..journal.operations import Delta
    from ..objects.settings import Settings
    from ..objects.virtual_object import VirtualObject
    from .context import ExclusiveContext
    from .invocation import Invocation
    from .lane import Lane


async def bring_up_to_date(ctx: ExclusiveContext, lane: Lane, invocation: Invocation) -> None:
    """Bring the state of a lane to the version of this code, on behalf of the invocation that is about to use it.

    The result is queued as a commit of its own, ahead of all that the invocation writes.

    Raises:
        Suspended: It can't be, and the invocation is parked; the state is as it was.
    """
    virtual_object, version = lane.partition.virtual_object, lane.state_version
    stored = dict(lane.queued)
    for name, packed in stored.items():
        if len(packed) == REFERENCE_BYTES:
            stored[name] = await whole(ctx, lane, invocation, packed, f"state {name}")
    try:
        made = migrated(virtual_object, stored, version, lane.partition.settings)
    except MigrationFailed as error:
        is_newer = version > virtual_object.state_version
        reason = PauseReason.NEEDS_VERSION if is_newer else PauseReason.MIGRATION_FAILED
        cause = error.__cause__
        await pause(lane, invocation, reason, error.message, None if cause is None else failure_of(cause))
        raise ctx.end(Suspended()) from error
    lane.migrate(kept_delta(lane, _difference(stored, made)))


def migrated(
    virtual_object: VirtualObject, stored: Mapping[str, bytes], version: int, settings: Settings
) -> dict[str, bytes]:
    """Return a state as the newest version of its type has it.

    Args:
        virtual_object: The object type.
        stored: Its packed values, none of them a reference.
        version: The version that they were written by.
        settings: Says how much there may be.

    Raises:
        MigrationFailed: It is newer than this code, or `migrate` failed or returned what is no such state.
    """
    wanted = virtual_object.state_version
    if version > wanted or virtual_object.migrate is None:
        raise MigrationFailed("it is newer than this code", version, wanted)
    try:
        made: Any = virtual_object.migrate({name: codec.unpack(packed) for name, packed in stored.items()}, version)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # As handlers may, it raises whatever it likes, `SystemExit` too: that must not cost other objects their worker.
        raise MigrationFailed(f"migrate raised {in_words(failure_of(error))}", version, wanted) from error
    if not isinstance(made, dict):
        raise MigrationFailed(f"migrate returned {type(made).__name__}, no dict", version, wanted)
    values = {
        _name(name, version, wanted): _packed(virtual_object, name, value, version)
        for name, value in cast("dict[Any, Any]", made).items()
    }
    _check_sizes(settings, values, version, wanted)
    return values


def _name(name: object, version: int, wanted: int) -> str:
    if not isinstance(name, str):
        raise MigrationFailed(f"migrate returned {name!r:.50} for the name of a value", version, wanted)
    return name


def _packed(virtual_object: VirtualObject, name: str, value: object, version: int) -> bytes:
    """Return a value of a migrated state, with all that it holds: fields that its declared type lacks are kept."""
    try:
        packed = codec.pack(value)
        declared = virtual_object.state.get(name)
        if declared is not None:
            declared.load(packed)
    except (InvalidOutput, KeylaneError, TypeError, ValueError) as error:
        why = f"what migrate returned for {name} does not fit: {error}"
        raise MigrationFailed(why, version, virtual_object.state_version) from error
    return packed


def _check_sizes(settings: Settings, values: Mapping[str, bytes], version: int, wanted: int) -> None:
    largest = max(map(len, values.values()), default=0)
    longest = max((len(name.encode(errors="surrogatepass")) for name in values), default=0)
    for size, limit, what in (
        (largest, settings.payload_limit_bytes, "a value"),
        (longest, NAME_LIMIT_BYTES, "the name of a value"),
        (total_bytes(values.values()), settings.state_limit_bytes, "the state of this object"),
    ):
        if size > limit:
            error = PayloadTooLarge(f"{what} that migrate returned", size, limit)
            raise MigrationFailed(error.message, version, wanted) from error
    if len(values) > STATE_NAMES_MAX:
        raise MigrationFailed(
            f"migrate returned {len(values)} values, {STATE_NAMES_MAX} are the limit", version, wanted
        )


def _difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Delta:
    """Return the writes that make one state of another."""
    changed: Delta = {name: packed for name, packed in after.items() if before.get(name) != packed}
    return changed | dict.fromkeys((name for name in before if name not in after), None)
