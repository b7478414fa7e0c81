"""The crowd: asks for many refunds at once through the client, as other services would, and notes each answer."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import anyio

from keylane import Client, InvocationFailed

from ..models import Refund, RefundRequest
from ..order import refund
from .workload import Answered, Ask, Workload

ANSWER_LIMIT_S = 40.0


class Crowd:
    """Asks for all refunds of a workload, a bounded number of orders at a time.

    Args:
        client: Where calls go.
        workload: What to ask for.
    """

    def __init__(self, client: Client, workload: Workload) -> None:
        self.workload = workload
        self.answers: list[Answered] = []
        self._client = client
        self._open: set[Ask] = set()
        self._reached: dict[int, anyio.Event] = {}

    @property
    def open(self) -> frozenset[Ask]:
        """What is asked for and not yet answered."""
        return frozenset(self._open)

    @asynccontextmanager
    async def asking(self, *, orders_at_once: int) -> AsyncGenerator[None]:
        """Ask for everything, the refunds of one order at the same moment; the block ends with the last answer.

        Args:
            orders_at_once: For how many orders refunds are open at a time.
        """
        waiting = iter(self.workload.asks_by_order)
        async with anyio.create_task_group() as group:
            for _ in range(orders_at_once):
                group.start_soon(self._work_off, waiting)
            yield

    async def answered(self, count: int) -> None:
        """Wait until so many refunds are answered."""
        if len(self.answers) < count:
            await self._reached.setdefault(count, anyio.Event()).wait()

    async def _work_off(self, waiting: Iterator[tuple[Ask, ...]]) -> None:
        for asks in waiting:
            async with anyio.create_task_group() as group:
                for ask in asks:
                    group.start_soon(self._ask, ask)

    async def _ask(self, ask: Ask) -> None:
        self._open.add(ask)
        outcome = await self._outcome(ask)
        self._open.remove(ask)
        self.answers.append(Answered(ask, time.monotonic(), outcome))
        if (event := self._reached.get(len(self.answers))) is not None:
            event.set()

    async def _outcome(self, ask: Ask) -> Refund | str:
        request = RefundRequest(amount=ask.amount, reason=ask.name)
        try:
            return await self._client.call(refund, ask.key, request, idempotency_key=ask.name, timeout=ANSWER_LIMIT_S)
        except InvocationFailed as error:
            return error.code
