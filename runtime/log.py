"""`ctx.log`: a logger that says which invocation speaks and keeps silent during replay."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..journal.key import Key

logger = logging.getLogger("keylane.handler")


class InvocationLog(logging.LoggerAdapter[logging.Logger]):
    """Adds type, key, invocation and attempt to each record.

    Args:
        type_name: The object type.
        key: The object.
        invocation_id: The invocation.
        attempt: Which attempt of the handler speaks, from 1.
        is_heard: Whether records are passed on now.
    """

    def __init__(
        self, type_name: str, key: Key, invocation_id: str, attempt: int, is_heard: Callable[[], bool]
    ) -> None:
        facts = {"object_type": type_name, "key": str(key), "invocation": invocation_id, "attempt": attempt}
        super().__init__(logger, facts)
        self._is_heard = is_heard

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802, the name is the standard library's
        """Return whether a record of this level would be passed on."""
        return self._is_heard() and self.logger.isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the facts, beside those that the call brings."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
