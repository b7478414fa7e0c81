"""The systems around the order object, built once for each process and found by its steps.

Handlers and steps are plain functions at module level, so what they need is found here instead of being
passed: `current()` builds it from the environment at first use, `use(...)` puts something else in its place
for the length of a `with` block, which is how tests and embedding programs do it.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Self

from .approvers import Approvers
from .mails import Mails
from .orders import OrderStore
from .payments.client import PaymentClient
from .policy import PolicyCheck, PolicyLog
from .settings import RefundSettings
from .stripe_refunds import StripeRefunds


@dataclass(frozen=True, slots=True)
class Services:
    """The systems that a refund needs."""

    orders: OrderStore
    approvers: Approvers
    policy: PolicyCheck
    mails: Mails
    cards: PaymentClient
    transfers: PaymentClient
    stripe: StripeRefunds

    @classmethod
    def from_settings(cls, settings: RefundSettings) -> Self:
        """Name the systems; nothing is opened before it is used."""
        return cls(
            orders=OrderStore(settings.files / "orders.sqlite"),
            approvers=Approvers(settings.files / "approvers.sqlite"),
            policy=PolicyCheck(
                PolicyLog(settings.files / "policy.sqlite"),
                latency_ms=settings.policy_latency_ms,
                approval_above=settings.approval_above,
                two_approvals_above=settings.two_approvals_above,
            ),
            mails=Mails(settings.files / "mails.sqlite"),
            cards=PaymentClient(settings.cards_url, timeout_s=settings.payment_timeout_s),
            transfers=PaymentClient(settings.transfers_url, timeout_s=settings.payment_timeout_s),
            stripe=StripeRefunds(
                settings.stripe_key, api_url=settings.stripe_url, timeout_s=settings.payment_timeout_s
            ),
        )


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


@asynccontextmanager
async def opened(settings: RefundSettings) -> AsyncGenerator[Services]:
    """Let `current()` return the services of these settings inside the block, and close their connections after it."""
    services = Services.from_settings(settings)
    async with services.cards, services.transfers, aclosing(services.stripe):
        with use(services):
            yield services
