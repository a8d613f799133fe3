"""The namespace helper as its client sees it, and what is done with namespaces afterwards."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from kernel.isolation import as_root_of, in_child, in_new_namespaces
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, Unavailable
from podkeep.kernel import libc
from podkeep.kernel.files import openat
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.kernel.namespace import namespaces, nshelper
from podkeep.kernel.namespace.idmap import IdMap, IdMapping, block
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest
from podkeep.kernel.process import confine
from support import unanswering
from support.waiting import TIMEOUT_S, wait_for

USER, NET, IPC, UTS = NamespaceKind.USER, NamespaceKind.NET, NamespaceKind.IPC, NamespaceKind.UTS
PID, MNT = NamespaceKind.PID, NamespaceKind.MNT
ALL = frozenset({USER, NET, IPC, UTS})
_PR_SET_DUMPABLE = 4
_MAPPED = "0 70000 1000\n"
OWNERS = range(2**31, 0xFFFFFFFE)
_LIBC = ctypes.CDLL(None)
_NS_GET_OWNER_UID = 0xB704
IN_USERNS = {NET: CloneFlag.NEWNET, IPC: CloneFlag.NEWIPC, UTS: CloneFlag.NEWUTS}


@contextmanager
def created(helper: NamespaceHelper, request: NamespaceRequest) -> Iterator[dict[NamespaceKind, int]]:
    fds = helper.create(request)
    try:
        yield fds
    finally:
        for fd in fds.values():
            os.close(fd)


def pod(**changes: object) -> NamespaceRequest:
    values: dict[str, object] = {"kinds": ALL, "idmap": block(65536, 65536), **changes}
    return NamespaceRequest(**values)  # type: ignore[arg-type]


def inside(fds: dict[NamespaceKind, int], *paths: str) -> list[str]:
    """Return the content of files as a process in all these namespaces reads them."""

    def body() -> list[str]:
        if USER in fds:
            libc.setns(fds[USER], CloneFlag.NEWUSER)
        for kind, flag in IN_USERNS.items():
            if kind in fds:
                libc.setns(fds[kind], flag)
        return [Path(path).read_text().strip() for path in paths]

    result: list[str] = in_child(body)
    return result


def descriptors_of(helper: NamespaceHelper) -> list[str]:
    # After a refusal the helper holds nothing any more; after a success it closes its copies when it has answered. The
    # second time it has forked the child for a pod's mounts by then.
    for _ in range(2):
        with pytest.raises(KernelCallError, match="sethostname"):
            helper.create(pod(hostname="x" * 65))
    return sorted(os.listdir(f"/proc/{helper.pid}/fd"))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spare_of(helper: NamespaceHelper) -> int:
    """Return the child that waits for mounts to lock."""
    assert helper.pid is not None
    descriptors_of(helper)  # so that it is there, and no other one
    (spare,) = children_of(helper.pid)
    return spare


@pytest.mark.requirement("U30")
def test_the_others_are_owned_by_the_user_namespace(helper: NamespaceHelper) -> None:
    with created(helper, pod()) as fds:
        assert set(fds) == ALL
        for kind in (NET, IPC, UTS):
            owner = namespaces.owner(fds[kind])
            assert namespaces.identity(owner) == namespaces.identity(fds[USER])
            os.close(owner)
            assert namespaces.identity(fds[kind]) != namespaces.identity(f"/proc/self/ns/{kind.value}")


def test_without_a_user_namespace_the_host_owns_them(helper: NamespaceHelper) -> None:
    with created(helper, NamespaceRequest(kinds=frozenset({NET, IPC, UTS}))) as fds:
        for kind in (NET, IPC, UTS):
            owner = namespaces.owner(fds[kind])
            assert namespaces.identity(owner) == namespaces.identity("/proc/self/ns/user")
            os.close(owner)


@pytest.mark.slow
def test_what_a_pod_takes_is_not_counted_as_roots(helper: NamespaceHelper) -> None:
    """Instances of inotify and namespaces are counted for the owners of user namespaces as well (namespaces(7)).

    And nobody on the machine who has an ID of the pod can stop the child that makes them: all pods would wait for it.
    """
    # It stands for one, so that the real one is left alone. It has owners of pods' user namespaces, too.
    owners = IdMapping(container_id=OWNERS.start, host_id=OWNERS.start, length=len(OWNERS))
    uids = (*block(1_000_000, 100_000).uids, owners)
    machine = helper.user_namespace(IdMap(uids=uids, gids=block(1_000_000, 100_000).gids))
    try:
        found = as_root_of(machine, _pod_and_root_take)
    finally:
        os.close(machine)
    assert found == {"pod": [20, 20], "root": [2, 2], "may be stopped": False}


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 65536])
def test_nobody_that_a_pod_can_run_as_owns_a_user_namespace(helper: NamespaceHelper, first: int) -> None:
    """Its owner has all capabilities in it: it is neither root nor one of the pod's users (user_namespaces(7))."""

    with created(helper, pod(idmap=block(first, 65536))) as fds:
        owner = _owner_uid(fds[USER])
        assert owner in OWNERS
        for uid in (0, first, first + 1000, (1 << 31) + first):
            assert in_child(partial(_join_without_capabilities, fds[USER], uid)) is False
        assert in_child(partial(_join_without_capabilities, fds[USER], owner)) is True


def test_the_owner_of_a_user_namespace_is_not_found_by_trying_a_few(helper: NamespaceHelper) -> None:
    """Root with CAP_SETUID on the machine tries 400,000 a second: they were among 65534."""
    owners = []
    for _ in range(5):
        with created(helper, pod(idmap=block(65536, 65536))) as fds:
            owners.append(_owner_uid(fds[USER]))
    assert max(owners) - min(owners) > 2**24  # wrong by chance twice in 10^8


def _owner_uid(userns: int) -> int:
    found = array("I", [0])
    fcntl.ioctl(userns, _NS_GET_OWNER_UID, found)
    return found[0]


def _join_without_capabilities(userns: int, uid: int) -> bool:
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if uid == 0:  # the others have lost them with it (capabilities(7))
        confine.drop_privileges(())
    try:
        libc.setns(userns, CloneFlag.NEWUSER)
    except KernelCallError as error:
        return error.errno != errno.EPERM
    return True


def _pod_and_root_take() -> dict[str, list[int]]:
    for name in ("max_inotify_instances", "max_uts_namespaces"):
        Path("/proc/sys/user", name).write_text("20")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        with suppress(BaseException):
            _take_as_pod(theirs)
        os._exit(0)
    theirs.close()
    assert ours.recv(100) == b"{}"
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(_MAPPED)
    ours.send(b"{}")
    pod_ = json.loads(ours.recv(100))
    # The pod keeps what it has until root has had its turn.
    found = {
        "pod": pod_,
        "root": in_child(lambda: _taken(2)),
        "may be stopped": in_child(lambda: _may_signal(pid, 70000)),
    }
    ours.close()
    os.waitpid(pid, 0)
    return found


@pytest.mark.slow
def test_who_works_for_a_pod_cannot_be_stopped_by_its_user_on_the_machine(helper: NamespaceHelper) -> None:
    """All pods would wait for the child that locks a pod's mounts. What it sends is counted for nobody else."""
    with created(helper, pod(idmap=block(65536, 65536))) as fds:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                nshelper._enter_as_root(fds[USER])
                theirs.send(b"in")
                ours.close()
                theirs.recv(1)
            os._exit(0)
        theirs.close()
        try:
            assert ours.recv(2) == b"in"
            status = Path(f"/proc/{pid}/status").read_text()
            [(real, effective, saved)] = re.findall(r"^Uid:\s(\d+)\s(\d+)\s(\d+)", status, re.MULTILINE)
            assert int(real) in OWNERS
            assert (effective, saved) == ("65536", real)
            assert in_child(partial(_may_signal, pid, 65536)) is False
        finally:
            ours.close()
            os.waitpid(pid, 0)


def test_a_child_that_has_answered_ends_also_if_it_is_stopped() -> None:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    nshelper._end_now(pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _may_signal(pid: int, uid: int) -> bool:
    """Say whether who is on the machine what the pod's root is may send a signal to the child of the helper."""
    os.setresuid(uid, uid, uid)
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    return True


def _take_as_pod(channel: socket.socket) -> None:
    become_owner = nshelper._become_owner

    def become_owner_and_dumpable() -> None:
        become_owner()
        _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)

    # Otherwise its files in /proc are the real root's alone.
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    nshelper._become_owner = become_owner_and_dumpable
    request = {"uids": _MAPPED, "gids": _MAPPED, "hostname": None, "sysctls": {}}
    nshelper._enter(channel, request, ["USER"], [])
    channel.send(json.dumps(_taken(40)).encode())
    channel.recv(1)


def _taken(wanted: int) -> list[int]:
    """Return how many of so many instances and namespaces this process got, which it keeps."""
    instances = sum(_LIBC.inotify_init1(0) >= 0 for _ in range(wanted))
    held = 0
    with suppress(KernelCallError):
        for _ in range(wanted):
            libc.unshare(CloneFlag.NEWUTS)
            os.open("/proc/self/ns/uts", os.O_RDONLY)
            held += 1
    return [instances, held]


@pytest.mark.requirement("U27", "U57")
def test_several_extents_and_groups_of_their_own(helper: NamespaceHelper) -> None:
    uids = (IdMapping(container_id=0, host_id=1000, length=65536),)
    gids = (
        IdMapping(container_id=0, host_id=1000, length=1000),
        IdMapping(container_id=1001, host_id=2001, length=64535),
        IdMapping(container_id=2000000, host_id=2000, length=1),
    )
    with created(helper, pod(idmap=IdMap(uids=uids, gids=gids))) as fds:
        uid_map, gid_map = inside(fds, "/proc/self/uid_map", "/proc/self/gid_map")
    assert [line.split() for line in uid_map.splitlines()] == [["0", "1000", "65536"]]
    assert [line.split() for line in gid_map.splitlines()] == [
        ["0", "1000", "1000"],
        ["1001", "2001", "64535"],
        ["2000000", "2000", "1"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [ALL, ALL - {USER}])
def test_hostname_loopback_and_sysctls(helper: NamespaceHelper, kinds: frozenset[NamespaceKind]) -> None:
    sysctls = {
        "net.ipv4.ip_unprivileged_port_start": "80",
        "net/ipv4/conf/lo/rp_filter": "2",
        "kernel.shm_rmid_forced": "1",
        "kernel.shmmax": "123456",
        "kernel.msgmax": "4000",
        "kernel.sem": "250 32000 32 129",
        "fs.mqueue.msg_max": "21",
    }
    files = [f"/proc/sys/{name.replace('.', '/')}" for name in sysctls]
    host = [Path(file).read_text() for file in files]
    request = NamespaceRequest(
        kinds=kinds, idmap=block(65536, 65536) if USER in kinds else None, hostname="web-0", sysctls=sysctls
    )
    with created(helper, request) as fds:
        assert inside(fds, "/proc/sys/kernel/hostname") == ["web-0"]
        assert [text.split() for text in inside(fds, *files)] == [value.split() for value in sysctls.values()]

        def over_loopback() -> str:
            with socket.create_server(("127.0.0.1", 0)) as server:
                return str(socket.create_connection(server.getsockname(), timeout=5).getpeername()[0])

        assert namespaces.run_in_netns(fds[NET], lambda: in_child(over_loopback)) == "127.0.0.1"
    assert [Path(file).read_text() for file in files] == host
    assert socket.gethostname() != "web-0"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (NamespaceRequest(kinds=frozenset()), "names none"),
        (
            NamespaceRequest(kinds=frozenset({PID, MNT, NET})),
            "MNT, PID namespaces are not made",
        ),
        (NamespaceRequest(kinds=frozenset({NamespaceKind.CGROUP})), "CGROUP namespaces are not made"),
        (NamespaceRequest(kinds=frozenset({USER})), "go together"),
        (NamespaceRequest(kinds=frozenset({NET}), idmap=block(65536, 1)), "go together"),
        (NamespaceRequest(kinds=frozenset({NET}), hostname="a"), "needs a UTS namespace"),
        (NamespaceRequest(kinds=frozenset({IPC}), sysctls={"net.core.somaxconn": "1"}), "shares the host's NET"),
        (NamespaceRequest(kinds=frozenset({NET}), sysctls={"kernel.shmmax": "1"}), "shares the host's IPC"),
        (NamespaceRequest(kinds=ALL - {USER}, sysctls={"vm.swappiness": "1"}), "'vm.swappiness' is not namespaced"),
        (pod(idmap=block(65536, 0)), "no length"),
        (pod(hostname="wéb"), "not a DNS name"),
        (pod(hostname="a\0b"), "not a DNS name"),
        (pod(sysctls={"net.core.somaxconn": "1\0"}), "not plain text"),
        (pod(sysctls={"net.core.somaxconn": "1" * 200_000}), "bytes; fewer sysctls"),
    ],
)
def test_wrong_requests_are_refused_before_anything_starts(request_: NamespaceRequest, words: str) -> None:
    helper = NamespaceHelper()
    with pytest.raises(InvalidArgument, match=words):
        helper.create(request_)
    assert helper.pid is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hostname": "x" * 65}, r"sethostname\('x+'\): EINVAL"),
        ({"sysctls": {"net.ipv4.no_such": "1"}}, r"write\(/proc/sys/net/ipv4/no_such, '1'\): ENOENT.*no such sysctl"),
        ({"sysctls": {"net.ipv4.ip_forward": "x"}}, r"write\(.*ip_forward, 'x'\): EINVAL.*does not accept this value"),
        ({"sysctls": {"net.core.rmem_max": "1"}}, r"write\(/proc/sys/net/core/rmem_max, '1'\): E"),
    ],
)
def test_a_refusal_inside_the_child_comes_back_and_the_helper_goes_on(
    helper: NamespaceHelper, changes: dict[str, object], words: str
) -> None:
    before = helper.pid
    with pytest.raises(KernelCallError, match=words):
        helper.create(pod(**changes))
    with created(helper, pod()) as fds:
        assert set(fds) == ALL
    assert helper.pid == before


def test_a_killed_helper_is_started_again(helper: NamespaceHelper) -> None:
    first = helper.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with created(helper, pod()) as fds:
        assert set(fds) == ALL
    assert helper.pid not in {None, first}
    assert not Path(f"/proc/{first}").exists()


@pytest.mark.slow
def test_a_helper_killed_while_threads_use_it(helper: NamespaceHelper) -> None:
    def work(number: int) -> int:
        if number == 20 and (pid := helper.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        with created(helper, pod()) as fds:
            return len(fds)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(60))) == [4] * 60


@pytest.mark.slow
def test_two_hundred_creates_leak_nothing(helper: NamespaceHelper) -> None:
    assert helper.pid is not None
    own = sorted(os.listdir("/proc/self/fd"))
    theirs = descriptors_of(helper)
    for _ in range(200):
        for fd in helper.create(pod(hostname="pod")).values():
            os.close(fd)
    assert sorted(os.listdir("/proc/self/fd")) == own
    assert descriptors_of(helper) == theirs
    assert len(children_of(helper.pid)) == 1  # that for a pod's mounts


def test_close_ends_the_process_and_is_final() -> None:
    helper = NamespaceHelper()
    helper.start()
    helper.start()
    pid = helper.pid
    helper.close()
    helper.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(FailedPrecondition, match="was closed"):
        helper.start()
    with pytest.raises(FailedPrecondition, match="was closed"):
        helper.create(pod())


def test_user_namespace_alone(helper: NamespaceHelper) -> None:
    fd = helper.user_namespace(block(131072, 65536))
    assert inside({USER: fd}, "/proc/self/uid_map")[0].split() == ["0", "131072", "65536"]
    os.close(fd)


@in_new_namespaces()
def test_pins_keep_a_namespace_and_go_without_a_trace(tmp_path: Path, userns: int) -> None:
    pinned = tmp_path / "user"
    count = len(mountinfo.read())
    namespaces.pin(userns, pinned)
    with pytest.raises(KernelCallError, match=r"open\('.*/user', O_CREAT\|O_EXCL\): EEXIST"):
        namespaces.pin(userns, pinned)
    assert namespaces.identity(pinned) == namespaces.identity(userns)
    fd = namespaces.open_pinned(pinned)
    assert namespaces.identity(fd) == namespaces.identity(userns)
    os.close(fd)
    namespaces.unpin(pinned)
    namespaces.unpin(pinned)
    assert not pinned.exists()
    assert len(mountinfo.read()) == count


@in_new_namespaces()
def test_half_a_pin_is_undone(tmp_path: Path) -> None:
    with pytest.raises(KernelCallError, match=r"mount\('/proc/self/fd/9999'.*ENOENT"):
        namespaces.pin(9999, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "net").touch()
    namespaces.unpin(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_looking_at_what_is_no_namespace(tmp_path: Path) -> None:
    with (
        pytest.raises(KernelCallError, match=r"ioctl\(fd=\d+, NS_GET_USERNS\): ENOTTY"),
        tmp_path.joinpath("f").open("w") as file,
    ):
        namespaces.owner(file.fileno())
    with pytest.raises(KernelCallError, match=r"stat\('.*/missing'\): ENOENT"):
        namespaces.identity(tmp_path / "missing")
    with pytest.raises(KernelCallError, match=r"open\('.*/missing'\): ENOENT"):
        namespaces.open_pinned(tmp_path / "missing")


def test_run_in_netns_changes_no_other_thread(helper: NamespaceHelper) -> None:
    here = namespaces.identity("/proc/self/ns/net")
    with created(helper, NamespaceRequest(kinds=frozenset({NET}))) as fds:
        seen = namespaces.run_in_netns(fds[NET], lambda: namespaces.identity("/proc/thread-self/ns/net"))
        assert seen == namespaces.identity(fds[NET])
        with pytest.raises(ZeroDivisionError):
            namespaces.run_in_netns(fds[NET], lambda: 1 // 0)
        with pytest.raises(KernelCallError, match=r"setns\(fd=9999.*NEWNET.*EBADF"):
            namespaces.run_in_netns(9999, lambda: None)
    assert namespaces.identity("/proc/thread-self/ns/net") == here


LOCKED = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC


def detached(source: Path) -> int:
    return mounts.clone_tree(source, recursive=True, attrs=LOCKED)


@in_new_namespaces()
def test_flags_of_a_locked_mount_cannot_be_taken_off(helper: NamespaceHelper, tmp_path: Path) -> None:
    """By whoever is privileged in the user namespace that it was locked for, in a mount namespace of that."""
    for name in ("source", "source/below", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    (tmp_path / "source/file").touch()
    (tmp_path / "copy-of-file").touch()
    mounts.tmpfs(tmp_path / "source/below")
    userns = helper.user_namespace(block(65536, 65536))
    trees = [detached(tmp_path / "source"), detached(tmp_path / "source/file")]
    locked = helper.lock_mounts(userns, trees)
    for fd, name in zip(locked, ("copy", "copy-of-file"), strict=True):
        mounts.attach(fd, tmp_path / name)

    outside = [mounts.open_tree(tmp_path / name, clone=True, recursive=True) for name in ("copy", "copy-of-file")]

    def as_pod() -> list[int]:
        libc.setns(userns, CloneFlag.NEWUSER)
        libc.unshare(CloneFlag.NEWNS)
        found = []
        for number, name in enumerate(("copy", "copy-of-file")):
            mounts.attach(outside[number], tmp_path / name)
            for flag in LOCKED:
                with pytest.raises(KernelCallError) as caught:
                    mounts.mount_setattr(tmp_path / name, clear=flag)
                found.append(caught.value.errno)
        return found

    assert in_child(as_pod) == [errno.EPERM] * 8
    with pytest.raises(OSError, match="Read-only"):
        (tmp_path / "copy/new").touch()
    for fd in (userns, *trees, *locked, *outside):
        os.close(fd)


def test_a_child_for_mounts_is_forked_for_pods_only(helper: NamespaceHelper) -> None:
    """Not for who only asks whether there are user namespaces, nor for pods with the machine's users."""
    assert helper.pid is not None
    for _ in range(2):
        os.close(helper.user_namespace(block(65536, 65536)))
        with created(helper, NamespaceRequest(kinds=frozenset({NET, IPC, UTS}))):
            assert children_of(helper.pid) == []
    assert spare_of(helper) == spare_of(helper)


@pytest.mark.slow
@in_new_namespaces()
def test_mounts_are_locked_by_the_child_that_waits_for_them(helper: NamespaceHelper, tmp_path: Path) -> None:
    """Once: the next mounts, of another pod, are locked by another child. One that was killed is not missed."""
    tmp_path.chmod(0o755)
    before = spare_of(helper)
    for first_id, killed in ((65536, False), (131072, False), (196608, True)):
        if killed:
            pidfd = os.pidfd_open(before)
            os.kill(before, signal.SIGKILL)
            # Its mount namespace goes before its socket: until all has gone, it could still be asked.
            assert select.select([pidfd], [], [], TIMEOUT_S)[0]
            os.close(pidfd)
        userns = helper.user_namespace(block(first_id, 65536))
        tree = detached(tmp_path)
        (locked,) = helper.lock_mounts(userns, [tree])

        def as_pod(userns: int = userns, locked: int = locked) -> int:
            libc.setns(userns, CloneFlag.NEWUSER)
            libc.unshare(CloneFlag.NEWNS)
            mounts.attach(locked, tmp_path)
            with pytest.raises(KernelCallError) as caught:
                mounts.mount_setattr(tmp_path, clear=MountAttr.RDONLY)
            return caught.value.errno

        assert in_child(as_pod) == errno.EPERM
        for fd in (userns, tree, locked):
            os.close(fd)
        after = spare_of(helper)
        assert after != before
        assert not Path(f"/proc/{before}").exists()
        before = after


@pytest.mark.slow
@pytest.mark.parametrize("killable", [False, True])
@in_new_namespaces()
def test_a_mount_point_that_is_not_made_leaves_one_process_at_most(
    helper: NamespaceHelper, tmp_path: Path, killable: bool
) -> None:
    """No signal ends the wait for a server of FUSE that has read the question; one that has not is given up."""
    for name in ("hanging", "answering"):
        (tmp_path / name).mkdir()
    (tmp_path / "answering").chmod(0o777)
    userns, other = (helper.user_namespace(block(first, 65536)) for first in (65536, 131072))
    path = tmp_path / "hanging"
    hanging = unanswering.Hanging(path, ",allow_other") if killable else unanswering.Holding(path, unanswering.MKDIR)

    def make(userns: int, directory: str, name: str) -> None:
        with openat.closing(os.open(tmp_path / directory, os.O_PATH)) as fd:
            helper.make_empty(userns, fd, name, is_directory=True)

    def made() -> bool:
        try:
            make(userns, "answering", "own")
        except Unavailable:
            return False
        return True

    try:
        with pytest.raises(Unavailable, match="did not answer"):
            make(userns, "hanging", "inner")
        if not killable:
            for _ in range(2):
                with pytest.raises(Unavailable, match="still waits"):
                    make(userns, "hanging", "inner")
            make(other, "answering", "other")
            hanging.close()
        wait_for(made, "the end of the process that waited")
    finally:
        hanging.close()
        os.close(userns)
        os.close(other)


def test_nothing_is_made_once_the_helper_is_closed(tmp_path: Path) -> None:
    with NamespaceHelper() as helper:
        userns = helper.user_namespace(block(65536, 65536))
    refused = pytest.raises(FailedPrecondition, match="closed")
    with openat.closing(userns), openat.closing(openat.open_directory(tmp_path)) as directory, refused:
        helper.make_empty(userns, directory, "inner", is_directory=True)
    assert list(tmp_path.iterdir()) == []


def test_a_helper_ends_though_another_descriptor_of_its_socket_is_open() -> None:
    helper = NamespaceHelper()
    helper.start()
    process, channel = helper._process, helper._socket
    assert process is not None
    assert channel is not None
    with channel.dup():
        helper.close()
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_the_child_that_waits_ends_with_the_helper(killed: bool) -> None:
    helper = NamespaceHelper()
    helper.start()
    assert helper.pid is not None
    pidfd = os.pidfd_open(spare_of(helper))
    if killed:
        os.kill(helper.pid, signal.SIGKILL)
    helper.close()
    ended = select.select([pidfd], [], [], 10)[0]
    os.close(pidfd)
    assert ended == [pidfd]


@in_new_namespaces()
def test_mounts_are_locked_also_if_others_of_root_send_many_descriptors(tmp_path: Path) -> None:
    """The kernel counts descriptors on their way by user: any container whose root is the machine's can use them up."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # what the helper starts with is the limit for its children
    helper = NamespaceHelper()
    helper.start()
    try:
        with sender, receiver:
            for _ in range(3):
                socket.send_fds(sender, [b"x"], [sender.fileno()] * 250)
            userns = helper.user_namespace(block(65536, 65536))
            tree = detached(tmp_path)
            (locked,) = helper.lock_mounts(userns, [tree])
            for fd in (userns, tree, locked):
                os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        helper.close()


@pytest.mark.slow
@in_new_namespaces()
def test_more_mounts_than_one_packet_takes_are_locked_in_order(helper: NamespaceHelper, tmp_path: Path) -> None:
    userns = helper.user_namespace(block(65536, 65536))
    for number in range(300):
        (tmp_path / str(number)).mkdir()
    trees = [detached(tmp_path / str(number)) for number in range(300)]
    before = descriptors_of(helper)
    locked = helper.lock_mounts(userns, trees)
    assert [os.fstat(fd).st_ino for fd in locked] == [(tmp_path / str(n)).stat().st_ino for n in range(300)]
    assert len(descriptors_of(helper)) <= len(before) + 1  # the mount namespace that has nothing in it
    for fd in (userns, *trees, *locked):
        os.close(fd)


@pytest.mark.slow
@in_new_namespaces()
def test_what_cannot_be_locked_leaves_nothing_and_the_helper_goes_on(helper: NamespaceHelper, tmp_path: Path) -> None:
    userns = helper.user_namespace(block(65536, 65536))
    tree = detached(tmp_path)
    with tmp_path.joinpath("file").open("w") as not_a_mount:
        with pytest.raises(KernelCallError, match=r"move_mount.*EINVAL"):
            helper.lock_mounts(userns, [tree, not_a_mount.fileno()])
        tree_again = detached(tmp_path)
        with pytest.raises(KernelCallError, match="setns"):
            helper.lock_mounts(not_a_mount.fileno(), [tree_again])
    os.close(tree_again)
    tree_again = detached(tmp_path)
    (locked,) = helper.lock_mounts(userns, [tree_again])
    assert helper.pid is not None
    os.kill(helper.pid, signal.SIGKILL)
    last = detached(tmp_path)
    (locked_again,) = helper.lock_mounts(userns, [last])
    for fd in (userns, tree, tree_again, locked, last, locked_again):
        os.close(fd)
