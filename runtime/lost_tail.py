"""Tells people that the store has lost what it had confirmed, or may have, and what is known to be gone."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..journal.doubt import DoubtSpan, Verdict
from ..journal.errors import KeylaneError
from ..journal.key import format_id
from ..journal.restored import missing

if TYPE_CHECKING:
    from ..journal.doubt import Remembered
    from ..journal.keyspace import PartitionSpace
    from ..journal.store import Store
    from ..journal.tenure import Acquired

logger = logging.getLogger("keylane.ownership")

#: How many of the invocations that were known are looked for, and how many of those that are gone are named.
LOOKED_FOR_MAX = 1_000
NAMED_MAX = 20


async def report(store: Store, space: PartitionSpace, acquired: Acquired, remembered: Remembered | None) -> None:
    """Say what an acquisition has found out about the end of a partition's history."""
    span = "" if acquired.doubt is None else f"; in doubt {_told(acquired.doubt)}"
    if acquired.verdict is Verdict.DOUBT:
        logger.warning(
            "%s: the server is another one than the one that held this history, and may have lost the end of it%s",
            space, span,
        )  # fmt: skip
        return
    known = 0 if remembered is None else remembered.batch
    logger.error(
        "%s: the store has lost the end of this history: batch %d was confirmed, and it has %d%s",
        space, known, acquired.last_batch, span,
    )  # fmt: skip
    ids = () if remembered is None else remembered.ids[-LOOKED_FOR_MAX:]
    try:
        gone = await missing(store, space, ids)
    except KeylaneError as error:
        logger.warning("%s: which invocations are lost can't be read: %s", space, error)
        return
    if gone:
        named = ", ".join(format_id(space.type_name, space.number, raw_id) for raw_id in gone[:NAMED_MAX])
        more = f" and {len(gone) - NAMED_MAX} more" if len(gone) > NAMED_MAX else ""
        logger.error("%s: lost are %s%s", space, named, more)


def _told(span: DoubtSpan) -> str:
    return f"is what happened from {_moment(span.from_ms)} to {_moment(span.until_ms)}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="seconds")
