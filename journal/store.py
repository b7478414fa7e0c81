"""One namespace of one store: its servers, its function library, and the calls that everything else is made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

import anyio
import redis.exceptions

from .background import Background
from .blob_cache import BlobCache
from .cluster import Cluster
from .committer import Committer
from .connections import CONNECT_TIMEOUT_SECONDS, ask, connection_to
from .errors import StoreError, StoreUnavailable
from .keyspace import PartitionSpace, check_namespace
from .library import library
from .link import Connection, Done, LinkLost
from .memory import MemoryWatch
from .node import Node
from .observer import NoObserver, Observer
from .refusals import Refusal, is_missing_function, refusal, store_error
from .sentinel import SentinelConnection
from .server_identity import ServerIdentity, shared_host
from .subscription import Listening
from .topology import OneServer, Parts, Topology
from .urls import (
    ClusterAddress,
    EmbeddedAddress,
    Host,
    SentinelAddress,
    ServerAddress,
    SocketAddress,
    StoreAddress,
    parse_store_url,
)
from .writer import PartitionWriter

if TYPE_CHECKING:
    from .tenure import Tenure

__all__ = ["ANSWER_TIMEOUT_SECONDS", "Refusal", "Store", "is_missing_function", "refusal", "store_error"]

ANSWER_TIMEOUT_SECONDS = 5.0
MEMORY_LIMIT_RATIO = 0.9
#: So long the answers of the other servers wait for that of one which keeps silent.
STRAGGLER_SECONDS: Final = 1.0
#: Stands for a reply that is not there yet.
UNANSWERED: Final = object()

#: Handed the replies to several commands, each in its place; must not raise.
AllDone: TypeAlias = Callable[[list[Any]], None]


class Store:
    """The open store; use it as an async context manager.

    Args:
        url: A URL of one server, of the sentinels that know it, or of some nodes of a cluster.
        namespace: The prefix under which everything lives.
        observer: Told of every state change that is sent; for tests.
        answer_timeout_seconds: How long an answer may take before a connection counts as lost.
        memory_limit_ratio: The part of a server's `maxmemory` at which nothing new is taken in.
        replicas: How many have to have something before it counts as durable.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        observer: Observer | None = None,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
        memory_limit_ratio: float = MEMORY_LIMIT_RATIO,
        replicas: int = 0,
    ) -> None:
        self.address = _openable(parse_store_url(url))
        self.url = str(self.address)
        self.namespace = check_namespace(namespace)
        self.observer: Observer = observer or NoObserver()
        self.library = library()
        self.blob_cache = BlobCache()
        self.answer_timeout_seconds = answer_timeout_seconds
        self.replicas = replicas
        self.is_severed = False
        #: Whether nothing is sent any more, because whoever had opened it has left.
        self.is_closed = False
        self.topology = self._topology(memory_limit_ratio)
        #: Sends one command to the server that has its key, and hands the reply to a function that must not raise.
        self.submit = self.topology.submit
        self._server_listeners: list[Callable[[Node], None]] = []
        self._unknown_memory = MemoryWatch(self.call, memory_limit_ratio)
        self._stack = contextlib.AsyncExitStack()
        # Spelling the fixed keys of a partition costs more than looking it up.
        self.space = cache(self._space)

    def _topology(self, memory_limit_ratio: float) -> Topology:
        parts = Parts(
            self.new_connection,
            self._on_connect,
            self.library,
            self.observer,
            self.answer_timeout_seconds,
            memory_limit_ratio,
            self.replicas,
        )
        if isinstance(self.address, ClusterAddress):
            return Cluster(self.address, parts)
        return OneServer(self.address, parts)

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            StoreUnavailable: The store did not answer in time.
        """
        await self._stack.__aenter__()
        try:
            tasks = await self._stack.enter_async_context(Background())
            await self.topology.open(tasks, CONNECT_TIMEOUT_SECONDS)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.is_closed = True
        await self._stack.aclose()

    def _space(self, type_name: str, number: int) -> PartitionSpace:
        return PartitionSpace(self.namespace, type_name, number)

    def writer(self, space: PartitionSpace, tenure: Tenure) -> PartitionWriter:
        """Return the writer of a tenure, whose first batch is number 1."""
        writer = PartitionWriter(space, tenure, self.topology.committer_of(space))
        self.topology.attend(writer)
        return writer

    def on_server_change(self, listener: Callable[[Node], None]) -> Callable[[], None]:
        """Have something called when another server answers than before, before anything else is sent to that one.

        Args:
            listener: Called with the node where it answers; must not raise.

        Returns:
            What ends it.
        """
        self._server_listeners.append(listener)
        return partial(self._server_listeners.remove, listener)

    def memory_of(self, space: PartitionSpace) -> MemoryWatch:
        """Return what is known of the memory of the server that holds a partition."""
        try:
            return self.topology.node_of(space.owner).memory
        except StoreUnavailable:
            return self._unknown_memory

    async def identity_of(self, space: PartitionSpace) -> ServerIdentity | None:
        """Return which server holds a partition, once that is connected; None where it does not say who it is.

        It is asked anew: one that another had the place of for a while is another one, over the same connection.

        Raises:
            StoreUnavailable: No server that holds it could be reached.
        """
        node = await self.topology.reach(space.owner)
        if node.identity.identity is not None:
            await self._see(node, node.call)
        return node.identity.identity

    @property
    def nodes(self) -> Sequence[Node]:
        """The servers that take writes: the only one, or each primary of a cluster."""
        return self.topology.nodes

    @property
    def connected(self) -> Sequence[Node]:
        """Those of them that are connected; all where none is, so that asking them says why."""
        return [node for node in self.nodes if node.calls.is_up] or self.nodes

    @property
    def is_quiet(self) -> bool:
        """Whether every command that was submitted has been answered."""
        return all(node.is_quiet for node in self.nodes)

    def sever(self) -> None:
        """Send nothing any more, as if the process had been killed; for tests."""
        self.is_severed = True
        for node in self.nodes:
            node.sever()

    @property
    def committer(self) -> Committer:
        """The committer of the only server, or of the first primary."""
        return self.nodes[0].committer

    def why_waiting(self, space: PartitionSpace) -> str | None:
        """Return why nothing becomes durable in a partition now; None when nothing is known to be in the way."""
        return self.topology.why_down(space) or self.topology.troubles.get(space.tag)

    async def wait_up(self, timeout_seconds: float) -> None:
        """Wait until commands can be sent.

        Raises:
            StoreUnavailable: They can't within the time.
        """
        await self.topology.wait_up(timeout_seconds)

    async def call(self, *args: Any) -> Any:
        """Send one command over the connection of single calls.

        Raises:
            StoreUnavailable: The store is away, or gave no answer: whether the command ran is unknown.
            StoreFull: The store has no memory for it.
            redis.exceptions.ResponseError: Another refusal of the server.
        """
        try:
            return await self.topology.call(*args)
        except (LinkLost, redis.exceptions.ResponseError, redis.exceptions.ConnectionError) as error:
            raise store_error(error, self.url) from error

    def submit_all(self, commands: Sequence[tuple[Any, ...]], done: AllDone) -> list[Any]:
        """Send commands in one turn, and hand over all replies together once the last one is there.

        Args:
            commands: What to send; one without a key goes where the first one with a key goes.
            done: Handed the replies, or the exceptions that stand for them, in the order of the commands.

        Returns:
            The list that will hold the replies, with `UNANSWERED` for those that are not there yet.
        """
        replies: list[Any] = [UNANSWERED] * len(commands)
        if not commands:
            done(replies)
            return replies
        unanswered = len(commands)

        def take(position: int, reply: Any) -> None:
            nonlocal unanswered
            replies[position] = reply
            unanswered -= 1
            if not unanswered:
                done(replies)

        submit = self.topology.submit_beside(commands)
        for position, words in enumerate(commands):
            submit(words, partial(take, position))
        return replies

    def submit_durably(self, space: PartitionSpace, words: tuple[Any, ...], done: Done) -> None:
        """Send a command about a partition; its reply is handed over once everything up to it is durable.

        Args:
            space: The partition.
            words: The command.
            done: Handed the reply, or the exception that stands for it; `LinkLost` where too few replicas have it.
        """
        if not self.replicas:
            self.submit(words, done)
            return
        try:
            node = self.topology.node_of(space.owner)
        except StoreUnavailable as error:
            done(LinkLost(error.why))
            return
        node.want_sends()
        take, note = partial(self._take_durable, done), partial(self._note_trouble, space)
        node.durable.send((words,), space.witness, self.replicas, take, note)

    def _note_trouble(self, space: PartitionSpace, why: str | None) -> None:
        if why is None:
            self.topology.troubles.pop(space.tag, None)
        else:
            self.topology.troubles[space.tag] = why

    def _take_durable(self, done: Done, replies: list[Any]) -> None:
        (reply,) = replies
        if isinstance(reply, LinkLost):
            self.topology.lost()
        elif isinstance(reply, redis.exceptions.ResponseError):
            self.topology.refused(reply)
        done(reply)

    async def settle(self, space: PartitionSpace) -> None:
        """Wait until everything that a partition's server has by now is durable.

        Raises:
            StoreUnavailable: Too few replicas have it, or no answer came.
        """
        if not self.replicas:
            return
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(reply: Any) -> None:
            if not future.done():
                future.set_result(reply)

        self.submit_durably(space, ("EXISTS", space.witness), done)
        reply = await future
        if isinstance(reply, Exception):
            raise store_error(reply, self.url)

    async def each(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send reads in one turn and wait for all of their replies; an error is returned in its place.

        A server that is away costs its own commands only; their errors are `StoreUnavailable`. Where there are several
        servers, one that keeps silent for `STRAGGLER_SECONDS` counts as away.

        Raises:
            StoreUnavailable: No server can be reached.
        """
        await self.topology.wait_up(self.answer_timeout_seconds)
        complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: list[Any]) -> None:
            if not complete.done():
                complete.set_result(None)

        replies = self.submit_all(commands, done)
        with anyio.move_on_after(STRAGGLER_SECONDS if len(self.nodes) > 1 else None):
            await complete
        return [self._in_place(reply) for reply in replies]

    def _in_place(self, reply: Any) -> Any:
        if reply is UNANSWERED:
            return StoreUnavailable(self.url, f"no answer within {STRAGGLER_SECONDS:g} s")
        if isinstance(reply, Exception):
            error = store_error(reply, self.url)
            return error if isinstance(error, StoreUnavailable) else reply
        return reply

    async def each_fcall(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do as `each` for calls of functions, of which none writes; the library is loaded where it is missing.

        Raises:
            StoreUnavailable: No server can be reached.
        """
        replies = await self.each(calls)
        if any(isinstance(reply, Exception) and is_missing_function(reply) for reply in replies):
            await self.load_library()
            replies = await self.each(calls)
        return replies

    async def together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one turn and wait for all of their replies; a refusal is returned in its place.

        Raises:
            StoreUnavailable: A reply was lost, or the store refuses everything at the moment.
        """
        return _all_answered(await self.each(commands))

    async def together_fcall(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do as `together` for calls of functions, of which none writes; the library is loaded where it is missing.

        Raises:
            StoreUnavailable: A reply was lost, or the store refuses everything at the moment.
        """
        return _all_answered(await self.each_fcall(calls))

    async def fcall(self, verb: str, keys: Sequence[bytes], args: Sequence[Any], *, read_only: bool = False) -> Any:
        """Call a function of the library.

        Raises:
            Refusal: The function refused, with the code that its head describes.
            StoreUnavailable: The store is away, or gave no answer: whether the function ran is unknown.
            StoreFull: The store has no memory for it.
        """
        words = (*self.words(verb, keys, read_only=read_only), *args)
        try:
            return await self.call(*words)
        except redis.exceptions.ResponseError as error:
            if not is_missing_function(error):
                raise refusal(error) from error
        await self.load_library()
        try:
            return await self.call(*words)
        except redis.exceptions.ResponseError as error:
            raise refusal(error) from error

    def words(self, verb: str, keys: Sequence[bytes], *, read_only: bool = False) -> tuple[Any, ...]:
        """Return the head of a function call: its arguments are appended."""
        return ("FCALL_RO" if read_only else "FCALL", self.library.function(verb), len(keys), *keys)

    async def load_library(self) -> None:
        """Load the functions on every server; a library that is there already is left alone.

        Raises:
            StoreUnavailable: One of them is away.
        """
        for node in self.nodes:
            try:
                await node.call("FUNCTION", "LOAD", self.library.code)
            except redis.exceptions.ResponseError as error:
                if "already exists" not in str(error):
                    raise

    def load_library_beside(self, space: PartitionSpace) -> None:
        """Load the functions on the server of a partition that turned out to lack them, without waiting."""
        with contextlib.suppress(StoreUnavailable):
            self.topology.node_of(space.owner).calls.submit(("FUNCTION", "LOAD", self.library.code), _ignore)

    def new_connection(self, address: ServerAddress | SocketAddress | SentinelAddress | None = None) -> Connection:
        """Return an unconnected connection whose library-level retries are off; who uses it watches the time.

        Args:
            address: Where to; by default where the store's URL leads, for a cluster the first of its nodes.
        """
        match address or self.address:
            case SentinelAddress() as sentinels:
                return cast("Connection", SentinelConnection(sentinels, self.new_connection))
            case ClusterAddress(hosts=hosts, access=access):
                return connection_to(ServerAddress(hosts[0], access))
            case server:
                return connection_to(server)

    def new_subscription(self, *, on_message: Callable[[bytes, bytes], None], on_gap: Callable[[], None]) -> Listening:
        """Return a subscription that follows its channels to the servers that have them.

        Args:
            on_message: Called with channel and payload of each message.
            on_gap: Called when messages may have been missed and arrive again from now on.
        """
        return self.topology.new_subscription(on_message=on_message, on_gap=on_gap)

    async def _see(self, node: Node, ask_it: Callable[..., Awaitable[Any]], host: Host | None = None) -> None:
        """See who answers, and tell of it where it is another one than before."""
        # A node of a cluster that was not there before has taken slots from another one.
        is_new = node.identity.identity is None
        if await node.identity.greet(ask_it, host) or is_new:
            for listener in self._server_listeners:
                listener(node)

    async def _on_connect(self, node: Node, connection: Connection) -> None:
        """See who answers, and load the library where it is lacking, before anything else is sent over a connection."""
        primary = connection.primary if isinstance(connection, SentinelConnection) else None
        host = shared_host(self.address) if primary is None else primary.host
        await self._see(node, partial(ask, connection), host)
        if await ask(connection, "FUNCTION", "LIST", "LIBRARYNAME", self.library.name):
            return
        try:
            await ask(connection, "FUNCTION", "LOAD", self.library.code)
        except redis.exceptions.ResponseError as error:
            if "already exists" not in str(error):
                raise


def _openable(address: StoreAddress) -> ServerAddress | SocketAddress | SentinelAddress | ClusterAddress:
    """Return an address that can be opened.

    Raises:
        StoreError: It names an embedded store.
    """
    if isinstance(address, EmbeddedAddress):
        raise StoreError(f"{address} names an embedded store, which Runtime and `keylane dev` start; name its URL")
    return address


def _all_answered(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, StoreUnavailable):
            raise reply
    return replies


def _ignore(reply: Any) -> None:
    del reply
