"""fsGroup: giving a volume's files to a group.

The group is the number that the pod's author wrote. With ``hostUsers: false`` it is an ID inside the pod's user
namespace; the idmapped mount shifts it, so the number on disk is the same in both cases and nothing is changed for a
mapping (KEP-127, handling of volumes).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_READ_WRITE = 0o660
_READ_ONLY = 0o440
_DIRECTORY = stat.S_ISGID | 0o110


def give_to_group(root: Path, group: int, *, writable: bool) -> None:
    """Make ``group`` own everything from ``root`` down, readable and (if ``writable``) writable for it.

    New files in directories inherit the group. Symbolic links are owned, not followed.

    :raises OSError: naming the file, if the kernel refuses.
    """
    _give(root, group, writable)
    for directory, directories, files in os.walk(root):
        for name in (*directories, *files):
            _give(Path(directory, name), group, writable)


def _give(path: Path, group: int, writable: bool) -> None:
    os.chown(path, -1, group, follow_symlinks=False)
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return
    wanted = info.st_mode | (_READ_WRITE if writable else _READ_ONLY)
    if stat.S_ISDIR(info.st_mode):
        wanted |= _DIRECTORY
    path.chmod(stat.S_IMODE(wanted))
