"""Walking and reading what somebody hostile fills."""

from __future__ import annotations

import errno
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernel.isolation import in_new_namespaces
from podkeep.base.errors import FailedPrecondition, KernelCallError, ResourceExhausted
from podkeep.kernel import libc
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.files.removal import remove_entry, remove_tree
from podkeep.kernel.mount import mounts
from support import unanswering
from support.beside import exchanging, leased
from support.opening import never_opened


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "tree").mkdir()
    fd = openat.open_directory(tmp_path / "tree")
    yield fd
    os.close(fd)
    remove_tree(tmp_path / "tree")


def go_down(fd: int, name: str, times: int) -> int:
    """Make directories inside each other and return a descriptor of the last one."""
    fd = os.dup(fd)
    for _ in range(times):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    return fd


def test_a_walk_comes_to_everything_once_and_to_directories_first(root: int, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/b/file").touch()
    (tree / "link").symlink_to("/")
    os.mkfifo(tree / "pipe")
    (tree / "odd\n\udcff").mkdir()
    paths = [found.path for found in openat.walk(root)]
    assert sorted(paths) == sorted(["a", "a/b", "a/b/c", "a/b/file", "link", "pipe", "odd\n\udcff"])
    assert [paths.index(path) for path in ("a", "a/b", "a/b/c")] == sorted(
        paths.index(path) for path in ("a", "a/b", "a/b/c")
    )


@in_new_namespaces()
def test_a_walk_enters_other_mounts_only_if_told(tmp_path: Path) -> None:
    (tmp_path / "tree/mounted").mkdir(parents=True)
    mounts.tmpfs(tmp_path / "tree/mounted", "mode=755")
    (tmp_path / "tree/mounted/file").touch()
    with openat.closing(openat.open_directory(tmp_path / "tree")) as root:
        assert [found.path for found in openat.walk(root)] == []
        assert [found.path for found in openat.walk(root, one_mount=False)] == ["mounted", "mounted/file"]


@in_new_namespaces()
def test_a_walk_asks_nothing_of_what_is_mounted_in_a_tree(tmp_path: Path) -> None:
    """A container mounts it there (Bidirectional); the server of a FUSE need not answer, and may have ended."""
    for name in ("hanging", "dead", "file"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    hanging = unanswering.Hanging(tmp_path / "tree/hanging")
    with unanswering.dead(tmp_path / "tree/dead"), openat.closing(openat.open_directory(tmp_path / "tree")) as root:
        assert hanging.unasked(lambda: [found.path for found in openat.walk(root)]) == ["file"]


def test_what_a_user_namespace_has_mounted_and_refuses_root_is_left_out(open_dir: Path, userns: int) -> None:
    tree, device = open_dir / "tree", open_dir / "fuse"
    (tree / "mounted").mkdir(parents=True)
    (tree / "file").touch()
    os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    device.chmod(0o666)
    with unanswering.refusing(tree / "mounted", userns, device), openat.closing(openat.open_directory(tree)) as root:
        with pytest.raises(PermissionError):
            os.stat(tree / "mounted")
        assert [found.path for found in openat.walk(root)] == ["file"]
        assert tree_size.open_volume(tree / "mounted") is None


def test_a_refusal_names_the_path_and_no_descriptor(tmp_path: Path) -> None:
    """The text is that of an event, which is counted only while it reads the same."""
    (tmp_path / "x").write_text("")
    calls: tuple[Callable[[int], object], ...] = (
        lambda directory: openat.openat2(directory, b"x/y", os.O_PATH, openat.CONFINED),
        lambda directory: libc.look(directory, b"x/y"),
        lambda directory: libc.is_mount_root(directory, b"x/y"),
    )
    said = set()
    with ExitStack() as stack:
        for _ in range(2):
            directory = stack.enter_context(openat.closing(openat.open_directory(tmp_path)))
            for call in calls:
                with pytest.raises(KernelCallError, match=r"x/y.*: ENOTDIR") as caught:
                    call(directory)
                said.add(caught.value.message)
    assert len(said) == 3


def test_what_the_kernel_knows_of_a_file_is_what_stat_tells(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    os.link(tmp_path / "file", tmp_path / "same")
    os.utime(tmp_path / "file", ns=(1_234_567_890_123_456_789, -1_234_567_890_123_456_789))
    (tmp_path / "link").symlink_to("file")
    os.mknod(tmp_path / "device", stat.S_IFCHR | 0o640, os.makedev(300, 70_000))
    with openat.closing(openat.open_directory(tmp_path)) as root:
        for name in ("file", "link", "device"):
            wanted = os.stat(name, dir_fd=root, follow_symlinks=False)
            found = libc.look(root, name.encode())
            assert not found.mounted
            for field in (field for field in dir(wanted) if field.startswith("st_")):
                assert getattr(found.status, field) == pytest.approx(getattr(wanted, field), abs=1e-6), field
        assert libc.look(root, b"link", follow=True).status.st_ino == (tmp_path / "file").stat().st_ino
        assert libc.look(root, b"").status.st_ino == tmp_path.stat().st_ino
        with pytest.raises(KernelCallError, match="No such file"):
            libc.look(root, b"missing")


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("d" * 255, 450)])
@pytest.mark.slow
def test_a_deep_tree_takes_few_descriptors_and_little_memory(root: int, name: str, depth: int) -> None:
    """With as many directories beside each other at the bottom, each of whose paths is long."""
    with openat.closing(go_down(root, name, depth)) as bottom:
        for number in range(5000):
            os.mkdir(f"{number}", dir_fd=bottom)
    before, most, entries = len(os.listdir("/proc/self/fd")), 0, 0
    tracemalloc.start()
    for _ in openat.walk(root):
        entries += 1
        if entries % 500 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert entries == depth + 5000
    assert most - before < 70
    assert peak < 32 << 20
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d", "d" * 255])
def test_a_tree_that_is_too_deep_ends_a_walk(root: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat, "MAX_DEPTH", 550)
    os.close(go_down(root, name, 600))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ResourceExhausted, match="inside each other"):
        list(openat.walk(root))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_with_too_many_entries_ends_a_walk(root: int) -> None:
    for number in range(12):
        os.mkdir(f"{number}", dir_fd=root)
    assert len(list(openat.walk(root, max_entries=12))) == 12
    with pytest.raises(ResourceExhausted, match="more than 11"):
        list(openat.walk(root, max_entries=11))


def test_a_walk_that_is_given_up_leaves_no_descriptor(root: int) -> None:
    os.close(go_down(root, "d" * 255, 100))
    before = len(os.listdir("/proc/self/fd"))
    walk = openat.walk(root)
    for _ in range(50):
        next(walk)
    assert len(os.listdir("/proc/self/fd")) > before
    walk.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_walk_never_leaves_by_a_link_that_is_put_in_the_place_of_a_directory(root: int, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/inside").touch()
    (tmp_path / "outside/b").mkdir(parents=True)
    (tmp_path / "outside/b/secret").touch()
    (tree / "link").symlink_to(tmp_path / "outside")
    with exchanging(tree / "a", tree / "link"):
        for _ in range(3000):
            assert {found.name for found in openat.walk(root)} <= {"a", "b", "link", "inside"}


@pytest.mark.parametrize("kind", ["pipe", "link", "link to nothing", "directory", "device", "nothing"])
def test_only_regular_files_are_opened(root: int, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tree" / "x"
    (tmp_path / "file").write_text("outside")
    {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "file"),
        "link to nothing": lambda: path.symlink_to("nothing"),
        "directory": path.mkdir,
        "device": lambda: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
        "nothing": lambda: None,
    }[kind]()
    assert openat.open_regular(root, "x") is None
    assert openat.read_regular(root, b"x", 10) is None
    assert openat.open_beside(path) is None


def test_below_a_directory_of_the_machine_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "machine").symlink_to("real")
    above = tmp_path / "machine"
    with pytest.raises(FileNotFoundError):
        openat.open_below(above, ["a", "b"])
    with openat.closing(openat.open_below(above, ["a", "b"], make=True)) as fd:
        assert os.path.samestat(os.fstat(fd), (tmp_path / "real/a/b").stat())
    with openat.closing(openat.open_below(above, [])) as fd:
        assert os.path.samestat(os.fstat(fd), (tmp_path / "real").stat())
    (tmp_path / "real/link").symlink_to("a")
    (tmp_path / "real/file").touch()
    within = len(os.listdir("/proc/self/fd"))
    for names in (["link"], ["link", "b"], ["a", "..", "a"], ["file"], ["file", "b"]):
        for make in (False, True):
            with pytest.raises(FailedPrecondition, match="cannot be entered"):
                openat.open_below(above, names, make=make)
    assert len(os.listdir("/proc/self/fd")) == within


def test_a_regular_file_is_read_as_far_as_told(root: int, tmp_path: Path) -> None:
    (tmp_path / "tree/x").write_bytes(b"abcdef")
    (tmp_path / "tree/absolute").symlink_to("/x")
    assert openat.read_regular(root, "x", 4) == b"abcd"
    assert openat.read_regular(root, "x", 400) == b"abcdef"
    assert openat.read_regular(root, "absolute", 400) is None
    assert openat.read_regular(root, "absolute", 400, rules=openat.INSIDE) == b"abcdef"
    assert openat.read_regular(root, "../tree/x", 400) is None


def test_nobody_waits_for_a_process_that_has_a_lease(root: int, tmp_path: Path) -> None:
    path = tmp_path / "tree/x"
    path.write_bytes(b"abcdef")
    descriptors = len(os.listdir("/proc/self/fd"))
    with leased(path):
        within = len(os.listdir("/proc/self/fd"))
        with pytest.raises(BlockingIOError, match="a process has a lease on it"):
            openat.open_regular(root, "x")
        assert openat.read_regular(root, "x", 10) is None
        assert openat.open_beside(path) is None
        with openat.closing(openat.open_named(path)) as fd, pytest.raises(BlockingIOError):
            openat.reopen(fd, os.O_WRONLY)
        assert len(os.listdir("/proc/self/fd")) == within
    assert openat.read_regular(root, "x", 10) == b"abcdef"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_is_changed_that_was_opened_and_not_what_has_its_name_now(root: int, tmp_path: Path) -> None:
    path, victim = tmp_path / "tree" / "x", tmp_path / "victim"
    path.touch()
    victim.touch(mode=0o600)
    with openat.closing(openat.openat2(root, b"x", os.O_PATH, openat.CONFINED)) as fd:
        path.rename(tmp_path / "tree" / "moved")
        path.symlink_to(victim)
        openat.change(fd, uid=7, gid=8, mode=0o4751)
    info = (tmp_path / "tree" / "moved").stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (7, 8, 0o4751)
    assert (victim.stat().st_uid, stat.S_IMODE(victim.stat().st_mode)) == (0, 0o600)


@pytest.mark.slow
def test_a_path_that_somebody_names_is_resolved_as_the_kernel_does_it(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "to nothing").symlink_to("nothing")
    (tmp_path / "0").symlink_to("a/b")
    for number in range(1200):
        (tmp_path / f"{number + 1}").symlink_to(f"{number}")
    for path in ("a/b", "link/b", "link/../link/b/", "39"):
        assert openat.resolved(tmp_path / path) == openat.resolved(f"{tmp_path}/{path}") == f"{tmp_path}/a/b"
    assert openat.resolved(f"{tmp_path}/link/file/") == f"{tmp_path}/a/file"
    assert openat.resolved("/") == "/"
    numbers = {"none": errno.ENOENT, "to nothing": errno.ENOENT, "a/file/x": errno.ENOTDIR, "1200": errno.ELOOP}
    for path, number in numbers.items():
        with pytest.raises(OSError) as caught:
            openat.resolved(tmp_path / path)
        assert caught.value.errno == number


@pytest.mark.parametrize("leads", ["to a file that was removed", "to no file"])
def test_what_has_no_path_is_not_there(tmp_path: Path, leads: str) -> None:
    reading, writing = os.pipe()
    path = tmp_path / "file"
    path.touch()
    with openat.closing(reading), openat.closing(writing), openat.closing(openat.open_named(path)) as held:
        path.unlink()
        fd = reading if leads == "to no file" else held
        with pytest.raises(FileNotFoundError):
            openat.resolved(f"/proc/self/fd/{fd}")


def test_of_what_somebody_names_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    fd = openat.open_named_regular(tmp_path / "link")
    assert fd is not None
    with openat.closing(fd):
        assert openat.read_bytes(fd, 9) == b"x"
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("device")
    with never_opened(tmp_path / "device"):
        assert openat.open_named_regular(tmp_path / "link") is None
    with pytest.raises(FileNotFoundError):
        openat.open_named_regular(tmp_path / "none")


def test_a_walk_passes_directories_by_their_names(root: int, tmp_path: Path) -> None:
    (tmp_path / "tree/a/shm/x").mkdir(parents=True)
    (tmp_path / "tree/shm/x").mkdir(parents=True)
    assert sorted(found.path for found in openat.walk(root, passed={"shm"})) == ["a", "a/shm", "shm"]


def test_a_path_without_links_is_refused_once_it_has_one(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    os.close(openat.open_resolved(tmp_path / "a/b"))
    (tmp_path / "a").rename(tmp_path / "moved")
    (tmp_path / "a").symlink_to(tmp_path / "moved")
    with pytest.raises(FailedPrecondition, match="a symbolic link has been put there"):
        openat.open_resolved(tmp_path / "a/b")
    with pytest.raises(KernelCallError) as caught:
        openat.open_resolved(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT


def test_a_removal_ends_though_somebody_goes_on_making_files(root: int, tmp_path: Path) -> None:
    (tmp_path / "tree/x/y").mkdir(parents=True)
    for number in range(20):
        (tmp_path / f"tree/x/y/{number}").touch()
    with pytest.raises(ResourceExhausted, match="more than 10 entries"):
        remove_entry(root, "x", most=10)
    remove_entry(root, "x", most=30)
    assert os.listdir(root) == []
