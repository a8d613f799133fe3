"""Blocks of IDs of many pods on a node, and pods that get none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from node.test_image_volume_gate import reasons
from node.test_user_namespace_docs import refused, table
from node.test_user_namespace_gate import containers, mapping, mapping_of, runs

from podkeep.kernel.mount import mounts
from support.cri import Pods
from support.kubelet_client import Kubelet
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S

NO_BLOCK = (
    "Failed to create pod sandbox: can't allocate user namespace: could not find an empty slot to allocate a user"
    " namespace"
)


@pytest.fixture
def one_block(scratch_machine: None, tmp_path: Path) -> Iterator[None]:
    """A machine whose users have all IDs but one block."""
    for name in ("subuid", "subgid"):
        (tmp_path / name).write_text("somebody:131072:4294836223\n")
        mounts.bind(tmp_path / name, Path("/etc") / name)
    yield
    for name in ("subuid", "subgid"):
        mounts.unmount(Path("/etc") / name)


@pytest.mark.requirement("U109", "U42")
def test_no_free_block(one_block: None, own_node: RunningNode, image: str, tmp_path: Path) -> None:
    """The one block is taken: the pod waits and is told why, and starts by itself when the other pod is gone."""
    with own_node as node:
        node.apply(runs(image, "first", hostUsers=False))
        assert mapping_of(node, image, "first") == ["0", "65536", "65536"]
        node.apply(runs(image, "second", hostUsers=False))
        assert "the pod that waits starts by itself" in table(refused(node, "second"))
        assert reasons(node, "second") == {"FailedCreatePodSandBox": NO_BLOCK}
        assert {event["type"] for event in node.events("second")} == {"Warning"}
        own = Kubelet(node, tmp_path, user="admin", groups=("system:masters",)).samples("/metrics")
        started, failed = (own[f"kubelet_started_user_namespaced_pods_{end}total"][0][1] for end in ("", "errors_"))
        assert started == failed + 1 > 1
        node.delete("first")
        node.gone("first")
        assert mapping_of(node, image, "second") == ["0", "65536", "65536"]


@pytest.mark.requirement("U37")
def test_an_agent_with_more_pods_than_the_id_space_has_blocks_does_not_start(own_node: RunningNode) -> None:
    with own_node as node:
        node.end_agent()
        node.settings = ("agent.max_pods=70000",)
        with pytest.raises(AssertionError) as caught:
            node.start_agent()
        assert "hint: set agent.max_pods to at most 65534" in str(caught.value)
        assert node.agent is not None
        assert node.agent.wait(TIMEOUT_S) != 0


@pytest.mark.first
@pytest.mark.requirement("U32", "U34")
def test_as_many_pods_as_a_node_has_at_once(own_node: RunningNode, image: str) -> None:
    """Each has a block of its own, over a restart of the agent and when its sandbox is lost; later ones get others."""
    own_node.settings = ("agent.max_pods=112",)
    names = {f"pod-{number}" for number in range(110)}

    def blocks(node: RunningNode) -> dict[str, int]:
        return {name: int(mapping(node, image, container)[1]) for name, container in containers(node, image).items()}

    with own_node as node:
        node.apply(*(runs(image, name, hostUsers=False) for name in sorted(names)))
        node.until(lambda: containers(node, image).keys() == names, "110 pods")
        before = blocks(node)
        assert len(set(before.values())) == 110
        assert all(start >= 65536 and start % 65536 == 0 for start in before.values())
        node.end_agent()
        with Pods(node.daemon.socket, image) as client:
            (lost,) = (item.id for item in client.sandboxes() if item.metadata.name == "pod-7")
            gone = containers(node, image)["pod-7"]
            client.stop_pod(lost)
        node.start_agent()
        node.apply(runs(image, "later", hostUsers=False))
        node.until(lambda: containers(node, image).keys() == names | {"later"}, "all again")
        assert containers(node, image)["pod-7"] != gone
        after = blocks(node)
        assert after.pop("later") not in before.values()
        assert after == before
