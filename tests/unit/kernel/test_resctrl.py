"""The resctrl file system: what is read and written, and what an error says."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.kernel.cgroup import resctrl as module
from podkeep.kernel.cgroup.resctrl import DEFAULT_GROUP, Group, Resctrl, ResctrlError
from support.resctrl.hardware import AMD, HASWELL, INTEL, Hardware, MemoryBandwidth, Monitoring
from support.resctrl.mount import Resctrl as Mounted

Mount = Callable[..., Mounted]


@pytest.fixture
def mounted(resctrl: Mount) -> Mounted:
    return resctrl(INTEL)


@pytest.fixture
def rdt(mounted: Mounted) -> Resctrl:
    return Resctrl(mounted.path)


@pytest.mark.requirement("Q39")
def test_what_is_not_mounted_is_said_with_how_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=rf"resctrl is not mounted at {tmp_path}.*mount -t resctrl"):
        Resctrl(tmp_path).check()


def test_a_mounted_one_is_recognised_whatever_its_type(rdt: Resctrl) -> None:
    rdt.check()

    assert rdt.info()["L3/cbm_mask"] == "fffff\n"
    assert rdt.info()["L3_MON/num_rmids"].strip().isdecimal()


def test_a_group_is_made_listed_and_removed(rdt: Resctrl) -> None:
    gold = Group(name="gold")
    rdt.create(gold)
    there = (rdt.groups(), rdt.exists(gold))

    assert there == ({"gold"}, True)
    assert rdt.remove(gold)
    assert not rdt.remove(gold)
    assert rdt.groups() == set()


def test_the_default_group_is_not_removed(rdt: Resctrl) -> None:
    with pytest.raises(InvalidArgument):
        rdt.remove(DEFAULT_GROUP)


@pytest.mark.parametrize("name", ["info", "mon_groups", "mon_data", "..", "a/b", "a\nb", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(rdt: Resctrl, name: str) -> None:
    with pytest.raises(InvalidArgument):
        rdt.create(Group(name=name))


@pytest.mark.requirement("Q38")
def test_an_error_says_what_the_kernel_says(rdt: Resctrl) -> None:
    rdt.create(Group(name="gold"))

    with pytest.raises(ResctrlError) as caught:
        rdt.write_schemata("gold", ["L3:0=5"])

    assert (caught.value.errno, caught.value.status) == (errno.EINVAL, "The mask 5 has non-consecutive 1-bits")
    assert "gold/schemata, 'L3:0=5'): EINVAL" in str(caught.value)
    assert "(The mask 5 has non-consecutive 1-bits)" in str(caught.value)


def test_without_an_explanation_an_error_has_none(rdt: Resctrl) -> None:
    with pytest.raises(ResctrlError) as caught:
        rdt.write_schemata("", ["L3:7=f"])

    assert caught.value.status == ""
    assert "ok" not in str(caught.value)


def test_schemata_are_written_in_one_command_and_read_back(rdt: Resctrl, mounted: Mounted) -> None:
    rdt.create(Group(name="gold"))
    rdt.write_schemata("gold", ["  L3:0=f0;1=f", "MB:0=50;1=20"])

    assert mounted.schemata("gold") == {"L3": {0: "f0", 1: "f"}, "MB": {0: "50", 1: "20"}}
    rdt.write_schemata("gold", rdt.schemata().splitlines())
    assert mounted.schemata("gold") == mounted.schemata()


def test_nothing_to_write_is_no_command(rdt: Resctrl) -> None:
    before = rdt.schemata()
    rdt.write_schemata("", [])

    assert rdt.schemata() == before


@pytest.mark.requirement("Q42")
def test_a_thread_is_moved_and_counts_for_its_control_group_too(rdt: Resctrl) -> None:
    gold, watched = Group(name="gold"), Group(name="gold", monitor="one")
    rdt.create(gold)
    rdt.create(watched)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert process.pid in rdt.tasks()
            assert rdt.add_task(gold, process.pid)
            assert rdt.add_task(watched, process.pid)
            assert process.pid in rdt.tasks(gold) & rdt.tasks(watched)
            assert process.pid not in rdt.tasks()
        finally:
            process.kill()


def test_a_thread_that_is_gone_is_no_error(rdt: Resctrl) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert not rdt.add_task(DEFAULT_GROUP, process.pid)


def test_the_writer_is_never_moved_by_mistake(rdt: Resctrl) -> None:
    rdt.create(Group(name="gold"))

    with pytest.raises(InvalidArgument, match="0 is no task"):
        rdt.add_task(Group(name="gold"), 0)

    assert os.getpid() not in rdt.tasks(Group(name="gold"))


def test_a_monitoring_group_takes_tasks_of_its_control_group_only(rdt: Resctrl) -> None:
    watched = Group(name="gold", monitor="one")
    rdt.create(Group(name="gold"))
    rdt.create(watched)

    with pytest.raises(ResctrlError, match="different control group"):
        rdt.add_task(watched, os.getpid())


def test_what_was_counted_is_read_by_domain(rdt: Resctrl, mounted: Mounted) -> None:
    watched = Group(name="gold", monitor="one")
    rdt.create(Group(name="gold"))
    rdt.create(watched)
    mounted.count("llc_occupancy", 4096, group="gold", domain=1, mon_group="one")
    mounted.count("mbm_total_bytes", "Unavailable", group="gold", domain=1, mon_group="one")

    counted = rdt.counts(watched)

    assert counted["L3"][1]["llc_occupancy"] == 4096
    assert counted["L3"][1]["mbm_total_bytes"] is None
    assert rdt.monitors("gold") == {"one"}


@pytest.mark.slow
def test_where_nothing_is_monitored_nothing_is_counted(resctrl: Mount) -> None:
    rdt = Resctrl(resctrl(HASWELL).path)
    rdt.create(Group(name="gold"))

    assert rdt.counts(Group(name="gold", monitor="one")) == {}
    assert rdt.monitors("gold") == set()
    with pytest.raises(ResctrlError):
        rdt.create(Group(name="gold", monitor="one"))


@pytest.mark.slow
def test_no_rmid_is_left(resctrl: Mount) -> None:
    rdt = Resctrl(resctrl(Hardware(l3=INTEL.l3, monitoring=Monitoring(num_rmids=2))).path)
    rdt.create(Group(name="gold"))

    with pytest.raises(ResctrlError, match="Out of RMIDs") as caught:
        rdt.create(Group(name="gold", monitor="one"))

    assert caught.value.errno == errno.ENOSPC


@pytest.mark.slow
def test_another_programs_lock_is_respected(rdt: Resctrl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.05)
    with rdt.locked(), pytest.raises(FailedPrecondition, match="another program holds the lock"), rdt.locked():
        pytest.fail("two have the lock")
    fd = os.open(rdt.root, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was given back
    finally:
        os.close(fd)


@pytest.mark.slow
def test_the_lock_of_a_user_is_not_respected(rdt: Resctrl) -> None:
    """He can open the directory, and change nothing."""
    fd = os.open(rdt.root, os.O_RDONLY | os.O_DIRECTORY)
    # The lock belongs to what was opened: that is the user's alone once flock(1) and we have closed it.
    with subprocess.Popen(
        ["sh", "-c", f"flock {fd} && echo && read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=65534,
        group=65534,
        extra_groups=[],
        pass_fds=[fd],
    ) as process:
        os.close(fd)
        assert process.stdout is not None
        process.stdout.readline()
        with rdt.locked():
            rdt.create(Group(name="gold"))
        process.communicate(b"\n")


MBPS = Hardware(l3=INTEL.l3, mb=MemoryBandwidth(mbps=True), monitoring=INTEL.monitoring)


@pytest.mark.slow
@pytest.mark.requirement("Q43")
@pytest.mark.parametrize(
    ("machine", "maximum"),
    [(INTEL, 100), (AMD, 2048), (HASWELL, None), (MBPS, None)],
    ids=["intel", "amd", "none", "mbps"],
)
@pytest.mark.parametrize("limited", [False, True])
def test_the_largest_bandwidth_is_asked_for_and_nothing_changes(
    resctrl: Mount, machine: Hardware, maximum: int | None, limited: bool
) -> None:
    mounted = resctrl(machine)
    rdt = Resctrl(mounted.path)
    if limited and machine.mb is not None:
        rdt.write_schemata("", ["MB:0=50"])
    before = rdt.schemata()

    assert rdt.bandwidth_maximum() == maximum
    assert rdt.schemata() == before


def test_a_group_made_again_is_another_one(rdt: Resctrl) -> None:
    gold = Group(name="gold")
    rdt.create(gold)
    first = rdt.identity(gold)
    same = rdt.identity(gold)
    rdt.remove(gold)
    rdt.create(gold)

    assert first == same
    assert first != rdt.identity(gold)
