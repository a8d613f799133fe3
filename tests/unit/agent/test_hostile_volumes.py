"""Volumes that a container can write to, though it should not, and what a kubelet's file layout makes of that.

A container with CAP_SYS_ADMIN may take the read-only flag off its mount. The next start of one of the pod's containers
then finds links, pipes and directories of the container's choice in the place of the volume's own.
"""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from podkeep.agent import sub_path
from podkeep.agent.poddirs import PodDir
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.agent.user_namespaces.model import of_block
from podkeep.agent.volumes import host_path, ownership, projection
from podkeep.agent.volumes.container_files import mounts as container_mounts
from podkeep.agent.volumes.container_files import termination_message, write_hosts
from podkeep.agent.volumes.ownership import Owners
from podkeep.agent.volumes.payload import File
from podkeep.agent.volumes.setup import Surroundings, set_up
from podkeep.api.volumes import HostPathVolumeSource
from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import Propagation
from support.beside import exchanging, leased
from support.exchanged import ExchangedLog
from support.loopdev import loop_device
from support.volumes import claiming, pod_with
from unit.kernel.isolation import in_new_namespaces

OLD = {"a": File(data=b"old", mode=0o644), "d/e": File(data=b"old", mode=0o644)}
NEW = {"a": File(data=b"new", mode=0o644), "d/e": File(data=b"new", mode=0o640)}
VICTIM = 0o751


MAPPED = Surroundings(user_namespace=of_block(Block(first=131072)), allocatable={"memory": "4Gi"})


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory beside the volume that nothing may touch."""
    victim = tmp_path / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "deep/file").write_text("kept")
    (victim / "a").write_text("kept")
    (victim / "a").chmod(0o600)
    victim.chmod(VICTIM)
    return victim


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volumes" / "v"
    volume.mkdir(parents=True)
    projection.write(volume, OLD)
    return volume


def is_untouched(victim: Path) -> bool:
    files = sorted(str(path.relative_to(victim)) for path in victim.rglob("*"))
    info = victim.stat()
    return (
        files == ["a", "deep", "deep/file"]
        and (victim / "a").read_text() == (victim / "deep/file").read_text() == "kept"
        and (info.st_gid, stat.S_IMODE(info.st_mode)) == (0, VICTIM)
        and stat.S_IMODE((victim / "a").stat().st_mode) == 0o600
    )


def is_written(volume: Path) -> bool:
    """Whether the volume holds :data:`NEW`, by links of its own and nothing else."""
    data = os.readlink(volume / "..data")
    return (
        sorted(os.listdir(volume)) == sorted(["..data", data, "a", "d"])
        and not (volume / data).is_symlink()
        and (os.readlink(volume / "a"), os.readlink(volume / "d")) == ("..data/a", "..data/d")
        and (volume / "a").read_bytes() == (volume / "d/e").read_bytes() == b"new"
        and stat.S_IMODE((volume / "d/e").stat().st_mode) == 0o640
    )


def link(volume: Path, name: str, target: str) -> None:
    """Put a link in the place of whatever is at ``name``."""
    if (volume / name).is_symlink():
        (volume / name).unlink()
    (volume / name).symlink_to(target)


@pytest.mark.parametrize(
    "target",
    ["{victim}", "{victim}/deep", "../../victim", "..", "../..", ".", "..data", "..data/d", "..none", "x" * 200],
)
def test_nothing_is_removed_where_the_link_to_the_data_leads(volume: Path, victim: Path, target: str) -> None:
    link(volume, "..data", target.format(victim=victim))
    projection.write(volume, NEW)
    assert is_untouched(victim)
    assert is_written(volume)


@pytest.mark.parametrize("name", ["..data", "..data_tmp", "a", "d", "..more"])
@pytest.mark.parametrize("kind", ["link", "pipe", "socket-like device", "file", "directory", "full directory"])
def test_what_is_in_the_way_is_replaced(volume: Path, victim: Path, name: str, kind: str) -> None:
    path = volume / name
    if path.is_symlink():
        path.unlink()
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "socket-like device": lambda: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
        "file": lambda: path.write_text("x"),
        "directory": path.mkdir,
        "full directory": lambda: (path / "one").mkdir(parents=True) or (path / "link").symlink_to(victim),
    }
    make[kind]()
    projection.write(volume, NEW)
    assert is_untouched(victim)
    assert is_written(volume)


@in_new_namespaces()
def test_a_directory_on_which_a_running_container_has_a_volume_stays(tmp_path: Path) -> None:
    """The kernel takes away a mount of another mount namespace with the directory that it is on."""
    volume = tmp_path / "v"
    volume.mkdir()
    projection.write(volume, OLD)
    (volume / "nested").mkdir()
    (volume / "file").touch()
    with subprocess.Popen(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            f"mount -t tmpfs none {volume}/nested && echo && read go && touch {volume}/nested/x",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as container:
        assert container.stdout is not None
        container.stdout.readline()
        projection.write(volume, NEW)
        container.communicate(b"\n")
    assert container.returncode == 0
    assert (os.listdir(volume / "nested"), (volume / "a").read_bytes()) == ([], b"new"), "written to the tmpfs"
    assert sorted(os.listdir(volume)) == sorted(["..data", os.readlink(volume / "..data"), "a", "d", "file", "nested"])


@pytest.mark.parametrize("wanted", [OLD, NEW], ids=["the same", "another"])
@pytest.mark.parametrize("kind", ["pipe", "link", "huge"])
def test_the_old_content_is_compared_without_opening_what_is_no_file(
    volume: Path, victim: Path, wanted: dict[str, File], kind: str
) -> None:
    file = volume / "..data" / "a"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(victim / "a")
    else:
        file.touch()
        os.truncate(file, 1 << 42)
    projection.write(volume, wanted)
    assert is_untouched(victim)
    assert (volume / "a").read_bytes() == wanted["a"].data
    assert not (volume / "..data/a").is_symlink()


def test_content_that_is_there_already_is_left_alone(volume: Path) -> None:
    before = os.readlink(volume / "..data"), (volume / "a").stat().st_ino
    projection.write(volume, OLD)
    assert (os.readlink(volume / "..data"), (volume / "a").stat().st_ino) == before
    (volume / "..data" / "more").touch()
    projection.write(volume, OLD)
    assert os.readlink(volume / "..data") != before[0]
    assert not (volume / "..data" / "more").exists()


@pytest.mark.parametrize("change", [lambda file: os.chmod(file, 0o666), lambda file: os.chown(file, 7, 7)])
def test_content_with_another_owner_or_mode_is_written_anew(volume: Path, change: Callable[[Path], None]) -> None:
    change(volume / "..data" / "a")
    projection.write(volume, OLD)
    info = (volume / "a").stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (0, 0, 0o644)


@contextmanager
def meanwhile(attack: Callable[[], None]) -> Iterator[None]:
    """Attack again and again from another thread."""
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            with suppress(OSError):
                attack()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_directories_that_are_exchanged_for_links_while_they_are_written(volume: Path, victim: Path) -> None:
    def attack() -> None:
        for name in os.listdir(volume):
            if name.startswith("..2"):
                for path in (volume / name, volume / name / "d"):
                    os.rename(path, f"{path}-moved")
                    os.symlink(victim, path)

    with meanwhile(attack):
        for number in range(300):
            file = File(data=str(number).encode(), mode=0o666)
            with suppress(OSError, PodkeepError):
                projection.write(volume, {"a": file, "d/e": file}, Owners(group=7))
    assert is_untouched(victim)
    projection.write(volume, NEW)
    assert is_written(volume)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_group_is_never_given_what_a_link_leads_to(tmp_path: Path, victim: Path, what: str) -> None:
    root = tmp_path / "root"
    (root / "directory").mkdir(parents=True)
    (root / "directory" / "a").touch()
    (root / "file").touch()
    (root / "link").symlink_to(victim / "a" if what == "file" else victim)
    with exchanging(root / what, root / "link"):
        for _ in range(2000):
            ownership.give(root, Owners(group=7), writable=True)
    assert is_untouched(victim)
    assert (victim / "a").stat().st_gid == (victim / "deep").stat().st_gid == 0


@pytest.mark.slow
def test_links_pipes_and_deep_trees_are_given_to_a_group(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe", 0o600)
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=fd)
        inner = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    ownership.give(tmp_path, Owners(group=7), writable=True)
    assert (os.fstat(fd).st_gid, stat.S_IMODE(os.fstat(fd).st_mode) & 0o2070) == (7, 0o2070)
    os.close(fd)
    assert ((tmp_path / "link").lstat().st_gid, Path("/etc").stat().st_gid) == (7, 0)
    info = (tmp_path / "pipe").stat()
    assert (info.st_gid, stat.S_IMODE(info.st_mode)) == (7, 0o660)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "device"])
def test_last_words_are_read_from_a_file_only(tmp_path: Path, victim: Path, kind: str) -> None:
    path = tmp_path / "words"
    if kind == "link":
        path.symlink_to(victim / "a")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    else:
        path.mkdir()
    assert termination_message(path, tmp_path / "none", fall_back=False) == ""
    assert termination_message(tmp_path / "none", path, fall_back=True) == ""


@pytest.mark.parametrize("what", ["container", "pod"])
def test_last_words_are_read_from_the_log_of_the_container_only(tmp_path: Path, what: str) -> None:
    log = ExchangedLog(tmp_path)
    log.exchange(what)
    message = termination_message(tmp_path / "none", log.path, fall_back=True)
    assert message.startswith("Error on reading termination message from logs: ")
    assert message.endswith("Too many levels of symbolic links")
    assert termination_message(tmp_path / "none", log.path, fall_back=False) == ""


def test_a_lease_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A container takes it on files that it has mounted: its termination log, its /etc/hosts."""
    directory, words = PodDir(path=tmp_path), tmp_path / "words"
    words.write_text("bye")
    write_hosts(directory, "old")
    with leased(words):
        assert termination_message(words, words, fall_back=True) == ""
    with directory.hosts.open() as held:
        write_hosts(directory, "new")
        assert held.read() == "new", "the very file that containers have mounted"
    with leased(directory.hosts):
        write_hosts(directory, "newer")
    assert (directory.hosts.read_text(), directory.hosts.stat().st_mode & 0o777) == ("newer", 0o644)


def test_a_file_that_a_host_path_asks_for_is_not_made_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises((OSError, PodkeepError)):
        host_path.check(HostPathVolumeSource(path=str(tmp_path / "link"), type="FileOrCreate"))
    assert not (tmp_path / "made").exists()


def test_directories_of_a_host_path_are_made_behind_links_that_lead_somewhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    made = host_path.check(HostPathVolumeSource(path=f"{tmp_path}/link/a/b", type="DirectoryOrCreate"))
    assert made == tmp_path / "link/a/b"
    assert stat.S_IMODE((tmp_path / "run/a/b").stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["link to nothing", "link to what is not there yet", "loop", "file"])
@pytest.mark.parametrize("below", ["", "/x/y"])
def test_no_directory_of_a_host_path_is_made_where_a_link_leads_to_nothing(
    tmp_path: Path, kind: str, below: str
) -> None:
    top = tmp_path / "top"
    targets = {"link to nothing": "nothing", "link to what is not there yet": "../victim/a/b", "loop": "way"}
    top.mkdir()
    if kind == "file":
        (top / "way").touch()
    else:
        (top / "way").symlink_to(targets[kind])
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises((OSError, FailedPrecondition)) as caught:
        host_path.check(HostPathVolumeSource(path=f"{top}/way{below}", type="DirectoryOrCreate"))
    if kind.startswith("link"):
        assert str(caught.value) == f"{top}/way is in the way: it is no directory, or a symbolic link"
    assert (os.listdir(tmp_path), os.listdir(top)) == (["top"], ["way"])
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.slow
def test_a_host_path_of_very_many_directories_is_made(tmp_path: Path) -> None:
    path = f"{tmp_path}/top" + "/d" * 1500
    assert host_path.check(HostPathVolumeSource(path=path, type="DirectoryOrCreate")).is_dir()
    remove_tree(tmp_path / "top")


@in_new_namespaces()
def test_a_sub_path_is_inside_whatever_is_exchanged_meanwhile(tmp_path: Path, victim: Path) -> None:
    volume, target = tmp_path / "volume", tmp_path / "pin"
    (volume / "dir").mkdir(parents=True)
    (volume / "dir/inside").touch()
    (volume / "link").symlink_to(victim)
    mounted = set()
    with exchanging(volume / "dir", volume / "link"):
        # On a busy machine it may be a link each time of some hundred.
        for number in itertools.takewhile(lambda number: number < 300 or not mounted, itertools.count()):
            with suppress(PodkeepError, FileExistsError):
                mounted.add(tuple(os.listdir(sub_path.pin(volume, "dir", target))))
                sub_path.pin(volume, f"dir/made-{number}", tmp_path / "made")
            for path in (target, tmp_path / "made"):
                mounts.unmount(path)
    assert is_untouched(victim)
    assert mounted
    assert all("inside" in names for names in mounted)


@pytest.mark.parametrize("kind", ["local", "hostPath"])
def test_a_persistent_volume_in_another_one_is_no_way_to_a_directory_of_the_node(
    tmp_path: Path, victim: Path, kind: str
) -> None:
    """A pod with the outer volume puts a link where the inner one is."""
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "inner").symlink_to(victim)
    for path in (outer / "inner", outer / "inner/deep"):
        pod, sources = claiming(kind, path, fsGroup=4444)
        with pytest.raises(FailedPrecondition, match="there is a symbolic link in the path"):
            set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources, MAPPED)
    for path in (victim, victim / "deep", victim / "a"):
        assert (path.stat().st_uid, path.stat().st_gid) == (0, 0)
    assert stat.S_IMODE(victim.stat().st_mode) == VICTIM


@pytest.mark.slow
@in_new_namespaces()
@pytest.mark.parametrize("kind", ["local", "hostPath"])
def test_a_persistent_volume_that_is_exchanged_for_a_link_stays_what_it_was(
    tmp_path: Path, victim: Path, kind: str
) -> None:
    inner, link, directory = tmp_path / "outer/inner", tmp_path / "outer/link", PodDir(path=tmp_path / "pods" / "u1")
    (inner / "deep").mkdir(parents=True)
    (inner / "deep/file").write_text("its own")
    link.symlink_to(victim)
    pod, sources = claiming(kind, inner, fsGroup=4444)
    volumes = set_up(pod, directory, sources, MAPPED)
    (whole,) = pod.spec.containers
    (below,) = pod_with([], also=[{"name": "v", "mountPath": "/v", "subPath": "deep"}]).spec.containers
    seen = set()
    with exchanging(inner, link):
        for _ in range(200):
            for container, file in ((whole, "deep/file"), (below, "file")):
                with suppress(FailedPrecondition):
                    source = container_mounts(container, 0, directory, volumes, {})[0].host_path
                    assert source is not None
                    seen.add((source / file).read_text())
    assert seen == {"its own"}


def test_a_block_device_is_one_of_the_machines_devices(tmp_path: Path) -> None:
    """The runtime opens it by its path: elsewhere somebody may exchange it."""
    with loop_device(tmp_path) as disk:
        (tmp_path / "link").symlink_to(disk.path)
        os.mknod(tmp_path / "node", stat.S_IFBLK | 0o600, Path(disk.path).stat().st_rdev)
        for name in ("link", "node"):
            with pytest.raises(FailedPrecondition, match="is not below /dev"):
                host_path.check_local(str(tmp_path / name), block=True)
        assert host_path.check_local(str(disk.path), block=True) == Path(disk.path)
    by_name = Path("/dev/stdin")  # a link
    with pytest.raises(FailedPrecondition, match="only directory and block device are supported"):
        host_path.check_local(str(by_name), block=True)


@in_new_namespaces()
def test_a_whole_volume_has_what_is_mounted_in_it_now(tmp_path: Path) -> None:
    """Administrators mount and unmount disks in it while the pod runs: its next container has what is there then."""
    disk, directory = tmp_path / "disk", PodDir(path=tmp_path / "pods" / "u1")
    (disk / "sub").mkdir(parents=True)
    mounts.bind(tmp_path, tmp_path)
    mounts.set_propagation(tmp_path, Propagation.SHARED)
    pod, sources = claiming("local", disk)
    volumes = set_up(pod, directory, sources, MAPPED)
    (container,) = pod.spec.containers
    for is_mounted in (False, True, False):
        if is_mounted:
            mounts.tmpfs(disk / "sub", "size=64k")
            (disk / "sub/new").touch()
        elif (disk / "sub/new").exists():
            mounts.unmount(disk / "sub")
        source = container_mounts(container, 0, directory, volumes, {})[0].host_path
        assert source is not None
        assert (source / "sub/new").exists() is is_mounted
