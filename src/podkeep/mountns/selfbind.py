"""Directories that are bound onto themselves, told from any other mount at the same place.

Called by what makes and removes such binds (``making``, ``netns_directory``, ``lifecycle``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from podkeep.kernel import mountinfo
from podkeep.kernel.mountinfo import MountEntry


def is_mount_point(directory: Path) -> bool:
    """Return whether a mount is at ``directory``, as a path leads there: one that another covers does not count.

    :raises NotFound: if there is no such directory.
    """
    return mountinfo.holding(directory).mount_point == str(directory)


def is_self_bind(directory: Path) -> bool:
    """Return whether the mount at ``directory`` shows the very directory that it covers.

    :raises NotFound: if there is no such directory.
    """
    top = mountinfo.holding(directory)
    return top.mount_point == str(directory) and shows_itself(top, mountinfo.read())


def shows_itself(top: MountEntry, table: Sequence[MountEntry]) -> bool:
    """Return whether the mount ``top`` shows the directory that it is mounted on. Pure.

    :param table: all mounts of its mount namespace.
    """
    below = next((entry for entry in table if entry.mount_id == top.parent_id), None)
    if below is None:
        return False
    covered = os.path.normpath(os.path.join(below.root, os.path.relpath(top.mount_point, below.mount_point)))
    return top.device == below.device and top.root == covered
