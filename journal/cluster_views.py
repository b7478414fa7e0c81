"""What the nodes of a cluster say of it: asked all at once, over what is connected or over connections of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import redis.exceptions

from .connections import ask, connected
from .errors import StoreError
from .link import Connection, Link, LinkLost
from .refusals import said
from .slots import View, view_of
from .urls import Host, ServerAddress

#: How long one node may take to say what it knows.
VIEW_SECONDS: Final = 1.0
#: Nodes without a connection that are asked at once.
STRANGERS_MAX: Final = 8

_PROBLEMS = (OSError, LinkLost, StoreError, redis.exceptions.RedisError)


async def read_views(
    links: Mapping[Host, Link], strangers: Sequence[ServerAddress], connect: Callable[[ServerAddress], Connection]
) -> tuple[list[View], list[str]]:
    """Ask nodes for their map.

    Args:
        links: The nodes that are connected, which are asked first.
        strangers: Others that may know it, for the case that none of those answers.
        connect: Makes an unconnected connection.

    Returns:
        What was said, and why others said nothing.
    """
    views: list[View] = []
    problems: list[str] = []

    async def over_link(host: Host, link: Link) -> None:
        views.append(await _view(host, link.call))

    async def over_connection(address: ServerAddress) -> None:
        async with connected(connect(address)) as connection:
            views.append(await _view(address.host, partial(ask, connection)))

    async def limited(question: Callable[..., Any], host: Host, *arguments: Any) -> None:
        try:
            with anyio.fail_after(VIEW_SECONDS):
                await question(*arguments)
        except _PROBLEMS as error:
            problems.append(f"{host}: {said(error)}")

    async with anyio.create_task_group() as tasks:
        for host, link in links.items():
            tasks.start_soon(limited, over_link, host, host, link)
    if not views:
        async with anyio.create_task_group() as tasks:
            for address in strangers[:STRANGERS_MAX]:
                tasks.start_soon(limited, over_connection, address.host, address)
    return views, problems


async def _view(host: Host, call: Callable[..., Any]) -> View:
    view = view_of(await call("CLUSTER", "INFO"), await call("CLUSTER", "SLOTS"), host)
    if not view.ranges:
        raise StoreError("it knows of no slot that is served")
    return view
