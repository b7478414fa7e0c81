"""How a parked invocation goes on: from where it stands, or again from an earlier command."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..journal.model_calls import NOTHING_SPENT, spending_of
from ..journal.records import PatchMarked, Record, Restarted, Resumed
from ..journal.requests import RestartOrder, ResumeOrder
from ..journal.restarting import dropped, kept, what_counts
from .context import commands_of
from .versions import why_no_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..journal.model_calls import ModelSpending
    from .invocation import Invocation

Order: TypeAlias = ResumeOrder | RestartOrder


def why_it_can_not(invocation: Invocation, order: Order) -> str | None:
    """Return why a parked invocation can't go on as it is asked for, None when it can."""
    virtual_object, standing = invocation.lane.partition.virtual_object, invocation.standing
    version = order.version if isinstance(order, RestartOrder) else None
    if version is None and invocation.needs is not None:
        return f"it {invocation.needs}: deploy it again, or restart it with another version"
    if not isinstance(order, RestartOrder) or standing is None:
        return None
    name = invocation.handler.name
    if version is not None and virtual_object.version_of(name, version) is None:
        return f"it {why_no_version(virtual_object, name, version)}"
    if order.kept > standing.steps:
        return f"it has {standing.steps} commands that are done, so {order.kept} can't be kept"
    if standing.extras.compensation is not None:
        return "what it did is being undone, so there is nothing to begin again"
    return None


def recall(invocation: Invocation, records: Sequence[Record]) -> None:
    """Have in memory what the records of an invocation say for its next run."""
    invocation.records = commands_of(records)
    invocation.patches = frozenset(each.name for each in records if isinstance(each, PatchMarked))
    invocation.unmarked = ()
    invocation.restarts = sum(isinstance(each, Restarted) for each in records)
    invocation.spent_before = _spent_in_vain(records) if invocation.restarts else NOTHING_SPENT


def _spent_in_vain(records: Sequence[Record]) -> ModelSpending:
    """Return what model calls took whose commands do not count any more."""
    staying = set(map(id, what_counts(records)))
    return spending_of(each for each in records if id(each) not in staying)


def go_on(invocation: Invocation, order: Order) -> Resumed | Restarted:
    """Return the record with which an invocation goes on, and have what is in memory of it agree with that."""
    if isinstance(order, ResumeOrder):
        return Resumed(order.by, order.reason)
    if order.version is not None:
        find = invocation.lane.partition.virtual_object.find
        invocation.handler, invocation.needs = find(invocation.handler.name, order.version), None
    if invocation.mail is not None:
        invocation.mail.drop(dropped(invocation.records, order.kept))
    invocation.spent_before += spending_of(dropped(invocation.records, order.kept))
    invocation.records = kept(invocation.records, order.kept)
    invocation.restarts += 1
    invocation.dues = None
    return Restarted(order.kept, order.by, order.reason, order.version)
