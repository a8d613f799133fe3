"""Writing the files of a volume so that a reader sees all of the old content or all of the new.

The layout is the kubelet's, which programs that watch their configuration know: the files are in a directory
``..<time>.<random>``, ``..data`` is a symbolic link to it that is replaced in one step, and every first component of
a path is a link through ``..data``.

A container with CAP_SYS_ADMIN may have made the volume writable for itself, and may change it while we write. So all is
done below a descriptor of the volume, one name at a time and without following a link, and nothing that is found there
is believed: what to remove follows from what belongs there, never from where a link of the volume leads.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from podkeep.agent.volumes import ownership
from podkeep.agent.volumes.ownership import UNCHANGED, Owners
from podkeep.agent.volumes.payload import File, Payload
from podkeep.base.errors import KernelCallError, PodkeepError, ResourceExhausted
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Resolve
from podkeep.kernel.files.removal import remove_entry

_DATA = "..data"
_NEW_DATA = "..data_tmp"
_VERSION = re.compile(r"\.\.\d[\d_]*\.[0-9a-f]+")
_DIRECTORY_MODE = 0o755
_ALONE = openat.CONFINED | Resolve.NO_XDEV
_MAX_REMOVED = 1_000_000
"""Entries that are removed at most: somebody may go on making them."""


def write(target: Path, files: Payload, owners: Owners = UNCHANGED) -> None:
    """Make ``target`` hold exactly ``files``, beside what containers put there; if it does already, nothing is changed.

    :param owners: whom the files belong to, as the volume's file system has it.
    :raises OSError: if something cannot be written; the old content is then still in place.
    :raises PodkeepError: if the kernel refuses a name, or the volume has more in it than can be removed.
    """
    with openat.closing(openat.open_directory(target)) as root:
        version = _current(root, files, owners)
        if version is None:
            version = _write_version(root, files, owners)
            _replace(root, version, owners)
        # The links come after the data: a name never leads to what is not there yet. What is old goes last.
        links = {path.split("/", 1)[0] for path in files}
        for name in links:
            _link(root, name, f"{_DATA}/{name}", owners)
        _remove_old(root, {_DATA, version, *links})


def make_mount_points(target: Path, paths: Iterable[str], owners: Owners = UNCHANGED) -> None:
    """Make the directories ``paths`` in a volume, on which containers have other volumes mounted.

    In a volume that is read-only no OCI runtime could make them. What is there already is left as it is; what is made
    belongs to the root of ``owners``.

    :raises OSError: if one cannot be made.
    """
    with openat.closing(openat.open_directory(target)) as root:
        for path in paths:
            with suppress(KernelCallError):  # it is a file or a link: what that means is the OCI runtime's to say
                os.close(_make_directories(root, path.split("/"), owners))


def make_mount_point_of_file(target: Path, path: str, owners: Owners = UNCHANGED) -> None:
    """Make an empty file in a volume, on which a container has a file mounted, as :func:`make_mount_points` does.

    :raises OSError: if it cannot be made.
    """
    *directories, name = path.split("/")
    with (
        openat.closing(openat.open_directory(target)) as root,
        suppress(KernelCallError, FileExistsError),
        openat.closing(_make_directories(root, directories, owners)) as above,
    ):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with openat.closing(os.open(name, flags, 0o644, dir_fd=above)) as made:
            _give(made, owners)


def _current(root: int, files: Payload, owners: Owners) -> str | None:
    """Return the directory that ``..data`` names. None: it is not one of ours, or does not hold exactly ``files``."""
    name = _read_link(root, _DATA)
    if name is None or not _VERSION.fullmatch(name):
        return None
    try:
        with _directory(root, name) as version:
            return name if _holds(version, files, owners) else None
    except (OSError, PodkeepError):
        return None  # it is written anew


def _holds(version: int, files: Payload, owners: Owners) -> bool:
    directories = {above for path in files for above in _directories_of(path)}
    if not _has(os.fstat(version), stat.S_IFDIR | _DIRECTORY_MODE, owners):
        return False
    missing = {*files, *directories}
    for found in openat.walk(version, max_entries=len(missing)):
        missing.discard(found.path)
        wanted, user = stat.S_IFDIR | _DIRECTORY_MODE, None
        if found.path not in directories:
            file = files.get(found.path)
            wanted, user = (0, None) if file is None else (stat.S_IFREG | file.mode, file.uid)
        if not _has(found.status, wanted, owners, user):
            return False
    return not missing and all(_has_data(version, path, file) for path, file in files.items())


def _has(status: os.stat_result, wanted: int, owners: Owners, user: int | None = None) -> bool:
    if owners.group is not None:
        wanted = stat.S_IFMT(wanted) | ownership.mode_for_group(wanted, writable=False)
    root, group = owners.root
    uid = root if user is None else owners.user(user)
    gid = group if owners.group is None else owners.group
    return (status.st_mode, status.st_uid, status.st_gid) == (wanted, uid, gid)


def _has_data(version: int, path: str, file: File) -> bool:
    # One byte more than wanted, so that a longer file is told from the right one; a container cannot make this long.
    return openat.read_regular(version, path, len(file.data) + 1, rules=_ALONE) == file.data


def _directories_of(path: str) -> Iterator[str]:
    """Yield the directories that a path inside the volume needs, outermost first."""
    parts = path.split("/")[:-1]
    for depth in range(len(parts)):
        yield "/".join(parts[: depth + 1])


def _write_version(root: int, files: Payload, owners: Owners) -> str:
    """Write ``files`` to a new directory and return its name."""
    # A name that no container can foretell: it cannot have put anything at its place.
    name = f"{time.strftime('..%Y_%m_%d_%H_%M_%S', time.gmtime())}.{secrets.token_hex(8)}"
    os.mkdir(name, 0o700, dir_fd=root)
    try:
        with _directory(root, name) as version:
            os.fchmod(version, _DIRECTORY_MODE)
            for path, file in files.items():
                _write_file(version, path, file, owners)
            if owners != UNCHANGED:
                ownership.give_tree(version, owners, writable=False)
    except BaseException:
        remove_entry(root, name, most=_MAX_REMOVED)
        raise
    return name


def _write_file(version: int, path: str, file: File, owners: Owners) -> None:
    *directories, name = path.split("/")
    with openat.closing(_make_directories(version, directories, owners)) as above:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=above), "wb") as stream:
            stream.write(file.data)
            stream.flush()
            if file.uid is not None:
                os.fchown(stream.fileno(), owners.user(file.uid), -1)
            os.fchmod(stream.fileno(), file.mode)


def _make_directories(top: int, names: Sequence[str], owners: Owners) -> int:
    """Make missing directories inside each other below ``top``, and return a descriptor of the last one.

    :raises KernelCallError: if there is something else in the place of one.
    """
    above = os.dup(top)
    try:
        for name in names:
            made = True
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                made = False
            inner = openat.openat2(above, os.fsencode(name), os.O_RDONLY | os.O_DIRECTORY, _ALONE)
            os.close(above)
            above = inner
            if made:  # after the umask had its say
                os.fchmod(above, _DIRECTORY_MODE)
                _give(above, owners)
    except BaseException:
        os.close(above)
        raise
    return above


def _give(fd: int, owners: Owners) -> None:
    """Have what was made belong to root of the pod; its group has what is written, not what is mounted on."""
    if owners.id_map is not None:
        os.fchown(fd, *owners.root)


def _replace(root: int, name: str, owners: Owners) -> None:
    """Have ``..data`` name another directory, in one step."""
    try:
        remove_entry(root, _NEW_DATA, most=_MAX_REMOVED)
        os.symlink(name, _NEW_DATA, dir_fd=root)
        _give_link(root, _NEW_DATA, owners)
        if _read_link(root, _DATA) is None:
            remove_entry(root, _DATA, most=_MAX_REMOVED)  # a directory cannot be replaced by a link
        os.rename(_NEW_DATA, _DATA, src_dir_fd=root, dst_dir_fd=root)
    except BaseException:
        remove_entry(root, name, most=_MAX_REMOVED)
        raise


def _link(root: int, name: str, target: str, owners: Owners) -> None:
    if _read_link(root, name) != target:
        remove_entry(root, name, most=_MAX_REMOVED)
        os.symlink(target, name, dir_fd=root)
    _give_link(root, name, owners)  # also one that a crash has left as it was made


def _give_link(root: int, name: str, owners: Owners) -> None:
    if owners.id_map is None:
        return
    status = os.stat(name, dir_fd=root, follow_symlinks=False)
    if (status.st_uid, status.st_gid) != owners.root:
        os.chown(name, *owners.root, dir_fd=root, follow_symlinks=False)


def _remove_old(root: int, kept: Set[str]) -> None:
    """Remove former content, and links to what is no longer there.

    Nothing else is removed: it may be the directory on which a running container has another volume mounted, and with
    the directory that mount would go.
    """
    with os.scandir(root) as entries:
        for number, entry in enumerate(entries):
            if number > _MAX_REMOVED:
                raise ResourceExhausted(f"the volume has more than {_MAX_REMOVED} entries that do not belong to it")
            if entry.name in kept:
                continue
            if entry.name.startswith("..") or (_read_link(root, entry.name) or "").startswith(f"{_DATA}/"):
                remove_entry(root, entry.name, most=_MAX_REMOVED)


def _read_link(root: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=root)
    except OSError:
        return None


@contextmanager
def _directory(root: int, name: str) -> Iterator[int]:
    with openat.closing(openat.openat2(root, os.fsencode(name), os.O_RDONLY | os.O_DIRECTORY, _ALONE)) as fd:
        yield fd
