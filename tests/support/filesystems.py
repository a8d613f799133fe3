"""File systems of a test's own, and whether the kernel gives each of them idmapped mounts.

``python -m support.filesystems [NAME...]`` tries all of them, or those named, in a mount namespace of its own, which is
gone with it, and prints a JSON object: by name, ``yes``, ``no``, or ``not here: WHY``. Anything else is an error. The
table of docs/user-namespaces.md is what it printed; ``documented`` reads it.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountFlag, Propagation
from podkeep.kernel.namespace.idmap import block
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from support import cgroup2
from support.loopdev import MIB, loop_device

FIRST = 65536
"""The machine's ID that root of the mapping is."""
SECTION = "## Which file systems"
_DOCUMENT = Path(__file__).parents[2] / "docs/user-namespaces.md"
_SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class NotHere(Exception):
    """The kernel or a program that makes the file system is missing; the message says which."""


# --- how each is mounted ----------------------------------------------------------------------------------------------

Made = Callable[[Path], Iterator[Path]]


def _mount(fstype: str, target: Path, source: str = "none", data: str = "", *, read_only: bool = False) -> None:
    try:
        mounts.mount(source, target, fstype=fstype, flags=MountFlag(1 if read_only else 0), data=data)
    except KernelCallError as error:
        if error.errno == errno.ENODEV:
            raise NotHere("the kernel does not have it") from error
        raise


def _in_memory(fstype: str, data: str = "") -> Made:
    def made(base: Path) -> Iterator[Path]:
        target = base / "mounted"
        target.mkdir()
        _mount(fstype, target, data=data)
        yield target

    return made


def _cgroup2(base: Path) -> Iterator[Path]:
    target = base / "mounted"
    target.mkdir()
    cgroup2.mount(target)
    yield target


def _on_disk(fstype: str, *command: str, size: int = 64 * MIB, data: str = "", full: bool = False) -> Made:
    """Make it by ``command``, with the device behind it; ``full``: of a directory, and only to be read."""

    def made(base: Path) -> Iterator[Path]:
        program = shutil.which(command[0], path=_SEARCH)
        if program is None:
            raise NotHere(f"no {command[0]}")
        content, target = base / "content", base / "mounted"
        for directory in (content, target):
            directory.mkdir()
        (content / "file").write_text("x")
        with loop_device(base, size=size) as device:
            words = [word.format(content=content, device=device.path) for word in command[1:]]
            subprocess.run([program, *words], check=True, capture_output=True)
            _mount(fstype, target, device.path, data, read_only=full)
            try:
                yield target
            finally:
                mounts.unmount(target)

    return made


def _overlay(base: Path) -> Iterator[Path]:
    for name in ("lower", "upper", "work", "mounted"):
        (base / name).mkdir()
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    _mount("overlay", base / "mounted", data=options)
    yield base / "mounted"


def _nfs(base: Path) -> Iterator[Path]:
    """Export a directory of this machine, and mount it from here: version 4 over loopback, with the kernel's server."""
    if shutil.which("exportfs", path=_SEARCH) is None:
        raise NotHere("no server of it")
    exported, target, control = base / "exported", base / "mounted", Path("/proc/fs/nfsd")
    for directory in (exported, target):
        directory.mkdir()
    _run("modprobe", "nfsd")
    mounts.mount("nfsd", control, fstype="nfsd")
    export = f"127.0.0.1:{exported}"
    with ExitStack() as undo:
        undo.callback(mounts.unmount, control)
        _run("exportfs", "-o", "rw,no_root_squash,insecure,fsid=0", export)
        undo.callback(_run, "exportfs", "-u", export)
        mountd = undo.enter_context(subprocess.Popen(["/usr/sbin/rpc.mountd", "--foreground", "-N", "2", "-N", "3"]))
        undo.callback(mountd.terminate)
        _run("rpc.nfsd", "-N", "3", "1")
        undo.callback(_run, "rpc.nfsd", "0")
        _run("mount", "-t", "nfs4", "127.0.0.1:/", str(target))
        undo.callback(mounts.unmount, target)
        yield target


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": _SEARCH})
    assert done.returncode == 0, f"{command}: {done.stderr}"


# linux/fuse.h
_GETATTR, _INIT, _FORGET, _DESTROY = 3, 26, 2, 38
_INIT_EXT, _ALLOW_IDMAP = 1 << 30, 1 << 8
"""Of ``flags`` and of ``flags2``, in an answer to ``FUSE_INIT``."""


def _fuse(*, asks: bool) -> Made:
    """Return a file system of FUSE with an empty root; ``asks``: its server allows idmapped mounts (Linux 6.12)."""

    def made(base: Path) -> Iterator[Path]:
        target = base / "mounted"
        target.mkdir()
        try:
            channel = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotHere("the kernel does not have it") from error
        begun = threading.Event()
        server = threading.Thread(target=_serve, args=[channel, asks, begun], daemon=True)
        data = f"fd={channel},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
        _mount("fuse", target, data=data)
        server.start()
        assert begun.wait(60), "the kernel never asked FUSE's server to begin"
        try:
            yield target
        finally:
            mounts.unmount(target, lazy=True)
            server.join(60)
            os.close(channel)

    return made


def _serve(channel: int, asks: bool, begun: threading.Event) -> None:
    """Answer the kernel until the file system is unmounted."""
    attributes = struct.pack("=QII", 1000, 0, 0) + struct.pack("=QQQ", 1, 0, 0) + bytes(36)
    attributes += struct.pack("=II", 0o40755, 2) + bytes(20)
    while True:
        try:
            request = os.read(channel, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            raise
        _, kind, unique = struct.unpack_from("=IIQ", request)
        if kind == _FORGET:
            continue
        failed, answer = 0, b""
        if kind == _INIT:
            major, minor = struct.unpack_from("=II", request, 40)
            flags, more = (_INIT_EXT, _ALLOW_IDMAP) if asks else (0, 0)
            answer = struct.pack("=IIIIHHIIHHII", major, minor, 0, flags, 0, 0, 65536, 1, 0, 0, more, 0) + bytes(24)
        elif kind == _GETATTR:
            answer = attributes
        elif kind != _DESTROY:
            failed = -errno.ENOSYS
        os.write(channel, struct.pack("=IiQ", 16 + len(answer), failed, unique) + answer)
        if kind == _INIT:
            begun.set()


KINDS: dict[str, Made] = {
    "ext4": _on_disk("ext4", "mkfs.ext4", "-q", "{device}"),
    "xfs": _on_disk("xfs", "mkfs.xfs", "-q", "{device}", size=512 * MIB),
    "btrfs": _on_disk("btrfs", "mkfs.btrfs", "-q", "{device}", size=256 * MIB),
    "vfat": _on_disk("vfat", "mkfs.vfat", "{device}"),
    "erofs": _on_disk("erofs", "mkfs.erofs", "--quiet", "{device}", "{content}", full=True),
    "squashfs": _on_disk("squashfs", "mksquashfs", "{content}", "{device}", "-noappend", "-quiet", full=True),
    "tmpfs": _in_memory("tmpfs", "mode=0755"),
    "hugetlbfs": _in_memory("hugetlbfs", "mode=0755"),
    "ramfs": _in_memory("ramfs"),
    "overlay": _overlay,
    "FUSE, if its server allows it": _fuse(asks=True),
    "FUSE otherwise": _fuse(asks=False),
    "NFS": _nfs,
    "devtmpfs": _in_memory("devtmpfs"),
    "proc": _in_memory("proc"),
    "sysfs": _in_memory("sysfs"),
    "cgroup2": _cgroup2,
    "mqueue": _in_memory("mqueue"),
}
"""Every file system that is tried, by its name in the table."""


def make_subvolume(path: Path) -> None:
    """Make a subvolume of btrfs, as everybody may who may make a directory there (BTRFS_IOC_SUBVOL_CREATE)."""
    with openat.closing(openat.open_directory(path.parent)) as fd:
        fcntl.ioctl(fd, 0x5000940E, bytearray(struct.pack("=q4088s", 0, path.name.encode())))


# --- trying -----------------------------------------------------------------------------------------------------------


def tried(name: str, userns: int) -> str:
    """Return whether the file system can be idmapped: ``yes``, ``no``, or ``not here: WHY``."""
    with tempfile.TemporaryDirectory(prefix="podkeep-fs-", dir="/var/tmp") as base:
        try:
            with contextmanager(KINDS[name])(Path(base)) as directory:
                return "yes" if _is_idmapped(directory, userns) else "no"
        except NotHere as error:
            return f"not here: {error}"
        finally:
            mounts.unmount(Path(base) / "mounted", lazy=True)


def _is_idmapped(directory: Path, userns: int) -> bool:
    """Map the mount at ``directory``, and look at whose its root is there.

    :raises KernelCallError: if it is refused in other words than those of KEP-127.
    :raises AssertionError: if nothing is shifted.
    """
    before = directory.stat()
    try:
        fd = mounts.clone_tree(directory, idmap_userns=userns)
    except KernelCallError as error:
        if f"failed to set MOUNT_ATTR_IDMAP on {directory}: invalid argument (maybe the " in str(error):
            return False
        raise
    try:
        there = os.fstat(fd)
        assert (there.st_uid, there.st_gid) == (before.st_uid + FIRST, before.st_gid + FIRST), directory
    finally:
        os.close(fd)
    return True


def try_all(names: Iterable[str] = KINDS) -> dict[str, str]:
    """Try these file systems, in a mount namespace that this process has for itself."""
    libc.unshare(CloneFlag.NEWNS)
    mounts.set_propagation("/", Propagation.PRIVATE, recursive=True)
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(block(FIRST, 65536))
    try:
        return {name: tried(name, userns) for name in names}
    finally:
        os.close(userns)


def run(*names: str) -> dict[str, str]:
    """Return what the program prints, run as a process of its own.

    :raises AssertionError: with what it wrote, if it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "support.filesystems", *names],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@functools.cache
def can_be_idmapped(name: str) -> bool:
    """Return whether this kernel gives a file system idmapped mounts."""
    return run(name)[name] == "yes"


def needed(name: str) -> None:
    """Skip the test that runs if this kernel does not idmap a file system, as Linux before 6.3 does not idmap tmpfs."""
    if not can_be_idmapped(name):
        pytest.skip(f"Linux {os.uname().release} does not idmap {name}")


# --- what is documented -----------------------------------------------------------------------------------------------


def documented(release: str) -> dict[str, str]:
    """Return what the table says of a kernel, by file system: ``yes``, ``no`` or ``not tried``.

    Of a kernel that has no column the newest older one is taken.

    :param release: as of uname(2).
    """
    head, rows = _table()
    known = max(
        (at for at in _columns(head) if _version(head[at]) <= _version(release)), key=lambda at: _version(head[at])
    )
    return {row[0]: row[known] for row in rows}


def is_in_table(release: str) -> bool:
    """Return whether the table has a column of that kernel."""
    head, _ = _table()
    return _version(release) in {_version(head[at]) for at in _columns(head)}


def unexplained() -> list[str]:
    """Return the file systems that were not tried somewhere, and of which the table does not say why."""
    head, rows = _table()
    return [row[0] for row in rows if "not tried" in row[1 : len(_columns(head)) + 1] and not row[-1]]


def _table() -> tuple[list[str], list[list[str]]]:
    _, _, section = _DOCUMENT.read_text().partition(SECTION)
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines)
    return head, rows


def _columns(head: Sequence[str]) -> list[int]:
    return [at for at, cell in enumerate(head) if cell.startswith("Linux ")]


def _version(release: str) -> tuple[int, ...]:
    """Return the first two numbers of ``6.1.0-13-cloud-amd64`` or ``Linux 6.1``."""
    found = re.search(r"(\d+)\.(\d+)", release)
    assert found is not None, release
    return tuple(int(number) for number in found.groups())


if __name__ == "__main__":
    print(json.dumps(try_all(sys.argv[1:] or KINDS)))
