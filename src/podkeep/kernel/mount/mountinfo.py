"""The table of mounts of a mount namespace: ``/proc/<pid>/mountinfo``, proc_pid_mountinfo(5).

Owns: parsing. Does not own: changing mounts (``mounts``).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from podkeep.base.errors import Internal, KernelCallError, NotFound
from podkeep.kernel import libc
from podkeep.kernel.tables import lines

_ESCAPED = re.compile(rb"[ \t\n\\]")
"""What the kernel writes as a backslash and three octal digits."""
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_IN_MEMORY = {"tmpfs": 0x01021994, "hugetlbfs": 0x958458F6}
"""File systems in memory, and their magic numbers (linux/magic.h)."""


class MountEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Paths are as the reading process sees them; ``device`` is ``major:minor``."""

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: str
    options: tuple[str, ...]
    propagation: tuple[str, ...]
    """Optional fields, such as ``shared:7`` or ``master:3``; empty: private."""
    fs_type: str
    source: str
    super_options: tuple[str, ...]


def read(pid: int | None = None) -> list[MountEntry]:
    """Return the mounts that process ``pid`` (default: the calling thread) sees, in the kernel's order.

    :raises NotFound: if there is no such process.
    """
    return parse(_table(pid))


def _table(pid: int | None) -> bytes:
    # A thread may be in a mount namespace of its own.
    path = Path(f"/proc/{'thread-self' if pid is None else pid}/mountinfo")
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error}") from error


def parse(data: bytes) -> list[MountEntry]:
    """Return the entries in ``data``.

    :raises Internal: if a line does not have the documented shape.
    """
    return [_parse_line(line) for line in lines(data)]


def under(directory: Path | str, pid: int | None = None) -> list[MountEntry]:
    """Return the mounts at or below ``directory``, last mounted first: the order in which to unmount them.

    :raises NotFound: if there is no such process.
    """
    # The root has an empty text here, so that everything is below it.
    top = str(directory).rstrip("/")
    found = [
        item for item in _mentioning(top, pid) if item.mount_point == top or item.mount_point.startswith(f"{top}/")
    ]
    return found[::-1]


def outermost(entries: Iterable[MountEntry]) -> list[str]:
    """Return the mount points among ``entries`` that are inside of no other one, in the order of ``entries``; pure.

    One at which several are mounted is there as often.
    """
    points = [entry.mount_point for entry in entries]
    tops = set(points)

    def is_inside(point: str) -> bool:
        return any(point[:end] in tops for end, letter in enumerate(point) if letter == "/")

    return [point for point in points if not is_inside(point)]


def is_mount_point(path: Path | str) -> bool:
    """Say whether something is mounted exactly at ``path`` in this process's mount namespace.

    Without the table, if the kernel tells: with many pods that is long, and each of them asks several times.
    """
    try:
        return libc.is_mount_root(libc.AT_FDCWD, os.fsencode(path))
    except KernelCallError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return False
    return any(item.mount_point == str(path) for item in _mentioning(str(path), None))


def has_nested(directory: Path) -> bool:
    """Say whether below a mount at ``directory`` there are others than those right in it, each at a name of its own.

    Without the table, if the kernel tells (Linux 6.8).
    """
    names = os.listdir(directory)
    direct = sum(is_mount_point(directory / name) for name in names)
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # One more than expected is enough to know; the kernel stops counting there.
            return libc.mounts_below(fd, direct + 1) > direct
        finally:
            os.close(fd)
    except KernelCallError:
        return sum(entry.mount_point != str(directory) for entry in under(directory)) > direct


def holding(path: Path | str) -> MountEntry:
    """Return the mount that what is at ``path`` is on, as this process sees it.

    :raises NotFound: if there is nothing at ``path``.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    try:
        return _of(fd, str(path))
    finally:
        os.close(fd)


def is_in_memory(fd: int) -> bool:
    """Say whether what is behind a descriptor is on a tmpfs or hugetlbfs; nobody but the kernel is asked.

    Without the table, if the kernel tells (Linux 6.8).

    :raises NotFound: if it is on a mount of another mount namespace.
    """
    try:
        return libc.mount_magic(fd) in _IN_MEMORY.values()
    except KernelCallError:
        return _of(fd, f"fd {fd}").fs_type in _IN_MEMORY


def is_seen_by(fd: int, pid: int) -> bool:
    """Say whether what is behind a descriptor is on a mount that process ``pid`` sees.

    That is one of its mount namespace that is below its root.

    :raises NotFound: if there is no such process.
    """
    return _line_of(fd, pid) is not None


def _of(fd: int, path: str) -> MountEntry:
    line = _line_of(fd, None)
    if line is None:
        raise NotFound(f"{path} is on a mount that is not in this process's mount namespace")
    return _parse_line(line)


def _line_of(fd: int, pid: int | None) -> bytes | None:
    # By the mount's ID, not by paths: a mount may be covered by another one at the same path.
    start = b"%d " % libc.mount_id(fd)
    return next((line for line in lines(_table(pid)) if line.startswith(start)), None)


def is_self_bind(directory: Path) -> bool:
    """Return whether the mount at ``directory``, a path without links, shows the very directory that it covers.

    :raises NotFound: if there is no such directory.
    """
    top, table = holding(directory), read()
    below = next((entry for entry in table if entry.mount_id == top.parent_id), None)
    if top.mount_point != str(directory) or below is None:
        return False
    covered = os.path.normpath(os.path.join(below.root, os.path.relpath(top.mount_point, below.mount_point)))
    return (top.device, top.root) == (below.device, covered)


def _mentioning(path: str, pid: int | None) -> list[MountEntry]:
    """Return the entries in whose line ``path`` stands; a machine with many pods has thousands of others."""
    # Compared in the kernel's spelling, so that only lines that may matter are taken apart.
    needle = _ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], os.fsencode(path))
    return [_parse_line(line) for line in lines(_table(pid)) if needle in line]


def _parse_line(line: bytes) -> MountEntry:
    before, separator, after = line.partition(b" - ")
    fields = before.split(b" ")
    rest = after.split(b" ", 2)
    if not separator or len(fields) < 6 or len(rest) != 3:
        raise Internal(f"mountinfo line {line!r} does not have the documented shape")
    return MountEntry(
        mount_id=int(fields[0]),
        parent_id=int(fields[1]),
        device=_unescape(fields[2]),
        root=_unescape(fields[3]),
        mount_point=_unescape(fields[4]),
        options=tuple(_unescape(fields[5]).split(",")),
        propagation=tuple(map(_unescape, fields[6:])),
        fs_type=_unescape(rest[0]),
        source=_unescape(rest[1]),
        super_options=tuple(_unescape(rest[2]).split(",")),
    )


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))
