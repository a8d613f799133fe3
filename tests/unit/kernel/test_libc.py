"""Each wrapper, called so that the kernel refuses: the error names call, object and errno."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from podkeep.base.errors import KernelCallError
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import FsconfigCommand, FsmountFlag, MountAttr, MountFlag, OpenTreeFlag, UnmountFlag

MISSING = b"/nonexistent/pk"
ATTR = libc.MountAttrArgument(attr_set=int(MountAttr.RDONLY))


@pytest.mark.parametrize(
    ("call", "number", "words"),
    [
        (
            lambda: libc.mount(b"a", MISSING, b"tmpfs", MountFlag.NOSUID, b"size=1", "h"),
            errno.ENOENT,
            ["mount(", "tmpfs"],
        ),
        (lambda: libc.umount2(MISSING, UnmountFlag.DETACH), errno.ENOENT, ["umount2('/nonexistent/pk'", "DETACH"]),
        (lambda: libc.setns(-1, CloneFlag.NEWNET), errno.EBADF, ["setns(fd=-1", "NEWNET"]),
        (lambda: libc.unshare(1), errno.EINVAL, ["unshare(1)"]),
        (lambda: libc.open_tree(-100, MISSING, OpenTreeFlag.CLONE), errno.ENOENT, ["open_tree(", "/nonexistent/pk"]),
        (
            lambda: libc.move_mount(-1, b"", -100, MISSING, 0),
            errno.ENOENT,
            ["move_mount(from_dirfd=-1", "/nonexistent/pk"],
        ),
        (lambda: libc.fsopen(b"nosuchfs", 1), errno.ENODEV, ["fsopen('nosuchfs'"]),
        (lambda: libc.fsconfig(-1, FsconfigCommand.SET_FLAG, b"ro", None, 0), errno.EINVAL, ["fsconfig(fd=-1", "'ro'"]),
        (lambda: libc.fsmount(-1, FsmountFlag.CLOEXEC, MountAttr.RDONLY), errno.EBADF, ["fsmount(fd=-1", "RDONLY"]),
        (lambda: libc.mount_setattr(-100, MISSING, 0, ATTR, "mount_setattr(x)"), errno.ENOENT, ["mount_setattr(x)"]),
        (
            lambda: mounts.mount_setattr(MISSING.decode(), set_=MountAttr.RDONLY),
            errno.ENOENT,
            [MISSING.decode(), "RDONLY"],
        ),
    ],
)
def test_refusal_names_call_object_and_errno(call: Callable[[], object], number: int, words: list[str]) -> None:
    with pytest.raises(KernelCallError) as caught:
        call()
    assert caught.value.errno == number
    assert errno.errorcode[number] in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (FsconfigCommand.CMD_CREATE, "CMD_CREATE"),
        (MountFlag.BIND | MountFlag.REC, "BIND|REC"),
        (MountFlag.NONE, "NONE"),
        (FsmountFlag(0), "0"),
        (4096, "4096"),
    ],
)
def test_flags_are_told_by_name(value: int, name: str) -> None:
    assert libc.named(value) == name


def test_no_call_is_told_as_python_writes_it() -> None:
    with pytest.raises(KernelCallError) as caught:
        libc.fsconfig(-1, FsconfigCommand.CMD_CREATE, None, None, 0)
    assert caught.value.call == "fsconfig(fd=-1, CMD_CREATE, NULL, NULL, aux=0)"


def test_function_objects_are_not_shared() -> None:
    """A library that sets ``argtypes`` on libc.mount must not change ours."""
    assert libc._LIBC["mount"] is not libc._LIBC["mount"]
    assert libc._mount is not libc._LIBC.mount
