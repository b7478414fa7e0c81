"""Plain commands to a store, past the code under test."""

from __future__ import annotations

from typing import Any, cast

import redis

_client = cast("Any", redis.Redis)


def plain(url: str, *words: Any) -> Any:
    """Send one command over a connection of its own and return its raw reply."""
    with _client.from_url(url) as client:
        return client.execute_command(*words)
