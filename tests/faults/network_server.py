"""A server on a port of its own, which can have replicas and be one."""

from __future__ import annotations

import os
import random
import re
import socket

import redis

from .guards import OPEN, Guard, as_options
from .harness import StoreServer

#: The bus of a node listens 10,000 above its port; both lie below the ports that systems give out by themselves.
PORTS = range(12_000, 22_000)
#: Processes that run tests side by side take theirs from different ones: it takes a while until a server has its port.
SHARES = 64
SHARE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SHARES
BUS = 10_000


def free_port() -> int:
    """Return a port that nobody has, nor the one of its bus."""
    while True:
        port = random.choice(PORTS[SHARE::SHARES])
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + BUS))
            except OSError:
                continue
        return port


class NetworkServer(StoreServer):
    """A server on a port of its own.

    Args:
        options: Its settings.
        guard: What it asks of whoever connects.
    """

    def __init__(self, *options: str, guard: Guard = OPEN) -> None:
        self.port = free_port()
        self.password = guard.password
        settings = {
            **guard.listening(self.port),
            **guard.server_settings,
            "bind": "127.0.0.1",
            "protected-mode": "no",
            "repl-diskless-sync-delay": "0",
        }
        super().__init__(guard.binary, *as_options(settings), *options)

    @property
    def place(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What clients of this one server connect to."""
        return f"redis://{self.place}"

    @property
    def is_primary(self) -> bool:
        """Whether it takes writes."""
        try:
            return bool(self.ask("ROLE")[0] == b"master")
        except redis.RedisError:
            return False

    @property
    def follows(self) -> bool:
        """Whether it is a replica that has everything."""
        try:
            role, *facts = self.ask("ROLE")
        except redis.RedisError:
            return False
        return bool(role == b"slave" and facts[2] == b"connected")

    @property
    def primary_port(self) -> int | None:
        """The port of the primary whose replica it is, None for a primary."""
        role, *facts = self.ask("ROLE")
        return int(facts[1]) if role == b"slave" else None

    @property
    def replicas(self) -> int:
        """How many replicas it sends its writes to, having sent them everything before."""
        return len(re.findall(rb"state=online", self.ask("INFO", "replication")))
