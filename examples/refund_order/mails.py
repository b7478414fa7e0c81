"""What customers were told: it stands for a mail service that sends a message as often as it is asked to."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = "CREATE TABLE IF NOT EXISTS mails (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, text TEXT NOT NULL)"


@dataclass(frozen=True, slots=True)
class Mail:
    """One message that was sent."""

    customer: str
    text: str


class Mails:
    """The messages in one SQLite file, shared by all processes that send some."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, customer: str, text: str) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            database.execute(_SCHEMA)
            database.execute("INSERT INTO mails (customer, text) VALUES (?, ?)", (customer, text))

    def sent(self) -> list[Mail]:
        """Read all messages in the order in which they were sent."""
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(_SCHEMA)
            rows: list[tuple[str, str]] = database.execute("SELECT customer, text FROM mails ORDER BY id").fetchall()
        return [Mail(customer, text) for customer, text in rows]
