"""``/run/netns`` as a mount point, before there is a namespace that it would have to reach.

The first ``ip netns add`` on the host binds /run/netns onto itself. That propagates into the container mount namespace
and covers what is pinned there: pods fail with ``setns: Invalid argument`` (OCPBUGS-83562). Here the same is done
first, in the way of ip-netns(8): bound onto itself, shared, under a lock of the directory. Called by ``lifecycle``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from podkeep.base.errors import KernelCallError
from podkeep.kernel import mounts
from podkeep.kernel.mounts import Propagation
from podkeep.mountns import selfbind

NETNS = Path("/run/netns")

Done = Literal["", "mounted", "made"]
"""What was done to it, in rising order: nothing, made a mount point, made the directory, too."""


def missing() -> Done:
    """Return what :func:`prepare` has to do."""
    if not NETNS.is_dir():
        return "made"
    return "" if selfbind.is_mount_point(NETNS) else "mounted"


def all_of(done: Iterable[Done]) -> Done:
    """Return what was done in all, by several and one after the other. Pure."""
    return max(done, key=get_args(Done).index, default="")


def prepare() -> None:
    """Make /run/netns a shared mount point, unless it is a mount point.

    :raises OSError: if the directory cannot be made.
    :raises KernelCallError: if the kernel refuses.
    """
    if not missing():
        return
    NETNS.mkdir(mode=0o755, exist_ok=True)
    with _locked():
        if not selfbind.is_mount_point(NETNS):
            # What is pinned there already must be seen on the new mount as well.
            mounts.bind(NETNS, NETNS, recursive=True)
            mounts.set_propagation(NETNS, Propagation.SHARED, recursive=True)


def restore(done: Done) -> None:
    """Undo :func:`prepare` as far as nobody has put a namespace there since.

    :param done: what was :func:`missing` before.
    """
    if not done or not NETNS.is_dir() or any(NETNS.iterdir()):
        return
    try:
        # Not lazily, and without holding it open: the kernel refuses if there is a mount below by now.
        if selfbind.is_self_bind(NETNS):
            mounts.unmount(NETNS)
        if done == "made":
            NETNS.rmdir()
    except (OSError, KernelCallError):
        # Somebody came in between, or works in it: it is theirs now.
        return


@contextmanager
def _locked() -> Iterator[None]:
    """Lock the directory as ip-netns(8) does while it makes it a mount point."""
    fd = os.open(NETNS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
