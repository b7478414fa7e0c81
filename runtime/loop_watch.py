"""Notices from another thread that an event loop does not run, and says which line of code keeps it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

logger = logging.getLogger("keylane.loop")

#: A loop that has not run for longer is reported.
LATE_SECONDS: Final = 1.0

_ROOT: Final = Path(__file__).resolve().parents[1]
_OWN_FOLDERS: Final = tuple(f"{_ROOT / name}{os.sep}" for name in ("runtime", "objects", "journal"))
# An editable install imports the same files through links, under another name.
_IMPORTED_FOLDER: Final = f"{Path(__file__).absolute().parents[1]}{os.sep}"
_ASYNCIO_FOLDER: Final = f"{Path(asyncio.__file__).parent}{os.sep}"
_LIBRARY_FOLDERS: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class LoopWatch:
    """Asks the loop for a sign of life at each check, and measures how long it owes one.

    Args:
        loop: The loop, which must be running in the thread that makes this.
        check_seconds: How often `check` is called. A check that comes much later than that counts as two: then this
            process was stopped, and the loop with it.
        stuck_after_seconds: A loop that has not run for longer counts as stuck.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, check_seconds: float, stuck_after_seconds: float) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._check_seconds = check_seconds
        self._stuck_after_seconds = stuck_after_seconds
        self._checked_at: float | None = None
        self._answered = True
        self._reported = False
        self.is_stuck = False
        self.silent_seconds = 0.0

    def check(self, now: float) -> None:
        """Measure, report once per episode, and ask for the next sign.

        Args:
            now: The time by a clock that does not jump.

        Raises:
            RuntimeError: The loop was closed.
        """
        elapsed = 0.0 if self._checked_at is None else min(now - self._checked_at, 2 * self._check_seconds)
        self._checked_at = now
        if self._answered:
            self._recover()
            self._answered = False
            self._loop.call_soon_threadsafe(self._answer)
        else:
            self.silent_seconds += elapsed
            self._judge()

    def _answer(self) -> None:
        self._answered = True

    def _recover(self) -> None:
        if self._reported:
            logger.info("the event loop runs again after %.1f s", self.silent_seconds)
        self.silent_seconds = 0.0
        self._reported = self.is_stuck = False

    def _judge(self) -> None:
        if self.silent_seconds > LATE_SECONDS and not self._reported:
            self._reported = True
            logger.warning(
                "the event loop has not run for %.1f s: %s", self.silent_seconds, where_it_hangs(self._loop_thread)
            )
        if self.silent_seconds > self._stuck_after_seconds and not self.is_stuck:
            self.is_stuck = True
            logger.error(
                "the event loop has not run for %.1f s: leases are not renewed until it does: %s",
                self.silent_seconds,
                where_it_hangs(self._loop_thread),
            )


def where_it_hangs(thread: int) -> str:
    """Return file, line and function of the code that a thread is in, leaving out Keylane and asyncio.

    Where that is library code, the user's line that led there comes first, since that is the one to change.
    """
    # The only way to see another thread's stack.
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return "its thread is gone"
    suspects = [each for each in _outwards(frame) if not _is_ours(each)]
    if not suspects:
        return _spell(frame)
    innermost = suspects[0]
    users = next((each for each in suspects if not each.f_code.co_filename.startswith(_LIBRARY_FOLDERS)), innermost)
    return _spell(users) if users is innermost else f"{_spell(users)}, inside {_spell(innermost)}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith((*_OWN_FOLDERS, _IMPORTED_FOLDER, _ASYNCIO_FOLDER, "<frozen "))


def _spell(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
