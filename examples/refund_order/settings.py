"""Where the systems around the order object are, from environment variables `REFUND_ORDER_*`."""

from decimal import Decimal
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class RefundSettings(BaseSettings):
    """The settings of a process that hosts the order object.

    Args:
        cards_url: The card service.
        transfers_url: The bank's service for transfers.
        stripe_url: Stripe's API; empty for Stripe's own.
        stripe_key: The secret key for it.
        payment_timeout_s: How long one request to a payment service may take before its outcome counts as unknown.
        files: The folder of the SQLite files: orders, approvers, mails, and questions to the policy check.
        policy_latency_ms: How long the policy check takes.
        approval_above: Refunds above this amount have to be approved.
        two_approvals_above: Those above this one by two people.
        store: The store's URL; without it, that of `KEYLANE_REDIS_URL`, else an embedded store.
        namespace: The deployment's prefix in the store.
        hosts_orders: Whether the web process carries refunds out itself, or leaves that to workers.
    """

    model_config = SettingsConfigDict(env_prefix="REFUND_ORDER_", frozen=True)

    cards_url: str = "http://127.0.0.1:8080"
    transfers_url: str = "http://127.0.0.1:8081"
    stripe_url: str = ""
    stripe_key: str = ""
    payment_timeout_s: float = 5.0
    files: Path = Path()
    policy_latency_ms: int = 150
    approval_above: Decimal = Decimal("100.00")
    two_approvals_above: Decimal = Decimal("1000.00")
    store: str | None = None
    namespace: str = "keylane"
    hosts_orders: bool = True
