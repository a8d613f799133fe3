"""The life of a container: create, start, stop, remove, its status at every step, and commands run in it."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest

from podkeep.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
)
from podkeep.cri.v1 import api_pb2 as api
from support.endpoint import Node
from support.waiting import wait_for

LABELS = {"app": "web", "tier": "front"}
ANNOTATIONS = {"example.com/note": "kept"}


def test_created_container_shows_what_was_asked_for(node: Node) -> None:
    sandbox = node.run()
    before = time.time_ns()
    container = node.create(sandbox, labels=LABELS, annotations=ANNOTATIONS, attempt=2)
    status = node.status(container)
    assert status.id == container
    assert (status.metadata.name, status.metadata.attempt) == ("main", 2)
    assert status.state == api.CONTAINER_CREATED
    assert before <= status.created_at <= time.time_ns()
    assert (status.started_at, status.finished_at, status.exit_code) == (0, 0, 0)
    assert dict(status.labels) == LABELS
    assert dict(status.annotations) == ANNOTATIONS
    assert status.image.image == node.image
    assert status.image_ref


def test_running_container_says_since_when(node: Node) -> None:
    container = node.launch(node.run())
    status = node.status(container)
    assert status.state == api.CONTAINER_RUNNING
    assert status.created_at <= status.started_at <= time.time_ns()
    assert status.finished_at == 0


@pytest.mark.parametrize(("command", "code", "reason"), [("true", 0, "Completed"), ("exit 3", 3, "Error")])
def test_container_that_ends_by_itself(node: Node, command: str, code: int, reason: str) -> None:
    # It lives long enough for a runtime that notes the start after the program runs.
    status = node.exited(node.launch(node.run(), "sh", "-c", f"sleep 0.5; {command}"))
    assert (status.exit_code, status.reason) == (code, reason)
    assert status.created_at <= status.started_at <= status.finished_at <= time.time_ns()


def test_container_killed_by_a_signal_exits_with_128_and_its_number(node: Node) -> None:
    container = node.launch(node.run())
    os.kill(node.host_pid(container), signal.SIGKILL)
    status = node.exited(container)
    assert (status.exit_code, status.reason) == (137, "Error")


def test_stop_sends_the_signal_and_waits(node: Node) -> None:
    script = "trap 'exit 7' TERM; sleep 99999 & wait"
    container = node.launch(node.run(), "sh", "-c", script)
    wait_for(lambda: "sleep" in node.read(container, "ps -o comm"), "the loop")
    node.stop(container, timeout=20)
    status = node.status(container)
    assert status.state == api.CONTAINER_EXITED
    assert status.exit_code == 7


def test_stop_kills_what_does_not_listen_when_the_time_is_over(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "trap '' TERM; sleep 99999 & wait")
    started = time.monotonic()
    node.stop(container, timeout=1)
    took = time.monotonic() - started
    assert 0.9 < took < 10
    status = node.status(container)
    assert (status.state, status.exit_code) == (api.CONTAINER_EXITED, 137)


def test_stop_without_a_grace_period_kills_at_once(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "trap '' TERM; sleep 99999 & wait")
    started = time.monotonic()
    node.stop(container, timeout=0)
    assert time.monotonic() - started < 5
    assert node.status(container).exit_code == 137


def test_grace_period_ends_with_the_process(node: Node) -> None:
    container = node.launch(node.run(), "sh", "-c", "trap 'exit 0' TERM; sleep 99999 & wait")
    wait_for(lambda: "sleep" in node.read(container, "ps -o comm"), "the loop")
    started = time.monotonic()
    node.stop(container, timeout=60)
    assert time.monotonic() - started < 10
    assert node.status(container).exit_code == 0


def test_stop_again_is_no_error(node: Node) -> None:
    container = node.launch(node.run())
    for _ in range(3):
        node.stop(container)
    assert node.status(container).state == api.CONTAINER_EXITED


@pytest.mark.reference(differs="stopping an unknown container is an error")
def test_stop_of_an_unknown_container_is_no_error(node: Node) -> None:
    node.stop(str(uuid.uuid4()))
    assert node.containers() == []


def test_remove_of_an_unknown_container_is_no_error(node: Node) -> None:
    node.remove_container(str(uuid.uuid4()))
    assert node.containers() == []


@pytest.mark.parametrize("until", ["created", "running", "exited"])
def test_remove_in_every_state(node: Node, until: str) -> None:
    sandbox = node.run()
    container = node.create(sandbox)
    if until != "created":
        node.start(container)
    if until == "exited":
        node.stop(container)
    node.remove_container(container)
    assert node.containers() == []
    node.refused(lambda: node.status(container), NotFound)
    node.remove_container(container)


def test_container_starts_once(node: Node) -> None:
    container = node.launch(node.run())
    node.refused(lambda: node.start(container), FailedPrecondition)
    assert node.status(container).state == api.CONTAINER_RUNNING
    node.stop(container)
    node.refused(lambda: node.start(container), FailedPrecondition)
    assert node.status(container).state == api.CONTAINER_EXITED


@pytest.mark.parametrize("rpc", ["StartContainer", "ContainerStatus"])
def test_unknown_container_is_not_found(node: Node, rpc: str) -> None:
    request = getattr(api, f"{rpc}Request")(container_id=str(uuid.uuid4()))
    node.refused(lambda: node.call(rpc, request), NotFound)


def test_unknown_sandbox_is_not_found(node: Node) -> None:
    node.refused(lambda: node.create(str(uuid.uuid4())), NotFound)
    assert node.containers() == []


def test_missing_image_is_not_found(node: Node) -> None:
    sandbox = node.run()
    node.refused(lambda: node.create(sandbox, image="registry.invalid/none:1"), NotFound)
    assert node.containers() == []


def test_program_that_is_not_there(node: Node) -> None:
    """Either creating or starting fails; the kubelet takes both."""
    sandbox = node.run()
    message = node.refused(lambda: node.launch(sandbox, "/no/such/program"), NotFound, InvalidArgument)
    assert "/no/such/program" in message


def test_list_is_chosen_by_id_state_sandbox_and_labels(node: Node) -> None:
    one, two = node.run(), node.run(_second())
    running = node.launch(one, labels=LABELS)
    created = node.create(one, name="created", labels={"app": "web"})
    other = node.launch(two)

    def ids(**chosen: object) -> set[str]:
        return {item.id for item in node.containers(**chosen)}

    assert ids() == {running, created, other}
    assert ids(id=created) == {created}
    assert ids(pod_sandbox_id=one) == {running, created}
    assert ids(state=api.ContainerStateValue(state=api.CONTAINER_CREATED)) == {created}
    assert ids(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING)) == {running, other}
    assert ids(label_selector={"app": "web"}) == {running, created}
    assert ids(label_selector=LABELS) == {running}
    assert ids(pod_sandbox_id=two, label_selector=LABELS) == set()
    assert ids(id=str(uuid.uuid4())) == set()


def _second() -> api.PodSandboxConfig:
    metadata = api.PodSandboxMetadata(name="second", uid="uid-second", namespace="tests")
    context = api.LinuxSandboxSecurityContext(namespace_options=api.NamespaceOption(pid=api.CONTAINER))
    return api.PodSandboxConfig(metadata=metadata, linux=api.LinuxPodSandboxConfig(security_context=context))


def test_list_shows_the_same_as_the_status(node: Node) -> None:
    container = node.launch(node.run(), labels=LABELS, annotations=ANNOTATIONS)
    (item,) = node.containers()
    status = node.status(container)
    for field in ("id", "metadata", "state", "created_at", "labels", "annotations"):
        assert getattr(item, field) == getattr(status, field), field
    assert item.image.image == status.image.image


def test_same_container_twice_is_one_container(node: Node) -> None:
    sandbox = node.run()
    container = node.create(sandbox)
    (answer,) = node.call_all([("CreateContainer", node.create_request(sandbox))])
    if isinstance(answer, Exception):
        assert node.endpoint.is_reference or isinstance(answer, AlreadyExists), repr(answer)
    else:
        assert answer.container_id == container
    assert [item.id for item in node.containers()] == [container]


def test_next_attempt_is_another_container(node: Node) -> None:
    sandbox = node.run()
    first = node.launch(sandbox, "false")
    node.exited(first)
    second = node.launch(sandbox, attempt=1)
    assert {item.metadata.attempt: item.id for item in node.containers()} == {0: first, 1: second}


def test_environment_working_directory_and_arguments(node: Node) -> None:
    envs = [api.KeyValue(key="EMPTY", value=b""), api.KeyValue(key="SPACES", value=b" two  words ")]
    script = 'echo "$0|$1|$EMPTY|$SPACES|$(pwd)|$PATH"; exec sleep 1000'
    sandbox = node.run()
    container = node.launch(
        sandbox, "sh", "-c", script, "zero", args=["one"], envs=envs, working_dir="/tmp", name="arguments"
    )
    text = node.read(node.executed(container), "tr '\\0' '\\n' </proc/1/environ; readlink /proc/1/cwd")
    assert "EMPTY=" in text.splitlines()
    assert "SPACES= two  words " in text.splitlines()
    assert text.splitlines()[-1] == "/tmp"
    assert any(line.startswith("PATH=") for line in text.splitlines())


def test_root_file_system_is_the_containers_own(node: Node) -> None:
    sandbox = node.run()
    one, two = (node.launch(sandbox, name=name) for name in ("one", "two"))
    node.read(one, "echo written >/tmp/file")
    assert node.exec(two, "test", "-e", "/tmp/file").exit_code == 1
    assert node.read(one, "cat /tmp/file") == "written"


# commands


def test_command_gives_its_outputs_and_its_code(node: Node) -> None:
    container = node.launch(node.run())
    answer = node.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"out\n", b"err\n", 3)
    answer = node.exec(container, "true")
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"", b"", 0)


def test_command_takes_bytes_and_arguments_as_they_are(node: Node) -> None:
    container = node.launch(node.run())
    answer = node.exec(container, "printf", "%s|", "a b", "$HOME", "ünï", "")
    assert answer.stdout == "a b|$HOME|ünï||".encode()
    assert node.exec(container, "printf", "\\377\\000x").stdout == b"\xff\x00x"


def test_command_that_takes_too_long_is_killed(node: Node) -> None:
    container = node.launch(node.run())
    started = time.monotonic()
    node.refused(lambda: node.exec(container, "sleep", "4321", timeout=1), DeadlineExceeded)
    assert time.monotonic() - started < 10
    wait_for(lambda: "4321" not in node.read(container, "ps -o args | grep -v grep"), "the end of the command")
    assert node.status(container).state == api.CONTAINER_RUNNING


def test_command_reads_no_input(node: Node) -> None:
    assert node.exec(node.launch(node.run()), "cat").stdout == b""


@pytest.mark.parametrize("state", ["created", "exited"])
def test_command_needs_a_running_container(node: Node, state: str) -> None:
    container = node.create(node.run())
    if state == "exited":
        node.start(container)
        node.stop(container)
    node.refused(lambda: node.exec(container, "true"), FailedPrecondition)


def test_command_in_an_unknown_container_is_not_found(node: Node) -> None:
    node.refused(lambda: node.exec(str(uuid.uuid4()), "true"), NotFound)


def test_commands_at_once(node: Node) -> None:
    container = node.launch(node.run())
    calls = [("ExecSync", api.ExecSyncRequest(container_id=container, cmd=["echo", str(n)])) for n in range(8)]
    assert [answer.stdout for answer in node.call_all(calls)] == [b"%d\n" % n for n in range(8)]


@pytest.mark.reference(unsupported="no checkpoints")
def test_checkpoint_is_made_or_refused_by_name(node: Node, tmp_path: object) -> None:
    container = node.launch(node.run())
    request = api.CheckpointContainerRequest(container_id=container, location=f"{tmp_path}/archive.tar", timeout=10)
    (answer,) = node.call_all([("CheckpointContainer", request)])
    assert not isinstance(answer, PodkeepError) or "criu" in str(answer).lower(), repr(answer)
    assert node.status(container).state == api.CONTAINER_RUNNING


@pytest.mark.reference(unsupported="no streaming lists")
def test_streamed_list_is_the_list(node: Node) -> None:
    sandbox = node.run()
    containers = {node.create(sandbox, name=f"c{number}") for number in range(3)}
    parts = node.collect("StreamContainers", api.StreamContainersRequest())
    assert sorted(item.id for part in parts for item in part.containers) == sorted(containers)


@pytest.mark.reference(unsupported="no stop signal in a request or status")
def test_stop_signal_of_the_request(node: Node) -> None:
    script = "trap 'exit 9' USR1; trap '' TERM; sleep 99999 & wait"
    container = node.launch(node.run(), "sh", "-c", script, stop_signal=api.SIGUSR1)
    wait_for(lambda: "sleep" in node.read(container, "ps -o comm"), "the loop")
    assert node.status(container).stop_signal == api.SIGUSR1
    node.stop(container, timeout=20)
    assert node.status(container).exit_code == 9
