"""The Lua functions of the journal: one library, whose name and function names carry a hash of its text.

Function names are global in a server, so two versions of Keylane on one server keep apart by their hashes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .keyspace import SCHEMA_VERSION

#: Every file of `lua/` but the shared head, in the order in which they are loaded.
VERBS = (
    "commit",
    "due",
    "recall",
    "submit",
    "acquire",
    "renew",
    "release",
    "observe",
    "announce",
    "withdraw",
    "witness",
    "survey",
    "examine",
    "mend",
    "restored",
    "deliver",
)


#: Second names of functions that take in, by which the server runs them for what finishes also while memory is full.
FINISHING = {"commit": "finish", "submit": "insist"}


@dataclass(frozen=True, slots=True)
class Library:
    """The text to load and the names under which its functions are called."""

    name: str
    code: str
    prefix: str

    def function(self, verb: str) -> str:
        """Return the global name of a function."""
        return f"{self.prefix}{verb}"


def _text(name: str) -> str:
    return (files(__package__ or "keylane.journal") / "lua" / f"{name}.lua").read_text(encoding="utf-8")


def _chunk(verb: str) -> str:
    """Wrap a file in a block of its own, so that its local names stay its own."""
    return f"do\n{_text(verb)}\nend\n"


@cache
def library() -> Library:
    """Build the library from the files beside this module.

    Returns:
        The library; its hash covers every line that runs.
    """
    common = _text("common").replace("@SCHEMA@", SCHEMA_VERSION)
    body = "".join(_chunk(verb) for verb in VERBS)
    digest = hashlib.blake2b((common + body).encode(), digest_size=6).hexdigest()
    name, prefix = f"keylane_{digest}", f"keylane_{digest}_"
    register = (
        "local function register(verb, body, flags)\n"
        f"  redis.register_function{{function_name = '{prefix}' .. verb, callback = body, flags = flags or {{}}}}\n"
        "end\n"
    )
    return Library(name, f"#!lua name={name}\n{common}\n{register}{body}", prefix)
