"""Where the systems around the order object are, from environment variables `REFUND_ORDER_*`."""

from decimal import Decimal
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class RefundSettings(BaseSettings):
    """The settings of a process that hosts the order object.

    Args:
        payments_url: The payment service.
        payment_timeout_s: How long one request to it may take before its outcome counts as unknown.
        orders_path: The SQLite file of the order store.
        policy_path: The SQLite file in which questions to the policy check are counted.
        policy_latency_ms: How long the policy check takes.
        policy_limit: Refunds above this amount are not allowed without a person.
    """

    model_config = SettingsConfigDict(env_prefix="REFUND_ORDER_", frozen=True)

    payments_url: str = "http://127.0.0.1:8080"
    payment_timeout_s: float = 5.0
    orders_path: Path = Path("orders.sqlite")
    policy_path: Path = Path("policy.sqlite")
    policy_latency_ms: int = 150
    policy_limit: Decimal = Decimal("400.00")
