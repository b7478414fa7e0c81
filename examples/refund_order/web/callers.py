"""Who asks: put your own authentication here.

The header `X-User: ada@acme` is believed, which is right behind a gateway that sets it, and nowhere else.
"""

from dataclasses import dataclass

from starlette.requests import Request

from keylane import Key

from .problems import Problem


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody of a tenant.

    Args:
        name: Who, as it is written down: `ada@acme`.
        tenant: Whose orders they see.
    """

    name: str
    tenant: str


def caller_of(request: Request) -> Caller:
    """Return who asks.

    Raises:
        Problem: Nobody knows.
    """
    name = request.headers.get("X-User", "")
    person, _, tenant = name.rpartition("@")
    if not person or not tenant or "/" in tenant:
        raise Problem(401, "unauthenticated", "say who asks, as in X-User: ada@acme")
    return Caller(name, tenant)


def key_of(request: Request) -> Key:
    """Return the order that a path names, among those of the caller's tenant."""
    return Key(caller_of(request).tenant, request.path_params["order"])
