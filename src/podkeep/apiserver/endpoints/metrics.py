"""The server's own metrics, under the names that kube-apiserver has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from podkeep.apiserver.requests.request_info import RequestInfo
from podkeep.base import metrics, process_metrics
from podkeep.base.metrics import CONTENT_TYPE as CONTENT_TYPE
from podkeep.base.metrics import counter, gauge, histogram

_BUCKETS_S = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60)
_LABELS = ("verb", "group", "version", "resource", "subresource", "scope")
_REQUESTS = counter("apiserver_request_total", "Counter of apiserver requests.", *_LABELS, "dry_run", "code")
_DURATION = histogram(
    "apiserver_request_duration_seconds", "Response latency distribution in seconds.", *_LABELS, buckets=_BUCKETS_S
)
_IN_FLIGHT = gauge("apiserver_current_inflight_requests", "Number of requests being answered.", "request_kind")
_WATCHERS = gauge("apiserver_registered_watchers", "Number of watches.")
_OBJECTS = gauge("apiserver_storage_objects", "Number of stored objects of each resource.", "resource")
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
        self._in_flight, self._watches, self._objects = in_flight, watches, objects
        self._metrics = metrics.Metrics()
        self._kept: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def count(self, info: RequestInfo, code: int, seconds: float, *, known: bool, dry_run: bool) -> None:
        """Count a request that was answered.

        :param known: its path is one of ours: what clients make up must not make series.
        """
        key = (info.verb, info.group, info.version, info.resource, info.subresource, _scope(info), dry_run, code)
        if not known:
            key = ("other", "", "", "", "", "", False, code)
        labels = self._kept.get(key)
        if labels is None:
            verb = _VERBS.get(key[0], key[0].upper())
            labels = self._kept[key] = (verb, *key[1:6], "All" if key[6] else "", str(code))
        self._metrics.add(_REQUESTS, *labels)
        if info.verb != "watch":
            self._metrics.observe(_DURATION, seconds, *labels[:6])

    def text(self) -> bytes:
        """Return all of them for Prometheus."""
        reads, writes = self._in_flight()
        self._metrics.set(_IN_FLIGHT, reads, "readOnly")
        self._metrics.set(_IN_FLIGHT, writes, "mutating")
        self._metrics.set(_WATCHERS, self._watches())
        self._metrics.replace(_OBJECTS, {(resource,): float(count) for resource, count in self._objects().items()})
        return (self._metrics.text() + process_metrics.text()).encode()


def _scope(info: RequestInfo) -> str:
    if not info.resource_request:
        return ""
    if info.name:
        return "resource"
    return "namespace" if info.namespace else "cluster"
