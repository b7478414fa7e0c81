# The part of stripe that the example uses, so that the types of the rest can be checked where it is not installed.
from collections.abc import Mapping
from typing import Generic, TypedDict, TypeVar

_T = TypeVar("_T")

class StripeError(Exception): ...
class APIConnectionError(StripeError): ...
class APIError(StripeError): ...
class AuthenticationError(StripeError): ...
class InvalidRequestError(StripeError): ...
class PermissionError(StripeError): ...  # noqa: A001
class RateLimitError(StripeError): ...

class StripeObject:
    def to_dict(self) -> dict[str, str]: ...

class Refund:
    id: str
    amount: int
    created: int
    status: str | None
    metadata: StripeObject | None

class PaymentIntent:
    id: str
    status: str

class PaymentMethod:
    id: str

class ListObject(Generic[_T]):
    data: list[_T]
    has_more: bool

class RefundCreateParams(TypedDict):
    payment_intent: str
    amount: int
    metadata: dict[str, str]

class RefundListParams(TypedDict):
    payment_intent: str
    limit: int

class RequestOptions(TypedDict):
    idempotency_key: str

class RefundService:
    async def create_async(self, params: RefundCreateParams, options: RequestOptions = ...) -> Refund: ...
    async def list_async(self, params: RefundListParams) -> ListObject[Refund]: ...

class PaymentIntentService:
    async def create_async(self, params: Mapping[str, object]) -> PaymentIntent: ...

class PaymentMethodService:
    async def create_async(self, params: Mapping[str, object]) -> PaymentMethod: ...

class V1Services:
    refunds: RefundService
    payment_intents: PaymentIntentService
    payment_methods: PaymentMethodService

class HTTPXClient:
    def __init__(self, timeout: float | None = 80) -> None: ...
    async def close_async(self) -> None: ...

class StripeClient:
    v1: V1Services
    def __init__(
        self,
        api_key: str,
        *,
        base_addresses: Mapping[str, str] = ...,
        http_client: HTTPXClient | None = None,
        max_network_retries: int | None = None,
    ) -> None: ...
