"""Anonymous volumes: a directory of its own for every ``VOLUME`` of an image that nothing else is mounted on.

Owns: which there are, and making them below the container's data, filled with what the image has there (OCI image-spec,
config.md, ``Volumes``; as Docker and containerd do). They are writable in a container with a read-only root, and go
with the container. Does not own: the copying (``copy_up.py``), links that lead elsewhere (``targets.py``). Called by
``container_executor.py``; blocks.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from podkeep.base.errors import InvalidArgument, KernelCallError
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Resolve
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.runtime.bundle.copy_up import copy_directory
from podkeep.runtime.oci.mounts import is_below, normal

_REFUSED = frozenset({"/", "/dev"})
_REFUSED_TREES = ("/proc", "/sys")
"""An image could keep what is written there (a process's security label, a limit) from reaching the kernel."""


def wanted(volumes: Iterable[str], mounted: Iterable[str]) -> tuple[str, ...]:
    """Return the paths at which an image gets a volume: all it declares but those at which something is ``mounted``.

    :raises InvalidArgument: naming a path at which nothing may be mounted.
    """
    taken = {normal(path) for path in mounted}
    found = sorted({normal(path) for path in volumes} - taken)
    for path in found:
        if path in _REFUSED or any(PurePosixPath(path).is_relative_to(tree) for tree in _REFUSED_TREES):
            raise InvalidArgument(f"VOLUME {path} of the image: no volume can be there", hint="build it without it")
    return tuple(found)


def distinct(volumes: Iterable[str], targets: Mapping[str, str]) -> tuple[str, ...]:
    """Return the volumes, but one for each place and none below another one, to which links of an image may lead.

    What is below a volume is in it, copied with it. So an image's content is never copied twice.

    :param targets: paths to where the links of the image lead.
    """
    chosen: dict[str, str] = {}
    for place, path in sorted((targets.get(path, path), path) for path in volumes):
        if not any(is_below(place, other) for other in chosen):
            chosen[place] = path
    return tuple(sorted(chosen.values()))


def placed(paths: Iterable[str], directory: Path) -> dict[str, str]:
    """Return where below ``directory`` there is to be a volume for each path."""
    return {path: str(directory / str(number)) for number, path in enumerate(paths)}


def make(volumes: Mapping[str, str], *, rootfs: Path, idmap: IdMap | None, given_up: threading.Event) -> None:
    """Make and fill volumes.

    :param volumes: path in the container to host path, as of :func:`placed`; the directory must not exist.
    :param rootfs: the container's root file system, in which no process runs yet.
    :param idmap: the mappings of the pod; files in ``rootfs`` have the IDs of the machine.
    :param given_up: set by another thread when they are not wanted any more.
    :raises InvalidArgument: if the image has a file there.
    :raises PodkeepError: as :func:`copy_directory`; what was made until then is left.
    :raises OSError: if the file system refuses; likewise.
    """
    for path, volume in volumes.items():
        directory = Path(volume).parent
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        Path(volume).mkdir()
        # Whatever the umask: users of the container have to pass, as in a directory of the image.
        Path(volume).chmod(0o755)
        _fill(rootfs, path, Path(volume), idmap, given_up)


def _fill(rootfs: Path, path: str, volume: Path, idmap: IdMap | None, given_up: threading.Event) -> None:
    with openat.closing(os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        found = _open_inside(root, path)
    if found is not None:
        with openat.closing(found) as source, openat.closing(openat.open_directory(volume)) as target:
            copy_directory(source, target, given_up)
    elif idmap is not None:
        os.chown(volume, idmap.host_uid(0), idmap.host_gid(0))


def _open_inside(root: int, path: str) -> int | None:
    """Open the directory at ``path`` below ``root``; None if there is none."""
    try:
        # IN_ROOT, as in a chroot: absolute links of the image lead to the image.
        fd = openat.openat2(root, os.fsencode(path), os.O_PATH, Resolve.IN_ROOT | Resolve.NO_MAGICLINKS)
    except KernelCallError:
        return None
    with openat.closing(fd):
        # It is looked at before it is opened: opening a device does something, and the image may hold any.
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise InvalidArgument(f"VOLUME {path} of the image is not a directory in it")
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
