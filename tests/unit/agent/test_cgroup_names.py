"""Where a pod's cgroup is: with both cgroup drivers, in every class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podkeep.agent.resources import cgroup_names
from podkeep.agent.resources.cgroup_names import PodCgroup
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.base.config import Config, RuntimeConfig

UID = "00000000-0000-0000-0000-00000000000a"
UNIT_UID = UID.replace("-", "_")
RESOURCES: dict[str, dict[str, Any]] = {
    "Guaranteed": {"limits": {"cpu": "1", "memory": "1Mi"}},
    "Burstable": {"requests": {"cpu": "1"}},
    "BestEffort": {},
}


def make(kind: str) -> Pod:
    """Return a pod of a class."""
    container = {"name": "c", "image": "i", "resources": RESOURCES[kind]}
    document = {"metadata": {"name": "p", "uid": UID}, "spec": {"containers": [container]}}
    return manifest.parse(manifest_text(document), source="test").pods[0]


def manifest_text(document: dict[str, Any]) -> str:
    """Return a manifest of one pod; JSON is YAML."""
    return json.dumps({"apiVersion": "v1", "kind": "Pod", **document})


@pytest.mark.parametrize(
    ("parent", "driver", "root"),
    [
        ("/podkeep", "cgroupfs", "/podkeep"),
        ("/podkeep", "systemd", "podkeep.slice"),
        ("/a-b/c", "systemd", "a_b-c.slice"),
        ("x.slice", "systemd", "x.slice"),
    ],
)
def test_the_root(parent: str, driver: Any, root: str) -> None:
    assert cgroup_names.root(Config(runtime=RuntimeConfig(cgroup_parent=parent, cgroup_driver=driver))) == root


@pytest.mark.parametrize(
    ("root", "kind", "name"),
    [
        ("/podkeep", "Guaranteed", f"/podkeep/pod{UID}"),
        ("/podkeep/", "Burstable", f"/podkeep/burstable/pod{UID}"),
        ("/", "BestEffort", f"/besteffort/pod{UID}"),
        ("podkeep.slice", "Guaranteed", f"podkeep-pod{UNIT_UID}.slice"),
        ("podkeep.slice", "Burstable", f"podkeep-burstable-pod{UNIT_UID}.slice"),
        ("a-b.slice", "BestEffort", f"a-b-besteffort-pod{UNIT_UID}.slice"),
    ],
)
def test_a_pod(root: str, kind: str, name: str) -> None:
    assert cgroup_names.of_pod(root, make(kind)) == name
    assert name in {cgroup.name for cgroup in cgroup_names.possible(root, UID)}


def test_where_a_pod_can_be() -> None:
    assert cgroup_names.possible("/p", "u-1") == (
        PodCgroup(name="/p/podu-1", level=None, kind="Guaranteed"),
        PodCgroup(name="/p/burstable/podu-1", level="/p/burstable", kind="Burstable"),
        PodCgroup(name="/p/besteffort/podu-1", level="/p/besteffort", kind="BestEffort"),
    )
    assert cgroup_names.possible("p.slice", "u-1") == (
        PodCgroup(name="p-podu_1.slice", level=None, kind="Guaranteed"),
        PodCgroup(name="p-burstable-podu_1.slice", level="p-burstable.slice", kind="Burstable"),
        PodCgroup(name="p-besteffort-podu_1.slice", level="p-besteffort.slice", kind="BestEffort"),
    )
