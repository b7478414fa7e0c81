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
    reason: Literal["order_unknown", "amount_above_limit"]
    message: str


Answer = Annotated[Receipt | Rejection, Field(discriminator="outcome")]
ANSWER: TypeAdapter[Receipt | Rejection] = TypeAdapter(Answer)


class Problem(Message):
    """Why a request was not taken: nothing was decided about any refund."""

    error: Literal["key_missing", "key_too_long", "body_invalid", "key_reused", "not_found"]
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
    """The switches: how slow, how unwilling and how unreliable the service is from now on.

    Args:
        latency_ms: Time between taking a request and committing it.
        latency_spread_ms: Up to this much more, different for each arrival.
        answer_delay_ms: Time between committing and answering.
        unknown_orders: Orders that are rejected as unknown.
        reject_above: Amounts above it are rejected.
        drop_next: So many of the next commits are followed by a closed connection and no answer.
        drop_probability: The share of further commits that are followed by a closed connection.
        seed: Decides, with operation id and arrival, which ones; the order of arrival of others does not.
    """

    latency_ms: int = Field(default=0, ge=0)
    latency_spread_ms: int = Field(default=0, ge=0)
    answer_delay_ms: int = Field(default=0, ge=0)
    unknown_orders: frozenset[str] = frozenset()
    reject_above: Decimal | None = None
    drop_next: int = Field(default=0, ge=0)
    drop_probability: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int = 0


class Statistics(Message):
    """What happened to the requests since this process of the service began."""

    requests: int = 0
    sent_again: int = 0
    replayed: int = 0
    rejected: int = 0
    dropped: int = 0
    key_reused: int = 0
