"""Groups of resctrl from the start of the daemon to its end, when the configuration changes, and other people's."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cli.core.output import EXIT_CONFIGURATION
from podkeep.cli.main import EXIT_FAILED
from podkeep.runtime.class_resources.model import RDT_NOTES
from support import rdt
from support.class_types import in_force
from support.cri import error_of
from support.daemon import Daemon
from support.mortal import Mortal
from support.rdt import CLASSES, RdtNode
from support.resctrl.fixture import Mount
from support.resctrl.hardware import HASWELL, INTEL, Cache, Hardware, MemoryBandwidth, Monitoring

WITHOUT_SILVER = CLASSES.replace("      silver: {}\n", "")
MORE_GOLD = CLASSES.replace("60%", "80%").replace("40%", "20%")
PLAIN = "partitions: {all: {l3Allocation: 100%, classes: {a: {}, b: {}, c: {}}}}\n"


@pytest.fixture
def node(resctrl: Mount, mortal: Mortal) -> RdtNode:
    """A daemon with the classes of support/rdt.py, not started."""
    return RdtNode(mortal.daemon, resctrl())


@pytest.fixture
def stopped(resctrl: Mount, own_daemon: Daemon) -> Iterator[RdtNode]:
    """A daemon that must not start, on four CLOSIDs; it leaves resctrl as it was."""
    node = RdtNode(own_daemon, resctrl(HASWELL), PLAIN)
    yield node
    assert node.resctrl.groups() == set()


def refusal(node: RdtNode) -> str:
    """Run a daemon that must not start, and return its last words."""
    done = node.daemon.run("runtime", "--log-level", "error")
    assert done.returncode in {EXIT_FAILED, EXIT_CONFIGURATION}, done.stderr
    return done.stderr


@pytest.mark.requirement("Q37")
def test_groups_are_there_from_the_start_and_gone_at_the_end(node: RdtNode, mortal: Mortal) -> None:
    root = node.resctrl.schemata()
    assert node.resctrl.groups() == set()

    mortal.start()
    assert node.resctrl.groups() == {"gold", "silver", "bronze"}
    assert node.masks("silver") == node.masks("")
    node.write("")
    node.reload("configuration read again")

    assert node.resctrl.groups() == set()
    assert node.resctrl.schemata() == root


@pytest.mark.requirement("Q37")
def test_reload_gives_the_classes_their_new_meaning(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()
    container = rdt.launch(pods, pods.run(), rdt="gold")
    before, members = node.masks("gold"), node.members(pods, container)

    node.write(MORE_GOLD.replace("silver", "tin"))
    node.reload("configuration read again")

    assert node.resctrl.groups() == {"gold", "tin", "bronze"}
    assert all(mask.bit_count() > before[domain].bit_count() for domain, mask in node.masks("gold").items())
    assert node.resctrl.tasks("gold") == members
    assert [item.Name for item in rdt.offered(pods)["rdt"].classes] == ["bronze", "gold", "tin"]
    refused = error_of(lambda: rdt.update(pods, container, "silver"), InvalidArgument)
    assert refused.startswith("class resource rdt: no class 'silver'")
    rdt.update(pods, container, "tin")
    assert node.resctrl.tasks("tin") == members


@pytest.mark.requirement("Q29")
def test_reload_reads_the_file_of_classes_though_config_toml_is_the_same(node: RdtNode, mortal: Mortal) -> None:
    pods = mortal.start()

    node.file.write_text(MORE_GOLD + "      tin: {}\n")
    node.reload("configuration read again")

    assert "tin" in node.resctrl.groups()
    assert [item.Name for item in rdt.offered(pods)["rdt"].classes] == ["bronze", "gold", "silver", "tin"]


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (WITHOUT_SILVER, "class 'silver' would be gone"),
        (CLASSES.replace("classes:", "clases:"), "clases"),
        (CLASSES.replace("40%", "60%"), "partition"),
        ("", "class 'silver' would be gone"),
    ],
    ids=["a class in use is gone", "a typo", "too much of the cache", "RDT is switched off"],
)
def test_a_reload_that_is_refused_changes_nothing(node: RdtNode, mortal: Mortal, classes: str, says: str) -> None:
    pods = mortal.start()
    container = rdt.launch(pods, pods.run(), rdt="silver")
    before = node.machine()

    node.write(classes)
    told = node.reload("the configuration stays as it was")

    assert says in told
    assert node.machine() == before
    assert in_force(pods, container=container) == {"rdt": "silver"}
    rdt.update(pods, container, "gold")
    node.write(CLASSES)
    node.reload("configuration read again")


def test_a_reload_that_the_kernel_refuses_is_taken_back(resctrl: Mount, mortal: Mortal) -> None:
    node = RdtNode(mortal.daemon, resctrl(INTEL))
    pods = mortal.start()
    rdt.launch(pods, pods.run(), rdt="gold")
    before = node.machine()

    node.write(MORE_GOLD + "      tin: {}\n")
    node.resctrl.fail("silver/schemata", "write", errno.ENODEV)
    told = node.reload("the configuration stays as it was")

    assert "No such device" in told
    assert node.machine() == before
    node.reload("configuration read again")
    assert "tin" in node.resctrl.groups()


def test_more_classes_than_the_hardware_has(stopped: RdtNode) -> None:
    stopped.write(PLAIN.replace("c: {}", "c: {}, d: {}"))

    said = refusal(stopped)

    assert said.startswith("podkeep: class resource rdt: ")
    assert "5 control groups are needed, and this machine has 4" in said


def test_foreign_groups_count(stopped: RdtNode) -> None:
    theirs = stopped.resctrl.path / "theirs"
    theirs.mkdir()

    said = refusal(stopped)

    assert "1 of others (theirs)" in said
    assert stopped.resctrl.groups() == {"theirs"}
    theirs.rmdir()


@pytest.mark.parametrize(
    ("machine", "status"),
    [
        (Hardware(l3=Cache(num_closids=4, io_alloc=True)), "Out of CLOSIDs"),
        (Hardware(l3=Cache(), monitoring=Monitoring(num_rmids=3)), "Out of RMIDs"),
    ],
    ids=["classes that devices have", "counters"],
)
def test_what_runs_out_only_when_it_is_tried_is_said_in_the_kernels_words(
    resctrl: Mount, own_daemon: Daemon, machine: Hardware, status: str
) -> None:
    node = RdtNode(own_daemon, resctrl(machine), PLAIN)

    said = refusal(node)

    assert said.startswith("podkeep: class resource rdt: ")
    assert f"the kernel says: {status}" in said
    assert "'c'" in said
    assert node.resctrl.groups() == set()


def test_exclusive_groups_of_others_may_leave_no_cache(resctrl: Mount, own_daemon: Daemon) -> None:
    machine = Hardware(l3=Cache(cbm_mask=0xFF, domains=(0,)))
    node = RdtNode(own_daemon, resctrl(machine), PLAIN)
    theirs = node.resctrl.path / "theirs"
    theirs.mkdir()
    (theirs / "schemata").write_text("L3:0=f0\n")
    (node.resctrl.path / "schemata").write_text("L3:0=f\n")
    (theirs / "mode").write_text("exclusive\n")

    said = refusal(node)

    assert "Overlaps with exclusive group" in said
    assert node.resctrl.groups() == {"theirs"}
    assert node.resctrl.schemata("theirs") == {"L3": {0: "f0"}}
    theirs.rmdir()


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (PLAIN + "typo: 1\n", "typo"),
        (PLAIN.replace("a: {}", "default: {}"), "default"),
        (PLAIN.replace("100%", "200%"), "'200'"),
        (PLAIN.replace("{}", "{l3Allocation: 0x5}", 1), "0x5"),
        (PLAIN.replace("{}", "{l3Allocation: 0x1}", 1), "0x1"),
        ("options: {mb: {optional: false}}\n" + PLAIN.replace("l3A", "mbAllocation: [50%], l3A"), "mb"),
    ],
    ids=["unknown key", "reserved name", "percentage", "gap in a mask", "too few bits", "hardware that must be there"],
)
def test_a_wrong_file_stops_the_start(stopped: RdtNode, classes: str, says: str) -> None:
    stopped.write(classes)

    said = refusal(stopped)

    assert said.startswith("podkeep: ")
    assert says in said
    assert "rdt.yaml:" in said


def test_a_group_that_cannot_be_written_stops_the_start_and_is_taken_back(stopped: RdtNode) -> None:
    stopped.resctrl.fail("", "mkdir", errno.ENOMEM)

    said = refusal(stopped)

    assert "Cannot allocate memory" in said


def test_a_foreign_group_of_a_classs_name_is_adopted_and_never_removed(node: RdtNode, mortal: Mortal) -> None:
    gold = node.resctrl.path / "gold"
    gold.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as theirs:
        (gold / "tasks").write_text(f"{theirs.pid}\n")
        before = node.resctrl.schemata("gold")
        pods = mortal.start()
        sandbox = pods.run()
        container = rdt.launch(pods, sandbox, rdt="gold")

        assert node.resctrl.schemata("gold") != before
        assert node.resctrl.tasks("gold") == {theirs.pid} | node.members(pods, container)
        pods.remove(sandbox)
        node.write("")
        node.reload("configuration read again")

        assert node.resctrl.groups() == {"gold"}
        assert node.resctrl.tasks("gold") == {theirs.pid}
        theirs.kill()
    gold.rmdir()


def test_a_foreign_group_of_another_name_is_left_alone(node: RdtNode, mortal: Mortal) -> None:
    theirs = node.resctrl.path / "theirs"
    theirs.mkdir()
    (theirs / "mon_groups/one").mkdir()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (theirs / "tasks").write_text(f"{process.pid}\n")
        before = node.resctrl.schemata("theirs")
        mortal.start()
        node.write(MORE_GOLD)
        node.reload("configuration read again")
        node.write("")
        node.reload("configuration read again")

        assert node.resctrl.groups() == {"theirs"}
        assert node.resctrl.schemata("theirs") == before
        assert node.resctrl.tasks("theirs") == {process.pid}
        assert [path.name for path in (theirs / "mon_groups").iterdir()] == ["one"]
        process.kill()
    theirs.rmdir()


def test_a_group_that_somebody_made_in_place_of_ours_is_theirs(node: RdtNode, mortal: Mortal) -> None:
    mortal.start()
    assert mortal.daemon.stop() == 0
    for name in node.resctrl.groups():
        (node.resctrl.path / name).rmdir()
    (node.resctrl.path / "silver").mkdir()

    node.write(WITHOUT_SILVER)
    mortal.start()

    assert node.resctrl.groups() == {"gold", "bronze", "silver"}
    (node.resctrl.path / "silver").rmdir()


def test_a_file_system_that_was_mounted_anew_has_nothing_of_ours(resctrl: Mount, mortal: Mortal) -> None:
    node = RdtNode(mortal.daemon, resctrl(INTEL))
    mortal.start()
    assert mortal.daemon.stop() == 0
    node.resctrl = resctrl(Hardware(l3=Cache(cbm_mask=0x7FF), mb=MemoryBandwidth()))
    (node.resctrl.path / "gold").mkdir()
    node.write(CLASSES)

    mortal.start()
    node.write("")
    node.reload("configuration read again")

    assert node.resctrl.groups() == {"gold"}


def test_notes_that_cannot_be_read_make_every_group_somebody_elses(node: RdtNode, mortal: Mortal) -> None:
    mortal.start()
    mortal.daemon.kill()
    Path(mortal.daemon.layout.root / RDT_NOTES).write_text("{")

    mortal.start()
    node.write("")
    node.reload("configuration read again")

    assert node.resctrl.groups() == {"gold", "silver", "bronze"}
    for name in node.resctrl.groups():
        (node.resctrl.path / name).rmdir()
