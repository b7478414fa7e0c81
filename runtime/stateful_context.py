"""The part of an exclusive handler's context that reads and writes state, and notes what differs from run to run."""

from __future__ import annotations

import random
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from ..journal import codec
from ..journal.blobs import is_reference
from ..journal.codec import REFERENCE_BYTES
from ..journal.command_records import Bare, Command
from ..journal.errors import InvalidOutput
from ..objects.types import boundary_of
from .bounds import SHORT_NAME, STATE_NAMES_MAX, check_name, check_packed, check_state, check_unpacked, check_written
from .effecting_context import EffectingContext
from .large_reads import whole
from .large_values import USUAL_BYTES, compact, note
from .misuse import ContextClosed
from .patches import has_patch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ..journal.records import Record
    from .conductor import Conductor
    from .releasing import LaneRelease
    from .steps import Steps


class StatefulContext(EffectingContext):
    """What `ExclusiveContext` does for the state: the lane's queued one under its own writes.

    What was read and noted since the last durable point is carried by the next record, from which a replay has it.
    """

    __slots__ = ("_kept_back", "_notes", "_patches", "_random", "_reads", "writes")

    _is_closed: bool
    _recorded: deque[Record] | None
    _steps: Steps
    conductor: Conductor | None
    release: LaneRelease | None

    def __init__(self) -> None:
        self._reads: dict[str, bytes | None] = {}
        self._notes: list[bytes] = []
        self._random: random.Random | None = None
        self._patches: dict[str, bool] | None = None
        #: Names of the state that was written before a result that was kept back; a replay reads it from the record.
        self._kept_back: set[str] = set()
        self.writes: dict[str, bytes | None] = {}

    async def get(self, name: str, type: Any, default: Any = None) -> Any:
        """Return a state value as this invocation sees it."""
        if self._is_closed:
            raise ContextClosed("get")
        if name.__class__ is not str:
            check_name("state value", name)
        packed = self.read(name)
        if packed is None:
            return default
        # The length is looked at first: it is all that most values take.
        if len(packed) == REFERENCE_BYTES and is_reference(packed):
            if self.conductor is not None:
                await self.conductor.turn()
            packed = await whole(self.own, self._lane, self._invocation, packed, f"state {name}")
        declared = self._lane.partition.virtual_object.state.get(name)
        if declared is not None and declared.form is type:
            return declared.load(packed)
        return boundary_of(type, where=f"state {name}", refusal=InvalidOutput).load(packed)

    def read(self, name: str) -> bytes | None:
        """Return a packed state value: own writes first, then what was read the first time, then the lane's."""
        if name in self.writes:
            packed = self.writes[name]
            if name in self._kept_back:
                self._reads[name] = packed
            return packed
        recorded = self._next_made()
        if recorded is not None:
            reads = _context_of(recorded)
            if name in reads:
                return reads[name]
        packed = self._lane.queued.get(name)
        self._reads[name] = packed
        return packed

    def set(self, name: str, value: Any, type: Any = None) -> None:
        """Write a state value; it becomes durable with the next durable point."""
        self._check_writable("set", name)
        boundary = self._lane.partition.virtual_object.state.get(name)
        if boundary is None:
            form = _form_of(value) if type is None else type
            boundary = boundary_of(form, where=f"state {name}", refusal=InvalidOutput)
        limit_bytes = self._lane.partition.payload_limit_bytes
        check_unpacked("state", name, value, limit_bytes)
        packed = boundary.dump(value)
        check_packed("state", name, packed, limit_bytes)
        written = len(self._lane.queued) + len(self.writes)
        if (len(packed) > USUAL_BYTES or written >= STATE_NAMES_MAX) and not self.own.is_replaying:
            check_state(self._lane, self.writes, name, packed)
        self._write(name, packed)

    def clear(self, name: str) -> None:
        """Take a state value away."""
        self._check_writable("clear", name)
        self._write(name, None)

    def _write(self, name: str, packed: bytes | None) -> None:
        self.writes[name] = packed
        self._kept_back.discard(name)
        if self.release is not None and name in self.release.expected:
            self.release.expected[name] = packed

    def _check_writable(self, call: str, name: str) -> None:
        if self._is_closed:
            raise ContextClosed(call)
        if type(name) is not str:
            raise TypeError(f"ctx.{call}: the name of a state value is text, not {type(name).__name__}")
        if len(name) > SHORT_NAME or len(self.writes) >= STATE_NAMES_MAX:
            check_name("state", name)
            check_written(self.writes, name)

    def clear_all(self) -> None:
        """Take all state values away."""
        if self._is_closed:
            raise ContextClosed("clear_all")
        for name in self._names():
            self._write(name, None)

    async def state_keys(self) -> list[str]:
        """Return the names of the state values as this invocation sees them."""
        return self._names()

    def _names(self) -> list[str]:
        recorded = self._noted()
        if recorded is not None:
            return recorded
        present = dict.fromkeys(self._lane.queued, True)
        present.update({name: value is not None for name, value in self.writes.items()})
        names = sorted(name for name, is_present in present.items() if is_present)
        self._notes.append(codec.pack(names))
        return names

    async def time(self) -> datetime:
        """Return the time, the same at each replay."""
        recorded = self._noted()
        if recorded is not None:
            return recorded
        now = self._steps.now(self._lane.partition)
        self._notes.append(codec.pack(now))
        return now

    def _noted(self) -> Any:
        """Return what was noted at this place in the recorded run, or None past its end."""
        recorded = self._next_made()
        if recorded is None:
            return None
        notes = _notes_of(recorded)
        place = len(self._notes)
        if place >= len(notes):
            return None
        self._notes.append(notes[place])
        return codec.unpack(notes[place])

    def _next_made(self) -> Record | None:
        """Return the next record that the handler's own run has made: it carries what was read up to it."""
        if self.conductor is not None:
            return self.conductor.replay.head()
        return self._recorded[0] if self._recorded else None

    def random(self) -> random.Random:
        """Return the random numbers of this invocation, or of this branch of it, the same at each replay."""
        if self.conductor is not None and self.conductor.current is not self.conductor.main:
            return self.conductor.current.own_random(self._invocation.raw_id)
        if self._random is None:
            self._random = random.Random(self._invocation.raw_id)  # noqa: S311
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return a random UUID, the same at each replay."""
        return uuid.UUID(int=self.random().getrandbits(128), version=4)

    def patched(self, name: str) -> bool:
        """Return whether this invocation runs with a change of the code."""
        if self._is_closed:
            raise ContextClosed("patched")
        if self._patches is None:
            self._patches = {}
        # What is no text may have no hash, and is refused with words.
        answer = self._patches.get(name) if type(name) is str else None
        if answer is None:
            answer = self._patches[name] = has_patch(self._invocation, name, is_replaying=self.own.is_replaying)
        return answer

    def carried(self) -> tuple[dict[str, bytes | None], tuple[bytes, ...]]:
        """Return the reads and notes that the next record has to carry."""
        reads = compact(self._lane, self._reads)
        if reads is not self._reads:
            for stored in reads.values():
                note(self._invocation, stored or b"")
        return reads, tuple(self._notes)

    def pass_durable_point(self) -> None:
        """Forget the reads, notes and writes that the last record carries."""
        self._reads = {}
        self._notes = []
        self.writes = {}
        if self._kept_back:
            self._kept_back = set()

    def pass_kept_back(self) -> None:
        """Forget the reads and notes that a result carries which is kept back; the writes are kept back with it."""
        self._reads = {}
        self._notes = []
        self._kept_back = set(self.writes)


def _form_of(value: object) -> Any:
    """Return the type by which an undeclared value is written: its own, or plain data for what holds others."""
    return Any if isinstance(value, dict | list | tuple | set | frozenset) else type(value)


def _context_of(record: Record) -> Mapping[str, bytes | None]:
    if isinstance(record, Command) and not isinstance(record, Bare):
        return record.reads
    return {}


def _notes_of(record: Record) -> tuple[bytes, ...]:
    if isinstance(record, Command) and not isinstance(record, Bare):
        return record.notes
    return ()
