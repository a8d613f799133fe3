"""Finding directories of a tree that somebody hostile fills, by names that may lead over symbolic links.

Nothing outside the root is ever opened: a name without links is resolved by the kernel (openat2(2), RESOLVE_BENEATH and
RESOLVE_NO_SYMLINKS), one with links part by part, without following any of them. Either way the caller learns the
directory's own path, in which no link is left: what is noted about it stays right whatever becomes of the links.
Used by ``tree`` only, in a process that is alone with the tree.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import msgspec

from podkeep.base.errors import KernelCallError
from podkeep.kernel.openat import Resolve, openat2

_MAX_OPEN = 128
_MAX_LINKS = 40
"""Links followed on the way to one directory (path_resolution(7))."""
_STRAIGHT = Resolve.BENEATH | Resolve.NO_SYMLINKS
_LOOK = os.O_PATH | os.O_DIRECTORY
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenDirectory(msgspec.Struct, frozen=True):
    """A directory: its descriptor (``O_PATH``; not the caller's to close) and its own path, empty for the root."""

    fd: int
    path: bytes


class LostError(Exception):
    """A name leads nowhere. ``number`` is the errno; EXDEV means out of the root.

    ``reached`` is the path of the last directory on the way, ``part`` the number of the part of the name that is not
    a directory there, ``linked`` whether that part is a symbolic link.
    """

    def __init__(self, number: int, reached: bytes, part: int, *, linked: bool) -> None:
        super().__init__(number)
        self.number = number
        self.reached = reached
        self.part = part
        self.linked = linked


class Parents:
    """The directories below ``root`` (a descriptor), the latest ones kept open.

    :param follow: called with the parts that a link makes necessary to walk, before they are; may raise.
    """

    def __init__(self, root: int, follow: Callable[[int], None]) -> None:
        self._root = root
        self._follow = follow
        self._top = OpenDirectory(root, b"")
        self._known: dict[bytes, OpenDirectory] = {}

    def find(self, name: bytes) -> OpenDirectory:
        """Return the directory with this name (relative, of plain parts).

        :raises LostError: if there is none.
        :raises KernelCallError: if the kernel refuses for another reason.
        """
        if not name:
            return self._top
        place = self._known.get(name)
        if place is None:
            place = self._open(name)
            if len(self._known) >= _MAX_OPEN:
                self.forget()
            self._known[name] = place
        return place

    def forget(self, keep: int = -1) -> None:
        """Close what is open, but for the descriptor ``keep``: a directory or a link was replaced."""
        kept = {name: place for name, place in self._known.items() if place.fd == keep}
        for place in self._known.values():
            if place.fd != keep:
                os.close(place.fd)
        self._known = kept

    def open_straight(self, path: bytes, flags: int = _LOOK) -> int:
        """Open a directory by its own path; the descriptor is the caller's.

        :raises KernelCallError: if the kernel refuses, also because a link is on the way.
        """
        return openat2(self._root, path or b".", flags, _STRAIGHT)

    def _open(self, name: bytes) -> OpenDirectory:
        try:
            return OpenDirectory(self.open_straight(name), name)
        except KernelCallError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
        return self._walk(name)

    def _walk(self, name: bytes) -> OpenDirectory:
        fd = self.open_straight(b"")
        where: list[bytes] = []
        links = 0
        try:
            parts = name.split(b"/")
            for number, part in enumerate(parts):
                waiting, linked = [part], False
                while waiting:
                    step = waiting.pop()
                    if step in (b"", b"."):
                        continue
                    opened, target = self._step(fd, step, where)
                    if target is not None:
                        links, linked = links + 1, True
                        if target.startswith(b"/") or links > _MAX_LINKS:
                            opened = -errno.ELOOP if links > _MAX_LINKS else -errno.EXDEV
                        else:
                            further = target.split(b"/")
                            self._follow(len(further) + (len(parts) if links == 1 else 0))
                            waiting.extend(reversed(further))
                            continue
                    if opened < 0:
                        raise LostError(-opened, b"/".join(where), number, linked=linked)
                    os.close(fd)
                    fd = opened
        except BaseException:
            os.close(fd)
            raise
        return OpenDirectory(fd, b"/".join(where))

    def _step(self, fd: int, step: bytes, where: list[bytes]) -> tuple[int, bytes | None]:
        """Go one part further: return the next directory's descriptor (or, negative, an errno), or a link's target."""
        if step == b"..":
            if not where:
                return -errno.EXDEV, None
            where.pop()
            return os.open(b"..", _STEP, dir_fd=fd), None  # above a directory of the tree that is not its root
        try:
            opened = os.open(step, _STEP, dir_fd=fd)
        except OSError as error:
            if error.errno == errno.ENOTDIR:
                try:
                    return 0, os.readlink(step, dir_fd=fd)
                except OSError:
                    return -errno.ENOTDIR, None
            return -(error.errno or errno.EIO), None
        where.append(step)
        return opened, None
