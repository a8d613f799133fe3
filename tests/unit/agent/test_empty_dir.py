"""emptyDir: how large one in memory is, whose pages one of huge pages has, and what is there after a crash."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.volumes import empty_dir
from podkeep.agent.volumes.ownership import UNCHANGED, Owners
from podkeep.api.volumes import EmptyDirVolumeSource
from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.mount import mountinfo
from support.volumes import pod_with
from unit.kernel.isolation import in_new_namespaces

MIB = 1 << 20
NODE = {"memory": "4Gi"}


def limits(memory: str) -> dict[str, Any]:
    return {"limits": {"memory": memory}}


@pytest.mark.parametrize(
    ("resources", "size_limit", "node", "expected"),
    [
        ({}, None, {}, 0),
        ({}, None, NODE, 4096 * MIB),
        ({}, "64Mi", NODE, 64 * MIB),
        ({}, "8Gi", NODE, 4096 * MIB),
        (limits("100Mi"), None, NODE, 100 * MIB),
        (limits("100Mi"), "64Mi", NODE, 64 * MIB),
        (limits("100Mi"), "1Gi", NODE, 100 * MIB),
        ({}, "0", NODE, 4096 * MIB),
    ],
)
def test_memory_is_limited_by_node_pod_and_size_limit(
    resources: dict[str, Any], size_limit: str | None, node: dict[str, str], expected: int
) -> None:
    """The least of the three counts, a limit of 0 is none (kubelet: SizeMemoryBackedVolumes)."""
    pod = pod_with([{"name": "v", "emptyDir": {}}], resources=resources)
    source = EmptyDirVolumeSource(medium="Memory", size_limit=size_limit)
    assert empty_dir.memory_limit(pod, source, node) == expected


def huge(*names: str) -> dict[str, Any]:
    return {"limits": {f"hugepages-{name}": "4Mi" for name in names}}


@pytest.mark.parametrize(
    ("medium", "resources", "expected"),
    [("HugePages", huge("2Mi"), 2 * MIB), ("HugePages-2Mi", huge("2Mi", "1Gi"), 2 * MIB)],
)
def test_pages_are_those_that_a_container_asks_for(medium: str, resources: dict[str, Any], expected: int) -> None:
    assert empty_dir.page_size(pod_with([], resources=resources), medium) == expected


@pytest.mark.parametrize(
    ("medium", "resources", "message"),
    [
        (
            "HugePages",
            {},
            "medium HugePages: hugePages storage requested, but there is no resource request for huge pages",
        ),
        (
            "HugePages-1Gi",
            huge("2Mi"),
            "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages",
        ),
        (
            "HugePages",
            huge("2Mi", "1Gi"),
            "medium: HugePages can't be used if container requests multiple huge page sizes",
        ),
    ],
)
def test_pages_that_nothing_says(medium: str, resources: dict[str, Any], message: str) -> None:
    with pytest.raises(FailedPrecondition) as failed:
        empty_dir.page_size(pod_with([], resources=resources), medium)
    assert failed.value.message == message


@in_new_namespaces()
def test_a_volume_in_memory_has_size_mode_and_group_at_once(tmp_path: Path) -> None:
    """Nothing is changed after the mount: a crash in between leaves nothing half made."""
    pod = pod_with([])
    source = EmptyDirVolumeSource(medium="Memory", size_limit="1Mi")
    empty_dir.make(pod, source, tmp_path / "v", NODE, Owners(group=300))
    info, size = (tmp_path / "v").stat(), os.statvfs(tmp_path / "v")
    assert (stat.S_IMODE(info.st_mode), info.st_gid) == (0o2777, 300)
    assert size.f_blocks * size.f_frsize == MIB
    (tmp_path / "v" / "file").write_text("kept")
    empty_dir.make(pod, source, tmp_path / "v", NODE, Owners(group=300))
    assert (tmp_path / "v" / "file").read_text() == "kept"


@in_new_namespaces()
def test_a_volume_of_huge_pages(tmp_path: Path) -> None:
    pod = pod_with([], resources=huge("2Mi"))
    empty_dir.make(pod, EmptyDirVolumeSource(medium="HugePages-2Mi"), tmp_path / "v", NODE, Owners(group=300))
    (mounted,) = mountinfo.under(tmp_path)
    assert (mounted.fs_type, os.statvfs(tmp_path / "v").f_bsize) == ("hugetlbfs", 2 * MIB)
    assert stat.S_IMODE((tmp_path / "v").stat().st_mode) == 0o2777


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o777), (0o1777, 0o1777)])
def test_a_volume_on_disk_appears_whole_and_is_left_alone(tmp_path: Path, mode: int | None, expected: int) -> None:
    """Owner and mode are right before the name is there; what containers do to them stays."""
    path, source = tmp_path / "plugin" / "v", EmptyDirVolumeSource(mode=mode)
    empty_dir.make(pod_with([]), source, path, NODE, UNCHANGED)
    assert stat.S_IMODE(path.stat().st_mode) == expected
    assert os.listdir(path.parent) == ["v"]
    path.chmod(0o700)
    empty_dir.make(pod_with([]), source, path, NODE, UNCHANGED)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
