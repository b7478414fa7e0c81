"""The driver: asks for refunds through the client, as any other service would, and notes each answer."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio

from keylane import Client, InvocationFailed

from ..models import OrderStatus, Receipt, RefundRequest
from ..order import refund, status
from .workload import Answered, Ask, Workload

ANSWER_LIMIT_S = 40.0


class Driver:
    """Asks for all refunds of a workload, a bounded number of orders at a time.

    Args:
        client: Where calls go.
        workload: What to ask for.
    """

    def __init__(self, client: Client, workload: Workload) -> None:
        self.workload = workload
        self.answers: list[Answered] = []
        self._client = client
        self._open: dict[Ask, float] = {}
        self._reached: dict[int, anyio.Event] = {}

    @property
    def open(self) -> frozenset[Ask]:
        """What is asked for and not yet answered."""
        return frozenset(self._open)

    @asynccontextmanager
    async def asking(self, *, orders_at_once: int, on_answer: Callable[[], None]) -> AsyncGenerator[None]:
        """Ask for everything, the refunds of one order at the same moment; the block ends with the last answer.

        Args:
            orders_at_once: For how many orders refunds are open at a time.
            on_answer: Called after each answer.
        """
        waiting = iter(self.workload.asks_by_order)
        async with anyio.create_task_group() as group:
            for _ in range(orders_at_once):
                group.start_soon(self._work_off, waiting, on_answer)
            yield

    async def answered(self, count: int) -> None:
        """Wait until so many refunds are answered."""
        if len(self.answers) < count:
            await self._reached.setdefault(count, anyio.Event()).wait()

    async def statuses(self, *, at_once: int) -> dict[str, OrderStatus]:
        """Ask every order for what has been refunded of it."""
        found: dict[str, OrderStatus] = {}
        limiter = anyio.CapacityLimiter(at_once)

        async def read(key: str) -> None:
            async with limiter:
                found[key] = await self._client.call(status, key, timeout=ANSWER_LIMIT_S)

        async with anyio.create_task_group() as group:
            for order in self.workload.orders:
                group.start_soon(read, order.key)
        return found

    async def _work_off(self, waiting: Iterator[tuple[Ask, ...]], on_answer: Callable[[], None]) -> None:
        for asks in waiting:
            async with anyio.create_task_group() as group:
                for ask in asks:
                    group.start_soon(self._ask, ask, on_answer)

    async def _ask(self, ask: Ask, on_answer: Callable[[], None]) -> None:
        asked_at_s = self._open[ask] = time.monotonic()
        outcome = await self._outcome(ask)
        del self._open[ask]
        self.answers.append(Answered(ask, asked_at_s, time.monotonic(), outcome))
        on_answer()
        if (event := self._reached.get(len(self.answers))) is not None:
            event.set()

    async def _outcome(self, ask: Ask) -> Receipt | str:
        request = RefundRequest(amount=ask.amount, reason=ask.name)
        try:
            result = await self._client.call(refund, ask.key, request, idempotency_key=ask.name, timeout=ANSWER_LIMIT_S)
        except InvocationFailed as error:
            return error.code
        return result.receipt
