"""The server's own metrics, under the names that kube-apiserver has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from podkeep.apiserver.endpoints.request_info import RequestInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60)
_VERBS = {
    "get": "GET",
    "list": "LIST",
    "watch": "WATCH",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETECOLLECTION",
}


class Metrics:
    """Counts requests.

    :param in_flight: returns how many reads and writes are being answered.
    :param watches: returns how many watches there are.
    :param objects: returns how many objects each resource has.
    """

    def __init__(
        self,
        in_flight: Callable[[], tuple[int, int]],
        watches: Callable[[], int],
        objects: Callable[[], dict[str, int]],
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ["verb", "group", "version", "resource", "subresource", "scope"]
        self._total = Counter(
            "apiserver_request_total",
            "Counter of apiserver requests.",
            [*labels, "dry_run", "code"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "apiserver_request_duration_seconds",
            "Response latency distribution in seconds.",
            labels,
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.registry.register(_Now(in_flight, watches, objects))

    def count(self, info: RequestInfo, code: int, seconds: float, *, known: bool, dry_run: bool) -> None:
        """Count a request that was answered.

        :param known: its path is one of ours: what clients make up must not make series.
        """
        key = (info.verb, info.group, info.version, info.resource, info.subresource, _scope(info), dry_run, code)
        if not known:
            key = ("other", "", "", "", "", "", False, code)
        found = self._kept.get(key)
        if found is None:
            verb = _VERBS.get(key[0], key[0].upper())
            labels = (verb, *key[1:6])
            total = self._total.labels(*labels, "All" if key[6] else "", str(code))
            found = self._kept[key] = (total, self._duration.labels(*labels))
        total, duration = found
        total.inc()
        if info.verb != "watch":
            duration.observe(seconds)

    def text(self) -> bytes:
        """Return all of them for Prometheus."""
        return generate_latest(self.registry)


def _scope(info: RequestInfo) -> str:
    if not info.resource_request:
        return ""
    if info.name:
        return "resource"
    return "namespace" if info.namespace else "cluster"


class _Now(Collector):
    """What there is at this moment."""

    def __init__(
        self,
        in_flight: Callable[[], tuple[int, int]],
        watches: Callable[[], int],
        objects: Callable[[], dict[str, int]],
    ) -> None:
        self._in_flight, self._watches, self._objects = in_flight, watches, objects

    def collect(self) -> Iterator[Metric]:
        reads, writes = self._in_flight()
        current = GaugeMetricFamily(
            "apiserver_current_inflight_requests", "Number of requests being answered.", labels=["request_kind"]
        )
        current.add_metric(["readOnly"], reads)
        current.add_metric(["mutating"], writes)
        yield current
        yield GaugeMetricFamily("apiserver_registered_watchers", "Number of watches.", value=self._watches())
        objects = GaugeMetricFamily(
            "apiserver_storage_objects", "Number of stored objects of each resource.", labels=["resource"]
        )
        for resource, count in self._objects().items():
            objects.add_metric([resource], count)
        yield objects
