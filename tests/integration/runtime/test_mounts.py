"""Mounts over CRI: read-only in depth, propagation, symbolic links on both sides, what replaces the runtime's own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, Unavailable
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from support import unanswering
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import busybox_layout, directory, symlink
from support.mortal import Mortal
from support.registry import Registry

PRIVATE = api.PROPAGATION_PRIVATE
TO_CONTAINER = api.PROPAGATION_HOST_TO_CONTAINER
BOTH_WAYS = api.PROPAGATION_BIDIRECTIONAL
WHERE = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])


@pytest.fixture
def volume(open_directory: Path) -> Iterator[Path]:
    """A directory with a file, open to everybody, and another one mounted below it.

    Of the same file system, which can be idmapped: a tmpfs cannot be before Linux 6.3.
    """
    path = open_directory / os.urandom(4).hex()
    path.mkdir()
    path.chmod(0o777)
    (path / "file").write_text("of the volume\n")
    (path / "below").mkdir()
    other = open_directory / f"{path.name}-below"
    other.mkdir()
    other.chmod(0o777)
    mounts.bind(other, path / "below")
    yield path
    mounts.unmount(path / "below")


def mapped(user: tuple[int, int, int] | None) -> tuple[tuple[int, int, int], ...]:
    return () if user is None else (user,)


def launch(pods: Pods, user: tuple[int, int, int] | None, *volumes: api.Mount, **fields: object) -> str:
    return pods.launch(pods.run(pod(options=namespaces(user=user))), mounts=volumes, **fields)  # type: ignore[arg-type]


# read-only


@pytest.mark.requirement("U69")
@WHERE
def test_recursive_read_only(pods: Pods, volume: Path, user: tuple[int, int, int] | None) -> None:
    mount = bind(volume, "/volume", *mapped(user), readonly=True, recursive_read_only=True)
    container = launch(pods, user, mount)
    for path in ("/volume/new", "/volume/below/new"):
        assert b"Read-only file system" in pods.exec(container, "touch", path).stderr
    assert pods.read(container, "cat /volume/file") == "of the volume"
    remount = "mount -o remount,rw,bind /volume/below; touch /volume/below/new"
    assert b"Read-only file system" in pods.exec(container, "sh", "-c", remount).stderr
    (echoed,) = pods.status(container).mounts
    assert (echoed.readonly, echoed.recursive_read_only) == (True, True)
    (volume / "below/of-the-machine").touch()


def test_recursive_read_only_without_mappings_in_a_user_namespace(pods: Pods, volume: Path) -> None:
    container = launch(pods, BLOCK, bind(volume, "/volume", readonly=True, recursive_read_only=True))
    assert b"Read-only file system" in pods.exec(container, "touch", "/volume/below/new").stderr
    assert pods.read(container, "cat /volume/file") == "of the volume"


@WHERE
def test_read_only_leaves_what_is_mounted_below_writable(
    pods: Pods, volume: Path, user: tuple[int, int, int] | None
) -> None:
    """That is what CRI says of a mount that is not recursively read-only."""
    container = launch(pods, user, bind(volume, "/volume", *mapped(user), readonly=True))
    assert b"Read-only file system" in pods.exec(container, "touch", "/volume/new").stderr
    assert pods.exec(container, "touch", "/volume/below/new").exit_code == 0
    assert (volume / "below/new").exists()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"readonly": False}, "not readonly"),
        ({"readonly": True, "propagation": TO_CONTAINER}, "PROPAGATION_PRIVATE"),
        ({"readonly": True, "propagation": BOTH_WAYS}, "PROPAGATION_PRIVATE"),
    ],
)
def test_recursive_read_only_and_what_contradicts_it(
    pods: Pods, volume: Path, fields: dict[str, bool], told: str
) -> None:
    mount = bind(volume, "/volume", recursive_read_only=True, **fields)
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, mounts=[mount]), InvalidArgument)
    assert "config.mounts[0].recursive_read_only" in message
    assert told in message
    assert pods.containers() == []


@pytest.mark.parametrize("name", ["container.staged", "container.locked", "container.created"])
@pytest.mark.parametrize("how", ["kill", "error"])
def test_copies_are_gone_after_a_failure(mortal: Mortal, volume: Path, name: str, how: str) -> None:
    """And with the copies nothing of the volume is."""
    pods = mortal.start(failpoints=f"{name}={how}")
    before = mortal.daemon.resources()
    asked = [
        bind(volume, "/r", readonly=True, recursive_read_only=True),
        bind(volume, "/m", BLOCK, propagation=TO_CONTAINER),
        bind(volume / "file", "/file", BLOCK, readonly=True),
    ]
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    error_of(lambda: pods.create(sandbox, mounts=asked), Unavailable if how == "kill" else Internal)
    assert mortal.daemon.process is not None
    if how == "kill":
        mortal.daemon.process.wait(timeout=60)
        pods = mortal.start()
    assert pods.containers() == []
    pods.remove(sandbox)
    assert mortal.daemon.resources() == before
    assert mountinfo.is_mount_point(volume / "below")
    assert (volume / "file").read_text() == "of the volume\n"


def test_handlers_say_that_they_can(pods: Pods) -> None:
    handlers = pods.call("Status", api.StatusRequest()).runtime_handlers
    assert {item.name: item.features.recursive_read_only_mounts for item in handlers} == {"": True, "crun": True}


# propagation


@WHERE
@pytest.mark.parametrize(("propagation", "seen"), [(PRIVATE, False), (TO_CONTAINER, True), (BOTH_WAYS, True)])
def test_mounts_of_the_machine_reach_who_asks(
    pods: Pods, open_directory: Path, user: tuple[int, int, int] | None, propagation: api.MountPropagation, seen: bool
) -> None:
    volume = open_directory / os.urandom(4).hex()
    (volume / "later").mkdir(parents=True)
    container = launch(pods, user, bind(volume, "/volume", *mapped(user), propagation=propagation))
    mounts.tmpfs(volume / "later", "size=1m")
    try:
        (volume / "later/file").touch()
        assert (pods.read(container, "ls /volume/later") == "file") is seen
    finally:
        mounts.unmount(volume / "later")
    assert pods.read(container, "ls /volume/later") == ""


@pytest.mark.parametrize("propagation", [TO_CONTAINER, BOTH_WAYS])
def test_mount_that_passes_nothing_on_is_named(
    daemon: Daemon, pods: Pods, open_directory: Path, propagation: api.MountPropagation
) -> None:
    assert daemon.process is not None
    inside = ("nsenter", "--target", str(daemon.process.pid), "--mount")
    volume = open_directory / os.urandom(4).hex()
    volume.mkdir()
    subprocess.run([*inside, "mount", "-t", "tmpfs", "none", volume], check=True)
    subprocess.run([*inside, "mount", "--make-private", volume], check=True)
    try:
        sandbox, mount = pods.run(), bind(volume, "/volume", propagation=propagation)
        message = error_of(lambda: pods.create(sandbox, mounts=[mount]), FailedPrecondition)
        kind = "shared" if propagation == BOTH_WAYS else "shared or slave"
        assert f"path '{volume}' is mounted on '{volume}' but it is not a {kind} mount" in message
        private = pods.launch(sandbox, mounts=[bind(volume, "/volume")])
        assert pods.read(private, "grep -c ' /volume ' /proc/mounts") == "1"
    finally:
        subprocess.run([*inside, "umount", "-l", volume], check=True)


# paths


def test_symbolic_link_on_the_machine_is_followed_once(pods: Pods, volume: Path) -> None:
    link = volume.parent / f"{volume.name}-link"
    link.symlink_to(volume)
    container = launch(pods, None, bind(link, "/by-link"), bind(link / "file", "/file"))
    link.unlink()
    assert pods.read(container, "cat /by-link/file /file") == "of the volume\nof the volume"
    assert [item.host_path for item in pods.status(container).mounts] == [str(volume), str(volume / "file")]


@pytest.mark.parametrize("kind", ["missing", "dangling", "loop", "below a file"])
def test_host_path_that_is_not_there(pods: Pods, volume: Path, kind: str) -> None:
    (volume / "dangling").symlink_to("nowhere")
    (volume / "loop").symlink_to("loop")
    path = volume / ("file/x" if kind == "below a file" else kind)
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, mounts=[bind(path, "/volume")]), InvalidArgument)
    assert "config.mounts[0].host_path" in message
    assert not (volume / "missing").exists()
    assert pods.containers() == []


def test_a_host_path_that_hangs_keeps_no_other_request_waiting(pods: Pods, open_directory: Path) -> None:
    path = open_directory / os.urandom(4).hex()
    path.mkdir()
    sandbox, stub, hanging = pods.run(), pods._client.runtime, unanswering.Hanging(path)
    request = pods.create_request(sandbox, mounts=[bind(path / "x", "/volume")])

    async def go() -> None:
        creating = asyncio.ensure_future(stub.CreateContainer(request))
        try:
            await hanging.asked()
            await stub.Status(api.StatusRequest(), timeout=60)
            assert not creating.done()
        finally:
            hanging.close()
        with pytest.raises(InvalidArgument, match=r"config\.mounts\[0\]\.host_path"):
            await creating

    pods.wait(go())
    assert pods.containers() == []


@WHERE
def test_mount_points_are_made(pods: Pods, volume: Path, user: tuple[int, int, int] | None) -> None:
    directory_mount = bind(volume, "/no/such/directory", *mapped(user))
    file_mount = bind(volume / "file", "/no/such/file.txt", *mapped(user))
    over_file = bind(volume / "file", "/etc/os-release", *mapped(user))
    container = launch(pods, user, directory_mount, file_mount, over_file)
    read = pods.read(container, "cat /no/such/file.txt /no/such/directory/file /etc/os-release")
    assert read.splitlines() == ["of the volume"] * 3


@WHERE
def test_socket_and_pipe(pods: Pods, volume: Path, user: tuple[int, int, int] | None) -> None:
    os.mkfifo(volume / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(volume / "socket"))
        asked = [bind(volume / name, f"/run/{name}", *mapped(user)) for name in ("socket", "pipe")]
        container = launch(pods, user, *asked)
    assert pods.read(container, "stat -c '%F %u' /run/socket /run/pipe") == "socket 0\nfifo 0"


@pytest.fixture(scope="module")
def hostile(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose directories are symbolic links to places outside."""
    links = [
        symlink("data", "../../../../../../etc"),
        symlink("absolute", "/root/../../../../../../var/tmp/podkeep-outside"),
        symlink("var/run", "/run"),
        directory("deep"),
        symlink("deep/up", "../../../../.."),
        symlink("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
        symlink("to-proc", "../proc/self"),
    ]
    layout = busybox_layout(tmp_path_factory.mktemp("hostile"), layers=[links])
    return registry.push(layout, "hostile:1")


@WHERE
def test_target_through_links_of_the_image_stays_inside(
    daemon: Daemon, pods: Pods, volume: Path, hostile: str, user: tuple[int, int, int] | None
) -> None:
    pods.pull(hostile)
    before = daemon.mounts_elsewhere()
    targets = ("/data/mounted", "/absolute/mounted", "/var/run/mounted", "/deep/up/mounted")
    container = launch(pods, user, *(bind(volume, path, *mapped(user)) for path in targets), image=hostile)
    inside = ("/etc/mounted", "/var/tmp/podkeep-outside/mounted", "/run/mounted", "/mounted")
    for path in (*targets, *inside):
        assert pods.read(container, f"cat {path}/file") == "of the volume"
    assert daemon.mounts_elsewhere() == before
    assert not Path("/etc/mounted").exists()
    assert not Path("/var/tmp/podkeep-outside").exists()
    assert not Path("/mounted").exists()


def test_link_of_the_image_into_proc(pods: Pods, volume: Path, hostile: str) -> None:
    pods.pull(hostile)
    sandbox = pods.run()
    create = lambda: pods.create(sandbox, mounts=[bind(volume, "/to-proc/attr")], image=hostile)  # noqa: E731
    assert "/to-proc/attr leads to /proc/self/attr in this image" in error_of(create, InvalidArgument)


@WHERE
def test_resolv_conf_of_the_image_is_a_link_to_nothing(
    pods: Pods, hostile: str, user: tuple[int, int, int] | None
) -> None:
    pods.pull(hostile)
    config = pod(options=namespaces(user=user), dns_config=api.DNSConfig(servers=["192.0.2.1"]))
    container = pods.launch(pods.run(config), image=hostile)
    assert pods.read(container, "cat /etc/resolv.conf") == "nameserver 192.0.2.1"


# in place of the runtime's own


def test_the_machines_dev_in_a_privileged_container(pods: Pods) -> None:
    config = pod()
    config.linux.security_context.privileged = True
    before = (sorted(os.listdir("/dev")), mountinfo.under("/dev"))
    sandbox = pods.run(config)
    container = pods.launch(sandbox, mounts=[bind("/dev", "/dev"), bind("/sys", "/sys")], security={"privileged": True})
    assert sorted(pods.read(container, "ls -A /dev").split()) == before[0]
    assert (sorted(os.listdir("/dev")), mountinfo.under("/dev")) == before


def test_volume_in_place_of_the_pods_files(pods: Pods, volume: Path) -> None:
    config = pod(hostname="web")
    container = pods.launch(pods.run(config), mounts=[bind(volume / "file", "/etc//hostname/"), bind(volume, "/run")])
    assert pods.read(container, "cat /etc/hostname /run/file") == "of the volume\nof the volume"


def test_read_only_root(pods: Pods, volume: Path) -> None:
    container = launch(pods, None, bind(volume, "/volume"), security={"readonly_rootfs": True})
    for path in ("/new", "/etc/hosts", "/etc/resolv.conf"):
        assert b"Read-only file system" in pods.exec(container, "sh", "-c", f"echo >> {path}").stderr
    assert pods.exec(container, "sh", "-c", "touch /volume/new /dev/shm/new").exit_code == 0


@WHERE
def test_proc_that_is_not_masked_can_be_mounted_again(pods: Pods, user: tuple[int, int, int] | None) -> None:
    """ProcMountType Unmasked: a user namespace inside may mount a proc of its own (KEP-4265)."""
    sandbox = pods.run(pod(options=namespaces(user=user)))
    nested = ("unshare", "-U", "-r", "-m", "-p", "-f", "--mount-proc", "ls", "-d", "/proc/1")
    open_proc = pods.launch(sandbox, name="open", security={"masked_paths": [], "readonly_paths": []})
    masked = pods.launch(sandbox, name="masked", security={"masked_paths": ["/proc/interrupts"], "readonly_paths": []})
    assert pods.read(masked, "stat -c %t:%T /proc/interrupts") == "1:3"
    if user is not None:
        assert pods.exec(open_proc, *nested).stdout == b"/proc/1\n"
        assert pods.exec(masked, *nested).exit_code != 0


# huge pages


def test_directory_of_huge_pages(pods: Pods, open_directory: Path) -> None:
    volume = open_directory / os.urandom(4).hex()
    volume.mkdir()
    subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M", "none", volume], check=True)
    try:
        for number, user in enumerate((None, BLOCK)):
            sandbox = pods.run(pod(str(number), options=namespaces(user=user)))
            container = pods.launch(sandbox, mounts=[bind(volume, "/huge", *mapped(user))])
            assert pods.read(container, "awk '$2 == \"/huge\" {print $3}' /proc/mounts") == "hugetlbfs"
            assert pods.read(container, "touch /huge/file; stat -c '%u' /huge /huge/file") == "0\n0"
            assert (volume / "file").stat().st_uid == 0
            (volume / "file").unlink()
    finally:
        mounts.unmount(volume)


@pytest.mark.requirement("U69")
def test_one_volume_mounted_in_every_way_is_mapped_in_each(pods: Pods, volume: Path) -> None:
    """Writable, read-only, recursively so, a part of it (subPath, which the kubelet adds to the path), each with every
    propagation that goes with it, and all twice.
    """
    (volume / "part/deep").mkdir(parents=True)
    for path in ("part", "part/deep"):
        (volume / path).chmod(0o777)
    mounts.set_propagation("/", mounts.Propagation.SHARED, recursive=True)
    wanted: list[tuple[api.Mount, bool, bool]] = []
    for source in (volume, volume / "part"):
        for propagation in (PRIVATE, TO_CONTAINER, BOTH_WAYS):
            for readonly, recursive in ((False, False), (True, False), (True, True)):
                # One that goes both ways has nothing mounted below it, and cannot be protected in a user namespace.
                if (recursive and propagation is not PRIVATE) or (
                    propagation is BOTH_WAYS and (readonly or source is volume)
                ):
                    continue
                for _ in range(2):
                    fields = {"readonly": readonly, "recursive_read_only": recursive, "propagation": propagation}
                    mount = bind(source, f"/v{len(wanted)}", BLOCK, **fields)  # type: ignore[arg-type]
                    wanted.append((mount, readonly, recursive))
    config = pod(options=namespaces(user=BLOCK))
    config.linux.security_context.privileged = True
    container = pods.launch(pods.run(config), mounts=[mount for mount, _, _ in wanted], security={"privileged": True})
    assert len(wanted) == 22
    for mount, readonly, recursive in wanted:
        path, name = mount.container_path, f"by-{mount.container_path[1:]}"
        whole = mount.host_path == str(volume)
        wrote = pods.exec(container, "touch", f"{path}/{name}").exit_code == 0
        assert wrote is not readonly, mount
        if wrote:
            made = Path(mount.host_path) / name
            assert (made.stat().st_uid, made.stat().st_gid) == (0, 0), mount
            assert pods.read(container, f"stat -c '%u %g' {path}/{name}") == "0 0", mount
        below = f"{path}/below/{name}" if whole else f"{path}/deep/{name}"
        wrote_below = pods.exec(container, "touch", below).exit_code == 0
        assert wrote_below is (not recursive if whole else not readonly), mount
    # What is mounted later arrives where it was asked for.
    (volume / "part/later").mkdir()
    mounts.tmpfs(volume / "part/later", "size=1m,mode=777")
    try:
        (volume / "part/later/file").touch()
        for mount, _, _ in wanted:
            path = mount.container_path + ("/part/later" if mount.host_path == str(volume) else "/later")
            assert (pods.read(container, f"ls {path}") == "file") is (mount.propagation != PRIVATE), mount
    finally:
        mounts.unmount(volume / "part/later")
