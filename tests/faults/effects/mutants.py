"""The engine with one safeguard of effects taken out, to show that the grid would notice it."""

from __future__ import annotations

import os
import secrets
from enum import StrEnum
from functools import partial
from typing import Any

from keylane import Approval
from keylane.journal import store
from keylane.journal.batch import Operation
from keylane.journal.effects import EffectOutcome
from keylane.journal.outcomes import Succeeded
from keylane.objects import recovery
from keylane.objects.receivers import Effect
from keylane.objects.recovery import Contract, Question
from keylane.runtime import settling
from keylane.runtime.approval_checks import ApprovalChecks
from keylane.runtime.context import ExclusiveContext
from keylane.runtime.effect_calls import Answer, EffectCalls, MaySend, Work
from keylane.runtime.effect_inquiries import EffectInquiries
from keylane.runtime.effect_wishes import Wish
from keylane.runtime.invocation import Invocation
from keylane.runtime.lane import Lane
from keylane.runtime.partition import Partition
from keylane.runtime.settling import Settling
from tests.faults.mutants import FENCE, GAP, REPEAT, VARIABLE, without


class Safeguard(StrEnum):
    """What is missing."""

    NONE = ""
    INTENT = "intent"  # the call does not wait until its intent is durable
    SAME_ID = "same id"  # each attempt has an id of its own
    FENCE = "fence"  # the store takes what an owner writes whose tenure has ended
    LEASE = "lease"  # nobody looks at the lease, and at `send_before`, as the last thing before the call
    WAITING = "waiting"  # absence counts at once
    QUALIFIED = "qualified"  # the receiver sees the handler's own operation id
    KNOWN = "known"  # what is to be undone counts as done while nobody knows
    USED_UP = "used up"  # an approval is not used up with the intent that it allows


def lose(safeguard: Safeguard) -> None:
    """Take a safeguard out of this process, for good."""
    match safeguard:
        case Safeguard.NONE:
            pass
        case Safeguard.INTENT:
            Settling.begin = call_at_once
        case Safeguard.SAME_ID:
            EffectCalls.call = call_by_another_id
        case Safeguard.FENCE:
            store.library = lambda: without(FENCE, REPEAT, GAP)
        case Safeguard.LEASE:
            settling.why_not = nothing_against_it
        case Safeguard.WAITING:
            recovery._counts_from = from_the_beginning
        case Safeguard.QUALIFIED:
            settling.id_for_receiver = as_the_handler_wrote_it
        case Safeguard.KNOWN:
            EffectInquiries.what_became = taken_for_done
        case Safeguard.USED_UP:
            ApprovalChecks.consume = let_it_count_again


def lose_what_is_asked_for() -> None:
    """Take out of this process what its environment says."""
    lose(Safeguard(os.environ.get(VARIABLE, "")))


def call_at_once(self: Settling, lane: Lane, operation: str, attempt: int) -> None:
    """Have an effect called, whatever becomes of its intent."""
    partition = lane.partition
    self.calls.hold(partition, lane.key_text, operation)
    partition.calling += 1
    self.calls.give(Work(partition, lane.key_text, operation, partial(self.call_given, attempt)))


_call = EffectCalls.call


async def call_by_another_id(
    self: EffectCalls, effect: Effect[Any, Any], operation_id: str, params: bytes, may_send: MaySend
) -> Answer:
    """Call the function of an effect with an id that no attempt before had."""
    return await _call(self, effect, f"{operation_id}.{secrets.token_hex(4)}", params, may_send)


def nothing_against_it(partition: Partition, send_before_ms: int) -> str | None:
    """Let the first byte leave."""
    del partition, send_before_ms
    return None


def from_the_beginning(contract: Contract, question: Question) -> int:
    """Say that absence counts since ever."""
    del contract, question
    return 0


def as_the_handler_wrote_it(partition: Partition, key_text: str, effect: Effect[Any, Any], operation: str) -> str:
    """Return the operation id without type, tenant and key."""
    del partition, key_text, effect
    return operation


async def taken_for_done(
    self: EffectInquiries, ctx: ExclusiveContext, lane: Lane, invocation: Invocation, wish: Wish
) -> EffectOutcome | None:
    """Say that an effect was done which a handler has asked for."""
    del self, ctx, lane, invocation, wish
    return Succeeded(b"")


def let_it_count_again(
    self: ApprovalChecks, lane: Lane, approval: Approval, effect: Effect[Any, Any], operation: str, params: bytes
) -> list[Operation]:
    """Write nothing."""
    del self, lane, approval, effect, operation, params
    return []
