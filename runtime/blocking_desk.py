"""What `BlockingClient` shows of effects, and how it settles them by hand: as `EffectDesk`, without await."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from typing_extensions import TypeForm

from ..journal.docket_reading import DOCKET_MAX
from ..journal.story_reading import STORY_ENTRIES
from .effect_desk import ALERTS_MAX, QUEUE_MAX

if TYPE_CHECKING:
    from datetime import timedelta

    from ..journal.effect_cases import Alert, EffectCase
    from ..journal.key import Key
    from ..journal.story import Story
    from ..objects.reconcile_verdicts import ReconcileVerdict
    from ..objects.virtual_object import VirtualObject
    from .client import Client
    from .handle import Timeout

Result = TypeVar("Result")
T = TypeVar("T")


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

    def effects(
        self, object_type: VirtualObject | str, key: Key | str, /, *, limit: int = DOCKET_MAX
    ) -> tuple[EffectCase, ...]:
        """Return the effects of one object; as `Client.effects`."""
        return self._run(lambda client: client.effects(object_type, key, limit=limit))

    def alerts(self, object_type: VirtualObject | str | None = None, *, limit: int = ALERTS_MAX) -> tuple[Alert, ...]:
        """Return what people have to hear of; as `Client.alerts`."""
        return self._run(lambda client: client.alerts(object_type, limit=limit))

    def explain(
        self, target: VirtualObject | str, key: Key | str | None = None, /, *, entries: int = STORY_ENTRIES
    ) -> Story:
        """Return the story of one object; as `Client.explain`."""
        return self._run(lambda client: client.explain(target, key, entries=entries))

    def reconcile_lookup(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have the receiver asked now what became of an effect; as `Client.reconcile_lookup`."""
        how = _How(by, reason, message_id, timeout)
        return self._run(lambda client: client.reconcile_lookup(object_type, key, operation_id, **how._asdict()))

    def reconcile_succeeded(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        receipt: T,
        /,
        type: TypeForm[T] | None = None,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Say that an effect was done, with its receipt; as `Client.reconcile_succeeded`."""
        how = _How(by, reason, message_id, timeout)
        target = (object_type, key, operation_id)
        return self._run(lambda client: client.reconcile_succeeded(*target, receipt, type, **how._asdict()))

    def reconcile_not_done(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Say that an effect was not done and will not be; as `Client.reconcile_not_done`."""
        how = _How(by, reason, message_id, timeout)
        return self._run(lambda client: client.reconcile_not_done(object_type, key, operation_id, **how._asdict()))

    def reconcile_resend(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        by: str,
        reason: str,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have the same operation id sent again; as `Client.reconcile_resend`."""
        how = _How(by, reason, message_id, timeout)
        return self._run(lambda client: client.reconcile_resend(object_type, key, operation_id, **how._asdict()))

    def reconcile_hand_over(
        self,
        object_type: VirtualObject | str,
        key: Key | str,
        operation_id: str,
        /,
        *,
        to: str,
        by: str,
        reason: str,
        within: timedelta | None = None,
        message_id: str | None = None,
        timeout: Timeout = None,
    ) -> ReconcileVerdict:
        """Have somebody else settle an effect; as `Client.reconcile_hand_over`."""
        how, target = _How(by, reason, message_id, timeout), (object_type, key, operation_id)
        return self._run(lambda client: client.reconcile_hand_over(*target, to=to, within=within, **how._asdict()))


class _How(NamedTuple):
    """What is said beside an act."""

    by: str
    reason: str
    message_id: str | None
    timeout: Timeout
