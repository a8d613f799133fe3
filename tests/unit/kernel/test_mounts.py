"""Mounting, and above all idmapped clones (KEP-127, handling of volumes)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel.isolation import as_root_of, in_child, in_new_namespaces
from podkeep.base.errors import KernelCallError
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountAttr, MountFlag, Propagation
from support import filesystems

NOBODY = 65534


def on_disk(directory: Path) -> None:
    """Leave ``directory`` on the file system it is on (ext4, xfs, ...)."""


def on_tmpfs(directory: Path) -> None:
    mounts.tmpfs(directory, "mode=0755,size=1m")


def mount_count() -> int:
    return len(mountinfo.read())


@pytest.mark.slow
@pytest.mark.requirement("U65", "U66", "U67")
@pytest.mark.parametrize("prepare", [on_disk, on_tmpfs])
def test_worked_example_of_kep_127(prepare: Callable[[Path], None], open_dir: Path, userns: int) -> None:
    """Block 65536/0/65536, file foo of host root: root inside through the idmapped mount, nobody without it."""
    if prepare is on_tmpfs:
        filesystems.needed("tmpfs")

    @in_new_namespaces()
    def example() -> None:
        source, mapped, plain = (open_dir / name for name in ("configmap", "mapped", "plain"))
        for directory in (source, mapped, plain):
            directory.mkdir()
        prepare(source)
        (source / "foo").write_text("value")
        (source / "foo").chmod(0o400)
        before = mount_count()

        fd = mounts.clone_tree(source, idmap_userns=userns)
        mounts.attach(fd, mapped)
        os.close(fd)
        mounts.bind(source, plain)

        assert as_root_of(userns, lambda: _owner(mapped / "foo")) == [0, 0]
        assert as_root_of(userns, (mapped / "foo").read_text) == "value"
        assert as_root_of(userns, lambda: _owner(plain / "foo")) == [NOBODY, NOBODY]
        assert as_root_of(userns, lambda: _can_read(plain / "foo")) is False

        as_root_of(userns, lambda: (mapped / "made-inside").write_text("x"))
        as_root_of(userns, lambda: os.chown(mapped / "made-inside", 1000, 2000))
        as_root_of(userns, lambda: (mapped / "made-by-root").write_text("x"))
        assert _owner(source / "made-inside") == [1000, 2000]
        assert _owner(source / "made-by-root") == [0, 0]
        assert _owner(source / "foo") == [0, 0]
        assert _owner(mapped / "made-by-root") == [65536, 65536]

        mounts.unmount(mapped)
        mounts.unmount(plain)
        assert mount_count() == before

    example()


def _owner(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_uid, status.st_gid]


def _can_read(path: Path) -> bool:
    try:
        path.read_text()
    except PermissionError:
        return False
    return True


@pytest.mark.requirement("U74", "U76")
@pytest.mark.parametrize("by_descriptor", [False, True])
@in_new_namespaces()
def test_a_file_system_without_idmap_support_is_named(by_descriptor: bool, open_dir: Path, userns: int) -> None:
    mounts.mount("ramfs", open_dir, fstype="ramfs")
    before = mount_count()
    source: Path | int = os.open(open_dir, os.O_PATH) if by_descriptor else open_dir
    with pytest.raises(KernelCallError) as caught:
        mounts.clone_tree(source, idmap_userns=userns)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.call.startswith("mount_setattr(")
    assert caught.value.hint == (
        f"failed to set MOUNT_ATTR_IDMAP on {open_dir}: invalid argument "
        "(maybe the source filesystem doesn't support idmap mounts on this kernel?)"
    )
    assert caught.value.hint in str(caught.value)
    assert mount_count() == before


@pytest.mark.requirement("U76")
@in_new_namespaces()
def test_an_overlay_cannot_be_idmapped(tmp_path: Path, userns: int) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    mounts.mount("overlay", tmp_path / "merged", fstype="overlay", data=options)
    with pytest.raises(KernelCallError, match=r"failed to set MOUNT_ATTR_IDMAP on .*/merged: invalid argument"):
        mounts.clone_tree(tmp_path / "merged", idmap_userns=userns)


@in_new_namespaces()
def test_a_closed_clone_leaves_nothing(tmp_path: Path, userns: int) -> None:
    before = mount_count()
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        os.close(mounts.clone_tree(tmp_path, idmap_userns=userns, attrs=MountAttr.RDONLY | MountAttr.NOEXEC))
    assert mount_count() == before
    assert len(os.listdir("/proc/self/fd")) == fds


@pytest.mark.parametrize("recursive", [False, True])
@in_new_namespaces()
def test_bind_readonly_with_submounts(recursive: bool, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "below").mkdir(parents=True)
    target.mkdir()
    mounts.tmpfs(source / "below")
    (source / "below" / "file").touch()
    mounts.bind(source, target, recursive=recursive, readonly=True)
    assert (target / "below" / "file").exists() is recursive
    for directory in (target, target / "below"):
        with pytest.raises(OSError, match="Read-only"):
            (directory / "new").touch()
    (source / "new").touch()
    assert (target / "new").exists()
    assert [item.propagation for item in mountinfo.under(target)] == [()] * (2 if recursive else 1)


@in_new_namespaces()
def test_an_idmapped_mount_can_be_recursive_and_readonly(tmp_path: Path, userns: int) -> None:
    (tmp_path / "below").mkdir()
    target = tmp_path.parent / f"{tmp_path.name}-target"
    target.mkdir()
    mounts.tmpfs(tmp_path / "below")
    (tmp_path / "below" / "file").touch()
    fd = mounts.clone_tree(tmp_path, recursive=True, idmap_userns=userns, attrs=MountAttr.RDONLY)
    mounts.attach(fd, target)
    assert _owner(target) == _owner(target / "below" / "file") == [65536, 65536]
    with pytest.raises(OSError, match="Read-only"):
        (target / "below" / "new").touch()


@in_new_namespaces()
def test_bind_a_file_by_descriptors(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("a")
    target.touch()
    source_fd, target_fd = os.open(source, os.O_PATH), os.open(target, os.O_PATH)
    mounts.bind(source_fd, target_fd)
    assert target.read_text() == "a"


@in_new_namespaces()
def test_failed_bind_leaves_nothing(tmp_path: Path) -> None:
    before, fds = mount_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(KernelCallError, match=r"move_mount\(.*missing.*ENOENT"):
        mounts.bind(tmp_path, tmp_path / "missing")
    with pytest.raises(KernelCallError, match=r"open_tree\(.*missing.*ENOENT"):
        mounts.bind(tmp_path / "missing", tmp_path)
    assert mount_count() == before
    assert len(os.listdir("/proc/self/fd")) == fds


@in_new_namespaces()
def test_unmount(tmp_path: Path) -> None:
    mounts.unmount(tmp_path / "missing")
    mounts.unmount(tmp_path)
    with pytest.raises(KernelCallError, match=r"umount2\(.*missing.*ENOENT"):
        mounts.unmount(tmp_path / "missing", missing_ok=False)
    with pytest.raises(KernelCallError, match=r"umount2\(.*EINVAL"):
        mounts.unmount(tmp_path, missing_ok=False)

    mounts.tmpfs(tmp_path, "size=64k,mode=0700")
    assert mountinfo.is_mount_point(tmp_path)
    with (tmp_path / "open").open("w"):
        with pytest.raises(KernelCallError, match=r"EBUSY.*fuser"):
            mounts.unmount(tmp_path)
        mounts.unmount(tmp_path, lazy=True)
    assert not mountinfo.is_mount_point(tmp_path)


@in_new_namespaces()
def test_unmount_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    mounts.tmpfs(real)
    mounts.unmount(link)
    assert mountinfo.is_mount_point(real)


@pytest.mark.parametrize(
    ("propagation", "arrives"), [(Propagation.SHARED, True), (Propagation.SLAVE, True), (Propagation.PRIVATE, False)]
)
@in_new_namespaces()
def test_propagation(propagation: Propagation, arrives: bool, tmp_path: Path) -> None:
    mounts.tmpfs(tmp_path)
    mounts.set_propagation(tmp_path, Propagation.SHARED)
    (tmp_path / "source").mkdir()
    (tmp_path / "clone").mkdir()
    fd = mounts.clone_tree(tmp_path, propagation=propagation)
    mounts.attach(fd, tmp_path / "clone")
    mounts.tmpfs(tmp_path / "source")
    assert mountinfo.is_mount_point(tmp_path / "clone" / "source") is arrives


@in_new_namespaces()
def test_setattr_by_path_and_clear(tmp_path: Path) -> None:
    mounts.tmpfs(tmp_path, attrs=MountFlag.NOSUID)
    mounts.mount_setattr(tmp_path, set_=MountAttr.RDONLY | MountAttr.NOEXEC, clear=MountAttr.NOSUID)
    (entry,) = mountinfo.under(tmp_path)
    assert {"ro", "noexec"} <= set(entry.options)
    assert "nosuid" not in entry.options


@in_new_namespaces()
def test_the_file_system_says_what_it_refuses(tmp_path: Path) -> None:
    context = mounts.fsopen("tmpfs")
    with pytest.raises(KernelCallError, match=r"fsconfig\(.*'size'.*'much'.*hint: .*size") as caught:
        mounts.fsconfig_string(context, "size", "much")
    assert caught.value.errno == errno.EINVAL
    mounts.fsconfig_string(context, "size", "64k")
    mounts.fsconfig_flag(context, "ro")
    mounts.fsconfig_create(context)
    mounts.attach(mounts.fsmount(context, MountAttr.NODEV), tmp_path)
    assert mountinfo.under(tmp_path)[0].fs_type == "tmpfs"


def test_support_reports_what_a_child_raises() -> None:
    """The helper of these tests must not swallow a failure."""

    def failing() -> None:
        assert errno.EPERM == 2, "carried over"

    with pytest.raises(pytest.fail.Exception, match="carried over"):
        in_child(failing)
