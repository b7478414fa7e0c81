"""Who may approve refunds, and up to which amount."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path

from .payments.money import from_minor, to_minor

_SCHEMA = """
CREATE TABLE IF NOT EXISTS approvers (
    name TEXT PRIMARY KEY,
    limit_minor INTEGER NOT NULL CHECK (limit_minor > 0)
) WITHOUT ROWID
"""


class Approvers:
    """The approvers in one SQLite file; a connection for each call, so threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, limits: Mapping[str, Decimal]) -> None:
        """Let these people approve up to these amounts, and nobody else."""
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(_SCHEMA)
            database.execute("DELETE FROM approvers")
            rows = [(name, to_minor(limit)) for name, limit in limits.items()]
            database.executemany("INSERT INTO approvers (name, limit_minor) VALUES (?, ?)", rows)

    def limit_of(self, name: str) -> Decimal | None:
        """Return up to which amount somebody may approve; None where they may not."""
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(_SCHEMA)
            row: tuple[int] | None = database.execute(
                "SELECT limit_minor FROM approvers WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else from_minor(row[0])
