"""Effects as people are shown them who have to settle one: what is known, what was tried, and what may be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .effects import EffectState
from .ledger import Happened


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCase:
    """One effect of an object.

    Attributes:
        object_name: The object type.
        key: The object.
        operation_id: The operation id, as its handler wrote it.
        sent_as: The operation id that the receiver sees.
        effect: Name of the effect.
        receiver: Name of the receiver.
        state: Where it stands.
        read_at: The partition's time when this was read.
        since: Since when it stands there.
        why: What is known, in words.
        owner: Who has to settle it, or is responsible for its receiver.
        deadline: Until when a person has to settle it; None while it does not lie with people.
        is_overdue: Whether that time has passed.
        params: The parameters, decoded; None where they can't be.
        params_text: The parameters in one line.
        attempts: How many intents there were.
        lookups: How many times the receiver was asked since the outcome is unknown.
        approval: The action and version of the approval that it has used up, as `refund.3`.
        receipt_text: The receipt or the refusal in one line, once it is settled.
        tried: What has happened to it, oldest first.
        last_answer: What the receiver has said last, as far as that is recorded.
        waiting: Ids of the invocations that wait for the outcome.
        allowed: What a person may do about it now.
        forbidden: What a person may not do, and why.
        runbook: What the receiver's owner wants that person to know.
    """

    object_name: str
    key: str
    operation_id: str
    sent_as: str
    effect: str
    receiver: str
    state: EffectState
    read_at: datetime
    since: datetime
    why: str
    owner: str
    deadline: datetime | None = None
    is_overdue: bool = False
    params: Any = None
    params_text: str = ""
    attempts: int = 0
    lookups: int = 0
    approval: str = ""
    receipt_text: str = ""
    tried: tuple[Happened, ...] = ()
    last_answer: str = ""
    waiting: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person has to hear of; raised once.

    Attributes:
        object_name: The object type.
        key: The object.
        subject: The operation id of an effect; the action and version of a proposal, as `refund.3`.
        kind: What it is about: `overdue`, of an effect; for a proposal what the ledger calls it.
        owner: Who is responsible.
        detail: What there is to know.
        at: When it was raised, by the partition's time.
        receiver: The receiver of an effect; empty for a proposal.
        partition: The number of the partition.
        cursor: Its place among the alerts of its partition.
    """

    object_name: str
    key: str
    subject: str
    kind: str
    owner: str
    detail: str
    at: datetime
    receiver: str
    partition: int
    cursor: str
