"""The systems around the order object, built once for each process and found by its steps.

Handlers and steps are plain functions at module level, so what they need is found here instead of being
passed: `current()` builds it from the environment at first use, `use(...)` puts something else in its place
for the length of a `with` block, which is how tests and embedding programs do it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from .orders import OrderStore
from .payments.client import PaymentClient
from .policy import PolicyCheck, PolicyLog
from .settings import RefundSettings


@dataclass(frozen=True, slots=True)
class Services:
    """The three systems that a refund needs."""

    orders: OrderStore
    policy: PolicyCheck
    payments: PaymentClient

    @classmethod
    def from_settings(cls, settings: RefundSettings) -> Self:
        """Name the systems; nothing is opened before it is used."""
        policy = PolicyCheck(
            PolicyLog(settings.policy_path),
            latency_ms=settings.policy_latency_ms,
            decided_by_people_above=settings.policy_limit,
        )
        payments = PaymentClient(settings.payments_url, timeout_s=settings.payment_timeout_s)
        return cls(OrderStore(settings.orders_path), policy, payments)


_in_use: list[Services] = []


def current() -> Services:
    """Return the services of this process."""
    if not _in_use:
        _in_use.append(Services.from_settings(RefundSettings()))
    return _in_use[-1]


@contextmanager
def use(services: Services) -> Generator[None]:
    """Let `current()` return these services inside the block."""
    _in_use.append(services)
    try:
        yield
    finally:
        _in_use.remove(services)
