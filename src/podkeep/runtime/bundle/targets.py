"""Where the paths of mounts lead in a container's root file system, whose symbolic links are the image's.

Owns: following the links before the container exists, so that the OCI runtime gets paths without them. It would follow
them inside, too, but after /proc is there: a link of the image could bring a volume onto what a process writes its
security label to. And it fails at links to what does not exist (crun 1.8.1), as an image's /etc/resolv.conf often is.
Does not own: links inside of volumes, which the OCI runtime follows. Called by ``container_executor.py``, while no
process runs in the root file system yet.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable

from podkeep.base.errors import InvalidArgument
from podkeep.runtime.oci.mounts import normal

_VIRTUAL = ("/dev", "/proc", "/sys")
"""What the runtime mounts first: links of the image below are never seen."""
_KERNEL = ("/proc", "/sys")
_MAX_LINKS = 40
"""As in the kernel (path_resolution(7))."""


def resolve_all(root: int, paths: Iterable[str]) -> dict[str, str]:
    """Return for each path, in its normal form, where it is in the tree behind descriptor ``root``.

    Links below a path at which something is mounted are hidden by that, and not followed.

    :raises InvalidArgument: if links of the image lead to its root, to /dev, into /proc or /sys, or in a circle.
    """
    result: dict[str, str] = {}
    covered = set(_VIRTUAL)
    for path in sorted({normal(path) for path in paths}, key=lambda path: (path.count("/"), path)):
        result[path] = resolve(root, path, covered)
        covered.add(result[path])
    return result


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


def resolve(root: int, path: str, covered: Collection[str] = _VIRTUAL) -> str:
    """Return where one path is; ``covered`` are those at which something is mounted. The path need not exist.

    :raises InvalidArgument: as :func:`resolve_all` does.
    """
    waiting, found, links = path.split("/")[::-1], "/", 0
    while waiting:
        name = waiting.pop()
        if name == "..":
            found = os.path.dirname(found)
        elif name not in {"", "."}:
            inner = os.path.join(found, name)
            target = None if _is_below(found, covered) else _link(root, inner)
            if target is None:
                found = inner
                continue
            links += 1
            if links > _MAX_LINKS:
                raise InvalidArgument(f"{path}: the links of the image lead in a circle")
            waiting += target.split("/")[::-1]
            found = "/" if target.startswith("/") else found
    if found != path and (found in {"/", "/dev"} or (_is_below(found, _KERNEL) and not _is_below(path, _KERNEL))):
        raise InvalidArgument(f"{path} leads to {found} in this image: nothing can be mounted there")
    return found


def _is_below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _link(root: int, path: str) -> str | None:
    """Return what the link at ``path`` says; None if there is none. The directories above are not links."""
    try:
        return os.readlink(f".{path}", dir_fd=root)
    except OSError:
        return None
