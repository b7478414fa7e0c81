"""Where in the user's code something happened."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import FrameType

_OWN_FOLDERS = tuple(str(Path(__file__).resolve().parent.parent / name) for name in ("runtime", "objects", "journal"))


def is_own(filename: str) -> bool:
    """Return whether a file belongs to the library or to the event loop under it."""
    resolved = str(Path(filename).resolve())
    return resolved.startswith(_OWN_FOLDERS) or "/asyncio/" in filename or "/anyio/" in filename


def caller_line() -> str:
    """Return file and line of the innermost frame that is not the library's."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not is_own(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"
