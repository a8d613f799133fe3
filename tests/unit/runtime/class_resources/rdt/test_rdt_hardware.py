"""What the kernel describes: info and schemata to hardware, whatever the vendor; and the text of schemata."""

from __future__ import annotations

import pytest
from rdt_machine import CDP, FULL, L2_CDP, MBPS, Machine

from podkeep.base.errors import FailedPrecondition
from podkeep.runtime.class_resources.rdt import hardware, schemata
from podkeep.runtime.class_resources.rdt.hardware import UNLIMITED_MBPS, Bandwidth, Cache, Hardware
from support.resctrl import hardware as stand_in


@pytest.mark.requirement("Q43")
def test_a_machine_that_limits_in_percent() -> None:
    found = Machine(stand_in.INTEL).hardware()
    assert found.l3 == Cache(
        level="L3", ids=(0, 1), mask=0xFFFFF, least=1, shareable=0, sparse=False, cdp=False, closids=16
    )
    assert found.mb == Bandwidth(ids=(0, 1), minimum=10, step=10, maximum=100, mbps=False, closids=8)
    assert (found.l2, found.closids) == (None, 8)
    assert found.monitoring == ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")


@pytest.mark.requirement("Q43")
def test_a_machine_with_gaps_in_masks_and_units_of_its_own() -> None:
    found = Machine(stand_in.AMD).hardware()
    assert found.l3
    assert (found.l3.sparse, found.l3.mask) == (True, 0xFFFF)
    assert found.mb == Bandwidth(ids=(0, 1, 2, 3), minimum=1, step=1, maximum=2048, mbps=False, closids=16)


@pytest.mark.requirement("Q43")
def test_a_cache_whose_id_is_not_0() -> None:
    found = Machine(stand_in.ARM).hardware()
    assert found.l3
    assert found.mb
    assert (found.l3.ids, found.mb.ids, found.monitoring) == ((1,), (1,), ())


@pytest.mark.requirement("Q43")
def test_old_kernels_do_not_tell_of_gaps() -> None:
    found = Machine(stand_in.HASWELL).hardware()
    assert found.l3
    assert (found.l3.sparse, found.l3.least, found.mb) == (False, 2, None)


def test_a_least_of_no_bit_is_one_bit() -> None:
    found = Machine(stand_in.Hardware(l3=stand_in.Cache(min_cbm_bits=0))).hardware()
    assert found.l3
    assert found.l3.least == 1


def test_code_and_data() -> None:
    found = Machine(CDP).hardware()
    assert found.l3
    assert (found.l3.cdp, found.l3.resources, found.l3.closids) == (True, ("L3CODE", "L3DATA"), 8)
    mixed = Machine(L2_CDP).hardware()
    assert [cache.resources for cache in mixed.caches] == [("L2CODE", "L2DATA"), ("L3",)]
    assert mixed.closids == 4


def test_megabytes() -> None:
    found = Machine(MBPS).hardware()
    assert found.mb
    assert (found.mb.mbps, found.mb.maximum) == (True, UNLIMITED_MBPS)


def test_megabytes_can_be_seen_where_mount_options_do_not_tell() -> None:
    machine = Machine(MBPS)
    found = hardware.read(machine.info(), [machine.groups.controls.shown(0)])
    assert found.mb
    assert found.mb.mbps


def test_the_maximum_without_the_kernels_answer_is_the_largest_that_is_shown() -> None:
    info = {"MB/min_bandwidth": "1\n", "MB/bandwidth_gran": "1\n", "MB/num_closids": "16\n"}
    found = hardware.read(info, ["MB:0=1000;1=1000\n", "MB:0=2048;1=2048\n"])
    assert found.mb
    assert found.mb.maximum == 2048
    found = hardware.read(info, ["MB:0=20\n"])
    assert found.mb
    assert found.mb.maximum == 100


def test_nothing_to_allocate() -> None:
    found = Machine(stand_in.MONITORING_ONLY).hardware()
    assert (found.caches, found.mb, found.closids) == ((), None, 0)
    assert found.monitoring
    assert hardware.read({}, []) == Hardware()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"L3/cbm_mask": "xyz\n"}, "info/L3/cbm_mask: 'xyz' is no number"),
        ({"L3/cbm_mask": "0\n"}, "info/L3/cbm_mask has no bit"),
        ({"L3/num_closids": None}, "info/L3/num_closids is missing"),
        ({"L2/cbm_mask": "ff"}, "info/L2 is there, and the root's schemata has no line L2"),
    ],
)
def test_what_is_not_understood(change: dict[str, str | None], text: str) -> None:
    machine = Machine(FULL)
    info = {name: value for name, value in (machine.info() | change).items() if value is not None}
    with pytest.raises(FailedPrecondition) as caught:
        hardware.read(info, [machine.groups.controls.shown(0)])
    assert (
        caught.value.message == f"class resource rdt: resctrl describes itself in a way that is not understood: {text}"
    )


def test_schemata_as_the_kernel_shows_them() -> None:
    text = "    MB:0=  100;1=   20\n    L3:0=000ff;1=fffff\nL3CODE:0=f\n  SMBA:0=2048\n\n"
    found = schemata.parse(text)
    assert found == {"MB": {0: 100, 1: 20}, "L3": {0: 0xFF, 1: 0xFFFFF}, "L3CODE": {0: 0xF}, "SMBA": {0: 2048}}
    assert schemata.lines(found) == ("L3:0=ff;1=fffff", "L3CODE:0=f", "MB:0=100;1=20", "SMBA:0=2048")


@pytest.mark.parametrize("text", ["L3", "L3:", "L3:0", "L3:0=xyz", "L3:a=f", "MB:0=ff", "L3:0=f;"])
def test_schemata_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="schemata: "):
        schemata.parse(text)


def test_differences() -> None:
    wanted = ("L3:0=ff;1=f", "MB:0=50")
    assert schemata.differences(wanted, "    MB:0=   50;1=   10\n    L3:0=000ff;1=0000f\n    L2:0=1\n") == []
    assert schemata.differences(wanted, "L3:0=ff;1=ff\n") == [
        "L3 of cache 1 is ff instead of f",
        "there is no MB",
    ]
    assert schemata.differences(wanted, "L3:0=ff;1=f\nMB:0=40\n") == ["MB of cache 0 is 40 instead of 50"]
    assert schemata.differences(wanted, "L3:0=ff;1=f\nMB:0=53\n", step=5) == []  # the nearest that there is
    assert schemata.differences(wanted, "L3:0=fe;1=f\nMB:0=55\n", step=5) == [
        "L3 of cache 0 is fe instead of ff",
        "MB of cache 0 is 55 instead of 50",
    ]
    assert schemata.differences(wanted, "MB:0=50\nL3:1=f\n") == []  # processors with cache 0 are offline
