"""`dev` and `worker`: a worker in the foreground that drains when it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from ...journal.errors import KeylaneError
from ...journal.promise import promise_of, read_all_facts
from ...journal.safety import Durability, advice
from ...journal.urls import parse_store_url
from ...objects.app import App, load_app
from .. import collector
from ..runtime import Runtime
from .output import leave_now, write_json, write_line
from .shell import ExitCode, Shell, WrongUse

logger = logging.getLogger("keylane.shell")

READY: Final = b"ready\n"
#: A terminal that is closed asks for the end, too.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Hosting:
    """How an app is hosted.

    Args:
        reference: `module:attribute`.
        store: Finds what `Runtime` is given as its store; called where errors are told.
        durability: What an answer promises.
        allow_unsafe: Whether to start on a server that can't keep the promise.
        ready_fd: A descriptor that is told when the worker is ready.
        metrics_port: Where the metrics are shown; None for what the settings say.
    """

    reference: str
    store: Callable[[], str | None]
    durability: Durability
    allow_unsafe: bool
    ready_fd: int | None = None
    metrics_port: int | None = None


def store_of_dev(shell: Shell, path: Path | None) -> str | None:
    """Return what `dev` hands to `Runtime`: the folder that was named, else what the environment says.

    Raises:
        WrongUse: Two stores were named.
    """
    if path is None:
        return shell.store
    if shell.store is not None:
        raise WrongUse("--path and --store name two stores: leave one of them out")
    return f"embedded:{path}"


def load(reference: str) -> App:
    """Return the app that a reference names.

    Raises:
        RegistrationError: It names none.
        WrongUse: Its module can't be imported.
    """
    try:
        return load_app(reference)
    except KeylaneError:
        raise
    except Exception as error:
        place = _place(error.__traceback__)
        what = f"{type(error).__name__}: {error}{place}"
        raise WrongUse(f"{reference} can't be imported: {what}; --debug shows the traceback") from error


def _place(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


async def host(shell: Shell, hosting: Hosting) -> ExitCode:
    """Host an app until a signal asks for the end, then drain.

    SIGINT and SIGTERM let what runs end, within the drain limit, and hand over the rest. A second SIGINT ends the
    process at once: what is durable goes on elsewhere.
    """
    if hosting.ready_fd is not None:
        _check_descriptor(hosting.ready_fd)
    app = load(hosting.reference)
    collector.relax()
    ending = Ending()
    with ending.listening():
        try:
            await _host(shell, hosting, app, ending)
        except asyncio.CancelledError:
            if not ending.was_asked:
                raise
    _say(shell, "stopped", {}, "stopped")
    if _is_held_up():
        leave_now(ExitCode.DONE)
    return ExitCode.DONE


async def _host(shell: Shell, hosting: Hosting, app: App, ending: Ending) -> None:
    runtime = Runtime(
        app,
        store=hosting.store(),
        namespace=shell.namespace,
        durability=hosting.durability,
        allow_unsafe=hosting.allow_unsafe,
        metrics_port=hosting.metrics_port,
    )
    async with runtime:
        await _announce(shell, runtime, hosting.ready_fd)
        await ending.asked()
        limit = runtime.settings.drain_limit_seconds
        line = f"draining: what runs may end within {limit:g} s; another Ctrl-C ends at once"
        _say(shell, "draining", {"limit_seconds": limit}, line)


class Ending:
    """The signals that ask for the end; to be made in the task that hosts."""

    def __init__(self) -> None:
        self.was_asked = False
        self._loop = asyncio.get_running_loop()
        self._host = cast("asyncio.Task[Any]", asyncio.current_task())
        self._asked: asyncio.Future[None] | None = None

    @contextlib.contextmanager
    def listening(self) -> Generator[None]:
        """Take the signals over."""
        # Whoever ignores a signal for this process, as nohup does, means it.
        taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            self._loop.add_signal_handler(number, self._take, number)
        try:
            yield
        finally:
            for number in taken:
                self._loop.remove_signal_handler(number)

    async def asked(self) -> None:
        """Wait for the first signal; before this, one breaks the start off."""
        if not self.was_asked:
            self._asked = self._loop.create_future()
            await self._asked

    def _take(self, number: signal.Signals) -> None:
        if self.was_asked:
            if number == signal.SIGINT:
                leave_now(ExitCode.INTERRUPTED)
            return
        self.was_asked = True
        if self._asked is None:
            self._host.cancel()
        elif not self._asked.done():
            self._asked.set_result(None)


async def _announce(shell: Shell, runtime: Runtime, ready_fd: int | None) -> None:
    """Say where the store is, what it promises, and that calls are taken."""
    store = runtime.client.store
    facts = await read_all_facts(store)
    told: dict[str, Any] = {
        # Without its password.
        "store": str(parse_store_url(runtime.store_url)),
        "namespace": shell.namespace,
        "objects": sorted(runtime.app.objects),
        "partitions": len(runtime.worker.partitions),
        "worker": runtime.worker.identity,
        "promise": promise_of(store, facts, runtime.durability),
        "metrics_port": runtime.metrics_port,
        "advice": list(dict.fromkeys(remark for each in facts for remark in advice(each))),
    }
    lines = [
        f"store    {told['store']}",
        f"promise  {told['promise']}",
        *(f"advice   {each}" for each in told["advice"]),
    ]
    if runtime.metrics_port is not None:
        lines.append(f"metrics  http://{runtime.settings.metrics_host}:{runtime.metrics_port}/metrics")
    objects, namespace = ", ".join(told["objects"]), told["namespace"]
    lines.append(f"ready    {objects} in namespace {namespace}, worker {told['worker']}; Ctrl-C drains and ends")
    _say(shell, "ready", told, "\n".join(lines))
    if ready_fd is not None:
        with os.fdopen(ready_fd, "wb") as pipe:
            pipe.write(READY)


def _say(shell: Shell, event: str, facts: dict[str, Any], line: str) -> None:
    # Nobody may be left to read it, and the drain has to go on.
    with contextlib.suppress(OSError):
        if shell.is_json:
            write_json({"event": event, **facts})
        else:
            write_line(line)


def _check_descriptor(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError as error:
        raise WrongUse(f"--ready-fd {descriptor} is no open descriptor of this process: {error.strerror}") from error


def _is_held_up() -> bool:
    """Return whether threads of handlers that did not end within the limit would keep the process from ending."""
    return any(
        not thread.daemon and thread is not threading.main_thread() and thread.is_alive()
        for thread in threading.enumerate()
    )
