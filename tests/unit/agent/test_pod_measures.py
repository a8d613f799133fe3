"""How long pods take to start, and what of it is not their own time."""

from __future__ import annotations

import msgspec
import pytest

from podkeep.agent.manager.pod_measures import PodMeasures
from podkeep.agent.metrics import POD_START_SLI_DURATION, POD_START_TOTAL_DURATION, AgentMetrics
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerState, ContainerStateRunning, ContainerStatus, PodStatus

DOCUMENT = """\
{apiVersion: v1, kind: Pod, metadata: {name: web, uid: u1}, spec: {containers: [{name: a, image: "i:1"}]}}
"""


def pod() -> Pod:
    """Return a pod that was created long ago."""
    (found,) = manifest.parse(DOCUMENT, source="f").pods
    metadata = msgspec.structs.replace(found.metadata, creation_timestamp="2020-01-01T00:00:00Z")
    return msgspec.structs.replace(found, metadata=metadata, status=PodStatus(phase="Pending"))


def running() -> PodStatus:
    state = ContainerState(running=ContainerStateRunning())
    return PodStatus(
        phase="Running",
        container_statuses=(
            ContainerStatus(
                name="a", state=state, ready=True, restart_count=0, image="i:1", image_id="", container_id=""
            ),
        ),
    )


def total(metrics: AgentMetrics, name: str) -> float:
    (line,) = [line for line in metrics.text().splitlines() if line.startswith(f"{name}_sum ")]
    return float(line.split()[1])


@pytest.mark.requirement("U81")
@pytest.mark.parametrize("remap", [None, 1e12], ids=["as it is", "with other owners"])
def test_giving_an_image_other_owners_is_not_the_pods_own_time(remap: float | None) -> None:
    metrics, made = AgentMetrics(), pod()
    measures = PodMeasures(metrics)
    measures.seen(made)
    if remap is not None:
        metrics.remaps["u1"] = remap
    measures.status(made, running())
    assert total(metrics, POD_START_TOTAL_DURATION.name) > 1e6
    assert (total(metrics, POD_START_SLI_DURATION.name) > 1e6) == (remap is None)
    assert metrics.remaps == {}


def test_a_pod_that_goes_before_it_starts_is_forgotten() -> None:
    metrics, made = AgentMetrics(), pod()
    measures = PodMeasures(metrics)
    measures.seen(made)
    metrics.remaps["u1"] = 1.0
    measures.forget("u1")
    assert metrics.remaps == {}
