"""Where the statistics of a sandbox and a container are read from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from runtime_values import container, sandbox

from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import ContainerState, NamespaceMode, NamespaceOptions
from podkeep.runtime.stats.targets import Targets, pod_cgroup

UID = "8b7a2f1e-0c1d-4f0e-9a57-aaaaaaaaaaaa"
LAYOUT = Layout(root=Path("/var/lib/podkeep"), run=Path("/run/podkeep"))


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"/kubepods/burstable/pod{UID}/pod-s", f"/kubepods/burstable/pod{UID}"),
        (f"/kubepods/pod{UID}/pod-s", f"/kubepods/pod{UID}"),
        (
            f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/podkeep-s",
            f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        ),
        ("/podkeep/pod-s", "/podkeep/pod-s"),
        ("/pod-s", "/pod-s"),
        (f"/other{UID}/pod-s", f"/other{UID}/pod-s"),
    ],
)
def test_the_pods_own_cgroup_counts_if_there_is_one(cgroup: str, expected: str) -> None:
    assert pod_cgroup(cgroup, UID) == expected


def test_a_pod_without_uid_has_its_sandboxs_cgroup() -> None:
    assert pod_cgroup("/kubepods/pod/pod-s", "") == "/kubepods/pod/pod-s"


def test_targets() -> None:
    pod, record = sandbox("s" * 64, cgroup_parent="/podkeep"), container("c" * 64, sandbox_id="s" * 64)
    target = Targets(LAYOUT).sandbox(pod, [record])
    assert target.network == f"/run/podkeep/sandboxes/{'s' * 64}/ns/net"
    assert target.cgroup == f"/podkeep/pod-{'s' * 64}"
    [below] = target.containers
    assert below.cgroup == f"{target.cgroup}/{'c' * 64}"
    data = f"/var/lib/podkeep/containers/{'c' * 64}"
    assert below.written == (f"{data}/upper", f"{data}/volumes", f"/var/lib/podkeep/sandboxes/{'s' * 64}")


def test_what_is_not_there_is_none() -> None:
    pod = sandbox(cgroup_parent="/podkeep", namespaces=NamespaceOptions(network=NamespaceMode.NODE))
    record = container()
    ended = msgspec.structs.replace(record, status=msgspec.structs.replace(record.status, state=ContainerState.EXITED))
    target = Targets(LAYOUT).sandbox(pod, [ended])
    assert target.network is None
    assert target.containers[0].cgroup is None
