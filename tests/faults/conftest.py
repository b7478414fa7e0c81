"""Fixtures of the fault tests: one server for all of those that leave it alone, and what stands before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import TOPOLOGY

from .harness import StoreServer
from .proxy import Proxy
from .topologies import servers_of

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[StoreServer]:
    """A server that no test hurts; or several, as `KEYLANE_TEST_TOPOLOGY` says."""
    with servers_of(TOPOLOGY) as server:
        # What tests ask of a server that several share, all of these can do.
        yield cast("StoreServer", server)


@pytest.fixture
def own_server() -> Iterator[StoreServer]:
    """A server that the test may kill, fill and starve."""
    with StoreServer() as server:
        yield server


@pytest.fixture
def proxy(shared_server: StoreServer) -> Iterator[Proxy]:
    """A proxy of the test's own before the shared server."""
    with Proxy(shared_server.socket, shared_server.directory / f"p{next(_numbers)}") as proxy:
        yield proxy


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """A file to which steps add a line for each time that they run."""
    return tmp_path / "trail"
