"""An app in a file of its own, and workers and commands that are started on it."""

from __future__ import annotations

from typing import Any

from keylane import Client, Handle
from tests.runtime.shell_command import Command, Done, run

CATALOGUE = "tests.objects_catalogue:app"
SHOP = """
import time
from keylane import App, VirtualObject, BlockingObjectContext, ObjectContext

order = VirtualObject("Order", owner="shop", partitions=2)

@order.handler
async def double(ctx: ObjectContext, number: int) -> int:
    ctx.log.info("doubling %s", number)
    return 2 * number

@order.handler
def sleep(ctx: BlockingObjectContext, path: str) -> None:
    open(path, "w").close()
    time.sleep(60)

app = App([order])
"""


class Deployment:
    """A store and a namespace with a worker, and the commands that ask them."""

    def __init__(self, store_url: str, namespace: str) -> None:
        self.store_url = store_url
        self.namespace = namespace
        self.where = ("--store", store_url, "--namespace", namespace)

    def client(self) -> Client:
        """Ask without the price of a process."""
        return Client(self.store_url, namespace=self.namespace)

    def worker(self, **options: Any) -> Command:
        return Command("worker", CATALOGUE, *self.where, **options)

    def run(self, *arguments: str, stdin: str = "") -> Done:
        return run(*arguments, *self.where, stdin=stdin)

    def inspect(self, object_type: str, key: str) -> dict[str, Any]:
        return self.run("inspect", object_type, key, "--json").json

    async def begun(self, *call: Any) -> Handle[Any]:
        """Send a call, and wait until it is taken in."""
        async with self.client() as client:
            handle = await client.send(*call)
            await handle.accepted(timeout=10)
            return handle
