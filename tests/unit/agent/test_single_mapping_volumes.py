"""Volumes on a node with one mapping for all pods: on disk they belong to root of the pod (KEP-127 draft, volumes)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from podkeep.agent.poddirs import PodDir
from podkeep.agent.user_namespaces.blocks import Block
from podkeep.agent.user_namespaces.mapping import with_fs_group
from podkeep.agent.user_namespaces.model import PodUserNamespace, of_block
from podkeep.agent.volumes import ownership, projection
from podkeep.agent.volumes.container_files import mounts as container_mounts
from podkeep.agent.volumes.container_files import write_hosts
from podkeep.agent.volumes.ownership import Owners
from podkeep.agent.volumes.payload import File
from podkeep.agent.volumes.setup import MountedVolume, Surroundings, set_up
from podkeep.base.errors import FailedPrecondition
from podkeep.kernel.namespace.idmap import block
from support.volumes import claiming, pod_with, sources_of
from unit.kernel.isolation import in_new_namespaces

FIRST = 100000
SPLIT = with_fs_group(block(FIRST, 65536), 2000)
"""With an entry for the group of the node 2000."""
SINGLE = Surroundings(
    user_namespace=PodUserNamespace(id_map=block(FIRST, 65536), idmapped_volumes=False), allocatable={"memory": "4Gi"}
)
GROUPED = Surroundings(
    user_namespace=PodUserNamespace(id_map=SPLIT, idmapped_volumes=False), allocatable={"memory": "4Gi"}
)
EACH = Surroundings(user_namespace=of_block(Block(first=131072)), allocatable={"memory": "4Gi"})
KINDS: list[dict[str, Any]] = [
    {"name": "conf", "configMap": {"name": "m", "defaultMode": 0o400}},
    {"name": "key", "secret": {"secretName": "s", "items": [{"key": "key", "path": "deep/k", "mode": 0o400}]}},
    {"name": "down", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    {"name": "all", "projected": {"sources": [{"configMap": {"name": "m"}}, {"secret": {"name": "s"}}]}},
    {"name": "disk", "emptyDir": {}},
    {"name": "memory", "emptyDir": {"medium": "Memory"}},
    {"name": "huge", "emptyDir": {"medium": "HugePages"}},
]
HUGE = {"limits": {"hugepages-2Mi": "0"}}


def owners_below(directory: Path) -> set[tuple[int, int]]:
    """Return whom everything in the volumes below ``directory`` belongs to, links themselves among it."""
    roots = [path for plugin in (directory / "volumes").iterdir() for path in plugin.iterdir()]
    found = [path.lstat() for root in roots for path in (root, *root.rglob("*"))]
    return {(status.st_uid, status.st_gid) for status in found}


def made(tmp_path: Path, node: Surroundings, **more: Any) -> dict[str, MountedVolume]:
    """Make a volume of each kind, with another inside one that is read-only."""
    inside = {"name": "disk", "mountPath": "/conf/in/side"}
    pod = pod_with(KINDS, also=[inside], resources=HUGE, **more)
    return dict(set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources_of(), node))


def facts(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


@pytest.mark.requirement("U58")
@in_new_namespaces()
def test_what_the_agent_makes_belongs_to_root_of_the_pod(tmp_path: Path) -> None:
    times = []
    for _ in range(2):
        volumes = made(tmp_path, SINGLE)
        found = [volume.path for volume in volumes.values()]
        times.append([path.lstat().st_ctime_ns for root in found for path in (root, *sorted(root.rglob("*")))])
        assert owners_below(tmp_path / "pods" / "u1") == {(FIRST, FIRST)}
        assert facts(volumes["conf"].path / "a") == (FIRST, FIRST, 0o400)
        assert facts(volumes["key"].path / "deep/k") == (FIRST, FIRST, 0o400)
        assert facts(volumes["disk"].path) == facts(volumes["memory"].path) == (FIRST, FIRST, 0o777)
    assert times[0] == times[1], "a second look touches nothing"


@pytest.mark.requirement("U71")
@in_new_namespaces()
def test_with_a_mapping_for_each_pod_nothing_is_changed_for_it(tmp_path: Path) -> None:
    made(tmp_path, EACH)
    assert owners_below(tmp_path / "pods" / "u1") == {(0, 0)}


@in_new_namespaces()
def test_a_group_is_one_of_the_node(tmp_path: Path) -> None:
    volumes = made(tmp_path, GROUPED, security={"fsGroup": 2000})
    assert facts(volumes["conf"].path / "a") == (FIRST, 2000, 0o440)
    assert facts(volumes["key"].path / "deep/k") == (FIRST, 2000, 0o440)
    assert facts(volumes["key"].path / "deep") == (FIRST, 2000, 0o2755)
    for name in ("disk", "memory", "huge"):
        assert facts(volumes[name].path) == (FIRST, 2000, 0o2777)


@in_new_namespaces()
@pytest.mark.parametrize("group", [None, 2000])
def test_new_content_has_the_same_owners(tmp_path: Path, group: int | None) -> None:
    owners = Owners(id_map=SPLIT, group=group)
    users = {FIRST, FIRST + 7}
    for data in (b"1", b"2"):
        files = {"a": File(data=data, mode=0o400), "d/token": File(data=data, mode=0o600, uid=7)}
        projection.write(tmp_path, files, owners)
        first = os.readlink(tmp_path / "..data")
        projection.write(tmp_path, files, owners)
        assert os.readlink(tmp_path / "..data") == first, "what is as it should be is left alone"
        found = [path.lstat() for path in tmp_path.rglob("*")]
        assert {status.st_uid for status in found} == users
        inside = [path.lstat() for path in (tmp_path / first).rglob("*")]
        assert {status.st_gid for status in inside} == {FIRST if group is None else group}
        assert (tmp_path / "a").read_bytes() == data


def test_a_link_that_a_crash_has_left_to_root_of_the_node_is_given_away(tmp_path: Path) -> None:
    files = {"a": File(data=b"1", mode=0o400)}
    projection.write(tmp_path, files, Owners(id_map=SPLIT))
    os.chown(tmp_path / "a", 0, 0, follow_symlinks=False)
    projection.write(tmp_path, files, Owners(id_map=SPLIT))
    assert ((tmp_path / "a").lstat().st_uid, (tmp_path / "a").lstat().st_gid) == (FIRST, FIRST)


def test_a_user_that_the_mapping_does_not_have_is_named(tmp_path: Path) -> None:
    pod = pod_with([{"name": "conf", "configMap": {"name": "m", "defaultUser": 70000}}])
    with pytest.raises(FailedPrecondition, match="UID 70000 of the container is not mapped"):
        set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources_of(), SINGLE)


def local(tmp_path: Path, node: Surroundings, kind: str = "local", **security: Any) -> Path:
    """Make a persistent volume with files of several owners, and set it up for a pod."""
    root = tmp_path / "local"
    if not root.exists():
        (root / "deep").mkdir(parents=True)
        for name, uid, gid in (
            ("root", 0, 0),
            ("theirs", 1234, 5678),
            ("own", FIRST + 999, FIRST + 999),
            ("deep/x", 0, 0),
        ):
            (root / name).write_text("x")
            os.chown(root / name, uid, gid)
            (root / name).chmod(0o640)
        (root / "link").symlink_to(tmp_path)
        os.mkfifo(root / "pipe", 0o600)
        os.mknod(root / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    pod, sources = claiming(kind, root, **security)
    set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources, node)
    return root


def on_disk(root: Path) -> dict[str, tuple[int, int]]:
    """Return whom everything from ``root`` down belongs to, by path."""
    found = {str(path.relative_to(root)): path.lstat() for path in (root, *root.rglob("*"))}
    return {path: (status.st_uid, status.st_gid) for path, status in found.items()}


OWN, DEVICE = (FIRST + 999, FIRST + 999), (0, 0)
GIVEN = {
    **dict.fromkeys((".", "deep", "root", "theirs", "deep/x", "link", "pipe"), (FIRST, FIRST)),
    "own": OWN,
    "disk": DEVICE,
}
"""A local volume when it was given to root of the pod: what has a user of the mapping already keeps it."""


@pytest.mark.requirement("U58")
def test_a_local_volume_is_given_to_root_of_the_pod_once(tmp_path: Path) -> None:
    root = local(tmp_path, SINGLE)
    assert on_disk(root) == GIVEN
    assert stat.S_IMODE((root / "root").stat().st_mode) == 0o640, "modes are left alone"
    os.chown(root / "root", 0, 0)
    local(tmp_path, SINGLE)
    assert on_disk(root)["root"] == (0, 0), "it is given once for each pod"


def test_a_local_volume_is_given_to_a_group_of_the_node(tmp_path: Path) -> None:
    root = local(tmp_path, GROUPED, fsGroup=2000)
    expected = {path: (uid, 2000) for path, (uid, _) in GIVEN.items()}
    assert on_disk(root) == expected
    assert stat.S_IMODE((root / "own").stat().st_mode) == 0o660
    assert stat.S_IMODE((root / "deep").stat().st_mode) & 0o2770 == 0o2770


@pytest.mark.requirement("U58")
def test_what_is_at_a_host_path_stays_as_it_is(tmp_path: Path) -> None:
    root = local(tmp_path, GROUPED, kind="hostPath", fsGroup=2000)
    before = on_disk(root)
    assert before["root"] == (0, 0)
    pod = pod_with([{"name": "v", "hostPath": {"path": str(root)}}], security={"fsGroup": 2000})
    set_up(pod, PodDir(path=tmp_path / "pods" / "u1"), sources_of(), GROUPED)
    assert on_disk(root) == before


@pytest.mark.requirement("U71")
def test_a_local_volume_of_a_pod_with_a_mapping_of_its_own_stays_as_it_is(tmp_path: Path) -> None:
    root = local(tmp_path, EACH)
    assert on_disk(root)["root"] == (0, 0)
    assert on_disk(root)["theirs"] == (1234, 5678)


@pytest.mark.parametrize(("owner", "walked"), [(0, True), (FIRST, False)])
def test_a_volume_whose_root_is_given_already_is_not_walked_if_the_pod_says_so(
    tmp_path: Path, owner: int, walked: bool
) -> None:
    root = tmp_path / "local"
    root.mkdir()
    (root / "file").touch()
    os.chown(root, owner, owner)
    local(tmp_path, SINGLE, fsGroupChangePolicy="OnRootMismatch")
    assert on_disk(root)["file"] == ((FIRST, FIRST) if walked else (0, 0))


def test_set_user_id_bits_and_file_capabilities_do_not_pass_to_the_pods_root(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.touch()
    program.chmod(0o6755)
    os.setxattr(program, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    ownership.give(tmp_path, Owners(id_map=block(FIRST, 65536)), writable=True)
    assert facts(program) == (FIRST, FIRST, 0o755)
    assert os.listxattr(program) == []


@in_new_namespaces()
def test_files_of_the_pod_and_directories_of_a_sub_path_belong_to_its_root(tmp_path: Path) -> None:
    directory = PodDir(path=tmp_path / "pods" / "u1")
    pod = pod_with(
        [{"name": "v", "emptyDir": {}}],
        mounted=False,
        also=[
            {"name": "v", "mountPath": "/v", "subPath": "made/deep"},
        ],
    )
    volumes = set_up(pod, directory, sources_of(), SINGLE)
    write_hosts(directory, "127.0.0.1 localhost", (FIRST, FIRST))
    (container,) = pod.spec.containers
    planned = container_mounts(container, 0, directory, volumes, {}, (FIRST, FIRST))
    sub, hosts, log = (facts(item.host_path) for item in planned if item.host_path is not None)
    assert (sub, hosts, log) == ((FIRST, FIRST, 0o777), (FIRST, FIRST, 0o644), (FIRST, FIRST, 0o666))
    assert facts(volumes["v"].path / "made") == (FIRST, FIRST, 0o777)
