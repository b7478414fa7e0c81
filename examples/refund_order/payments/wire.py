"""What travels between the payment service and its callers."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from .money import Amount


class Message(BaseModel):
    """The base of everything on the wire: unchangeable, and a field that nobody knows is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RefundTerms(Message):
    """What is to be paid back, to whom, for which order: the parameters that an operation id stands for."""

    order: str = Field(min_length=1)
    recipient: str = Field(min_length=1)
    amount: Amount


class Receipt(Message):
    """The money moved. The same operation id is answered with the same receipt."""

    outcome: Literal["succeeded"] = "succeeded"
    receipt: str
    operation_id: str
    terms: RefundTerms
    committed_at: AwareDatetime


class Rejection(Message):
    """A business "no": no money moved, and asking again with the same operation id gets the same answer."""

    outcome: Literal["rejected"] = "rejected"
    operation_id: str
    reason: Literal["order_unknown", "amount_above_limit", "refused"]
    message: str


Answer = Annotated[Receipt | Rejection, Field(discriminator="outcome")]
ANSWER: TypeAdapter[Receipt | Rejection] = TypeAdapter(Answer)


class Problem(Message):
    """Why a request was not taken: nothing was decided about any refund."""

    error: Literal["key_missing", "key_too_long", "body_invalid", "key_reused", "not_found", "no_lookup", "busy"]
    message: str
    fields: tuple[str, ...] = ()


class LedgerEntry(Message):
    """One movement of money, as the ledger has it."""

    receipt: str
    operation_id: str
    terms: RefundTerms
    committed_at: AwareDatetime


class LedgerPage(Message):
    """The whole ledger in the order in which it was written."""

    entries: tuple[LedgerEntry, ...]


class Behaviour(Message):
    """The switches: what the service promises, and how slow, unwilling and unreliable it is from now on.

    Args:
        deduplicates: Whether an operation id moves money once. If not, each request with it does.
        dedup_retention_ms: For how long it knows an operation id; None for what its process was started with, which
            it can't exceed.
        can_look_up: Whether it can be asked what became of an operation id.
        lookup_lag_ms: How long after it was decided an operation is found.
        lookup_retention_ms: For how long it is found; None for ever.
        latency_ms: Time between taking a request and committing it.
        latency_spread_ms: Up to this much more, different for each arrival.
        answer_delay_ms: Time between committing and answering.
        hold: Requests stop at this point until the switches are set again.
        unknown_orders: Orders that are rejected as unknown.
        reject_above: Amounts above it are rejected.
        refuse: Everything that is new is rejected.
        busy_next: So many of the next requests are asked to come back later, with nothing decided.
        lose_next: So many of the next requests are lost before their commit: a closed connection, no money moved.
        drop_next: So many of the next commits are followed by a closed connection and no answer.
        drop_probability: The share of further commits that are followed by a closed connection.
        seed: Decides, with operation id and arrival, which ones; the order of arrival of others does not.
    """

    deduplicates: bool = True
    dedup_retention_ms: int | None = Field(default=None, ge=0)
    can_look_up: bool = True
    lookup_lag_ms: int = Field(default=0, ge=0)
    lookup_retention_ms: int | None = Field(default=None, ge=0)
    latency_ms: int = Field(default=0, ge=0)
    latency_spread_ms: int = Field(default=0, ge=0)
    answer_delay_ms: int = Field(default=0, ge=0)
    hold: Literal["nowhere", "before_commit", "before_answer"] = "nowhere"
    unknown_orders: frozenset[str] = frozenset()
    reject_above: Decimal | None = None
    refuse: bool = False
    busy_next: int = Field(default=0, ge=0)
    lose_next: int = Field(default=0, ge=0)
    drop_next: int = Field(default=0, ge=0)
    drop_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int = 0


class Statistics(Message):
    """What happened to the requests since this process of the service began.

    Args:
        requests: Refunds that were asked for, also again.
        sent_again: Those whose operation id had come before.
        replayed: Those that were answered with what an earlier one had got.
        rejected: Those that were answered with a rejection.
        busy: Those that were asked to come back later.
        lost: Those that were lost before their commit.
        dropped: Those that were committed and got no answer.
        held: Those that have stopped at the point that `hold` names.
        key_reused: Those that were refused because their operation id stands for other terms.
        lookups: How often it was asked what became of an operation id.
    """

    requests: int = 0
    sent_again: int = 0
    replayed: int = 0
    rejected: int = 0
    busy: int = 0
    lost: int = 0
    dropped: int = 0
    held: int = 0
    key_reused: int = 0
    lookups: int = 0
