"""The namespace helper process: makes the namespaces of a pod and locks mounts for it, each request in a child.

Owns: the only ``fork`` in podkeep. Only a process with a single thread can make a user namespace, and forking a process
that runs gRPC is unsafe; so this process has one thread and imports nothing but the standard library, ``libc``,
``mounts`` and the error classes. Does not own: pinning, or validating what it is asked
(:class:`podkeep.kernel.namespace.namespaces.NamespaceHelper` is its only client).

Protocol: a SOCK_SEQPACKET socket that the owner keeps the other end of; one JSON object per packet.

    request   {"kinds": ["USER", "NET"], "uids": "0 65536 65536\\n", "gids": "...", "hostname": "a", "sysctls": {}}
    answer    {"kinds": ["USER", "NET"]} with one descriptor per kind, in this order, as SCM_RIGHTS
              {"call": "unshare(...)", "errno": 22, "hint": ""}      a system call failed
              {"message": "...", "hint": ""}                         the request is wrong

    request   {"lock": 2} with the descriptor of a user namespace and of that many detached mounts
    answer    {"locked": 2} with a descriptor of a locked copy of each, in this order; or an error as above

    request   {"make": "name", "directory": true} with the descriptors of a user namespace and of a directory, in which
              its root makes an empty directory, or else a file
    answer    {"made": "name"}; or an error as above

The owner's end closing, for whatever reason, ends the process.

Why locking needs a process of its own: the kernel locks the flags of a mount (read-only, nosuid, nodev, noexec) when a
mount namespace is copied into a less privileged one, and at no other occasion (mount_namespaces(7), "Restrictions on
mount namespaces"). A locked flag stays with every copy. So a child puts the mounts into a mount namespace that has
nothing else in it, copies that as a process of the user namespace, and takes the copies out.

Nearly all of the time that this takes is for the fork, and for copies of pages that the child writes to. So once a pod
got a user namespace, and after each lock, the child for the next one is forked in advance (:func:`_make_spare`). It
has no descriptor of any pod, and ends with its one request.

    helper                          child
      | fork ------------------------> |
      |                                | become the owner, a user of the machine that is drawn
      |                                | unshare(NEWUSER)
      | <----------------- "unshared"  |
      | write uid_map, gid_map         |
      | "mapped" --------------------> | act as root of the user namespace
      |                                | unshare(the others): owned by the user namespace (KEP-127)
      |                                | hostname, lo up, sysctls
      | <--------------------- result  |
      | open /proc/<child>/ns/*        |
      | SIGKILL ---------------------> |
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn

from podkeep.base.errors import InvalidArgument, KernelCallError, PodkeepError
from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import Propagation

MAX_PACKET_BYTES = 128 * 1024
MAX_FDS = 253
"""Descriptors in one packet (SCM_MAX_FD of the kernel)."""
KIND_FLAGS = {
    "USER": CloneFlag.NEWUSER,
    "NET": CloneFlag.NEWNET,
    "IPC": CloneFlag.NEWIPC,
    "UTS": CloneFlag.NEWUTS,
}
"""The kinds made here. PID, mount and cgroup namespaces belong to a container: the OCI runtime makes them."""
_PROC_NAMES = {"USER": "user", "NET": "net", "IPC": "ipc", "UTS": "uts"}
_SYSCTLS = {"NET": ("net.*",), "IPC": ("kernel.shm*", "kernel.msg*", "kernel.sem", "fs.mqueue.*")}
"""Sysctls that belong to a namespace, by its kind (Kubernetes, "Using sysctls in a cluster")."""

_OWNERS = range(2**31, 0xFFFFFFFE)
"""Among these are owners of pods' user namespaces. No ``runAsUser`` reaches them (``apis/core/validation``); the two
after them are nobody's. So many that who has CAP_SETUID, as root in a pod without a user namespace has, needs more
than an hour to try them all. FreeIPA gives away subordinate IDs of these: one in 32,768 owners is one of a given
user's.
"""
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_prctl = ctypes.CDLL(None, use_errno=True)["prctl"]
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_prctl.restype = ctypes.c_int

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ_FLAGS = struct.Struct("16sH22x")

Message = dict[str, Any]

Action = Callable[[socket.socket], list[int]]
"""What a child does, given its end of the socket to the helper: it returns the descriptors that it answers with."""


class _Child(NamedTuple):
    """``channel`` is the helper's end of a socket, of which nobody else has a copy for long."""

    pid: int
    channel: socket.socket


_ending: list[int] = []
"""Children that have answered. The end of one that mounted something takes milliseconds, and nobody waits for it."""
_spares: list[_Child] = []
"""The child that locks the next mounts, or nothing."""


def main(fd: int) -> None:
    """Serve requests on the socket ``fd`` until its other end closes."""
    # Ctrl-C goes to the whole foreground process group; the helper ends when its owner does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owner = socket.socket(fileno=fd)
    # Children exit within a millisecond: a collection, or unsharing pages by touching reference counts, only costs.
    gc.freeze()
    gc.disable()
    while True:
        packet, given, _, _ = socket.recv_fds(owner, MAX_PACKET_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            break
        request = json.loads(packet)
        try:
            answer, fds = _answer(request, given)
        finally:
            _close_all(given)
        try:
            socket.send_fds(owner, [json.dumps(answer).encode()], fds)
        except (BrokenPipeError, ConnectionResetError):
            break
        finally:
            _close_all(fds)
        # Only once the answer is sent: a fork, and the end of a child with mounts, take milliseconds.
        if _is_before_lock(request):
            _make_spare()
        _wait_for_ends()
    while _spares:
        _end(_spares.pop())
    _wait_for_ends()


def _wait_for_ends() -> None:
    while _ending:
        _end_now(_ending.pop())


def _end_now(pid: int) -> None:
    """End a child that has nothing more to do, also one that somebody has stopped, and wait for it."""
    with contextlib.suppress(PermissionError):  # without CAP_KILL; it ends by itself
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _answer(request: Message, given: Sequence[int]) -> tuple[Message, list[int]]:
    try:
        if "lock" in request:
            return {"locked": request["lock"]}, _lock(request["lock"], given)
        if "make" in request:
            userns, directory = given
            _have_done(lambda _: _made(userns, directory, request["make"], is_directory=request["directory"]), 0)
            return {"made": request["make"]}, []
        kinds = [kind for kind in KIND_FLAGS if kind in request["kinds"]]
        return {"kinds": kinds}, _create(request, kinds)
    except PodkeepError as error:
        return _error_message(error), []
    except OSError as error:
        return _error_message(KernelCallError("namespace helper", error.errno or 0)), []


def _error_message(error: PodkeepError) -> Message:
    if isinstance(error, KernelCallError):
        return {"call": error.call, "errno": error.errno, "hint": error.hint}
    return {"message": error.message, "hint": error.hint}


def raise_error(answer: Message) -> None:
    """Raise the error that ``answer`` carries, if it carries one.

    :raises KernelCallError: if a system call failed in the helper or its child.
    :raises InvalidArgument: if the request cannot be carried out.
    """
    if "errno" in answer:
        raise KernelCallError(answer["call"], answer["errno"], hint=answer["hint"])
    if "message" in answer:
        raise InvalidArgument(answer["message"], hint=answer["hint"])


def _create(request: Message, kinds: list[str]) -> list[int]:
    sysctls = [sysctl_path(name, value, kinds) for name, value in request["sysctls"].items()]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _child(theirs, request, kinds, sysctls)
    theirs.close()
    try:
        if "USER" in kinds:
            raise_error(_receive(ours, pid))
            # By the parent: a process in its new user namespace may map no IDs but its own (user_namespaces(7)).
            _write_map(pid, "uid_map", request["uids"])
            _write_map(pid, "gid_map", request["gids"])
            ours.send(b"{}")
        raise_error(_receive(ours, pid))
        return _open_namespaces(pid, kinds)
    finally:
        ours.close()
        _end_now(pid)


def _receive(peer: socket.socket, pid: int) -> Message:
    return _child_message(peer.recv(MAX_PACKET_BYTES), pid)


def _child_message(packet: bytes, pid: int) -> Message:
    if not packet:
        hint = "the helper's child died: look for an OOM kill"
        raise KernelCallError(f"recv(child {pid})", errno.EPIPE, hint=hint)
    message: Message = json.loads(packet)
    return message


def _write_map(pid: int, name: str, text: str) -> None:
    path = f"/proc/{pid}/{name}"
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        call = f"write({path}, {text!r})"
        hint = "the mapping breaks a rule of user_namespaces(7), or uses host IDs that podkeep itself does not have"
        raise KernelCallError(call, error.errno or 0, hint=hint) from error
    finally:
        os.close(fd)


def _open_namespaces(pid: int, kinds: list[str]) -> list[int]:
    fds: list[int] = []
    try:
        for kind in kinds:
            fds.append(os.open(f"/proc/{pid}/ns/{_PROC_NAMES[kind]}", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        _close_all(fds)
        raise
    return fds


def _lock(count: int, given: Sequence[int]) -> list[int]:
    if len(given) != count + 1:
        raise InvalidArgument(f"a request to lock {count} mounts came with {len(given)} descriptors")
    if _spares:
        spare = _spares.pop()
        try:
            socket.send_fds(spare.channel, [b"{}"], given)
        except OSError:
            # It was killed, or did not get its mount namespace. One that is forked now can say what is wrong.
            _end(spare)
        else:
            return _result(spare, count)
    place = _empty_mount_namespace()

    def lock(_: socket.socket) -> list[int]:
        _enter_copy(place)
        return _locked_copies(given)

    return _have_done(lock, count)


def _is_before_lock(request: Message) -> bool:
    """Say whether mounts are going to be locked soon: for a pod's container. A probe asks for nothing but USER."""
    return "lock" in request or ("USER" in request.get("kinds", ()) and len(request["kinds"]) > 1)


def _make_spare() -> None:
    """Fork the child that locks the next mounts, unless there is one; it ends when the helper does."""
    if _spares:
        return
    # Nobody has asked for it: if it cannot be had then either, who has mounts locked gets the error.
    with contextlib.suppress(OSError, PodkeepError):
        _spares.append(_begin(functools.partial(_wait_for_mounts, _empty_mount_namespace())))


def _wait_for_mounts(place: int, helper: socket.socket) -> list[int]:
    """Do the part of the child that was forked in advance."""
    _enter_copy(place)
    _rehearse()
    packet, given, _, _ = socket.recv_fds(helper, MAX_PACKET_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        os._exit(0)  # the helper has ended
    return _locked_copies(given)


@functools.cache
def _empty_mount_namespace() -> int:
    """Return a descriptor of a mount namespace in which there is an empty tmpfs and nothing else.

    To copy it costs nothing; that of the runtime has the mounts of all pods.
    """
    return _have_done(_make_empty_mount_namespace, 1)[0]


def _make_empty_mount_namespace(_: socket.socket) -> list[int]:
    libc.unshare(CloneFlag.NEWNS)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # Before anything is mounted: it would be mounted in the machine's namespace as well.
    mounts.set_propagation("/", Propagation.PRIVATE, recursive=True)
    # Any directory that is there will do; nobody else sees it.
    mounts.tmpfs("/proc", "size=64k,mode=755")
    os.chdir("/proc")
    # Old root and new root at one place: the old one lies on top, and the umount2 below takes it away.
    libc.pivot_root(b".", b".", "a root that is a ramfs cannot be left (pivot_root(2)): boot from a disk, or a tmpfs")
    libc.umount2(b".", mounts.UnmountFlag.DETACH)
    return [namespace]


def _enter_copy(place: int) -> None:
    """Enter a copy of the mount namespace ``place``, of this process's own: what is mounted there ends with it."""
    # Opened first: there is no /proc in the mount namespace that is entered next.
    process = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    libc.setns(place, CloneFlag.NEWNS)
    libc.unshare(CloneFlag.NEWNS)
    # Held until this process ends, for which nobody waits: left earlier, it would have to be waited for.
    os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)


def _locked_copies(given: Sequence[int]) -> list[int]:
    """Return copies of detached mounts whose flags nobody can take off who is in a user namespace; uses up the mounts.

    :param given: descriptors of the user namespace, and of the mounts.
    """
    userns, *trees = given
    names = [_mount_point(number, tree) for number, tree in enumerate(trees)]
    for name, tree in zip(names, trees, strict=True):
        mounts.attach(tree, name)
    _enter_as_root(userns)
    # This copy into a less privileged namespace is what locks the flags of the mounts.
    libc.unshare(CloneFlag.NEWNS, "sysctl user.max_mnt_namespaces limits their number")
    return [mounts.open_tree(name, clone=True, recursive=True) for name in names]


def _made(userns: int, directory: int, name: str, *, is_directory: bool) -> list[int]:
    """Make an empty directory or file as the root of a user namespace; who else had the same idea was first."""
    _enter_as_root(userns)
    make_empty(directory, name, is_directory=is_directory)
    return []


def make_empty(directory: int, name: str, *, is_directory: bool) -> None:
    """Make an empty directory, or else a file, unless something has its name. No link is followed.

    :raises KernelCallError: if the kernel refuses.
    """
    try:
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=directory)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o644, dir_fd=directory))
    except FileExistsError:
        pass
    except OSError as error:
        call = f"{'mkdir' if is_directory else 'open'}({name!r})"
        raise KernelCallError(call, error.errno or 0) from error


def _rehearse() -> None:
    """Do what :func:`_locked_copies` does, only so that the pages it writes to are copied in advance."""
    tree = mounts.open_tree(".", clone=True)
    name = _mount_point(MAX_FDS, tree)
    mounts.attach(tree, name)
    _act_as_root()
    _close_all([tree, mounts.open_tree(name, clone=True, recursive=True)])


def _mount_point(number: int, tree: int) -> str:
    """Return a path at which ``tree`` can be mounted; what an earlier request made is used again."""
    # Asked of the kernel alone: a FUSE that does not answer would keep all pods waiting for this process.
    if stat.S_ISDIR(libc.look(tree, b"").status.st_mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"directory-{number}", 0o700)
        return f"directory-{number}"
    os.close(os.open(f"file-{number}", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
    return f"file-{number}"


def _have_done(action: Action, count: int) -> list[int]:
    """Have a child do something and return the ``count`` descriptors that it answered with."""
    return _result(_begin(action), count)


def _begin(action: Action) -> _Child:
    """Fork a child that does something."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _do(theirs, action)
    theirs.close()
    return _Child(pid, ours)


def _end(child: _Child) -> None:
    child.channel.close()
    _ending.append(child.pid)


def _result(child: _Child, count: int) -> list[int]:
    """Return the ``count`` descriptors that a child answers with, which then ends."""
    try:
        packet, fds, _, _ = socket.recv_fds(child.channel, MAX_PACKET_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        try:
            raise_error(_child_message(packet, child.pid))
            if len(fds) != count:
                hint = "raise the limit of open files (LimitNOFILE=)"
                raise KernelCallError(f"recvmsg({count} descriptors)", errno.EMFILE, hint=hint)
        except BaseException:
            _close_all(fds)
            raise
        return fds
    finally:
        _end(child)


def _do(helper: socket.socket, action: Action) -> NoReturn:
    """Do the child's part and exit, as :func:`_child`."""
    status = 1
    try:
        fds: list[int] = []
        result: Message = {}
        try:
            fds = action(helper)
        except PodkeepError as error:
            result = _error_message(error)
        except OSError as error:
            result = _error_message(KernelCallError("namespace helper", error.errno or 0))
        try:
            socket.send_fds(helper, [json.dumps(result).encode()], fds)
        except OSError as error:
            hint = (
                "too many descriptors are on their way between processes: raise the limit of open files (LimitNOFILE=)"
            )
            refused = KernelCallError(f"sendmsg({len(fds)} descriptors)", error.errno or 0, hint=hint)
            helper.send(json.dumps(_error_message(refused)).encode())
        status = 0
    finally:
        os._exit(status)


def _child(helper: socket.socket, request: Message, kinds: list[str], sysctls: list[tuple[str, str]]) -> NoReturn:
    """Do the child's part and exit; whatever happens, the helper's loop is never re-entered in the child."""
    status = 1
    try:
        try:
            _enter(helper, request, kinds, sysctls)
            result: Message = {}
        except PodkeepError as error:
            result = _error_message(error)
        helper.send(json.dumps(result).encode())
        # Lives on until the helper has opened /proc/PID/ns: namespaces end with their last process or descriptor.
        helper.recv(1)
        status = 0
    finally:
        os._exit(status)


def _enter(helper: socket.socket, request: Message, kinds: list[str], sysctls: list[tuple[str, str]]) -> None:
    if "USER" in kinds:
        _become_owner()
        hint = "sysctl user.max_user_namespaces limits their number; a kernel without CONFIG_USER_NS has none"
        libc.unshare(CloneFlag.NEWUSER, hint)
        helper.send(b"{}")
        # The helper is gone or gave up; without a mapping nothing further would work.
        if not helper.recv(MAX_PACKET_BYTES):
            os._exit(1)
        _act_as_root()
    others = CloneFlag(0)
    for kind in kinds:
        if kind != "USER":
            others |= KIND_FLAGS[kind]
    if others:
        libc.unshare(others, "sysctls user.max_{net,ipc,uts}_namespaces limit their number")
    if request["hostname"] is not None:
        _call(f"sethostname({request['hostname']!r})", socket.sethostname, request["hostname"])
    if "NET" in kinds:
        _loopback_up()
    for path, value in sysctls:
        write_sysctl(path, value)


def _become_owner(*, wholly: bool = False) -> None:
    """Become a user of the machine, whose a user namespace is to be; all capabilities are kept.

    What is counted in a user namespace is counted for its owner, too: namespaces, inotify's instances (128 by default,
    /proc/sys/user), messages in queues, pending signals. If that were root, each pod could use up what the machine has
    of these, and other pods. And a process in the machine's user namespace that is the owner has all capabilities over
    the pod (user_namespaces(7)): it can join it with a descriptor of any of its processes, as a unix socket that both
    have gives one (SO_PEERPIDFD). So the owner is nobody that a pod can be told to run as, and one of the pod's own IDs
    neither; no image has a file of that owner with the set-user-ID bit (``layers/tarstream.py``). What has CAP_SETUID
    in the machine's user namespace can become anybody, and has to guess.

    :param wholly: not in effect only. The real user is whom processes are counted for (RLIMIT_NPROC).
    """
    if _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == -1:
        raise KernelCallError("prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)", ctypes.get_errno())
    uid = _OWNERS[int.from_bytes(os.urandom(8), "little") % len(_OWNERS)]
    other = uid if wholly else -1
    hint = f"podkeep's own user namespace has to have the IDs {_OWNERS.start} to {_OWNERS.stop - 1}"
    _call(f"setresuid({other}, {uid}, {other})", os.setresuid, other, uid, other, hint=hint)


def _enter_as_root(userns: int) -> None:
    """Enter a user namespace and act as its root, as somebody for whom the kernel counts descriptors that are sent.

    Any pod may use up those of root, and a pod that is told to run as one of this pod's users those of that.
    """
    _become_owner(wholly=True)
    libc.setns(userns, CloneFlag.NEWUSER)
    _act_as_root()


def _act_as_root() -> None:
    """Act as the root of the user namespace that this process is in.

    In effect only: a process that is on the machine what this root is there may not send it a signal then (kill(2)),
    and all pods would wait for a child that is stopped.
    """
    _call("setgroups([])", os.setgroups, [])
    _call("setresgid(0, 0, 0)", os.setresgid, 0, 0, 0)
    _call("setresuid(-1, 0, -1)", os.setresuid, -1, 0, -1)


def _call(call: str, function: Any, *arguments: Any, hint: str = "") -> None:
    try:
        function(*arguments)
    except OSError as error:
        raise KernelCallError(call, error.errno or 0, hint=hint) from error


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            _, flags = _IFREQ_FLAGS.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, _IFREQ_FLAGS.pack(b"lo", 0)))
            fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ_FLAGS.pack(b"lo", flags | _IFF_UP))
        except OSError as error:
            raise KernelCallError("ioctl(SIOCSIFFLAGS, lo, IFF_UP)", error.errno or 0) from error


def sysctl_path(name: str, value: str, kinds: list[str]) -> tuple[str, str]:
    """Return the file of sysctl ``name`` and the value to write, if it belongs to one of the namespaces ``kinds``.

    Both notations are understood: the first separator of ``name`` decides whether ``.`` or ``/`` separates (sysctl(8)).

    :raises InvalidArgument: if the name is malformed, the sysctl is not known to belong to a namespace, or it belongs
        to one that is shared with the host.
    """
    dotted = name
    separator = next((character for character in name if character in "./"), ".")
    if separator == "/":
        dotted = name.translate(str.maketrans("./", "/."))
    # The kernel ends a value at a NUL: another one than was checked would be written.
    if not value.isascii() or "\0" in value:
        raise InvalidArgument(f"sysctl {name!r}: the value {value!r} is not plain text")
    # A part may hold a dot of its own, as that of a VLAN's interface (eth0.100), which the other notation writes as a
    # slash.
    parts = [part.replace("/", ".") for part in dotted.split(".")]
    # The parts become a path below /proc/sys, which nothing may lead out of.
    if len(parts) < 2 or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise InvalidArgument(f"sysctl {name!r} is not a sysctl name")
    for kind, patterns in _SYSCTLS.items():
        if any(fnmatchcase(dotted, pattern) for pattern in patterns):
            if kind not in kinds:
                raise InvalidArgument(f"sysctl {name!r} is not allowed: the pod shares the host's {kind} namespace")
            return "/proc/sys/" + "/".join(parts), value
    raise InvalidArgument(
        f"sysctl {name!r} is not namespaced: it would change the whole machine",
        hint="net.*, kernel.shm*, kernel.msg*, kernel.sem and fs.mqueue.* belong to a pod; set others on the machine",
    )


def sysctl_call(path: str, value: str) -> str:
    """Return how an error names the writing of a sysctl's file."""
    return f"write({path}, {value!r})"


def write_sysctl(path: str, value: str) -> None:
    """Write a sysctl's file, in the namespaces of the calling thread.

    :raises KernelCallError: if the kernel refuses; its call is :func:`sysctl_call`.
    """
    call = sysctl_call(path, value)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise KernelCallError(call, error.errno or 0, hint="this kernel has no such sysctl in a namespace") from error
    except OSError as error:
        hint = "this kernel does not let a pod change it: a newer kernel may"
        raise KernelCallError(call, error.errno or 0, hint=hint) from error
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise KernelCallError(call, error.errno or 0, hint="the kernel does not accept this value") from error
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]))
