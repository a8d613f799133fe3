"""The table of the agent's metrics, and what is counted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.agent import metrics as table
from podkeep.agent.metrics import AgentMetrics, size_bucket
from podkeep.agent.runtime_calls import observer, operation
from podkeep.base.errors import Unavailable
from podkeep.base.metrics import Kind, Metric
from podkeep.cri.v1 import api_pb2

AGENT = Path(table.__file__).parent


def test_every_metric_of_the_table_is_counted_somewhere() -> None:
    """A metric that is always 0 would be a lie."""
    text = "".join(path.read_text() for path in AGENT.rglob("*.py") if path != Path(table.__file__))
    names = [name for name, value in vars(table).items() if isinstance(value, Metric)]
    assert len(names) == len(table.ALL)
    assert [name for name in names if name not in text] == []


OWN = {"podkeep_static_pods_left_out"}
"""A kubelet says in its log only that a manifest is wrong."""


def test_names_are_kubelets() -> None:
    assert {metric.name for metric in table.ALL if metric.name.startswith("podkeep_")} == OWN
    for metric in table.ALL:
        assert metric.name.startswith(("kubelet_", "prober_", "podkeep_"))
        assert metric.kind is Kind.HISTOGRAM or not metric.buckets
    names = [name for metric in table.ALL for name in (metric.name, *metric.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("size", "label"),
    [(0, "N/A"), (1, "0-10MB"), (10 << 20, "0-10MB"), ((10 << 20) + 1, "10MB-100MB"), (101 << 30, "GT100GB")],
)
def test_sizes_of_images(size: int, label: str) -> None:
    assert size_bucket(size) == label


@pytest.mark.parametrize(
    ("rpc", "name"),
    [
        ("RunPodSandbox", "run_podsandbox"),
        ("ListPodSandboxStats", "list_podsandbox_stats"),
        ("PodSandboxStatus", "podsandbox_status"),
        ("UpdateContainerResources", "update_container"),
        ("ExecSync", "exec_sync"),
        ("ImageFsInfo", "image_fs_info"),
        ("Version", "version"),
    ],
)
def test_kubelets_names_of_calls(rpc: str, name: str) -> None:
    assert operation(rpc) == name


def test_sandboxes_are_counted_by_how_they_ended_and_whose_users_they_have() -> None:
    metrics = AgentMetrics()
    observe = observer(metrics)
    request = api_pb2.RunPodSandboxRequest(runtime_handler="crun")
    options = request.config.linux.security_context.namespace_options
    options.pid = api_pb2.CONTAINER
    observe("RunPodSandbox", request, 0.1, None)
    options.userns_options.mode = api_pb2.POD
    observe("RunPodSandbox", request, 0.1, Unavailable("away"))
    assert [
        metrics.value(metric)
        for metric in (
            table.STARTED_PODS,
            table.STARTED_PODS_ERRORS,
            table.STARTED_USERNS_PODS,
            table.STARTED_USERNS_PODS_ERRORS,
        )
    ] == [2, 1, 1, 1]
    assert metrics.value(table.RUN_SANDBOX_ERRORS, "crun") == 1
    assert metrics.value(table.RUNTIME_OPERATIONS, "run_podsandbox") == 2
    assert metrics.value(table.RUNTIME_OPERATIONS_DURATION, "run_podsandbox") == 2
    assert metrics.value(table.RUNTIME_OPERATIONS_ERRORS, "run_podsandbox") == 1
