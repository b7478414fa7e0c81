"""What every crash window has: a receiver, a worker that is hit, another one that goes on, and a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from keylane import Client
from keylane.journal.key import parse_id
from keylane.journal.keyspace import PartitionSpace
from keylane.journal.lane_reading import ask

from .manner import Manner
from .points import Hold, Strike
from .receiver import ReceiverProcess
from .workers import GRID_APP, GridWorker, Place

#: How long cells may take until nothing more is done about them.
REST_SECONDS: Final = 45.0


class BesideTheMarkError(AssertionError):
    """The machine was so slow that another window was hit, as can be shown: a lease ran out, or a call took too long.

    Who runs the window again for it has seen nothing of the cells that are lost with it. What can't be shown to be the
    machine's fault is no such error.
    """


class CrashWindow(ABC):
    """One moment at which a worker is hit while another one is there to go on.

    Args:
        store_url: The store.
        namespace: A namespace that nothing else uses.
        folder: A folder of its own; the path is short.
        manners: How the receiver treats each order.
        mutant: Which safeguard all workers lack.
    """

    #: What the workers host.
    app: ClassVar[str] = GRID_APP
    #: Settings of the workers by name, over those of the grid.
    settings: ClassVar[Mapping[str, object]] = {}

    def __init__(
        self, store_url: str, namespace: str, folder: Path, manners: Mapping[str, Manner], mutant: str
    ) -> None:
        self._mutant = mutant
        self._stack = AsyncExitStack()
        self._receiver = self._stack.enter_context(ReceiverProcess(folder, manners=manners))
        self._place = Place(store_url, namespace, self._receiver.socket, folder)
        self._workers: list[GridWorker] = []

    @property
    @abstractmethod
    def _hold(self) -> Hold | None:
        """Where calls of the worker that is hit are held."""

    @property
    @abstractmethod
    def _strike(self) -> Strike | None:
        """What happens to it at the store."""

    async def __aenter__(self) -> Self:
        """Start the receiver and the workers, and connect to the store once one of them has made its types known."""
        first = self._worker(hold=self._hold, strike=self._strike)
        spare = self._worker()
        await self._receiver.ready()
        await first.start()
        self._first, self._spare = first, spare
        self._client = await self._stack.enter_async_context(
            Client(self._place.store_url, namespace=self._place.namespace)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill everybody."""
        await self._stack.aclose()

    @property
    def said(self) -> str:
        """What the workers have written, for the message of a failure."""
        return "\n".join(worker.stderr for worker in self._workers)

    def _worker(self, *, hold: Hold | None = None, strike: Strike | None = None) -> GridWorker:
        worker = GridWorker(
            self._place,
            f"w{len(self._workers)}",
            app=self.app,
            hold=hold,
            strike=strike,
            mutant=self._mutant,
            settings=self.settings,
        )
        self._workers.append(self._stack.enter_context(worker))
        return worker

    def _space_of(self, invocation_id: str) -> PartitionSpace:
        return self._client.space_of(parse_id(invocation_id))

    async def _has_lost_a_lease(self, invocation_id: str) -> bool:
        """Return whether the partition of an invocation was acquired more than once."""
        space = self._space_of(invocation_id)
        (epoch,) = await ask(self._client.store, [("HGET", space.owner, "epoch")], [space.owner])
        return int(epoch) > 1
