"""The ASGI application, with the runtime in its lifespan."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from keylane import Client, Runtime, Settings

from .. import services
from ..app import app
from ..settings import RefundSettings
from . import problems
from .routes import ROUTES


def application(settings: RefundSettings | None = None) -> Starlette:
    """Build the application.

    Args:
        settings: By default from the environment. With `hosts_orders` this process carries refunds out as well;
            without, it only asks, and `keylane worker examples.refund_order.app:app` carries them out elsewhere.
    """
    effective = settings or RefundSettings()

    @asynccontextmanager
    async def lifespan(asgi: Starlette) -> AsyncGenerator[None]:
        async with services.opened(effective), _client(effective) as client:
            asgi.state.client = client
            yield

    return Starlette(routes=ROUTES, lifespan=lifespan, exception_handlers=problems.HANDLERS)


@asynccontextmanager
async def _client(settings: RefundSettings) -> AsyncGenerator[Client]:
    if settings.hosts_orders:
        async with Runtime(app, store=settings.store, namespace=settings.namespace) as runtime:
            yield runtime.client
    else:
        store = settings.store or Settings().redis_url or "embedded:.keylane"
        async with Client(store, namespace=settings.namespace) as client:
            yield client
