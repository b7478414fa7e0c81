"""Refunds by Stripe: the real client, and what its answers mean.

Install it with `pip install 'keylane[stripe]'`. It is imported when the first refund is sent, so that who refunds in
other ways need not have it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx

from keylane import NotSent, Rejected

from .models import Receipt, RefundTerms
from .payments.money import from_minor, to_minor

if TYPE_CHECKING:
    import stripe

#: Refunds of one payment that are looked through; Stripe gives out no more at a time.
REFUNDS_MAX = 100
METADATA_NAME = "operation_id"


class StripeRefunds:
    """Sends refunds to Stripe and looks for them there.

    Args:
        api_key: The secret key.
        api_url: Where the API is; empty for Stripe's own.
        timeout_s: How long one request may take.
    """

    def __init__(self, api_key: str, *, api_url: str = "", timeout_s: float = 8.0) -> None:
        self._api_key = api_key
        self._api_url = api_url
        self._timeout_s = timeout_s
        self._http: stripe.HTTPXClient | None = None
        self._client: stripe.StripeClient | None = None

    async def aclose(self) -> None:
        """Close the connections, where there are any."""
        if self._http is not None:
            await self._http.close_async()

    async def refund(self, operation_id: str, terms: RefundTerms) -> Receipt:
        """Refund a part of a payment.

        Raises:
            Rejected: Stripe will not do it.
            NotSent: Nothing has left, or Stripe has not looked at it.
            stripe.StripeError: Nobody knows.
        """
        import stripe  # noqa: PLC0415 - see the head of this module

        try:
            made = await self._open().v1.refunds.create_async(
                {
                    "payment_intent": terms.payment,
                    "amount": to_minor(terms.amount),
                    "metadata": {METADATA_NAME: operation_id},
                },
                {"idempotency_key": operation_id},
            )
        except (stripe.RateLimitError, stripe.AuthenticationError, stripe.PermissionError) as error:
            raise NotSent(str(error)) from error
        except stripe.InvalidRequestError as error:
            raise Rejected(str(error)) from error
        except stripe.APIConnectionError as error:
            if isinstance(error.__cause__, httpx.ConnectError):
                raise NotSent(str(error)) from error
            raise
        return _receipt(made, operation_id)

    async def find(self, operation_id: str, terms: RefundTerms) -> Receipt | None:
        """Return the refund of this payment that was made under an operation id; None where there is none.

        Raises:
            Rejected: There was one, and it has failed.
            LookupError: The payment has more refunds than can be looked through.
        """
        found = await self._open().v1.refunds.list_async({"payment_intent": terms.payment, "limit": REFUNDS_MAX})
        for each in found.data:
            if each.metadata is not None and each.metadata.to_dict().get(METADATA_NAME) == operation_id:
                return _receipt(each, operation_id)
        if found.has_more:
            raise LookupError(f"payment {terms.payment} has more than {REFUNDS_MAX} refunds")
        return None

    def _open(self) -> stripe.StripeClient:
        if self._client is None:
            import stripe  # noqa: PLC0415 - see the head of this module

            self._http = stripe.HTTPXClient(timeout=self._timeout_s)
            # No retries of its own: whether a request may be sent again is decided where its outcome is recorded.
            self._client = stripe.StripeClient(
                self._api_key,
                base_addresses={"api": self._api_url} if self._api_url else {},
                http_client=self._http,
                max_network_retries=0,
            )
        return self._client


def _receipt(made: stripe.Refund, operation_id: str) -> Receipt:
    if made.status in ("failed", "canceled"):
        raise Rejected(f"Stripe says that refund {made.id} is {made.status}")
    return Receipt(
        number=made.id,
        operation_id=operation_id,
        amount=from_minor(made.amount),
        at=datetime.fromtimestamp(made.created, tz=UTC),
    )
