"""What the hardware counts for containers in classes of RDT, in the metrics of pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from podkeep.cri.v1 import api_pb2 as api
from support import rdt
from support.cri import Pods
from support.mortal import Mortal
from support.rdt import RdtNode
from support.resctrl.fixture import Mount
from support.resctrl.hardware import INTEL, Monitoring

METRICS = (
    "container_llc_occupancy_bytes",
    "container_memory_bandwidth_bytes",
    "container_memory_bandwidth_local_bytes",
)
Counted = dict[tuple[str, str], int]


def counted(pods: Pods, container: str) -> Counted:
    """Return the metrics of RDT by name and cache."""
    found = pods.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest()).pod_metrics
    samples = [
        sample
        for metrics in found
        for item in metrics.container_metrics
        if item.container_id == container
        for sample in item.metrics
    ]
    return {(sample.name, sample.label_values[-1]): sample.value.value for sample in samples if sample.name in METRICS}


@pytest.mark.requirement("Q40", "Q41")
def test_a_container_in_a_class_is_counted_and_keeps_its_counts(resctrl: Mount, mortal: Mortal) -> None:
    node = RdtNode(mortal.daemon, resctrl(INTEL))
    pods = mortal.start()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, rdt="gold")
    plain = pods.launch(sandbox, name="plain")
    values = {"llc_occupancy": 1 << 20, "mbm_total_bytes": 5000, "mbm_local_bytes": "Unavailable"}
    for event, value in values.items():
        node.resctrl.count(event, value, group="gold", domain=1, mon_group=container)
    expected = {("container_llc_occupancy_bytes", "1"): 1 << 20, ("container_memory_bandwidth_bytes", "1"): 5000}

    before = counted(pods, container)
    rdt.update(pods, container, rdt="silver")
    after = counted(pods, container)

    assert {key: value for key, value in before.items() if key[1] == "1"} == expected
    assert {key: value for key, value in after.items() if key[1] == "1"} == expected
    assert counted(pods, plain) == {}
    pods.remove(sandbox)


@pytest.mark.requirement("Q41")
def test_without_an_rmid_there_are_all_other_metrics(resctrl: Mount, mortal: Mortal) -> None:
    node = RdtNode(mortal.daemon, resctrl(replace(INTEL, monitoring=Monitoring(num_rmids=4))))
    pods = mortal.start()
    sandbox = pods.run()
    container = rdt.launch(pods, sandbox, rdt="gold")

    assert pods.host_pid(container) in node.resctrl.tasks("gold")
    assert counted(pods, container) == {}
    assert "has no RMID left" in mortal.daemon.log.read_text()
    pods.remove(sandbox)
