"""A docket knows those of its effects that are not settled without looking at all of them."""

from __future__ import annotations

from keylane.journal.effects import EffectEntry, EffectState, Waiter
from keylane.journal.keyspace import PartitionSpace
from keylane.runtime.docket import Docket, KnownEffects


def an_effect(operation: str, state: EffectState) -> EffectEntry:
    return EffectEntry(
        operation=operation, effect="refund", receiver="payments", state=state, params=b"", digest=b"", attempt=1,
        invocation=b"", first_ms=1, intended_ms=1, send_before_ms=2, since_ms=1,
    )  # fmt: skip


def a_docket(*read: EffectEntry) -> Docket:
    effects = KnownEffects()
    for each in read:
        effects.note(each, each.encode())
    return Docket(PartitionSpace("test", "Order", 0), "acme/o-1", effects, {})


def test_what_is_not_settled_is_known_at_each_moment() -> None:
    """As it was read, and after each change: what blocks an effect, and what it blocks, is looked for there."""
    docket = a_docket(an_effect("done", EffectState.SUCCEEDED), an_effect("open", EffectState.UNKNOWN))
    assert list(docket.unsettled) == ["open"]

    docket.write_effect(an_effect("new", EffectState.INTENDED))
    assert list(docket.unsettled) == ["open", "new"]
    docket.write_effect(an_effect("open", EffectState.REJECTED))
    assert list(docket.unsettled) == ["new"]
    docket.forget_effect("new")
    assert not docket.unsettled
    assert list(docket.effects) == ["done", "open"]
    docket.forget_effect("done")
    assert list(docket.effects) == ["open"]


def test_settled_effects_are_given_as_they_are_and_kept_as_they_lie_in_the_store() -> None:
    """Who asks for one gets all of it; what is kept of thousands of them is bytes and their names."""
    done = an_effect("done", EffectState.SUCCEEDED).but(why="why", outcome=b"o", waiters=(Waiter(b"i", 1),))
    docket = a_docket(done, an_effect("open", EffectState.UNKNOWN))
    assert docket.effects.get("done") == done
    assert "done" in docket.effects
    assert docket.effects.get("never") is None
    assert (len(docket.effects), len(a_docket().effects)) == (2, 0)

    docket.write_effect(done.but(waiters=()))
    assert docket.effects["done"].waiters == ()
    # The one that was settled last is asked for at once, by its handler; of the others nothing but bytes is kept.
    assert docket.effects["done"] is docket.effects["done"]
    docket.write_effect(an_effect("open", EffectState.REJECTED))
    assert docket.effects["done"] is not docket.effects["done"]
    assert docket.effects["done"] == done.but(waiters=())
    docket.forget_effect("open")
    assert docket.effects.get("open") is None
