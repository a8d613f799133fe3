"""No mount of a pod in a user namespace can be made less protected from inside, whatever capabilities it has there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag
from support import remounting
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.images import Member, directory, file, layers_layout
from support.registry import Registry

ADMIN = {"capabilities": api.Capability(add_capabilities=["SYS_ADMIN"])}
TO_CONTAINER = api.PROPAGATION_HOST_TO_CONTAINER
BOTH_WAYS = api.PROPAGATION_BIDIRECTIONAL


@pytest.fixture
def volume(open_directory: Path) -> Iterator[Path]:
    """A directory with a file, open to everybody, and below it a tmpfs, a read-only and a protected mount."""
    path = open_directory / os.urandom(4).hex()
    with ExitStack() as undo:
        for name in ("", "below", "read-only", "protected", "inner"):
            (path / name).mkdir()
            (path / name).chmod(0o777)
        (path / "file").write_text("of the volume\n")
        (path / "file").chmod(0o666)
        for name in ("below", "protected"):
            attrs = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC if name == "protected" else MountFlag.NONE
            mounts.tmpfs(path / name, "size=1m,mode=777", attrs=attrs)
            undo.callback(mounts.unmount, path / name)
        mounts.bind(path / "inner", path / "read-only", readonly=True)
        undo.callback(mounts.unmount, path / "read-only")
        yield path


@pytest.fixture(scope="module")
def one_layer(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference of an image of one layer."""
    layers: list[tuple[Member, ...]] = [(directory("dir", 0o777), file("file", "in the image"))]
    return registry.push(layers_layout(tmp_path_factory.mktemp("one-layer"), layers), "one-layer:1")


def tree(top: Path) -> list[tuple[str, int, bytes]]:
    """Return what is in a directory: names, modes, content."""
    found = []
    for path in sorted(top.rglob("*")):
        found.append((str(path), path.lstat().st_mode, path.read_bytes() if path.is_file() else b""))
    return found


PROTECTED = {
    "/plain": {"ro"},
    "/mapped": {"ro"},
    "/plain-file": {"ro"},
    "/mapped-file": {"ro"},
    "/deep": {"ro"},
    "/deep/below": {"ro"},
    "/slave": {"ro"},
    "/outer/inner": {"ro"},
    "/of-the-machine": {"ro"},
    "/of-the-machine-mapped": {"ro"},
    "/flags": {"nosuid", "nodev", "noexec"},
    "/flags-mapped": {"nosuid", "nodev", "noexec"},
    "/whole/read-only": {"ro"},
    "/whole/protected": {"nosuid", "nodev", "noexec"},
    "/dev/termination-log": {"ro"},
    "/dev/fuse": {"nosuid", "noexec"},
    "/dev/shm": {"nosuid", "nodev", "noexec"},
    "/image": {"ro", "nosuid", "nodev", "noexec"},
    "/etc/hosts": {"ro"},
    "/etc/hostname": {"ro"},
    "/etc/resolv.conf": {"ro"},
    "/": {"ro"},
}


def volumes(volume: Path, image: str) -> list[api.Mount]:
    deep: dict[str, Any] = {"readonly": True, "recursive_read_only": True}
    return [
        bind(volume / "inner", "/plain", readonly=True),
        bind(volume / "inner", "/mapped", BLOCK, readonly=True),
        bind(volume / "file", "/plain-file", readonly=True),
        bind(volume / "file", "/mapped-file", BLOCK, readonly=True),
        bind(volume, "/deep", BLOCK, **deep),
        bind(volume / "inner", "/slave", BLOCK, readonly=True, propagation=TO_CONTAINER),
        bind(volume, "/outer", BLOCK),
        bind(volume / "inner", "/outer/inner", BLOCK, readonly=True),
        bind(volume / "read-only", "/of-the-machine"),
        bind(volume / "read-only", "/of-the-machine-mapped", BLOCK),
        bind(volume / "protected", "/flags"),
        bind(volume / "protected", "/flags-mapped", BLOCK),
        bind(volume, "/whole", BLOCK),
        bind(volume / "file", "/dev/termination-log", BLOCK, readonly=True),
        api.Mount(image=api.ImageSpec(image=image), container_path="/image", readonly=True),
    ]


@pytest.mark.requirement("V42")
@pytest.mark.parametrize("privileged", [False, True])
def test_no_flag_of_any_mount_can_be_taken_off(pods: Pods, volume: Path, one_layer: str, privileged: bool) -> None:
    pods.pull(one_layer)
    config = pod(options=namespaces(user=BLOCK), hostname="web", dns_config=api.DNSConfig(servers=["192.0.2.1"]))
    config.linux.security_context.privileged = privileged
    security = {"readonly_rootfs": True, **({"privileged": True} if privileged else ADMIN)}
    device = api.Device(container_path="/dev/fuse", host_path="/dev/fuse", permissions="rwm")
    container = pods.launch(pods.run(config), mounts=volumes(volume, one_layer), security=security, devices=[device])
    before = tree(volume)
    found = remounting.attack(pods.host_pid(container), list(PROTECTED))
    taken_off = {
        f"{path}: {attempt}": said
        for path, result in found.items()
        for attempt, said in result["attempts"].items()
        # The root is read-only as a file system: that its mount is not, has no effect.
        if said not in {"EPERM", "no effect" if path == "/" else ""}
    }
    assert taken_off == {}
    assert {path: set(result["flags"]) for path, result in found.items()} == PROTECTED
    written = {path for path, flags in PROTECTED.items() if "ro" in flags and found[path]["write"] != "EROFS"}
    assert written == set()
    # What is writable is so still.
    assert found["/flags-mapped"]["write"] == "done"
    assert tree(volume) == before


UNMASKED = r"""
mount -o remount,bind,rw /sys || exit 1
umount /proc/kcore /proc/timer_list /proc/keys /proc/sys /proc/sysrq-trigger /proc/irq /proc/bus /proc/fs /sys/firmware
mount | grep -c ' /proc/' >&2
for path in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/irq/default_smp_affinity \
    /sys/kernel/mm/transparent_hugepage/enabled /sys/power/state /sys/kernel/uevent_helper /sys/bus/pci/rescan; do
    test ! -e $path || ! (: > $path) 2>/dev/null || echo "wrote $path"
done
for path in /proc/kcore /proc/timer_list /sys/firmware/dmi/tables/DMI /proc/kmsg; do
    test ! -e $path || ! head -c 1 $path >/dev/null 2>&1 || echo "read $path"
done
for path in /sys/fs/cgroup /sys/fs/cgroup/*; do
    test -e $path/cgroup.procs || continue
    mount -o remount,bind,rw $path 2>/dev/null
    ! mkdir $path/by-the-pod 2>/dev/null || echo "made a cgroup in $path"
    ! (echo 1 > $path/cgroup.procs) 2>/dev/null || echo "moved a process in $path"
done
"""


def test_without_the_oci_runtimes_masks_owners_protect_the_machine(pods: Pods) -> None:
    """What the OCI runtime mounts inside can be undone there: it hides little from who is nobody on the machine."""
    config = pod(options=namespaces(user=BLOCK))
    container = pods.launch(pods.run(config), security=ADMIN)
    done = pods.exec(container, "sh", "-c", UNMASKED)
    assert done.stdout == b""
    assert done.exit_code == 0, done.stderr


def test_what_cannot_be_locked_is_refused(pods: Pods, volume: Path) -> None:
    """A mount that goes both ways is the machine's, flags and all."""
    mounts.set_propagation("/", mounts.Propagation.SHARED, recursive=True)
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    for mount in (
        bind(volume / "inner", "/v", BLOCK, readonly=True, propagation=BOTH_WAYS),
        bind(volume / "protected", "/v", BLOCK, propagation=BOTH_WAYS),
    ):
        message = error_of(lambda mount=mount: pods.create(sandbox, mounts=[mount]), FailedPrecondition)  # type: ignore[misc]
        assert "/v is read-only, nosuid, nodev or noexec, which a pod in a user namespace could undo" in message
        assert "use HostToContainer" in message
    assert pods.containers() == []


UNCOVERING = """
for path in $paths; do
    umount $path || umount -l $path || mount --move $path /elsewhere
    unshare -m umount $path
    mount --bind ${path%/*} /elsewhere && touch /elsewhere/${path##*/}/uncovered
    touch $path/uncovered
done 2>/dev/null
find / -xdev -name uncovered
"""


def test_what_is_mounted_below_a_volume_cannot_be_taken_off_it(pods: Pods, volume: Path) -> None:
    """Beneath is what the machine hides, or protects: a directory that is bound read-only onto itself."""
    (volume / "guarded").mkdir()
    (volume / "guarded").chmod(0o777)
    mounts.bind(volume / "guarded", volume / "guarded", readonly=True)
    try:
        binds = [
            bind(volume, "/mapped", BLOCK),
            bind(volume, "/plain"),
            bind(volume, "/slave", BLOCK, propagation=TO_CONTAINER),
            bind(volume, "/read-only", BLOCK, readonly=True),
            bind(volume / "file", "/mapped/below/file", BLOCK),  # A volume on what is mounted below.
        ]
        container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=binds, security=ADMIN)
        names = ("guarded", "read-only", "below", "protected")
        paths = " ".join(f"/{mount}/{name}" for mount in ("mapped", "plain", "slave", "read-only") for name in names)
        pods.exec(container, "sh", "-c", f"mkdir /elsewhere; paths='{paths}'; {UNCOVERING}")
        found = {entry.mount_point for entry in mountinfo.read(pods.host_pid(container))}
        assert set(paths.split()) <= found
    finally:
        mounts.unmount(volume / "guarded")
    beneath = mounts.clone_tree(volume)
    try:
        assert {name: os.listdir(f"/proc/self/fd/{beneath}/{name}") for name in names} == {name: [] for name in names}
    finally:
        os.close(beneath)


def test_what_is_mounted_later_into_a_locked_volume_is_seen_and_locked(pods: Pods, volume: Path) -> None:
    mount = bind(volume / "read-only", "/v", BLOCK, propagation=TO_CONTAINER)
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))), mounts=[mount], security=ADMIN)
    (volume / "inner/later").mkdir()
    mounts.bind(volume / "protected", volume / "read-only/later", readonly=True)
    try:
        found = remounting.attack(pods.host_pid(container), ["/v", "/v/later"])
        assert found["/v/later"]["flags"] == ["nodev", "noexec", "nosuid", "ro"]
        assert {said for result in found.values() for said in result["attempts"].values()} == {"EPERM"}
        assert {result["write"] for result in found.values()} == {"EROFS"}
    finally:
        mounts.unmount(volume / "read-only/later")
