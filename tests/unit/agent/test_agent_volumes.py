"""Volumes on the node: their files, owners, modes and mounts, and that nothing stays behind."""

from __future__ import annotations

import os
import posixpath
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent import sub_path
from podkeep.agent.convert.container import PlannedImage
from podkeep.agent.objects.sources import Sources
from podkeep.agent.poddirs import PodDir, PodDirs, PodIdentity
from podkeep.agent.volumes import host_path, payload, projection
from podkeep.agent.volumes.container_files import mounts as container_mounts
from podkeep.agent.volumes.container_files import termination_log, termination_message
from podkeep.agent.volumes.payload import File
from podkeep.agent.volumes.setup import MountedVolume, mount_points, set_up
from podkeep.api import manifest
from podkeep.api.configuration import ConfigMap
from podkeep.api.meta import ObjectMeta
from podkeep.api.pod import Pod
from podkeep.api.volumes import HostPathVolumeSource
from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.ids import PodUID
from podkeep.kernel.files.removal import unmount_below
from podkeep.kernel.mount import mountinfo
from unit.kernel.isolation import in_new_namespaces

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "private"}}


def make(volumes: list[dict[str, Any]], *, fs_group: int | None = None, mounts: Any = ()) -> tuple[Pod, Sources]:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u1"},
        "spec": {
            "hostUsers": False,
            "securityContext": {} if fs_group is None else {"fsGroup": fs_group},
            "volumes": volumes,
            "containers": [{"name": "c", "image": "i", "volumeMounts": list(mounts)}],
        },
    }
    found = manifest.parse(yaml.safe_dump_all([document, CONFIG, SECRET]), source="f")
    return found.pods[0], Sources(config_maps=found.config_maps, secrets=found.secrets)


def ready(tmp_path: Path, volume: dict[str, Any], **more: Any) -> MountedVolume:
    pod, sources = make([{"name": "v"} | volume], **more)
    return set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources)["v"]


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    info = path.stat()
    return info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)


def test_a_sub_path_may_begin_with_dots(tmp_path: Path) -> None:
    """Only `..` as a part of a path leads out of a volume; what a ConfigMap's files are behind is such a name."""
    pod, _ = make([{"name": "v", "emptyDir": {}}], mounts=[{"name": "v", "mountPath": "/v", "subPath": "..data/a"}])
    image = PlannedImage(reference="i", ref="i")
    planned, *_ = container_mounts(pod.spec.containers[0], 0, PodDir(path=tmp_path), {"v": image}, {})
    assert planned.sub_path == "..data/a"


def test_a_sub_path_is_no_longer_than_a_path_can_be(tmp_path: Path) -> None:
    """Each of 1,000 mounts of an image named a variable of a megabyte, which took a gigabyte of memory."""
    image = PlannedImage(reference="i", ref="i")
    mounts = [{"name": "v", "mountPath": f"/v{number}", "subPathExpr": "$(A)"} for number in range(2)]
    pod, _ = make([{"name": "v", "emptyDir": {}}], mounts=mounts)
    container, directory = pod.spec.containers[0], PodDir(path=tmp_path)
    planned, *_ = container_mounts(container, 0, directory, {"v": image}, {"A": "a" * 4095})
    assert len(planned.sub_path) == 4095
    with pytest.raises(InvalidArgument, match='of volume "v" has more than 4095 characters'):
        container_mounts(container, 0, directory, {"v": image}, {"A": "a" * 4096})


def test_a_sub_path_that_cannot_be_is_told_with_the_name_that_the_pod_gives_its_volume(tmp_path: Path) -> None:
    """Of a hostPath it was the last part of the path on the node, of which the pod's manifest may know nothing."""
    (tmp_path / "os-release").touch()
    mounts = [{"name": "v", "mountPath": "/v", "subPath": "sub/dir"}]
    pod, _ = make([{"name": "v", "hostPath": {"path": str(tmp_path / "os-release")}}], mounts=mounts)
    volume = MountedVolume(name="v", path=tmp_path / "os-release")
    with pytest.raises(FailedPrecondition, match='subPath "sub/dir" of volume "v": a part of it is not a directory'):
        container_mounts(pod.spec.containers[0], 0, PodDir(path=tmp_path), {"v": volume}, {})


@pytest.mark.requirement("U71")
def test_a_config_map_belongs_to_root_on_disk_whatever_the_user_namespace(tmp_path: Path) -> None:
    volume = ready(tmp_path, {"configMap": {"name": "m", "defaultMode": 0o400}})
    assert volume.path == tmp_path / "pods/u1/volumes/kubernetes.io~configmap/v"
    assert volume.read_only
    assert (volume.path / "a").read_text() == "1"
    assert owner_and_mode(volume.path / "a") == (0, 0, 0o400)
    assert os.readlink(volume.path / "a") == "..data/a"
    assert os.readlink(volume.path / "..data").startswith("..2")


def test_items_choose_keys_paths_and_modes(tmp_path: Path) -> None:
    items = [{"key": "a", "path": "deep/er", "mode": 0o600}]
    volume = ready(tmp_path, {"configMap": {"name": "m", "items": items}})
    assert sorted(name for name in os.listdir(volume.path) if not name.startswith("..")) == ["deep"]
    assert owner_and_mode(volume.path / "deep" / "er") == (0, 0, 0o600)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"name": "none"}, 'MountVolume.SetUp failed for volume "v" : configmap "none" not found'),
        (
            {"name": "m", "items": [{"key": "z", "path": "z"}]},
            'MountVolume.SetUp failed for volume "v" : configmap "m" references non-existent key: z',
        ),
    ],
)
def test_what_is_missing_is_named_unless_optional(tmp_path: Path, source: dict[str, Any], message: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        ready(tmp_path, {"configMap": source})
    assert caught.value.message == message
    volume = ready(tmp_path, {"configMap": source | {"optional": True}})
    assert [name for name in os.listdir(volume.path) if not name.startswith("..")] == []


def test_which_directories_of_a_volume_others_are_mounted_on() -> None:
    def mount(name: str, path: str, **more: str) -> dict[str, str]:
        return {"name": name, "mountPath": path, **more}

    mounts = [
        mount("v", "/v"), mount("v", "/again/"), mount("v", "/part", subPath="x"),
        mount("w", "/v/a/b/"), mount("w", "/v/a/b/c"), mount("w", "/again/d"), mount("w", "/part/e"),
        mount("w", "/vector"), mount("w", "/v/file", subPath="file"),
    ]  # fmt: skip
    pod, _ = make([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}], mounts=mounts)
    assert mount_points(pod) == {"v": ["a/b", "d"], "w": ["c"]}


@pytest.mark.slow
def test_mounts_of_many_volumes_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each volume all mounts of a pod were sorted, and for each mount all others looked at: it took minutes."""
    looked = 0
    normpath = posixpath.normpath

    def counting(path: str) -> str:
        nonlocal looked
        looked += 1
        return normpath(path)

    monkeypatch.setattr(posixpath, "normpath", counting)
    mounts = [{"name": f"v{number}", "mountPath": f"/v{number}"} for number in range(300)]
    mounts += [{"name": "v0", "mountPath": f"/v1{'/' * number}"} for number in range(1, 300)]
    mounts += [{"name": "v0", "mountPath": f"/v1/{number}"} for number in range(300)]
    pod, _ = make([{"name": f"v{number}", "emptyDir": {}} for number in range(300)], mounts=mounts)
    looked = 0
    assert len(mount_points(pod)["v0"]) == 300
    assert looked == len(mounts)


def test_mount_points_in_a_volume_are_directories_and_never_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "v/there").mkdir(parents=True, mode=0o700)
    (tmp_path / "v/link").symlink_to(tmp_path)
    (tmp_path / "v/file").touch()
    projection.make_mount_points(tmp_path / "v", ["a/b", "there/c", "link/d", "file", "file/e"])
    assert sorted(os.listdir(tmp_path)) == ["v"]
    assert (tmp_path / "v/a/b").is_dir()
    assert (tmp_path / "v/there/c").is_dir()
    assert (owner_and_mode(tmp_path / "v/a/b")[2], owner_and_mode(tmp_path / "v/there")[2]) == (0o755, 0o700)


def test_the_mount_point_of_a_file_is_a_file_and_never_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    for name, target in (("link", tmp_path), ("nowhere", tmp_path / "new")):
        (tmp_path / "v" / name).symlink_to(target)
    for path in ("a/b", "link/c", "link", "nowhere", "a/b", "a/b/d"):
        projection.make_mount_point_of_file(tmp_path / "v", path)
    assert sorted(os.listdir(tmp_path)) == ["v"]
    assert (tmp_path / "v/a/b").is_file()


@pytest.mark.requirement("U72")
@in_new_namespaces()
def test_a_secret_is_in_memory_and_keeps_its_exact_mode(tmp_path: Path) -> None:
    volume = ready(tmp_path, {"secret": {"secretName": "s", "defaultMode": 0o400}})
    assert mountinfo.is_mount_point(volume.path)
    assert owner_and_mode(volume.path / "key") == (0, 0, 0o400)
    again = ready(tmp_path, {"secret": {"secretName": "s", "defaultMode": 0o400}})
    assert len([entry for entry in mountinfo.read() if entry.mount_point == str(again.path)]) == 1


@pytest.mark.parametrize("source", [{"secret": {"secretName": "s"}}, {"configMap": {"name": "m"}}])
def test_paths_that_name_one_key_again_and_again_do_not_fill_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]
) -> None:
    """A secret of a megabyte had 287 of them in memory, by three hundred items of one key."""
    monkeypatch.setattr(payload, "MAX_BYTES", 0)
    with pytest.raises(FailedPrecondition, match=r"the files made of \w+ \"\w\" have \d+ bytes, more than 0"):
        ready(tmp_path, source)


def test_a_field_that_many_files_have_is_made_and_held_once() -> None:
    """Annotations of 250 kB, which 18,000 items named, took gigabytes of memory before they were refused."""
    items = [{"path": f"file-{number}", "fieldRef": {"fieldPath": "metadata.annotations"}} for number in range(100)]
    volumes = [
        {"name": "alone", "downwardAPI": {"items": items}},
        {"name": "projected", "projected": {"sources": [{"downwardAPI": {"items": [item]}} for item in items]}},
    ]
    pod, sources = make(volumes)
    annotations = {"a": "x" * 100_000}
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))
    for volume in pod.spec.volumes:
        tracemalloc.start()
        try:
            files = payload.payload(volume, pod, sources)
            assert tracemalloc.get_traced_memory()[1] < 3_000_000
        finally:
            tracemalloc.stop()
        assert {file.data for file in files.values()} == {b'a="%s"' % (b"x" * 100_000)}
        assert len(files) == len(items)


class _Counted(dict[str, str]):
    """What a ConfigMap has; how many values were taken of it."""

    taken = 0

    def items(self) -> Any:
        _Counted.taken += len(self)
        return super().items()

    def get(self, *key: Any) -> Any:
        _Counted.taken += 1
        return super().get(*key)


def test_files_of_very_many_keys_are_not_made_again_and_again() -> None:
    """Tens of thousands of sources, or volumes, of a ConfigMap with a hundred thousand keys took hours."""
    items = [{"configMap": {"name": "m", "items": [{"key": "k7", "path": f"f{number}"}]}} for number in range(50)]
    pod, _ = make([{"name": "v", "projected": {"sources": items}}])
    data = _Counted({f"k{number}": "" for number in range(2_000)})
    sources = Sources(config_maps={("default", "m"): ConfigMap(metadata=ObjectMeta(name="m"), data=data)})
    _Counted.taken = 0
    assert payload.payload(pod.spec.volumes[0], pod, sources).keys() == {f"f{number}" for number in range(50)}
    assert _Counted.taken == 50
    whole, _ = make([{"name": "v", "projected": {"sources": [{"configMap": {"name": "m"}}] * 50}}])
    _Counted.taken = 0
    with pytest.raises(InvalidArgument, match="the files made of all sources have 18432000 bytes, more than 16777216"):
        payload.payload(whole.spec.volumes[0], whole, sources)
    assert _Counted.taken == 9 * len(data)
    single, _ = make([{"name": "v", "configMap": {"name": "m"}}])
    _Counted.taken = 0
    with pytest.raises(InvalidArgument, match="the files of all volumes of the pod have more than 67108864 bytes"):
        payload.payload(single.spec.volumes[0], single, sources, left=1_000_000)
    assert not _Counted.taken


@pytest.mark.slow
def test_a_path_is_no_longer_than_the_kernel_takes() -> None:
    """A name was made for each directory of a path: of one with half a million, a hundred gigabytes."""
    for path, why in (("a/" * 100_000 + "a", "have 102401024 bytes"), ("b" * 4096, "more than 4095 characters")):
        pod, sources = make([{"name": "v", "configMap": {"name": "m", "items": [{"key": "a", "path": path}]}}])
        with pytest.raises(InvalidArgument, match=why):
            payload.payload(pod.spec.volumes[0], pod, sources)


@in_new_namespaces()
def test_the_file_system_of_a_secret_has_a_size(tmp_path: Path) -> None:
    volume = ready(tmp_path, {"secret": {"secretName": "s"}})
    assert os.statvfs(volume.path).f_blocks * os.statvfs(volume.path).f_frsize == 4 * payload.MAX_BYTES


@pytest.mark.requirement("U70", "U71")
@in_new_namespaces()
def test_fs_group_is_written_to_disk_as_it_is(tmp_path: Path) -> None:
    empty = ready(tmp_path / "e", {"emptyDir": {}}, fs_group=200)
    assert owner_and_mode(empty.path) == (0, 200, 0o2777)
    secret = ready(tmp_path / "s", {"secret": {"secretName": "s", "defaultMode": 0o400}}, fs_group=200)
    assert owner_and_mode(secret.path / "key") == (0, 200, 0o440)


@in_new_namespaces()
def test_empty_dirs_on_disk_and_in_memory(tmp_path: Path) -> None:
    disk = ready(tmp_path / "d", {"emptyDir": {}})
    assert owner_and_mode(disk.path) == (0, 0, 0o777)
    (disk.path / "kept").write_text("x")
    assert (ready(tmp_path / "d", {"emptyDir": {}}).path / "kept").read_text() == "x"
    memory = ready(tmp_path / "m", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    assert os.statvfs(memory.path).f_blocks * os.statvfs(memory.path).f_frsize == 1 << 20
    assert owner_and_mode(memory.path) == (0, 0, 0o777)


def test_host_paths_are_what_they_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def check(name: str, kind: str) -> Path:
        return host_path.check(HostPathVolumeSource(path=str(tmp_path / name), type=kind))  # type: ignore[arg-type]

    assert check("file", "File") == tmp_path / "file"
    assert check("file", "") == tmp_path / "file"
    assert check("made/deep", "DirectoryOrCreate").is_dir()
    assert check("made/file", "FileOrCreate").is_file()
    for name, kind, why in (
        ("file", "Directory", "is not a directory"),
        ("made", "File", "is not a file"),
        ("file", "Socket", "is not a socket file"),
        ("file", "CharDevice", "is not a character device"),
        ("file", "BlockDevice", "is not a block device"),
        ("none", "Directory", "is not a directory"),
    ):
        with pytest.raises(FailedPrecondition) as caught:
            check(name, kind)
        assert caught.value.message == f"hostPath type check failed: {tmp_path / name} {why}"
    assert host_path.check(HostPathVolumeSource(path="/dev/null", type="CharDevice")) == Path("/dev/null")


def test_a_host_path_without_a_type_is_made_if_it_is_missing(tmp_path: Path) -> None:
    """Manifests rely on it: containerd and CRI-O make a directory of it. A link to nothing is left alone."""
    made = host_path.check(HostPathVolumeSource(path=str(tmp_path / "data/web")))
    assert (made, stat.S_IMODE(made.stat().st_mode)) == (tmp_path / "data/web", 0o755)
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(FailedPrecondition, match="is in the way"):
        host_path.check(HostPathVolumeSource(path=str(tmp_path / "link")))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    "volume",
    [
        {"hostPath": {"path": "/a\0b", "type": "Directory"}},
        {"hostPath": {"path": "/a\0b", "type": "FileOrCreate"}},
        {"configMap": {"name": "m", "items": [{"key": "a", "path": "a\0b"}]}},
    ],
    ids=["checked", "made", "file"],
)
def test_a_path_that_no_system_call_takes_is_the_volumes_failure(tmp_path: Path, volume: dict[str, Any]) -> None:
    with pytest.raises(
        FailedPrecondition, match=r'MountVolume\.SetUp failed for volume "v" : a path holds a NUL character'
    ):
        ready(tmp_path, volume)


@pytest.mark.parametrize("nested", [False, True])
def test_a_path_that_no_system_call_takes_is_the_mounts_failure(tmp_path: Path, nested: bool) -> None:
    around = {"name": "v", "mountPath": "/x", "readOnly": True}
    mount = {"name": "w", "mountPath": "/x/a\0b", "subPath": "d"} if nested else around | {"subPath": "a\0b"}
    pod, _ = make([{"name": name, "emptyDir": {}} for name in "vw"], mounts=[around, mount] if nested else [mount])
    directory = PodDir(path=tmp_path / "pods/u1")
    volumes = {name: MountedVolume(name=name, path=directory.volumes / name) for name in "vw"}
    for volume in volumes.values():
        volume.path.mkdir(parents=True)
    try:
        with pytest.raises(InvalidArgument, match=r"volumeMounts of container .*: a path holds a NUL character"):
            container_mounts(pod.spec.containers[0], 0, directory, volumes, {})
    finally:
        unmount_below(tmp_path)


def test_new_content_replaces_the_old_in_one_step(tmp_path: Path) -> None:
    projection.write(tmp_path, {"a": File(data=b"1", mode=0o644), "gone": File(data=b"", mode=0o644)})
    first = os.readlink(tmp_path / "..data")
    held = (tmp_path / "a").open("rb")
    projection.write(tmp_path, {"a": File(data=b"2", mode=0o644), "d/new": File(data=b"3", mode=0o644)})
    with held:
        assert held.read() == b"1"
    assert (tmp_path / "a").read_bytes() == b"2"
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", os.readlink(tmp_path / "..data"), "a", "d"])
    assert not (tmp_path / first).exists()


@pytest.mark.requirement("U69")
@in_new_namespaces()
def test_a_sub_path_is_the_file_or_directory_inside_the_volume(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "dir").mkdir(parents=True)
    (volume / "dir" / "file").write_text("x")
    (volume / "link").symlink_to("dir/file")
    assert sub_path.pin(volume, "link", tmp_path / "t" / "0").read_text() == "x"
    assert os.listdir(sub_path.pin(volume, "dir", tmp_path / "t" / "1")) == ["file"]
    made = sub_path.pin(volume, "new/er", tmp_path / "t" / "2")
    (made / "y").write_text("y")
    assert (volume / "new" / "er" / "y").read_text() == "y"
    sub_path.pin(volume, "dir", tmp_path / "t" / "1")
    assert len(mountinfo.under(tmp_path)) == 3


@in_new_namespaces()
def test_a_sub_path_is_what_it_leads_to_now(tmp_path: Path) -> None:
    """A container that starts again sees the file as of then, as with a kubelet; the one before it may be gone."""
    volume, target = tmp_path / "volume", tmp_path / "t" / "0"
    volume.mkdir()
    projection.write(volume, {"a": File(data=b"1", mode=0o644)})
    assert sub_path.pin(volume, "a", target).read_bytes() == b"1"
    projection.write(volume, {"a": File(data=b"2", mode=0o644)})
    assert sub_path.pin(volume, "a", target).read_bytes() == b"2"
    (volume / "b").mkdir()
    (volume / "b" / "file").touch()
    assert os.listdir(sub_path.pin(volume, "b", target, propagation="Bidirectional")) == ["file"]
    (volume / "b").rename(volume / "c")
    (volume / "b").touch()
    assert sub_path.pin(volume, "b", target).is_file()
    assert os.listdir(volume / "c") == ["file"]
    assert len(mountinfo.under(tmp_path)) == 1


@pytest.mark.parametrize("target", ["/etc", "../outside", "/proc/self/root/etc"])
@in_new_namespaces()
def test_a_sub_path_never_leaves_the_volume(tmp_path: Path, target: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "outside").mkdir()
    (volume / "escape").symlink_to(target)
    for path in ("escape", "escape/passwd", "escape/made/here"):
        with pytest.raises(FailedPrecondition, match="it leads out of the volume"):
            sub_path.pin(volume, path, tmp_path / "t")
    assert mountinfo.under(tmp_path) == []
    assert os.listdir(tmp_path / "outside") == []


@in_new_namespaces()
@pytest.mark.parametrize("mode", [0o2777, 0o0750])
def test_directories_of_a_sub_path_are_like_the_volume(tmp_path: Path, mode: int) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 0, 2000)
    volume.chmod(mode)
    os.umask(0o077)
    made = sub_path.pin(volume, "one/two", tmp_path / "t" / "0")
    for path in (made, volume / "one", volume / "one/two"):
        info = path.stat()
        assert (info.st_gid, stat.S_IMODE(info.st_mode)) == (2000, mode)
    (volume / "kept").mkdir(mode=0o700)
    sub_path.pin(volume, "kept", tmp_path / "t" / "1")
    assert stat.S_IMODE((volume / "kept").stat().st_mode) & 0o777 == 0o700


@in_new_namespaces()
def test_removing_a_pod_unmounts_and_removes_everything_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    dirs = PodDirs(tmp_path / "kubelet", "/run/s.sock")
    with dirs.locked():
        os.close(dirs.own(PodUID("u1")))
        dirs.identify(PodUID("u1"), PodIdentity(namespace="default", name="web"))
    mounts = [{"name": "h", "mountPath": "/h", "subPath": "precious"}, {"name": "s", "mountPath": "/s"}]
    volumes = [
        {"name": "h", "hostPath": {"path": str(outside)}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "e", "emptyDir": {"medium": "Memory"}},
    ]
    pod, sources = make(volumes, mounts=mounts)
    ready_volumes = set_up(pod, dirs.directory(PodUID("u1")), sources)
    planned = container_mounts(pod.spec.containers[0], 0, dirs.directory(PodUID("u1")), ready_volumes, {})
    assert planned[0].host_path.read_text() == "x"
    assert [mount.container_path for mount in planned] == ["/h", "/s", "/etc/hosts", "/dev/termination-log"]
    assert len(mountinfo.under(tmp_path)) == 3
    dirs.remove(PodUID("u1"))
    dirs.remove(PodUID("u1"))
    assert mountinfo.under(tmp_path) == []
    assert os.listdir(dirs.pods) == []
    assert (outside / "precious").read_text() == "x"


@in_new_namespaces()
def test_the_pods_own_volumes_get_its_label_by_sub_paths_too(tmp_path: Path) -> None:
    """As a kubelet relabels by the kind of volume: nothing in a hostPath, whose files are the machine's."""
    (tmp_path / "host" / "d").mkdir(parents=True)
    names = {
        "e": {"emptyDir": {}},
        "s": {"secret": {"secretName": "s"}},
        "h": {"hostPath": {"path": f"{tmp_path}/host"}},
    }
    inner = {"e": "d", "s": "key", "h": "d"}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names]
    mounts += [{"name": name, "mountPath": f"/sub/{name}", "subPath": inner[name]} for name in names]
    pod, sources = make([{"name": name} | volume for name, volume in names.items()], mounts=mounts)
    directory = PodDir(path=tmp_path / "pods" / "u1")
    planned = container_mounts(pod.spec.containers[0], 0, directory, set_up(pod, directory, sources), {})
    assert {mount.container_path for mount in planned if not mount.selinux_relabel} == {"/h", "/sub/h"}


def test_last_words(tmp_path: Path) -> None:
    directory = PodDir(path=tmp_path)
    path = termination_log(directory, "c", 1)
    log = tmp_path / "1.log"
    path.parent.mkdir(parents=True)
    assert termination_message(path, log, fall_back=True) == ""
    log.write_bytes(
        b"2026-01-01T00:00:00.000000000Z stdout F one\n"
        b"2026-01-01T00:00:00.000000000Z stderr P tw\n"
        b"2026-01-01T00:00:00.000000000Z stderr F o\n"
    )
    assert termination_message(path, log, fall_back=True) == "one\ntwo\n"
    assert termination_message(path, log, fall_back=False) == ""
    path.write_text("x" * 5000 + "bye")
    assert termination_message(path, log, fall_back=True) == "x" * 4093 + "bye"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([("F", str(number)) for number in range(100)], "".join(f"{number}\n" for number in range(20, 100))),
        ([("P", "x" * 16000)] * 10 + [("F", "end")], "x" * 2044 + "end\n"),
        ([("F", "a\rb c  d")], "a\rb c  d\n"),
        ([("F", "one"), ("P", "cut")], "one\ncut"),
        ([("F", "é" * 2000)], "é" * 1023 + "\n"),
    ],
)
def test_the_end_of_a_log_is_80_lines_and_2048_bytes(
    tmp_path: Path, entries: list[tuple[str, str]], expected: str
) -> None:
    log = tmp_path / "0.log"
    text = "".join(f"2026-01-01T00:00:00.000000000Z stdout {tag} {line}\n" for tag, line in entries)
    log.write_bytes(text.encode())
    assert termination_message(tmp_path / "none", log, fall_back=True).lstrip("\ufffd") == expected


def test_a_termination_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    unreadable = Path(f"/proc/{os.getpid()}/mem")  # a regular file, which gives EIO at its start
    why = f"Error on reading termination log {unreadable}: Input/output error"
    assert termination_message(unreadable, tmp_path / "log", fall_back=False) == why
