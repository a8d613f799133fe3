"""Where the paths of mounts lead in a container's root file system, whose symbolic links are the image's.

Owns: following the links before the container exists, so that the OCI runtime gets paths without them. It would follow
them inside, too, but after /proc is there: a link of the image could bring a volume onto what a process writes its
security label to. And it fails at links to what does not exist (crun 1.8.1), as an image's /etc/resolv.conf often is.
Does not own: links inside of volumes (``nesting.py``). Called by ``container_executor.py``, while no
process runs in the root file system yet.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.oci.mounts import normal

_VIRTUAL = ("/dev", "/proc", "/sys")
"""What the runtime mounts first: links of the image below are never seen."""
_KERNEL = ("/proc", "/sys")
_MAX_LINKS = 40
"""As in the kernel (path_resolution(7))."""
_MAX_STEPS = 1 << 17
"""Parts of names that are walked for one container, those of links' targets included. A path has some ten, and a
container some hundred paths; a thousand volumes with forty links of 4095 bytes each would have 80 million."""
_MAX_LENGTH = 1 << 22
"""Characters of the paths at which these steps look for links: for each the kernel walks there from the top again."""


def resolve_all(root: int, paths: Iterable[str]) -> dict[str, str]:
    """Return for each path, in its normal form, where it is in the tree behind descriptor ``root``.

    Links below a path at which something is mounted are hidden by that, and not followed.

    :raises InvalidArgument: if links of the image lead to its root, to /dev, into /proc or /sys, or in a circle.
    """
    result: dict[str, str] = {}
    walk = Walk(root)
    for path in sorted({normal(path) for path in paths}, key=lambda path: (path.count("/"), path)):
        result[path] = walk.resolve(path)
        walk.covered.add(result[path])
    return result


def check_working_directory(root: int, path: str, covered: Iterable[str]) -> None:
    """Check that the path of a working directory leads through the image alone, not through a volume or /proc.

    A volume itself may be it. What is in one may be exchanged for a link at any time.

    :param covered: where something is mounted, without links of the image.
    :raises InvalidArgument: if the way leads through something that is mounted.
    """
    walk = _ImageOnly(root)
    walk.covered.update(covered)
    try:
        walk.follow(path)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"the working directory {path} is below a volume, /dev, /proc or /sys, or links of the image lead there:"
            " the OCI runtime would make it as root if it is missing, also where a link to another process leads",
            hint="name a directory of the image or a volume itself, give the container a process namespace of its own,"
            " or use crun",
        ) from error


def check_virtual(root: int) -> None:
    """Check that /dev, /proc and /sys of an image are directories, or not there.

    An OCI runtime mounts at where a link leads inside, and then opens the path from outside, where the same link leads
    to a directory of the machine (runc 1.1.5 makes links in it).

    :raises InvalidArgument: naming the one that is something else.
    """
    for path in _VIRTUAL:
        try:
            mode = os.stat(f".{path}", dir_fd=root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(mode):
            raise InvalidArgument(f"{path} of the image is no directory", hint="build it with one, or without")


class Walk:
    """Following the links of one root file system, the tree behind descriptor ``root``.

    ``covered`` are the paths at which something is mounted.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._steps = self._length = 0
        self.covered = set(_VIRTUAL)

    def resolve(self, path: str) -> str:
        """Return where one path is, at which something is to be mounted; it need not exist.

        :raises InvalidArgument: as :func:`resolve_all` does.
        """
        place = self.follow(path)
        if place != path and (place in {"/", "/dev"} or (_is_below(place, _KERNEL) and not _is_below(path, _KERNEL))):
            raise InvalidArgument(f"{path} leads to {place} {self.by}: nothing can be mounted there")
        return place

    def follow(self, path: str) -> str:
        """Return where one path is, which need not exist.

        :raises InvalidArgument: if it is too long, or its links lead in a circle.
        """
        waiting, links = path.split("/")[::-1], 0
        found: list[str] = []
        start = 0 if "/" in self.covered else None
        below = start  # how many parts of what was found lead to where something is mounted; None if nothing is
        while waiting:
            name = waiting.pop()
            self._steps += 1
            if self._steps > _MAX_STEPS or self._length > _MAX_LENGTH:
                raise InvalidArgument(
                    f"{path}: paths of mounts and volumes, and links of the image, lead over more than {_MAX_STEPS}"
                    f" parts of names, or {_MAX_LENGTH} characters of the paths to these"
                )
            if name == "..":
                # At the root it leads nowhere else, as in the kernel.
                del found[-1:]
                below = None if below is not None and len(found) < below else below
            elif name not in {"", "."}:
                inner = "/".join(("", *found, name))
                self._length += len(inner)
                target = self.target(inner, covered=below is not None)
                if target is None:
                    found.append(name)
                    below = len(found) if below is None and inner in self.covered else below
                    continue
                links += 1
                if links > _MAX_LINKS:
                    raise InvalidArgument(f"{path}: the links of the image lead in a circle")
                waiting += target.split("/")[::-1]
                if target.startswith("/"):
                    found, below = [], start
        return "/" + "/".join(found)

    @property
    def by(self) -> str:
        """Whose links are followed, for errors."""
        return "in this image"

    def target(self, inner: str, *, covered: bool) -> str | None:
        """Return what the link at a path says; None if there is none, or if it is not to be followed.

        :param covered: something is mounted there, or above.
        """
        return None if covered else _link(self._root, inner)


class _ImageOnly(Walk):
    """Refuses to look into what is mounted."""

    def target(self, inner: str, *, covered: bool) -> str | None:
        if covered:
            raise InvalidArgument(f"{inner} is in something that is mounted")
        return super().target(inner, covered=False)


def _is_below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _link(root: int, path: str) -> str | None:
    """Return what the link at ``path`` says; None if there is none. The directories above are not links."""
    try:
        return os.readlink(f".{path}", dir_fd=root)
    except OSError:
        return None
