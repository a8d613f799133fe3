"""Statistics of containers and pods over CRI, against a real daemon: what a container does shows in its numbers."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout
from support.mortal import Mortal
from support.registry import Registry
from support.waiting import wait_for

MIB = 1 << 20


def container_stats(pods: Pods, container: str) -> api.ContainerStats:
    stats: api.ContainerStats = pods.call("ContainerStats", api.ContainerStatsRequest(container_id=container)).stats
    return stats


def list_containers(pods: Pods, **chosen: Any) -> dict[str, api.ContainerStats]:
    request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**chosen))
    return {item.attributes.id: item for item in pods.call("ListContainerStats", request).stats}


def pod_stats(pods: Pods, sandbox: str) -> api.PodSandboxStats:
    stats: api.PodSandboxStats = pods.call("PodSandboxStats", api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)).stats
    return stats


def list_pods(pods: Pods, **chosen: Any) -> dict[str, api.PodSandboxStats]:
    request = api.ListPodSandboxStatsRequest(filter=api.PodSandboxStatsFilter(**chosen))
    return {item.attributes.id: item for item in pods.call("ListPodSandboxStats", request).stats}


def streamed(pods: Pods, socket_path: str, rpc: str, request: Any, field: str) -> list[Any]:
    async def collecting() -> list[Any]:
        async with CriClient(socket_path) as client:
            return [item async for answer in getattr(client.runtime, rpc)(request) for item in getattr(answer, field)]

    return pods.wait(collecting())


def test_a_container_that_burns_cpu_shows_it(pods: Pods) -> None:
    sandbox = pods.run()
    busy = pods.launch(sandbox, "sh", "-c", "while :; do :; done", name="busy")
    idle = pods.launch(sandbox, name="idle")

    def busy_enough() -> bool:
        return container_stats(pods, busy).cpu.usage_core_nano_seconds.value > 500_000_000

    wait_for(busy_enough, "half a second of CPU time")
    stats = list_containers(pods, pod_sandbox_id=sandbox)
    assert stats[busy].cpu.usage_nano_cores.value > 50_000_000
    assert stats[idle].cpu.usage_nano_cores.value < stats[busy].cpu.usage_nano_cores.value
    assert stats[idle].cpu.timestamp > 0
    of_pod = wait_for(lambda: _with_rate(pod_stats(pods, sandbox)), "the pod's rate")
    assert of_pod.linux.cpu.usage_core_nano_seconds.value >= stats[busy].cpu.usage_core_nano_seconds.value
    assert of_pod.linux.cpu.usage_nano_cores.value > 50_000_000


def _with_rate(stats: api.PodSandboxStats) -> api.PodSandboxStats | None:
    return stats if stats.linux.cpu.HasField("usage_nano_cores") else None


def test_a_container_that_allocates_memory_shows_it(pods: Pods) -> None:
    sandbox = pods.run()
    # tail holds what it is to print, and its reader does not read.
    script = f"head -c {50 * MIB} /dev/zero | tail -c {50 * MIB} | sleep 1000"
    large = pods.launch(
        sandbox, "sh", "-c", script, resources=api.LinuxContainerResources(memory_limit_in_bytes=200 * MIB)
    )
    wait_for(lambda: container_stats(pods, large).memory.rss_bytes.value >= 50 * MIB, "50 MiB of memory")
    memory = container_stats(pods, large).memory
    assert 50 * MIB <= memory.working_set_bytes.value <= memory.usage_bytes.value < 120 * MIB
    assert memory.available_bytes.value == 200 * MIB - memory.working_set_bytes.value
    assert memory.page_faults.value > 0
    assert memory.timestamp > 0
    of_pod = pod_stats(pods, sandbox).linux.memory
    assert of_pod.rss_bytes.value >= 50 * MIB
    assert not of_pod.HasField("available_bytes"), "the pod has no limit"


def test_a_container_that_writes_shows_it_in_its_writable_layer(pods: Pods) -> None:
    sandbox = pods.run()
    script = "dd if=/dev/zero of=/large bs=1M count=10 && for n in 1 2 3 4 5; do mkdir /d$n; done; exec sleep 1000"
    writer = pods.launch(sandbox, "sh", "-c", script)
    layer = wait_for(lambda: _at_least(container_stats(pods, writer).writable_layer, 10 * MIB), "10 MiB in the layer")
    assert layer.used_bytes.value < 12 * MIB
    assert layer.inodes_used.value >= 6
    assert layer.timestamp > 0
    images = pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images")
    assert layer.fs_id.mountpoint == images.container_filesystems[0].fs_id.mountpoint


@pytest.mark.parametrize("place", ["/data/large", "/etc/resolv.conf", "/etc/hostname", "/etc/hosts"])
def test_what_a_container_writes_beside_its_layer_counts_with_it(
    pods: Pods, registry: Registry, tmp_path: Path, place: str
) -> None:
    """A VOLUME of the image and the files of the pod are on the same disk; nothing else counts them."""
    image = registry.push(busybox_layout(tmp_path, config={"Volumes": {"/data": {}}}), "with-a-volume:1")
    pods.pull(image)
    config = pod()
    config.hostname = "web"
    script = f"dd if=/dev/zero of={place} bs=1M count=10; exec sleep 1000"
    writer = pods.launch(pods.run(config), "sh", "-c", script, image=image)
    layer = wait_for(lambda: _at_least(container_stats(pods, writer).writable_layer, 10 * MIB), "10 MiB in the layer")
    assert layer.used_bytes.value < 12 * MIB


def _at_least(layer: api.FilesystemUsage, size: int) -> api.FilesystemUsage | None:
    return layer if layer.used_bytes.value >= size else None


def test_bytes_on_the_network_show(pods: Pods) -> None:
    sandbox = pods.run()
    before = pod_stats(pods, sandbox).linux.network
    assert before.timestamp > 0
    address = pods.address(sandbox)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            sender.sendto(b"x" * 1000, (address, 9))

    def carried() -> bool:
        return pod_stats(pods, sandbox).linux.network.default_interface.rx_bytes.value >= (
            before.default_interface.rx_bytes.value + 10_000
        )

    wait_for(carried, "10 kB received")
    after = pod_stats(pods, sandbox).linux.network
    assert after.default_interface.name == "eth0"
    assert after.default_interface.name in [item.name for item in after.interfaces]
    assert "lo" not in [item.name for item in after.interfaces]


def test_a_pod_on_the_hosts_network_has_no_network_of_its_own(pods: Pods) -> None:
    sandbox = pods.run(pod("host", options=namespaces(network=api.NODE)))
    container = pods.launch(sandbox)
    stats = pod_stats(pods, sandbox)
    assert not stats.linux.HasField("network")
    assert [item.attributes.id for item in stats.linux.containers] == [container]
    assert stats.linux.cpu.usage_core_nano_seconds.value > 0


def test_processes_are_counted(pods: Pods) -> None:
    sandbox = pods.run()
    pods.launch(sandbox, "sh", "-c", "for n in 1 2 3 4; do sleep 1000 & done; wait")
    wait_for(lambda: pod_stats(pods, sandbox).linux.process.process_count.value == 5, "five processes")
    assert pod_stats(pods, sandbox).linux.process.timestamp > 0


def test_a_pod_in_a_user_namespace_has_statistics(pods: Pods) -> None:
    sandbox = pods.run(pod("mapped", options=namespaces(user=BLOCK)))
    writer = pods.launch(sandbox, "sh", "-c", "dd if=/dev/zero of=/large bs=1M count=2; exec sleep 1000")
    wait_for(lambda: _at_least(container_stats(pods, writer).writable_layer, 2 * MIB), "2 MiB")
    stats = pod_stats(pods, sandbox)
    assert stats.linux.network.default_interface.name == "eth0"
    assert stats.linux.memory.usage_bytes.value > 0
    assert stats.linux.containers[0].cpu.usage_core_nano_seconds.value > 0


def test_a_container_that_ended_has_only_its_layer(pods: Pods) -> None:
    sandbox = pods.run()
    done = pods.launch(sandbox, "true", name="done")
    runs = pods.launch(sandbox, name="runs")
    pods.exited(done)
    stats = list_containers(pods)
    assert not stats[done].HasField("cpu")
    assert not stats[done].HasField("memory")
    assert stats[done].writable_layer.timestamp > 0
    assert stats[done].attributes.metadata.name == "done"
    assert stats[runs].HasField("cpu")
    assert not container_stats(pods, done).HasField("cpu")
    wait_for(lambda: container_stats(pods, done).writable_layer.HasField("used_bytes"), "its size")


def test_the_layers_of_a_single_pod_are_counted_for_the_answer(pods: Pods) -> None:
    """Who asks which pod fills the disk must not be told what it had written ten seconds ago."""
    sandbox = pods.run()
    writer = pods.launch(sandbox)
    wait_for(lambda: container_stats(pods, writer).writable_layer.HasField("used_bytes"), "its first size")
    for count in (3, 6):
        command = ["dd", "if=/dev/zero", f"of=/file-{count}", "bs=1M", f"count={count}"]
        assert pods.call("ExecSync", api.ExecSyncRequest(container_id=writer, cmd=command, timeout=60)).exit_code == 0
        (found,) = pod_stats(pods, sandbox).linux.containers
        assert found.writable_layer.used_bytes.value >= count * MIB
    assert found.writable_layer.used_bytes.value >= 9 * MIB


def test_filters(pods: Pods) -> None:
    one = pods.run(pod("one", labels={"app": "one"}))
    two = pods.run(pod("two", labels={"app": "two"}))
    first = pods.launch(one, labels={"part": "a", "more": "b"}, annotations={"note": "n"})
    second = pods.launch(two, labels={"part": "b"})
    assert set(list_containers(pods)) >= {first, second}
    assert set(list_containers(pods, id=first)) == {first}
    assert set(list_containers(pods, id=first[:16])) == {first}
    assert set(list_containers(pods, pod_sandbox_id=two[:16])) == {second}
    assert set(list_containers(pods, pod_sandbox_id=one, label_selector={"part": "b"})) == set()
    assert set(list_containers(pods, label_selector={"part": "a"})) == {first}
    assert set(list_containers(pods, id="0" * 64)) == set()
    assert set(list_pods(pods, id=one[:16])) == {one}
    assert set(list_pods(pods, label_selector={"app": "two"})) == {two}
    assert set(list_pods(pods, id=one, label_selector={"app": "two"})) == set()
    attributes = list_containers(pods, id=first)[first].attributes
    assert dict(attributes.labels) == {"part": "a", "more": "b"}
    assert dict(attributes.annotations) == {"note": "n"}
    sandbox = list_pods(pods, id=one)[one].attributes
    assert (sandbox.metadata.name, sandbox.metadata.namespace, sandbox.metadata.uid) == ("one", "tests", "uid-one")
    assert dict(sandbox.labels) == {"app": "one"}


def test_streams_bring_what_lists_bring(pods: Pods, daemon: Daemon) -> None:
    sandboxes = [pods.run(pod(f"s{number}")) for number in range(3)]
    containers = {pods.launch(sandbox) for sandbox in sandboxes}
    found = streamed(pods, daemon.socket, "StreamContainerStats", api.StreamContainerStatsRequest(), "container_stats")
    assert {item.attributes.id for item in found} >= containers
    chosen = api.ContainerStatsFilter(pod_sandbox_id=sandboxes[0])
    request = api.StreamContainerStatsRequest(filter=chosen)
    assert len(streamed(pods, daemon.socket, "StreamContainerStats", request, "container_stats")) == 1
    found = streamed(
        pods, daemon.socket, "StreamPodSandboxStats", api.StreamPodSandboxStatsRequest(), "pod_sandbox_stats"
    )
    assert {item.attributes.id for item in found} >= set(sandboxes)
    assert all(len(item.linux.containers) == 1 for item in found if item.attributes.id in sandboxes)
    found = streamed(
        pods, daemon.socket, "StreamPodSandboxMetrics", api.StreamPodSandboxMetricsRequest(), "pod_sandbox_metrics"
    )
    assert {item.pod_sandbox_id for item in found} >= set(sandboxes)


def test_annotations_of_some_do_not_keep_the_statistics_of_all_from_a_client(pods: Pods, daemon: Daemon) -> None:
    large = {"note": "x" * 1_000_000, "io.kubernetes.container.hash": "1"}
    usual = pods.launch(pods.run(pod("usual", annotations={"a": "b"})), annotations={"c": "d"})
    shared = pods.run(pod("shared", annotations=large))
    made = {pods.create(shared, name=f"c{number}", annotations=large) for number in range(17)}
    others = {pods.run(pod(f"p{number}", annotations=large)) for number in range(4)}
    for listed in (list_containers(pods), list_containers(pods, pod_sandbox_id=shared)):
        assert made <= listed.keys()
        assert all(dict(listed[one].attributes.annotations) == {"io.kubernetes.container.hash": "1"} for one in made)
    assert dict(list_containers(pods)[usual].attributes.annotations) == {"c": "d"}
    assert len(container_stats(pods, made.pop()).attributes.annotations["note"]) == 1_000_000
    found = list_pods(pods)
    assert others | {shared} <= found.keys()
    assert len(found[shared].linux.containers) == len(pod_stats(pods, shared).linux.containers) == 17
    assert {"a": "b"} in [dict(item.attributes.annotations) for item in found.values()]
    containers = streamed(
        pods, daemon.socket, "StreamContainerStats", api.StreamContainerStatsRequest(), "container_stats"
    )
    assert {item.attributes.id for item in containers} == list_containers(pods).keys()
    sandboxes = streamed(
        pods, daemon.socket, "StreamPodSandboxStats", api.StreamPodSandboxStatsRequest(), "pod_sandbox_stats"
    )
    assert {item.attributes.id for item in sandboxes} == found.keys()


def test_metrics_have_the_labels_of_their_descriptors(pods: Pods) -> None:
    sandbox = pods.run(pod("measured"))
    resources = api.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=20_000, cpu_shares=512, memory_limit_in_bytes=64 * MIB
    )
    container = pods.launch(sandbox, resources=resources)
    listed = pods.call("ListMetricDescriptors", api.ListMetricDescriptorsRequest()).descriptors
    descriptors = {item.name: item for item in listed}
    assert len(descriptors) == len(listed)
    assert all(item.help and item.label_keys for item in listed)

    def measured() -> api.PodSandboxMetrics | None:
        answer = pods.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
        [mine] = [item for item in answer.pod_metrics if item.pod_sandbox_id == sandbox]
        names = {metric.name for metric in mine.container_metrics[0].metrics}
        return mine if "container_fs_usage_bytes" in names else None

    found = wait_for(measured, "the size of the layer")
    assert [item.container_id for item in found.container_metrics] == [container]
    samples = [*found.metrics, *found.container_metrics[0].metrics]
    for sample in samples:
        assert len(sample.label_values) == len(descriptors[sample.name].label_keys), sample.name
        assert sample.timestamp > 0
        assert sample.HasField("value")
        labels = dict(zip(descriptors[sample.name].label_keys, sample.label_values, strict=True))
        assert (labels["pod"], labels["namespace"]) == ("measured", "tests")
        assert labels["id"] == (sandbox if labels["container"] == "POD" else container)
    values = {sample.name: sample.value.value for sample in samples}
    assert values["container_spec_memory_limit_bytes"] == 64 * MIB
    assert values["container_spec_cpu_quota"] == 20_000
    assert values["container_processes"] == 1
    assert values["container_memory_usage_bytes"] > 0
    assert values["container_file_descriptors"] >= 3
    assert abs(values["container_start_time_seconds"] - time.time()) < 60
    kinds = {sample.name: sample.metric_type for sample in samples}
    assert kinds["container_cpu_usage_seconds_total"] == api.COUNTER
    assert kinds["container_memory_rss"] == api.GAUGE
    network = {sample.name for sample in found.metrics}
    assert "container_network_receive_bytes_total" in network
    # What the kernel of this machine cannot say is the only thing missing.
    optional = ("container_pressure_", "container_hugetlb_", "container_fs_reads", "container_fs_writes")
    in_a_class = ("container_llc_", "container_memory_bandwidth_")
    missing = set(descriptors) - set(values)
    assert all(name.startswith((*optional, *in_a_class, "container_blkio_")) for name in missing), missing


def test_the_cgroup_that_the_caller_made_for_the_pod_counts(pods: Pods, daemon: Daemon) -> None:
    parent = f"{daemon.cgroup_parent}/kube/poduid-whole"
    cgroups = Cgroups()
    cgroups.create(parent)
    try:
        sandbox = pods.run(pod("whole", cgroup_parent=parent))
        pods.launch(sandbox)
        before = pod_stats(pods, sandbox).linux.process.process_count.value
        cgroups.create(f"{parent}/other")
        with _sleeper_in(cgroups, f"{parent}/other"):
            assert pod_stats(pods, sandbox).linux.process.process_count.value == before + 1
        pods.remove(sandbox)
    finally:
        cgroups.remove(f"{daemon.cgroup_parent}/kube")


@contextmanager
def _sleeper_in(cgroups: Cgroups, path: str) -> Iterator[None]:
    """A process in a cgroup."""
    process = subprocess.Popen(["sleep", "100"])
    try:
        cgroups.add(path, process.pid)
        yield
    finally:
        process.kill()
        process.wait()


def test_lists_are_made_while_containers_come_and_go(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    stays = pods.launch(sandbox, name="stays")
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            with Pods(daemon.socket, pods.image) as other:
                own = other.run(pod("churn"))
                number = 0
                while not stop.is_set():
                    number += 1
                    container = other.launch(own, name=f"c{number}")
                    other.stop(container)
                    other.remove_container(container)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(60):
            assert stays in list_containers(pods)
            assert sandbox in list_pods(pods)
            pods.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_bad_requests(pods: Pods) -> None:
    sandbox = pods.run()

    def stats(rpc: str, request: Any) -> Any:
        return lambda: pods.call(rpc, request)

    error_of(stats("ContainerStats", api.ContainerStatsRequest()), InvalidArgument)
    error_of(stats("PodSandboxStats", api.PodSandboxStatsRequest()), InvalidArgument)
    error_of(stats("ContainerStats", api.ContainerStatsRequest(container_id="nosuch\nthing")), NotFound)
    error_of(stats("PodSandboxStats", api.PodSandboxStatsRequest(pod_sandbox_id="0" * 64)), NotFound)
    pods.stop_pod(sandbox)
    error_of(stats("PodSandboxStats", api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)), FailedPrecondition)
    assert sandbox not in list_pods(pods)


def test_statistics_go_on_after_the_daemon_was_killed(mortal: Mortal) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    script = "dd if=/dev/zero of=/large bs=1M count=3; while :; do :; done"
    busy = pods.launch(sandbox, "sh", "-c", script)
    wait_for(lambda: container_stats(pods, busy).cpu.usage_core_nano_seconds.value > 200_000_000, "CPU time")
    before = container_stats(pods, busy)
    mortal.daemon.kill()
    pods = mortal.start()
    after = container_stats(pods, busy)
    assert after.cpu.usage_core_nano_seconds.value > before.cpu.usage_core_nano_seconds.value
    wait_for(lambda: _at_least(container_stats(pods, busy).writable_layer, 3 * MIB), "the layer's size")
    wait_for(lambda: container_stats(pods, busy).cpu.HasField("usage_nano_cores"), "the rate")
    assert pod_stats(pods, sandbox).linux.network.default_interface.name == "eth0"


@pytest.fixture
def measured_daemon(open_directory: Path) -> Iterator[tuple[Daemon, Path]]:
    """A daemon that serves its metrics on a unix socket."""
    base = open_directory / "measured"
    base.mkdir()
    path = base / "metrics.sock"
    with Daemon(base, extra=f'[metrics]\naddress = "{path}"\n') as daemon:
        yield daemon, path
    assert not path.exists()


def http(path: Path, request: bytes) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(request)
        answer = b""
        while part := client.recv(65536):
            answer += part
    return answer.decode()


def test_the_daemon_serves_its_own_metrics(measured_daemon: tuple[Daemon, Path]) -> None:
    daemon, path = measured_daemon
    assert path.stat().st_mode & 0o777 == 0o600
    with Pods(daemon.socket, "") as pods:
        pods.run()
        pods.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest())
        error_of(lambda: pods.status("0" * 64), NotFound)
        text = http(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert text.startswith("HTTP/1.1 200 OK\r\n")
    assert 'podkeep_operations_total{operation="RunPodSandbox"} 1.0' in text
    assert 'podkeep_operations_errors_total{code="NOT_FOUND",operation="ContainerStatus"} 1.0' in text
    assert 'podkeep_operation_duration_seconds_count{operation="RunPodSandbox"} 1.0' in text
    assert 'podkeep_pods{state="ready"} 1.0' in text
    assert "podkeep_container_events_dropped_total 0.0" in text
    assert http(path, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith("HTTP/1.1 404 ")
    assert http(path, b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").startswith("HTTP/1.1 405 ")
    assert http(path, b"nonsense\r\n\r\n").startswith("HTTP/1.1 400 ")
    assert http(path, b"x" * 100_000).startswith("HTTP/1.1 431 ")
    assert http(path, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").endswith("\r\n\r\n")
