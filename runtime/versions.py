"""Which version of a handler an invocation runs: the one that it was accepted under, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from ..journal.errors import InternalError
from ..objects.handler import Handler
from ..objects.types import boundary_of

if TYPE_CHECKING:
    from ..objects.virtual_object import VirtualObject


def why_no_version(virtual_object: VirtualObject, name: str, version: int) -> str:
    """Say what this code lacks for an invocation that was accepted under a version of a handler."""
    known = virtual_object.versions(name)
    if not known:
        return f"needs handler {name!r}, version {version}; this code has no handler of that name"
    return f"needs version {version} of handler {name!r}; this code has {', '.join(map(str, known))}"


def stand_in(virtual_object: VirtualObject, name: str, version: int) -> Handler[Any, Any]:
    """Return what stands for a handler that this code lacks: it has its name and never runs."""
    return Handler(
        object_name=virtual_object.name,
        name=name,
        version=version,
        function=_lacking,
        kind="exclusive",
        is_blocking=False,
        is_private=False,
        input=None,
        output=_ANY,
        retry=virtual_object.retry,
        idempotency_retention=virtual_object.idempotency_retention,
    )


_ANY: Final = boundary_of(Any, where="result")


def _lacking(*arguments: object) -> NoReturn:
    del arguments
    raise InternalError("a handler that this code lacks was run")
