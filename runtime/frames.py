"""Where in the user's code something happened."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

_OWN_FOLDERS = tuple(str(Path(__file__).resolve().parent.parent / name) for name in ("runtime", "objects", "journal"))


@cache
def is_own(filename: str) -> bool:
    """Return whether a file belongs to the library or to the event loop under it."""
    resolved = str(Path(filename).resolve())
    return resolved.startswith(_OWN_FOLDERS) or "/asyncio/" in filename or "/anyio/" in filename


def caller_line(handler: Any = None) -> str:
    """Return file and line of the innermost frame that is not the library's.

    Args:
        handler: The coroutine of the handler, whose line is told where a branch has none of its own.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and "/asyncio/" not in frame.f_code.co_filename:
        if not is_own(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    # What is below the event loop has started it, and is no handler.
    waiting: FrameType | None = getattr(handler, "cr_frame", None)
    return "an unknown line" if waiting is None else f"{waiting.f_code.co_filename}:{waiting.f_lineno}"
