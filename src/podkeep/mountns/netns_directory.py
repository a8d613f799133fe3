"""``/run/netns`` as a mount point, before there is a namespace that it would have to reach.

The first ``ip netns add`` on the host binds /run/netns onto itself. That propagates into the container mount namespace
and covers what is pinned there: pods fail with ``setns: Invalid argument`` (OCPBUGS-83562). Here the same is done
first, in the way of ip-netns(8): bound onto itself, shared, under a lock of the directory, which any user can hold: it
is waited for, but not for long. Called by ``lifecycle``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from podkeep.base import lockfile
from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation

log = logging.getLogger(__name__)

NETNS = Path("/run/netns")
"""It may be a link; the kernel knows mount points without links."""

TIMEOUT_S = 1.0
"""How long somebody else who makes it a mount point is waited for; `ip netns add` takes some milliseconds."""

Done = Literal["", "mounted", "made"]
"""What was done to it, in rising order: nothing, made a mount point, made the directory, too."""


def missing() -> Done:
    """Return what :func:`prepare` has to do and :func:`restore` can undo."""
    if not NETNS.is_dir():
        return "made"
    return "" if mountinfo.is_mount_point(resolved()) else "mounted"


def resolved() -> Path:
    """Return the path of the directory without links, as /proc/self/mountinfo names it."""
    return Path(os.path.realpath(NETNS))


def all_of(done: Iterable[Done]) -> Done:
    """Return what was done in all, by several and one after the other. Pure."""
    return max(done, key=get_args(Done).index, default="")


def prepare() -> None:
    """Make /run/netns a shared mount point.

    :raises FailedPrecondition: if it is something else than a directory.
    :raises OSError: if the directory cannot be made.
    :raises KernelCallError: if the kernel refuses.
    """
    directory = resolved()
    if os.path.lexists(directory) and not directory.is_dir():
        raise FailedPrecondition(
            f"{NETNS} is not a directory", hint="remove it; `ip netns add` could not use it either"
        )
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _locked(directory):
        if not mountinfo.is_mount_point(directory):
            # What is pinned there already must be seen on the new mount as well.
            mounts.bind(directory, directory, recursive=True)
            mounts.set_propagation(directory, Propagation.SHARED, recursive=True)
        elif not any(field.startswith("shared:") for field in mountinfo.holding(directory).propagation):
            # As a first `ip netns add` would, but then it would be too late for those inside.
            mounts.set_propagation(directory, Propagation.SHARED)


def restore(done: Done) -> None:
    """Undo :func:`prepare` as far as nobody has put a namespace there since.

    :param done: what was :func:`missing` before.
    """
    directory = resolved()
    if not done or not directory.is_dir() or any(directory.iterdir()):
        return
    try:
        # Not lazily, and without holding it open: the kernel refuses if there is a mount below by now.
        if mountinfo.is_self_bind(directory):
            mounts.unmount(directory)
        if done == "made":
            directory.rmdir()
    except (OSError, KernelCallError):
        # Somebody came in between, or works in it: it is theirs now.
        return


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory as ip-netns(8) does while it makes it a mount point; it too goes on if it cannot."""
    with openat.closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        if not lockfile.take(fd, TIMEOUT_S):
            log.warning("%s is locked by another process; going on without its lock", directory)
        yield
