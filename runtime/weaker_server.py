"""Tells people that the server which has the place of another one keeps less than was declared."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..journal.errors import KeylaneError
from ..journal.promise import kind_of, read_all_facts
from ..journal.safety import doubts, restart_may_lose

if TYPE_CHECKING:
    from ..journal.safety import Durability
    from ..journal.store import Store

logger = logging.getLogger("keylane.ownership")


async def keeps_less(store: Store, durability: Durability) -> bool:
    """Return whether a restart may cost one of the servers what it has confirmed, and say what stands against them.

    A replica that is promoted was not looked at when this worker began.

    Args:
        store: The open store.
        durability: What is declared.
    """
    try:
        # One that is away hides nothing of the one that has just got its place: it is seen when it is back.
        facts = await read_all_facts(store, connected=True)
    except KeylaneError as error:
        # Once another one has its place, they are looked at again.
        logger.info("what the servers keep can't be read now: %s", error)
        return False
    for each in {doubt for server in facts for doubt in doubts(server, durability, kind_of(store))}:
        logger.error("the store is another one than before: %s; %s", each.why, each.remedy)
    return any(restart_may_lose(each, durability) for each in facts)
