"""One command on its way through a cluster: it follows where the nodes point, and is told of once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import redis.exceptions

from .link import Done, LinkLost
from .refusals import is_missing_function, redirect_of

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node

#: How often a command follows where the nodes point.
REDIRECTS_MAX: Final = 16
#: How soon it is tried again when the node that was named is not connected yet.
CONNECT_AGAIN_SECONDS: Final = 0.02


class Sending:
    """A command that may have to be sent more than once, which is safe after an answer that it was not applied.

    Args:
        cluster: Knows who has which slot.
        words: The command.
        done: Handed the reply, or the exception that stands for it.
        key: What it is about, None for a command that any node answers.
    """

    __slots__ = ("_cluster", "_deadline", "_done", "_key", "_redirects", "_words")

    def __init__(self, cluster: Cluster, words: tuple[Any, ...], done: Done, key: bytes | None) -> None:
        self._cluster = cluster
        self._words = words
        self._done = done
        self._key = key
        self._redirects = 0
        self._deadline = 0.0

    def send(self) -> None:
        """Send it to the node that has its slot by the map."""
        node = self._cluster.at(self._key)
        if node is None:
            self._cluster.want_map()
            self._done(LinkLost("no node of the cluster serves this slot now"))
            return
        node.calls.submit(self._words, partial(self._answered, node))

    def _answered(self, node: Node, reply: Any) -> None:
        match reply:
            case redis.exceptions.AskError() if self._may_go_on():
                self._follow(reply)
            case redis.exceptions.ResponseError() if is_missing_function(reply) and self._may_go_on():
                library = self._cluster.library
                node.calls.submit(("FUNCTION", "LOAD", library.code), _ignore)
                node.calls.submit(self._words, partial(self._answered, node))
            case LinkLost():
                self._cluster.lost()
                self._done(reply)
            case redis.exceptions.ClusterDownError():
                self._cluster.want_map()
                self._done(reply)
            case _:
                self._done(reply)

    def _may_go_on(self) -> bool:
        self._redirects += 1
        return self._redirects <= REDIRECTS_MAX

    def _follow(self, error: redis.exceptions.AskError) -> None:
        redirect = redirect_of(error)
        self._cluster.refused(error)
        is_named = redirect is not None and redirect.is_ask and redirect.host
        node = self._cluster.named(redirect) if redirect is not None and is_named else None
        if node is not None and node.calls.is_up:
            node.calls.submit(("ASKING",), _ignore)
            node.calls.submit(self._words, partial(self._answered, node))
        else:
            self._again()

    def _again(self) -> None:
        """Send by the map, as soon as the node that has the slot by now is connected."""
        loop = asyncio.get_running_loop()
        node = self._cluster.at(self._key)
        if node is not None and node.calls.is_up:
            self.send()
            return
        self._deadline = self._deadline or loop.time() + self._cluster.answer_timeout_seconds
        if loop.time() > self._deadline:
            self._done(LinkLost("the node that has its slot could not be reached"))
        else:
            loop.call_later(CONNECT_AGAIN_SECONDS, self._again)


def _ignore(reply: Any) -> None:
    del reply
