"""The child behind `WorkerProcess`: hosts an app until SIGTERM, and says `ready` once it does."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

import anyio

from keylane import App, Runtime

from .fault_points import FaultPoints


async def main(arguments: argparse.Namespace) -> None:
    module, _, attribute = arguments.app.partition(":")
    app = getattr(importlib.import_module(module), attribute or "app")
    if not isinstance(app, App):
        raise TypeError(f"{arguments.app} is no app")
    observer = FaultPoints.from_environment()
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with Runtime(
            app,
            store=arguments.store,
            namespace=arguments.namespace,
            durability=arguments.durability,
            observer=observer,
        ):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            async for _ in signals:
                break


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--app", required=True)
    parser.add_argument("--durability", default="fsync")
    return parser.parse_args()


if __name__ == "__main__":
    anyio.run(main, parse())
