"""Probes: they travel along the waits of invocations for each other, and find the circles among them.

An invocation that holds a lane and waits for nothing but the reply to one call is *stuck*, and its wait is an edge. It
leads to the lane in which the called invocation waits: behind a holder that may be stuck itself, or as that holder. A
probe goes from owner to owner along these edges, as each of them has its part in memory at that moment.

What one round sees need never have been true at once: a wait that was seen may have ended by the time of the next look.
So a circle is walked twice. An edge that is met again is the same wait, since a command is waited for once: it lasted
from the first look to the second. All of them lasted at the moment between the rounds, and then nothing inside of the
circle can end any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from .codec import Undecodable
from .fields import Layout, a_flag, a_number, a_text, decode_tagged, nested, optional, pack, sequence_of, some_bytes
from .messages import Held
from .place import Place, a_place

#: A probe goes no further than this along a chain, so that its size is bounded.
EDGES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Edge:
    """The wait of an invocation that holds a lane, for the end of one other invocation.

    Args:
        type_name: The object type of the one that waits.
        key: Its object, as `tenant/key`.
        handler: Its handler.
        invocation: Its raw id.
        place: Where the command that waits stands.
        target_type: The object type of the one that is waited for.
        target_partition: The number of its partition.
        target_key: Its object; empty where the one that waits knows its id alone.
        target: Its raw id.
        may_be_refused: Whether it had not begun when it was looked at, so that the call can be refused still.
    """

    type_name: str
    key: str
    handler: str
    invocation: bytes
    place: Place
    target_type: str
    target_partition: int
    target_key: str
    target: bytes
    may_be_refused: bool = False

    @property
    def is_attached(self) -> bool:
        """Whether it waits for an invocation that it did not ask for, by its id."""
        return not self.target_key

    @property
    def held(self) -> Held:
        """The lane that is held meanwhile."""
        return Held(self.type_name, self.key, self.handler)

    def is_same(self, other: Edge) -> bool:
        """Return whether it is the same wait."""
        return (self.invocation, self.place, self.target) == (other.invocation, other.place, other.target)

    def fields(self) -> tuple[object, ...]:
        """Return what is written down of it."""
        one_that_waits = (self.type_name, self.key, self.handler, self.invocation, self.place)
        return (
            *one_that_waits, self.target_type, self.target_partition, self.target_key, self.target, self.may_be_refused
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of a chain of waits so far.

    Args:
        edges: The waits, each of which leads to the lane that the next one's invocation holds.
        at: Which of them leads to where the probe is to be looked at next.
        proven: How many edges of a circle were met again; None as long as no circle is closed.
    """

    edges: tuple[Edge, ...]
    at: int = 0
    proven: int | None = None

    @property
    def edge(self) -> Edge:
        """The wait whose target is to be looked at next."""
        return self.edges[self.at]

    @property
    def is_proven(self) -> bool:
        """Whether all of a circle was met twice: what is looked at next is the call to be refused."""
        return self.proven is not None and self.proven >= len(self.edges)

    @property
    def path(self) -> tuple[str, ...]:
        """The circle as it stands in a `Deadlock`: from the one that waits at this edge round to itself."""
        circle = (*self.edges[self.at :], *self.edges[: self.at])
        return tuple(str(edge.held) for edge in (*circle, circle[0]))

    def seen(self, following: Edge, *, may_be_refused: bool) -> Probe | None:
        """Return how the probe goes on from where it was looked at, None where that leads nowhere.

        Args:
            following: The wait of the one that holds the lane.
            may_be_refused: Whether the target of the edge at hand has not begun.
        """
        here = replace(self.edge, may_be_refused=may_be_refused)
        if self.proven is None:
            return self._grown((*self.edges[:-1], here), following)
        after = (self.at + 1) % len(self.edges)
        if here != self.edge or not following.is_same(self.edges[after]):
            return None
        proven = min(self.proven + 1, len(self.edges))
        if proven < len(self.edges):
            return replace(self, at=after, proven=proven)
        victim = self._victim()
        return None if victim is None else replace(self, at=victim, proven=proven)

    @staticmethod
    def _grown(edges: tuple[Edge, ...], following: Edge) -> Probe | None:
        for position, edge in enumerate(edges):
            if edge.is_same(following):
                return Probe(edges[position:], 0, 0)
        return None if len(edges) >= EDGES_MAX else Probe((*edges, following), len(edges))

    def _victim(self) -> int | None:
        """Return the call to be refused: the one with the youngest id, whichever probe comes to choose."""
        places = [place for place, edge in enumerate(self.edges) if edge.may_be_refused]
        return max(places, key=lambda place: self.edges[place].target, default=None)

    def encode(self) -> bytes:
        """Return the bytes of the probe."""
        return pack((_PROBE, [edge.fields() for edge in self.edges], self.at, self.proven))

    @classmethod
    def decode(cls, data: bytes) -> Probe:
        """Return the probe that bytes hold.

        Raises:
            Undecodable: They hold none.
        """
        probe = decode_tagged(data, _PROBES, "probe")
        if not 0 <= probe.at < len(probe.edges):
            msg = f"a probe at edge {probe.at} of {len(probe.edges)}"
            raise Undecodable(msg)
        return probe


_PROBE: Final = 114
_EDGE: Final = Layout(
    Edge,
    (a_text, a_text, a_text, some_bytes, a_place, a_text, a_number, a_text, some_bytes, a_flag),
)
_PROBES: Final[Mapping[int, Layout[Probe]]] = {
    _PROBE: Layout(Probe, (sequence_of(nested(_EDGE)), a_number, optional(a_number))),
}
