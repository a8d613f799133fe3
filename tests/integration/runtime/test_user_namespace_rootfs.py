"""The three ways in which an image gets the owners of a pod with a user namespace (KEP-127, Resource exhaustion)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import Cancelled, FailedPrecondition, ResourceExhausted, Unavailable
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo
from support.cri import BLOCK, OTHER_BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.images import Member, busybox_layout, directory, file, hardlink, symlink
from support.mortal import Mortal
from support.registry import Registry

VARIANTS = ("idmapped", "metacopy", "copy")
CHANGED = VARIANTS[1:]
LARGE = 3 << 20
CYCLES = 5
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0).decode("latin-1")
"""cap_net_bind_service+ep."""
LOOK = """\
cd /data
find . /bin/suid ! -type d | sort | xargs stat -c '%n %A %u %g %h %s %t %T %Y %N'
find . -type d | sort | xargs stat -c '%n %A %u %g %Y'
"""
PROGRAM = Path("/usr/bin/catatonit").read_bytes()
"""A static program that stays."""
LAYERS: list[list[Member]] = [
    [
        directory("data", 0o2775, uid=7, gid=50),
        file("data/large", os.urandom(LARGE), 0o640, uid=1000, gid=1000),
        file("data/removed", "by the second layer"),
        file("data/changed", "by the second layer"),
        directory("data/hidden"),
        file("data/hidden/old", "by the second layer"),
        file("bin/suid", "#!/bin/sh\n", 0o6755, uid=1000, gid=50),
        hardlink("data/other-name", "data/large"),
        symlink("data/link", "/etc/shadow", uid=1000, gid=1000),
        symlink("data/up", "../../../../../../../etc", uid=1000, gid=1000),
        Member(name="data/null", kind=b"3", mode=0o666, uid=8, gid=9, device=(1, 3)),
        Member(name="data/pipe", kind=b"6", mode=0o600, uid=8, gid=9),
        file("data/strange", "of an ID that no pod has", 0o4711, uid=3_000_000, gid=3_000_001),
        file("data/noted", "x", pax={"SCHILY.xattr.user.note": "kept"}),
        file("bin/asroot", PROGRAM, 0o4755),
        file("bin/capable", PROGRAM, 0o755, pax={"SCHILY.xattr.security.capability": CAPABILITY}),
    ],
    [
        directory("data", 0o2775, uid=7, gid=50),
        file("data/.wh.removed"),
        file("data/changed", "new"),
        directory("data/hidden"),
        file("data/hidden/.wh..wh..opq"),
        file("data/hidden/new"),
    ],
]


@pytest.fixture(scope="module")
def everything(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with all that a copy could lose."""
    layout = busybox_layout(tmp_path_factory.mktemp("everything"), layers=LAYERS)
    return registry.push(layout, "everything:1")


@pytest.fixture(scope="module", params=["erofs", "directories"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def daemon_of(base: Path, registry: Registry, variant: str, driver: str = "auto", more: str = "") -> Daemon:
    """Return a daemon, not started, with one way forced."""
    base.mkdir()
    extra = f'[images]\nsnapshot_driver = "{driver}"\n[registries."{registry.host}"]\ninsecure = true\n{more}'
    return Daemon(base, extra=extra, settings=(f"runtime.user_namespace_rootfs={variant}",))


@pytest.fixture(scope="module")
def daemons(open_directory: Path, registry: Registry, driver: str) -> Iterator[dict[str, Daemon]]:
    """A running daemon for each way."""
    made = {}
    try:
        for variant in VARIANTS:
            base = open_directory / f"rootfs-{os.urandom(3).hex()}"
            made[variant] = daemon_of(base, registry, variant, driver).start()
        yield made
    finally:
        for daemon in made.values():
            daemon.end()


def trees(daemon: Daemon) -> list[Path]:
    """Return the changed trees that a daemon keeps, and what is being made."""
    return sorted((daemon.layout.root / "changed").glob("*/*"))


def stored(daemon: Daemon) -> list[tuple[str, int, int, int]]:
    """Return everything below a daemon's directory of images, with mode and owner."""
    result = []
    for path in sorted((daemon.layout.root / "images").rglob("*")):
        status = path.lstat()
        if path.suffix not in {".db", ".db-wal", ".db-shm"} and "images.db" not in path.name:
            result.append((str(path), status.st_mode, status.st_uid, status.st_gid))
    return result


def used(pods: Pods) -> tuple[int, int]:
    """Return bytes and inodes of ImageFsInfo; those of containers must be the same file system's."""
    answer = pods.call("ImageFsInfo", api.ImageFsInfoRequest(), service="images")
    (images,), (containers,) = answer.image_filesystems, answer.container_filesystems
    assert (images.used_bytes, images.inodes_used) == (containers.used_bytes, containers.inodes_used)
    return images.used_bytes.value, images.inodes_used.value


def assert_as_before(now: tuple[int, int], before: tuple[int, int]) -> None:
    """Check that nothing is left; the database of images may have grown by some pages."""
    assert now[1] == before[1]
    assert abs(now[0] - before[0]) < 1 << 16


def own_pod(pods: Pods, name: str = "one", block: tuple[int, int, int] = BLOCK) -> str:
    """Run a pod with a user namespace."""
    return pods.run(pod(name, options=namespaces(user=block)))


def launched_plainly(pods: Pods) -> str:
    """Run a pod with the machine's users: the first one of an image makes in the store what all others need."""
    sandbox = pods.run(pod("plain"))
    pods.launch(sandbox)
    return sandbox


def of_kernel(pods: Pods, container: str, name: str) -> list[int]:
    """Return the numbers of a line of ``/proc/PID/status`` of a container's process."""
    line = Path(f"/proc/{pods.host_pid(container)}/status").read_text().partition(f"{name}:")[2].splitlines()[0]
    return [int(word, 16 if name.startswith("Cap") else 10) for word in line.split()]


@pytest.mark.requirement("U84")
def test_a_pod_sees_the_same_whichever_way(daemons: dict[str, Daemon], everything: str) -> None:
    seen = {}
    as_user = {"run_as_user": api.Int64Value(value=1000), "run_as_group": api.Int64Value(value=1000)}
    for variant, daemon in daemons.items():
        with Pods(daemon.socket, everything) as pods:
            pods.pull()
            sandbox = own_pod(pods)
            container = pods.launch(sandbox)
            as_root = pods.launch(sandbox, "/bin/asroot", "-P", name="asroot", security=as_user)
            capable = pods.launch(sandbox, "/bin/capable", "-P", name="capable", security=as_user)
            root = Path(f"/proc/{pods.host_pid(container)}/root")
            seen[variant] = {
                "files": pods.read(container, LOOK).splitlines(),
                "content": pods.read(container, "cat /data/changed; sha256sum /data/large /data/other-name"),
                "suid": ((root / "bin/suid").stat().st_uid, stat.S_IMODE((root / "bin/suid").stat().st_mode)),
                "note": os.getxattr(root / "data/noted", "user.note"),
                "capability": os.getxattr(root / "bin/capable", "security.capability"),
                "set-user-ID": of_kernel(pods, as_root, "Uid"),
                "capabilities": of_kernel(pods, capable, "CapEff"),
                "of others": of_kernel(pods, container, "CapEff") == of_kernel(pods, capable, "CapEff"),
                "null": pods.read(container, "echo x >/data/null; cat /data/null; stat -c %F /data/null"),
            }
    assert seen["metacopy"] == seen["copy"] == seen["idmapped"]
    found = seen["copy"]
    files = "\n".join(found["files"])
    assert "./strange -rws--x--x 65534 65534" in files
    assert "./null crw-rw-rw- 8 9" in files
    assert "./large -rw-r----- 1000 1000 2" in files
    assert "removed" not in files
    assert "hidden/old" not in files
    assert found["suid"] == (66536, 0o6755)
    assert found["set-user-ID"][:3] == [66536, 65536, 65536]
    # Whatever looks from outside: they hold for root of this pod, and no other.
    assert found["capability"][20:] == struct.pack("<I", 65536)
    assert found["capabilities"] == [1 << 10]


@pytest.mark.requirement("U78", "U79")
@pytest.mark.parametrize("variant", CHANGED)
def test_what_a_copy_costs(daemons: dict[str, Daemon], everything: str, variant: str) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        before = used(pods)
        container = pods.launch(own_pod(pods))
        (tree,) = trees(daemon)
        found = [path.lstat() for path in (tree / "tree").rglob("*")]
        regular = [status for status in found if stat.S_ISREG(status.st_mode)]
        blocks = 512 * sum(status.st_blocks for status in {status.st_ino: status for status in regular}.values())
        assert {status.st_uid for status in found} >= {65536, 66536}
        assert min(status.st_uid for status in found) == 65536
        if variant == "metacopy":
            assert {status.st_blocks for status in regular} == {0}
        else:
            assert LARGE + len(PROGRAM) * 2 < blocks < 2 * (LARGE + len(PROGRAM) * 2) + (4 << 20)
        # An inode for each file, and some for what keeps the tree.
        entries = len({status.st_ino for status in found}) + 1
        assert entries > 250
        after = used(pods)
        assert entries <= after[1] - before[1] <= entries + 8
        assert after[0] - before[0] >= blocks
        # Of no single container: its writable layer is as small as ever.
        assert len(list((daemon.layout.root / "containers" / container / "upper").iterdir())) < 10


@pytest.mark.requirement("U77")
def test_idmapped_layers_cost_no_disk(daemons: dict[str, Daemon], everything: str) -> None:
    daemon = daemons["idmapped"]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        launched_plainly(pods)
        before, kept = used(pods), stored(daemon)
        container = pods.launch(own_pod(pods))
        root = next(item for item in mountinfo.read(pods.host_pid(container)) if item.mount_point == "/")
        assert root.fs_type == "overlay"
        assert pods.read(container, "stat -c %u:%g /bin/busybox") == "0:0"
        assert used(pods) == before
        assert stored(daemon) == kept
        assert trees(daemon) == []


@pytest.mark.requirement("U82")
@pytest.mark.parametrize("variant", CHANGED)
def test_two_blocks_at_once_and_nothing_is_left(daemons: dict[str, Daemon], everything: str, variant: str) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        pods.remove(launched_plainly(pods))
        kept, held, start = stored(daemon), daemon.resources().after_a_restart(), used(pods)
        one, other = own_pod(pods), own_pod(pods, "other", OTHER_BLOCK)
        containers = [pods.launch(one), pods.launch(other), pods.launch(one, name="sidecar")]
        look = "stat -c '%u %g' /bin /data/changed /data/large; echo mine >/data/changed; cat /data/changed"
        assert {pods.read(container, look) for container in containers} == {"0 0\n0 0\n1000 1000\nmine"}
        assert len(trees(daemon)) == 2
        assert stored(daemon) == kept
        pods.remove(one)
        for number in range(CYCLES):
            sandbox = own_pod(pods, f"pod{number}")
            pods.create(sandbox)
            assert len(trees(daemon)) == 2
            pods.remove(sandbox)
            assert len(trees(daemon)) == 1
        assert pods.read(containers[1], "cat /data/changed /etc/os-release").startswith("mine\nID=busybox")
        pods.remove(other)
        assert not daemon.layout.changed_trees.exists()
        assert stored(daemon) == kept
        assert daemon.resources().after_a_restart() == held
        assert_as_before(used(pods), start)


@pytest.mark.requirement("U83")
@pytest.mark.parametrize("variant", CHANGED)
def test_eviction_sees_what_copies_take(daemons: dict[str, Daemon], everything: str, variant: str) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        pods.remove(launched_plainly(pods))  # what the first container of a runtime makes stays
        before = used(pods)
        sandbox = own_pod(pods)
        pods.launch(sandbox)
        during = used(pods)
        found = {path.lstat().st_ino: path.lstat().st_blocks for path in trees(daemon)[0].rglob("*")}
        size = 512 * sum(found.values())
        assert during[0] - before[0] >= size > 0
        assert during[1] - before[1] > 250
        if variant == "copy":
            assert during[0] - before[0] > LARGE
        pods.remove(sandbox)
        assert_as_before(used(pods), before)


@pytest.mark.requirement("U82")
@pytest.mark.parametrize("variant", CHANGED)
def test_containers_that_need_it_at_once_make_it_once(
    daemons: dict[str, Daemon], everything: str, variant: str
) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        before = way(pods, variant)["used"]["times"]
        sandboxes = [own_pod(pods, f"pod{number}") for number in range(6)]
        requests = [("CreateContainer", pods.create_request(sandbox)) for sandbox in sandboxes]
        containers = [pods.start(answer.container_id) for answer in pods.call_all(requests)]
        assert len(trees(daemon)) == 1
        assert way(pods, variant)["used"]["times"] == before + 1
        assert {pods.read(container, "stat -c %u /data/large") for container in containers} == {"1000"}
        for container, sandbox in zip(containers[:-1], sandboxes[:-1], strict=True):
            pods.remove(sandbox)
            assert len(trees(daemon)) == 1, container
        pods.remove(sandboxes[-1])
        assert trees(daemon) == []


def way(pods: Pods, variant: str) -> dict[str, Any]:
    """Return what verbose Status, which `crictl info` prints, says of one way."""
    told = json.loads(pods.call("Status", api.StatusRequest(verbose=True)).info["rootfs"])
    (found,) = [item for item in told["ways"] if item["variant"] == variant]
    return dict(found)


@pytest.mark.requirement("U80", "U81")
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_way_and_what_it_costs_are_told(daemons: dict[str, Daemon], everything: str, variant: str) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        told = json.loads(pods.call("Status", api.StatusRequest(verbose=True)).info["rootfs"])
        assert (told["wanted"], told["variant"], told["whyNot"]) == (variant, variant, "")
        assert [item["variant"] for item in told["ways"]] == list(VARIANTS)
        assert all(item["whyNot"] == "" and item["seconds"] > 0 and item["files"] == 16 for item in told["ways"])
        before = way(pods, variant)["used"]
        container = pods.launch(own_pod(pods))
        after = way(pods, variant)["used"]
        asked = api.ContainerStatusRequest(container_id=container, verbose=True)
        of_container = json.loads(pods.call("ContainerStatus", asked).info["info"])["remapSeconds"]
        assert of_container > 0
        assert after["times"] == before["times"] + 1
        assert after["seconds"] > before["seconds"]
        if variant != "idmapped":
            assert after["entries"] - before["entries"] > 250
            assert f"for a user namespace: {variant}, " in daemon.log.read_text()
        assert not daemon.layout.rootfs_probe.exists()


@pytest.mark.requirement("U78", "U79")
@pytest.mark.parametrize("variant", CHANGED)
def test_an_image_as_a_volume(daemons: dict[str, Daemon], everything: str, variant: str) -> None:
    daemon = daemons[variant]
    with Pods(daemon.socket, everything) as pods:
        pods.pull()
        sandbox = own_pod(pods)
        mount = api.Mount(container_path="/v", readonly=True, image=api.ImageSpec(image=everything))
        part = api.Mount(
            container_path="/part", readonly=True, image=api.ImageSpec(image=everything), image_sub_path="data"
        )
        container = pods.launch(sandbox, mounts=[mount, part])
        assert (
            pods.read(container, "stat -c '%u %a' /v/data/large /v/bin/suid /part/large")
            == "1000 640\n1000 6755\n1000 640"
        )
        assert pods.read(container, "sha256sum </v/data/large") == pods.read(container, "sha256sum </part/large")
        assert "Read-only" in pods.read(container, "touch /v/data/large 2>&1; mount -o remount,rw /v 2>&1; true")
        assert len(trees(daemon)) == 1
        pods.remove(sandbox)
        assert trees(daemon) == []


def own(open_directory: Path, registry: Registry, image: str, variant: str, **more: str) -> Mortal:
    """Return a daemon of the test's own, not started."""
    return Mortal(daemon_of(open_directory / os.urandom(4).hex(), registry, variant, **more), image)


@pytest.fixture
def mortal_of(open_directory: Path, registry: Registry, everything: str) -> Iterator[Callable[[str], Mortal]]:
    """Makes daemons for tests that kill them, by way."""
    made: list[Mortal] = []

    def make(variant: str) -> Mortal:
        made.append(own(open_directory, registry, everything, variant))
        return made[-1]

    yield make
    for mortal in made:
        mortal.close()


@pytest.mark.requirement("U80")
@pytest.mark.parametrize(
    ("broken", "chosen"),
    [((), "idmapped"), (("idmapped",), "metacopy"), (("idmapped", "metacopy"), "copy")],
    ids=["all work", "without idmapped", "without metacopy"],
)
def test_the_first_that_works_is_taken(
    mortal_of: Callable[[str], Mortal], broken: tuple[str, ...], chosen: str
) -> None:
    mortal = mortal_of("auto")
    pods = mortal.start(failpoints=",".join(f"rootfs.{name}=error" for name in broken))
    told = json.loads(pods.call("Status", api.StatusRequest(verbose=True)).info["rootfs"])
    assert (told["wanted"], told["variant"]) == ("auto", chosen)
    assert {item["variant"] for item in told["ways"] if item["whyNot"]} == set(broken)
    container = pods.launch(own_pod(pods))
    assert pods.read(container, "stat -c %u:%g /bin/busybox /data/large") == "0:0\n1000:1000"
    assert len(trees(mortal.daemon)) == (chosen != "idmapped")


@pytest.mark.requirement("U80")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_way_that_is_named_and_does_not_work_stops_the_start(
    open_directory: Path, registry: Registry, variant: str
) -> None:
    daemon = daemon_of(open_directory / os.urandom(4).hex(), registry, variant)
    daemon.environment = {"PODKEEP_FAILPOINTS": f"rootfs.{variant}=error"}
    try:
        with pytest.raises(AssertionError, match="the runtime ended with 1"):
            daemon.start()
        log = daemon.log.read_text()
        assert f"runtime.user_namespace_rootfs = '{variant}' does not work here: failpoint" in log
        assert 'set it to "auto"' in log
    finally:
        daemon.end()


@pytest.mark.requirement("U85")
def test_where_nothing_works_such_pods_fail(mortal_of: Callable[[str], Mortal]) -> None:
    mortal = mortal_of("auto")
    pods = mortal.start(failpoints=",".join(f"rootfs.{name}=error" for name in VARIANTS))
    handlers = pods.call("Status", api.StatusRequest()).runtime_handlers
    assert {item.features.user_namespaces for item in handlers} == {False}
    message = error_of(lambda: own_pod(pods), FailedPrecondition)
    assert message.startswith("user namespaces is not supported by the runtime")
    assert "images cannot be given the owners of a pod: idmapped: " in message
    assert pods.sandboxes() == []
    # Others run as ever.
    assert pods.read(pods.launch(pods.run()), "stat -c %u /bin/busybox") == "0"


@pytest.mark.requirement("U82")
@pytest.mark.parametrize("variant", CHANGED)
@pytest.mark.parametrize("point", ["rootfs.directory", "rootfs.made", "container.rootfs", "container.created"])
def test_a_daemon_killed_meanwhile_leaves_nothing(mortal_of: Callable[[str], Mortal], point: str, variant: str) -> None:
    mortal = mortal_of(variant)
    pods = mortal.start(failpoints=f"{point}=kill")
    sandbox = own_pod(pods)
    before = mortal.daemon.resources().after_a_restart()
    error_of(lambda: pods.create(sandbox), Unavailable)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(timeout=60)
    assert len(trees(mortal.daemon)) == 1
    pods = mortal.start()
    assert mortal.daemon.resources().after_a_restart() == before
    assert trees(mortal.daemon) == []
    assert pods.read(pods.launch(sandbox), "cat /data/changed") == "new"


@pytest.mark.requirement("U82")
@pytest.mark.parametrize("variant", CHANGED)
def test_the_next_daemon_knows_the_users(mortal_of: Callable[[str], Mortal], variant: str) -> None:
    mortal = mortal_of(variant)
    pods = mortal.start()
    one, other = own_pod(pods), own_pod(pods, "other")
    container = pods.launch(one)
    (tree,) = trees(mortal.daemon)
    mortal.daemon.kill()
    (tree.parent / "making-7").mkdir()
    (tree.parent.parent / "00000000-another-boot" / "key" / "tree").mkdir(parents=True)
    pods = mortal.start()
    assert list((tree.parent.parent).iterdir()) == [tree.parent]
    assert trees(mortal.daemon) == [tree]
    second = pods.launch(other)
    assert trees(mortal.daemon) == [tree]
    assert way(pods, variant)["used"]["times"] == 0
    for each in (container, second):
        assert pods.read(each, "cat /data/changed; echo; wc -c </data/large") == f"new\n{LARGE}"
    pods.remove(one)
    assert trees(mortal.daemon) == [tree]
    pods.remove(other)
    assert trees(mortal.daemon) == []


@pytest.mark.requirement("U82")
@pytest.mark.parametrize("variant", CHANGED)
def test_a_copy_that_is_given_up_leaves_nothing(
    mortal_of: Callable[[str], Mortal], variant: str, tmp_path: Path
) -> None:
    """Also for another container that waits for it, whose pod stays."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    mortal = mortal_of(variant)
    pods = mortal.start(failpoints=f"rootfs.directory=open:{gate}")
    one, other = own_pod(pods), own_pod(pods, "other")
    before = mortal.daemon.resources().after_a_restart()

    def let_on() -> None:
        with suppress(OSError):
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))

    async def scenario() -> tuple[BaseException | None, str]:
        async with CriClient(mortal.daemon.socket) as client:
            first = asyncio.ensure_future(client.runtime.CreateContainer(pods.create_request(one)))
            while not trees(mortal.daemon):
                await client.runtime.Version(api.VersionRequest())
            second = asyncio.ensure_future(client.runtime.CreateContainer(pods.create_request(other)))
            stopping = asyncio.ensure_future(
                client.runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=one))
            )
            while not second.done():
                # First, for what was sent before it has begun then: the copy must be given up before it goes on.
                await client.runtime.Version(api.VersionRequest())
                let_on()
            await stopping
            return (await asyncio.gather(first, return_exceptions=True))[0], (await second).container_id  # type: ignore[return-value]

    error, container = asyncio.run(scenario())
    assert isinstance(error, Cancelled)
    assert "given up" in error.message
    assert len(trees(mortal.daemon)) == 1
    assert pods.read(pods.start(container), "cat /data/changed") == "new"
    pods.call("RemoveContainer", api.RemoveContainerRequest(container_id=container))
    assert trees(mortal.daemon) == []
    pods.remove(one)
    assert set(mortal.daemon.resources().after_a_restart().mounts) <= set(before.mounts)


def _require_user_attributes(tmpfs: Path) -> None:
    """Skip the test that runs if the image's file with an attribute of a user cannot be on a tmpfs."""
    try:
        os.setxattr(tmpfs, "user.probe", b"")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip(f"a tmpfs of Linux {os.uname().release} has no user.* attributes, which came with 6.6")


@pytest.mark.requirement("U78", "U79")
@pytest.mark.parametrize("variant", CHANGED)
def test_inodes_and_blocks_of_the_file_system(mortal_of: Callable[[str], Mortal], variant: str) -> None:
    """On a file system of its own: as df(1) counts them."""
    mortal = mortal_of(variant)
    root = mortal.daemon.layout.root
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=711", "none", root], check=True)
    try:
        _require_user_attributes(root)
        pods = mortal.start()
        sandbox = own_pod(pods)
        pods.create(sandbox, name="first")
        pods.call("RemoveContainer", api.RemoveContainerRequest(container_id=pods.containers()[0].id))
        before = os.statvfs(root)
        pods.create(sandbox)
        after = os.statvfs(root)
        (tree,) = trees(mortal.daemon)
        entries = len({path.lstat().st_ino for path in tree.rglob("*")})
        # And the container's own: its directories, and what the OCI runtime made in its root file system.
        assert entries < before.f_ffree - after.f_ffree < entries + 50
        taken = (before.f_bfree - after.f_bfree) * after.f_frsize
        content = LARGE + 2 * len(PROGRAM) + Path("/bin/busybox").stat().st_size
        assert (taken < 1 << 20) if variant == "metacopy" else (content < taken < content + (3 << 20))
    finally:
        mortal.close()
        subprocess.run(["umount", "-l", root], check=True)


@pytest.mark.parametrize("variant", CHANGED)
def test_a_disk_that_is_full(mortal_of: Callable[[str], Mortal], variant: str) -> None:
    """An error that says so, and nothing is left of it."""
    mortal = mortal_of(variant)
    root = mortal.daemon.layout.root
    root.mkdir()
    size = "13m" if variant == "copy" else "256m,nr_inodes=430"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=711", "none", root], check=True)
    try:
        pods = mortal.start()
        sandbox = own_pod(pods)
        before, free = mortal.daemon.resources(), os.statvfs(root).f_ffree
        message = error_of(lambda: pods.create(sandbox), ResourceExhausted)
        assert "with the owners of a user namespace does not fit on the disk" in message
        assert mortal.daemon.resources() == before
        assert trees(mortal.daemon) == []
        assert os.statvfs(root).f_ffree >= free - 2
    finally:
        mortal.close()
        subprocess.run(["umount", "-l", root], check=True)
