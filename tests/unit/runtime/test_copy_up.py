"""Copies of directories of images: everything that a tar can hold, and what must not happen."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podkeep.base.errors import Cancelled, InvalidArgument, KernelCallError, ResourceExhausted
from podkeep.kernel.mount import mounts
from podkeep.kernel.namespace.idmap import block
from podkeep.runtime.bundle import anonymous_volumes, copy_up
from podkeep.runtime.bundle.anonymous_volumes import wanted
from podkeep.runtime.bundle.copy_up import copy_directory
from support.descriptors import open_descriptors

CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
"""security.capability of a file with cap_net_bind_service+ep (vfs_cap_data of version 2)."""
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in ((1, 7, 2**32 - 1), (2, 7, 1234), (4, 5, 2**32 - 1), (16, 7, 2**32 - 1), (32, 5, 2**32 - 1))
)
"""user::rwx, user:1234:rwx, group::r-x, mask::rwx, other::r-x (posix_acl_xattr.h)."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


class After(threading.Event):
    """Set from the given time on that somebody looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def copy(source: Path, target: Path, given_up: threading.Event | None = None) -> None:
    target.mkdir(exist_ok=True)
    descriptors = len(open_descriptors())
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    try:
        copy_directory(fds[0], fds[1], given_up or threading.Event())
    finally:
        for fd in fds:
            os.close(fd)
        assert len(open_descriptors()) == descriptors


def facts(top: Path) -> dict[str, tuple[object, ...]]:
    """Return what stat and readlink say of everything in a tree; inodes by the first name that has them."""
    result: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status, name = path.lstat(), str(path.relative_to(top))
        if stat.S_ISSOCK(status.st_mode):
            continue
        kind = status.st_mode
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        times = status.st_mtime_ns
        result[name] = (kind, status.st_uid, status.st_gid, status.st_rdev, times, content)
        result[name] += (first.setdefault(status.st_ino, name), status.st_nlink if path.is_file() else 0)
    return result


def test_everything_but_sockets(source: Path, tmp_path: Path) -> None:
    (source / "empty").mkdir()
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/file").write_bytes(b"content" * 100_000)
    (source / "deep/other").hardlink_to(source / "deep/er/file")
    (source / "setuid").write_bytes(b"#!")
    os.chown(source / "setuid", 1000, 50)
    (source / "setuid").chmod(0o6755)
    (source / "secret").write_text("x")
    (source / "secret").chmod(0)
    (source / "absolute").symlink_to("/etc/passwd")
    (source / "dangling").symlink_to("nowhere")
    os.chown(source / "dangling", 7, 8, follow_symlinks=False)
    os.mkfifo(source / "pipe")
    os.mknod(source / "device", stat.S_IFCHR | 0o620, os.makedev(1, 3))
    (source / "na\nme ☃").write_text("x")
    os.mkdir(os.fsencode(source) + b"/\xff")
    (source / "sticky").mkdir()
    (source / "sticky").chmod(0o1777)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    source.chmod(0o750)
    os.chown(source, 5, 6)
    for path in [*source.rglob("*"), source]:
        os.utime(path, ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)
    copy(source, tmp_path / "target")
    assert facts(tmp_path / "target") == facts(source)
    assert not (tmp_path / "target/socket").exists()


def test_extended_attributes(source: Path, tmp_path: Path) -> None:
    (source / "program").write_text("x")
    os.setxattr(source / "program", "security.capability", CAPABILITY)
    os.setxattr(source / "program", "user.note", b"\0binary")
    os.setxattr(source / "program", "trusted.overlay.origin", b"x")
    os.setxattr(source, "user.of-the-top", b"1")
    (source / "directory").mkdir()
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        os.setxattr(source / "directory", name, ACL)
    copy(source, tmp_path / "target")
    copied = tmp_path / "target"
    assert {name: os.getxattr(copied / "program", name) for name in os.listxattr(copied / "program")} == {
        "security.capability": CAPABILITY,
        "user.note": b"\0binary",
    }
    assert os.getxattr(copied, "user.of-the-top") == b"1"
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        assert os.getxattr(copied / "directory", name) == os.getxattr(source / "directory", name)


def test_holes_stay_holes(source: Path, tmp_path: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"in the middle")
    with (source / "hole").open("wb") as file:
        file.truncate(1 << 30)
    copy(source, tmp_path / "target")
    with (tmp_path / "target/sparse").open("rb") as file:
        file.seek(1 << 39)
        assert file.read(20) == b"in the middle" + bytes(7)
    assert (tmp_path / "target/sparse").stat().st_size == 1 << 40
    assert (tmp_path / "target/sparse").stat().st_blocks * 512 < 1 << 20
    assert (tmp_path / "target/hole").stat().st_blocks == 0


def test_a_hole_with_blocks_stays_a_hole(source: Path, tmp_path: Path) -> None:
    """Blocks without data, as EROFS reports them for every hole."""
    with (source / "allocated").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 26)
    assert (source / "allocated").stat().st_blocks * 512 >= 1 << 26
    copy(source, tmp_path / "target")
    copied = (tmp_path / "target/allocated").stat()
    assert (copied.st_size, copied.st_blocks) == (1 << 26, 0)


@pytest.mark.parametrize("looks", [0, 1, 2, 4])
@pytest.mark.slow
def test_a_copy_that_is_given_up_ends(source: Path, tmp_path: Path, looks: int) -> None:
    """Within a file, too: looks are for the directory, the file, its first piece and its second."""
    with (source / "large").open("wb") as file:
        for _ in range(3):
            file.write(bytes(16 << 20))
    with pytest.raises(Cancelled, match="was given up"):
        copy(source, tmp_path / "target", After(looks))
    found = tmp_path / "target/large"
    assert (found.stat().st_blocks * 512 if found.exists() else 0) == max(looks - 2, 0) * (16 << 20)


@pytest.mark.slow
def test_a_copy_leaves_a_part_of_the_disk_free(source: Path, tmp_path: Path) -> None:
    (source / "data").write_bytes(bytes(1 << 20))
    small = tmp_path / "small"
    small.mkdir()
    mounts.tmpfs(small, "size=16m,nr_inodes=1000")
    try:
        for number in range(15):
            copy(source, small / f"{number}")
        with pytest.raises(ResourceExhausted, match="does not fit on the disk"):
            copy(source, small / "more")
        (small / "more/data").unlink()
        (source / "data").write_bytes(b"")
        copy(source, small / "more")
        for number in range(1000):
            (source / f"{number}").touch()
        with pytest.raises(ResourceExhausted, match="does not fit on the disk"):
            copy(source, small / "inodes")
        left = os.statvfs(small)
        assert left.f_favail >= left.f_files // 20 - 1
        assert left.f_bavail * left.f_frsize >= (16 << 20) // 20
    finally:
        mounts.unmount(small)


def test_to_another_file_system(source: Path) -> None:
    (source / "file").write_bytes(os.urandom(3_000_000))
    target = Path("/dev/shm") / f"podkeep-copy-{os.getpid()}"
    try:
        copy(source, target)
        assert (target / "file").read_bytes() == (source / "file").read_bytes()
    finally:
        subprocess.run(["rm", "-rf", target], check=True)


@pytest.mark.slow
def test_a_deep_tree_needs_no_recursion(source: Path, tmp_path: Path) -> None:
    fd = os.open(source, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    copy(source, tmp_path / "target")
    found = subprocess.run(["find", tmp_path / "target"], capture_output=True, check=True).stdout
    assert found.count(b"\n") == 1101
    subprocess.run(["rm", "-rf", tmp_path / "target", source], check=True)


def test_a_path_that_is_too_long_is_an_error(source: Path, tmp_path: Path) -> None:
    fd = os.open(source, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=fd)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with pytest.raises(KernelCallError, match="ENAMETOOLONG"):
        copy(source, tmp_path / "target")
    subprocess.run(["rm", "-rf", tmp_path / "target", source], check=True)


# which volumes there are


@pytest.mark.parametrize(
    ("volumes", "mounted", "expected"),
    [
        ((), (), ()),
        (("/data",), (), ("/data",)),
        (("/data/", "//data", "data", "/x/../data"), (), ("/data",)),
        (("/data", "/var/lib"), ("/data/",), ("/var/lib",)),
        (("/data",), ("/data/below", "/"), ("/data",)),
        (("/dev/shm", "/dev/x"), (), ("/dev/shm", "/dev/x")),
        (("/process", "/system"), (), ("/process", "/system")),
        (("/proc",), ("/proc",), ()),
    ],
)
def test_volumes_that_are_made(volumes: tuple[str, ...], mounted: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert wanted(volumes, mounted) == expected


@pytest.mark.parametrize("path", ["/", "", "..", "/proc", "/proc/", "/proc/self/attr", "/sys", "/sys/kernel", "/dev"])
def test_volumes_that_are_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match="no volume can be there"):
        wanted((path,), ())


def make(tmp_path: Path, *paths: str) -> dict[str, str]:
    descriptors = len(open_descriptors())
    try:
        volumes = anonymous_volumes.placed(paths, tmp_path / "volumes")
        idmap = block(65536, 65536)
        anonymous_volumes.make(volumes, rootfs=tmp_path / "rootfs", idmap=idmap, given_up=threading.Event())
        return volumes
    finally:
        assert len(open_descriptors()) == descriptors


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs"
    for name in ("data", "real"):
        (path / name).mkdir(parents=True)
    (path / "data/file").write_text("of the image")
    (tmp_path / "secret").write_text("outside")
    return path


def test_volumes_are_filled_from_inside_the_image(rootfs: Path, tmp_path: Path) -> None:
    (rootfs / "real/file").write_text("inside")
    (rootfs / "link").symlink_to("/real")
    (rootfs / "up").symlink_to("../../../../data")
    made = make(tmp_path, "/data", "/link", "/missing", "/up")
    assert list(made) == ["/data", "/link", "/missing", "/up"]
    assert Path(made["/data"], "file").read_text() == "of the image"
    assert Path(made["/up"], "file").read_text() == "of the image"
    assert Path(made["/link"], "file").read_text() == "inside"
    status = Path(made["/missing"]).stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (65536, 65536, 0o755)
    assert list(Path(made["/missing"]).iterdir()) == []


@pytest.mark.slow
def test_a_file_of_the_image_is_no_volume(rootfs: Path, tmp_path: Path) -> None:
    os.mkfifo(rootfs / "pipe")
    for path in ("/data/file", "/pipe"):
        with pytest.raises(InvalidArgument, match=f"VOLUME {path} of the image is not a directory"):
            make(tmp_path, path)
        subprocess.run(["rm", "-rf", tmp_path / "volumes"], check=True)


def test_without_volumes_nothing_is_made(rootfs: Path, tmp_path: Path) -> None:
    assert make(tmp_path) == {}
    assert not (tmp_path / "volumes").exists()


@contextmanager
def deep_directory(top: Path) -> Iterator[int]:
    """Yield a descriptor of a directory whose path from ``top`` has some 3,500 bytes."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(14):
        name = f"{number:x}" * 250
        os.mkdir(name[:250], dir_fd=fd)
        inner = os.open(name[:250], os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    try:
        yield fd
    finally:
        os.close(fd)


def peak_of_copy(source: Path, target: Path) -> int:
    """Return how many bytes a copy had allocated at most."""
    tracemalloc.start()
    try:
        copy(source, target)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_paths_of_directories_are_not_remembered(source: Path, tmp_path: Path) -> None:
    """An image of a few megabytes has a million directories with paths of 4 kB: the daemon had all of them at once."""
    with deep_directory(source) as fd:
        for number in range(2000):
            os.mkdir(f"{number}", dir_fd=fd)
    assert peak_of_copy(source, tmp_path / "target") < 1 << 20
    assert sum(len(found[1]) for found in os.walk(tmp_path / "target")) == 2014


@pytest.mark.parametrize("kind", ["directories", "links"])
@pytest.mark.slow
def test_what_a_copy_remembers_is_bounded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(copy_up, "_MAX_REMEMBERED", 1 << 18)
    with deep_directory(source) as fd:
        for number in range(5000 if kind == "directories" else 100):
            if kind == "directories":
                os.mkdir(f"{number}", dir_fd=fd)
            else:
                os.close(os.open(f"{number}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
                os.link(f"{number}", f"{number}.link", src_dir_fd=fd, dst_dir_fd=fd)
    with pytest.raises(ResourceExhausted, match="too many directories beside each other, or files with several names"):
        copy(source, tmp_path / "target")


@pytest.mark.slow
def test_directories_leave_a_part_of_the_disk_free(source: Path, tmp_path: Path) -> None:
    """They have no data, and each takes a block."""
    for number in range(1200):
        (source / f"{number}").mkdir()
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["truncate", "-s", "8M", tmp_path / "disk"], check=True)
    subprocess.run(
        ["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-N", "4000", "-m", "0", tmp_path / "disk"], check=True
    )
    subprocess.run(["mount", "-o", "loop", tmp_path / "disk", small], check=True)
    try:
        (small / "taken").write_bytes(bytes(3 << 20))
        with pytest.raises(ResourceExhausted, match="does not fit on the disk"):
            copy(source, small / "copy")
        left = os.statvfs(small)
        assert left.f_bavail >= left.f_blocks // 20
    finally:
        mounts.unmount(small)
