"""The pytest plugin: `keylane_harness`, on an embedded store that all tests of a run share.

pytest loads it by its entry point; nothing else of Keylane needs pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import anyio
import pytest

from .journal.embedded import EmbeddedStore
from .objects.app import App
from .objects.settings import Settings
from .objects.virtual_object import VirtualObject
from .testing import Force, Harness, harness

__all__ = ["MakeHarness", "keylane_harness", "keylane_store_url"]


class MakeHarness(Protocol):
    """What the fixture `keylane_harness` gives: `keylane.testing.harness`, on the shared store."""

    def __call__(
        self,
        app: App | VirtualObject | list[VirtualObject],
        *,
        force: Force | None = None,
        settings: Settings | None = None,
        auto_advance: bool = True,
    ) -> Harness:
        """Return a harness; use it as an async context manager."""
        ...


@pytest.fixture(scope="session")
def keylane_store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the URL of an embedded store; a project that has a server of its own overrides this fixture."""
    store = EmbeddedStore(tmp_path_factory.mktemp("keylane"))
    # Outside any test's event loop, and so for tests of every async plugin.
    anyio.run(store.__aenter__)
    try:
        yield store.url
    finally:
        anyio.run(store.__aexit__, None, None, None)


@pytest.fixture
def keylane_harness(keylane_store_url: str) -> MakeHarness:
    """Give `keylane.testing.harness` on the shared store; each harness has a namespace of its own."""
    return partial(harness, store=keylane_store_url)
