"""VOLUMEs of images over CRI: a directory of the container's own, filled with what the image has there."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from podkeep.base.errors import Cancelled, InvalidArgument, ResourceExhausted, Unavailable
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from support import tarmaker
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import LayoutBuilder, busybox_layout, busybox_members, directory, file, hardlink, symlink, tar
from support.mortal import Mortal
from support.registry import Registry

WHERE = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
VOLUMES = {"Volumes": {"/data": {}, "/var/run/app/": {}, "/missing/deep": {}}}
CAPABILITY = {
    "SCHILY.xattr.security.capability": bytes.fromhex("01000002000400000000000000000000" + "00000000").decode()
}
LAYERS = [
    [
        directory("data", 0o1777, uid=1000, gid=50),
        directory("data/inner", 0o700, uid=1000, gid=1000),
        file("data/inner/secret", "of the app\n", 0o600, uid=1000, gid=1000),
        file("data/removed", "by the second layer"),
        file("data/program", "#!/bin/sh\n", 0o4755),
        symlink("data/link", "/etc/passwd"),
        hardlink("data/other-name", "data/program"),
        symlink("var/run", "/run"),
        directory("run/app"),
        file("run/app/file", "of the image\n"),
    ],
    [
        directory("data", 0o1777, uid=1000, gid=50),
        file("data/.wh.removed"),
        file("data/later", "of the second layer\n"),
    ],
]


@pytest.fixture(scope="module")
def with_volumes(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    layout = busybox_layout(tmp_path_factory.mktemp("volumes"), config=VOLUMES, layers=LAYERS)
    return registry.push(layout, "with-volumes:1")


def volumes_of(daemon: Daemon, container: str) -> list[Path]:
    return sorted((daemon.layout.root / "containers" / container / "volumes").glob("*"))


@WHERE
def test_volumes_hold_what_the_image_has(
    daemon: Daemon, pods: Pods, with_volumes: str, user: tuple[int, int, int] | None
) -> None:
    pods.pull(with_volumes)
    container = pods.launch(
        pods.run(pod(options=namespaces(user=user))), image=with_volumes, security={"readonly_rootfs": True}
    )
    listed = pods.read(container, "cd /data; stat -c '%n %a %u %g %h %F' . inner inner/secret program link later")
    assert listed.splitlines() == [
        ". 1777 1000 50 3 directory",
        "inner 700 1000 1000 2 directory",
        "inner/secret 600 1000 1000 1 regular file",
        "program 4755 0 0 2 regular file",
        "link 777 0 0 1 symbolic link",
        "later 644 0 0 1 regular file",
    ]
    assert pods.read(container, "ls -A /data") == "inner\nlater\nlink\nother-name\nprogram"
    assert pods.read(container, "cat /var/run/app/file /data/inner/secret") == "of the image\nof the app"
    assert pods.read(container, "stat -c '%a %u %g' /missing/deep; ls -A /missing/deep") == "755 0 0"
    # Writable, though the root is not; and somebody who is nobody special may write to /tmp-like directories.
    write = "for path in /data /run/app /missing/deep; do echo x > $path/new || exit 1; done; ! echo x > /new"
    assert pods.exec(container, "sh", "-c", write).exit_code == 0
    first = volumes_of(daemon, container)[0]
    assert (first / "new").stat().st_uid == (0 if user is None else user[1])
    assert [item.container_path for item in pods.status(container).mounts] == []
    pods.remove_container(container)
    assert not first.exists()


@WHERE
def test_file_capabilities_survive(
    pods: Pods, registry: Registry, tmp_path: Path, user: tuple[int, int, int] | None
) -> None:
    """They are bound to the user namespace that the file's owner is root of (capabilities(7), version 3)."""
    layers = [[directory("data"), file("data/busybox", Path("/bin/busybox").read_bytes(), 0o755, pax=CAPABILITY)]]
    image = registry.push(busybox_layout(tmp_path, config={"Volumes": {"/data": {}}}, layers=layers), "capable:1")
    pods.pull(image)
    # As a user without rights, a program with cap_net_bind_service may still have it.
    security = {"run_as_user": api.Int64Value(value=1000), "capabilities": api.Capability(add_capabilities=["ALL"])}
    container = pods.launch(pods.run(pod(options=namespaces(user=user))), image=image, security=security)
    assert pods.read(container, "/data/busybox grep CapEff /proc/self/status").split()[1] == f"{1 << 10:016x}"


def test_every_container_has_its_own(daemon: Daemon, pods: Pods, with_volumes: str) -> None:
    pods.pull(with_volumes)
    sandbox = pods.run()
    one, other = (pods.launch(sandbox, name=name, image=with_volumes) for name in ("one", "other"))
    pods.read(one, "echo changed > /data/later")
    assert pods.read(other, "cat /data/later") == "of the second layer"
    pods.stop(one)
    again = pods.launch(sandbox, name="one", attempt=1, image=with_volumes)
    assert pods.read(again, "cat /data/later") == "of the second layer"
    assert {len(volumes_of(daemon, item)) for item in (one, other, again)} == {3}


def test_a_mount_of_the_request_is_no_volume(
    daemon: Daemon, pods: Pods, with_volumes: str, open_directory: Path
) -> None:
    pods.pull(with_volumes)
    (open_directory / "asked").mkdir()
    mounts = [bind(open_directory / "asked", "/data//"), bind(open_directory / "asked", "/missing")]
    container = pods.launch(pods.run(), image=with_volumes, mounts=mounts)
    assert pods.read(container, "ls -A /data") == "deep"
    assert pods.read(container, "cat /run/app/file") == "of the image"
    assert len(volumes_of(daemon, container)) == 2


@pytest.mark.parametrize("path", ["/", "/proc", "/link/attr", "/etc/passwd"])
def test_image_with_a_volume_where_none_can_be(pods: Pods, registry: Registry, tmp_path: Path, path: str) -> None:
    layout = busybox_layout(tmp_path, config={"Volumes": {path: {}}}, layers=[[symlink("link", "../../proc/self")]])
    image = registry.push(layout, "wrong-volume:1")
    pods.pull(image)
    sandbox = pods.run()
    message = error_of(lambda: pods.create(sandbox, image=image), InvalidArgument)
    assert path in message
    assert "image" in message
    assert pods.containers() == []


def test_without_volumes_nothing_is_made(daemon: Daemon, pods: Pods) -> None:
    container = pods.launch(pods.run())
    made = sorted(item.name for item in (daemon.layout.root / "containers" / container).iterdir())
    assert "volumes" not in made


@pytest.mark.parametrize("point", ["volume.directory", "container.staged", "container.created"])
def test_killed_while_it_makes_volumes(mortal: Mortal, with_volumes: str, point: str) -> None:
    layout = mortal.daemon.layout
    pods = mortal.start(failpoints=f"{point}=kill")
    pods.pull(with_volumes)
    sandbox = pods.run()
    before = mortal.daemon.resources()
    error_of(lambda: pods.create(sandbox, image=with_volumes), Unavailable)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(timeout=60)
    assert len(list((layout.root / "containers").iterdir())) == 1
    pods = mortal.start()
    assert mortal.daemon.resources() == before
    assert list((layout.root / "containers").iterdir()) == []
    assert list((layout.run / "containers").iterdir()) == []
    container = pods.launch(sandbox, image=with_volumes)
    assert pods.read(container, "cat /data/later") == "of the second layer"


def test_disk_that_is_full(mortal: Mortal, registry: Registry, tmp_path: Path) -> None:
    """An error, and nothing is left of it."""
    layers = [[directory("data"), *(file(f"data/{number}", bytes(1 << 20)) for number in range(24))]]
    image = registry.push(busybox_layout(tmp_path, config={"Volumes": {"/data": {}}}, layers=layers), "large:1")
    daemon = mortal.daemon
    daemon.layout.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=44m,mode=711", "none", daemon.layout.root], check=True)
    try:
        pods = mortal.start()
        pods.pull(image)
        sandbox = pods.run()
        before = daemon.resources()
        assert "does not fit on the disk" in error_of(lambda: pods.create(sandbox, image=image), ResourceExhausted)
        assert daemon.resources() == before
    finally:
        mortal.close()
        subprocess.run(["umount", "-l", daemon.layout.root], check=True)


def hole(name: bytes, size: int) -> bytes:
    """Return the entries of a file that is one hole (GNU tar manual, Storing Sparse Files, format 1.0)."""
    sparse = {b"major": b"1", b"minor": b"0", b"name": name, b"realsize": b"%d" % size}
    records = {b"GNU.sparse." + key: value for key, value in sparse.items()}
    return tarmaker.pax(records) + tarmaker.entry(b"GNUSparseFile.0/x", data=(b"1\n%d\n0\n" % size).ljust(512, b"\0"))


def test_a_hole_of_the_image_takes_no_disk(daemon: Daemon, pods: Pods, registry: Registry, tmp_path: Path) -> None:
    """EROFS reports blocks for it; a layer of some hundred bytes filled the disk of the node."""
    builder, size = LayoutBuilder(tmp_path), 1 << 30
    layers = [tar(busybox_members()), tarmaker.directory(b"data/") + hole(b"data/hole", size) + tarmaker.END]
    config = {"Env": ["PATH=/bin"], "Volumes": {"/data": {}}}
    image = registry.push(builder.finish(builder.image(layers, config=config), "hole:1"), "hole:1")
    pods.pull(image)
    container = pods.launch(pods.run(), image=image)
    assert pods.read(container, "stat -c %s /data/hole") == str(size)
    found = volumes_of(daemon, container)[0] / "hole"
    assert found.stat().st_blocks * 512 < 1 << 20


def test_a_copy_ends_when_its_pod_is_stopped(mortal: Mortal, registry: Registry, tmp_path: Path) -> None:
    """Its thread could not be stopped, and the pod not before all was copied."""
    layers = [[directory("data"), *(directory(f"data/{number}") for number in range(500))]]
    image = registry.push(busybox_layout(tmp_path, config={"Volumes": {"/data": {}}}, layers=layers), "many:1")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pods = mortal.start(failpoints=f"volume.directory=open:{gate}")
    pods.pull(image)
    sandbox = pods.run()
    before = mortal.daemon.resources()

    def let_on() -> bool:
        """Let the copy go on by one directory, if it waits for that."""
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    async def scenario() -> tuple[BaseException | None, int]:
        async with CriClient(mortal.daemon.socket) as client:
            creating = asyncio.ensure_future(client.runtime.CreateContainer(pods.create_request(sandbox, image=image)))
            while not list((mortal.daemon.layout.root / "containers").glob("*/volumes/*/*")):
                await client.runtime.Version(api.VersionRequest())
            stop = api.StopPodSandboxRequest(pod_sandbox_id=sandbox)
            stopping = asyncio.ensure_future(client.runtime.StopPodSandbox(stop))
            await client.runtime.Version(api.VersionRequest())
            steps = 0
            while not creating.done():
                steps += let_on()
                await client.runtime.Version(api.VersionRequest())
            await stopping
            return creating.exception(), steps

    error, steps = asyncio.run(scenario())
    assert isinstance(error, Cancelled)
    assert "VOLUME was given up" in error.message
    assert steps < 250, "not all the directories"
    assert pods.containers() == []
    pods.remove(sandbox)
    assert list((mortal.daemon.layout.root / "containers").iterdir()) == []
    assert set(mortal.daemon.resources().mounts) <= set(before.mounts)
