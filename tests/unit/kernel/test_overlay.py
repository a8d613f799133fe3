"""Overlay over detached, idmapped layers, by descriptor and by path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel.isolation import as_root_of, in_new_namespaces
from podkeep.base.errors import InvalidArgument, KernelCallError
from podkeep.kernel.mount import mountinfo, mounts, overlay
from podkeep.kernel.mount.mounts import MountAttr, MountFlag
from podkeep.kernel.mount.overlay import OverlayFlag

BOTH_WAYS = pytest.mark.parametrize("by_path", [False, True])


def layer(directory: Path, **files: str) -> Path:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


def clones(directories: Sequence[Path], userns: int | None = None) -> list[int]:
    return [mounts.clone_tree(directory, idmap_userns=userns) for directory in directories]


def close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def writable(directory: Path) -> dict[str, Path]:
    places = {name: directory / name for name in ("upper", "work", "target")}
    for place in places.values():
        place.mkdir()
    return places


def temporary_files() -> list[str]:
    return sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("lo"))


@pytest.mark.slow
@pytest.mark.requirement("U77")
@BOTH_WAYS
@in_new_namespaces()
def test_idmapped_layers_show_the_pod_its_own_files(by_path: bool, open_dir: Path, userns: int) -> None:
    lowers = [layer(open_dir / "top", common="top"), layer(open_dir / "bottom", common="bottom", base="b")]
    places = writable(open_dir)
    os.chown(places["upper"], 65536, 65536)
    mounted, files = len(mountinfo.read()), temporary_files()

    fds = clones(lowers, userns)
    overlay.mount_overlay(fds, **places, by_path=by_path)
    close(fds)

    target = places["target"]
    assert len(mountinfo.read()) == mounted + 1
    assert temporary_files() == files
    assert (target / "common").read_text() == "top"
    assert (target / "base").stat().st_uid == 65536
    assert as_root_of(userns, lambda: (target / "base").stat().st_uid) == 0
    as_root_of(userns, lambda: (target / "base").write_text("changed inside"))
    assert (places["upper"] / "base").stat().st_uid == 65536
    assert (open_dir / "bottom" / "base").read_text() == "b"
    assert (open_dir / "bottom" / "base").stat().st_uid == 0

    mounts.unmount(target)
    assert len(mountinfo.read()) == mounted


@BOTH_WAYS
@in_new_namespaces()
def test_readonly(by_path: bool, tmp_path: Path) -> None:
    lowers = [layer(tmp_path / "a", f="a"), layer(tmp_path / "b", f="b", g="g")]
    target = layer(tmp_path / "target")
    fds = clones(lowers)
    overlay.overlay_readonly(fds, target, by_path=by_path)
    close(fds)
    assert sorted((path.name, path.read_text()) for path in target.iterdir()) == [("f", "a"), ("g", "g")]
    with pytest.raises(OSError, match="Read-only"):
        (target / "new").touch()


@BOTH_WAYS
@in_new_namespaces()
def test_a_readonly_overlay_cannot_be_made_writable(by_path: bool, tmp_path: Path, userns: int) -> None:
    """A single layer is shown through an overlay, too: a bind mount of it could be remounted."""
    fds = clones([layer(tmp_path / "a", f="a"), layer(tmp_path / "empty")], userns)
    target = layer(tmp_path / "target")
    overlay.overlay_readonly(fds, target, attrs=MountAttr.NOEXEC | MountAttr.NODEV, by_path=by_path)
    close(fds)
    assert (target / "f").stat().st_uid == 65536
    (entry,) = mountinfo.under(target)
    assert {"ro", "noexec", "nodev"} <= set(entry.options)
    assert "ro" in entry.super_options
    with pytest.raises(KernelCallError, match="EROFS"):
        mounts.mount(None, target, flags=MountFlag.REMOUNT)
    mounts.mount_setattr(target, clear=MountAttr.RDONLY)
    with pytest.raises(OSError, match="Read-only"):
        (target / "new").touch()


@in_new_namespaces()
def test_one_layer_is_too_few_for_a_readonly_overlay(tmp_path: Path) -> None:
    target = layer(tmp_path / "target")
    for lowers in ([], [layer(tmp_path / "a", f="a")]):
        fds = clones(lowers)
        with pytest.raises(InvalidArgument, match="add an empty directory"):
            overlay.overlay_readonly(fds, target)
        close(fds)
    assert mountinfo.under(target) == []


@pytest.mark.skipif(Path("/sys/fs/selinux/enforce").exists(), reason="SELinux is on: it takes the label")
@BOTH_WAYS
@in_new_namespaces()
def test_a_kernel_without_selinux_refuses_a_label(by_path: bool, tmp_path: Path) -> None:
    """The label reaches the kernel; where it enforces one, the files would have it."""
    fds = clones([layer(tmp_path / "a", f="a"), layer(tmp_path / "empty")])
    target = layer(tmp_path / "target")
    mounted = len(mountinfo.read())
    with pytest.raises(KernelCallError, match="EINVAL"):
        overlay.overlay_readonly(fds, target, context="system_u:object_r:container_file_t:s0:c1,c2", by_path=by_path)
    close(fds)
    assert len(mountinfo.read()) == mounted


@pytest.mark.requirement("V76")
def test_label_in_the_options_of_an_overlay() -> None:
    text = overlay.options_text([Path("/a"), Path("/b")], None, context="system_u:object_r:t:s0:c1,c2")
    assert text == 'lowerdir=/a:/b,context="system_u:object_r:t:s0:c1,c2"'


@pytest.mark.slow
@BOTH_WAYS
@in_new_namespaces()
def test_a_hundred_layers_and_odd_names(by_path: bool, tmp_path: Path, userns: int) -> None:
    base = layer(tmp_path / "odd:name,with\\all")
    lowers = [layer(base / str(number), **{f"f{number}": str(number)}) for number in range(100)]
    places = writable(base)
    fds = clones(lowers, userns)
    overlay.mount_overlay(fds, **places, by_path=by_path)
    close(fds)
    assert len(list(places["target"].iterdir())) == 100
    (places["target"] / "new").touch()
    assert (places["upper"] / "new").exists()


@BOTH_WAYS
@in_new_namespaces()
def test_a_refusal_leaves_nothing(by_path: bool, tmp_path: Path) -> None:
    lowers = [layer(tmp_path / "a", f="a"), layer(tmp_path / "b")]
    places = writable(tmp_path)
    places["work"].rmdir()
    fds = clones(lowers)
    mounted, files, descriptors = len(mountinfo.read()), temporary_files(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(KernelCallError):
        overlay.mount_overlay(fds, **places, by_path=by_path)
    with pytest.raises(InvalidArgument, match="without a layer"):
        overlay.mount_overlay([], **places, by_path=by_path)
    assert len(mountinfo.read()) == mounted
    assert temporary_files() == files
    assert len(os.listdir("/proc/self/fd")) == descriptors


@in_new_namespaces()
def test_the_error_names_the_missing_directory(tmp_path: Path) -> None:
    fds = clones([layer(tmp_path / "a")])
    target = layer(tmp_path / "target")
    with pytest.raises(KernelCallError, match=r"open\('.*/no-upper', O_PATH\|O_DIRECTORY\): ENOENT"):
        overlay.mount_overlay(fds, upper=tmp_path / "no-upper", work=tmp_path / "no-work", target=target)


def test_options_are_escaped() -> None:
    text = overlay.options_text([Path("/a:b"), Path("/c")], (Path("/d,e"), Path("/f\\g")))
    assert text == "lowerdir=/a\\:b:/c,upperdir=/d\\,e,workdir=/f\\\\g"


@BOTH_WAYS
@in_new_namespaces()
def test_an_overlay_made_read_only_is_so_in_all_its_mounts(by_path: bool, tmp_path: Path) -> None:
    """Also in one that was made before, and nothing that is done to a mount changes it."""
    places, copy = writable(tmp_path), tmp_path / "copy"
    copy.mkdir()
    fds = clones([layer(tmp_path / "layer", file="x")])
    overlay.mount_overlay(fds, **places, by_path=by_path, flags=OverlayFlag.VOLATILE)
    close(fds)
    target = places["target"]
    mounts.bind(target, copy)
    (target / "mount-point").mkdir()

    with (target / "mount-point/open").open("w"), pytest.raises(KernelCallError, match="EBUSY"):
        overlay.make_readonly(target)
    overlay.make_readonly(target)

    for mount in (target, copy):
        mounts.mount(None, mount, flags=MountFlag.REMOUNT | MountFlag.BIND)
        with pytest.raises(OSError, match="Read-only"):
            (mount / "new").touch()
        assert (mount / "file").read_text() == "x"
