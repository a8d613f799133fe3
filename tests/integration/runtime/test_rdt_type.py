"""The type rdt by itself: on a stand-in of resctrl, with real cgroups and processes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from podkeep.base.config import ClassResourcesConfig
from podkeep.base.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.cgroup.resctrl import Group, Resctrl, ResctrlError
from podkeep.kernel.mount import mounts
from podkeep.kernel.process import procfs
from podkeep.runtime.class_resources.model import RDT_NOTES, ClassResource, Level, Target
from podkeep.runtime.class_resources.rdt import plugin, tasks
from podkeep.runtime.class_resources.rdt.monitoring import DomainUsage, Monitoring
from podkeep.runtime.class_resources.rdt.plugin import Rdt
from support.resctrl import hardware
from support.resctrl.hardware import INTEL, Cache, Hardware
from support.resctrl.mount import Resctrl as Mounted

Mount = Callable[..., Mounted]
TWO_CLASSES = """
partitions:
  exclusive:
    l3Allocation: "60%"
    classes:
      gold:
        l3Allocation: "100%"
  shared:
    l3Allocation: "40%"
    mbAllocation: ["50%"]
    classes:
      silver:
"""
ONLY_SILVER = """
partitions:
  shared:
    l3Allocation: "40%"
    classes:
      silver:
"""
OVERLAPPING = """
partitions:
  one:
    l3Allocation: "0-9"
    classes:
      gold:
  two:
    l3Allocation: "5-14"
    classes:
      silver:
"""
_ID = "c" * 64

_PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def cgroups() -> Cgroups:
    return Cgroups()


@pytest.fixture
def mounted(resctrl: Mount) -> Mounted:
    return resctrl(INTEL)


@pytest.fixture
def start(cgroups: Cgroups) -> Iterator[Callable[[str], Target]]:
    """Run a program as a container has it: everything it starts is in one cgroup."""
    running: list[tuple[subprocess.Popen[str], str]] = []

    def run(program: str = "busy") -> Target:
        path = f"/podkeep-rdt-{uuid.uuid4().hex[:8]}"
        cgroups.create(path)
        command = [sys.executable, _PROGRAMS / f"{program}.py"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append((process, path))
        cgroups.add(path, process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        return Target(
            level=Level.CONTAINER,
            id=_ID,
            name="ns/pod/ctr",
            cgroup=path,
            process=procfs.identify(process.pid),
        )

    yield run
    for process, path in running:
        cgroups.kill(path)
        process.communicate()
        cgroups.remove(path)


class Node:
    """What a daemon has: a configuration, resctrl, a state directory."""

    def __init__(self, mounted: Mounted, cgroups: Cgroups, directory: Path) -> None:
        self.mounted, self.cgroups, self.directory = mounted, cgroups, directory

    def load(self, text: str | None) -> ClassResource | None:
        file = self.directory / "rdt.yaml"
        if text is not None:
            file.write_text(text)
        config = ClassResourcesConfig(rdt_config=str(file) if text is not None else "", resctrl=str(self.mounted.path))
        return plugin.load(config, self.cgroups, self.directory)

    def active(self, text: str = TWO_CLASSES) -> ClassResource:
        loaded = self.load(text)
        assert loaded is not None
        loaded.activate(set(), previous=None)
        return loaded


@pytest.fixture
def node(mounted: Mounted, cgroups: Cgroups, tmp_path: Path) -> Node:
    return Node(mounted, cgroups, tmp_path)


def threads(cgroups: Cgroups, target: Target) -> set[int]:
    return {
        int(thread)
        for pid in cgroups.processes(target.cgroup, recursive=True)
        for thread in os.listdir(f"/proc/{pid}/task")
    }


@pytest.mark.requirement("Q6", "Q37", "Q43")
def test_classes_of_the_file_are_offered_to_containers(node: Node) -> None:
    rdt = node.active()

    assert {level: offer.classes for level, offer in rdt.offers().items()} == {Level.CONTAINER: ("gold", "silver")}
    assert not rdt.offers()[Level.CONTAINER].immutable
    assert "not to pods" in rdt.why_not(Level.POD)
    assert node.mounted.schemata("gold")["L3"] == {0: "fff", 1: "fff"}
    assert node.mounted.schemata("silver") == {"L3": {0: "ff000", 1: "ff000"}, "MB": {0: "50", 1: "50"}}


def test_nothing_is_made_before_it_is_in_force(node: Node) -> None:
    loaded = node.load(TWO_CLASSES)

    assert loaded is not None
    assert node.mounted.groups() == set()


@pytest.mark.requirement("Q39")
def test_without_a_file_there_is_no_such_type(node: Node) -> None:
    assert node.load(None) is None


@pytest.mark.requirement("Q39")
def test_without_resctrl_nothing_is_offered_and_it_says_why(cgroups: Cgroups, tmp_path: Path) -> None:
    (tmp_path / "rdt.yaml").write_text(TWO_CLASSES)
    config = ClassResourcesConfig(rdt_config=str(tmp_path / "rdt.yaml"), resctrl=str(tmp_path / "nothing"))
    rdt = plugin.load(config, cgroups, tmp_path)

    assert rdt is not None
    rdt.activate(set(), previous=None)
    assert rdt.offers() == {}
    assert f"resctrl is not mounted at {tmp_path}/nothing" in rdt.why_not(Level.CONTAINER)
    assert "mount -t resctrl" in rdt.why_not(Level.CONTAINER)
    assert "resctrl is not mounted" in str(rdt.describe())
    rdt.deactivate()


@pytest.mark.requirement("Q39")
def test_hardware_that_must_be_there_and_is_not_is_an_error(cgroups: Cgroups, tmp_path: Path) -> None:
    (tmp_path / "rdt.yaml").write_text("options:\n  l3:\n    optional: false\n" + TWO_CLASSES)
    config = ClassResourcesConfig(rdt_config=str(tmp_path / "rdt.yaml"), resctrl=str(tmp_path / "nothing"))

    with pytest.raises(FailedPrecondition, match=r"^class resource rdt: "):
        plugin.load(config, cgroups, tmp_path)


def test_errors_of_the_file_begin_with_the_type(node: Node) -> None:
    with pytest.raises(InvalidArgument, match=r"^class resource rdt: .*rdt\.yaml:\d+"):
        node.load("partitions:\n  one:\n    l3Alocation: 100%\n")


@pytest.mark.requirement("Q36")
def test_the_oci_configuration_names_the_class_and_no_schemata(node: Node) -> None:
    config = {"linux": {"resources": {}}}

    edited = node.active().edit("gold", config)

    assert edited == {"linux": {"resources": {}, "intelRdt": {"closID": "gold"}}}
    assert config == {"linux": {"resources": {}}}


@pytest.mark.requirement("Q36", "Q42")
def test_a_container_is_moved_whole(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    everything = threads(node.cgroups, target)

    rdt.apply(target, "gold")
    in_gold = node.mounted.tasks("gold")
    rdt.verify(target, "gold")
    rdt.apply(target, "silver", previous="gold")
    rdt.verify(target, "silver")

    assert len(everything) == 8
    assert in_gold == everything
    assert node.mounted.tasks("silver") == everything
    assert node.mounted.tasks("gold") == set()


@pytest.mark.requirement("Q1")
def test_containers_share_a_class(node: Node, start: Callable[..., Target]) -> None:
    rdt, one, other = node.active(), start(), start()

    rdt.apply(one, "gold")
    rdt.apply(other, "gold")

    assert node.mounted.tasks("gold") == threads(node.cgroups, one) | threads(node.cgroups, other)


@pytest.mark.requirement("Q42")
def test_a_container_that_forks_all_the_time_is_caught(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start("forking")

    rdt.apply(target, "gold")
    rdt.verify(target, "gold")
    rdt.apply(target, "silver", previous="gold")
    rdt.verify(target, "silver")

    assert node.mounted.tasks("gold") == set()


@pytest.mark.requirement("Q36")
def test_verification_names_threads_that_are_elsewhere(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    assert target.process is not None
    rdt.apply(target, "gold")
    Resctrl(node.mounted.path).add_task(Group(name="silver"), target.process.pid)

    with pytest.raises(
        FailedPrecondition, match=rf"1 threads of ns/pod/ctr are not in class gold: {target.process.pid}"
    ):
        rdt.verify(target, "gold")

    rdt.apply(target, "gold", previous="gold")
    rdt.verify(target, "gold")


@pytest.mark.requirement("Q36")
def test_verification_finds_a_class_that_somebody_changed(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    (node.mounted.path / "gold/schemata").write_text("L3:0=1\n")

    with pytest.raises(FailedPrecondition, match="class gold is not in force: L3 of cache 0 is 1 instead of fff"):
        rdt.verify(target, "gold")

    rdt.apply(target, "gold", previous="gold")
    rdt.verify(target, "gold")


def test_a_group_that_is_gone_is_made_again_for_the_next_container(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    Resctrl(node.mounted.path).remove(Group(name="gold"))
    with pytest.raises(FailedPrecondition, match="group gold of ns/pod/ctr is gone"):
        rdt.verify(target, "gold")

    rdt.apply(target, "gold")

    rdt.verify(target, "gold")


@pytest.mark.requirement("Q36")
@pytest.mark.parametrize("comes", ["container", "command"])
def test_who_was_in_a_group_that_is_gone_is_put_back_with_the_next_that_comes(
    node: Node, start: Callable[..., Target], comes: str
) -> None:
    rdt, target, elsewhere = node.active(), start(), structs.replace(start(), id="d" * 64)
    rdt.apply(target, "gold")
    rdt.apply(elsewhere, "silver")
    Resctrl(node.mounted.path).remove(Group(name="gold"))
    coming = structs.replace(start(), id="e" * 64)
    assert coming.process is not None

    if comes == "container":
        rdt.apply(coming, "gold")
    else:
        enter = rdt.entering(target, "gold")
        assert enter is not None
        enter(coming.process.pid)

    rdt.verify(target, "gold")
    rdt.verify(elsewhere, "silver")
    assert coming.process.pid in node.mounted.tasks("gold")
    assert _ID in Resctrl(node.mounted.path).monitors("gold")


@pytest.mark.requirement("Q9")
@pytest.mark.parametrize(("movable", "operation"), [(True, "read"), (False, "read"), (False, "write")])
def test_a_change_that_fails_leaves_the_former_class(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target], movable: bool, operation: str
) -> None:
    node = Node(resctrl(replace(INTEL, movable_monitors=movable)), cgroups, tmp_path)
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    node.mounted.fail("silver/tasks", operation, errno.EIO)

    with pytest.raises(ResctrlError, match=r"^class resource rdt: .*EIO"):
        rdt.apply(target, "silver", previous="gold")

    rdt.verify(target, "gold")
    assert node.mounted.tasks("silver") == set()
    assert Resctrl(node.mounted.path).monitors("gold") == {_ID}


@pytest.mark.requirement("Q9")
def test_a_first_class_that_fails_leaves_none(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    node.mounted.fail("gold/mon_groups", "mkdir", errno.EIO)

    with pytest.raises(ResctrlError):
        rdt.apply(target, "gold")

    assert node.mounted.tasks("gold") == set()
    assert threads(node.cgroups, target) <= node.mounted.tasks()


def test_the_end_leaves_no_monitoring_group(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    there = Resctrl(node.mounted.path).monitors("gold")
    node.cgroups.kill(target.cgroup)

    rdt.release(target, "gold")
    rdt.release(target, "gold")

    assert there == {_ID}
    assert Resctrl(node.mounted.path).monitors("gold") == set()
    assert node.mounted.groups() == {"gold", "silver"}


def test_what_lives_is_released_to_the_default_group(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")

    rdt.release(target, "gold")

    assert node.mounted.tasks("gold") == set()
    assert threads(node.cgroups, target) <= node.mounted.tasks()


@pytest.mark.requirement("Q16")
def test_a_restart_leaves_containers_where_they_are(node: Node, start: Callable[..., Target]) -> None:
    target = start()
    node.active().apply(target, "gold")
    before = node.mounted.tasks("gold")

    node.active().verify(target, "gold")

    assert node.mounted.tasks("gold") == before == threads(node.cgroups, target)


@pytest.mark.requirement("Q33")
@pytest.mark.parametrize("text", [ONLY_SILVER, None])
def test_a_class_that_is_gone_at_a_start_goes_with_its_last_container(
    node: Node, start: Callable[..., Target], text: str | None
) -> None:
    target = start()
    node.active().apply(target, "gold")
    restarted = node.load(text)
    assert restarted is not None

    restarted.activate({"gold"}, previous=None)
    offered = restarted.offers()
    restarted.verify(target, "gold")
    members = node.mounted.tasks("gold")
    node.cgroups.kill(target.cgroup)
    restarted.release(target, "gold")

    assert all("gold" not in offer.classes for offer in offered.values())
    assert members
    assert "gold" not in node.mounted.groups()


@pytest.mark.requirement("Q37")
def test_a_reload_gives_classes_their_new_meaning(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "silver")
    renewed = node.load(ONLY_SILVER)
    assert renewed is not None

    renewed.activate({"silver"}, previous=rdt)
    renewed.apply(target, "silver", previous="silver")
    renewed.verify(target, "silver")

    assert node.mounted.groups() == {"silver"}
    assert node.mounted.schemata("silver") == {"L3": {0: "ff", 1: "ff"}, "MB": {0: "100", 1: "100"}}


@pytest.mark.requirement("Q37")
def test_a_reload_that_is_refused_changes_nothing(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    before = {name: node.mounted.schemata(name) for name in ("", "gold", "silver")}

    with pytest.raises(InvalidArgument, match=r"^class resource rdt: "):
        node.load(OVERLAPPING)
    renewed = node.load(ONLY_SILVER)
    assert renewed is not None
    node.mounted.fail("silver/schemata", "write", errno.EIO)
    with pytest.raises(ResctrlError):
        renewed.activate({"gold"}, previous=rdt)

    assert {name: node.mounted.schemata(name) for name in ("", *node.mounted.groups())} == before
    rdt.verify(target, "gold")


def test_a_reload_can_be_taken_back(node: Node) -> None:
    rdt = node.active()
    before = {name: node.mounted.schemata(name) for name in ("", "gold", "silver")}
    renewed = node.load(ONLY_SILVER)
    assert renewed is not None

    renewed.activate(set(), previous=rdt)
    rdt.activate(set(), previous=renewed)

    assert {name: node.mounted.schemata(name) for name in ("", *node.mounted.groups())} == before


@pytest.mark.requirement("Q37")
def test_more_classes_than_closids_are_refused_when_loading(resctrl: Mount, cgroups: Cgroups, tmp_path: Path) -> None:
    node = Node(resctrl(Hardware(l3=Cache(num_closids=3))), cgroups, tmp_path)
    (node.mounted.path / "foreign").mkdir()

    with pytest.raises(ResourceExhausted, match=r"^class resource rdt: .*foreign"):
        node.load(TWO_CLASSES.replace('mbAllocation: ["50%"]', ""))


def test_groups_are_given_back_at_the_end(node: Node) -> None:
    rdt = node.active()

    rdt.deactivate()

    assert node.mounted.groups() == set()


RESTRICTED = TWO_CLASSES + "      system/default:\n        l3Allocation: '50%'\n"


@pytest.mark.parametrize("then", ["another file", "no file", "the end"])
def test_the_default_group_gets_everything_back(node: Node, then: str, caplog: pytest.LogCaptureFixture) -> None:
    rdt = node.active(RESTRICTED)
    during = node.mounted.schemata()["L3"]

    if then == "the end":
        rdt.deactivate()
    else:
        restarted = node.load(TWO_CLASSES if then == "another file" else None)
        assert restarted is not None
        restarted.activate(set(), previous=None)

    assert during == {0: "f000", 1: "f000"}
    assert node.mounted.schemata()["L3"] == {0: "fffff", 1: "fffff"}
    assert node.mounted.groups() == ({"gold", "silver"} if then == "another file" else set())
    assert "is restored" not in caplog.text  # nobody else has changed it
    if then != "another file":
        assert node.load(None) is None
        assert not (node.directory / RDT_NOTES).exists()


@pytest.mark.requirement("Q39")
def test_hardware_that_can_only_monitor_offers_nothing(resctrl: Mount, cgroups: Cgroups, tmp_path: Path) -> None:
    node = Node(resctrl(hardware.MONITORING_ONLY), cgroups, tmp_path)

    rdt = node.active()

    assert rdt.offers() == {}
    assert "can only monitor" in rdt.why_not(Level.CONTAINER)
    rdt.deactivate()


def test_a_reload_that_is_taken_back_leaves_groups_the_runtimes_own(node: Node) -> None:
    rdt = node.active()
    renewed = node.load(ONLY_SILVER)
    assert renewed is not None
    node.mounted.fail("silver/schemata", "write", errno.EIO)
    with pytest.raises(ResctrlError):
        renewed.activate(set(), previous=rdt)

    rdt.deactivate()

    assert node.mounted.groups() == set()


@pytest.mark.requirement("Q41")
def test_a_container_is_counted(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    monitoring = Monitoring(Resctrl(node.mounted.path))
    rdt.apply(target, "gold")
    rdt.apply(target, "gold", previous="gold")
    counted = {"llc_occupancy": 1 << 20, "mbm_total_bytes": 5000, "mbm_local_bytes": "Unavailable"}
    for event, value in counted.items():
        node.mounted.count(event, value, group="gold", domain=1, mon_group=_ID)

    usage = monitoring.usage("gold", _ID)

    assert usage[1] == DomainUsage(domain=1, occupancy=1 << 20, total_bytes=5000)
    assert node.mounted.tasks(f"gold/mon_groups/{_ID}") == threads(node.cgroups, target)
    assert monitoring.usage("gold", "d" * 64) == ()


@pytest.mark.parametrize("movable", [True, False])
def test_a_change_of_class_leaves_one_monitoring_group(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target], movable: bool
) -> None:
    node = Node(resctrl(replace(INTEL, movable_monitors=movable)), cgroups, tmp_path)
    rdt, target = node.active(), start()

    rdt.apply(target, "gold")
    rdt.apply(target, "silver", previous="gold")

    resctrl = Resctrl(node.mounted.path)
    assert (resctrl.monitors("gold"), resctrl.monitors("silver")) == (set(), {_ID})
    assert node.mounted.tasks(f"silver/mon_groups/{_ID}") == threads(node.cgroups, target)


@pytest.mark.requirement("Q36")
def test_without_an_rmid_a_container_runs_in_its_class_and_it_is_said_once(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target], caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(
        resctrl(Hardware(l3=INTEL.l3, mb=INTEL.mb, monitoring=hardware.Monitoring(num_rmids=3))), cgroups, tmp_path
    )
    rdt, target = node.active(), start()

    with caplog.at_level(logging.WARNING):
        rdt.apply(target, "gold")
        rdt.apply(target, "silver", previous="gold")
    rdt.verify(target, "silver")

    said = [record for record in caplog.records if "no RMID left" in record.getMessage()]
    assert len(said) == 1
    assert "Out of RMIDs" in said[0].getMessage()


@pytest.mark.requirement("Q37")
def test_a_class_gets_the_rmid_of_a_container_that_is_counted(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target], caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(resctrl(replace(INTEL, monitoring=hardware.Monitoring(num_rmids=4))), cgroups, tmp_path)
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    there = Resctrl(node.mounted.path)
    before = there.monitors("gold")

    renewed = node.load(f"{TWO_CLASSES}      bronze:\n")
    assert renewed is not None
    renewed.activate({"gold"}, previous=rdt)
    renewed.apply(target, "gold", previous="gold")

    renewed.verify(target, "gold")
    assert (before, there.monitors("gold")) == ({_ID}, set())
    assert node.mounted.groups() == {"gold", "silver", "bronze"}
    assert f"container {_ID} is not monitored any more: group bronze needs its RMID" in caplog.text


def test_hardware_that_counts_nothing_is_no_matter(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target]
) -> None:
    node = Node(resctrl(hardware.HASWELL), cgroups, tmp_path)
    rdt, target = node.active(), start()

    rdt.apply(target, "gold")

    rdt.verify(target, "gold")
    assert node.mounted.tasks("gold") == threads(cgroups, target)


def test_monitoring_groups_of_containers_that_ended_unseen_are_swept(node: Node) -> None:
    node.active()
    for name in ("e" * 64, "mine"):
        (node.mounted.path / "gold/mon_groups" / name).mkdir()

    node.active()

    assert Resctrl(node.mounted.path).monitors("gold") == {"mine"}


def test_what_cannot_be_swept_keeps_no_class_from_being_in_force(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    rdt = node.active()
    left = f"gold/mon_groups/{'e' * 64}"
    (node.mounted.path / left).mkdir()
    node.mounted.fail(left, "rmdir", errno.EIO)
    renewed = node.load(ONLY_SILVER + "      gold:\n")
    assert renewed is not None

    renewed.activate(set(), previous=rdt)

    assert node.mounted.schemata("gold")["L3"] == {0: "ff", 1: "ff"}
    assert "not tidied up" in caplog.text


def test_a_container_that_ended_is_in_no_class(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    node.cgroups.kill(target.cgroup)

    rdt.apply(target, "gold")
    rdt.verify(target, "gold")

    assert node.mounted.tasks("gold") == set()
    rdt.release(target, "gold")


def test_an_unmounted_resctrl_is_noticed_before_anything_is_made(node: Node, tmp_path: Path) -> None:
    rdt = node.active()
    assert isinstance(rdt, Rdt)
    rdt.check(Level.CONTAINER, "gold")

    with contextlib.ExitStack() as hidden:
        mounts.tmpfs(node.mounted.path)
        hidden.callback(mounts.unmount, node.mounted.path)
        with pytest.raises(FailedPrecondition, match=r"^class resource rdt: resctrl is not mounted"):
            rdt.check(Level.CONTAINER, "gold")
        rdt.release(Target(level=Level.CONTAINER, id=_ID, name="x", cgroup="/gone"), "gold")


@pytest.mark.requirement("Q9", "Q33")
def test_a_container_can_be_taken_back_into_a_class_that_is_gone(node: Node, start: Callable[..., Target]) -> None:
    target = start()
    node.active().apply(target, "gold")
    rdt = node.load(ONLY_SILVER)
    assert rdt is not None
    rdt.activate({"gold"}, previous=None)

    rdt.apply(target, "silver", previous="gold")
    rdt.apply(target, "gold", previous="silver")

    rdt.verify(target, "gold")
    rdt.release(target, "gold")
    assert node.mounted.groups() == {"silver"}


@pytest.mark.requirement("Q42")
@pytest.mark.parametrize("counted", [True, False])
def test_a_command_enters_the_class_of_its_container(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path, start: Callable[..., Target], counted: bool
) -> None:
    node = Node(resctrl(INTEL if counted else replace(INTEL, monitoring=None)), cgroups, tmp_path)
    rdt, target, command = node.active(), start(), start()
    rdt.apply(target, "gold")
    enter = rdt.entering(target, "gold")
    assert enter is not None
    assert command.process is not None

    enter(command.process.pid)

    expected = set(map(int, os.listdir(f"/proc/{command.process.pid}/task")))
    assert expected <= node.mounted.tasks("gold")
    if counted:
        assert expected <= node.mounted.tasks(f"gold/mon_groups/{_ID}")


def test_what_comes_from_another_control_group_is_counted_as_well(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    rdt.apply(target, "gold")
    resctrl = Resctrl(node.mounted.path)
    assert target.process is not None
    resctrl.add_task(Group(name="silver"), target.process.pid)

    Monitoring(resctrl).watch("gold", _ID, partial(procfs.threads, target.process.pid))

    assert target.process.pid in node.mounted.tasks(f"gold/mon_groups/{_ID}")


def test_a_command_that_ended_enters_nothing(node: Node, start: Callable[..., Target]) -> None:
    rdt, target = node.active(), start()
    assert target.process is not None
    node.cgroups.kill(target.cgroup)
    os.waitid(os.P_PID, target.process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
    enter = rdt.entering(target, "gold")
    assert enter is not None

    enter(target.process.pid)

    assert tasks.in_use(Resctrl(node.mounted.path), Group(name="gold")) == 0


def test_a_command_does_not_fail_for_a_class_that_is_gone(node: Node, start: Callable[..., Target]) -> None:
    target = start()
    node.active().apply(target, "gold")
    rdt = node.load(ONLY_SILVER)
    assert rdt is not None
    assert target.process is not None
    rdt.activate({"gold"}, previous=None)
    Resctrl(node.mounted.path).remove(Group(name="gold"))
    enter = rdt.entering(target, "gold")
    assert enter is not None

    enter(target.process.pid)

    assert target.process.pid in node.mounted.tasks()


@pytest.mark.requirement("Q43")
def test_restarts_do_not_shrink_what_a_percentage_of_bandwidth_means(
    resctrl: Mount, cgroups: Cgroups, tmp_path: Path
) -> None:
    node = Node(resctrl(hardware.AMD), cgroups, tmp_path)
    text = """
partitions:
  all:
    mbAllocation: ["50%"]
    classes:
      gold:
      system/default:
"""

    found = []
    for _ in range(3):
        node.active(text)
        found.append(node.mounted.schemata("gold")["MB"][0])

    assert found == ["1024", "1024", "1024"]
