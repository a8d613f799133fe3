"""Where a pod's cgroups are, with both drivers, and which parents are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup import systemd
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.cgroup_driver.slices import CgroupName
from podkeep.runtime.model.layout import cgroup_parents, container_cgroup, sandbox_cgroup
from podkeep.runtime.rpc.convert.sandbox import sandbox_config

POD = "kubepods-burstable-podab_cd.slice"
POD_PATH = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab_cd.slice"


def test_places_of_cgroupfs() -> None:
    assert sandbox_cgroup("/kubepods/pod1", "s1") == "/kubepods/pod1/pod-s1"
    assert container_cgroup("/kubepods/pod1", "s1", "c1") == "/kubepods/pod1/pod-s1/c1"
    path = "/kubepods/pod1/pod-s1/c1"
    assert slices.container_cgroup("/kubepods/pod1/", "s1", "c1") == CgroupName(path=path, oci=path)
    infra = "/kubepods/pod1/pod-s1/infra"
    assert slices.infra_cgroup("/kubepods/pod1", "s1") == CgroupName(path=infra, oci=infra)
    assert slices.direct_cgroup("/a/", "p") == CgroupName(path="/a/p", oci="/a/p")
    assert cgroup_parents("/a/b") == ("/a", "/a/b")


def test_places_of_systemd() -> None:
    assert systemd.expand(POD) == POD_PATH
    assert systemd.expand("a.slice") == "/a.slice"
    sandbox = "kubepods-burstable-podab_cd-s1.slice"
    assert slices.sandbox_slice(POD, "s1") == sandbox
    assert sandbox_cgroup(POD, "s1") == f"{POD_PATH}/{sandbox}"
    assert slices.container_cgroup(POD, "s1", "c1") == CgroupName(
        path=f"{POD_PATH}/{sandbox}/podkeep-c1.scope", oci=f"{sandbox}:podkeep:c1"
    )
    assert container_cgroup(POD, "s1", "c1") == f"{POD_PATH}/{sandbox}/podkeep-c1.scope"
    assert slices.infra_cgroup(POD, "s1").path == f"{POD_PATH}/{sandbox}/podkeep-s1.scope"
    assert slices.direct_cgroup("podkeep.slice", "p") == CgroupName(
        path="/podkeep.slice/podkeep-p.scope", oci="podkeep.slice:podkeep:p"
    )
    assert cgroup_parents(POD) == ()


def test_names_are_short_enough_for_units() -> None:
    parent = f"kubepods-besteffort-pod{'a' * 36}.slice"
    assert len(slices.sandbox_slice(parent, "f" * 64)) <= slices.MAX_UNIT_NAME


@pytest.mark.parametrize(
    ("path", "name"),
    [("/podkeep", "podkeep.slice"), ("/a/b", "a-b.slice"), ("/a-b", "a_b.slice"), ("x.slice", "x.slice")],
)
def test_a_slice_for_a_path(path: str, name: str) -> None:
    assert systemd.slice_of_path(path) == name
    assert slices.check_slice("", name) == name


def parent_of(asked: str, default: str) -> str:
    config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="a", uid="b"))
    config.linux.cgroup_parent = asked
    return sandbox_config(config, "", default_cgroup_parent=default).cgroup_parent


@pytest.mark.parametrize(
    ("asked", "default", "expected"),
    [
        ("", "/podkeep", "/podkeep"),
        ("/kubepods/pod1", "/podkeep", "/kubepods/pod1"),
        ("", "podkeep.slice", "podkeep.slice"),
        (POD, "podkeep.slice", POD),
        (POD_PATH, "podkeep.slice", POD),
        ("system.slice", "podkeep.slice", "system.slice"),
    ],
)
def test_parents(asked: str, default: str, expected: str) -> None:
    assert parent_of(asked, default) == expected


@pytest.mark.parametrize(
    ("asked", "default", "told"),
    [
        (POD, "/podkeep", "cgroupfs"),
        (POD_PATH, "/podkeep", "cgroupfs"),
        ("/kubepods/pod1", "podkeep.slice", "systemd"),
        ("/x/" + POD, "podkeep.slice", "is not where"),
        *((name, "podkeep.slice", "not the name") for name in (
            "-.slice", "a--b.slice", "-a.slice", "a-.slice", ".slice", "a b.slice", "a\n.slice", "x" * 300 + ".slice",
        )),
        ("/" + "a" * 10_000_000, "/podkeep", "cgroup_parent"),
        ("a" * 10_000_000 + ".slice", "podkeep.slice", "cgroup_parent"),
        ("/a/../b", "/podkeep", "cgroup_parent"),
    ],
)  # fmt: skip
def test_parents_that_are_refused(asked: str, default: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.linux\.cgroup_parent") as caught:
        parent_of(asked, default)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_machine_without_systemd_is_told(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="not the init"):
        systemd.require(tmp_path / "none", tmp_path / "bus")
    with pytest.raises(FailedPrecondition, match="bus"):
        systemd.require(tmp_path, tmp_path / "bus")
