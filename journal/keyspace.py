"""The names of a partition's keys: all share its hash tag, so that one function call may touch them all."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import StoreError

#: The version of everything that is written under a partition's tag; checked by every function.
SCHEMA_VERSION = "1"


NAMESPACE_LIMIT_BYTES = 128


def check_namespace(namespace: str) -> str:
    """Return a namespace that may stand in a hash tag.

    Raises:
        StoreError: It is no text, empty, too long, or has a brace, which would end the tag early: in a cluster the keys
            of a partition would be spread over several nodes.
    """
    if not isinstance(namespace, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user gives it
        raise StoreError(f"namespace is text, not {type(namespace).__name__}")
    if not namespace or len(namespace.encode(errors="replace")) > NAMESPACE_LIMIT_BYTES:
        raise StoreError(f"namespace {namespace[:40]!r} has to have 1 to {NAMESPACE_LIMIT_BYTES} bytes")
    if not namespace.isprintable() or "{" in namespace or "}" in namespace:
        raise StoreError(f"namespace {namespace!r} has a brace or a character that can't be printed: leave it out")
    return namespace


@dataclass(frozen=True, slots=True)
class PartitionSpace:
    """The keys and channels of one partition, named `{namespace:Type:number}` and what follows.

    Args:
        namespace: The deployment's prefix.
        type_name: The object type.
        number: The partition's number within the type.
    """

    namespace: str
    type_name: str
    number: int
    tag: bytes = field(init=False)
    owner: bytes = field(init=False)
    inbox: bytes = field(init=False)
    inbox_channel: bytes = field(init=False)
    answer_channel: bytes = field(init=False)
    due: bytes = field(init=False)
    runnable: bytes = field(init=False)
    undecodable: bytes = field(init=False)
    witness: bytes = field(init=False)
    sent: bytes = field(init=False)
    bases: bytes = field(init=False)
    marks: bytes = field(init=False)
    history: bytes = field(init=False)
    blob_index: bytes = field(init=False)
    blocked: bytes = field(init=False)
    paused: bytes = field(init=False)
    agenda: bytes = field(init=False)
    queue: bytes = field(init=False)
    proposed: bytes = field(init=False)
    ledger: bytes = field(init=False)
    alerts: bytes = field(init=False)
    _object_prefix: bytes = field(init=False)
    _lane_prefix: bytes = field(init=False)
    _invocation_prefix: bytes = field(init=False)
    _result_prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Spell the fixed names once; the hot path only appends to the prefixes."""
        tag = f"{{{self.namespace}:{self.type_name}:{self.number}}}".encode()
        for name, suffix in _SUFFIXES.items():
            object.__setattr__(self, name, tag + suffix)

    def object(self, key_text: str) -> bytes:
        """Return the object stream of a key."""
        return self._object_prefix + key_text.encode()

    def lane(self, key_text: str) -> bytes:
        """Return the list of a lane's open durable invocations, in order of intake."""
        return self._lane_prefix + key_text.encode()

    def invocation(self, raw_id: bytes) -> bytes:
        """Return the stream of an invocation that outlives its first commit."""
        return self._invocation_prefix + raw_id

    def result(self, raw_id: bytes) -> bytes:
        """Return the key that keeps an invocation's outcome during its retention."""
        return self._result_prefix + raw_id

    def idempotency(self, day: int) -> bytes:
        """Return the hash of the idempotency keys first used on a day of partition time."""
        return self.tag + b":k:%d" % day

    def outbox(self, target: str) -> bytes:
        """Return the stream of the messages to a partition, named `Type.number`."""
        return self.tag + b":x:" + target.encode()

    def target(self, outbox: bytes) -> bytes:
        """Return the name of the partition that an outbox leads to."""
        return outbox[len(self.tag) + 3 :]

    @property
    def name(self) -> str:
        """The name by which other partitions know this one, such as `Order.3`."""
        return f"{self.type_name}.{self.number}"

    def blobs(self, key_text: str) -> bytes:
        """Return the hash of an object's large values, by digest."""
        return self.tag + b":b:" + key_text.encode()

    def attached(self, raw_id: bytes) -> bytes:
        """Return the set of those who have attached to an open invocation, and wait for its end."""
        return self.tag + b":l:" + raw_id

    def set_aside(self, key_text: str) -> bytes:
        """Return the set of an object's invocations that have large values and are open outside of its lane."""
        return self.tag + b":p:" + key_text.encode()

    def signals(self, key_text: str) -> bytes:
        """Return the hash of the signals to an object for which nobody waited when they came, by number."""
        return self.tag + b":g:" + key_text.encode()

    def effects(self, key_text: str) -> bytes:
        """Return the hash of an object's effects, by operation id."""
        return self.tag + b":e:" + key_text.encode()

    def proposals(self, key_text: str) -> bytes:
        """Return the hash of what an object has proposed to people, by action and version."""
        return self.tag + b":v:" + key_text.encode()

    def __str__(self) -> str:
        """Return the name used in messages, such as `Order:3`."""
        return f"{self.type_name}:{self.number}"


_SUFFIXES = {
    "tag": b"",
    "owner": b":owner",
    "inbox": b":inbox",
    "inbox_channel": b":in",
    "answer_channel": b":out",
    "due": b":due",
    "runnable": b":run",
    "undecodable": b":bad",
    "witness": b":w",
    "sent": b":sent",
    "bases": b":bases",
    "marks": b":marks",
    "history": b":hist",
    "blob_index": b":blobs",
    "blocked": b":blocked",
    "paused": b":paused",
    "agenda": b":agenda",
    "queue": b":queue",
    "proposed": b":proposed",
    "ledger": b":ledger",
    "alerts": b":alerts",
    "_object_prefix": b":o:",
    "_lane_prefix": b":q:",
    "_invocation_prefix": b":i:",
    "_result_prefix": b":r:",
}


def registry_key(namespace: str) -> bytes:
    """Return the hash of the namespace's live workers."""
    return f"{{{namespace}}}:workers".encode()


def types_key(namespace: str) -> bytes:
    """Return the hash of the namespace's object types and their partition counts."""
    return f"{{{namespace}}}:types".encode()


def owners_key(namespace: str) -> bytes:
    """Return the hash of the namespace's object types and who is in charge of each."""
    return f"{{{namespace}}}:owners".encode()


def receivers_key(namespace: str) -> bytes:
    """Return the hash of the namespace's receivers, and what is to be known of each."""
    return f"{{{namespace}}}:receivers".encode()


def code_key(namespace: str) -> bytes:
    """Return the hash of the namespace's object types, and what the code of each does that was started last."""
    return f"{{{namespace}}}:code".encode()


def durability_key(namespace: str) -> bytes:
    """Return the key that says on how many replicas the namespace's workers want everything that is acknowledged."""
    return f"{{{namespace}}}:durability".encode()
