"""Namespaces: asking the helper process for new ones, pinning them as files, and looking at them.

Owns: the client of the namespace helper, pins, identities, and running a function in a network namespace. Does not own:
making namespaces, which happens in the helper process (``nshelper``), because this process has threads.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

import msgspec

from podkeep.base import spawn
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel import libc, own_thread
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountFlag
from podkeep.kernel.namespace import nshelper
from podkeep.kernel.namespace.idmap import IdMap, proc_text

Result = TypeVar("Result")

REPLY_TIMEOUT_S = 20.0
"""How long the helper may take for one request; it takes about 2 ms."""
_NS_GET_USERNS = 0xB701
_NS_GET_NSTYPE = 0xB703
_NSFS_MAGIC = 0x6E736673
_BOOT = (
    # Nothing that is imported becomes garbage, and at its end the helper has nothing to tidy up: a sixth of its time.
    "import gc, os, sys; gc.disable(); sys.path.insert(0, sys.argv[1]); "
    "from podkeep.kernel.namespace import nshelper; nshelper.main(int(sys.argv[2])); os._exit(0)"
)
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])


class NamespaceKind(Enum):
    """Kinds of namespaces; the value is the file name in ``/proc/<pid>/ns``."""

    USER = "user"
    NET = "net"
    IPC = "ipc"
    UTS = "uts"
    PID = "pid"
    MNT = "mnt"
    CGROUP = "cgroup"


_KINDS: dict[int, NamespaceKind] = {
    CloneFlag.NEWUSER: NamespaceKind.USER,
    CloneFlag.NEWNET: NamespaceKind.NET,
    CloneFlag.NEWIPC: NamespaceKind.IPC,
    CloneFlag.NEWUTS: NamespaceKind.UTS,
    CloneFlag.NEWPID: NamespaceKind.PID,
    CloneFlag.NEWNS: NamespaceKind.MNT,
    CloneFlag.NEWCGROUP: NamespaceKind.CGROUP,
}


class NamespaceRequest(FrozenStruct, kw_only=True):
    """New namespaces for a pod, owned by its user namespace if it gets one (KEP-127).

    ``hostname`` needs :attr:`NamespaceKind.UTS`; ``sysctls`` (name to value) need the namespace they belong to.
    ``idmap`` is given exactly if :attr:`NamespaceKind.USER` is among ``kinds``.
    """

    kinds: frozenset[NamespaceKind]
    idmap: IdMap | None = None
    hostname: str | None = None
    sysctls: Mapping[str, str] = msgspec.field(default_factory=dict)

    def validate(self) -> None:
        """Check what can be checked without trying.

        :raises InvalidArgument: if a part of the request lacks the namespace it needs, or a mapping breaks a rule.
        """
        if not self.kinds:
            raise InvalidArgument("a request for namespaces names none")
        refused = sorted(kind.name for kind in self.kinds if kind.name not in nshelper.KIND_FLAGS)
        if refused:
            raise InvalidArgument(
                f"{', '.join(refused)} namespaces are not made for a pod in advance",
                hint="the OCI runtime makes them with the container: list them in linux.namespaces without a path",
            )
        if (self.idmap is not None) != (NamespaceKind.USER in self.kinds):
            raise InvalidArgument("ID mappings and a user namespace go together: one was asked for without the other")
        if self.hostname is not None and NamespaceKind.UTS not in self.kinds:
            raise InvalidArgument(f"hostname {self.hostname!r} needs a UTS namespace of the pod's own")
        if self.hostname is not None and (not self.hostname.isascii() or "\0" in self.hostname):
            raise InvalidArgument(f"hostname {self.hostname!r} is not a DNS name")
        names = [kind.name for kind in self.kinds]
        for name, value in self.sysctls.items():
            nshelper.sysctl_path(name, value, names)
        if self.idmap is not None:
            self.idmap.validate()


class _Late(NamedTuple):
    """What may be left of a helper that was ended: a child that no signal reaches, as its system call has no answer.

    ``whose`` is the identity of the user namespace that it is in, ``channel`` our end of the helper's socket.
    """

    whose: tuple[int, int]
    channel: socket.socket

    def is_over(self) -> bool:
        """Say whether helper and child have ended, and forget them then: the child has a copy of the helper's end."""
        poll = select.poll()
        poll.register(self.channel, 0)  # POLLHUP is told in any case
        over = bool(poll.poll(0))
        if over:
            self.channel.close()
        return over


class NamespaceHelper:
    """The client of the helper process, which it starts, restarts if it died, and ends.

    Thread-safe; requests are answered one after the other. What may hang has a helper process of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        self._late: list[_Late] = []

    @property
    def pid(self) -> int | None:
        """The helper's process ID, or None if it does not run."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the helper process, if it does not run.

        :raises FailedPrecondition: after :meth:`close`.
        """
        with self._lock:
            self._ensure_started()

    def create(self, request: NamespaceRequest) -> dict[NamespaceKind, int]:
        """Make the namespaces and return a descriptor of each; the caller closes them.

        A namespace lives as long as a descriptor, a pin or a process holds it. If the helper was found dead it is
        started again and the request repeated once, which is safe: namespaces nobody holds are gone.

        :raises InvalidArgument: if the request breaks a rule (:meth:`NamespaceRequest.validate`).
        :raises KernelCallError: if the kernel refuses; nothing is left behind and the helper goes on.
        :raises Unavailable: if the helper does not answer.
        """
        request.validate()
        packet = json.dumps(
            {
                "kinds": sorted(kind.name for kind in request.kinds),
                "uids": proc_text(request.idmap.uids) if request.idmap else "",
                "gids": proc_text(request.idmap.gids) if request.idmap else "",
                "hostname": request.hostname,
                "sysctls": dict(request.sysctls),
            }
        ).encode()
        if len(packet) > nshelper.MAX_PACKET_BYTES:
            raise InvalidArgument(f"a request for namespaces has {len(packet)} bytes; fewer sysctls are needed")
        with self._lock:
            answer, fds = self._exchange_or_restart(packet)
        nshelper.raise_error(answer)
        return {NamespaceKind[name]: fd for name, fd in zip(answer["kinds"], fds, strict=True)}

    def user_namespace(self, idmap: IdMap) -> int:
        """Make a user namespace and return its descriptor; the caller closes it.

        :raises InvalidArgument: if the mappings break a rule.
        :raises KernelCallError: if the kernel refuses.
        :raises Unavailable: if the helper does not answer.
        """
        created = self.create(NamespaceRequest(kinds=frozenset({NamespaceKind.USER}), idmap=idmap))
        return created[NamespaceKind.USER]

    def lock_mounts(self, userns: int, trees: Sequence[int]) -> list[int]:
        """Return copies of detached mounts whose flags nobody can take off who is privileged in ``userns`` only.

        That is read-only, nosuid, nodev and noexec, wherever the copy is mounted and however often it is copied again;
        without it, the flags of a mount in a mount namespace that ``userns`` owns can be changed by its root. What is
        mounted below comes with it, and cannot be unmounted apart. A shared mount's copy is a slave of it.

        :param trees: descriptors of detached mounts; they are used up, and are the caller's to close.
        :raises KernelCallError: if the kernel refuses.
        :raises Unavailable: if the helper does not answer.
        """
        locked: list[int] = []
        try:
            for start in range(0, len(trees), nshelper.MAX_FDS - 1):
                some = trees[start : start + nshelper.MAX_FDS - 1]
                packet = json.dumps({"lock": len(some)}).encode()
                with self._lock:
                    answer, fds = self._exchange_or_restart(packet, (userns, *some))
                # Noted before the error is raised, so that what came is closed.
                locked += fds
                nshelper.raise_error(answer)
                # The kernel drops what does not fit into the process's limit of open files, and sets only MSG_CTRUNC.
                if len(fds) != len(some):
                    hint = "raise the limit of open files (LimitNOFILE=)"
                    raise KernelCallError(f"recvmsg({len(some)} descriptors)", errno.EMFILE, hint=hint)
        except BaseException:
            for fd in locked:
                os.close(fd)
            raise
        return locked

    def make_empty(self, userns: int, directory: int, name: str, *, is_directory: bool) -> None:
        """Make an empty directory, or else a file, as the root of ``userns``, unless something has its name.

        :param directory: a descriptor of where.
        :raises FailedPrecondition: after :meth:`close`.
        :raises KernelCallError: if the kernel refuses.
        :raises Unavailable: if the helper does not answer, or a process of an earlier call for ``userns`` still waits.
        """
        packet = json.dumps({"make": name, "directory": is_directory}).encode()
        whose = identity(userns)
        with self._lock:
            if self._closed:
                raise FailedPrecondition("the namespace helper was closed")
            self._late = [late for late in self._late if not late.is_over()]
            # Each would hold the directory and the user namespace, and a pod is tried again and again.
            if any(late.whose == whose for late in self._late):
                hint = "a volume of the pod does not answer"
                raise Unavailable("a process that makes a mount point for this pod still waits", hint=hint)
        # The directory may be on a network file system, or a FUSE, that does not answer: nobody else waits for it.
        with NamespaceHelper() as own:
            late = _Late(whose, own._ensure_started().dup())
            try:
                answer, _ = own._exchange_or_restart(packet, (userns, directory))
            finally:
                own.close()
                self._remember(late)
        nshelper.raise_error(answer)

    def _remember(self, late: _Late) -> None:
        with self._lock:
            if self._closed:
                late.channel.close()
            elif not late.is_over():
                self._late.append(late)

    def close(self) -> None:
        """End the helper process and wait for it; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._stop()
            while self._late:
                self._late.pop().channel.close()

    def __enter__(self) -> NamespaceHelper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange_or_restart(self, packet: bytes, given: Sequence[int] = ()) -> tuple[nshelper.Message, list[int]]:
        for _ in range(2):
            channel = self._ensure_started()
            try:
                return _exchange(channel, packet, given)
            # It died with or before this request: nobody holds what it made, so that the request may be repeated.
            except (ConnectionError, EOFError):
                self._stop()
            # The helper is ended: its late answer would be taken for that of the next request.
            except TimeoutError as error:
                self._stop()
                raise Unavailable(f"the namespace helper did not answer within {REPLY_TIMEOUT_S:g} s") from error
        raise Unavailable("the namespace helper ended twice during a request", hint="its stderr is the daemon's")

    def _ensure_started(self) -> socket.socket:
        if self._closed:
            raise FailedPrecondition("the namespace helper was closed")
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # With -I neither PYTHONPATH nor the working directory is on the import path; -S saves importing site.
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGE_ROOT, str(theirs.fileno())]
        with theirs:
            try:
                self._process = spawn.start(argv, pass_fds=(theirs.fileno(),))
            except BaseException:
                ours.close()
                raise
        ours.settimeout(REPLY_TIMEOUT_S)
        self._socket = ours
        return ours

    def _stop(self) -> None:
        if self._socket is not None:
            # For all descriptors of this end: while one is open, as that of a _Late, closing another ends no helper.
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            process, self._process = self._process, None
            try:
                # It ends by itself once its socket is closed.
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                # And its children, which are in the session that it was started in.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _exchange(channel: socket.socket, packet: bytes, given: Sequence[int]) -> tuple[nshelper.Message, list[int]]:
    socket.send_fds(channel, [packet], given)
    reply, fds, _, _ = socket.recv_fds(channel, nshelper.MAX_PACKET_BYTES, nshelper.MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not reply:
        raise EOFError
    return json.loads(reply), list(fds)


def pin(fd: int, path: Path) -> None:
    """Keep the namespace behind ``fd`` alive as a file: create ``path`` and bind the namespace there.

    :raises KernelCallError: if the kernel refuses; the file is then removed again.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o444))
    except OSError as error:
        raise KernelCallError(f"open({str(path)!r}, O_CREAT|O_EXCL)", error.errno or 0) from error
    with ExitStack() as undo:
        undo.callback(path.unlink)
        mounts.mount(f"/proc/self/fd/{fd}", path, flags=MountFlag.BIND)
        undo.pop_all()


def unpin(path: Path) -> None:
    """Undo :func:`pin`, also half of it; a missing file is no error.

    :raises KernelCallError: if the kernel refuses.
    """
    mounts.unmount(path, lazy=True)
    path.unlink(missing_ok=True)


def is_pinned(path: Path) -> bool:
    try:
        # A pin that lost its mount (after a boot) is an ordinary file, for which the ioctl fails.
        with path.open("rb") as file:
            fcntl.ioctl(file, _NS_GET_NSTYPE)
    except OSError:
        return False
    return True


def kind_of(fd: int) -> NamespaceKind | None:
    """Return the kind of the namespace behind ``fd``, which must be open for reading; None if it is no namespace.

    :raises KernelCallError: if it cannot be looked at.
    """
    # A number of ioctl(2) may mean something else to another file system.
    if libc.file_system_type(fd) != _NSFS_MAGIC:
        return None
    try:
        flag = int(fcntl.ioctl(fd, _NS_GET_NSTYPE))
    except OSError as error:
        raise KernelCallError(f"ioctl(fd={fd}, NS_GET_NSTYPE)", error.errno or 0) from error
    return _KINDS.get(flag)


def open_pinned(path: Path) -> int:
    """Return a descriptor of the namespace pinned at ``path``; the caller closes it.

    :raises KernelCallError: if there is none.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelCallError(f"open({str(path)!r})", error.errno or 0) from error


def owner(fd: int) -> int:
    """Return a descriptor of the user namespace that owns the namespace behind ``fd``; the caller closes it.

    :raises KernelCallError: if ``fd`` is no namespace, or its owner is outside this process's user namespace (EPERM).
    """
    try:
        return fcntl.ioctl(fd, _NS_GET_USERNS)
    except OSError as error:
        raise KernelCallError(f"ioctl(fd={fd}, NS_GET_USERNS)", error.errno or 0) from error


def identity(namespace: int | Path | str) -> tuple[int, int]:
    """Return device and inode number, which are equal exactly for the same namespace (namespaces(7)).

    :raises KernelCallError: if it cannot be looked at.
    """
    try:
        status = os.stat(namespace)
    except OSError as error:
        raise KernelCallError(f"stat({str(namespace)!r})", error.errno or 0) from error
    return status.st_dev, status.st_ino


def run_in_netns(fd: int, function: Callable[[], Result]) -> Result:
    """Run ``function`` in the network namespace behind ``fd``, on a thread that ends with it, and return its result.

    Only the new thread changes its namespace. Errors of ``function`` are raised here.

    :raises KernelCallError: if ``fd`` is no network namespace that this process may enter.
    """

    def body() -> Result:
        libc.setns(fd, CloneFlag.NEWNET)
        return function()

    return own_thread.run("netns", body)


def run_in_mntns(fd: int | None, function: Callable[[], Result]) -> Result:
    """Run ``function`` in the mount namespace behind ``fd``, on a thread that ends with it, and return its result.

    The thread has a working directory and a root of its own, so it may also change its namespace by itself: with
    ``None`` it starts where the process is. Errors of ``function`` are raised here.

    :raises KernelCallError: if ``fd`` is no mount namespace that this process may enter.
    """

    def body() -> Result:
        # A thread that shares its root and working directory cannot change its mount namespace (setns(2)).
        libc.unshare(CloneFlag.FS)
        if fd is not None:
            libc.setns(fd, CloneFlag.NEWNS)
        return function()

    return own_thread.run("mntns", body)
