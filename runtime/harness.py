"""The real thing in a test: a worker on an embedded store with time of its own, and a client to ask it."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from ..journal.background import Background
from ..journal.embedded import EmbeddedStore
from ..journal.errors import RegistrationError
from ..journal.scan import unlink_namespace
from ..journal.store import Store
from ..journal.urls import EmbeddedAddress, parse_store_url
from ..objects.app import App, app_of
from ..objects.settings import Settings
from ..objects.virtual_object import VirtualObject
from .forcing import VARIABLE, forced
from .runtime import Runtime
from .virtual_time import Subject, VirtualTime

if TYPE_CHECKING:
    from ..journal.observer import Observer
    from .client import Client

#: Makes every wait suspend its handler at once, or every await on `ctx` replay it from its journal.
Force: TypeAlias = Literal["suspend", "replay"]
#: Objects of a test are few, and each partition costs a millisecond at the start.
PARTITIONS: Final = 2
SETTLE_SECONDS: Final = 10.0
_NOT_OPEN: Final = "the harness is not open: use `async with harness(app) as h`"


class Harness:
    """A worker, a client and a clock for one test; use it as an async context manager.

    While handlers wait and the test waits for an answer, the clock jumps to whatever is due next: a sleep of thirty
    days takes a few milliseconds. It stands still (but for the time that really passes) while code of yours runs.

    Args:
        app: What to host: an `App`, an object type, or a list of them.
        store: The URL of a store to share with other tests; by default an embedded one of its own.
        force: `"suspend"` drops every handler at every wait and replays it afterwards; `"replay"` replays it at every
            await on `ctx`. By default what `KEYLANE_TEST_FORCE` says, else neither.
        settings: The effective settings; by default the app's, with two partitions for each type.
        auto_advance: Whether the clock jumps by itself.

    Raises:
        RegistrationError: `force` is neither of the two.
    """

    def __init__(
        self,
        app: App | VirtualObject | Sequence[VirtualObject],
        *,
        store: str | None = None,
        force: Force | None = None,
        settings: Settings | None = None,
        auto_advance: bool = True,
    ) -> None:
        given = app_of(app, settings=settings)
        #: What is forced.
        self.force: Force | None = force_of_environment() if force is None else _known(force)
        #: The namespace that the harness has to itself.
        self.namespace = f"test-{secrets.token_hex(6)}"
        self.settings = settings_for(given.settings, self.force)
        self._app = App(given.objects.values(), settings=self.settings)
        self._store = store
        self._auto_advance = auto_advance
        self._stack = contextlib.AsyncExitStack()
        self._subject: Subject | None = None
        self._runtime: Runtime
        self._time: VirtualTime | None = None

    async def __aenter__(self) -> Self:
        """Start the store, where none was named, and the worker.

        Raises:
            StoreError: The store can't be used.
            RuntimeError: It is open already.
        """
        if self._subject is not None:
            raise RuntimeError("this harness is open already: make another one")
        await self._stack.__aenter__()
        try:
            store_url = await self._stack.enter_async_context(opened_store(self._store))
            await self._stack.enter_async_context(_tidied(store_url, self.namespace))
            subject = self._subject = await self._start(store_url, self._stack)
            self._time = VirtualTime(subject)
            if self._auto_advance:
                tasks = await self._stack.enter_async_context(Background())
                tasks.start_soon(self._time.run)
        except BaseException:
            await self._stack.aclose()
            raise
        # Bound here and not spelled again, so that they have the types of the client's own.
        self.call, self.send, self.attach = subject.client.call, subject.client.send, subject.client.attach
        self.describe, self.inspect = subject.client.describe, subject.client.inspect
        return self

    async def _start(self, store_url: str, stack: contextlib.AsyncExitStack) -> Subject:
        """Start a worker and a client, which are closed with the stack."""
        self._runtime = await stack.enter_async_context(self._new_runtime(store_url))
        self._runtime.worker.force(self.force)
        return Subject(self._runtime.worker, self._runtime.client)

    def _new_runtime(self, store_url: str, observer: Observer | None = None) -> Runtime:
        return Runtime(self._app, store=store_url, namespace=self.namespace, observer=observer)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything that was started, and delete what the test has written, unless it failed."""
        self._subject = self._time = None
        await self._stack.__aexit__(kind, error, trace)

    @property
    def client(self) -> Client:
        """The client, for what the harness has no word for."""
        return self._open_subject.client

    @property
    def runtime(self) -> Runtime:
        """The runtime that hosts the objects now."""
        if self._subject is None:
            raise RuntimeError(_NOT_OPEN)
        return self._runtime

    @property
    def _open_subject(self) -> Subject:
        if self._subject is None:
            raise RuntimeError(_NOT_OPEN)
        return self._subject

    @property
    def _open_time(self) -> VirtualTime:
        if self._time is None:
            raise RuntimeError(_NOT_OPEN)
        return self._time

    def now(self) -> datetime:
        """Return the time that handlers see."""
        return self._open_time.now

    async def advance(self, by: timedelta) -> None:
        """Let time pass. What falls due on the way runs at its own time, and histories past their retention shrink.

        Handlers that run get a second to come to rest; then time passes all the same.

        Args:
            by: How much.

        Raises:
            TypeError: `by` is no timedelta.
            ValueError: `by` is negative, since time never goes back, or more than 40,000 days.
            NotSettled: More than 10,000 times something fell due on the way.
        """
        await self._open_time.advance(by)

    async def settled(self, timeout: float = SETTLE_SECONDS) -> None:
        """Wait until nothing runs, nothing is on its way and nothing is due; the clock does not jump for this.

        Args:
            timeout: How long, in seconds that really pass.

        Raises:
            NotSettled: Something still ran after that; the message says what.
        """
        await self._open_time.settled(timeout)


def force_of_environment() -> Force | None:
    """Return what is forced where a test says nothing.

    Raises:
        RegistrationError: The variable holds another word.
    """
    try:
        return forced()
    except ValueError as error:
        raise RegistrationError(str(error), parameter=VARIABLE, remedy="use suspend or replay") from error


def _known(force: Force) -> Force:
    if force not in ("suspend", "replay"):
        raise RegistrationError(f"force is {force!r}", parameter="force", remedy="use suspend or replay")
    return force


def settings_for(settings: Settings, force: Force | None) -> Settings:
    """Return the settings of a test: few partitions where nobody has said how many, and what is forced."""
    changes: dict[str, Any] = {}
    if "partitions" not in settings.model_fields_set:
        changes["partitions"] = PARTITIONS
    if force == "suspend":
        changes["waiting_residency_seconds"] = 0.0
    return settings.model_copy(update=changes)


@contextlib.asynccontextmanager
async def _tidied(store_url: str, namespace: str) -> AsyncGenerator[None]:
    """Delete a namespace in the end; after a failure it stays, to be looked at."""
    yield
    async with Store(store_url, namespace=namespace) as store:
        await unlink_namespace(store)


@contextlib.asynccontextmanager
async def opened_store(store: str | None) -> AsyncGenerator[str]:
    """Give the URL of a server; one of an embedded store is started, in a folder of its own where none is named."""
    address = None if store is None else parse_store_url(store)
    if store is not None and not isinstance(address, EmbeddedAddress):
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="keylane-test-") as place:
        folder = address.folder if isinstance(address, EmbeddedAddress) else place
        async with EmbeddedStore(folder) as embedded:
            yield embedded.url
