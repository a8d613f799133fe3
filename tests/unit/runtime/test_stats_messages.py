"""Statistics and metrics as CRI's messages: what is set, what is left out, and in which order labels stand."""

from __future__ import annotations

import weakref
from typing import Any

import msgspec
import pytest
from runtime_values import container, sandbox

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroup_files import DeviceIo, Psi, PsiLine
from podkeep.kernel.cgroup.cgroup_stats import Detail, Memory, Pressure, Usage
from podkeep.kernel.files.tree_size import TreeSize
from podkeep.kernel.network.netdev import Interface
from podkeep.runtime.class_resources.rdt.monitoring import DomainUsage
from podkeep.runtime.model.records import ContainerState, Resources
from podkeep.runtime.rpc.chunks import LIST_BYTES
from podkeep.runtime.rpc.convert.metrics import descriptor_messages, fill_sandbox_metrics
from podkeep.runtime.rpc.convert.stats import StatsMessages
from podkeep.runtime.rpc.encoded import MAX_KEPT, Encoded
from podkeep.runtime.rpc.shortening import OF_KUBELETS
from podkeep.runtime.stats.collector import (
    ContainerMetrics,
    ContainerReading,
    FileSystem,
    Processes,
    SandboxMetrics,
    SandboxReading,
)
from podkeep.runtime.stats.descriptors import BASE_LABELS, DESCRIPTORS
from podkeep.runtime.stats.layers import LayerSize

LINE = PsiLine(avg10=1.5, avg60=0.5, avg300=0.25, total_ns=3_000_000_000)
PSI = Psi(some=LINE, full=LINE)
SECOND = 1_000_000_000
AT = 1_700_000_000 * SECOND
LAYER = LayerSize(at=AT - 5, size=TreeSize(used_bytes=4096, inodes=3))


def usage(*, pressure: Pressure = Pressure(), **memory: Any) -> Usage:  # noqa: B008 - immutable
    given = {"usage": 1000, "working_set": 900, "rss": 500, "page_faults": 7, "major_page_faults": 1, **memory}
    return Usage(cpu_ns=5 * SECOND, memory=Memory(**given), pressure=pressure)


def interface(name: str, number: int) -> Interface:
    names = ("rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "tx_bytes", "tx_packets", "tx_errors", "tx_dropped")
    return Interface(name=name, **{field: number + index for index, field in enumerate(names)})


def container_message(**fields: Any) -> api.ContainerStats:
    answer = api.ListContainerStatsResponse()
    reading = ContainerReading(**{"container": container(), "at": AT, **fields})
    StatsMessages(mountpoint="/images").fill_containers(answer.stats, [reading])
    return answer.stats[0]


def sandbox_message(**fields: Any) -> api.PodSandboxStats:
    answer = api.ListPodSandboxStatsResponse()
    reading = SandboxReading(**{"sandbox": sandbox(), "at": AT, "usage": usage(), **fields})
    StatsMessages(mountpoint="/images").fill_sandboxes(answer.stats, [reading])
    return answer.stats[0]


def test_a_running_container() -> None:
    message = container_message(usage=usage(limit=2000, swap=10, swap_limit=100), nano_cores=250_000_000, layer=LAYER)
    assert (message.attributes.id, message.attributes.metadata.name) == ("c" * 64, "main")
    assert (message.cpu.timestamp, message.cpu.usage_core_nano_seconds.value) == (AT, 5 * SECOND)
    assert message.cpu.usage_nano_cores.value == 250_000_000
    assert (message.memory.usage_bytes.value, message.memory.working_set_bytes.value) == (1000, 900)
    assert message.memory.available_bytes.value == 1100
    assert (message.memory.page_faults.value, message.memory.major_page_faults.value) == (7, 1)
    assert (message.swap.swap_usage_bytes.value, message.swap.swap_available_bytes.value) == (10, 90)
    layer = message.writable_layer
    assert (layer.timestamp, layer.fs_id.mountpoint) == (AT - 5, "/images")
    assert (layer.used_bytes.value, layer.inodes_used.value) == (4096, 3)


def test_what_is_not_known_is_not_set() -> None:
    message = container_message(usage=usage())
    assert not message.cpu.HasField("usage_nano_cores")
    assert not message.memory.HasField("available_bytes")
    assert not message.HasField("swap")
    assert not message.HasField("io")
    assert not message.cpu.HasField("psi")
    assert not message.writable_layer.HasField("used_bytes")
    assert message.writable_layer.timestamp == AT, "a timestamp is never 0"


def test_nothing_in_use_is_zero_and_set() -> None:
    zero = usage(usage=0, working_set=0, rss=0, page_faults=0, major_page_faults=0, swap=0)
    message = container_message(usage=zero, nano_cores=0)
    assert message.cpu.HasField("usage_nano_cores")
    assert message.memory.HasField("rss_bytes")
    assert message.memory.HasField("page_faults")
    assert message.swap.HasField("swap_usage_bytes")
    assert not message.swap.HasField("swap_available_bytes")


def test_a_container_that_ended() -> None:
    message = container_message(layer=LAYER)
    assert not message.HasField("cpu")
    assert not message.HasField("memory")
    assert message.writable_layer.used_bytes.value == 4096


def test_memory_beyond_its_limit_leaves_nothing_available() -> None:
    message = container_message(usage=usage(limit=100, swap=10, swap_limit=5))
    assert message.memory.HasField("available_bytes")
    assert message.memory.available_bytes.value == 0
    assert message.swap.swap_available_bytes.value == 0


def test_pressure() -> None:
    message = container_message(usage=usage(pressure=Pressure(cpu=PSI, memory=PSI, io=PSI)))
    assert message.cpu.psi.Some.Total == message.memory.psi.Full.Total == message.io.psi.Some.Total == 3 * SECOND
    assert (message.cpu.psi.Some.Avg10, message.cpu.psi.Some.Avg300) == (1.5, 0.25)
    assert message.io.timestamp == AT
    message = container_message(usage=usage(pressure=Pressure(cpu=Psi(some=LINE))))
    assert not message.cpu.psi.HasField("Full")


def test_a_sandbox() -> None:
    below = ContainerReading(container=container(), at=AT, usage=usage())
    interfaces = (interface("net1", 10), interface("eth0", 20))
    message = sandbox_message(interfaces=interfaces, tasks=4, containers=(below,))
    assert message.attributes.metadata.uid == "uid-1"
    assert message.linux.process.process_count.value == 4
    network = message.linux.network
    assert [item.name for item in network.interfaces] == ["net1", "eth0"]
    assert (network.default_interface.name, network.default_interface.rx_bytes.value) == ("eth0", 20)
    assert (network.default_interface.tx_bytes.value, network.default_interface.tx_errors.value) == (24, 26)
    assert network.timestamp == message.linux.cpu.timestamp == message.linux.process.timestamp == AT
    assert [item.attributes.id for item in message.linux.containers] == ["c" * 64]


def test_networks() -> None:
    assert not sandbox_message().linux.HasField("network"), "on the host's network"
    only_lo = sandbox_message(interfaces=()).linux
    assert only_lo.HasField("network")
    assert not only_lo.network.HasField("default_interface")
    other = sandbox_message(interfaces=(interface("net0", 1),)).linux.network
    assert other.default_interface.name == "net0"


def detail(**fields: Any) -> Detail:
    given = {
        "cpu_user_ns": 3 * SECOND,
        "cpu_system_ns": 2 * SECOND,
        "cfs_periods": 1,
        "cfs_throttled_periods": 1,
        "cfs_throttled_ns": SECOND,
        "cache": 1,
        "mapped_file": 1,
        "active_file": 1,
        "inactive_file": 1,
        "kernel": 1,
        "max_usage": 1,
        "failures": 0,
        "oom_kills": 0,
        "devices": (DeviceIo(major=8, minor=1, read_bytes=1, write_bytes=2, reads=3, writes=4),),
        "hugepages": {"2MB": (1, 2)},
        "processes": (1, 2),
        "tasks": 5,
        "tasks_limit": None,
    }
    return Detail(**{**given, **fields})


def measured(
    *, pressure: Pressure, memory: Usage | None = None, resources: Resources | None = None, **fields: Any
) -> api.PodSandboxMetrics:
    record = container(resources=resources or Resources(cpu_quota=1000))
    running = msgspec.structs.replace(record.status, state=ContainerState.RUNNING, started_at=AT)
    record = msgspec.structs.replace(record, status=running)
    found = memory or usage(pressure=pressure)
    metrics = ContainerMetrics(
        reading=ContainerReading(container=record, at=AT, usage=found, layer=LAYER),
        usage=found,
        detail=detail(**fields),
        processes=Processes(descriptors=9, sockets=2, open_files_limit=1024),
        domains=(DomainUsage(domain=0, occupancy=1, total_bytes=2, local_bytes=3), DomainUsage(domain=1, occupancy=4)),
    )
    message = api.PodSandboxMetrics()
    fill_sandbox_metrics(
        message,
        SandboxMetrics(sandbox=sandbox(), at=AT, interfaces=(interface("eth0", 1),), containers=(metrics,)),
        FileSystem(device="/dev/vda1", disk=(254, 0), size=100, inodes=10, inodes_free=5),
        lambda major, minor: f"/dev/{major}-{minor}",
    )
    return message


def test_every_metric_has_the_labels_of_its_descriptor() -> None:
    message = measured(pressure=Pressure(cpu=PSI, memory=PSI, io=PSI))
    keys = {item.name: list(item.label_keys) for item in descriptor_messages(rdt=True)}
    samples = [*message.metrics, *message.container_metrics[0].metrics]
    assert {sample.name for sample in samples} == set(keys), "nothing is announced that never comes"
    for sample in samples:
        labels = dict(zip(keys[sample.name], sample.label_values, strict=True))
        assert (labels["pod"], labels["namespace"]) == ("web", "default")
        assert sample.timestamp == AT
        assert sample.HasField("value")
        counted = sample.metric_type == api.COUNTER
        assert counted == next(item.counter for item in DESCRIPTORS if item.name == sample.name)
    found = {sample.name: dict(zip(keys[sample.name], sample.label_values, strict=True)) for sample in samples}
    assert found["container_network_receive_bytes_total"]["container"] == "POD"
    assert found["container_network_receive_bytes_total"]["interface"] == "eth0"
    assert found["container_cpu_usage_seconds_total"]["cpu"] == "total"
    assert found["container_cpu_usage_seconds_total"]["container"] == "main"
    assert found["container_fs_usage_bytes"]["device"] == "/dev/vda1"


def test_values_of_metrics() -> None:
    message = measured(pressure=Pressure(cpu=PSI), tasks_limit=64)
    values = {sample.name: sample.value.value for sample in [*message.metrics, *message.container_metrics[0].metrics]}
    assert values["container_cpu_usage_seconds_total"] == 5
    assert values["container_processes"] == 2
    assert values["container_threads"] == 5
    assert values["container_threads_max"] == 64
    assert values["container_pressure_cpu_waiting_seconds_total"] == 3
    assert "container_pressure_memory_waiting_seconds_total" not in values
    assert values["container_start_time_seconds"] == 1_700_000_000
    assert values["container_spec_cpu_quota"] == 1000
    assert values["container_fs_usage_bytes"] == 4096
    assert values["container_network_transmit_packets_dropped_total"] == 8


OF_DISKS = (
    *(f"container_fs_{what}{kind}_total" for what in ("reads", "writes") for kind in ("", "_bytes", "_merged")),
    "container_fs_read_seconds_total",
    "container_fs_write_seconds_total",
    "container_fs_sector_reads_total",
    "container_fs_sector_writes_total",
    "container_fs_io_current",
    "container_fs_io_time_seconds_total",
    "container_fs_io_time_weighted_seconds_total",
    "container_blkio_device_usage_total",
)
"""What upstream's node tests look for in /metrics/cadvisor, of every container."""


@pytest.mark.parametrize("used", [True, False], ids=["which it used", "which it never used"])
def test_every_container_has_the_metrics_of_its_disk(used: bool) -> None:
    io = DeviceIo(major=254, minor=0, read_bytes=4096, reads=1, write_bytes=8192, writes=2)
    samples = measured(pressure=Pressure(), devices=(io,) if used else ()).container_metrics[0].metrics
    by_name = {sample.name: sample for sample in samples}
    for name in OF_DISKS:
        assert by_name[name].label_values[len(BASE_LABELS)] == "/dev/254-0", name
    found = {
        (sample.label_values[-1], sample.value.value)
        for sample in samples
        if sample.name == "container_blkio_device_usage_total"
    }
    assert found == ({("Read", 4096), ("Write", 8192)} if used else {("Read", 0), ("Write", 0)})
    assert by_name["container_fs_writes_total"].value.value == (2 if used else 0)


def test_a_used_disk_and_that_of_the_writable_layer_are_shown() -> None:
    samples = measured(pressure=Pressure()).container_metrics[0].metrics
    devices = [sample.label_values[-1] for sample in samples if sample.name == "container_fs_reads_total"]
    assert devices == ["/dev/8-1", "/dev/254-0"]


@pytest.mark.parametrize(
    ("limit", "swap", "shown"),
    [(None, None, (0, 0)), (8192, None, (8192, 0)), (8192, 0, (8192, 8192)), (8192, 4096, (8192, 12288))],
)
def test_limits_of_memory_are_those_that_the_kernel_holds(
    limit: int | None, swap: int | None, shown: tuple[int, int]
) -> None:
    samples = measured(pressure=Pressure(), memory=usage(limit=limit, swap_limit=swap)).container_metrics[0].metrics
    values = {sample.name: sample.value.value for sample in samples}
    assert (values["container_spec_memory_limit_bytes"], values["container_spec_memory_swap_limit_bytes"]) == shown


@pytest.mark.parametrize(
    ("text", "value"), [("9" * 30, 2**64 - 1), ("-1", 0), ("9" * 6000, 0), ("max", 0), ("4096", 4096)]
)
def test_no_limit_of_one_pod_fails_the_metrics_of_all(text: str, value: int) -> None:
    message = measured(pressure=Pressure(), resources=Resources(unified={"memory.min": text}))
    samples = {item.name: item.value.value for item in message.container_metrics[0].metrics}
    assert samples["container_spec_memory_reservation_limit_bytes"] == value


@pytest.mark.requirement("Q41")
def test_what_was_not_counted_has_no_sample() -> None:
    samples = measured(pressure=Pressure()).container_metrics[0].metrics
    found = [
        (sample.name, sample.label_values[-1], sample.value.value)
        for sample in samples
        if sample.name.startswith(("container_llc_", "container_memory_bandwidth_"))
    ]
    assert found == [
        ("container_llc_occupancy_bytes", "0", 1),
        ("container_memory_bandwidth_bytes", "0", 2),
        ("container_memory_bandwidth_local_bytes", "0", 3),
        ("container_llc_occupancy_bytes", "1", 4),
    ]


def test_descriptors_are_unique_and_complete() -> None:
    assert len({item.name for item in DESCRIPTORS}) == len(DESCRIPTORS)
    for message in descriptor_messages(rdt=True):
        assert message.name.startswith("container_")
        assert message.help
        assert tuple(message.label_keys[: len(BASE_LABELS)]) == BASE_LABELS
        assert len(set(message.label_keys)) == len(message.label_keys)


@pytest.mark.parametrize("size", [0, 10, 200, 20_000, 3_000_000])
def test_encoded_messages_make_the_list(size: int) -> None:
    made: list[str] = []

    def make(record: Any) -> api.Container:
        made.append(record.id)
        return api.Container(id=record.id, labels={"l": "x" * size})

    encoded = Encoded(make)
    records = [container("a"), container("b")]
    for _ in range(2):
        answer = api.ListContainersResponse()
        answer.MergeFromString(encoded.repeated(records))
        assert [item.id for item in answer.containers] == ["a", "b"]
        assert len(answer.containers[1].labels["l"]) == size
    assert made == ["a", "b"], "each was made once"
    encoded.of(container("a"))
    assert made == ["a", "b", "a"], "another record of the same ID is another message"


def test_what_is_kept_is_bounded() -> None:
    encoded = Encoded(lambda record: api.Container(id=record.id))
    records = [container(str(number)) for number in range(MAX_KEPT + 10)]
    assert [encoded.of(item) for item in records] == [encoded.of(item) for item in records]
    assert len(encoded) <= MAX_KEPT


def test_a_message_goes_with_its_record() -> None:
    encoded: Encoded[Any] = Encoded(lambda record: api.Container(id=record.id))
    first = container("a")
    encoded.of(first)
    second = container("a")
    encoded.of(second)
    del first
    assert len(encoded) == 1, "the message of the record that is there stays"
    kept = weakref.ref(second)
    del second
    assert kept() is None
    assert len(encoded) == 0


def test_metrics_of_rdt_are_described_where_something_has_them() -> None:
    described = [{item.name for item in descriptor_messages(rdt=rdt)} for rdt in (True, False)]
    assert described[0] - described[1] == {
        "container_llc_occupancy_bytes",
        "container_memory_bandwidth_bytes",
        "container_memory_bandwidth_local_bytes",
    }


def test_a_list_that_no_message_holds_is_told_without_the_texts_of_the_largest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seventeen pods with as many annotations as the Kubernetes API takes, beside one that has few."""
    large = {"note": "x" * (1 << 19), "io.kubernetes.evil/a": "x" * (1 << 19), "io.kubernetes.container.hash": "1"}

    def make(record: Any) -> api.Container:
        labels = {"io.kubernetes.pod.uid": record.id, "app": "web"}
        return api.Container(id=record.id, labels=labels, annotations={"a": "b"} if record.id == "small" else large)

    encoded = Encoded(make)
    records = [container("small"), *(container(str(number)) for number in range(17))]
    for _ in range(2):
        data = encoded.repeated(records)
        assert len(data) < LIST_BYTES
        items = api.ListContainersResponse.FromString(data).containers
        assert [item.id for item in items] == [record.id for record in records]
        assert (items[0].labels["app"], items[0].annotations["a"]) == ("web", "b")
        for item in items[1:]:
            assert dict(item.labels) == {"io.kubernetes.pod.uid": item.id}
            assert dict(item.annotations) == {"io.kubernetes.container.hash": "1"}
    assert [record.getMessage() for record in caplog.records] == [
        "a list is more than a message holds: labels and annotations are left out, such as of 0"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(OF_KUBELETS))
def test_a_list_fits_also_if_the_kubelets_own_are_long(key: str) -> None:
    def make(record: Any) -> api.Container:
        short = dict.fromkeys(OF_KUBELETS - {key}, "1")
        large = {key: "x" * (1 << 20)} if record.id != "small" else {key: "x" * 5000}
        return api.Container(id=record.id, labels=short, annotations=short | large)

    records = [container("small"), *(container(str(number)) for number in range(17))]
    items = api.ListContainersResponse.FromString(Encoded(make).repeated(records)).containers
    assert len(items[0].annotations[key]) == 5000
    for item in items[1:]:
        assert item.labels.keys() == item.annotations.keys() == OF_KUBELETS - {key}
