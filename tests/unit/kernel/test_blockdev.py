"""Names of block devices and their disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from podkeep.kernel.mount.blockdev import device_name, disk_of


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """What the kernel shows of a disk 8:0 with a partition 8:1."""
    disk, links = tmp_path / "devices/block/sda", tmp_path / "dev"
    (disk / "sda1").mkdir(parents=True)
    links.mkdir()
    (disk / "dev").write_text("8:0\n")
    (disk / "sda1/dev").write_text("8:1\n")
    (disk / "sda1/partition").write_text("1\n")
    (links / "8:0").symlink_to(disk)
    (links / "8:1").symlink_to(disk / "sda1")
    return str(links)


@pytest.mark.parametrize(
    ("numbers", "disk"), [((8, 1), (8, 0)), ((8, 0), (8, 0)), ((0, 77), (0, 77))], ids=["partition", "disk", "neither"]
)
def test_the_disk_of_a_device(sysfs: str, numbers: tuple[int, int], disk: tuple[int, int]) -> None:
    assert disk_of(*numbers, sysfs=sysfs) == disk


def test_a_disk_that_is_taken_away_is_no_error(sysfs: str, tmp_path: Path) -> None:
    (tmp_path / "devices/block/sda/dev").write_text("")
    assert disk_of(8, 1, sysfs=sysfs) == (8, 1)


def test_a_device_that_the_kernel_does_not_show_has_numbers_for_a_name() -> None:
    assert device_name(0, 77) == "0:77"
