"""Who owns a pod directory, and what counts as an orphan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from podkeep.agent import sub_path
from podkeep.agent.poddirs import PodDirs, PodIdentity
from podkeep.base import waiting
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.ids import PodUID
from podkeep.base.waiting import UNTOLD, Containers, WaitingReason
from podkeep.kernel.files.removal import unmount_below
from podkeep.kernel.mount import mountinfo, mounts
from support.beside import exchanging
from support.descriptors import open_descriptors
from unit.kernel.isolation import in_new_namespaces

SOCKET = "/run/podkeep/podkeep.sock"
IDENTITY = PodIdentity(namespace="n", name="web")


def made(dirs: PodDirs, uid: str) -> Path:
    """Make the directory of a pod as admission does, and return it."""
    os.close(dirs.own(PodUID(uid)))
    dirs.identify(PodUID(uid), IDENTITY)
    return dirs.pods / uid


@pytest.mark.requirement("U35")
def test_what_a_kubelet_or_another_runtimes_agent_made_is_left_alone(tmp_path: Path) -> None:
    dirs, others = PodDirs(tmp_path, SOCKET), PodDirs(tmp_path, "/run/other.sock")
    files = []
    for directory in (dirs.pods / "kubelets", made(others, "others")):
        (directory / "volumes/kubernetes.io~csi/pv").mkdir(parents=True)
        files.append(directory / "volumes/kubernetes.io~csi/pv/precious")
        files[-1].touch()
    made(dirs, "ours")
    assert dirs.orphans(set()) == ["ours"]
    assert dirs.find(IDENTITY) == ["ours"]
    for uid in ("kubelets", "others", "ours"):
        dirs.remove(PodUID(uid))
    assert dirs.all() == ["kubelets", "others"]
    assert all(file.exists() for file in files)
    assert others.orphans(set()) == ["others"]


_OTHER_PROCESS = """
import os, sys
from pathlib import Path
from podkeep.agent.poddirs import PodDirs
from podkeep.base.errors import FailedPrecondition

dirs = PodDirs(Path(sys.argv[1]), sys.argv[2])
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
"""
_REMOVING = """
    try:
        lock = dirs.own("u")
    except FailedPrecondition:
        continue
    dirs.remove("u")
    os.close(lock)
"""


_REQUESTING = """
    dirs.request_deletion("u", 0)
"""


@contextmanager
def other_process(root: Path, does: str) -> Iterator[None]:
    """Have another process do something with the directory of pod ``u`` as often as it can."""
    command = [sys.executable, "-c", _OTHER_PROCESS + does.lstrip("\n"), root, SOCKET]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_who_owns_a_pod_has_its_directory_also_if_another_process_just_removed_it(tmp_path: Path) -> None:
    dirs, uid = PodDirs(tmp_path, SOCKET), PodUID("u")
    owned = 0
    with other_process(tmp_path, _REMOVING):
        for _ in range(1_500):
            try:
                lock = dirs.own(uid)
            except FailedPrecondition:
                continue
            dirs.identify(uid, IDENTITY)
            assert dirs.find(IDENTITY) == [uid]
            owned += 1
            os.close(lock)
    assert owned


@pytest.mark.slow
def test_a_pod_is_removed_also_if_another_process_asks_for_it_just_then(tmp_path: Path) -> None:
    dirs, uid = PodDirs(tmp_path, SOCKET), PodUID("u")
    with other_process(tmp_path, _REQUESTING):
        for _ in range(100):
            directory = made(dirs, "u")
            dirs.remove(uid)
            assert not directory.exists()


@pytest.mark.slow
def test_a_removal_that_stopped_in_the_middle_is_found_and_finished(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    directory = made(dirs, "u")
    (directory / "volumes").mkdir()
    stuck = directory / "zzz"
    stuck.touch()
    subprocess.run(["chattr", "+i", stuck], check=True)
    # Without CAP_LINUX_IMMUTABLE the flag cannot be taken off.
    remove = "import sys, pathlib; PodDirs(pathlib.Path(sys.argv[1]), sys.argv[2]).remove(sys.argv[3])"
    program = f"from podkeep.agent.poddirs import PodDirs; {remove}"
    without = ["setpriv", "--bounding-set=-linux_immutable", sys.executable, "-c", program, str(tmp_path), SOCKET, "u"]
    stopped = subprocess.run(without, capture_output=True, text=True)
    assert "Internal" in stopped.stderr
    assert "zzz" in stopped.stderr
    assert sorted(os.listdir(directory)) == ["pod.json", "zzz"]
    assert dirs.orphans(set()) == ["u"]
    dirs.remove(PodUID("u"))
    assert dirs.all() == []


def test_an_empty_directory_is_anybodys(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    os.close(dirs.own(PodUID("u")))
    assert not dirs.is_taken(PodUID("u"))
    assert not dirs.is_foreign(PodUID("u"))
    (dirs.pods / "u/x").touch()
    assert dirs.is_foreign(PodUID("u"))


@pytest.mark.parametrize(
    "left",
    [(), (".pod.json.x1y2z3",), (".pod.json.x1y2z3", ".userns.x1y2z3")],
    ids=["directory", "unfinished-record", "two"],
)
def test_a_directory_whose_owner_ended_while_making_it_is_nobodys(tmp_path: Path, left: tuple[str, ...]) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    for uid in ("wanted", "owned", "left"):
        (dirs.pods / uid).mkdir(parents=True)
        for name in left:
            (dirs.pods / uid / name).write_bytes(b"{")
    kept = made(dirs, "kept")
    (dirs.pods / "kubelets/volumes").mkdir(parents=True)
    assert not dirs.is_taken(PodUID("wanted"))
    assert not dirs.is_foreign(PodUID("wanted"))
    owner = dirs.own(PodUID("owned"))
    try:
        assert dirs.reclaim_empty(lambda uid: uid == "wanted") == ["left"]
    finally:
        os.close(owner)
    assert {path.name for path in dirs.pods.iterdir()} == {"wanted", "owned", "kept", "kubelets"}
    assert (kept / "pod.json").exists()


@pytest.mark.requirement("U35")
def test_an_orphan_has_neither_an_owner_nor_a_sandbox(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    with dirs.locked():
        for uid in ("dead", "kept", "dead-too"):
            made(dirs, uid)
        made(dirs, "owned")
        owned = dirs.own(PodUID("owned"))
        (dirs.pods / "a-file").touch()
        assert dirs.orphans({"kept"}) == ["dead", "dead-too"]
        with pytest.raises(FailedPrecondition, match="another process is working on pod owned"):
            dirs.own(PodUID("owned"))
        os.close(owned)
        assert dirs.orphans({"kept"}) == ["dead", "dead-too", "owned"]


def test_a_pod_is_found_by_its_name(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    identity = IDENTITY
    assert dirs.find(identity) == []
    os.close(dirs.own(PodUID("u1")))
    os.close(dirs.own(PodUID("u2")))
    dirs.identify(PodUID("u1"), identity)
    assert dirs.find(identity) == ["u1"]
    assert dirs.identity(PodUID("u2")) is None


def test_deletion_is_asked_for_in_the_directory(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    made(dirs, "u1")
    assert dirs.requested_deletion(PodUID("u1")) is None
    dirs.request_deletion(PodUID("u1"), 7)
    assert dirs.requested_deletion(PodUID("u1")) == 7
    dirs.remove(PodUID("u1"))
    dirs.request_deletion(PodUID("u1"), 7)
    assert dirs.requested_deletion(PodUID("u1")) is None


@pytest.mark.parametrize("what", ["pipe", "link", "endless", "text"])
def test_files_that_a_pod_has_put_in_a_directory_are_not_waited_for(tmp_path: Path, what: str) -> None:
    """One with a hostPath there; a pipe kept the agent from starting, and from knowing any pod."""
    dirs, elsewhere = PodDirs(tmp_path, SOCKET), tmp_path / "elsewhere"
    for name in ("pod.json", "deletion-grace-period"):
        path = made(dirs, "u1") / name
        dirs.request_deletion(PodUID("u1"), 7)
        path.rename(elsewhere)
        if what == "pipe":
            os.mkfifo(path)
        elif what == "link":
            path.symlink_to(elsewhere)
        elif what == "endless":
            path.write_bytes(b" " * (1 << 20) + elsewhere.read_bytes())
        else:
            path.write_text("now")
        if name == "pod.json":
            assert dirs.identity(PodUID("u1")) is None
            assert dirs.is_foreign(PodUID("u1"))
            assert dirs.managed() == []
            path.unlink()
        else:
            assert dirs.requested_deletion(PodUID("u1")) is None


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    dirs = PodDirs(tmp_path, SOCKET)
    before = open_descriptors()
    for _ in range(3):
        with dirs.locked():
            os.close(dirs.own(PodUID("u1")))
            dirs.orphans(set())
    assert open_descriptors() == before


def test_what_a_pod_waits_for_is_said_as_long_as_somebody_works_on_it(tmp_path: Path) -> None:
    dirs, uid = PodDirs(tmp_path, SOCKET), PodUID("u")
    directory = dirs.directory(uid).path
    names = Containers(init=("setup",), main=("main",))
    reasons = {"main": WaitingReason(reason="ImagePullBackOff", message="Back-off pulling image")}
    told = msgspec.structs.replace(names, waiting=reasons)
    waiting.tell(directory, told)
    assert waiting.read(directory) == UNTOLD
    lock = dirs.own(uid)
    waiting.tell(directory, told)
    assert waiting.read(directory) == msgspec.structs.replace(told, followed=True)
    (directory / "containers.json").write_bytes(b"garbage")
    assert waiting.read(directory) == UNTOLD
    waiting.tell(directory, told)
    os.close(lock)
    assert waiting.read(directory) == names
    # Whoever looks does not take the lock.
    os.close(dirs.own(uid))


@pytest.mark.slow
def test_removal_unmounts_nothing_elsewhere_whatever_links_a_volume_has(tmp_path: Path) -> None:
    """Who else writes to the volume exchanges the directory above a mount in it for a link out of it, meanwhile."""
    dirs, volume, elsewhere = PodDirs(tmp_path, SOCKET), tmp_path / "volume", tmp_path / "elsewhere"
    with ExitStack() as undo:
        undo.callback(unmount_below, tmp_path)
        for path in (volume / "above" / "mount", elsewhere / "mount"):
            path.mkdir(parents=True)
            mounts.tmpfs(path)
        (volume / "link").symlink_to(elsewhere)
        (elsewhere / "mount" / "file").touch()
        for number in range(50):
            uid = PodUID(f"u{number}")
            made(dirs, uid)
            sub_path.pin(tmp_path, "volume", dirs.directory(uid).sub_path("v", "c", 0))
            with exchanging(volume / "above", volume / "link"), suppress(PodkeepError):
                dirs.remove(uid)
            dirs.remove(uid)
        assert dirs.all() == []
        assert (elsewhere / "mount" / "file").exists()


@pytest.mark.parametrize("again", [False, True], ids=["removed", "pinned again"])
@in_new_namespaces()
def test_what_is_mounted_right_at_a_sub_path_stays_when_its_pod_lets_go(tmp_path: Path, again: bool) -> None:
    """With Bidirectional it is mounted at the pin as well, and hides that from whoever looks by its path."""
    dirs, uid, volume = PodDirs(tmp_path / "root", SOCKET), PodUID("u"), tmp_path / "volume"
    made(dirs, "u")
    for name in ("one/early", "other"):
        (volume / name).mkdir(parents=True)
    (volume / "link").symlink_to("one")
    mounts.bind(volume, volume)
    mounts.set_propagation(volume, mounts.Propagation.SHARED)
    mounts.tmpfs(volume / "one/early")
    target = dirs.directory(uid).sub_path("v", "c", 0)
    sub_path.pin(volume, "link", target, propagation="Bidirectional")
    mounts.tmpfs(volume / "one")
    before = len(mountinfo.under(volume))
    if again:
        (volume / "link").unlink()
        (volume / "link").symlink_to("other")
        pinned = sub_path.pin(volume, "link", target, propagation="Bidirectional")
        (volume / "other/file").touch()
        assert (pinned / "file").exists()
    else:
        dirs.remove(uid)
        assert dirs.all() == []
    assert len(mountinfo.under(volume)) == before == 3


def test_the_size_beside_volumes_is_that_of_hosts_and_files_of_containers(tmp_path: Path) -> None:
    directory = PodDirs(tmp_path, SOCKET).directory(PodUID("u"))
    assert (directory.size_beside_volumes(lambda: False).used_bytes, directory.path.exists()) == (0, False)
    for path, size in ((directory.container("main") / "log", 64 << 10), (directory.volumes / "v" / "data", 256 << 10)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    directory.hosts.write_text("127.0.0.1 localhost\n")
    found = directory.size_beside_volumes(lambda: False)
    assert 64 << 10 <= found.used_bytes < 128 << 10
    assert (found.inodes, found.hidden) == (4, False)
