"""Which version of a handler an invocation runs: the one that it was accepted under, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..objects.virtual_object import VirtualObject


def why_no_version(virtual_object: VirtualObject, name: str, version: int) -> str:
    """Say what this code lacks for an invocation that was accepted under a version of a handler."""
    known = virtual_object.versions(name)
    if not known:
        return f"needs handler {name!r}, version {version}; this code has no handler of that name"
    return f"needs version {version} of handler {name!r}; this code has {', '.join(map(str, known))}"
