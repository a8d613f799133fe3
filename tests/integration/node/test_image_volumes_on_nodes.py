"""Image volumes on several nodes of one API, of which not all have the gate; how long pods with large ones take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from agent.manifests import image_volume, mount, pod, shell
from agent.test_run_image_volumes import push
from node.test_image_volume_gate import NO_PLUGIN, OFF, reader, reasons
from node.test_pod_volumes import log_of

from support.container_mounts import ContainerMounts
from support.daemon import Daemon
from support.images import BUSYBOX, directory, file, layers_layout
from support.kubelet_client import Kubelet
from support.registry import Registry
from support.running_node import RunningNode, own_base

NAMES = ("node-1", "node-2", "node-3")
MIB = 1 << 20
KEYS = (
    "pod_start_sli_duration_seconds_count",
    "kubelet_pod_start_sli_duration_seconds_count",
    "pod_start_sli_duration_seconds_sum",
    "kubelet_pod_start_total_duration_seconds_sum",
)


@pytest.fixture
def three(
    open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts
) -> Iterator[tuple[RunningNode, ...]]:
    """Three nodes of one API; the agent of the first has the gate, those of the others do not."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    with ExitStack() as running:
        first: RunningNode | None = None
        found = []
        for name in NAMES:
            daemon = Daemon(own_base(open_directory), extra=extra, mounts=mounts_of_containers)
            node = RunningNode(daemon, name=name, settings=() if first is None else OFF)
            if first is None:
                first = running.enter_context(node)
            else:
                node.api = first.api
                running.callback(node.daemon.end)
                running.callback(node.end_agent)
                node.daemon.start()
                node.start_agent()
            found.append(node)
        yield tuple(found)


def content(node: RunningNode, name: str) -> str:
    """Return what the pod read in its volume."""
    node.running(name)
    return str(node.until(lambda: log_of(node, name), "the content"))


@pytest.mark.requirement("V90", "V91", "V92")
def test_each_agent_has_a_gate_of_its_own(
    three: tuple[RunningNode, ...], image: str, registry: Registry, tmp_path: Path
) -> None:
    """The API has the gate: it takes every pod. Only the agents that have it, too, give their pods the volume."""
    data = push(registry, tmp_path / "data", "several-nodes:1", "data")
    first, second, third = three
    for node in three:
        node.apply(reader(image, data, f"on-{node.name}"))
    assert content(first, "on-node-1") == "data"
    for node in (second, third):
        name = f"on-{node.name}"
        node.until(lambda: "FailedMount" in reasons(node, name), "FailedMount")  # noqa: B023
        assert reasons(node, name)["FailedMount"].endswith(NO_PLUGIN)
        found = node.get(name)
        assert found is not None
        assert found["status"]["phase"] == "Pending"

    second.end_agent()
    second.settings = ()
    second.start_agent()
    assert content(second, "on-node-2") == "data"
    waits = third.get("on-node-3")
    assert waits is not None
    assert waits["status"]["phase"] == "Pending"
    for node in three:
        node.delete(f"on-{node.name}")
        node.gone(f"on-{node.name}")
        assert node.left_behind() == []


@pytest.mark.requirement("V92")
def test_an_api_without_the_gate_takes_no_image_volume(own_node: RunningNode, image: str) -> None:
    """Its validation has nothing that the volume could be; the agent is never asked."""
    own_node.api.options = ("--set", "api.feature_gates.ImageVolume=false")
    with own_node as node:
        with pytest.raises(AssertionError, match=r"spec\.volumes\[0\]: Required value: must specify a volume type"):
            node.apply(reader(image, image, "web"))
        assert node.get("web") is None


def figure(kubelet: Kubelet, name: str) -> float:
    """Return one of a node's metrics that has no labels; none yet is 0."""
    samples = kubelet.samples("/metrics").get(name) or [({}, 0.0)]
    return float(samples[0][1])


@pytest.mark.requirement("V98")
def test_a_large_volume_beside_the_same_bytes_in_the_image(
    own_node: RunningNode, registry: Registry, tmp_path: Path, record_property: Any
) -> None:
    """Both starts are counted and timed; what comes before, the pulls, is not in the time."""
    bulk = file("bulk", os.urandom(MIB) * 48)
    base = [directory("bin"), file("bin/busybox", BUSYBOX.read_bytes(), 0o755)]
    small, whole = layers_layout(tmp_path / "small", [base]), layers_layout(tmp_path / "whole", [base, [bulk]])
    small_name, whole_name = registry.push(small, "sli-small:1"), registry.push(whole, "sli-whole:1")
    data = registry.push(layers_layout(tmp_path / "bulk", [[bulk]]), "sli-bulk:1")
    script = "/bin/busybox sha256sum {}; /bin/busybox sleep 1000"

    def runs(name: str, image: str, path: str, **spec: Any) -> dict[str, Any]:
        mounts = {"volumeMounts": [mount()]} if spec else {}
        container = shell(image, "", **mounts) | {"command": ["/bin/busybox", "sh", "-c", script.format(path)]}
        return pod(container, name=name, restartPolicy="Always", **spec)

    with own_node as node:
        kubelet = Kubelet(node, tmp_path, user="admin", groups=("system:masters",))
        sums, seconds = set(), {}
        for name, document in (
            ("inside", runs("inside", whole_name, "/bulk")),
            ("volume", runs("volume", small_name, "/volume/bulk", volumes=[image_volume(data)])),
        ):
            before = {key: figure(kubelet, key) for key in KEYS}
            node.apply(document)
            node.running(name)
            sums.add(str(node.until(lambda: log_of(node, name), "the sum")).split()[0])  # noqa: B023

            node.until(lambda: figure(kubelet, KEYS[0]) > before[KEYS[0]], "counted")  # noqa: B023
            count, same_count, seconds[name], total = (figure(kubelet, key) - before[key] for key in KEYS)
            assert count == same_count == 1
            assert 0 < seconds[name] <= total
            node.delete(name)
            node.gone(name)
        assert len(sums) == 1
        for name, value in seconds.items():
            record_property(f"pod_start_sli_duration_seconds of {name}", value)
