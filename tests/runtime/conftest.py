"""What tests of the runtime may ask for beside the common fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.ward import Ward, opened


@pytest.fixture
async def ward(store_url: str, namespace: str) -> AsyncIterator[Ward]:
    """Give a namespace that a test looks at and touches by hand."""
    async with opened(store_url, namespace) as ward:
        yield ward
