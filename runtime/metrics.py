"""The metrics of a worker for Prometheus, on a port of their own; needs the library of the extra `metrics`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..journal.errors import KeylaneError, RegistrationError
from ..journal.unsettled_counts import count_proposals, count_queued
from .meters import Counters, add_to, queue_of
from .metric_table import (
    APPROVALS_OPEN,
    APPROVALS_OVERDUE,
    METRICS,
    UNKNOWN_OPEN,
    Labels,
    Metric,
    exported_name,
)

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise RegistrationError(
        "a metrics port was asked for, and prometheus-client is not installed",
        parameter="metrics_port",
        remedy="pip install 'keylane[metrics]'",
    ) from missing

if TYPE_CHECKING:
    from .partition import Partition
    from .worker import Worker

logger = logging.getLogger("keylane.metrics")

#: How long a scrape waits for the worker's event loop before it shows only what can be read without it.
PATIENCE_SECONDS: Final = 2.0
PORT_MAX: Final = 65_535

#: What the numbers of a scrape lie in.
Numbers = Mapping[Metric, Mapping[Labels, float]]


class Shown:
    """A port that shows the metrics of a worker, from the moment at which it is made.

    Args:
        worker: Whose they are.
        counters: What it counts.
        host: The address to listen on.
        port: The port; 0 for any that is free.

    Raises:
        RegistrationError: It is no port, or can't be had.
    """

    def __init__(self, worker: Worker, counters: Counters, host: str, port: int) -> None:
        if type(port) is not int or not 0 <= port <= PORT_MAX:
            raise RegistrationError(
                f"metrics_port is {port!r}", parameter="metrics_port", remedy=f"give a number from 0 to {PORT_MAX}"
            )
        registry = CollectorRegistry()
        registry.register(WorkerCollector(worker, counters, asyncio.get_running_loop()))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise RegistrationError(
                f"the metrics can't be shown on {host}:{port}: {error.strerror}",
                parameter="metrics_port",
                remedy="name a port that is free, or 0 for any",
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class WorkerCollector(Collector):
    """Reads a worker's numbers when somebody asks for them.

    Args:
        worker: The worker.
        counters: What it counts.
        loop: Its event loop, in which alone its memory may be looked at.
    """

    def __init__(self, worker: Worker, counters: Counters, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._counters = counters
        self._loop = loop

    def describe(self) -> Iterable[Any]:
        """Return nothing: what there is need not be collected to be registered."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Return all families; those that only the event loop can tell are left out while it does not answer."""
        gauges = self._gauges()
        for metric in METRICS:
            match metric.kind:
                case "gauge":
                    if metric in gauges:
                        yield _gauge(metric, gauges[metric])
                case "counter":
                    yield _counter(metric, _copied(self._counters.counts.get(metric, {})))
                case "histogram":
                    yield self._histogram(metric)
                case "summary":
                    yield self._summary(metric)

    def _gauges(self) -> Numbers:
        looking = asyncio.run_coroutine_threadsafe(self._look(), self._loop)
        try:
            return looking.result(PATIENCE_SECONDS)
        except TimeoutError:
            looking.cancel()
            return {}

    async def _look(self) -> Numbers:
        """Return what stands open in this worker's partitions; without the store, what its memory tells."""
        partitions = self._worker.partitions
        found = queue_of(partitions)
        try:
            return {**found, **await self._open_of(partitions)}
        except KeylaneError as error:
            logger.info("what waits for people is not counted now: %s", error.message)
            return found

    async def _open_of(self, partitions: list[Partition]) -> Numbers:
        unknown: dict[Labels, float] = {}
        for type_name, receiver in self._counters.unknown_of(partitions):
            add_to(unknown, (type_name, receiver, "runtime"), 1)
        store, spaces = self._worker.store, [partition.space for partition in partitions]
        for (type_name, receiver), count in (await count_queued(store, spaces)).items():
            add_to(unknown, (type_name, receiver, "people"), count)
        waiting: dict[Labels, float] = {}
        overdue: dict[Labels, float] = {}
        counts = await count_proposals(store, {each.space: each.now_ms() for each in partitions})
        for space, count in counts.items():
            add_to(waiting, (space.type_name,), count.open)
            add_to(overdue, (space.type_name,), count.overdue)
        return {UNKNOWN_OPEN: unknown, APPROVALS_OPEN: waiting, APPROVALS_OVERDUE: overdue}

    def _histogram(self, metric: Metric) -> HistogramMetricFamily:
        family = HistogramMetricFamily(exported_name(metric), metric.text, labels=metric.labels)
        for labels, distribution in _copied(self._counters.distributions.get(metric, {})).items():
            seen = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*metric.buckets, float("inf")), list(distribution.counts), strict=True):
                seen += count
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), seen))
            family.add_metric(labels, buckets, distribution.total)
        return family

    def _summary(self, metric: Metric) -> SummaryMetricFamily:
        family = SummaryMetricFamily(exported_name(metric), metric.text, labels=metric.labels)
        for labels, (count, total) in _copied(self._counters.sums.get(metric, {})).items():
            family.add_metric(labels, count, total)
        return family


def _counter(metric: Metric, counts: Mapping[Labels, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(exported_name(metric), metric.text, labels=metric.labels)
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _gauge(metric: Metric, counts: Mapping[Labels, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(exported_name(metric), metric.text, labels=metric.labels)
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _copied(numbers: dict[Labels, Any]) -> dict[Labels, Any]:
    """Return numbers that the event loop does not change while they are read."""
    # One call into the interpreter's own code, which no other thread gets between.
    return numbers.copy()
