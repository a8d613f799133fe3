"""Images as volumes: requests, flags, labels and what a container's configuration gets. The mounts themselves are in
tests/integration/runtime/test_image_volumes.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from runtime_values import container, container_config, spec_input

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.ids import Digest, ImageID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.images.formats.image import Image
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.runtime.bundle.image_volumes import FAILED, Policy, check_kind, find_images, narrow
from podkeep.runtime.model.records import Container, Mount, Propagation, SELinuxOptions, VolumeImage
from podkeep.runtime.oci import selinux, spec
from podkeep.runtime.oci.mounts import StagedMount
from podkeep.runtime.oci.selinux import SELinux
from podkeep.runtime.rpc.convert.mounts import mount_message, mount_record
from support.beside import exchanging
from unit.kernel.isolation import in_new_namespaces

ID = ImageID("sha256:" + "5" * 64)
OTHER = ImageID("sha256:" + "6" * 64)


def image(identity: ImageID = ID) -> Image:
    return Image(
        id=identity,
        repo_tags=("docker.io/library/data:1",),
        repo_digests=(),
        size=1,
        pinned=False,
        layers=(Digest("sha256:" + "7" * 64),),
    )


def request(**fields: Any) -> api.Mount:
    given = {"container_path": "/volume", "readonly": True, "image": api.ImageSpec(image="data:1")}
    return api.Mount(**(given | fields))


def volume(path: str = "/volume", reference: str = "data:1", **fields: Any) -> Mount:
    return Mount(container_path=path, host_path="", readonly=True, image=VolumeImage(reference=reference, **fields))


@pytest.mark.requirement("V35", "V36")
def test_record_of_a_request() -> None:
    spec_of_image = api.ImageSpec(image="data:1", user_specified_image="data", runtime_handler="x")
    record = mount_record(0, request(image=spec_of_image, image_sub_path="a/b"))
    assert record == volume(user_specified_image="data", sub_path="a/b")
    assert msgspec.json.decode(msgspec.json.encode(record), type=Mount) == record


@pytest.mark.requirement("V35")
def test_records_of_before_have_no_images() -> None:
    old = msgspec.json.decode(b'{"container_path": "/v", "host_path": "/h"}', type=Mount)
    assert old.image is None
    encoded = msgspec.json.encode(container())
    assert b"volume_images" not in encoded
    assert msgspec.json.decode(encoded, type=Container).volume_images == {}
    held = msgspec.structs.replace(container(), volume_images={2: ID})
    assert msgspec.json.decode(msgspec.json.encode(held), type=Container) == held


@pytest.mark.requirement("V35", "V36", "V38")
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image": api.ImageSpec(user_specified_image="x")}, "config.mounts[3].image.image is required"),
        ({"host_path": "/h"}, "exclude each other"),
        ({"readonly": False}, "config.mounts[3].readonly"),
        ({"propagation": api.PROPAGATION_BIDIRECTIONAL}, "config.mounts[3].propagation"),
        ({"image_sub_path": "/etc"}, "config.mounts[3].image_sub_path: '/etc' is absolute"),
        ({"image_sub_path": ".."}, "'..' holds '..'"),
        ({"image_sub_path": "a/../b"}, "holds '..'"),
        ({"image_sub_path": "a\0b"}, "NUL"),
        ({"image_sub_path": "a" * 4096}, "longer than a path can be"),
        ({"image_sub_path": "\N{SNOWMAN}" * 1500}, "longer than a path can be"),
    ],
)
def test_refused_requests(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mount_record(3, request(**fields))
    assert caught.value.message.startswith(f"{FAILED}: config.mounts[3]")
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("sub_path", ["..a", "a..", "a/..b/c", "a" * 4095, ".", "a//b", "a/"])
def test_sub_paths_that_stay_inside(sub_path: str) -> None:
    record = mount_record(0, request(image_sub_path=sub_path))
    assert record.image == VolumeImage(reference="data:1", sub_path=sub_path)


def test_the_sub_path_of_a_host_path_is_in_it_already(tmp_path: Path) -> None:
    record = mount_record(0, api.Mount(container_path="/v", host_path=str(tmp_path), image_sub_path="a"))
    assert (record.host_path, record.image) == (str(tmp_path), None)


@pytest.mark.requirement("V49", "V110")
def test_status_of_a_volume() -> None:
    message = mount_message(volume(user_specified_image="data", sub_path="a"), ID)
    assert message == api.Mount(
        container_path="/volume",
        readonly=True,
        image=api.ImageSpec(image=ID, image_ref=ID, user_specified_image="data"),
        image_sub_path="a",
    )
    assert mount_message(volume(), ID).image.user_specified_image == "data:1"
    assert not mount_message(Mount(container_path="/v", host_path="/h")).HasField("image")


@pytest.mark.requirement("V40")
def test_lookup_of_images() -> None:
    here = {"data:1": image(), "other": image(OTHER)}
    mounts = (Mount(container_path="/h", host_path="/h"), volume(), volume("/b", "other"), volume("/c"))
    found = find_images(container_config(mounts=mounts), here.get)
    assert {number: item.id for number, item in found.items()} == {1: ID, 2: OTHER, 3: ID}
    with pytest.raises(NotFound, match=rf"^{FAILED}: config\.mounts\[1\]: image 'gone' is not here"):
        find_images(container_config(mounts=(volume(), volume("/g", "gone"))), here.get)


@pytest.mark.requirement("V41")
def test_flags() -> None:
    assert Policy().attrs == MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC
    assert Policy(noexec=False).attrs == MountAttr.NOSUID | MountAttr.NODEV
    for policy in (Policy(), Policy(noexec=False)):
        assert {MountAttr[name.upper()] for name in policy.options} == set(policy.attrs)


@pytest.mark.requirement("V39", "V41")
def test_mount_in_a_configuration() -> None:
    mounts = (Mount(container_path="/host", host_path="/h", readonly=True), volume("/volume"))
    given = spec_input(
        container=container_config(mounts=mounts),
        staged={1: StagedMount(source="/run/c/mounts/1", options=Policy().options)},
    )
    by_target = {item["destination"]: item for item in spec.build(given)["mounts"]}
    assert by_target["/volume"]["source"] == "/run/c/mounts/1"
    assert by_target["/volume"]["options"] == ["rbind", "rprivate", "ro", "nosuid", "nodev", "noexec"]
    assert "noexec" not in by_target["/host"]["options"]


@pytest.mark.parametrize(
    ("kind", "files", "good"),
    [
        (stat.S_IFDIR, False, True), (stat.S_IFDIR, True, True), (stat.S_IFREG, True, True),
        (stat.S_IFREG, False, False), (stat.S_IFIFO, True, False), (stat.S_IFCHR, True, False),
        (stat.S_IFBLK, True, False), (stat.S_IFSOCK, True, False),
    ],
)  # fmt: skip
def test_kinds_of_sub_paths(kind: int, files: bool, good: bool) -> None:
    wanted = VolumeImage(reference="data:1", sub_path="a")
    if good:
        check_kind(wanted, kind | 0o644, files=files)
        return
    with pytest.raises(InvalidArgument, match="no directory") as caught:
        check_kind(wanted, kind | 0o644, files=files)
    assert ("image_volume_files" in caught.value.hint) == (kind == stat.S_IFREG)


@pytest.mark.requirement("V77", "V79")
def test_labels_of_two_pods_with_one_image() -> None:
    def options(level: str, *, enabled: bool) -> str:
        labels = selinux.container_labels(
            SELinux(enabled=enabled),
            container=SELinuxOptions(level=level),
            sandbox=SELinuxOptions(),
            pod_level="",
            privileged=False,
        )
        return overlay.options_text([Path("/layer"), Path("/bottom")], None, context=labels.mount)

    one, other = (options(level, enabled=True) for level in ("s0:c1,c5", "s0:c100,c200"))
    assert one == 'lowerdir=/layer:/bottom,context="system_u:object_r:container_file_t:s0:c1,c5"'
    assert other == 'lowerdir=/layer:/bottom,context="system_u:object_r:container_file_t:s0:c100,c200"'
    assert options("s0:c1,c5", enabled=False) == "lowerdir=/layer:/bottom"


def test_propagation_into_a_volume() -> None:
    record = mount_record(0, request(propagation=api.PROPAGATION_HOST_TO_CONTAINER))
    assert record.propagation is Propagation.HOST_TO_CONTAINER


@pytest.mark.requirement("V38")
@pytest.mark.parametrize("target", ["{outside}", "../../outside", "/proc/self/root/{outside}", "/proc/self/cwd"])
@pytest.mark.parametrize("last", [True, False], ids=["the last component", "one before"])
@in_new_namespaces()
@pytest.mark.slow
def test_a_sub_path_whose_directory_is_exchanged_for_a_link_stays_inside(
    tmp_path: Path, target: str, *, last: bool
) -> None:
    """The link and the directory change places all the time; whichever is found, what is mounted is of the image."""
    image_root, outside, mounted = tmp_path / "image", tmp_path / "outside", tmp_path / "mounted"
    (image_root / "a/b").mkdir(parents=True)
    (image_root / "a/b/inside").touch()
    (outside / "b").mkdir(parents=True)
    for directory in (outside, outside / "b"):
        (directory / "secret").touch()
    (image_root / "a/link").symlink_to(target.format(outside=outside))
    way, wanted = (image_root / "a/b", "a/b") if last else (image_root / "a", "a/b")
    link = image_root / "a/link" if last else image_root / "link"
    if not last:
        (image_root / "a/link").rename(link)
    results = set()
    with exchanging(way, link):
        for _ in range(300):
            mounted.mkdir()
            mounts.bind(image_root, mounted)
            try:
                narrow(mounted, VolumeImage(reference="data:1", sub_path=wanted), files=False)
                results.add(tuple(sorted(os.listdir(mounted))))
            except InvalidArgument:
                results.add(())
            mounts.unmount(mounted)
            mounted.rmdir()
    assert ("inside",) in results
    assert results <= {(), ("inside",)}
