"""Reads the metrics of a worker as Prometheus does: over its port."""

from __future__ import annotations

from urllib.request import urlopen

import anyio.to_thread
from prometheus_client.parser import text_string_to_metric_families

from keylane import Runtime

Scraped = dict[str, dict[tuple[tuple[str, str], ...], float]]


async def text_of(runtime: Runtime) -> str:
    """Return what the port says."""

    def read() -> str:
        with urlopen(f"http://127.0.0.1:{runtime.metrics_port}/metrics", timeout=10) as response:
            return response.read().decode()

    return await anyio.to_thread.run_sync(read)


async def scrape(runtime: Runtime) -> Scraped:
    """Return the samples of a scrape, by name and labels."""
    found: Scraped = {}
    for family in text_string_to_metric_families(await text_of(runtime)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(scraped: Scraped, name: str, **labels: str) -> float:
    """Return one sample; 0 where there is none."""
    return scraped.get(name, {}).get(tuple(sorted(labels.items())), 0.0)
