"""Images as volumes (KEP-4639, CRI: Mount.image): content, read-only for good, sub paths, user namespaces, lifetime."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, NotFound, Unavailable
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mountinfo
from support.cri import BLOCK, OTHER_BLOCK, Pods, Triple, bind, error_of, mappings, namespaces, pod
from support.daemon import Daemon
from support.images import BUSYBOX, Member, directory, file, layers_layout, symlink
from support.mortal import Mortal
from support.registry import Registry
from support.resources import Resources
from support.waiting import wait_for

FAILED = "ImageVolumeMountFailed: "
_Id = api.Int64Value
PRIVILEGED = {"privileged": True}
ADMIN = {"capabilities": api.Capability(add_capabilities=["SYS_ADMIN"])}
BASE = (
    directory("bin"), file("bin/busybox", BUSYBOX.read_bytes(), 0o4755), symlink("bin/echo", "busybox"),
    file("file", "base"), file("gone", "gone"), directory("dir"), file("dir/file", "in dir"),
    directory("private", 0o700, uid=1000, gid=1000), file("private/secret", "secret", 0o600, uid=1000, gid=1000),
    directory("far", 0o700, uid=70000, gid=70000), directory("far/away"), file("far/away/file", "far"),
    directory("etc"), file("etc/inside", "inside"),
    symlink("link", "dir"), symlink("evil", "/etc"), symlink("up", "../../../../etc"), symlink("loop", "loop"),
    Member(name="pipe", kind=b"6"),
)  # fmt: skip
TOP = (file("file", "top"), file(".wh.gone"))
ONLY = (file("file", "top"), directory("dir"), file("dir/file", "in dir"))


def push(registry: Registry, path: Path, name: str, *layers: tuple[Member, ...]) -> str:
    """Push an image of these layers and return its reference."""
    return registry.push(layers_layout(path, layers), name)


def images(pods: Pods) -> list[str]:
    return [image.id for image in pods.images()]


@pytest.fixture(scope="session")
def data_reference(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference of an image of two layers that is no root file system."""
    return push(registry, tmp_path_factory.mktemp("data"), "data:1", BASE, TOP)


@pytest.fixture
def data(pods: Pods, data_reference: str) -> Iterator[str]:
    """That image, pulled by the shared daemon; afterwards it can be removed, and is."""
    pods.pull(data_reference)
    yield data_reference
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    pods.remove_image(data_reference)
    assert data_reference not in images(pods)


def daemon_with(base: Path, registry: Registry, setting: str) -> Daemon:
    """Return a daemon, not started, with a setting."""
    base.mkdir()
    return Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n', settings=(setting,))


def volume(reference: str, path: str = "/volume", sub_path: str = "", **fields: object) -> api.Mount:
    """Return a mount of an image as the kubelet writes it."""
    given = {"container_path": path, "readonly": True, "image_sub_path": sub_path} | fields
    return api.Mount(image=api.ImageSpec(image=reference), **given)  # type: ignore[arg-type]


def mounted_at(pods: Pods, container: str, path: str) -> mountinfo.MountEntry:
    """Return what is mounted at ``path`` in a container."""
    (found,) = [item for item in mountinfo.read(pods.host_pid(container)) if item.mount_point == path]
    return found


def at_rest(daemon: Daemon) -> Resources:
    """Return what the daemon holds once its helper let go of the namespaces that it made for the last answer."""

    def settled() -> Resources | None:
        found = daemon.resources()
        return found if len(found.held_namespaces) <= 1 else None

    found = wait_for(settled, "the helper to let go of namespaces")
    assert found is not None
    return found


@pytest.mark.requirement("V39", "V41", "V53", "V54", "V55")
def test_content_of_an_image_is_mounted(pods: Pods, data: str) -> None:
    container = pods.launch(pods.run(), mounts=[volume(data)])
    listing = pods.read(container, "cd /volume; find . -mindepth 1 | sort")
    assert listing.split() == sorted(f"./{member.name}" for member in BASE if member.name != "gone")
    assert pods.read(container, "cat /volume/file /volume/dir/file") == "topin dir"
    assert pods.read(container, "stat -c '%u %g %a' /volume/private") == "1000 1000 700"
    entry = mounted_at(pods, container, "/volume")
    assert (entry.fs_type, entry.root) == ("overlay", "/")
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options)
    assert not [option for option in entry.super_options if option.startswith("upperdir")]


@pytest.mark.requirement("V55")
def test_what_an_upper_layer_hides_is_not_there(pods: Pods, registry: Registry, tmp_path: Path) -> None:
    """A whiteout hides a file or a directory, an opaque directory all that lower layers have in it."""
    lower = (
        directory("opaque"), file("opaque/old"), directory("opaque/below"), file("opaque/below/old"),
        directory("gone"), file("gone/old"), file("kept", "kept"),
    )  # fmt: skip
    upper = (directory("opaque"), file("opaque/.wh..wh..opq"), file("opaque/new"), file(".wh.gone"))
    reference = push(registry, tmp_path / "hides", "hides:1", lower, upper)
    pods.pull(reference)
    sandbox = pods.run()
    container = pods.launch(sandbox, mounts=[volume(reference)])
    found = pods.read(container, "cd /volume; find . -mindepth 1 | sort").split()
    pods.remove(sandbox)
    pods.remove_image(reference)
    assert found == ["./kept", "./opaque", "./opaque/new"]


@pytest.mark.requirement("V66")
def test_image_of_a_root_file_system_is_a_volume_as_well(pods: Pods) -> None:
    container = pods.launch(pods.run(), mounts=[volume(pods.image)])
    assert pods.read(container, "ls /volume/bin/busybox") == "/volume/bin/busybox"
    assert mounted_at(pods, container, "/volume").fs_type == "overlay"


@pytest.mark.requirement("V18", "V41")
def test_programs_in_a_volume_cannot_be_run(pods: Pods, data: str) -> None:
    container = pods.launch(pods.run(), mounts=[volume(data)])
    refused = pods.exec(container, "sh", "-c", "/volume/bin/echo hello")
    assert refused.exit_code == 126
    assert b"Permission denied" in refused.stderr


@pytest.mark.requirement("V41", "V111")
def test_programs_can_be_run_where_the_setting_says_so(
    open_directory: Path, registry: Registry, image: str, data_reference: str
) -> None:
    daemon = daemon_with(open_directory / "exec", registry, "runtime.image_volume_noexec=false")
    with daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        pods.pull(data_reference)
        container = pods.launch(pods.run(), mounts=[volume(data_reference)])
        assert pods.read(container, "/volume/bin/echo hello") == "hello"
        entry = mounted_at(pods, container, "/volume")
        assert {"ro", "nosuid", "nodev"} <= set(entry.options)
        assert "noexec" not in entry.options


WRITES = (
    "touch /volume/new", "echo x > /volume/file", "rm /volume/file", "mkdir /volume/d", "chmod 777 /volume/dir",
    "mv /volume/file /volume/other", "ln -s x /volume/l",
)  # fmt: skip
FLAGS_OFF = ("mount -o remount,bind,rw /volume", "mount -o remount,bind,rw,exec,suid,dev /volume")
"""What changes the flags of the mount, and not the file system: the machine's own root may."""
REMOUNTS = (
    *FLAGS_OFF, "mount -o remount,rw /volume", "mount -o remount,rw,exec,suid,dev /volume",
    "mount --bind /volume /tmp/copy && mount -o remount,bind,rw /tmp/copy && touch /tmp/copy/new",
    "mount -t overlay -o lowerdir=/volume:/volume/dir,upperdir=/volume,workdir=/volume/dir none /tmp/copy",
    "umount /volume && touch /volume/dir/new",
)  # fmt: skip


@pytest.mark.requirement("V18", "V41", "V42")
@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize("layers", [(BASE, TOP), (ONLY,)], ids=["two layers", "one layer"])
def test_read_only_cannot_be_undone(
    pods: Pods,
    registry: Registry,
    tmp_path: Path,
    layers: tuple[tuple[Member, ...], ...],
    user: Triple | None,
    privileged: bool,
) -> None:
    data = push(registry, tmp_path, f"read-only-{len(layers)}:1", *layers)
    pods.pull(data)
    config = pod(options=namespaces(user=user))
    config.linux.security_context.privileged = privileged
    sandbox = pods.run(config)
    security = PRIVILEGED if privileged else ADMIN
    for number, remount in enumerate(REMOUNTS):
        container = pods.launch(sandbox, name=f"c{number}", mounts=[volume(data)], security=security)
        pods.read(container, "mkdir -p /tmp/copy")
        done = pods.exec(container, "sh", "-c", remount)
        may_change_flags = user is None and remount in FLAGS_OFF
        assert (done.exit_code == 0) == may_change_flags, (remount, done.stderr)
        if not remount.startswith("umount"):
            for write in WRITES:
                said = pods.exec(container, "sh", "-c", write)
                assert said.exit_code != 0, (remount, write)
                assert b"Read-only file system" in said.stderr, (remount, write)
        pods.remove_container(container)
    again = pods.launch(sandbox, name="again", mounts=[volume(data)])
    assert pods.read(again, "cat /volume/file; ls /volume/dir; stat -c %a /volume/dir") == "topfile\n755"


@pytest.mark.requirement("V51")
@pytest.mark.parametrize("mapped", [True, False], ids=["mappings on the mount", "none"])
def test_owners_in_a_user_namespace_are_the_images(pods: Pods, data: str, mapped: bool) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    fields = {"uidMappings": mappings(BLOCK), "gidMappings": mappings(BLOCK)} if mapped else {}
    container = pods.launch(sandbox, mounts=[volume(data, **fields), volume(data, "/part", "private", **fields)])
    assert pods.read(container, "stat -c '%u %g' /volume /volume/private /part /part/secret").split("\n") == [
        "0 0", "1000 1000", "1000 1000", "1000 1000",
    ]  # fmt: skip
    # Who is not in the pod's block is nobody.
    assert pods.read(container, "stat -c '%u' /volume/far") == "65534"
    assert list(pods.status(container).mounts[0].uidMappings) == (mappings(BLOCK) if mapped else [])


@pytest.mark.requirement("V51")
@pytest.mark.parametrize(("of_pod", "seen"), [(None, 65536), (OTHER_BLOCK, 65534)])
def test_volume_is_mapped_as_its_own_mappings_say(pods: Pods, data: str, of_pod: Triple | None, seen: int) -> None:
    sandbox = pods.run(pod(options=namespaces(user=of_pod)))
    wanted = volume(data, uidMappings=mappings(BLOCK), gidMappings=mappings(BLOCK))
    container = pods.launch(sandbox, mounts=[wanted])
    assert pods.read(container, "stat -c '%u %g' /volume/file") == f"{seen} {seen}"


@pytest.mark.requirement("V38", "V51")
def test_sub_path_through_a_directory_of_nobody(pods: Pods, data: str) -> None:
    """Who has no ID in the pod keeps its directories to itself, in the pod and on the way to a sub path alike."""
    wanted = [volume(data, sub_path="far/away")]
    assert pods.read(pods.launch(pods.run(), mounts=wanted), "cat /volume/file") == "far"
    sandbox = pods.run(pod("mapped", options=namespaces(user=BLOCK)))
    assert "Permission denied" in error_of(lambda: pods.create(sandbox, mounts=wanted), InvalidArgument)


@pytest.mark.requirement("V36", "V109", "V113")
@pytest.mark.parametrize(
    ("sub_path", "found"),
    [("dir", "in dir"), ("dir/", "in dir"), ("./dir/.", "in dir"), ("link", "in dir"), ("bin/../dir", None)],
)
def test_sub_path(pods: Pods, data: str, sub_path: str, found: str | None) -> None:
    sandbox = pods.run()
    if found is None:
        assert "holds '..'" in error_of(
            lambda: pods.create(sandbox, mounts=[volume(data, sub_path=sub_path)]), InvalidArgument
        )
        return
    container = pods.launch(sandbox, mounts=[volume(data, sub_path=sub_path)])
    assert pods.read(container, "cat /volume/file; ls -a /volume/..| grep -c busybox || true") == f"{found}0"
    entry = mounted_at(pods, container, "/volume")
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options)
    assert pods.exec(container, "touch", "/volume/new").exit_code != 0
    assert pods.status(container).mounts[0].image_sub_path == sub_path


@pytest.mark.requirement("V38")
@pytest.mark.parametrize("sub_path", ["evil", "up"])
def test_symbolic_links_stay_inside_the_image(pods: Pods, data: str, sub_path: str) -> None:
    container = pods.launch(pods.run(), mounts=[volume(data, sub_path=sub_path)])
    assert pods.read(container, "ls /volume; cat /volume/inside") == "inside\ninside"


@pytest.mark.requirement("V37", "V38", "V45", "V109", "V113")
@pytest.mark.parametrize(
    ("sub_path", "told"),
    [
        ("not-existing", "No such file"), ("dir/none", "No such file"), ("file/x", "Not a directory"),
        ("loop", "symbolic links"), ("/etc", "absolute"), ("../etc", "holds '..'"), ("dir/../../..", "holds '..'"),
        ("a\0b", "NUL"), ("x" * 300, "too long"), ("d/" * 3000, "longer than a path"), ("pipe", "no directory"),
        ("file", "runtime.image_volume_files"),
    ],
)  # fmt: skip
def test_sub_path_that_is_refused(pods: Pods, daemon: Daemon, data: str, sub_path: str, told: str) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    before = at_rest(daemon)
    # The good mounts before and after it must be gone as well.
    wanted = [volume(data, "/a"), volume(data, sub_path=sub_path), volume(data, "/b")]
    message = error_of(lambda: pods.create(sandbox, mounts=wanted), InvalidArgument)
    assert message.startswith(FAILED)
    assert told in message
    assert sub_path[:20].replace("\0", "\\x00") in message
    assert pods.containers() == []
    assert at_rest(daemon) == before


def test_single_files_behind_a_setting(
    open_directory: Path, registry: Registry, image: str, data_reference: str
) -> None:
    daemon = daemon_with(open_directory / "files", registry, "runtime.image_volume_files=true")
    with daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        pods.pull(data_reference)
        for number, user in enumerate((None, BLOCK)):
            sandbox = pods.run(pod(f"pod{number}", options=namespaces(user=user)))
            before = at_rest(daemon)
            container = pods.launch(sandbox, mounts=[volume(data_reference, "/etc/motd", "dir/file")])
            assert pods.read(container, "cat /etc/motd") == "in dir"
            assert pods.exec(container, "sh", "-c", "echo x > /etc/motd").exit_code != 0
            assert FAILED in error_of(
                lambda: pods.create(sandbox, name="x", mounts=[volume(data_reference, sub_path="pipe")]),  # noqa: B023
                InvalidArgument,
            )
            pods.remove_container(container)
            assert at_rest(daemon) == before


@pytest.mark.requirement("V35", "V112")
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"readonly": False}, "readonly"),
        ({"host_path": "/tmp"}, "exclude each other"),
        ({"image": api.ImageSpec()}, "image.image is required"),
        ({"propagation": api.PROPAGATION_BIDIRECTIONAL}, "propagation"),
        ({"container_path": "volume"}, "is not absolute"),
        ({"container_path": "/"}, "container's root"),
        ({"propagation": 7}, "propagation"),
        ({"uidMappings": mappings(BLOCK)}, "mapp"),
    ],
)
def test_mount_that_contradicts_itself(pods: Pods, fields: dict[str, object], told: str) -> None:
    sandbox = pods.run()
    mount = api.Mount(**({"container_path": "/volume", "readonly": True, "image": _spec(pods.image)} | fields))  # type: ignore[arg-type]
    assert told in error_of(lambda: pods.create(sandbox, mounts=[mount]), InvalidArgument)
    assert pods.containers() == []


def _spec(reference: str) -> api.ImageSpec:
    return api.ImageSpec(image=reference)


def test_the_sub_path_of_a_host_path_is_in_it_already(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    container = pods.launch(pods.run(), mounts=[bind(tmp_path, "/volume", image_sub_path="dir")])
    assert pods.read(container, "cat /volume/file") == "content"


@pytest.mark.requirement("V35", "V79")
@pytest.mark.parametrize(
    "fields",
    [
        {"selinux_relabel": True},
        {"recursive_read_only": True},
        {"propagation": api.PROPAGATION_HOST_TO_CONTAINER},
    ],
)
def test_what_holds_for_an_image_volume_anyway_is_accepted(
    pods: Pods, daemon: Daemon, data: str, fields: dict[str, object]
) -> None:
    def labels() -> list[list[tuple[str, bytes]]]:
        found = sorted(path for driver in ("erofs", "layers") for path in (daemon.layout.images / driver).rglob("*"))
        assert found
        return [
            [
                (name, os.getxattr(path, name, follow_symlinks=False))
                for name in os.listxattr(path, follow_symlinks=False)
            ]
            for path in found
        ]

    before = labels()
    container = pods.launch(pods.run(), mounts=[volume(data, **fields)])
    assert pods.read(container, "cat /volume/file") == "top"
    assert labels() == before


@pytest.mark.requirement("V40")
def test_image_that_is_not_here_is_not_pulled(pods: Pods, registry: Registry, tmp_path: Path) -> None:
    reference = push(registry, tmp_path, "unpulled:1", BASE)
    sandbox, here = pods.run(), images(pods)
    message = error_of(lambda: pods.create(sandbox, mounts=[volume(reference)]), NotFound)
    assert message.startswith(f"{FAILED}config.mounts[0]: image {reference!r} is not here")
    assert images(pods) == here
    assert pods.containers() == []


@pytest.mark.requirement("V33", "V35", "V49", "V110")
@pytest.mark.parametrize("form", ["reference", "id", "short id", "digest"])
def test_status_names_the_image_as_the_list_does(pods: Pods, data: str, form: str) -> None:
    shown = pods.call("ImageStatus", api.ImageStatusRequest(image=_spec(data)), service="images").image
    asked = {"reference": data, "id": shown.id, "short id": shown.id[7:20], "digest": shown.repo_digests[0]}[form]
    spec = api.ImageSpec(image=asked, user_specified_image="as the user wrote it")
    mount = api.Mount(container_path="/volume", readonly=True, image=spec, image_sub_path="dir")
    container = pods.create(pods.run(), mounts=[mount])
    (echoed,) = pods.status(container).mounts
    assert (echoed.container_path, echoed.host_path, echoed.readonly) == ("/volume", "", True)
    assert echoed.image_sub_path == "dir"
    assert (echoed.image.image, echoed.image.image_ref) == (shown.id, pods.pull(data))
    assert echoed.image.user_specified_image == "as the user wrote it"


def test_a_repeated_request_finds_its_container(pods: Pods, data: str) -> None:
    sandbox = pods.run()
    container = pods.create(sandbox, mounts=[volume(data)])
    assert pods.create(sandbox, mounts=[volume(data)]) == container


def test_every_status_has_the_same_image_id(pods: Pods) -> None:
    pulled = pods.pull()
    container = pods.launch(pods.run())
    listed = [item for item in pods.containers() if item.id == container]
    status = pods.call("ImageStatus", api.ImageStatusRequest(image=_spec(pods.image)), service="images").image
    assert {pulled, status.id, listed[0].image_id, pods.status(container).image_id} == {status.id}


@pytest.mark.requirement("V43", "V103", "V106")
def test_pods_share_one_copy_on_disk(pods: Pods, daemon: Daemon, data: str) -> None:
    sandboxes = [
        pods.run(pod("one")),
        pods.run(pod("other")),
        pods.run(pod("mapped", options=namespaces(user=BLOCK))),
        pods.run(pod("mapped too", options=namespaces(user=OTHER_BLOCK))),
    ]
    before = _disk(daemon)
    containers = [pods.launch(item, name=f"c{n}", mounts=[volume(data)]) for n in range(2) for item in sandboxes]
    seen = {pods.read(item, "sha256sum < /volume/bin/busybox") for item in containers}
    assert len(seen) == 1
    grown = _disk(daemon) - before
    assert grown < BUSYBOX.stat().st_size / 4
    pods.remove(sandboxes[1])
    assert pods.read(containers[0], "cat /volume/file") == "top"


def _disk(daemon: Daemon) -> int:
    return sum(path.lstat().st_blocks * 512 for path in daemon.layout.root.rglob("*") if path.name != "state.db-wal")


@pytest.mark.requirement("V107")
def test_several_volumes(pods: Pods, data: str) -> None:
    mounts = [volume(data, "/one"), volume(data, "/two", "dir"), volume(pods.image, "/three")]
    container = pods.launch(pods.run(), mounts=mounts)
    assert pods.read(container, "cat /one/file /two/file; ls /three/bin/sh") == "topin dir/three/bin/sh"


@pytest.mark.requirement("V44", "V45", "V48")
@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
def test_nothing_is_left_of_a_volume(pods: Pods, daemon: Daemon, data: str, user: Triple | None) -> None:
    sandbox = pods.run(pod(options=namespaces(user=user)))
    before = at_rest(daemon)
    plain = pods.create(sandbox, name="plain")
    without = daemon.resources()
    pods.remove_container(plain)
    container = pods.create(sandbox, name="plain", mounts=[volume(data), volume(data, "/part", "dir")])
    # All that there is while it is there is in the container's own namespace, and the layers that all pods share.
    assert _beside_layers(daemon.resources().mounts, daemon) == _beside_layers(without.mounts, daemon)
    pods.start(container)
    pods.remove_container(container)
    assert at_rest(daemon) == before


def kept_layers(daemon: Daemon) -> list[Path]:
    """Return the directories of layers, whichever driver keeps them."""
    return [path for name in ("layers", "erofs") for path in (daemon.layout.images / name).iterdir()]


def _beside_layers(mounted: Iterable[str], daemon: Daemon) -> int:
    return sum(not Path(path).is_relative_to(daemon.layout.layers) for path in mounted)


@pytest.mark.requirement("V45")
def test_nothing_is_left_of_a_failed_creation(pods: Pods, daemon: Daemon, data: str) -> None:
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    before = at_rest(daemon)
    for wrong in (volume(data, "/bin/sh/x"), volume(data, "/proc/1/x")):
        error_of(lambda: pods.create(sandbox, mounts=[volume(data, "/good"), wrong]), InvalidArgument)  # noqa: B023
        assert at_rest(daemon) == before
    assert pods.containers() == []


@pytest.mark.requirement("V46")
@pytest.mark.parametrize("form", ["reference", "id"])
def test_image_that_is_a_volume_is_not_removed(pods: Pods, daemon: Daemon, data: str, form: str) -> None:
    image_id = pods.pull(data)
    name = data if form == "reference" else image_id
    sandbox = pods.run()
    container = pods.create(sandbox, "true", mounts=[volume(data, sub_path="dir")])
    message = error_of(lambda: pods.remove_image(name), FailedPrecondition)
    assert container in message
    pods.start(container)
    pods.exited(container)
    error_of(lambda: pods.remove_image(name), FailedPrecondition)
    pods.remove_container(container)
    layers = len(kept_layers(daemon))
    pods.remove_image(name)
    assert image_id not in images(pods)
    assert len(kept_layers(daemon)) == layers - 2
    pods.pull(data)


def test_removal_and_creation_at_the_same_time(pods: Pods, daemon: Daemon, registry: Registry, tmp_path: Path) -> None:
    """Whoever comes first wins: a container with its volume, or no image and no container.

    Which of the two it is, is left to chance: on a busy machine it may be the same one each time.
    """
    reference = push(registry, tmp_path, "raced:1", (file("file", "content"),))
    sandbox = pods.run()
    before = at_rest(daemon)
    for turn in range(10):
        image_id = pods.pull(reference)
        request = pods.create_request(sandbox, name=f"c{turn}", mounts=[volume(image_id)])
        created, removed = pods.wait(_at_once(daemon.socket, request, image_id, creation_first=bool(turn % 2)))
        if created is None:
            (container,) = pods.containers()
            assert isinstance(removed, FailedPrecondition)
            assert pods.read(pods.start(container.id), "cat /volume/file") == "content"
            pods.remove_container(container.id)
        else:
            assert isinstance(created, NotFound)
            assert removed is None
            assert pods.containers() == []
    assert at_rest(daemon) == before
    pods.remove_image(reference)


async def _at_once(
    socket: str, create: api.CreateContainerRequest, image_id: str, *, creation_first: bool
) -> list[BaseException | None]:
    """Create a container and remove an image at the same time; return what each failed with, or None."""
    remove = api.RemoveImageRequest(image=_spec(image_id))
    async with CriClient(socket) as client:
        calls = [client.runtime.CreateContainer(create), client.images.RemoveImage(remove)]
        tasks = [asyncio.ensure_future(call) for call in (calls if creation_first else calls[::-1])]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [item if isinstance(item, BaseException) else None for item in ended]
    return failed if creation_first else failed[::-1]


def test_image_of_a_failed_creation_can_be_removed(pods: Pods, data: str) -> None:
    error_of(lambda: pods.create(pods.run(), mounts=[volume(data, sub_path="none")]), InvalidArgument)
    pods.remove_image(data)
    assert pods.pull(data) in images(pods)


@pytest.mark.requirement("V108")
def test_tag_that_moves_does_not_change_a_running_volume(pods: Pods, registry: Registry, tmp_path: Path) -> None:
    reference = push(registry, tmp_path / "1", "moving:1", (file("version", "1"),))
    first = pods.pull(reference)
    sandbox = pods.run()
    container = pods.launch(sandbox, name="old", mounts=[volume(reference)])
    push(registry, tmp_path / "2", "moving:1", (file("version", "2"),))
    second = pods.pull(reference)
    newer = pods.launch(sandbox, name="new", mounts=[volume(reference)])
    assert [pods.read(item, "cat /volume/version") for item in (container, newer)] == ["1", "2"]
    assert [pods.status(item).mounts[0].image.image for item in (container, newer)] == [first, second]
    error_of(lambda: pods.remove_image(first), FailedPrecondition)
    pods.remove(sandbox)
    for item in (first, second):
        pods.remove_image(item)
    assert not {first, second} & set(images(pods))


def test_image_without_layers_is_an_empty_volume(pods: Pods, registry: Registry, tmp_path: Path) -> None:
    reference = push(registry, tmp_path, "empty:1")
    pods.pull(reference)
    sandbox = pods.run()
    container = pods.launch(sandbox, mounts=[volume(reference)])
    assert pods.read(container, "ls -A /volume") == ""
    assert pods.exec(container, "touch", "/volume/x").exit_code != 0
    pods.remove(sandbox)
    pods.remove_image(reference)


@pytest.mark.requirement("V50")
@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
@pytest.mark.parametrize("readonly", [False, True])
def test_beside_other_mounts(pods: Pods, data: str, tmp_path: Path, user: Triple | None, readonly: bool) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o777)
    mapped = (user,) if user else ()
    mounts = [
        bind(tmp_path / "empty", "/volume/dir", *mapped),
        volume(data, "/outer/inner/missing/path"),
        bind(tmp_path / "empty", "/outer", *mapped),
        volume(data, "/volume"),
        volume(data, "/volume/etc", "dir"),
    ]
    sandbox = pods.run(pod(options=namespaces(user=user)))
    container = pods.launch(sandbox, mounts=mounts, security={"readonly_rootfs": readonly})
    assert pods.read(container, "cat /outer/inner/missing/path/file /volume/file /volume/etc/file") == "toptopin dir"
    pods.read(container, "echo written > /volume/dir/new; test -e /outer/new")
    assert (tmp_path / "empty/new").read_text() == "written\n"
    assert pods.exec(container, "touch", "/volume/new").exit_code != 0


@pytest.mark.requirement("V52")
@pytest.mark.container_mounts("hidden", reason="that the machine does not see it is what it shows")
def test_machine_sees_nothing_of_it(pods: Pods, data: str) -> None:
    before = mountinfo.read()
    container = pods.launch(pods.run(), mounts=[volume(data)])
    assert mountinfo.read() == before
    assert pods.read(container, "cat /volume/file") == "top"


@pytest.mark.container_mounts("shown", reason="that they need not be hidden is what it shows")
@pytest.mark.parametrize("user", [None, BLOCK])
def test_with_mounts_that_are_not_hidden(
    daemon: Daemon, pods: Pods, data: str, user: tuple[int, int, int] | None
) -> None:
    sandbox = pods.run(pod(options=namespaces(user=user)))
    before = at_rest(daemon)
    container = pods.launch(sandbox, mounts=[volume(data), volume(data, "/part", "dir")])
    assert pods.read(container, "cat /volume/file /part/file") == "topin dir"
    pods.remove_container(container)
    assert at_rest(daemon) == before


@pytest.mark.requirement("V48")
def test_volumes_outlive_the_daemon(mortal: Mortal, data_reference: str) -> None:
    pods = mortal.start()
    image_id = pods.pull(data_reference)
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    before = at_rest(mortal.daemon)
    container = pods.launch(sandbox, mounts=[volume(data_reference)])
    created = pods.create(sandbox, name="created", mounts=[volume(data_reference, sub_path="dir")])
    mortal.daemon.kill()
    again = mortal.start()
    assert again.read(container, "cat /volume/file") == "top"
    assert again.read(again.start(created), "cat /volume/file") == "in dir"
    assert again.status(container).mounts[0].image.image == image_id
    assert "in use" in error_of(lambda: again.remove_image(image_id), FailedPrecondition)
    for item in (container, created):
        again.remove_container(item)
    assert at_rest(mortal.daemon) == before
    again.remove_image(image_id)
    assert image_id not in images(again)


@pytest.mark.requirement("V45", "V48")
@pytest.mark.parametrize("point", ["image_volume.mounted", "image_volume.narrowing", "container.staged"])
@pytest.mark.parametrize("action", ["kill", "error"])
def test_nothing_is_left_of_an_interrupted_creation(
    mortal: Mortal, data_reference: str, point: str, action: str
) -> None:
    pods = mortal.start(failpoints=f"{point}={action}")
    image_id = pods.pull(data_reference)
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)))
    before = at_rest(mortal.daemon)
    mounts = [volume(data_reference), volume(data_reference, "/part", "dir")]
    if action == "kill":
        error_of(lambda: pods.create(sandbox, mounts=mounts), Unavailable)
        assert mortal.daemon.process is not None
        assert mortal.daemon.process.wait(timeout=60) == -signal.SIGKILL
        pods = mortal.start()
    else:
        expected = Internal if point == "container.staged" else FailedPrecondition
        assert "failpoint" in error_of(lambda: pods.create(sandbox, mounts=mounts), expected)
    assert pods.containers() == []
    assert at_rest(mortal.daemon) == before
    pods.remove_image(image_id)
    pods.pull(data_reference)
    if action == "kill":
        assert pods.read(pods.launch(sandbox, mounts=mounts), "cat /volume/file /part/file") == "topin dir"


@pytest.mark.requirement("V77")
def test_each_volume_of_one_image_is_a_file_system_of_its_own(pods: Pods, daemon: Daemon, data: str) -> None:
    """The kernel gives one file system one label: two pods with labels that differ need two. None of them stays."""
    before = daemon.resources()
    sandboxes, seen = [], set()
    for number, level in enumerate(("s0:c1,c5", "s0:c100,c200")):
        config = pod(f"labelled{number}")
        config.linux.security_context.selinux_options.CopyFrom(api.SELinuxOption(level=level))
        sandboxes.append(pods.run(config))
        container = pods.launch(sandboxes[-1], mounts=[volume(data)])
        assert pods.read(container, "cat /volume/file") == "top"
        seen.add(pods.read(container, "stat -c %d /volume"))
    assert len(seen) == 2
    for sandbox in sandboxes:
        pods.remove(sandbox)
    assert daemon.resources() == before
