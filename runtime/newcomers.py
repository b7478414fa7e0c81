"""Looks at each server that has the place of another one, and tells people where it keeps less than was declared.

A replica that is promoted was not looked at when this worker began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..journal.errors import KeylaneError
from ..journal.promise import kind_of
from ..journal.safety import doubts, read_facts, restart_may_lose
from ..journal.urls import Kind

if TYPE_CHECKING:
    from ..journal.node import Node
    from ..journal.safety import Durability, ServerFacts
    from ..journal.store import Store
    from .errands import Errands

logger = logging.getLogger("keylane.ownership")


class Newcomers:
    """Looks at servers that were not there when this worker began.

    Args:
        store: The open store.
        durability: What is declared.
        errands: Where servers are asked, one by one: a server that is away hides nothing of another one.
        again_seconds: How soon one that could not tell is asked again.
        on_less: Called when a restart of one of them may cost it what it has confirmed.
    """

    def __init__(
        self, store: Store, durability: Durability, errands: Errands, again_seconds: float, on_less: Callable[[], None]
    ) -> None:
        self._store = store
        self._durability: Durability = durability
        self._errands = errands
        self._again_seconds = again_seconds
        self._on_less = on_less
        #: The nodes that are being asked, and whether another server answers there since.
        self._asking: dict[Node, bool] = {}

    def look_at(self, node: Node) -> None:
        """Find out soon what the server at a node keeps, and say what stands against it."""
        if node in self._asking:
            self._asking[node] = True
        else:
            self._begin(node)

    def _begin(self, node: Node) -> None:
        self._asking[node] = False
        self._errands.begin(partial(self._judge, node))

    async def _judge(self, node: Node) -> None:
        facts = await self._facts_of(node)
        if (facts is None or self._asking[node]) and node in self._store.nodes:
            asyncio.get_running_loop().call_later(self._again_seconds, self._begin, node)
            return
        del self._asking[node]
        if facts is None:
            return
        for each in doubts(facts, self._durability, kind_of(self._store)):
            logger.error("the store is another one than before: %s; %s", each.why, each.remedy)
        if restart_may_lose(facts, self._durability):
            self._on_less()

    async def _facts_of(self, node: Node) -> ServerFacts | None:
        """Return what a server says of itself; None while it is away, or still a replica."""
        try:
            facts = await read_facts(node.call)
        except KeylaneError as error:
            logger.info("what %s keeps can't be read now: %s", node.target, error)
            return None
        return None if kind_of(self._store) is Kind.CLUSTER and not facts.is_primary else facts
