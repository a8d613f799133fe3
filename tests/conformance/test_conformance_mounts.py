"""Mounts of host paths: kinds of source, propagation, read-only, devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import Propagation
from support.cri import bind, pod
from support.endpoint import Endpoint, Node
from support.images import busybox_layout, directory, file, symlink
from support.registry import Registry


@pytest.fixture
def shared_directory(host_directory: Path) -> Iterator[Path]:
    """A mount point of its own whose mounts are shared with its peers, with a mount point ``below`` in it."""
    path = host_directory / "shared"
    (path / "below").mkdir(parents=True)
    mounts.bind(path, path)
    mounts.set_propagation(path, Propagation.SHARED)
    try:
        yield path
    finally:
        mounts.unmount(path, lazy=True)


def privileged() -> api.PodSandboxConfig:
    """Return a pod that may mount."""
    config = pod()
    config.linux.security_context.privileged = True
    return config


def test_directory(node: Node, host_directory: Path) -> None:
    (host_directory / "file").write_text("content")
    container = node.launch(node.run(), mounts=[bind(host_directory, "/volume")])
    assert node.read(container, "cat /volume/file; echo new >/volume/new") == "content"
    assert (host_directory / "new").read_text() == "new\n"


def test_file(node: Node, host_directory: Path) -> None:
    (host_directory / "file").write_text("content")
    container = node.launch(node.run(), mounts=[bind(host_directory / "file", "/etc/a/new/file")])
    assert node.read(container, "cat /etc/a/new/file") == "content"


def test_source_that_is_a_symbolic_link(node: Node, host_directory: Path) -> None:
    (host_directory / "real").mkdir()
    (host_directory / "real/file").write_text("content")
    (host_directory / "link").symlink_to("real")
    container = node.launch(node.run(), mounts=[bind(host_directory / "link", "/volume")])
    assert node.read(container, "cat /volume/file") == "content"
    (shown,) = node.status(container).mounts
    assert shown.host_path == str(host_directory / ("link" if node.endpoint.is_reference else "real"))


def test_target_through_a_link_of_the_image_stays_in_the_container(
    node: Node, registry: Registry, host_directory: Path
) -> None:
    outside = host_directory / "outside"
    source = host_directory / "source"
    outside.mkdir()
    source.mkdir()
    layout = busybox_layout(
        host_directory / "image", layers=[[directory(str(outside)[1:]), symlink("way", str(outside))]]
    )
    reference = registry.push(layout, "wayout:1")
    node.fetch(reference)
    container = node.launch(node.run(), image=reference, mounts=[bind(source, "/way/volume")])
    assert node.exec(container, "test", "-d", "/way/volume").exit_code == 0
    assert list(outside.iterdir()) == []


def test_status_shows_the_mounts(node: Node, host_directory: Path) -> None:
    mounted = [bind(host_directory, "/one"), bind(host_directory, "/two", readonly=True)]
    container = node.create(node.run(), mounts=mounted)
    shown = {item.container_path: item for item in node.status(container).mounts}
    assert set(shown) == {"/one", "/two"}
    assert {item.host_path for item in shown.values()} == {str(host_directory)}
    assert (shown["/one"].readonly, shown["/two"].readonly) == (False, True)


@pytest.mark.reference(differs="a missing directory is made")
def test_source_that_is_missing(node: Node, host_directory: Path) -> None:
    sandbox = node.run()
    missing = host_directory / "missing"
    message = node.refused(
        lambda: node.launch(sandbox, mounts=[bind(missing, "/volume")]), InvalidArgument, NotFound, FailedPrecondition
    )
    assert str(missing) in message
    assert not missing.exists()


def test_source_that_is_a_link_to_nothing(node: Node, host_directory: Path) -> None:
    sandbox = node.run()
    (host_directory / "link").symlink_to("/no/such/target")
    node.refused(
        lambda: node.launch(sandbox, mounts=[bind(host_directory / "link", "/volume")]),
        InvalidArgument,
        NotFound,
        FailedPrecondition,
    )


def test_mounts_below_mounts(node: Node, host_directory: Path) -> None:
    for name in ("outer", "inner"):
        (host_directory / name).mkdir()
        (host_directory / name / "name").write_text(name)
    order = [bind(host_directory / "inner", "/volume/in"), bind(host_directory / "outer", "/volume")]
    container = node.launch(node.run(), mounts=order)
    assert node.read(container, "cat /volume/name /volume/in/name") == "outerinner"


def test_read_only(node: Node, host_directory: Path) -> None:
    container = node.launch(node.run(), mounts=[bind(host_directory, "/volume", readonly=True)])
    answer = node.exec(container, "touch", "/volume/file")
    assert (answer.exit_code, b"Read-only file system" in answer.stderr) == (1, True)
    assert list(host_directory.iterdir()) == []


def test_what_lies_below_a_mount_is_there(node: Node, shared_directory: Path) -> None:
    mounts.tmpfs(shared_directory / "below")
    (shared_directory / "below/file").write_text("content")
    container = node.launch(node.run(), mounts=[bind(shared_directory, "/volume")])
    assert node.read(container, "cat /volume/below/file") == "content"


def test_read_only_alone_is_not_recursive(node: Node, shared_directory: Path) -> None:
    mounts.tmpfs(shared_directory / "below")
    container = node.launch(node.run(), mounts=[bind(shared_directory, "/volume", readonly=True)])
    assert node.exec(container, "touch", "/volume/file").exit_code == 1
    assert node.exec(container, "touch", "/volume/below/file").exit_code == 0


@pytest.mark.reference(unsupported="no recursive read-only mounts")
class TestRecursiveReadOnly:
    """Served where the handler says that it can, refused where not (KEP-3857)."""

    def test_nothing_below_can_be_written(self, node: Node, shared_directory: Path) -> None:
        mounts.tmpfs(shared_directory / "below")
        sandbox = node.run()
        mount = bind(shared_directory, "/volume", readonly=True, recursive_read_only=True)
        if not node.handler().features.recursive_read_only_mounts:
            message = node.refused(lambda: node.create(sandbox, mounts=[mount]), InvalidArgument, FailedPrecondition)
            assert "RROUnsupported" in message
            return
        container = node.launch(sandbox, mounts=[mount])
        answer = node.exec(container, "touch", "/volume/below/file")
        assert (answer.exit_code, b"Read-only file system" in answer.stderr) == (1, True)
        assert node.status(container).mounts[0].recursive_read_only

    @pytest.mark.parametrize("propagation", [api.PROPAGATION_HOST_TO_CONTAINER, api.PROPAGATION_BIDIRECTIONAL])
    def test_with_propagation_is_refused(self, node: Node, shared_directory: Path, propagation: int) -> None:
        sandbox = node.run(privileged())
        mount = bind(shared_directory, "/volume", readonly=True, recursive_read_only=True, propagation=propagation)
        node.refused(lambda: node.create(sandbox, mounts=[mount]), InvalidArgument)
        assert node.containers() == []

    def test_without_read_only_is_refused(self, node: Node, shared_directory: Path) -> None:
        sandbox = node.run()
        mount = bind(shared_directory, "/volume", recursive_read_only=True)
        node.refused(lambda: node.create(sandbox, mounts=[mount]), InvalidArgument)
        assert node.containers() == []


# propagation


@pytest.mark.parametrize(
    ("propagation", "inward", "outward"),
    [
        (api.PROPAGATION_PRIVATE, False, False),
        (api.PROPAGATION_HOST_TO_CONTAINER, True, False),
        (api.PROPAGATION_BIDIRECTIONAL, True, True),
    ],
    ids=["private", "host to container", "bidirectional"],
)
def test_propagation(
    node: Node, endpoint: Endpoint, shared_directory: Path, propagation: int, inward: bool, outward: bool
) -> None:
    (shared_directory / "from-container").mkdir()
    mount = bind(shared_directory, "/volume", propagation=propagation)
    container = node.launch(node.run(privileged()), mounts=[mount], security={"privileged": True})
    assert node.status(container).mounts[0].propagation == propagation
    mounts.tmpfs(shared_directory / "below")
    (shared_directory / "below/file").touch()
    assert (node.read(container, "ls -A /volume/below") == "file") is inward
    node.read(container, "mount -t tmpfs none /volume/from-container && touch /volume/from-container/file")
    seen = endpoint.sees(shared_directory / "from-container")
    assert ([path.name for path in seen.iterdir()] == ["file"]) is outward
    if outward:
        endpoint.run_inside("umount", shared_directory / "from-container")


def test_propagation_to_the_machine(node: Node, endpoint: Endpoint, shared_directory: Path) -> None:
    """The one thing that hiding takes away, see ``support.container_mounts.DIFFER``.

    [k8s.io] [sig-node] Mount propagation should propagate mounts to the host.
    """
    (shared_directory / "from-container").mkdir()
    mount = bind(shared_directory, "/volume", propagation=api.PROPAGATION_BIDIRECTIONAL)
    container = node.launch(node.run(privileged()), mounts=[mount], security={"privileged": True})
    node.read(container, "mount -t tmpfs none /volume/from-container && touch /volume/from-container/file")
    seen = [path.name for path in (shared_directory / "from-container").iterdir()]
    endpoint.run_inside("umount", shared_directory / "from-container")
    assert seen == ["file"]


@pytest.mark.parametrize("propagation", [api.PROPAGATION_HOST_TO_CONTAINER, api.PROPAGATION_BIDIRECTIONAL])
def test_propagation_needs_a_shared_source(
    node: Node, endpoint: Endpoint, host_directory: Path, propagation: int
) -> None:
    path = host_directory / "private"
    path.mkdir()
    mounts.bind(path, path)
    endpoint.run_inside("mount", "--make-private", path)
    try:
        sandbox = node.run(privileged())
        mount = bind(path, "/volume", propagation=propagation)
        node.refused(
            lambda: node.launch(sandbox, mounts=[mount], security={"privileged": True}),
            InvalidArgument,
            FailedPrecondition,
        )
    finally:
        mounts.unmount(path, lazy=True)


# devices and volumes of images


def test_device(node: Node) -> None:
    devices = [api.Device(host_path="/dev/null", container_path="/dev/sink", permissions="rw")]
    container = node.launch(node.run(), devices=devices)
    assert node.read(container, "echo lost >/dev/sink; stat -c %F /dev/sink") == "character special file"


def test_device_that_is_missing(node: Node) -> None:
    sandbox = node.run()
    devices = [api.Device(host_path="/dev/no-such-device", container_path="/dev/x", permissions="rwm")]
    node.refused(lambda: node.launch(sandbox, devices=devices), InvalidArgument, NotFound)


def test_devices_that_every_container_has(node: Node) -> None:
    container = node.launch(node.run())
    assert node.read(container, "for d in null zero full random urandom tty; do test -c /dev/$d || echo $d; done") == ""
    assert node.read(container, "readlink /dev/ptmx; readlink /dev/fd").split() == ["pts/ptmx", "/proc/self/fd"]
    assert node.exec(container, "sh", "-c", "mknod /tmp/disk b 7 0 && cat /tmp/disk").exit_code != 0


def test_volume_of_the_image_holds_what_the_image_has_there(
    node: Node, registry: Registry, host_directory: Path
) -> None:
    layers = [[directory("data", uid=1000, gid=1000), file("data/seed", "seed", uid=1000, gid=1000)]]
    layout = busybox_layout(
        host_directory / "image", layers=layers, config={"Volumes": {"/data": {}, "/fresh/one": {}}}
    )
    reference = registry.push(layout, "volumes:1")
    node.fetch(reference)
    container = node.launch(node.run(), image=reference)
    assert node.read(container, "cat /data/seed; stat -c :%u:%g /data/seed; touch /data/new /fresh/one/new") == (
        "seed:1000:1000"
    )
    assert " /data " in node.read(container, "cat /proc/mounts")
