"""The life of a pod sandbox: run, list, status, stop, remove, each once and again."""

from __future__ import annotations

import time
import uuid

import pytest

from podkeep.base.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from podkeep.cri.v1 import api_pb2 as api
from support.cri import pod
from support.endpoint import Node

LABELS = {"app": "web", "tier": "front"}
ANNOTATIONS = {"example.com/note": "kept as it is\nwith a second line"}


def test_sandbox_is_ready_and_shows_what_was_asked_for(node: Node) -> None:
    before = time.time_ns()
    sandbox = node.run(pod("kept", labels=LABELS, annotations=ANNOTATIONS, attempt=3))
    status = node.pod_status(sandbox).status
    assert status.id == sandbox
    assert (status.metadata.name, status.metadata.uid) == ("kept", "uid-kept")
    assert (status.metadata.namespace, status.metadata.attempt) == ("tests", 3)
    assert status.state == api.SANDBOX_READY
    assert before <= status.created_at <= time.time_ns()
    assert dict(status.labels) == LABELS
    assert dict(status.annotations) == ANNOTATIONS


def test_details_of_a_sandbox_are_given_only_when_asked_for(node: Node) -> None:
    sandbox = node.run()
    assert not node.pod_status(sandbox).info
    assert node.pod_status(sandbox, verbose=True).info


def test_list_shows_the_same_as_the_status(node: Node) -> None:
    sandbox = node.run(pod("listed", labels=LABELS, annotations=ANNOTATIONS))
    (item,) = node.sandboxes()
    status = node.pod_status(sandbox).status
    for field in ("id", "metadata", "state", "created_at", "labels", "annotations", "runtime_handler"):
        assert getattr(item, field) == getattr(status, field), field


def test_list_is_chosen_by_id_state_and_labels(node: Node) -> None:
    first = node.run(pod("first", labels=LABELS))
    second = node.run(pod("second", labels={"app": "web"}))
    node.stop_pod(second)
    ready = api.PodSandboxStateValue(state=api.SANDBOX_READY)
    not_ready = api.PodSandboxStateValue(state=api.SANDBOX_NOTREADY)

    def ids(**chosen: object) -> set[str]:
        return {item.id for item in node.sandboxes(**chosen)}

    assert ids() == {first, second}
    assert ids(id=first) == {first}
    assert ids(state=ready) == {first}
    assert ids(state=not_ready) == {second}
    assert ids(label_selector={"app": "web"}) == {first, second}
    assert ids(label_selector=LABELS) == {first}
    assert ids(label_selector={"app": "other"}) == set()
    assert ids(id=first, state=not_ready) == set()
    assert ids(id=str(uuid.uuid4())) == set()


def test_stopped_sandbox_is_not_ready_and_still_there(node: Node) -> None:
    sandbox = node.run()
    node.stop_pod(sandbox)
    assert node.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY
    assert [item.state for item in node.sandboxes()] == [api.SANDBOX_NOTREADY]


def test_removed_sandbox_is_gone(node: Node) -> None:
    sandbox = node.run()
    node.remove(sandbox)
    assert node.sandboxes() == []
    node.refused(lambda: node.pod_status(sandbox), NotFound)


def test_stop_again_is_no_error(node: Node) -> None:
    sandbox = node.run()
    for _ in range(3):
        node.stop_pod(sandbox)
    assert node.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY


def test_remove_again_is_no_error(node: Node) -> None:
    sandbox = node.run()
    node.remove(sandbox)
    answer = node.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert answer.ByteSize() == 0


@pytest.mark.reference(differs="stopping an unknown sandbox is an error")
def test_stop_of_an_unknown_sandbox_is_no_error(node: Node) -> None:
    node.stop_pod(str(uuid.uuid4()))
    assert node.sandboxes() == []


def test_remove_of_an_unknown_sandbox_is_no_error(node: Node) -> None:
    answer = node.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=str(uuid.uuid4())))
    assert answer.ByteSize() == 0


def test_status_of_an_unknown_sandbox_is_not_found(node: Node) -> None:
    node.refused(lambda: node.pod_status(str(uuid.uuid4())), NotFound)


def test_stop_ends_the_containers(node: Node) -> None:
    sandbox = node.run()
    containers = [node.launch(sandbox, name=name) for name in ("one", "two")]
    created = node.create(sandbox, name="never-started")
    node.stop_pod(sandbox)
    assert [node.status(item).state for item in containers] == [api.CONTAINER_EXITED] * 2
    assert node.status(created).state in {api.CONTAINER_CREATED, api.CONTAINER_EXITED}


def test_remove_takes_the_containers_along(node: Node) -> None:
    sandbox = node.run()
    node.launch(sandbox)
    node.create(sandbox, name="second")
    node.remove(sandbox)
    assert node.containers() == []


def test_remove_without_a_stop_before(node: Node) -> None:
    """Containers that run are killed (CRI, RemovePodSandbox)."""
    sandbox = node.run()
    node.launch(sandbox)
    node.call("RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    node.forget(sandbox)
    assert (node.sandboxes(), node.containers()) == ([], [])


def test_same_sandbox_twice_is_one_sandbox(node: Node) -> None:
    """A repeated RunPodSandbox of a name, namespace, uid and attempt may be refused or answered; it makes no second."""
    sandbox = node.run(pod("twin"))
    request = api.RunPodSandboxRequest(config=pod("twin", cgroup_parent=node.endpoint.cgroup_parent))
    (answer,) = node.call_all([("RunPodSandbox", request)])
    if isinstance(answer, Exception):
        assert node.endpoint.is_reference or isinstance(answer, AlreadyExists), repr(answer)
    else:
        assert answer.pod_sandbox_id == sandbox
    assert [item.id for item in node.sandboxes()] == [sandbox]


def test_next_attempt_is_another_sandbox(node: Node) -> None:
    first = node.run(pod("again", attempt=0))
    node.stop_pod(first)
    second = node.run(pod("again", attempt=1))
    assert first != second
    assert {item.id for item in node.sandboxes()} == {first, second}


def test_sandbox_without_metadata_is_refused(node: Node) -> None:
    config = api.PodSandboxConfig()
    node.refused(lambda: node.call("RunPodSandbox", api.RunPodSandboxRequest(config=config)), InvalidArgument)
    assert node.sandboxes() == []


def test_nothing_is_created_in_a_stopped_sandbox(node: Node) -> None:
    sandbox = node.run()
    node.stop_pod(sandbox)
    node.refused(lambda: node.create(sandbox), FailedPrecondition)
    assert node.containers() == []


def test_several_sandboxes_at_once(node: Node) -> None:
    configs = [pod(f"pod{number}", cgroup_parent=node.endpoint.cgroup_parent) for number in range(4)]
    calls = [("RunPodSandbox", api.RunPodSandboxRequest(config=config)) for config in configs]
    answers = node.call_all(calls)
    sandboxes = [node.adopt(answer.pod_sandbox_id, config) for answer, config in zip(answers, configs, strict=True)]
    assert len(set(sandboxes)) == 4
    assert {item.id for item in node.sandboxes()} == set(sandboxes)


@pytest.mark.reference(unsupported="no UpdatePodSandboxResources")
def test_resources_of_a_sandbox_can_be_told(node: Node) -> None:
    sandbox = node.run()
    request = api.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=sandbox, resources=api.LinuxContainerResources(cpu_shares=512)
    )
    assert node.call("UpdatePodSandboxResources", request).ByteSize() == 0


@pytest.mark.reference(unsupported="no streaming lists")
def test_streamed_list_is_the_list(node: Node) -> None:
    sandboxes = {node.run(pod(f"pod{number}")) for number in range(3)}

    parts = node.collect("StreamPodSandboxes", api.StreamPodSandboxesRequest())
    assert sorted(item.id for part in parts for item in part.pod_sandboxes) == sorted(sandboxes)
