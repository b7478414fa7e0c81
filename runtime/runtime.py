"""`Runtime`: a worker and a client in this process, and the store where none was named."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..journal.background import to_its_end
from ..journal.embedded import EmbeddedStore
from ..journal.errors import StoreError
from ..journal.promise import check_all, promise_of, read_all_facts
from ..journal.safety import Durability, Replicated, advice, check_declared, restart_may_lose
from ..journal.store import Store
from ..journal.urls import EmbeddedAddress, parse_store_url
from ..objects.app import App, app_of
from ..objects.settings import Settings
from ..objects.virtual_object import VirtualObject
from .client import Client
from .meters import Counters
from .sizing import sized
from .spans import spans_of
from .unsettled import refuse_unsettled
from .worker import Worker

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ..journal.observer import Observer

logger = logging.getLogger("keylane.runtime")


class Runtime:
    """Hosts an app in this process; use it as an async context manager.

    Args:
        app: What to host: an `App`, or a list of object types.
        store: The store's URL; by default `KEYLANE_REDIS_URL`, else an embedded store in `.keylane/`.
        namespace: The deployment's prefix.
        durability: What an answer promises: `"fsync"` needs a server that syncs before it answers, `"server"` takes
            whatever the server does, and `Replicated(n)` waits until n replicas have it.
        settings: The effective settings; by default from `KEYLANE_*` variables.
        allow_unsafe: Start also on a server whose settings can't keep the promise, and say so in the log.
        observer: Told of every state change that is sent; for tests.
        metrics_port: Where Prometheus finds the metrics of this worker, on `metrics_host` of the settings; 0 for any
            free port. By default that of the settings, else none. Needs `pip install keylane[metrics]`.
        tracing: Whether invocations, steps, effects and this client's calls are spans of OpenTelemetry: a tracer
            provider, or True for the global one. By default as the settings say. Needs `pip install keylane[otel]`.

    Raises:
        RegistrationError: `durability` is none of these, or the app is none.
        UnsafeStore: On entering: the server evicts, keeps nothing, or syncs less than `durability` promises.
        StoreUnavailable: On entering: the store did not answer.
        SchemaMismatch: On entering: the namespace was written with other partition counts or by another release.
    """

    def __init__(
        self,
        app: App | VirtualObject | Sequence[VirtualObject],
        *,
        store: str | None = None,
        namespace: str = "keylane",
        durability: Durability = "fsync",
        settings: Settings | None = None,
        allow_unsafe: bool = False,
        observer: Observer | None = None,
        metrics_port: int | None = None,
        tracing: TracerProvider | bool | None = None,
    ) -> None:
        check_declared(durability)
        self.app = app_of(app, settings=settings)
        self.settings = self.app.settings
        self.namespace = namespace
        self._address = store or self.settings.redis_url or "embedded:"
        self.durability: Durability = durability
        self._allow_unsafe = allow_unsafe
        self._observer = observer
        self._tracing = self.settings.tracing if tracing is None else tracing
        self._asked_port = self.settings.metrics_port if metrics_port is None else metrics_port
        self._metrics_port: int | None = None
        self._stack = contextlib.AsyncExitStack()
        self._store: Store | None = None
        self._worker: Worker | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client of this process: calls to keys that it owns take the short way."""
        if self._client is None:
            raise StoreError("the runtime is not open: use `async with Runtime(app) as runtime`")
        return self._client

    @property
    def worker(self) -> Worker:
        """The worker of this process."""
        if self._worker is None:
            raise StoreError("the runtime is not open: use `async with Runtime(app) as runtime`")
        return self._worker

    @property
    def store_url(self) -> str:
        """The URL that another process passes to `Client`."""
        if self._store_url is None:
            raise StoreError("the runtime is not open: use `async with Runtime(app) as runtime`")
        return self._store_url

    @property
    def metrics_port(self) -> int | None:
        """The port on which the metrics of this worker are shown; None where nobody has asked for one."""
        return self._metrics_port

    _store_url: str | None = None

    async def __aenter__(self) -> Self:
        """Open the store, start the worker and connect the client.

        Raises:
            StoreError: It is open already.
        """
        if self._store is not None:
            raise StoreError("this runtime is open already: make another one for a second worker")
        await self._stack.__aenter__()
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open(self) -> None:
        self._store_url = await self._resolve()
        replicas = self.durability.replicas if isinstance(self.durability, Replicated) else 0
        self._store = Store(
            self._store_url,
            namespace=self.namespace,
            observer=self._observer,
            memory_limit_ratio=self.settings.memory_limit_ratio,
            replicas=replicas,
        )
        await self._stack.enter_async_context(self._store)
        may_lose = await self._check(self._store)
        self.settings = await sized(self.settings, self._store, self.app)
        worker = Worker(self.app, self._store, self.settings, self.durability, restart_may_lose=may_lose)
        worker.spans = spans_of(self._tracing)
        if self._asked_port is not None:
            counters = worker.meters = Counters()
            self._metrics_port = self._show(worker, counters, self._asked_port)
        self._worker = await self._stack.enter_async_context(worker)
        client = Client(
            self._store,
            namespace=self.namespace,
            settings=self.settings,
            local=self._worker.doors,
            tracing=self._tracing,
        )
        self._client = await self._stack.enter_async_context(client)

    def _show(self, worker: Worker, counters: Counters, port: int) -> int:
        """Show the metrics until the runtime is closed; returns the port."""
        # Only who asks for metrics needs the library for them.
        from .metrics import Shown  # noqa: PLC0415

        shown = Shown(worker, counters, self.settings.metrics_host, port)
        self._stack.callback(shown.close)
        return shown.port

    async def _resolve(self) -> str:
        address = parse_store_url(self._address)
        if not isinstance(address, EmbeddedAddress):
            return self._address
        return (await self._stack.enter_async_context(EmbeddedStore(address.folder))).url

    async def _check(self, store: Store) -> bool:
        """Refuse a store that can't keep the promise, and return whether a restart may break it."""
        facts = await read_all_facts(store)
        limit = self.settings.payload_limit_bytes
        check_all(store, facts, self.durability, allow_unsafe=self._allow_unsafe, payload_limit_bytes=limit)
        refuse_unsettled(self.app, facts, self.durability)
        logger.info("%s", promise_of(store, facts, self.durability))
        for remark in dict.fromkeys(remark for each in facts for remark in advice(each)):
            logger.info("%s", remark)
        return any(restart_may_lose(each, self.durability) for each in facts)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand the partitions over, close the connections, and stop an embedded store that this process started."""
        await self._close()

    async def _close(self) -> None:
        self._client = self._worker = None
        try:
            # Also where the body was cancelled: what runs may end, and the others need not wait for the leases.
            await to_its_end(self._stack.aclose())
        finally:
            self._store = None
