"""blockio on the real kernel: cgroups and loop devices of the test's own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.config import ClassResourcesConfig
from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.class_resources.blockio import explain, limits, plugin
from podkeep.runtime.class_resources.blockio.devices import Devices
from podkeep.runtime.class_resources.blockio.plugin import BlockIo
from podkeep.runtime.class_resources.model import Level, Target
from support.loopdev import LoopDevice, attached, loop_device

READ_BPS, WRITE_BPS, READ_IOPS, WRITE_IOPS = limits.RATE_FILES_V1.values()

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and loop devices are root's"),
    pytest.mark.skipif(Cgroups().version == 2, reason="this machine has cgroup version 2: see tests/nested"),
]


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[LoopDevice]:
    with loop_device(tmp_path) as device:
        yield device
    assert device.path not in attached()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LoopDevice]:
    (tmp_path / "other").mkdir()
    with loop_device(tmp_path / "other") as device:
        yield device


@pytest.fixture
def target() -> Iterator[Target]:
    cgroups, path = Cgroups(), f"/pkunit-blockio-{os.urandom(3).hex()}"
    cgroups.create(path)
    yield Target(level=Level.CONTAINER, id="c1", name="ns/pod/c", cgroup=path)
    cgroups.remove(path)


def blockio(tmp_path: Path, text: str, cgroups: Cgroups | None = None) -> BlockIo:
    file = tmp_path / "blockio.yaml"
    file.write_text(text)
    loaded = plugin.load(ClassResourcesConfig(blockio_config=str(file)), cgroups or Cgroups())
    assert loaded is not None
    return loaded


def classes(*devices: LoopDevice) -> str:
    first = devices[0].path
    every = ", ".join(device.path for device in devices)
    return f"""
Classes:
  gold:
    - Devices: [{every}]
      ThrottleReadBps: 20M
      ThrottleWriteBps: 10M
    - Weight: 500
    - Devices: [{first}]
      Weight: 700
  bronze:
    - Devices: [{first}]
      ThrottleReadIOPS: 100
      ThrottleReadBps: 1M
  free:
"""


def files(target: Target) -> dict[str, str]:
    names = [*limits.RATE_FILES_V1.values(), "blkio.bfq.weight", "blkio.bfq.weight_device"]
    return {name: (Cgroups().read(target.cgroup, name) or "").strip() for name in names}


DEFAULTS = {
    READ_BPS: "", WRITE_BPS: "", READ_IOPS: "", WRITE_IOPS: "",
    "blkio.bfq.weight": "100", "blkio.bfq.weight_device": "default 100",
}  # fmt: skip


def test_no_file_no_type() -> None:
    assert plugin.load(ClassResourcesConfig(), Cgroups()) is None


def test_a_bad_file_is_refused_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes:\n  c:\n  - Wait: 50\n")
    with pytest.raises(InvalidArgument, match=r"blockio\.yaml:3: .*Wait.*Weight"):
        plugin.load(ClassResourcesConfig(blockio_config=str(file)), Cgroups())


@pytest.mark.requirement("Q44", "Q45", "Q48")
def test_limits_are_set_changed_and_cleared(
    tmp_path: Path, loop: LoopDevice, other: LoopDevice, target: Target
) -> None:
    loop.schedule("bfq")
    blocks = blockio(tmp_path, classes(loop, other))
    blocks.check(Level.CONTAINER, "gold")
    blocks.apply(target, "gold")
    blocks.verify(target, "gold")
    gold = files(target)
    assert sorted(gold[READ_BPS].splitlines()) == sorted([f"{loop.number} 20000000", f"{other.number} 20000000"])
    assert sorted(gold[WRITE_BPS].splitlines()) == sorted([f"{loop.number} 10000000", f"{other.number} 10000000"])
    assert gold["blkio.bfq.weight"] == "500"
    assert gold["blkio.bfq.weight_device"].splitlines() == ["default 500", f"{loop.number} 700"]
    blocks.apply(target, "bronze", previous="gold")
    blocks.verify(target, "bronze")
    assert files(target) == {
        **DEFAULTS, READ_BPS: f"{loop.number} 1000000", READ_IOPS: f"{loop.number} 100",
    }  # fmt: skip
    with pytest.raises(FailedPrecondition, match=r"class resource blockio: ns/pod/c: blkio\.throttle"):
        blocks.verify(target, "gold")
    blocks.release(target, "bronze")
    assert files(target) == DEFAULTS
    blocks.release(target, "bronze")


@pytest.mark.requirement("Q48")
def test_weights_of_devices_outlive_a_new_default(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    loop.schedule("bfq")
    rule = f"    - Devices: [{loop.path}]\n      Weight: 700\n"
    text = f"Classes:\n  a:\n    - Weight: 200\n{rule}  b:\n{rule}    - Weight: 300\n  c:\n    - Weight: 300\n"
    blocks = blockio(tmp_path, text)
    expected = {"a": (200, f"\n{loop.number} 700"), "b": (300, f"\n{loop.number} 700"), "c": (300, "")}
    for name in ("a", "b", "c", "b", "a", "c"):
        blocks.apply(target, name)
        weight, line = expected[name]
        found = files(target)
        assert (found["blkio.bfq.weight"], found["blkio.bfq.weight_device"]) == (str(weight), f"default {weight}{line}")


@pytest.mark.requirement("Q48")
def test_what_somebody_else_wrote_is_found_and_mended(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    blocks = blockio(tmp_path, classes(loop))
    blocks.apply(target, "bronze")
    Cgroups().write(target.cgroup, READ_BPS, f"{loop.number} 5")
    Cgroups().write(target.cgroup, WRITE_BPS, f"{loop.number} 5")
    with pytest.raises(FailedPrecondition, match=rf"{READ_BPS} has '5' for {loop.number} instead of '1000000'"):
        blocks.verify(target, "bronze")
    blocks.apply(target, "bronze", previous="bronze")
    blocks.verify(target, "bronze")
    # Another object of the type, as after a restart, knows it from the file.
    blockio(tmp_path, classes(loop)).verify(target, "bronze")


class Refusing(Cgroups):
    """Cgroups with one file that the kernel refuses to write: one that is for reading stands in its place."""

    refuse = ""

    def write(self, path: str, name: str, text: str) -> None:
        """Write, or let the kernel refuse."""
        super().write(path, "blkio.throttle.io_serviced" if name == self.refuse else name, text)


@pytest.mark.requirement("Q9")
@pytest.mark.parametrize("refused", [WRITE_BPS, READ_IOPS, "blkio.bfq.weight"])
def test_a_refused_write_takes_back_the_others(tmp_path: Path, loop: LoopDevice, target: Target, refused: str) -> None:
    cgroups = Refusing()
    blocks = blockio(tmp_path, classes(loop), cgroups)
    first, second = ("gold", "bronze") if refused == READ_IOPS else ("bronze", "gold")
    blocks.apply(target, first)
    before = files(target)
    cgroups.refuse = refused
    with pytest.raises(Internal, match=f"class resource blockio: ns/pod/c, class {second}: write"):
        blocks.apply(target, second, previous=first)
    assert files(target) == before
    blocks.verify(target, first)


class WithoutThrottling(Cgroups):
    """Cgroups whose disks know no rates: the kernel is asked to weigh instead, which it refuses without a scheduler."""

    def write(self, path: str, name: str, text: str) -> None:
        """Write, or let the kernel say EOPNOTSUPP."""
        super().write(path, "blkio.bfq.weight_device" if name == READ_BPS else name, text)


@pytest.mark.requirement("Q9")
def test_a_disk_that_cannot_be_throttled_is_no_warning(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    loop.schedule("none")
    blocks = blockio(tmp_path, classes(loop), WithoutThrottling())
    with pytest.raises(Internal, match=r"class bronze: write.*ENOTSUP "):
        blocks.apply(target, "bronze")
    assert files(target) == DEFAULTS


class Flapping(Cgroups):
    """Cgroups for a disk that comes and goes: at first the kernel is asked for a number that no disk has."""

    def __init__(self, missing: int) -> None:
        super().__init__()
        self.missing = missing

    def write(self, path: str, name: str, text: str) -> None:
        """Write, or let the kernel say ENODEV."""
        if self.missing:
            self.missing -= 1
            text = f"240:77 {text.partition(' ')[2]}"
        super().write(path, name, text)


@pytest.mark.requirement("Q45")
def test_a_disk_that_comes_and_goes_while_it_is_written(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    blocks = blockio(tmp_path, classes(loop), Flapping(missing=3))
    blocks.apply(target, "bronze")
    assert files(target)[READ_BPS] == f"{loop.number} 1000000"
    blocks.verify(target, "bronze")


@pytest.mark.slow
@pytest.mark.requirement("Q9")
def test_a_disk_that_is_there_and_never_takes_a_limit(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    blocks = blockio(tmp_path, classes(loop), Flapping(missing=1_000_000))
    with pytest.raises(Internal, match=r"class bronze: write.*ENODEV"):
        blocks.apply(target, "bronze")
    assert files(target) == DEFAULTS


@pytest.mark.requirement("Q50")
def test_weights_that_nothing_heeds_are_refused(tmp_path: Path, loop: LoopDevice, other: LoopDevice) -> None:
    loop.schedule("none")
    text = f"""
Classes:
  named:
    - Devices: [{loop.path}]
      Weight: 300
  both:
    - Devices: [{loop.path}, {other.path}]
      Weight: 300
  elsewhere:
    - Devices: [/dev/nothing-here*]
      Weight: 300
    - Devices: [{loop.path}]
      ThrottleReadBps: 1M
  all:
    - Weight: 300
"""
    blocks = blockio(tmp_path, text)
    other.schedule("bfq")
    for name in ("both", "elsewhere", "all"):
        blocks.check(Level.CONTAINER, name)
    with pytest.raises(FailedPrecondition, match=f"class named has weights.*no disk.*{loop.name}/queue/scheduler"):
        blocks.check(Level.CONTAINER, "named")


@pytest.mark.requirement("Q9")
def test_a_class_that_is_gone_can_be_gone_back_to(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    blockio(tmp_path, classes(loop)).apply(target, "bronze")
    before = files(target)
    # A daemon that starts without the class; changes fail later, at another type.
    blocks = blockio(tmp_path, classes(loop).replace("bronze:", "silver:"))
    for _ in range(2):
        way_back = blocks.way_back(target, "gold", "bronze")
        blocks.apply(target, "gold", previous="bronze")
        assert files(target) != before
        way_back()
        assert files(target) == before
    blocks.release(target, "bronze")
    assert files(target) == DEFAULTS


@pytest.mark.requirement("Q45", "Q50")
def test_what_has_no_effect_is_a_warning(
    tmp_path: Path, loop: LoopDevice, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    loop.schedule("none")
    text = f"""
Classes:
  c:
    - Devices: [/dev/nothing-here*]
      ThrottleReadBps: 1M
    - Devices: [{loop.path}]
      Weight: 300
"""
    blocks = blockio(tmp_path, text)
    expected = [
        "line 4: /dev/nothing-here* matches no block device",
        f"the weight of {loop.path} has no effect: its scheduler is not bfq",
        "what asks for the class is refused, as no disk respects its weights; choose a scheduler that does:"
        f" `echo bfq > /sys/block/{loop.path.removeprefix('/dev/')}/queue/scheduler`",
    ]
    with caplog.at_level(logging.WARNING):
        blocks.activate((), previous=None)
        blocks.apply(target, "c")
        blocks.apply(target, "c", previous="c")
    prefix = f"class resource blockio: {tmp_path}/blockio.yaml, class c: "
    assert [record.getMessage() for record in caplog.records] == [prefix + line for line in expected]
    assert files(target) == DEFAULTS
    assert blocks.describe()["classes"]["c"]["warnings"] == expected
    blocks.verify(target, "c")


@pytest.mark.requirement("Q45")
def test_a_partition_stands_for_its_disk(tmp_path: Path, target: Target) -> None:
    with loop_device(tmp_path, partitions=True) as loop:
        path = f"{loop.path}p1"
        assert Path(path).is_block_device()
        blocks = blockio(tmp_path, f"Classes:\n  c:\n  - Devices: [{path}]\n    ThrottleReadBps: 1M\n")
        blocks.apply(target, "c")
        assert files(target)[READ_BPS] == f"{loop.number} 1000000"
        told = blocks.describe()["classes"]["c"]["warnings"]
        assert told == [f"line 3: {path} is a partition: the limit is that of {loop.path}, all of it"]
        blocks.release(target, "c")


@pytest.mark.requirement("Q47")
def test_links_by_model_and_serial(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    links = tmp_path / "by-id"
    links.mkdir()
    pattern = f"{links}/ata-*SSD*"
    text = f"Classes:\n  c:\n  - Devices: ['{pattern}']\n    ThrottleReadBps: 1M\n"
    blocks = blockio(tmp_path, text)
    blocks.apply(target, "c")
    assert files(target) == DEFAULTS
    (links / "ata-ACME_SSD_0001").symlink_to(os.path.relpath(loop.path, links))
    (links / "ata-ACME_HDD_0002").symlink_to(loop.path)
    blocks.apply(target, "c", previous="c")
    assert files(target)[READ_BPS] == f"{loop.number} 1000000"
    # It is plugged out: the next container does not have it, and this one is not wrong.
    (links / "ata-ACME_SSD_0001").unlink()
    blocks.verify(target, "c")
    blocks.apply(target, "c", previous="c")
    assert files(target) == DEFAULTS


@pytest.mark.requirement("Q47")
def test_a_link_in_the_middle_that_leads_to_another_disk(tmp_path: Path, loop: LoopDevice, other: LoopDevice) -> None:
    by_id, mapper = tmp_path / "by-id", tmp_path / "mapper"
    for directory in (by_id, mapper):
        directory.mkdir()
    (by_id / "dm-name-data").symlink_to("../mapper/data")
    (mapper / "data").symlink_to(loop.path)
    devices, pattern = Devices(), f"{by_id}/*"
    assert [match.device.number for match in devices.match([pattern])[pattern]] == [loop.number]
    (mapper / "new").symlink_to(other.path)
    (mapper / "new").rename(mapper / "data")
    assert [match.device.number for match in devices.match([pattern])[pattern]] == [other.number]


@pytest.mark.requirement("Q45")
def test_what_is_no_disk_is_left_out(tmp_path: Path, target: Target) -> None:
    os.mknod(tmp_path / "node", 0o600 | 0o060000, os.makedev(240, 77))
    (tmp_path / "broken").symlink_to("/dev/nothing-here")
    (tmp_path / "loop").symlink_to("loop")
    # Links of processes can lead where nobody may look, and where nothing is, as those of the kernel's threads.
    patterns = [f"{tmp_path}/*", "/dev/null", "/dev", "/nothing/here", "/proc/[0-9]*/*"]
    assert Devices().match(patterns) == dict.fromkeys(patterns, ())


@pytest.mark.requirement("Q45")
def test_a_pattern_finds_every_disk_of_its_kind_and_no_other() -> None:
    def number(name: str) -> str:
        return (Path("/sys/block") / name / "dev").read_text().strip()

    loops = {f"/dev/{path.name}": number(path.name) for path in Path("/sys/block").glob("loop*")}
    devices = Devices()
    for _ in range(2):
        found = devices.match(["/dev/loop[0-9]*"])["/dev/loop[0-9]*"]
        # Other tests attach more of them meanwhile.
        assert {match.path: match.device.number for match in found}.items() >= loops.items()
        assert all(match.device.name == match.path for match in found)
    disks = {path.name for path in Path("/sys/block").glob("vd?")}
    (matches,) = devices.match(["/dev/vd*"]).values()
    assert {match.device.name for match in matches} == {f"/dev/{name}" for name in disks}
    assert all(match.device.number == number(match.device.name.removeprefix("/dev/")) for match in matches)


def test_a_device_that_vanishes_between_looking_and_writing(
    tmp_path: Path, loop: LoopDevice, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    class Vanished(Devices):
        """Knows a number that was a device's a moment ago."""

        def match(self, asked: Any) -> Any:
            """Return what is there, and under each pattern one more."""
            found = super().match(asked)
            return {
                pattern: tuple(_with_number(match, number) for match in matches for number in (loop.number, "240:77"))
                for pattern, matches in found.items()
            }

    file = tmp_path / "blockio.yaml"
    file.write_text(classes(loop))
    blocks = BlockIo(plugin.configuration.load(file), Cgroups(), Vanished())
    with caplog.at_level(logging.WARNING):
        blocks.apply(target, "bronze")
    assert files(target)[READ_BPS] == f"{loop.number} 1000000"
    assert [record.getMessage() for record in caplog.records if "240:77" in record.getMessage()] != []
    blocks.verify(target, "bronze")


def _with_number(match: Any, number: str) -> Any:
    from msgspec.structs import replace

    return replace(match, device=replace(match.device, number=number))


@pytest.mark.requirement("Q49")
def test_version_1_offers_pods_what_it_can_impose_on_them(tmp_path: Path, loop: LoopDevice, target: Target) -> None:
    blocks = blockio(tmp_path, classes(loop))
    assert {level: offer.classes for level, offer in blocks.offers().items()} == {
        Level.CONTAINER: ("bronze", "free", "gold"),
        Level.POD: ("free",),
    }
    with pytest.raises(FailedPrecondition, match=r"class gold throttles, which cgroup version 1 cannot do to a pod"):
        blocks.check(Level.POD, "gold")
    only = blockio(tmp_path, f"Classes:\n  c:\n  - Devices: [{loop.path}]\n    ThrottleReadBps: 1M\n")
    assert set(only.offers()) == {Level.CONTAINER}
    assert "version 1" in only.why_not(Level.POD)
    assert only.why_not(Level.CONTAINER) == ""


def test_systemd_leaves_no_weights_to_pods(tmp_path: Path, loop: LoopDevice) -> None:
    file = tmp_path / "blockio.yaml"
    file.write_text("Classes:\n  weighed:\n  - Weight: 300\n")
    config = ClassResourcesConfig(blockio_config=str(file))
    blocks = plugin.load(config, Cgroups(), systemd=True)
    assert blocks is not None
    assert set(blocks.offers()) == {Level.CONTAINER}
    assert "systemd" in blocks.why_not(Level.POD)
    with pytest.raises(FailedPrecondition, match=r"class weighed has weights, which systemd resets"):
        blocks.check(Level.POD, "weighed")
    file.write_text(classes(loop))
    mixed = plugin.load(config, Cgroups(), systemd=True)
    assert mixed is not None
    assert mixed.offers()[Level.POD].classes == ("free",)


def test_a_file_without_classes_offers_nothing(tmp_path: Path) -> None:
    blocks = blockio(tmp_path, "")
    assert blocks.offers() == {}
    assert "has no classes" in blocks.why_not(Level.CONTAINER)


def test_a_cgroup_that_is_gone(tmp_path: Path, loop: LoopDevice) -> None:
    blocks = blockio(tmp_path, classes(loop))
    gone = Target(level=Level.CONTAINER, id="c2", name="ns/pod/gone", cgroup="/pkunit-blockio-gone")
    with pytest.raises(FailedPrecondition, match=r"class resource blockio: ns/pod/gone: cgroup .* is gone"):
        blocks.apply(gone, "bronze")
    with pytest.raises(FailedPrecondition, match=r"is gone"):
        blocks.verify(gone, "bronze")
    blocks.release(gone, "bronze")


@pytest.mark.requirement("Q4")
def test_the_oci_configuration(tmp_path: Path, loop: LoopDevice) -> None:
    blocks = blockio(tmp_path, classes(loop))
    config = {"linux": {"resources": {"pids": {"limit": 5}}, "cgroupsPath": "/x"}}
    edited = blocks.edit("bronze", config)
    major, minor = map(int, loop.number.split(":"))
    assert edited["linux"]["resources"] == {
        "pids": {"limit": 5},
        "blockIO": {
            "throttleReadBpsDevice": [{"major": major, "minor": minor, "rate": 1_000_000}],
            "throttleReadIOPSDevice": [{"major": major, "minor": minor, "rate": 100}],
        },
    }
    assert config == {"linux": {"resources": {"pids": {"limit": 5}}, "cgroupsPath": "/x"}}
    assert blocks.edit("free", config) == config


@pytest.mark.requirement("Q45")
def test_a_file_is_explained(tmp_path: Path, loop: LoopDevice) -> None:
    loop.schedule("bfq")
    file = tmp_path / "blockio.yaml"
    described = blockio(tmp_path, classes(loop)).describe()
    lines = explain.explain(described)
    about = f"{loop.path} ({loop.number}, model {tmp_path}/disk.img, scheduler bfq)"
    assert lines == [
        f"{file}: 3 classes, cgroup version 1",
        "",
        "bronze",
        f"  {about}: reads at most 1 MB/s and 100 operations/s",
        "  for containers only: it throttles, which cgroup version 1 cannot do to a pod as a whole",
        "",
        "free",
        "  limits nothing",
        "",
        "gold",
        "  weight 500 for disks that are not named; without a class it is 100",
        f"  {about}: reads at most 20 MB/s; writes at most 10 MB/s; weight 700",
        "  for containers only: it throttles, which cgroup version 1 cannot do to a pod as a whole",
    ]
    assert described["classes"]["bronze"] == {
        "devices": [
            {
                "name": loop.path,
                "number": loop.number,
                "model": f"{tmp_path}/disk.img",
                "scheduler": "bfq",
                "readBytesPerSecond": 1_000_000,
                "readOperationsPerSecond": 100,
            }
        ],
        "containersOnly": "throttles, which cgroup version 1 cannot do to a pod as a whole",
    }
