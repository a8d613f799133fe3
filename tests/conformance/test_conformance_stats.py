"""Measurements of containers and pods, and the metrics that the kubelet passes on."""

from __future__ import annotations

import os
import time
import uuid

import pytest

from podkeep.base.errors import NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import pod
from support.endpoint import Node
from support.waiting import wait_for

LABELS = {"app": "web"}


def stats(node: Node, **chosen: object) -> list[api.ContainerStats]:
    """Return the measurements of the containers that are chosen."""
    request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**chosen)) if chosen else None
    return list(node.call("ListContainerStats", request or api.ListContainerStatsRequest()).stats)


def test_container_is_measured(node: Node) -> None:
    container = node.launch(node.run(), labels=LABELS, annotations={"example.com/note": "kept"})
    found = node.call("ContainerStats", api.ContainerStatsRequest(container_id=container)).stats
    assert found.attributes.id == container
    assert found.attributes.metadata.name == "main"
    assert dict(found.attributes.labels) == LABELS
    assert dict(found.attributes.annotations) == {"example.com/note": "kept"}
    now = time.time_ns()
    assert abs(now - found.cpu.timestamp) < 60 * 10**9
    assert found.cpu.usage_core_nano_seconds.value > 0
    assert found.memory.timestamp > 0
    assert found.memory.working_set_bytes.value > 0


def test_time_of_the_cpu_grows(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "while :; do :; done")

    def used() -> int:
        request = api.ContainerStatsRequest(container_id=container)
        nanoseconds: int = node.call("ContainerStats", request).stats.cpu.usage_core_nano_seconds.value
        return nanoseconds

    first = used()
    wait_for(lambda: used() > first + 50_000_000, "a twentieth of a second")
    node.stop(container)


def test_memory_is_what_the_container_uses(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "head -c 20000000 /dev/zero >/dev/shm/file; exec sleep 1000")
    request = api.ContainerStatsRequest(container_id=container)

    def enough() -> bool:
        return bool(node.call("ContainerStats", request).stats.memory.working_set_bytes.value > 18_000_000)

    wait_for(enough, "20 MB of shared memory")
    assert node.call("ContainerStats", request).stats.memory.working_set_bytes.value < 200_000_000


def test_writable_layer_is_measured(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "head -c 5000000 /dev/zero >/file; exec sleep 1000")
    request = api.ContainerStatsRequest(container_id=container)

    def layer() -> api.FilesystemUsage:
        usage: api.FilesystemUsage = node.call("ContainerStats", request).stats.writable_layer
        return usage

    wait_for(lambda: layer().used_bytes.value >= 5_000_000, "the size of a file")
    assert layer().inodes_used.value >= 1
    assert layer().fs_id.mountpoint


def test_list_is_chosen_by_id_sandbox_and_labels(node: Node) -> None:
    one, two = node.run(pod("one")), node.run(pod("two"))
    first = node.launch(one, labels=LABELS)
    second = node.launch(one, name="second")
    third = node.launch(two, labels=LABELS)

    def ids(**chosen: object) -> set[str]:
        return {item.attributes.id for item in stats(node, **chosen)}

    assert ids() == {first, second, third}
    assert ids(id=second) == {second}
    assert ids(pod_sandbox_id=one) == {first, second}
    assert ids(label_selector=LABELS) == {first, third}
    assert ids(pod_sandbox_id=two, label_selector={"app": "other"}) == set()
    assert ids(id=str(uuid.uuid4())) == set()


def test_list_has_what_a_single_answer_has(node: Node) -> None:
    container = node.launch(node.run())
    (listed,) = stats(node)
    single = node.call("ContainerStats", api.ContainerStatsRequest(container_id=container)).stats
    assert listed.attributes == single.attributes
    assert listed.cpu.usage_core_nano_seconds.value <= single.cpu.usage_core_nano_seconds.value


def test_containers_that_do_not_run_are_no_error(node: Node) -> None:
    sandbox = node.run()
    running = node.launch(sandbox)
    node.create(sandbox, name="created")
    node.exited(node.launch(sandbox, "true", name="exited"))
    assert running in {item.attributes.id for item in stats(node)}


def test_unknown_container_is_not_found(node: Node) -> None:
    request = api.ContainerStatsRequest(container_id=str(uuid.uuid4()))
    node.refused(lambda: node.call("ContainerStats", request), NotFound)


def test_pod_is_measured(node: Node) -> None:
    sandbox = node.run(pod("measured", labels=LABELS))
    container = node.launch(sandbox)
    found = node.call("PodSandboxStats", api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)).stats
    assert found.attributes.id == sandbox
    assert found.attributes.metadata.name == "measured"
    assert dict(found.attributes.labels) == LABELS
    assert found.linux.cpu.usage_core_nano_seconds.value > 0
    assert found.linux.memory.working_set_bytes.value > 0
    assert found.linux.network.default_interface.name == "eth0"
    assert found.linux.process.process_count.value >= 1
    assert [item.attributes.id for item in found.linux.containers] == [container]


def test_network_of_a_pod_is_counted(node: Node) -> None:
    sandbox = node.run()
    container = node.launch(sandbox)
    request = api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)

    def sent() -> int:
        number: int = node.call("PodSandboxStats", request).stats.linux.network.default_interface.tx_bytes.value
        return number

    before = sent()
    gateway = node.read(container, "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'")
    node.exec(container, "ping", "-c", "1", gateway)
    wait_for(lambda: sent() > before, "bytes that were sent")


def test_list_of_pods_is_chosen_by_id_and_labels(node: Node) -> None:
    one, two = node.run(pod("one", labels=LABELS)), node.run(pod("two"))
    for sandbox in (one, two):
        node.launch(sandbox)

    def ids(**chosen: object) -> set[str]:
        request = api.ListPodSandboxStatsRequest(filter=api.PodSandboxStatsFilter(**chosen))
        return {item.attributes.id for item in node.call("ListPodSandboxStats", request).stats}

    assert ids() == {one, two}
    assert ids(id=two) == {two}
    assert ids(label_selector=LABELS) == {one}
    assert ids(id=two, label_selector=LABELS) == set()


def test_unknown_pod_is_not_found(node: Node) -> None:
    request = api.PodSandboxStatsRequest(pod_sandbox_id=str(uuid.uuid4()))
    node.refused(lambda: node.call("PodSandboxStats", request), NotFound)


# since 1.7 or later

newer = pytest.mark.reference(unsupported="not yet there")


@newer
def test_rate_of_the_cpu(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "while :; do :; done")
    request = api.ContainerStatsRequest(container_id=container)

    def rate() -> int:
        number: int = node.call("ContainerStats", request).stats.cpu.usage_nano_cores.value
        return number

    wait_for(rate, "a rate")
    assert 10_000_000 < rate() < 10**10
    node.stop(container)


@newer
def test_streamed_measurements(node: Node) -> None:
    sandbox = node.run()
    containers = {node.launch(sandbox, name=f"c{number}") for number in range(3)}
    parts = node.collect("StreamContainerStats", api.StreamContainerStatsRequest())
    assert {item.attributes.id for part in parts for item in part.container_stats} == containers
    parts = node.collect("StreamPodSandboxStats", api.StreamPodSandboxStatsRequest())
    assert [item.attributes.id for part in parts for item in part.pod_sandbox_stats] == [sandbox]


@newer
def test_metrics_fit_their_descriptors(node: Node) -> None:
    sandbox = node.run()
    container = node.launch(sandbox)
    descriptors = {
        item.name: list(item.label_keys)
        for item in node.call("ListMetricDescriptors", api.ListMetricDescriptorsRequest()).descriptors
    }
    assert descriptors
    (found,) = node.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest()).pod_metrics
    assert found.pod_sandbox_id == sandbox
    assert [item.container_id for item in found.container_metrics] == [container]
    metrics = [*found.metrics, *(metric for item in found.container_metrics for metric in item.metrics)]
    assert metrics
    for metric in metrics:
        assert len(metric.label_values) == len(descriptors[metric.name]), metric.name
    names = {metric.name for metric in metrics}
    assert {"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"} <= names
    parts = node.collect("StreamPodSandboxMetrics", api.StreamPodSandboxMetricsRequest())
    assert [item.pod_sandbox_id for part in parts for item in part.pod_sandbox_metrics] == [sandbox]


@newer
def test_every_container_has_the_metrics_of_disks_and_limits(node: Node) -> None:
    resources = api.LinuxContainerResources(memory_limit_in_bytes=80_000_001)
    container = node.launch(node.run(), resources=resources)
    (pod_found,) = node.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest()).pod_metrics
    (found,) = pod_found.container_metrics
    assert found.container_id == container
    values = {metric.name: metric.value.value for metric in found.metrics}
    kinds = ("reads", "reads_bytes", "reads_merged", "writes", "writes_bytes", "writes_merged", "sector_reads")
    kinds += ("sector_writes", "read_seconds", "write_seconds", "io_time_seconds", "io_time_weighted_seconds")
    expected = {f"container_fs_{kind}_total" for kind in kinds}
    assert expected | {"container_fs_io_current", "container_blkio_device_usage_total"} <= values.keys()
    # The kernel limits whole pages.
    page = os.sysconf("SC_PAGE_SIZE")
    assert values["container_spec_memory_limit_bytes"] == 80_000_001 // page * page
