"""What `BlockingClient` shows of effects, and how it settles them by hand: as `EffectDesk`, without await."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..journal.story_reading import STORY_ENTRIES
from .effect_desk import ALERTS_MAX, QUEUE_MAX

if TYPE_CHECKING:
    from ..journal.effect_cases import Alert, EffectCase
    from ..journal.key import Key
    from ..journal.story import Story
    from ..objects.virtual_object import VirtualObject
    from .client import Client

Result = TypeVar("Result")


class BlockingDesk:
    """The part of `BlockingClient` that is about effects."""

    @abstractmethod
    def _run(self, ask: Callable[[Client], Coroutine[Any, Any, Result]]) -> Result: ...

    def reconcile_list(
        self, object_type: VirtualObject | str | None = None, *, receiver: str | None = None, limit: int = QUEUE_MAX
    ) -> tuple[EffectCase, ...]:
        """Return the effects that people have to settle; as `Client.reconcile_list`."""
        return self._run(lambda client: client.reconcile_list(object_type, receiver=receiver, limit=limit))

    def reconcile_show(self, object_type: VirtualObject | str, key: Key | str, operation_id: str, /) -> EffectCase:
        """Return all that is known of one effect; as `Client.reconcile_show`."""
        return self._run(lambda client: client.reconcile_show(object_type, key, operation_id))

    def effects(self, object_type: VirtualObject | str, key: Key | str, /) -> tuple[EffectCase, ...]:
        """Return all effects of one object; as `Client.effects`."""
        return self._run(lambda client: client.effects(object_type, key))

    def alerts(self, object_type: VirtualObject | str | None = None, *, limit: int = ALERTS_MAX) -> tuple[Alert, ...]:
        """Return what people have to hear of; as `Client.alerts`."""
        return self._run(lambda client: client.alerts(object_type, limit=limit))

    def explain(
        self, target: VirtualObject | str, key: Key | str | None = None, /, *, entries: int = STORY_ENTRIES
    ) -> Story:
        """Return the story of one object; as `Client.explain`."""
        return self._run(lambda client: client.explain(target, key, entries=entries))
