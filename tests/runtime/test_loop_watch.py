from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from keylane.runtime.loop_watch import LoopWatch, where_it_hangs

CHECK = 0.25
HERE = Path(__file__).name


class LoopDouble:
    """Stands for an event loop that runs what it is given when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class Watched:
    """A watch with its loop and its time: `checks` lets time pass without the loop running."""

    def __init__(self, stuck_after_seconds: float = 30.0) -> None:
        self.loop = LoopDouble()
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.watch = LoopWatch(loop, check_seconds=CHECK, stuck_after_seconds=stuck_after_seconds)
        self.now = 100.0
        self.watch.check(self.now)

    def checks(self, count: int, *, running: bool = False) -> None:
        for _ in range(count):
            if running:
                self.loop.run()
            self.now += CHECK
            self.watch.check(self.now)


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_loop_that_runs_is_never_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that answers each time owes nothing, and is not asked twice at once."""
    watched = Watched()

    watched.checks(100, running=True)

    assert watched.watch.silent_seconds == 0
    assert len(watched.loop.waiting) == 1
    assert caplog.records == []


def test_a_loop_that_is_late_is_reported_once_an_episode_with_file_and_line(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the line that the loop's thread is at, which here is this test itself."""
    watched = Watched()

    watched.checks(4)
    assert messages(caplog, logging.WARNING) == []
    watched.checks(20)
    (warning,) = messages(caplog, logging.WARNING)
    assert f"{HERE}:" in warning
    assert "has not run for 1.2" in warning

    with caplog.at_level(logging.INFO):
        watched.checks(1, running=True)
        assert messages(caplog, logging.INFO) == ["the event loop runs again after 6.0 s"]
    watched.checks(6)
    assert len(messages(caplog, logging.WARNING)) == 2


def test_a_loop_that_is_stuck_is_said_to_be_until_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    """That leases lapse is said once, as an error, and is over as soon as the loop runs."""
    watched = Watched(stuck_after_seconds=30.0)

    watched.checks(120)
    assert not watched.watch.is_stuck
    watched.checks(20)
    assert watched.watch.is_stuck
    assert len(messages(caplog, logging.ERROR)) == 1

    watched.checks(1, running=True)
    assert not watched.watch.is_stuck


def test_a_pause_of_the_whole_process_is_no_stuck_loop(caplog: pytest.LogCaptureFixture) -> None:
    """After SIGCONT the loop gets its chance before anybody concludes from the time that passed."""
    watched = Watched(stuck_after_seconds=30.0)
    watched.now += 3600.0

    watched.checks(1)

    assert watched.watch.silent_seconds <= 2 * CHECK
    assert caplog.records == []


def test_the_users_line_comes_before_the_library_that_it_waits_in() -> None:
    """A line of the standard library is not what a user can change."""
    empty: queue.Queue[None] = queue.Queue()
    ready = threading.Event()

    def blocks() -> None:
        ready.set()
        empty.get()

    thread = threading.Thread(target=blocks)
    thread.start()
    ready.wait()
    found = where_it_hangs(cast("int", thread.ident))
    empty.put(None)
    thread.join()

    assert f"{HERE}:" in found.split(", inside ")[0]
    assert "blocks" in found


def test_lines_of_asyncio_and_of_keylane_are_passed_over() -> None:
    """They are below and above the code that blocks, never the cause."""

    async def main() -> str:
        return where_it_hangs(threading.get_ident())

    found = asyncio.run(main())

    assert found.startswith(__file__)
    assert "main" in found


def test_a_thread_that_is_gone_is_said_to_be() -> None:
    """A watch may outlive the loop's thread."""
    thread = threading.Thread(target=_nothing)
    thread.start()
    thread.join()

    assert where_it_hangs(cast("Any", thread.ident)) == "its thread is gone"


def _nothing() -> None:
    pass
