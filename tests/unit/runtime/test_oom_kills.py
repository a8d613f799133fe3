"""Whom the kernel killed because memory ran out, also if systemd removed the cgroup that counted it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from runtime_values import sandbox

from podkeep.base.ids import ContainerID
from podkeep.kernel.cgroup.cgroups import CgroupLayout, Cgroups
from podkeep.runtime.lifecycle.oom_kills import OomKills, at_end
from podkeep.runtime.model.layout import container_cgroup, sandbox_cgroup
from podkeep.runtime.model.records import Sandbox

ONE, TWO, THREE = (ContainerID(letter * 64) for letter in "cde")


class Kernel:
    """Files of cgroups of version 2, which count also what happened below, and go on counting what was."""

    def __init__(self, root: Path, parent: str, noted: int = 0) -> None:
        self.root = root
        (root / "cgroup.controllers").write_text("memory\n")
        self.cgroups = Cgroups(layout=CgroupLayout(version=2, hierarchies=(root,)))
        before = sandbox(cgroup_parent=parent)
        self.sandbox: Sandbox = msgspec.structs.replace(
            before, status=msgspec.structs.replace(before.status, oom_kills=noted)
        )
        self.count(sandbox_cgroup(parent, before.id), 0)

    def count(self, path: str, kills: int) -> None:
        directory = self.root / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {kills}\noom_kill {kills}\n")

    def pod(self, kills: int) -> None:
        self.count(sandbox_cgroup(self.sandbox.config.cgroup_parent, self.sandbox.id), kills)

    def container(self, container: ContainerID, kills: int) -> None:
        self.count(container_cgroup(self.sandbox.config.cgroup_parent, self.sandbox.id, container), kills)

    def at_end(self, container: ContainerID, *living: ContainerID) -> OomKills:
        return at_end(self.cgroups, self.sandbox, container, living)


PARENTS = pytest.mark.parametrize("parent", ["/kubepods/pod1", "kubepods-pod1.slice"])


@PARENTS
def test_a_cgroup_that_is_there_has_counted_its_own(parent: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, parent)
    kernel.pod(5)
    kernel.container(ONE, 2)
    kernel.container(TWO, 3)
    assert kernel.at_end(ONE, TWO) == OomKills(own=2, ended=2)


@PARENTS
def test_what_no_living_container_counts_is_of_the_one_whose_cgroup_is_gone(parent: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, parent)
    kernel.pod(4)
    kernel.container(TWO, 3)
    assert kernel.at_end(ONE, TWO) == OomKills(own=1, ended=1)


@PARENTS
def test_what_was_found_for_one_that_ended_before_is_not_found_again(parent: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, parent, noted=1)
    kernel.pod(4)
    kernel.container(TWO, 3)
    assert kernel.at_end(THREE, TWO) == OomKills(own=0, ended=1)
    kernel.pod(1)
    assert kernel.at_end(THREE) == OomKills(own=0, ended=1)


def test_what_is_killed_while_the_files_are_read_blames_none_that_ended(tmp_path: Path) -> None:
    """The count of a living container may be newer than that of the pod."""
    kernel = Kernel(tmp_path, "kubepods-pod1.slice", noted=1)
    kernel.pod(2)
    kernel.container(TWO, 3)
    assert kernel.at_end(ONE, TWO) == OomKills(own=0, ended=1)


@PARENTS
def test_a_pod_that_is_gone_or_counted_nothing_says_nothing(parent: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, parent)
    assert kernel.at_end(ONE, TWO) == OomKills(own=0, ended=0)
    (tmp_path / sandbox_cgroup(parent, kernel.sandbox.id).lstrip("/") / "memory.events").unlink()
    assert kernel.at_end(ONE, TWO) == OomKills(own=0, ended=0)


def test_version_1_counts_each_cgroup_alone(tmp_path: Path) -> None:
    """crun with systemd has the container in a cgroup below its scope, and version 1 counts nothing in the scope."""
    root = tmp_path / "memory"
    cgroups = Cgroups(layout=CgroupLayout(version=1, hierarchies=(root,)))
    pod = sandbox(cgroup_parent="kubepods-pod1.slice")
    scope = root / container_cgroup("kubepods-pod1.slice", pod.id, ONE).lstrip("/")
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
    for directory, kills in {scope: 0, scope / "container": 2, scope.parent: 0}.items():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.oom_control").write_text(text.format(kills))
    assert at_end(cgroups, pod, ONE, []) == OomKills(own=2, ended=0)
