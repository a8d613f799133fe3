"""Metric descriptors and samples as CRI's messages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.stats import metrics
from podkeep.runtime.stats.collector import FileSystem, SandboxMetrics
from podkeep.runtime.stats.descriptors import BASE_LABELS, BY_NAME, DESCRIPTORS, OF_RDT
from podkeep.runtime.stats.metrics import MetricSample

MAX_VALUE = 2**64 - 1
"""Of a UInt64Value; what the kernel holds of a larger limit is no limit at all."""
_Metrics: TypeAlias = "RepeatedCompositeFieldContainer[api.Metric]"


def descriptor_messages(*, rdt: bool) -> list[api.MetricDescriptor]:
    """Return all metrics there are; ``rdt``: those of classes of RDT, too.

    critest, "listing pod sandbox metrics", takes what is described for what every container has.
    """
    return [
        api.MetricDescriptor(name=item.name, help=item.help, label_keys=(*BASE_LABELS, *item.labels))
        for item in DESCRIPTORS
        if rdt or item not in OF_RDT
    ]


def fill_sandbox_metrics(
    message: api.PodSandboxMetrics,
    found: SandboxMetrics,
    file_system: FileSystem,
    device_name: Callable[[int, int], str],
) -> None:
    """Fill a new message with the samples of a pod and its running containers."""
    message.pod_sandbox_id = found.sandbox.id
    _fill(message.metrics, metrics.network_samples(found.interfaces), metrics.sandbox_labels(found.sandbox), found.at)
    for item in found.containers:
        container = item.reading.container
        below = message.container_metrics.add()
        below.container_id = container.id
        samples = metrics.container_samples(item, file_system, device_name)
        _fill(below.metrics, samples, metrics.container_labels(container, found.sandbox), item.reading.at)


def _fill(target: _Metrics, samples: Iterable[MetricSample], base: tuple[str, ...], at: int) -> None:
    for sample in samples:
        message = target.add()
        message.name = sample.name
        message.timestamp = at
        message.metric_type = api.COUNTER if BY_NAME[sample.name].counter else api.GAUGE
        message.label_values.extend(base)
        message.label_values.extend(sample.labels)
        # A limit is a text of the request, and one that the message cannot hold would fail the list of all pods.
        message.value.value = min(max(sample.value, 0), MAX_VALUE)
