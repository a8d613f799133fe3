"""Four pods and the host mount in one directory: who sees what, hidden from the host and not (seed 002, Test Plan)."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation
from support.cri import BLOCK, Pods, Triple, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.propagation import (
    PROPAGATIONS,
    SEEN,
    SEEN_BY_CONTAINERS,
    TARGET,
    Agent,
    Node,
    Scene,
    groups,
    kinds_below,
    launch,
    launch_with,
    mode_daemon,
    mount_namespace,
    pod_manifest,
    run_in,
    table,
)

USERS = pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
AGENT_MODES = {"master": "Bidirectional", "slave": "HostToContainer", "private": "None", "default": None}


@USERS
@pytest.mark.requirement("M22", "M25", "M31", "M39", "M40")
def test_mounts_within_defined_scopes(node: Node, user: Triple | None) -> None:
    """Also of pods in user namespaces: a privileged container may mount there, and its volumes are peers as any."""
    scene = launch(node.pods, node.volume, user=user)
    with scene.mounted():
        assert scene.seen(runtime=node.runtime) == SEEN[node.mode]
    assert scene.seen(runtime=node.runtime) == {observer: set() for observer in SEEN[node.mode]}


@USERS
def test_volumes_with_mounts_below_get_what_the_host_mounts(
    node: Node, open_directory: Path, user: Triple | None
) -> None:
    """Whichever of the two asked for it, and only that one."""
    volumes = {name: open_directory / os.urandom(4).hex() for name in ("outer", "inner")}
    for path in (*volumes.values(), volumes["outer"] / "shared", node.volume / "inner", node.volume / "late"):
        path.mkdir()
        path.chmod(0o777)
    follows = {"propagation": api.PROPAGATION_HOST_TO_CONTAINER}
    ids = () if user is None else (user,)
    wanted = [
        bind(node.volume, "/above", *ids, **follows),
        bind(volumes["inner"], "/above/inner", *ids),
        bind(volumes["outer"], "/below", *ids),
        bind(node.volume, "/below/shared", *ids, **follows),
        bind(node.volume, "/neither", *ids),
        bind(volumes["inner"], "/neither/inner", *ids),
    ]
    container = node.pods.launch(node.pods.run(pod(options=namespaces(user=user))), mounts=wanted)
    mounts.tmpfs(node.volume / "late")
    try:
        (node.volume / "late" / "file").touch()
        seen = node.pods.read(container, "ls -d /*/late/file /*/shared/late/file; ls /above/inner /neither/inner")
        assert "/above/late/file" in seen.split()
        assert "/below/shared/late/file" in seen.split()
        assert "/neither/late/file" not in seen.split()
    finally:
        mounts.unmount(node.volume / "late")


def run_manifest(node: Node, image: str, **spec: object) -> Agent:
    """Return an agent, not started, with the four pods."""
    volumes = [{"name": "test", "hostPath": {"path": str(node.volume)}}]
    manifests = []
    for name, propagation in AGENT_MODES.items():
        mount = {"name": "test", "mountPath": TARGET}
        if propagation is not None:
            mount["mountPropagation"] = propagation
        manifests.append(pod_manifest(name, image, mounts=[mount], volumes=volumes, **spec))
    return Agent(node.daemon, node.pods, *manifests)


@pytest.mark.parametrize("host_users", [True, False], ids=["host users", "own users"])
@pytest.mark.requirement("M22", "M39", "M40")
def test_mounts_within_defined_scopes_of_manifests(node: Node, image: str, host_users: bool) -> None:
    with run_manifest(node, image, hostUsers=host_users) as agent:
        scene = Scene(pods=node.pods, volume=node.volume, containers=agent.containers())
        with scene.mounted():
            seen = scene.seen(runtime=node.runtime, agent=agent.pid)
            assert seen == SEEN[node.mode] | {"agent": {"master", "host"}}


def original_holds(scene: Scene) -> bool:
    """Return whether "Mount propagation should propagate mounts to the host" passes, as it was before the seed."""
    seen = scene.seen()
    containers = {name: seen[name] for name in scene.containers}
    return containers == SEEN_BY_CONTAINERS and "master" in seen["host"] and "slave" not in seen["host"]


def modified_holds(scene: Scene, runtime: int) -> bool:
    """Return whether "should propagate mounts within defined scopes" passes, as the seed changed it."""
    seen = scene.seen(runtime=runtime)
    containers = {name: seen[name] for name in scene.containers}
    return containers == SEEN_BY_CONTAINERS and seen["runtime"] == {"host", "master"}


HOLDS = {
    ("original", "hidden"): False,
    ("original", "shown"): True,
    ("modified", "hidden"): True,
    ("modified", "shown"): True,
}


@pytest.mark.requirement("M26", "M41")
def test_the_one_test_that_hiding_breaks(node: Node) -> None:
    """The host's view of mounts of containers is given up on purpose, and nothing else is."""
    scene = launch(node.pods, node.volume)
    with scene.mounted():
        held = {"original": original_holds(scene), "modified": modified_holds(scene, node.runtime)}
    assert held == {variant: HOLDS[variant, node.mode] for variant in ("original", "modified")}


# relations


@pytest.mark.requirement("M25", "M31")
def test_namespaces_below_keep_their_relation(node: Node) -> None:
    """Containers are to the runtime's mounts what they were to the host's; those are slaves of the host's."""
    mounts.bind(node.volume, node.volume)
    try:
        mounts.set_propagation(node.volume, Propagation.SHARED)
        scene = launch(node.pods, node.volume)
        above = groups_at(node.volume, node.runtime)
        of_host = groups_at(node.volume)
        found = {name: groups_at(TARGET, node.pods.host_pid(container)) for name, container in scene.containers.items()}
    finally:
        for sandbox in [item.id for item in node.pods.sandboxes()]:
            node.pods.remove(sandbox)
        mounts.unmount(node.volume)
    assert found["master"]["shared"] == above["shared"]
    assert found["slave"] == {"master": above["shared"]}
    assert found["private"] == found["default"] == {}
    if node.mode == "hidden":
        assert above == {"shared": above["shared"], "master": of_host["shared"]}
        assert above["shared"] != of_host["shared"]
    else:
        assert above == of_host


def groups_at(path: Path | str, pid: int | None = None) -> dict[str, int]:
    (found,) = (entry for entry in mountinfo.read(pid) if entry.mount_point == str(path))
    return groups(found)


@pytest.mark.parametrize("name", ["master", "slave"])
@pytest.mark.requirement("M31")
def test_a_source_that_is_not_shared(node: Node, name: str) -> None:
    """It is refused, and with the command of the hint it is no more."""
    assert run_in(node.runtime, "mount", "-t", "tmpfs", "none", node.volume).returncode == 0
    try:
        assert run_in(node.runtime, "mount", "--make-private", node.volume).returncode == 0
        sandbox = node.pods.run(pod())
        mount = bind(node.volume, TARGET, propagation=PROPAGATIONS[name])
        refused = error_of(lambda: node.pods.create(sandbox, mounts=[mount]), FailedPrecondition)
        wanted = "a shared mount" if name == "master" else "a shared or slave mount"
        assert f"path '{node.volume}' is mounted on '{node.volume}' but it is not {wanted}" in refused
        command = shlex.split(refused.partition("`")[2].partition("`")[0])
        subprocess.run(command, check=True)
        assert node.pods.launch(sandbox, mounts=[mount])
    finally:
        run_in(node.runtime, "umount", "-l", node.volume)


# what the runtime mounts


@USERS
@pytest.mark.requirement("M19", "M37")
def test_no_line_more_on_the_host(node: Node, user: Triple | None) -> None:
    """Overlays, shared memory, pinned namespaces: all of it is inside."""
    before = table()
    for number in range(4):
        launch_with(node.pods, bind(node.volume, "/volume", *(() if user is None else (user,))), str(number), user)
    assert (table() == before) is (node.mode == "hidden")
    run = node.daemon.layout.run
    inside = set(kinds_below(run, node.runtime).values())
    assert {"overlay", "tmpfs", "nsfs"} <= inside
    if node.mode == "hidden":
        assert kinds_below(run) == {}
        assert mount_namespace(node.runtime) != mount_namespace()
    else:
        assert kinds_below(run) == kinds_below(run, node.runtime)
        assert mount_namespace(node.runtime) == mount_namespace()


# the enhancement's own words


@pytest.fixture
def literal(open_directory: Path, image: str) -> Iterator[Daemon]:
    """A daemon, not started, whose mount namespace is made as the unit of the enhancement is printed."""
    base = open_directory / os.urandom(4).hex()
    daemon = mode_daemon("hidden", base, image)
    pin = base / "mountns/mnt"
    before = table()
    pin.parent.mkdir()
    mounts.bind(pin.parent, pin.parent)
    mounts.set_propagation(pin.parent, Propagation.UNBINDABLE)
    pin.touch()
    # The kernel lets only a namespace with a higher ID than the host's be pinned there; IDs come from the CPU.
    made = [
        subprocess.run(
            ["taskset", "-c", str(cpu), "unshare", f"--mount={pin}", "--propagation", "slave", "true"], check=False
        )
        for cpu in sorted(os.sched_getaffinity(0))
        if not mountinfo.is_mount_point(pin)
    ]
    assert made[-1].returncode == 0
    yield daemon
    daemon.end()
    mounts.unmount(pin)
    mounts.unmount(pin.parent)
    assert table() == before


@pytest.mark.requirement("M5")
def test_a_namespace_that_is_only_a_slave(literal: Daemon, image: str) -> None:
    """Guarantee 2 does not hold in it: a Bidirectional volume is refused, and others see the host's mounts only.

    So no daemon starts in it. This one was there before somebody made it so.
    """
    ended = literal.run("runtime", timeout=30)
    assert ended.returncode == 1
    assert "/ is private,slave in the mount namespace" in ended.stderr
    subprocess.run(shlex.split(ended.stderr.partition("hint: `")[2].partition("`")[0]), check=True)
    literal.start()
    assert groups(mountinfo.read(literal.pid)[0]).keys() == {"shared", "master"}
    assert run_in(literal.pid, "mount", "--make-rslave", "/").returncode == 0
    volume = literal.base / "volume"
    (volume / "runtime").mkdir(parents=True)
    (volume / "host").mkdir()
    with Pods(literal.socket, image) as pods:
        pods.pull()
        assert groups(mountinfo.read(literal.pid)[0]).keys() == {"master"}
        scene = launch(pods, volume, propagations={"slave": api.PROPAGATION_HOST_TO_CONTAINER})
        refused = error_of(
            lambda: launch(pods, volume, propagations={"master": PROPAGATIONS["master"]}), FailedPrecondition
        )
        assert "it is not a shared mount" in refused
        assert f"nsenter --target {literal.pid} --mount -- mount --make-rshared " in refused
        assert run_in(literal.pid, "mount", "-t", "tmpfs", "runtime", volume / "runtime").returncode == 0
        mounts.tmpfs(volume / "host")
        try:
            mounted = pods.read(scene.containers["slave"], "cat /proc/mounts")
            assert (f" {TARGET}/host " in mounted, f" {TARGET}/runtime " in mounted) == (True, False)
        finally:
            mounts.unmount(volume / "host")
            run_in(literal.pid, "umount", volume / "runtime")
