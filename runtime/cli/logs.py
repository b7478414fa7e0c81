"""The handlers of the shell's log: rich on a terminal, plain lines elsewhere, JSON lines on request.

The library itself installs none.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.logging import RichHandler

#: What `ctx.log` adds to each record.
FACTS: Final = ("object_type", "key", "invocation", "attempt")


def install(*, is_json: bool, is_debug: bool, talkative: tuple[str, ...] = (), quiet: tuple[str, ...] = ()) -> None:
    """Send the log to stderr.

    Args:
        is_json: Whether programs read it.
        is_debug: Whether everything is logged.
        talkative: Loggers of which also the informative records are wanted.
        quiet: Loggers below them of which only warnings are.
    """
    root = logging.getLogger()
    root.handlers[:] = [_handler(is_json=is_json)]
    root.setLevel(logging.DEBUG if is_debug else logging.WARNING)
    for name in talkative:
        logging.getLogger(name).setLevel(logging.DEBUG if is_debug else logging.INFO)
    for name in quiet:
        logging.getLogger(name).setLevel(logging.DEBUG if is_debug else logging.WARNING)


def _handler(*, is_json: bool) -> logging.Handler:
    if not is_json and sys.stderr.isatty():
        handler: logging.Handler = RichHandler(
            console=Console(stderr=True, markup=False, emoji=False), show_path=False, log_time_format="%H:%M:%S.%f"
        )
        handler.setFormatter(WithFacts("%(message)s"))
        return handler
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if is_json else WithFacts("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return which invocation speaks, where one does."""
    return {name: getattr(record, name) for name in FACTS if hasattr(record, name)}


class WithFacts(logging.Formatter):
    """Puts the invocation that speaks behind its message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the standard library's
        """Return the line."""
        line = super().formatMessage(record)
        facts = facts_of(record)
        if not facts:
            return line
        return f"{line} [{facts.get('key')} {facts.get('invocation')}]"


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
