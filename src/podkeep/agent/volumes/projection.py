"""Writing the files of a volume so that a reader sees all of the old content or all of the new.

The layout is the kubelet's, which programs that watch their configuration know: the files are in a directory
``..<time>.<random>``, ``..data`` is a symbolic link to it that is replaced in one step, and every first component of
a path is a link through ``..data``.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from podkeep.agent.volumes import ownership
from podkeep.agent.volumes.payload import Payload
from podkeep.kernel.removal import remove_tree

_DATA = "..data"
_NEW_DATA = "..data_tmp"


def write(target: Path, files: Payload, *, fs_group: int | None = None) -> None:
    """Make ``target`` hold exactly ``files``.

    :param fs_group: group that owns the files, as the volume's file system has it.
    :raises OSError: if something cannot be written; the old content is then still in place.
    """
    old = _current(target)
    stamp = time.strftime("..%Y_%m_%d_%H_%M_%S.", time.gmtime())
    new = Path(tempfile.mkdtemp(prefix=stamp, dir=target))
    try:
        os.chmod(new, 0o755)
        for path, file in files.items():
            _write_file(new / path, file.data, file.mode)
        if fs_group is not None:
            ownership.give_to_group(new, fs_group, writable=False)
        (target / _NEW_DATA).unlink(missing_ok=True)
        (target / _NEW_DATA).symlink_to(new.name)
        (target / _NEW_DATA).rename(target / _DATA)
    except BaseException:
        remove_tree(new)
        raise
    tops = {path.split("/", 1)[0] for path in files}
    for top in tops:
        if not (target / top).is_symlink():
            (target / top).symlink_to(f"{_DATA}/{top}")
    for entry in os.listdir(target):
        if not entry.startswith("..") and entry not in tops:
            (target / entry).unlink()
    if old is not None:
        remove_tree(target / old)


def _current(target: Path) -> str | None:
    try:
        return os.readlink(target / _DATA)
    except FileNotFoundError:
        return None


def _write_file(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        # After the umask had its say.
        os.fchmod(file.fileno(), mode)
