"""Volumes on a node with one mapping for all pods: whose they are on disk, and inside (KEP-127 draft, volumes)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node.test_image_volume_gate import container_of
from node.test_pod_volumes import log_of, volume_of
from node.test_user_namespace_volumes import GROUP, PLAIN, document, expected, running

from support.container_mounts import ContainerMounts
from support.cri import Pods
from support.daemon import Daemon
from support.registry import Registry
from support.running_node import RunningNode, own_base

FIRST = 100000
MAPPING = f"0:{FIRST}:65536"
SETTINGS = (
    f"agent.uid_mapping={MAPPING}",
    f"agent.gid_mapping={MAPPING}",
    "agent.feature_gates.UserNamespaceSupport=true",
)
NOBODY = """
    any 65534 65534 750         directory 65534 65534 755   made 65534 65534 755        directory/inside 65534 65534 600
    file 65534 65534 640        filemade 65534 65534 644    socket 65534 65534 600
    character 65534 65534 600   block 65534 65534 600       hostpv 65534 65534 751      hostpv/inside 65534 65534 600
"""
"""What is at a hostPath belongs to root of the node, which the pod does not have."""
CLOSED = ("any/inside", "any/new", "directory/new", "made/new", "hostpv/new")
"""What the pod's root may not look at or make there."""


@pytest.fixture
def single(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[RunningNode]:
    """A node with one mapping; fails a test that leaves something of a pod on it."""
    extra = f'[registries."{registry.host}"]\ninsecure = true\n'
    daemon = Daemon(own_base(open_directory), extra=extra, mounts=mounts_of_containers)
    with RunningNode(daemon, settings=SETTINGS) as node:
        yield node
        node.delete("web")
        node.gone("web")
        node.until(lambda: node.left_behind() == [], f"nothing left: {node.left_behind()}")


def owners(root: Path) -> set[tuple[int, int]]:
    """Return whom everything from ``root`` down belongs to, links themselves among it."""
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (root, *root.rglob("*"))}


def group_map(node: RunningNode, image: str) -> list[list[str]]:
    """Return the map of group IDs in the pod's container, as the kernel shows it, without what is mapped no more."""
    with Pods(node.daemon.socket, image) as client:
        text = client.read(container_of(node, "web")[0].rpartition("/")[2], "cat /proc/self/gid_map")
    return [line.split() for line in text.splitlines()]


@pytest.mark.requirement("U56", "U58")
@pytest.mark.parametrize("group", [None, 2000])
def test_volumes_belong_to_root_of_the_pod_and_its_group(
    single: RunningNode, image: str, open_directory: Path, group: int | None
) -> None:
    """Root of the pod reads and writes what the agent made, with exact modes; what is at a hostPath stays as it is."""
    root = open_directory / os.urandom(4).hex()
    root.mkdir()
    security = {} if group is None else {"fsGroup": group}
    differs = "" if group is None else GROUP.replace(" 200 ", f" {group} ")
    wanted = expected(PLAIN) | expected(NOBODY) | expected(differs)
    with running(single, root, document(image, root, security, host_users=False)) as seen:
        assert seen == {place: facts for place, facts in wanted.items() if place not in CLOSED}
        groups = group_map(single, image)
        assert (["2000", "2000", "1"] in groups) == (group is not None)
        given = FIRST if group is None else group
        for kind, name in (("empty-dir", "disk"), ("empty-dir", "memory"), ("empty-dir", "huge")):
            assert owners(volume_of(single, f"kubernetes.io~{kind}", name)) == {(FIRST, given)}
        for kind, name in (("configmap", "conf"), ("secret", "key"), ("downward-api", "down"), ("projected", "all")):
            assert owners(volume_of(single, f"kubernetes.io~{kind}", name)) <= {(FIRST, FIRST), (FIRST, given)}
        assert owners(root / "local") == owners(root / "ephemeral") == {(FIRST, given)}
        for name in ("any", "directory", "made", "file", "filemade", "socket", "character", "block", "hostpv"):
            assert owners(root / name) == {(0, 0)}


@pytest.mark.requirement("U58")
def test_new_content_belongs_to_root_of_the_pod_as_well(single: RunningNode, image: str, open_directory: Path) -> None:
    """A ConfigMap and what is made of it follow the API, in one step, and root reads what is only its own."""
    root = open_directory / os.urandom(4).hex()
    root.mkdir()
    whole = document(image, root, {}, host_users=False)
    script = "until [ $(cat /vol/conf/a) = 2 ] && [ $(cat /vol/all/a) = 2 ]; do sleep 0.05; done; echo; echo new"
    whole["spec"]["containers"][0]["command"][2] = whole["spec"]["containers"][0]["command"][2].replace(
        "sleep 1000", f"{script}; sleep 1000"
    )
    with running(single, root, whole):
        change = {"data": {"a": "2"}}
        path = "/api/v1/namespaces/default/configmaps/conf"
        single.ask("PATCH", path, change, media="application/merge-patch+json")
        single.until(lambda: log_of(single).endswith("\nnew"), "the new content")
        for kind, name in (("configmap", "conf"), ("projected", "all")):
            assert owners(volume_of(single, f"kubernetes.io~{kind}", name)) == {(FIRST, FIRST)}
