"""The engine with one safeguard taken out, to show that a test would notice it: only tests can ask for that."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from enum import StrEnum
from typing import Any, Final

from keylane.journal import store
from keylane.journal.batch import CommitDone, Operation
from keylane.journal.library import Library, library
from keylane.journal.operations import Delta
from keylane.runtime.lane import Lane

#: Names the mutant that a child becomes.
VARIABLE: Final = "KEYLANE_TEST_MUTANT"

FENCE: Final = "if held[1] ~= argv[1] or held[2] ~= argv[2] then"
REPEAT: Final = "if number <= last then"
GAP: Final = "if number > last + 1 or held[7] ~= argv[5] then"


class Mutant(StrEnum):
    """What is missing."""

    NONE = "nothing"
    FENCE = "fence"  # the function does not compare epoch and token
    NUMBER = "batch number"  # nor the number of a batch, and what it is built on
    GATE = "output gate"  # answers do not wait for their commit


def become(mutant: Mutant) -> None:
    """Take a safeguard out of this process, for good."""
    match mutant:
        case Mutant.NONE:
            pass
        case Mutant.FENCE:
            store.library = lambda: without(FENCE)
        case Mutant.NUMBER:
            store.library = lambda: without(REPEAT, GAP)
        case Mutant.GATE:
            Lane.commit = answer_at_once


def become_what_is_asked_for() -> None:
    """Take out of this process what its environment says."""
    become(Mutant(os.environ.get(VARIABLE, Mutant.NONE)))


def without(*conditions: str) -> Library:
    """Return the library with conditions that never hold."""
    return changed(*((condition, "if false then") for condition in conditions))


def changed(*replacements: tuple[str, str]) -> Library:
    """Return the library with other words in some places, under a name that no other one has."""
    whole = library()
    code = whole.code
    for old, new in replacements:
        assert old in code
        code = code.replace(old, new)
    digest = hashlib.blake2b(code.encode(), digest_size=6).hexdigest()
    weak = f"keylane_{digest}"
    return dataclasses.replace(whole, name=weak, prefix=f"{weak}_", code=code.replace(whole.name, weak))


_commit = Lane.commit


def answer_at_once(
    self: Lane,
    writes: list[Operation],
    delta: Delta | None = None,
    done: CommitDone | None = None,
    **more: Any,
) -> None:
    """Queue a commit, and tell whoever waits for it that it is durable."""
    _commit(self, writes, delta, **more)
    if done is not None:
        done(0, None)
