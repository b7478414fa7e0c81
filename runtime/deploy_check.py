"""Whether code may be deployed: every open journal is rehearsed against it, and what would not go on is told of."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ..journal.noted import moment
from .rehearsal import Fit, Rehearsal, Rehearsed

if TYPE_CHECKING:
    from ..journal.exported import Journal
    from .effects_check import UnfitEffect

#: So many invocations are named of all that one thing breaks.
NAMED: Final = 5
_KEY_BYTES: Final = 8


class Cause(NamedTuple):
    """What breaks journals: one line of one handler, say, for thousands of them."""

    type_name: str
    handler: str
    version: int
    fit: Fit
    recorded: str
    attempted: str
    line: str
    detail: str


@dataclass(slots=True)
class Breaking:
    """All journals that break for one cause.

    Args:
        cause: Why.
        invocations: How many there are.
        oldest: When the first of them was accepted.
        named: The ids of some of them.
    """

    cause: Cause
    invocations: int = 0
    oldest: datetime | None = None
    named: list[str] = field(default_factory=list[str])
    _keys: set[bytes] = field(default_factory=set[bytes])

    @property
    def keys(self) -> int:
        """How many objects they belong to."""
        return len(self._keys)

    def note(self, rehearsed: Rehearsed) -> None:
        """Count one more."""
        journal = rehearsed.journal
        self.invocations += 1
        self._keys.add(blake2b(journal.key.encode(errors="surrogatepass"), digest_size=_KEY_BYTES).digest())
        if journal.begun_ms and (self.oldest is None or moment(journal.begun_ms) < self.oldest):
            self.oldest = moment(journal.begun_ms)
        if len(self.named) < NAMED:
            self.named.append(journal.id)


@dataclass(slots=True)
class Verdict:
    """What a check has found.

    Args:
        journals: How many journals were rehearsed.
        is_whole: Whether these were all that there are.
        versions: How many open invocations need each version of each handler: type, handler, version.
        old_ways: How many open invocations go on without each change of code that they were asked for.
        effects: The effects that are not settled and that the code can neither send nor look up.
        partitions: The types that the code declares with another number of partitions than the namespace has: that
            number and the code's. Their workers would be refused.
    """

    journals: int = 0
    is_whole: bool = True
    versions: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    old_ways: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    effects: list[UnfitEffect] = field(default_factory=list["UnfitEffect"])
    partitions: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    _breaking: dict[Cause, Breaking] = field(default_factory=dict[Cause, Breaking])

    @property
    def breaking(self) -> list[Breaking]:
        """What breaks, that which breaks most first."""
        return sorted(self._breaking.values(), key=lambda each: -each.invocations)

    @property
    def may_deploy(self) -> bool:
        """Whether workers start with this code, and everything that is open goes on with it."""
        return not self._breaking and not self.effects and not self.partitions

    def note(self, rehearsed: Rehearsed) -> None:
        """Take one result in."""
        self.journals += 1
        type_name = rehearsed.journal.type_name
        self.versions[type_name, rehearsed.handler, rehearsed.version] += 1
        for name, is_new in rehearsed.ways.items():
            if not is_new:
                self.old_ways[type_name, rehearsed.handler, name] += 1
        if rehearsed.is_breaking:
            cause = _cause_of(rehearsed)
            self._breaking.setdefault(cause, Breaking(cause)).note(rehearsed)


def _cause_of(rehearsed: Rehearsed) -> Cause:
    return Cause(
        rehearsed.journal.type_name,
        rehearsed.handler,
        rehearsed.version,
        rehearsed.fit,
        rehearsed.recorded,
        rehearsed.attempted,
        rehearsed.line,
        rehearsed.detail,
    )


async def check(rehearsal: Rehearsal, journals: AsyncIterable[Journal], *, limit: int | None = None) -> Verdict:
    """Rehearse journals one after the other.

    Args:
        rehearsal: Runs the code.
        journals: The journals.
        limit: After so many the check stops, and says that it has not seen all.

    Raises:
        StoreUnavailable: The store that the journals are read from is away.
    """
    verdict = Verdict()
    async for journal in journals:
        if limit is not None and verdict.journals >= limit:
            verdict.is_whole = False
            break
        verdict.note(await rehearsal.of(journal))
    return verdict


def as_facts(verdict: Verdict) -> Mapping[str, object]:
    """Return a verdict as JSON can carry it. Its form is stable; a field is only ever added."""
    return {
        "form": 1,
        "may_deploy": verdict.may_deploy,
        "journals": verdict.journals,
        "is_whole": verdict.is_whole,
        "breaking": [
            {
                "type": each.cause.type_name,
                "handler": each.cause.handler,
                "version": each.cause.version,
                "fit": each.cause.fit.value,
                "recorded": each.cause.recorded,
                "attempted": each.cause.attempted,
                "line": each.cause.line,
                "detail": each.cause.detail,
                "invocations": each.invocations,
                "keys": each.keys,
                "oldest": None if each.oldest is None else each.oldest.isoformat(),
                "named": list(each.named),
            }
            for each in verdict.breaking
        ],
        "effects": [asdict(each) for each in verdict.effects],
        "partitions": [
            {"type": type_name, "namespace": found, "code": declared}
            for type_name, (found, declared) in sorted(verdict.partitions.items())
        ],
        "versions": [
            {"type": type_name, "handler": handler, "version": version, "invocations": count}
            for (type_name, handler, version), count in sorted(verdict.versions.items())
        ],
        "old_ways": [
            {"type": type_name, "handler": handler, "patch": name, "invocations": count}
            for (type_name, handler, name), count in sorted(verdict.old_ways.items())
        ],
    }
