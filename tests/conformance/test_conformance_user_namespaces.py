"""critest's cases of user namespaces (cri-tools 1.36, ``security_context_linux.go``): its calls, under its names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2 as api
from support.cri import Triple, mappings, namespaces, pod, userns
from support.endpoint import Node

MAPPING: Triple = (0, 1000, 100_000)
"""critest's own: neither 65536 IDs long, nor above those of the machine."""

pytestmark = pytest.mark.reference(unsupported="no user namespaces")


@pytest.fixture(autouse=True)
def supported(node: Node) -> None:
    """The default handler says that it has user namespaces: where it does not, critest skips all of these."""
    assert node.handler().features.user_namespaces


def uid_map(node: Node, options: api.UserNamespace) -> list[str]:
    """Return the words of /proc/self/uid_map in a container."""
    container = node.launch(node.run(pod(options=namespaces(user=options))))
    return node.read(container, "cat /proc/self/uid_map").split()


def fails(node: Node, options: api.UserNamespace) -> None:
    """RunPodSandbox must fail, and leave nothing."""
    node.refused(lambda: node.run(pod(options=namespaces(user=options))), InvalidArgument)
    assert node.sandboxes() == []


@pytest.mark.requirement("U113")
def test_runtime_should_support_namespacemode_pod(node: Node) -> None:
    assert uid_map(node, userns(MAPPING)) == [str(number) for number in MAPPING]


@pytest.mark.requirement("U114")
def test_runtime_should_support_namespacemode_node(node: Node) -> None:
    sandbox = node.run(pod(options=namespaces(user=api.UserNamespace(mode=api.NODE))))
    container = node.launch(sandbox)
    assert node.read(container, "cat /proc/self/uid_map").split() == Path("/proc/self/uid_map").read_text().split()
    assert os.readlink(f"/proc/{node.host_pid(container)}/ns/user") == os.readlink("/proc/self/ns/user")


@pytest.mark.requirement("U115")
def test_runtime_should_fail_if_more_than_one_mapping_provided(node: Node) -> None:
    fails(node, userns(MAPPING, (0, 2000, 100_000)))


@pytest.mark.requirement("U116")
def test_runtime_should_fail_if_container_id_0_is_not_mapped(node: Node) -> None:
    fails(node, userns((1, 1000, 100_000)))


@pytest.mark.requirement("U117")
def test_runtime_should_fail_with_namespacemode_container(node: Node) -> None:
    fails(node, api.UserNamespace(mode=api.CONTAINER))


@pytest.mark.requirement("U117")
def test_runtime_should_fail_with_namespacemode_target(node: Node) -> None:
    fails(node, api.UserNamespace(mode=api.TARGET))


@pytest.mark.requirement("U29")
def test_extents_that_do_not_overlap_are_taken(node: Node) -> None:
    """critest's "more than one" are two that overlap; several that do not are taken."""
    options = api.UserNamespace(
        mode=api.POD, uids=mappings((0, 1000, 10), (10, 5000, 10)), gids=mappings((0, 1000, 10), (10, 5000, 10))
    )
    assert uid_map(node, options) == "0 1000 10 10 5000 10".split()
