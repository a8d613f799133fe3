"""The guideline for mounted artifacts (docs/artifacts.md), rule by rule, as a container sees it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, PodkeepError, Unimplemented
from podkeep.cri.v1 import api_pb2 as api
from podkeep.images.formats.manifest import node_architecture
from podkeep.kernel.mount import mountinfo
from support.artifacts import EMPTY, TITLE, Part, artifact, directory_part, file_part, index, tar_part
from support.cri import BLOCK, Pods, namespaces, pod
from support.images import Member, directory, file, hardlink, symlink, tar
from support.registry import Registry

DOCUMENT = Path(__file__).parents[3] / "docs" / "artifacts.md"
BYTES = "application/octet-stream"
LIST = "cd /volume; find . -mindepth 1 -exec stat -c '%A %u:%g %Y %n' {} + | sort -k4"
NAMES = "cd /volume; find . -mindepth 1 | sort"

pytestmark = pytest.mark.requirement("V17")
Mounted = Callable[..., str]


@pytest.fixture
def mounted(pods: Pods, registry: Registry) -> Iterator[Mounted]:
    """Push an artifact of these layers, pull it and return a container with it at ``/volume``."""
    pulled: list[str] = []

    def mount(parts: Sequence[Part], *, sub_path: str = "", own_users: bool = False) -> str:
        reference = pods.pull(artifact(parts).push(registry, f"layout/rule{len(pulled)}:1"))
        pulled.append(reference)
        return volume_in(pods, reference, sub_path=sub_path, own_users=own_users)

    yield mount
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    for reference in pulled:
        pods.remove_image(reference)


def volume_in(pods: Pods, reference: str, *, sub_path: str = "", own_users: bool = False) -> str:
    """Return a container that has an image at ``/volume``."""
    sandbox = pods.run(pod(options=namespaces(user=BLOCK)) if own_users else None)
    spec = api.ImageSpec(image=reference)
    mount = api.Mount(image=spec, container_path="/volume", readonly=True, image_sub_path=sub_path)
    return pods.launch(sandbox, mounts=[mount])


def refused(pods: Pods, registry: Registry, parts: Sequence[Part], kind: type[PodkeepError], why: str) -> None:
    """Try to pull an artifact that a rule refuses; nothing of it is there afterwards."""
    name = artifact(parts).push(registry, "layout/refused:1")
    with pytest.raises(kind, match=why):
        pods.pull(name)
    status = pods.call("ImageStatus", api.ImageStatusRequest(image=api.ImageSpec(image=name)), service="images")
    assert not status.HasField("image")


def archive(*members: Member, **more: str) -> Part:
    return tar_part(tar(members), **more)


def binary(title: str, data: bytes) -> Part:
    return file_part(title, data, BYTES)


def test_rule_1_one_directory(pods: Pods, mounted: Mounted) -> None:
    container = mounted([binary("model.bin", b"weights")])
    assert pods.read(container, "stat -c %F /volume; ls /volume; cat /volume/*") == "directory\nmodel.bin\nweights"


def test_rule_2_archives_are_unpacked_at_the_root(pods: Pods, mounted: Mounted) -> None:
    parts = [
        archive(directory("dir"), file("dir/file", "0"), title="layer0.tar"),
        archive(file("plain", "1"), compression="none"),
        archive(file("zstd", "2"), compression="zstd"),
        archive(file("chart", "3"), media_type="application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
    ]
    assert pods.read(mounted(parts), NAMES).split() == ["./chart", "./dir", "./dir/file", "./plain", "./zstd"]


def test_rule_3_other_layers_are_files(pods: Pods, mounted: Mounted) -> None:
    contents = {
        "disk.qcow2": b"QFI\xfb" + os.urandom(5000),
        "model.safetensors": os.urandom(300_001),
        "logs.gz": archive(file("x")).data,
        "ünïcode name": b"x",
        "empty": b"",
    }
    container = mounted([binary(name, data) for name, data in contents.items()])
    said = pods.read(container, "cd /volume; sha256sum *").split("\n")
    assert {line[66:]: line[:64] for line in said} == {
        name: hashlib.sha256(data).hexdigest() for name, data in contents.items()
    }


def test_rule_4_a_directory_stays_a_directory(pods: Pods, mounted: Mounted) -> None:
    plain = tar([directory("conf"), file("conf/a"), directory("conf/sub"), file("conf/sub/b")])
    container = mounted([directory_part("conf", plain)])
    assert pods.read(container, NAMES).split() == ["./conf", "./conf/a", "./conf/sub", "./conf/sub/b"]


def test_rule_5_a_titled_oci_tar_is_looked_at(pods: Pods, mounted: Mounted) -> None:
    container = mounted([file_part("hello.txt", b"hello\n"), file_part("some.tar", tar([file("inside")]))])
    assert pods.read(container, NAMES).split() == ["./hello.txt", "./inside"]


def test_rule_6_later_layers_win(pods: Pods, mounted: Mounted) -> None:
    parts = [
        archive(
            file("a", "0"), file("b", "0"), directory("d", 0o700), file("d/x"), directory("e"), file("e/x"), file("f")
        ),
        binary("b", b"1"),
        archive(file("a", "2"), directory("d", 0o755), file("d/y"), file("e", "no directory"), directory("f")),
    ]
    container = mounted(parts)
    assert pods.read(container, NAMES).split() == ["./a", "./b", "./d", "./d/x", "./d/y", "./e", "./f"]
    assert pods.read(container, "cd /volume; cat a b e; stat -c '%a %F' d f") == (
        "21no directory755 directory\n755 directory"
    )


def test_rule_7_whiteouts_hide(pods: Pods, mounted: Mounted) -> None:
    parts = [
        archive(file("a"), directory("d"), file("d/x"), directory("e"), file("e/x")),
        binary("model", b"old"),
        archive(file(".wh.a"), file(".wh.model"), directory("e"), file("e/.wh..wh..opq"), file("e/y"), file("d/.wh.x")),
    ]
    assert pods.read(mounted(parts), NAMES).split() == ["./d", "./e", "./e/y"]


@pytest.mark.parametrize("title", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "a\nb", "x" * 256, ".wh.a"])
def test_rule_8_titles_are_plain_names(pods: Pods, registry: Registry, title: str) -> None:
    why = r"its title|two of its layers|image\.title'\] has the character"
    refused(pods, registry, [binary("good", b"x"), binary(title, b"x")], InvalidArgument, why)


def test_rule_8_titles_are_there_once(pods: Pods, registry: Registry) -> None:
    refused(
        pods, registry, [binary("a", b"1"), binary("a", b"2")], InvalidArgument, "two of its layers have the title 'a'"
    )


def test_rule_9_files_belong_to_root(pods: Pods, mounted: Mounted) -> None:
    parts = [binary("model", b"x"), archive(file("mine", "x", 0o4750, uid=1000, gid=1001, mtime=1_600_000_000))]
    container = mounted(parts)
    assert pods.read(container, LIST).split("\n") == [
        "-rwsr-x--- 1000:1001 1600000000 ./mine",
        "-rw-r--r-- 0:0 0 ./model",
    ]
    assert pods.read(container, "stat -c '%a %u:%g' /volume") == "755 0:0"


def test_rule_10_owners_are_the_pods(pods: Pods, mounted: Mounted) -> None:
    container = mounted([binary("model", b"x"), archive(file("mine", uid=1000, gid=1001))], own_users=True)
    assert pods.read(container, "cd /volume; stat -c '%u:%g %n' *") == "1000:1001 mine\n0:0 model"


def test_rule_11_what_nobody_can_name_is_refused(pods: Pods, registry: Registry) -> None:
    part = Part(data=b"x", media_type="application/vnd.example.data")
    refused(pods, registry, [part], Unimplemented, r"its type 'application/vnd\.example\.data' is no archive")


@pytest.mark.parametrize("parts", [(), (Part(data=b"{}", media_type=EMPTY),)], ids=["none", "an empty one"])
def test_rule_12_only_layers_count(pods: Pods, mounted: Mounted, parts: tuple[Part, ...]) -> None:
    assert pods.read(mounted(parts), "ls -A /volume; stat -c '%a %F' /volume") == "755 directory"


def test_rule_13_links_stay_links(pods: Pods, mounted: Mounted) -> None:
    part = archive(file("a", "data"), symlink("link", "a"), symlink("out", "/etc/passwd"), hardlink("same", "a"))
    container = mounted([part])
    assert pods.read(container, "cd /volume; readlink link; readlink out; cat link same; stat -c %h a") == (
        "a\n/etc/passwd\ndatadata2"
    )
    # Where it leads is the container's own file.
    assert pods.read(container, "cmp /volume/out /etc/passwd && echo same") == "same"


@pytest.mark.parametrize(
    "members",
    [
        (file("../x"),),
        (Member(name="disk", kind=b"4", device=(8, 0)),),
        (symlink("out", "/tmp"), file("out/x")),
        (hardlink("x", "../../etc/passwd"),),
    ],
    ids=["dots", "device", "through a link", "hard link"],
)
def test_rule_14_nothing_leaves_the_root(pods: Pods, registry: Registry, members: tuple[Member, ...]) -> None:
    refused(pods, registry, [archive(*members)], InvalidArgument, "layer sha256:")


def test_rule_15_it_is_data(pods: Pods, mounted: Mounted) -> None:
    container = mounted([archive(file("run", "#!/bin/sh\necho ran\n", 0o755))])
    (entry,) = [item for item in mountinfo.read(pods.host_pid(container)) if item.mount_point == "/volume"]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options)
    assert pods.exec(container, "/volume/run").exit_code != 0
    assert pods.read(container, "cp /volume/run /tmp/run && /tmp/run") == "ran"


def test_rule_16_part_of_it_can_be_mounted(pods: Pods, mounted: Mounted) -> None:
    parts = [archive(directory("d"), file("d/x", "0"), file("d/y")), archive(directory("d"), file("d/x", "1"))]
    container = mounted(parts, sub_path="d")
    assert pods.read(container, "ls /volume; cat /volume/x") == "x\ny\n1"


def test_rule_17_an_index_is_resolved_by_architecture(pods: Pods, registry: Registry) -> None:
    entries = []
    for architecture in ("sparc", node_architecture()):
        made = artifact([binary(architecture, b"x")])
        made.push(registry, "layout/index", by_digest=True)
        entries.append(made.descriptor(platform={"os": "linux", "architecture": architecture}))
    both = index(entries)
    reference = pods.pull(both.push(registry, "layout/index:1"))
    container = volume_in(pods, reference)
    assert pods.read(container, "ls /volume") == node_architecture()
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    pods.remove_image(reference)


def test_every_rule_of_the_document_has_its_test() -> None:
    rules = {int(number) for number in re.findall(r"^(\d+)\. \*\*", DOCUMENT.read_text(), flags=re.MULTILINE)}
    tested = {int(name.split("_")[2]) for name in globals() if name.startswith("test_rule_")}
    assert rules == tested == set(range(1, len(rules) + 1))


def test_the_annotation_is_the_one_of_the_specification() -> None:
    assert TITLE in DOCUMENT.read_text()
