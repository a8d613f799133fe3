"""What is pinned at a path, as a given root sees it.

Owns: telling a pinned mount namespace from anything else, and the way back to the host: a pin lies on a mount that
exists on the host only (it is unbindable and private), so a process inside the namespace sees a plain file there. Does
not own: making and removing pins (``making``, ``lifecycle``). Called by every other module of this package.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel import namespaces
from podkeep.kernel.namespaces import NamespaceKind

Result = TypeVar("Result")


class HostRoot:
    """The host's ``/`` and mount namespace, kept by descriptors over a change of namespace.

    The descriptors are closed on exec, so no program that a daemon starts has a way out.
    """

    def __init__(self, root: int, namespace: int) -> None:
        self._root = root
        self._namespace = namespace
        self.inode = os.fstat(namespace).st_ino
        """Inode of the host's mount namespace."""

    @classmethod
    def own(cls) -> HostRoot:
        """Return what the calling thread has: right as long as it has not changed its namespace."""
        return cls._open("/", "/proc/thread-self/ns/mnt")

    @classmethod
    def of_init(cls) -> HostRoot:
        """Return what PID 1 has.

        :raises KernelCallError: if this process may not look at PID 1 (EACCES, EPERM).
        """
        return cls._open("/proc/1/root", "/proc/1/ns/mnt")

    @classmethod
    def _open(cls, root: str, namespace: str) -> HostRoot:
        try:
            directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return cls(directory, os.open(namespace, os.O_RDONLY | os.O_CLOEXEC))
            except BaseException:
                os.close(directory)
                raise
        except OSError as error:
            raise KernelCallError(f"open({error.filename!r})", error.errno or 0) from error

    def path(self, path: Path) -> Path:
        """Return a path by which this process reaches the host's absolute ``path``, if no absolute link is in it."""
        return Path(f"/proc/self/fd/{self._root}") / path.relative_to("/")

    def run(self, work: Callable[[], Result]) -> Result:
        """Run ``work`` in the host's mount namespace, on a thread of its own, and return its result.

        :raises KernelCallError: if the kernel refuses.
        """
        return namespaces.run_in_mntns(self._namespace, work)

    def close(self) -> None:
        """Let go of the descriptors; a second call does nothing."""
        for fd in (self._root, self._namespace):
            if fd >= 0:
                os.close(fd)
        self._root = self._namespace = -1

    def __enter__(self) -> HostRoot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def own() -> int:
    """Return the inode of the calling thread's mount namespace."""
    return namespaces.identity("/proc/thread-self/ns/mnt")[1]


def open_pinned(path: Path, root: HostRoot | None = None) -> int | None:
    """Return a descriptor of the mount namespace pinned at ``path``, which the caller closes; None: none is.

    :param root: through whose eyes to look; None: the calling thread's.
    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    seen = path if root is None else root.path(path)
    try:
        if not stat.S_ISREG(os.stat(seen).st_mode):
            return None
        # Opening a FIFO or a device could wait or do something; a regular file cannot.
        fd = os.open(seen, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ESRCH}:
            return None
        raise KernelCallError(f"open({str(path)!r})", error.errno or 0) from error
    try:
        kind = namespaces.kind_of(fd)
        if kind is NamespaceKind.MNT:
            kept, fd = fd, -1
            return kept
    finally:
        if fd >= 0:
            os.close(fd)
    if kind is not None:
        raise FailedPrecondition(
            f"{path} is a {kind.value} namespace and no mount namespace", hint="name the file of a mount namespace"
        )
    return None


def pinned(path: Path, root: HostRoot | None = None) -> int | None:
    """Return the inode of the mount namespace pinned at ``path``; None: none is.

    :param root: through whose eyes to look; None: the calling thread's.
    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    fd = open_pinned(path, root)
    if fd is None:
        return None
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def locate(path: Path) -> tuple[int | None, HostRoot]:
    """Return the inode of the mount namespace pinned at ``path``, and the host that has it there, to be closed.

    The calling thread's own view goes first, then that of PID 1: a daemon that is inside the namespace does not see
    the pin, nor does a service that systemd gave a mount namespace of its own (``PrivateTmp=``). Where nobody sees
    one, the inode is None and the host is where the thread is.

    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    here = HostRoot.own()
    try:
        inode = pinned(path, here)
        init = None if inode is not None else _other_init(here)
    except BaseException:
        here.close()
        raise
    if init is None:
        return inode, here
    try:
        inode = pinned(path, init)
    except BaseException:
        here.close()
        init.close()
        raise
    unused, host = (init, here) if inode is None else (here, init)
    unused.close()
    return inode, host


def _other_init(here: HostRoot) -> HostRoot | None:
    """Return PID 1's root if that is in another mount namespace, and may be looked at."""
    try:
        init = HostRoot.of_init()
    except KernelCallError:
        return None
    if init.inode != here.inode:
        return init
    init.close()
    return None


def is_pinned(path: Path) -> bool:
    """Return whether a mount namespace is pinned at ``path``, as this thread or PID 1 sees it.

    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    """
    inode, host = locate(path)
    host.close()
    return inode is not None
