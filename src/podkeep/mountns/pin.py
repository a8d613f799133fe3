"""What is pinned at a path, as a given root sees it.

Owns: telling a pinned mount namespace from anything else, and the way back to the host: a pin lies on a mount that
exists on the host only (it is unbindable and private), so a process inside the namespace sees a plain file there. Does
not own: making and removing pins (``making``, ``lifecycle``). Called by every other module of this package.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.kernel.files import openat
from podkeep.kernel.namespace import namespaces
from podkeep.kernel.namespace.namespaces import NamespaceKind

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
    def of_init(cls) -> HostRoot | None:
        """Return what PID 1 has; None: this process may not look at it, as root without CAP_SYS_PTRACE may not."""
        try:
            return cls._open("/proc/1/root", "/proc/1/ns/mnt")
        except KernelCallError:
            return None

    @classmethod
    def _open(cls, root: str, namespace: str) -> HostRoot:
        with ExitStack() as undo:
            try:
                directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, directory)
                opened = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise KernelCallError(f"open({error.filename!r})", error.errno or 0) from error
            undo.pop_all()
        return cls(directory, opened)

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
        # A second call must not close a descriptor that has been given the number since.
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


def of_init() -> int | None:
    """Return the inode of PID 1's mount namespace; None: this process may not look at it."""
    with suppress(KernelCallError):
        return namespaces.identity("/proc/1/ns/mnt")[1]
    return None


def label(inode: int) -> str:
    """Return a mount namespace as ``readlink /proc/<pid>/ns/mnt`` shows it."""
    return f"mnt:[{inode}]"


@contextmanager
def opened(path: Path, root: HostRoot | None = None) -> Iterator[int | None]:
    """Open the mount namespace pinned at ``path`` for the block; None: none is.

    :param root: through whose eyes to look; None: the calling thread's.
    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    try:
        # Whatever is at a path that somebody named is looked at by O_PATH first; a FIFO or a device is not opened.
        fd = openat.open_named_regular(path if root is None else root.path(path))
    except OSError as error:
        # ESRCH: the path is /proc/PID/ns/mnt, and the process ended while it was looked up.
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ESRCH}:
            raise KernelCallError(f"open({str(path)!r})", error.errno or 0) from error
        fd = None
    if fd is None:
        yield None
        return
    with openat.closing(fd):
        kind = namespaces.kind_of(fd)
        if kind is not None and kind is not NamespaceKind.MNT:
            raise FailedPrecondition(
                f"{path} is a {kind.value} namespace and no mount namespace", hint="name the file of a mount namespace"
            )
        yield None if kind is None else fd


def pinned(path: Path, root: HostRoot | None = None) -> int | None:
    """Return the inode of the mount namespace pinned at ``path``; None: none is. Else as :func:`opened`."""
    with opened(path, root) as fd:
        return None if fd is None else os.fstat(fd).st_ino


def locate(path: Path) -> tuple[int | None, HostRoot]:
    """Return the inode of the mount namespace pinned at ``path``, and the host that has it there, to be closed.

    The calling thread's own view goes first, then that of PID 1: a daemon that is inside the namespace does not see
    the pin, nor does a service that systemd gave a mount namespace of its own (``PrivateTmp=``). Where nobody sees
    one, the inode is None and the host is where the thread is.

    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    :raises KernelCallError: if it cannot be looked at.
    """
    if found := _seen(path, HostRoot.own()):
        return found
    # In the same namespace PID 1 sees what was looked at already.
    init = HostRoot.of_init() if of_init() != own() else None
    return (init and _seen(path, init)) or (None, HostRoot.own())


def _seen(path: Path, host: HostRoot) -> tuple[int, HostRoot] | None:
    """Return what is pinned at ``path`` in the eyes of ``host``, with it; None: nothing, and ``host`` is closed."""
    with ExitStack() as undo:
        undo.callback(host.close)
        inode = pinned(path, host)
        if inode is None:
            return None
        undo.pop_all()
        return inode, host


def is_pinned(path: Path) -> bool:
    """Return whether a mount namespace is pinned at ``path``, as this thread or PID 1 sees it.

    :raises FailedPrecondition: if something is pinned there that is no mount namespace.
    """
    inode, host = locate(path)
    host.close()
    return inode is not None
