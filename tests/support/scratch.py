"""The scratch machine: mount and network namespaces of a test run's own, entered once by the process of the tests.

In them ``/`` is shared, as systemd makes it, and only loopback is up. What the tests mount or connect is invisible to
the machine, and gone with the test run.
"""

from __future__ import annotations

import functools
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag, Propagation
from podkeep.mountns import unified


@functools.cache
def enter() -> None:
    """Leave the machine's mount and network namespaces; what is started from now on is in the new ones."""
    assert os.geteuid() == 0, "these tests need root: run `make test` as root"
    libc.unshare(CloneFlag.NEWNS | CloneFlag.NEWNET)
    mounts.set_propagation("/", Propagation.PRIVATE, recursive=True)
    _unmount_others()
    mounts.set_propagation("/", Propagation.SHARED, recursive=True)
    _replace_null_device()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@functools.cache
def own_mounts() -> None:
    """Leave the machine's mount namespace only, for tests that count mounts: what others mount now is not seen here."""
    if os.geteuid() == 0:
        libc.unshare(CloneFlag.NEWNS)
        mounts.set_propagation("/", Propagation.PRIVATE, recursive=True)
        _unmount_others()


def anywhere_own() -> None:
    """Be in a mount namespace of the test run's own: the scratch machine, if it was entered."""
    if not enter.cache_info().currsize:
        own_mounts()


def _unmount_others() -> None:
    """Let go of what other test runs have mounted: it would go from here when they remove the directories, at any time
    (rmdir(2) of a directory that is a mount point elsewhere)."""
    here = [Path(tempfile.gettempdir()), Path.cwd(), Path(__file__)]
    for temporary in {tempfile.gettempdir(), "/tmp", "/var/tmp"}:
        for entry in mountinfo.under(temporary):
            if entry.mount_point != temporary and not any(path.is_relative_to(entry.mount_point) for path in here):
                mounts.unmount(entry.mount_point, lazy=True)


def _replace_null_device() -> None:
    """Put a null device of the tests' own in the machine's place: an OCI runtime gives its streams away."""
    with tempfile.TemporaryDirectory() as place:
        mounts.tmpfs(place, attrs=MountFlag.NONE)
        null = Path(place, "null")
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.chmod(0o666)
        mounts.bind(null, "/dev/null")
        mounts.unmount(place, lazy=True)


@functools.cache
def hide_run() -> None:
    """Put an empty tmpfs over /run for all that follows, for daemons that keep things there whatever they are told."""
    cover_run()


def cover_run() -> None:
    """Put an empty tmpfs over /run; who wants the old one back unmounts it."""
    enter()
    resolver = Path("/etc/resolv.conf")
    target = resolver.resolve()
    content = resolver.read_bytes() if resolver.exists() else b""
    mounts.tmpfs("/run", "mode=0755")
    if target.is_relative_to("/run"):  # where resolv.conf is a link into it
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


@functools.cache
def detach_unified() -> None:
    """Make a hybrid machine one of cgroups v1, as podkeep does behind its hidden mounts: crun refuses hybrids."""
    enter()
    if any(entry.mount_point == str(unified.UNIFIED) and entry.fs_type == "cgroup2" for entry in mountinfo.read()):
        mounts.unmount(unified.UNIFIED, lazy=True)
    unified.detach()
