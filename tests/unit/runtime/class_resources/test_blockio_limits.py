"""What blockio classes mean for the files of a cgroup: decided without a look at any."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.runtime.class_resources import yamlfile
from podkeep.runtime.class_resources.blockio import configuration, limits
from podkeep.runtime.class_resources.blockio.devices import Device, Match
from podkeep.runtime.class_resources.blockio.limits import Ability, Limits

VDA, VDB = Device(number="254:0", name="/dev/vda"), Device(number="254:16", name="/dev/vdb")
RATES = limits.RATE_FILES_V1
READ_BPS, WRITE_BPS, READ_IOPS, WRITE_IOPS = RATES.values()


def ability(version: int, **fields: Any) -> Ability:
    files = {limits.BFQ_WEIGHT_V1, limits.BFQ_WEIGHT_DEVICE_V1} if version == 1 else {limits.BFQ_WEIGHT}
    return Ability(**({"version": version, "throttles": True, "weight_files": frozenset(files)} | fields))


def resolved(rules: str, **paths: list[Device]) -> Limits:
    """Resolve the rules of a class; ``paths`` are names in ``/dev`` and what they match."""
    class_ = configuration.read(yamlfile.parse(f"Classes:\n  c:\n{rules}", source="f")).classes["c"]
    matches = {
        pattern: tuple(
            Match(path=pattern, device=device, partition=False) for device in paths.get(pattern.rpartition("/")[2], ())
        )
        for pattern in limits.patterns_of(class_)
    }
    return limits.resolve(class_, matches)


BOTH = """\
    - Weight: 80
    - Devices: [/dev/all]
      ThrottleReadBps: 50M
      ThrottleWriteIOPS: 5k
      Weight: 50
    - Devices: [/dev/ssd]
      ThrottleReadBps: 100M
      ThrottleWriteIOPS: 0
"""


@pytest.mark.requirement("Q44", "Q45")
def test_version_1() -> None:
    found = resolved(BOTH, all=[VDA, VDB], ssd=[VDB])
    assert limits.wanted(found, ability(1, bfq=frozenset({VDA.number}))) == {
        READ_BPS: {"254:0": "50000000", "254:16": "100000000"},
        WRITE_BPS: {},
        READ_IOPS: {},
        WRITE_IOPS: {"254:0": "5000"},
        "blkio.bfq.weight": {"default": "80"},
        "blkio.bfq.weight_device": {"254:0": "50"},
    }
    assert limits.without_effect(found, ability(1, bfq=frozenset({VDA.number}))) == [
        "the weight of /dev/vdb has no effect: its scheduler is not bfq"
    ]


@pytest.mark.requirement("Q44")
def test_version_2() -> None:
    found = resolved(BOTH, all=[VDA, VDB], ssd=[VDB])
    files = frozenset({limits.BFQ_WEIGHT, limits.COST_WEIGHT})
    able = ability(2, weight_files=files, bfq=frozenset({"254:0"}), cost=frozenset({"254:16"}))
    assert limits.wanted(found, able) == {
        "io.max": {
            "254:0": "rbps=50000000 wbps=max riops=max wiops=5000",
            "254:16": "rbps=100000000 wbps=max riops=max wiops=max",
        },
        "io.bfq.weight": {"default": "80", "254:0": "50"},
        "io.weight": {"default": "80", "254:16": "50"},
    }
    assert limits.without_effect(found, able) == []


def test_version_2_does_not_take_a_rate_of_one() -> None:
    found = resolved("    - Devices: [/dev/a]\n      ThrottleReadBps: 1\n", a=[VDA])
    assert limits.wanted(found, ability(2))["io.max"] == {"254:0": "rbps=2 wbps=max riops=max wiops=max"}
    assert limits.wanted(found, ability(1))[READ_BPS] == {"254:0": "1"}
    assert limits.oci(found, 2) == {"throttleReadBpsDevice": [{"major": 254, "minor": 0, "rate": 2}]}


@pytest.mark.requirement("Q4")
def test_the_oci_configuration_has_rates_and_no_weights() -> None:
    assert limits.oci(resolved(BOTH, all=[VDA], ssd=[VDB]), 1) == {
        "throttleReadBpsDevice": [
            {"major": 254, "minor": 0, "rate": 50_000_000},
            {"major": 254, "minor": 16, "rate": 100_000_000},
        ],
        "throttleWriteIOPSDevice": [{"major": 254, "minor": 0, "rate": 5000}],
    }
    assert limits.oci(resolved("    - Weight: 80\n"), 1) == {}


@pytest.mark.requirement("Q45")
def test_a_pattern_without_a_device_is_a_warning() -> None:
    found = resolved(BOTH, all=[VDA])
    assert found.warnings == ("line 8: /dev/ssd matches no block device",)
    assert [device.name for device in found.devices] == ["/dev/vda"]


def test_a_partition_stands_for_its_disk() -> None:
    class_ = configuration.read(
        yamlfile.parse("Classes:\n  c:\n  - Devices: [/dev/vda1]\n    Weight: 10\n", source="f")
    ).classes["c"]
    found = limits.resolve(class_, {"/dev/vda1": (Match(path="/dev/vda1", device=VDA, partition=True),)})
    assert list(found.devices) == [VDA]
    assert found.warnings == ("line 3: /dev/vda1 is a partition: the limit is that of /dev/vda, all of it",)


@pytest.mark.requirement("Q45")
def test_a_pattern_of_a_disk_may_match_its_partitions_too() -> None:
    rules = "  - Devices: [/dev/vda*]\n    Weight: 10\n  - Devices: [/dev/vda1]\n    Weight: 20\n"
    class_ = configuration.read(yamlfile.parse(f"Classes:\n  c:\n{rules}", source="f")).classes["c"]
    disk = Match(path="/dev/vda", device=VDA, partition=False)
    part = Match(path="/dev/vda1", device=VDA, partition=True)
    found = limits.resolve(class_, {"/dev/vda*": (disk, part), "/dev/vda1": (part,)})
    assert found.warnings == ("line 5: /dev/vda1 is a partition: the limit is that of /dev/vda, all of it",)


def texts(now: limits.Content, then: limits.Content) -> list[tuple[str, str]]:
    return [(write.file, write.text) for write in limits.changes(now, then)]


@pytest.mark.requirement("Q48")
def test_a_change_sets_what_is_new_and_clears_what_is_old() -> None:
    now = {
        READ_BPS: {"254:0": "100", "254:16": "200"},
        "blkio.bfq.weight": {"default": "100"},
        "blkio.bfq.weight_device": {"254:16": "300"},
    }
    then = {READ_BPS: {"254:0": "150"}, "blkio.bfq.weight": {"default": "100"}, "blkio.bfq.weight_device": {}}
    assert texts(now, then) == [
        (READ_BPS, "254:0 150"),
        (READ_BPS, "254:16 0"),
        ("blkio.bfq.weight_device", "254:16 default"),
    ]


@pytest.mark.requirement("Q48")
def test_a_change_on_version_2() -> None:
    line = "rbps=100 wbps=max riops=max wiops=max"
    now = {"io.max": {"254:0": line}, "io.weight": {"default": "80", "254:0": "50"}}
    then = {"io.max": {"254:16": line}, "io.weight": {"default": "100"}}
    assert texts(now, then) == [
        ("io.max", f"254:16 {line}"),
        ("io.weight", "default 100"),
        ("io.max", "254:0 rbps=max wbps=max riops=max wiops=max"),
        ("io.weight", "254:0 default"),
    ]
    assert texts(then, then) == []


@pytest.mark.parametrize(
    ("default", "named"), [("blkio.bfq.weight", "blkio.bfq.weight_device"), ("io.bfq.weight",) * 2]
)
def test_bfq_forgets_weights_of_devices_with_a_new_default(default: str, named: str) -> None:
    now: dict[str, dict[str, str]] = {default: {"default": "100"}, named: {"254:0": "300", "254:16": "200"}}
    then: dict[str, dict[str, str]] = {default: {"default": "150"}, named: {"254:0": "300"}}
    if default == named:
        now[default]["default"] = "100"
        then[default] = {"default": "150", "254:0": "300"}
    values = ("150", "254:0 300") if default != named else ("default 150", "254:0 300")
    assert texts(now, then) == [(default, values[0]), (named, values[1])]


def test_what_the_kernel_says_is_understood() -> None:
    assert limits.read(READ_BPS, "254:0 100\n254:16 200\n") == {"254:0": "100", "254:16": "200"}
    assert limits.read("blkio.bfq.weight", "100\n") == {"default": "100"}
    assert limits.read("blkio.bfq.weight_device", "default 200\n7:0 300\n") == {"7:0": "300"}
    assert limits.read("io.weight", "default 100\n254:0 50\n") == {"default": "100", "254:0": "50"}
    assert limits.read("io.max", "7:0 rbps=max wbps=max riops=max wiops=max\n") == {}
    assert limits.read("io.max", "7:0 rbps=2 wbps=max riops=max wiops=max\n") == {
        "7:0": "rbps=2 wbps=max riops=max wiops=max"
    }


def test_a_difference_in_words() -> None:
    assert limits.difference({"io.max": {"7:0": "a"}}, {"io.max": {"7:0": "a"}}) == ""
    assert limits.difference({"io.max": {}}, {"io.max": {"7:0": "a"}}) == "io.max has 'nothing' for 7:0 instead of 'a'"
    assert limits.difference({"io.max": {"7:0": "a"}}, {"io.max": {}}) == "io.max has 'a' for 7:0 instead of 'nothing'"


def test_a_kernel_that_cannot_throttle_is_not_written_to() -> None:
    found = resolved("    - Weight: 80\n")
    assert limits.wanted(found, ability(2, throttles=False)) == {"io.bfq.weight": {"default": "80"}}
    assert "echo bfq" in limits.unheeded(found, ability(2))
    assert not limits.unheeded(found, ability(2, bfq=frozenset({"254:0"})))


def test_lines_of_disks_that_went_away_are_none() -> None:
    """Version 1 shows them as ``(unknown)``, and takes no such key."""
    file = "blkio.throttle.read_bps_device"
    assert limits.read(file, "254:0 1000\n(unknown) 2000\n") == {"254:0": "1000"}
    assert limits.changes({file: limits.read(file, "(unknown) 2000\n")}, {file: {}}) == []
