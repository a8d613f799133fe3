"""What the executors look up in images and on the machine, and which namespaces a sandbox has."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest
from runtime_values import IDMAP, sandbox_config

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.lifecycle.container_executor import _read_inside, _target_namespace, exit_code_of
from podkeep.runtime.lifecycle.sandbox_executor import namespace_kinds
from podkeep.runtime.model.records import Device, NamespaceMode, NamespaceOptions
from podkeep.runtime.oci.confinement import read_profile
from podkeep.runtime.oci.devices import machine_devices, requested
from support.descriptors import open_descriptors
from support.opening import never_opened

NODE, CONTAINER = NamespaceMode.NODE, NamespaceMode.CONTAINER
NET, UTS, IPC, PID, USER = (NamespaceKind[name] for name in ("NET", "UTS", "IPC", "PID", "USER"))


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (NamespaceOptions(), {NET, UTS, IPC, PID}),
        (NamespaceOptions(pid=CONTAINER), {NET, UTS, IPC}),
        (NamespaceOptions(pid=CONTAINER, userns=IDMAP), {NET, UTS, IPC, USER}),
        (NamespaceOptions(network=NODE, pid=CONTAINER), {IPC}),
        (NamespaceOptions(network=NODE, ipc=NODE, pid=NODE), set()),
    ],
)
def test_namespaces_of_a_sandbox(options: NamespaceOptions, kinds: set[NamespaceKind]) -> None:
    assert namespace_kinds(sandbox_config(namespaces=options)) == kinds


def test_pid_namespace_of_a_target_is_held() -> None:
    descriptors = len(open_descriptors())
    with ExitStack() as held:
        path = _target_namespace(procfs.identify(os.getpid()), "target", held)
        assert os.stat(path).st_ino == os.stat("/proc/self/ns/pid").st_ino
        assert not path.endswith("/ns/pid")
    assert len(open_descriptors()) == descriptors


def test_target_whose_id_another_process_has_by_now() -> None:
    mine, descriptors = procfs.identify(os.getpid()), len(open_descriptors())
    for gone in (ProcessId(pid=mine.pid, start_time=mine.start_time - 1), ProcessId(pid=2**22 + 1, start_time=1), None):
        with ExitStack() as held, pytest.raises(FailedPrecondition, match="target has ended"):
            _target_namespace(gone, "target", held)
    assert len(open_descriptors()) == descriptors


def read(root: Path, name: bytes) -> str:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return _read_inside(fd, name)
    finally:
        os.close(fd)


def test_a_file_of_an_image_is_looked_for_inside_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "real").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "secret").write_text("not outside")
    (root / "etc/plain").write_bytes(b"a\xff")
    (root / "etc/absolute").symlink_to("/real")
    (root / "etc/up").symlink_to("../../../secret")
    (root / "etc/proc").symlink_to("/proc/self/root/etc/passwd")
    (root / "etc/loop").symlink_to("loop")
    (root / "etc/directory").mkdir()
    os.mkfifo(root / "etc/pipe")
    descriptors = len(open_descriptors())
    assert read(root, b"etc/plain") == "a\N{REPLACEMENT CHARACTER}"
    assert read(root, b"etc/absolute") == "inside"
    assert read(root, b"etc/up") == "not outside"
    for name in (b"etc/proc", b"etc/loop", b"etc/directory", b"etc/pipe", b"etc/missing"):
        assert read(root, name) == ""
    assert len(open_descriptors()) == descriptors


def test_a_huge_file_of_an_image_is_read_in_part(tmp_path: Path) -> None:
    with (tmp_path / "passwd").open("wb") as file:
        file.truncate(1 << 40)
    assert len(read(tmp_path, b"passwd")) == 1 << 20


def test_the_machines_devices() -> None:
    devices = {device["path"]: device for device in machine_devices()}
    assert (devices["/dev/null"]["type"], devices["/dev/null"]["major"], devices["/dev/null"]["minor"]) == ("c", 1, 3)
    assert not [path for path in devices if path.startswith(("/dev/pts/", "/dev/shm/")) or path == "/dev/console"]


def device(path: Path) -> Device:
    return Device(container_path="/dev/x", host_path=str(path), permissions="rw")


def test_a_directory_of_devices_is_walked_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/shm").mkdir()
    for name in ("d/one", "d/e/two", "d/console", "d/shm/passed"):
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o640, os.makedev(1, 3))
    (tmp_path / "d/file").touch()
    (tmp_path / "d/link").symlink_to("/dev")
    (tmp_path / "link").symlink_to("d")
    found = requested((device(tmp_path / "link"),))
    assert [(node["path"], node["source"]) for node in found] == [
        ("/dev/x/e/two", f"{tmp_path}/d/e/two"),
        ("/dev/x/one", f"{tmp_path}/d/one"),
    ]
    assert [(node["type"], node["major"], node["minor"], node["fileMode"]) for node in found] == [
        ("c", 1, 3, 0o640)
    ] * 2


@pytest.mark.slow
def test_devices_behind_many_links_and_in_many_directories(tmp_path: Path) -> None:
    for number in range(1200):
        (tmp_path / f"{number + 1}").symlink_to(str(number))
    with pytest.raises(InvalidArgument, match="Too many levels of symbolic links"):
        requested((device(tmp_path / "1200"),))
    (tmp_path / "deep").mkdir()
    fd = os.open(tmp_path / "deep", os.O_PATH)
    for _ in range(1200):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = inner
    with pytest.raises(InvalidArgument, match="has no devices in it"):
        requested((device(tmp_path / "deep"),))
    os.close(fd)
    remove_tree(tmp_path / "deep")


@pytest.mark.slow
def test_a_directory_that_is_none_of_devices_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Of / a thread reads for minutes, and its caller has gone by then."""
    for number in range(1 << 16):
        os.mknod(tmp_path / str(number))
    with pytest.raises(InvalidArgument, match="has no devices in it"):
        requested((device(tmp_path),))
    (tmp_path / "one").touch()
    with pytest.raises(InvalidArgument, match="more in it than one of devices has"):
        requested((device(tmp_path),))


@pytest.mark.parametrize(
    ("name", "why"), [("none", "does not exist"), ("file/x", "does not exist"), ("file", "is not a device node")]
)
def test_what_is_no_device_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match=f"device {tmp_path}/{name} {why}"):
        requested((device(tmp_path / name),))


def test_seccomp_profiles_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(NotFound, match=r"profile\.json"):
        read_profile(path)
    for text in (b"{", b"\xff"):
        path.write_bytes(text)
        with pytest.raises(InvalidArgument, match=r"profile\.json is not JSON"):
            read_profile(path)
    for text in (b"[]", b"{}", b"5"):
        path.write_bytes(text)
        with pytest.raises(InvalidArgument, match="defaultAction"):
            read_profile(path)
    path.write_text('{"defaultAction": "SCMP_ACT_LOG"}')
    assert read_profile(path) == {"defaultAction": "SCMP_ACT_LOG"}


@pytest.mark.parametrize("kind", ["device", "pipe", "directory"])
def test_a_seccomp_profile_that_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "profile.json"
    if kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    else:
        path.mkdir() if kind == "directory" else os.mkfifo(path)
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link"):
        with never_opened(path), pytest.raises(InvalidArgument, match=f"{name} is not a regular file"):
            read_profile(name)


def test_exit_codes_that_conmon_noted(tmp_path: Path) -> None:
    path = tmp_path / "exit"
    assert exit_code_of(path) is None
    for text in ("", "x"):
        path.write_text(text)
        assert exit_code_of(path) is None
    path.write_text("137")
    assert exit_code_of(path) == (137, path.stat().st_mtime_ns)
