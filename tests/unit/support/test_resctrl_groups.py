"""The stand-in for resctrl behaves as the kernel does: groups, schemata, modes, CPUs, monitoring."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from support.resctrl import hardware
from support.resctrl.fixture import Mount, sharing
from support.resctrl.hardware import (
    AMD,
    ARM,
    HASWELL,
    INTEL,
    MONITORING_ONLY,
    Cache,
    Hardware,
    MemoryBandwidth,
    Monitoring,
)
from support.resctrl.mount import Resctrl


def refused(path: Path, text: str) -> int:
    """Write to a file what is refused, in one call, and return the errno."""
    with pytest.raises(OSError) as caught:
        written(path, text)
    assert caught.value.errno is not None
    return caught.value.errno


def written(path: Path, text: str) -> None:
    """Write to a file in one call, as a shell does: with O_TRUNC."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        assert os.write(fd, text.encode()) == len(text)
    finally:
        os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine", [INTEL, HASWELL, AMD, ARM, MONITORING_ONLY], ids=["intel", "haswell", "amd", "arm", "monitoring only"]
)
def test_info_says_what_the_hardware_is(resctrl: Mount, machine: Hardware) -> None:
    rdt = resctrl(machine)

    found = hardware.read(rdt.path / "info")

    for kind in ("l3", "l2", "mb", "monitoring"):
        expected, actual = getattr(machine, kind), getattr(found, kind)
        for hidden in ("size", "max_bandwidth"):  # info does not say these
            if hasattr(expected, hidden):
                object.__setattr__(actual, hidden, getattr(expected, hidden))
        assert actual == expected


@pytest.mark.slow
def test_a_group_has_its_files_as_soon_as_it_is_made(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()

    assert {path.name for path in (rdt.path / "gold").iterdir()} == {
        *("cpus", "cpus_list", "mode", "schemata", "size", "tasks", "mon_data", "mon_groups")
    }
    assert {str(path.relative_to(rdt.path / "gold")) for path in rdt.path.glob("gold/mon_data/*/*")} == {
        f"mon_data/mon_L3_0{domain}/{event}"
        for domain in (0, 1)
        for event in ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    }
    assert (rdt.path / "gold/schemata").read_text() == "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n"
    assert (rdt.path / "gold/size").read_text() == "    MB:0=100;1=100\n    L3:0=36700160;1=36700160\n"
    assert rdt.mode("gold") == "shareable"
    assert rdt.groups() == {"gold"}


@pytest.mark.slow
def test_schemata_keep_what_is_not_written(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()

    written(rdt.path / "gold/schemata", "L3:1=0x0f0\nMB:0=11\n")

    assert rdt.schemata("gold") == {"L3": {0: "fffff", 1: "f0"}, "MB": {0: "20", 1: "100"}}
    assert rdt.last_cmd_status() == "ok"


@pytest.fixture(scope=sharing)
def two_bits(shared_resctrl: Mount) -> Resctrl:
    """Hardware whose masks have two bits at least, with the group gold."""
    rdt = shared_resctrl(Hardware(l3=Cache(min_cbm_bits=2), mb=MemoryBandwidth()))
    (rdt.path / "gold").mkdir()
    return rdt


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("L3:0=f5\n", "The mask f5 has non-consecutive 1-bits"),
        ("L3:0=100000\n", "Mask out of range"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("L3:0=xyz\n", "Non-hex character in the mask xyz"),
        ("L3:0=f;0=f\n", "Duplicate domain 0"),
        ("L3:5=f\n", "ok"),
        ("L3:f\n", "Missing '=' or non-numeric domain"),
        ("L3:0\n", "Missing '=' or non-numeric domain"),
        ("L3\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L2:0=f\n", "Unknown or unsupported resource name 'L2'"),
        ("MB:0=9\n", "MB value 9 out of range [10,100]"),
        ("MB:0=110\n", "MB value 110 out of range [10,100]"),
        ("MB:0=half\n", "Invalid MB value half"),
        ("L3:0=3\nMB:0=0\n", "MB value 0 out of range [10,100]"),
    ],
)
def test_bad_schemata_are_refused_whole(two_bits: Resctrl, text: str, status: str) -> None:
    before = two_bits.schemata("gold")

    assert refused(two_bits.path / "gold/schemata", text) == errno.EINVAL
    assert two_bits.last_cmd_status() == status
    assert two_bits.schemata("gold") == before


def test_a_command_ends_with_a_line_feed_and_fits_a_page(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)

    assert refused(rdt.path / "schemata", "L3:0=f") == errno.EINVAL
    assert refused(rdt.path / "mode", "exclusive") == errno.EINVAL
    assert refused(rdt.path / "schemata", "L3:0=f" + " " * 4096 + "\n") == errno.E2BIG


@pytest.mark.slow
def test_masks_with_gaps_where_the_hardware_takes_them(resctrl: Mount) -> None:
    rdt = resctrl(AMD)

    written(rdt.path / "schemata", "L3:0=f00f\nMB:0=33\n")

    assert rdt.schemata()["L3"][0] == "f00f"
    assert rdt.schemata()["MB"] == {0: "33", 1: "2048", 2: "2048", 3: "2048"}


@pytest.mark.slow
def test_bandwidth_in_megabytes(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(mb=MemoryBandwidth(mbps=True), monitoring=Monitoring()))

    written(rdt.path / "schemata", "MB:0=1234;1=5\n")
    written(rdt.path / "mba_MBps_event", "mbm_total_bytes\n")

    assert rdt.schemata() == {"MB": {0: "1234", 1: "5"}}
    assert (rdt.path / "mba_MBps_event").read_text() == "mbm_total_bytes\n"
    assert refused(rdt.path / "mba_MBps_event", "llc_occupancy\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Unsupported event id 'llc_occupancy'"
    found = hardware.read(rdt.path / "info").mb
    assert found is not None
    assert found.mbps


@pytest.mark.slow
def test_code_and_data_share_the_classes(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(cdp=True, num_closids=4, domains=(0,)), l2=Cache(cbm_mask=0xFF, domains=(0,))))
    (rdt.path / "gold").mkdir()

    written(rdt.path / "gold/schemata", "L3CODE:0=f\nL3DATA:0=ff0\n")

    assert (rdt.path / "gold/schemata").read_text() == "    L2:0=ff\nL3DATA:0=ff0\nL3CODE:0=f\n"
    assert not (rdt.path / "info/L3").exists()
    assert (rdt.path / "info/L3CODE/num_closids").read_text() == "2\n"
    with pytest.raises(OSError, match="No space") as caught:
        (rdt.path / "silver").mkdir()
    assert caught.value.errno == errno.ENOSPC
    assert refused(rdt.path / "gold/schemata", "L3:0=f\n") == errno.EINVAL


@pytest.mark.slow
def test_classes_run_out_and_come_back(resctrl: Mount) -> None:
    rdt = resctrl(HASWELL)
    for name in "abc":
        (rdt.path / name).mkdir()

    with pytest.raises(OSError, match="No space") as caught:
        (rdt.path / "d").mkdir()

    assert caught.value.errno == errno.ENOSPC
    assert rdt.last_cmd_status() == "Out of CLOSIDs"
    assert rdt.groups() == {"a", "b", "c"}
    (rdt.path / "b").rmdir()
    (rdt.path / "d").mkdir()
    assert rdt.last_cmd_status() == "ok"
    assert rdt.groups() == {"a", "c", "d"}


@pytest.mark.slow
def test_a_class_for_devices_is_one_less(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(num_closids=3, io_alloc=True)))
    (rdt.path / "a").mkdir()

    with pytest.raises(OSError, match="No space"):
        (rdt.path / "b").mkdir()
    assert rdt.last_cmd_status() == "Out of CLOSIDs"


@pytest.mark.slow
def test_the_fewest_classes_of_all_resources_count(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(num_closids=16), mb=MemoryBandwidth(num_closids=2)))
    (rdt.path / "a").mkdir()

    with pytest.raises(OSError, match="No space"):
        (rdt.path / "b").mkdir()


@pytest.mark.slow
def test_counters_run_out(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(), monitoring=Monitoring(num_rmids=3)))
    (rdt.path / "gold").mkdir()
    (rdt.path / "gold/mon_groups/one").mkdir()

    for path in ("gold/mon_groups/two", "mon_groups/two", "silver"):
        with pytest.raises(OSError, match="No space"):
            (rdt.path / path).mkdir()
        assert rdt.last_cmd_status() == "Out of RMIDs"
    assert rdt.groups() == {"gold"}


def test_exclusive_groups_share_with_nobody(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(cbm_mask=0xFF, domains=(0,))))
    gold, silver = rdt.path / "gold", rdt.path / "silver"
    gold.mkdir()
    written(gold / "schemata", "L3:0=f0\n")

    assert refused(gold / "mode", "exclusive\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Schemata overlaps"
    written(rdt.path / "schemata", "L3:0=f\n")
    written(gold / "mode", "exclusive\n")
    silver.mkdir()

    assert rdt.schemata("silver") == {"L3": {0: "f"}}
    assert refused(silver / "schemata", "L3:0=18\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Overlaps with exclusive group"
    assert refused(gold / "schemata", "L3:0=78\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Overlaps with other group"
    assert (rdt.path / "info/L3/bit_usage").read_text() == "0=EEEESSSS\n"
    written(gold / "mode", "shareable\n")
    written(silver / "schemata", "L3:0=18\n")
    assert refused(gold / "mode", "pseudo-locksetup\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Unknown or unsupported mode"


@pytest.mark.slow
def test_exclusive_groups_may_leave_too_little_for_another(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(cbm_mask=0xF, min_cbm_bits=2, domains=(3,))))
    (rdt.path / "gold").mkdir()
    written(rdt.path / "schemata", "L3:3=3\n")
    written(rdt.path / "gold/schemata", "L3:3=c\n")
    written(rdt.path / "gold/mode", "exclusive\n")
    written(rdt.path / "mode", "exclusive\n")

    with pytest.raises(OSError, match="No space"):
        (rdt.path / "silver").mkdir()
    assert rdt.last_cmd_status() == "No space on L3:3"


@pytest.mark.slow
def test_bits_of_the_hardware_cannot_be_exclusive(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(cbm_mask=0xFF, shareable_bits=0xC0, domains=(0,))))
    (rdt.path / "gold").mkdir()
    written(rdt.path / "schemata", "L3:0=f\n")
    written(rdt.path / "gold/schemata", "L3:0=70\n")

    assert refused(rdt.path / "gold/mode", "exclusive\n") == errno.EINVAL
    assert (rdt.path / "info/L3/bit_usage").read_text() == "0=HXSSSSSS\n"


@pytest.mark.slow
def test_cpus_belong_to_one_group(resctrl: Mount) -> None:
    rdt = resctrl(Hardware(l3=Cache(), monitoring=Monitoring(), cpus=36))
    gold = rdt.path / "gold"
    gold.mkdir()
    assert (gold / "cpus").read_text() == "0,00000000\n"
    assert (gold / "cpus_list").read_text() == "\n"

    written(gold / "cpus_list", "1-3,35\n")

    assert (gold / "cpus").read_text() == "8,0000000e\n"
    assert (rdt.path / "cpus_list").read_text() == "0,4-34\n"
    assert refused(gold / "cpus", "f0,00000000\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Can only assign online CPUs"
    assert refused(gold / "cpus_list", "one\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Bad CPU list/mask"
    assert refused(rdt.path / "cpus", "0,00000001\n") == errno.EINVAL
    assert rdt.last_cmd_status() == "Can't drop CPUs from default group"
    (gold / "mon_groups/one").mkdir()
    assert refused(gold / "mon_groups/one/cpus_list", "0\n") == errno.EINVAL
    written(gold / "mon_groups/one/cpus_list", "1\n")
    gold.rmdir()
    assert (rdt.path / "cpus_list").read_text() == "0-35\n"


@pytest.mark.slow
def test_only_groups_can_be_made_and_removed(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()

    for path in ("gold/silver", "info/x", "mon_data/x", "gold/mon_data/x"):
        with pytest.raises(PermissionError):
            (rdt.path / path).mkdir()
    for path in ("info", "info/L3", "mon_groups", "mon_data", "gold/mon_groups"):
        with pytest.raises(PermissionError):
            (rdt.path / path).rmdir()
    with pytest.raises(FileExistsError):
        (rdt.path / "gold").mkdir()
    with pytest.raises(FileNotFoundError):
        (rdt.path / "silver").rmdir()
    with pytest.raises(PermissionError):
        (rdt.path / "x").touch()
    with pytest.raises(PermissionError):
        (rdt.path / "gold/tasks").unlink()
    with pytest.raises(PermissionError):
        (rdt.path / "gold").rename(rdt.path / "silver")
    with pytest.raises(PermissionError):
        (rdt.path / "gold/size").write_text("x")
    with pytest.raises(OSError, match="Invalid argument"):
        (rdt.path / "a\nb").mkdir()
    assert rdt.groups() == {"gold"}


@pytest.mark.slow
def test_hardware_that_only_counts_has_no_control_groups(resctrl: Mount) -> None:
    rdt = resctrl(MONITORING_ONLY)

    with pytest.raises(PermissionError):
        (rdt.path / "gold").mkdir()
    (rdt.path / "mon_groups/one").mkdir()

    assert not (rdt.path / "schemata").exists()
    assert {path.name for path in (rdt.path / "mon_groups/one").iterdir()} == {"cpus", "cpus_list", "tasks", "mon_data"}


@pytest.mark.slow
def test_a_file_that_was_open_when_its_group_went_is_no_device(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()

    with (rdt.path / "gold/schemata").open() as file, (rdt.path / "gold/tasks").open("w") as tasks:
        (rdt.path / "gold").rmdir()
        with pytest.raises(OSError, match="No such device"):
            file.read()
        with pytest.raises(OSError, match="No such device"):
            os.write(tasks.fileno(), b"1\n")
    assert not (rdt.path / "gold").exists()


@pytest.mark.slow
def test_counters_read_what_the_test_says(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()
    (rdt.path / "gold/mon_groups/one").mkdir()

    rdt.count("llc_occupancy", 4711, group="gold", domain=1)
    rdt.count("mbm_total_bytes", "Unavailable", group="gold", mon_group="one")

    assert (rdt.path / "gold/mon_data/mon_L3_01/llc_occupancy").read_text() == "4711\n"
    assert (rdt.path / "gold/mon_data/mon_L3_00/llc_occupancy").read_text() == "0\n"
    assert (rdt.path / "gold/mon_groups/one/mon_data/mon_L3_00/mbm_total_bytes").read_text() == "Unavailable\n"


@pytest.mark.slow
def test_operations_fail_as_often_as_the_test_says(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    (rdt.path / "gold").mkdir()

    rdt.fail("gold/schemata", "write", errno.EIO, times=2)
    rdt.fail("", "mkdir", errno.ENOMEM)
    rdt.fail("gold", "rmdir", errno.EBUSY)

    assert [refused(rdt.path / "gold/schemata", "L3:0=f\n") for _ in range(2)] == [errno.EIO, errno.EIO]
    written(rdt.path / "gold/schemata", "L3:0=f\n")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        (rdt.path / "silver").mkdir()
    with pytest.raises(OSError, match="busy"):
        (rdt.path / "gold").rmdir()
    assert rdt.groups() == {"gold"}
    (rdt.path / "gold").rmdir()
    assert rdt.groups() == set()


def test_a_group_has_a_number_that_no_other_gets(resctrl: Mount) -> None:
    rdt = resctrl(INTEL)
    gold = rdt.path / "gold"
    gold.mkdir()
    before = gold.stat().st_ino

    for name in "abcdef":
        (rdt.path / name).mkdir()
        (rdt.path / name).rmdir()
    assert gold.stat().st_ino == before
    gold.rmdir()
    gold.mkdir()
    assert gold.stat().st_ino != before
    every = [path.stat().st_ino for path in rdt.path.rglob("*")]
    assert len(set(every)) == len(every)


@pytest.mark.slow
def test_two_machines_at_once(resctrl: Mount) -> None:
    first: Resctrl = resctrl(INTEL)
    second = resctrl(HASWELL)
    (first.path / "gold").mkdir()

    assert (first.groups(), second.groups()) == ({"gold"}, set())
