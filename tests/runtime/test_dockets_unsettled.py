"""A docket knows those of its effects that are not settled without looking at all of them."""

from __future__ import annotations

from keylane.journal.effects import EffectEntry, EffectState
from keylane.journal.keyspace import PartitionSpace
from keylane.runtime.docket import Docket


def an_effect(operation: str, state: EffectState) -> EffectEntry:
    return EffectEntry(
        operation=operation, effect="refund", receiver="payments", state=state, params=b"", digest=b"", attempt=1,
        invocation=b"", first_ms=1, intended_ms=1, send_before_ms=2, since_ms=1,
    )  # fmt: skip


def test_what_is_not_settled_is_known_at_each_moment() -> None:
    """As it was read, and after each change: what blocks an effect, and what it blocks, is looked for there."""
    read = [an_effect("done", EffectState.SUCCEEDED), an_effect("open", EffectState.UNKNOWN)]
    docket = Docket(PartitionSpace("test", "Order", 0), "acme/o-1", {each.operation: each for each in read}, {})
    assert list(docket.unsettled) == ["open"]

    docket.write_effect(an_effect("new", EffectState.INTENDED))
    assert list(docket.unsettled) == ["open", "new"]
    docket.write_effect(an_effect("open", EffectState.REJECTED))
    assert list(docket.unsettled) == ["new"]
    docket.forget_effect("new")
    assert not docket.unsettled
    assert list(docket.effects) == ["done", "open"]
