from __future__ import annotations

import pytest
from msgspec import structs

from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.waiting import UNTOLD, Containers, WaitingReason
from podkeep.cli.core import output
from podkeep.cli.pods import ps, targets
from podkeep.cri.v1 import api_pb2


def sandbox(
    name: str, *, namespace: str = "default", identity: str = "s", ready: bool = True, created: int = 1
) -> api_pb2.PodSandbox:
    return api_pb2.PodSandbox(
        id=identity,
        metadata=api_pb2.PodSandboxMetadata(name=name, namespace=namespace, uid="u"),
        state=api_pb2.SANDBOX_READY if ready else api_pb2.SANDBOX_NOTREADY,
        created_at=created,
    )


def container(
    name: str, *, attempt: int = 0, sandbox_id: str = "s", state: api_pb2.ContainerState = api_pb2.CONTAINER_RUNNING
) -> api_pb2.Container:
    return api_pb2.Container(
        id=f"{name}-{attempt}",
        pod_sandbox_id=sandbox_id,
        metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
        image=api_pb2.ImageSpec(image="sha256:1", user_specified_image="busybox"),
        state=state,
    )


def row(state: str, *, exit_code: int | None = None, reason: str = "", name: str = "c") -> ps.ContainerRow:
    return ps.ContainerRow(
        name=name, id=name, image="i", state=state, restarts=0, exit_code=exit_code, reason=reason, message=""
    )


@pytest.mark.parametrize(
    ("ready", "rows", "word"),
    [
        (True, [], "ContainerCreating"),
        (True, [row("created")], "ContainerCreating"),
        (True, [row("running"), row("created")], "Running"),
        (True, [row("running"), row("exited", exit_code=0)], "Running"),
        (False, [row("running")], "NotReady"),
        (False, [], "NotReady"),
        (True, [row("exited", exit_code=0)], "Completed"),
        (False, [row("exited", exit_code=0, reason="Completed")], "Completed"),
        (True, [row("exited", exit_code=0), row("exited", exit_code=3)], "Error"),
        (True, [row("exited", exit_code=137, reason="OOMKilled")], "OOMKilled"),
        (True, [row("running"), row("unknown")], "Unknown"),
        (True, [row("running"), row("exited", exit_code=3)], "Error"),
        (
            True,
            [row("running"), row("exited", exit_code=0), row("exited", exit_code=137, reason="OOMKilled")],
            "OOMKilled",
        ),
    ],
)
def test_status_word(ready: bool, rows: list[ps.ContainerRow], word: str) -> None:
    assert ps.status_word(ready, rows, UNTOLD) == word


def test_pod_row_of_a_pod_with_a_user_namespace() -> None:
    options = api_pb2.NamespaceOption(
        userns_options=api_pb2.UserNamespace(
            mode=api_pb2.POD, uids=[api_pb2.IDMapping(host_id=65536, container_id=0, length=65536)]
        )
    )
    status = api_pb2.PodSandboxStatus(
        network=api_pb2.PodSandboxNetworkStatus(ip="10.183.0.2"),
        linux=api_pb2.LinuxPodSandboxStatus(namespaces=api_pb2.Namespace(options=options)),
    )
    pod = ps.pod_row(sandbox("web", created=10**9), status, [container("c", attempt=2)], {}, UNTOLD)
    cells = output.cells(ps.COLUMNS, pod)
    assert cells[:5] == ("web", "default", "1/1", "Running", "2")
    assert cells[6:] == ("10.183.0.2", "65536-131071")
    assert cells[5] == output.since(pod.created_at)
    assert [structs.asdict(row) for row in pod.containers] == [
        {"name": "c", "id": "c-2", "image": "busybox", "state": "running"}
        | {"restarts": 2, "exit_code": None, "reason": "", "message": ""},
    ]


def test_pod_row_of_a_pod_on_the_host_network_and_host_users() -> None:
    status = api_pb2.PodSandboxStatus(
        linux=api_pb2.LinuxPodSandboxStatus(
            namespaces=api_pb2.Namespace(
                options=api_pb2.NamespaceOption(userns_options=api_pb2.UserNamespace(mode=api_pb2.NODE))
            )
        )
    )
    done = container("c", state=api_pb2.CONTAINER_EXITED)
    exits = {done.id: api_pb2.ContainerStatus(state=api_pb2.CONTAINER_EXITED, exit_code=0, reason="Completed")}
    cells = output.cells(ps.COLUMNS, ps.pod_row(sandbox("web"), status, [done], exits, UNTOLD))
    assert cells[2:4] == ("0/1", "Completed")
    assert cells[6:] == ("<none>", "host")


def test_pod_row_of_a_pod_whose_container_ended_says_why() -> None:
    ended = container("c", state=api_pb2.CONTAINER_EXITED)
    why = api_pb2.ContainerStatus(
        state=api_pb2.CONTAINER_EXITED, exit_code=137, reason="ContainerStatusUnknown", message="conmon ended first"
    )
    pod = ps.pod_row(sandbox("web"), api_pb2.PodSandboxStatus(), [container("b"), ended], {ended.id: why}, UNTOLD)
    assert output.cells(ps.COLUMNS, pod)[2:4] == ("1/2", "ContainerStatusUnknown")
    assert (pod.containers[1].reason, pod.containers[1].message) == ("ContainerStatusUnknown", "conmon ended first")


def test_pod_row_does_not_count_ephemeral_containers() -> None:
    """A container for debugging that failed, or cannot start, says nothing of its pod (kubectl's printPod)."""
    failed = container("debugger", state=api_pb2.CONTAINER_EXITED)
    why = api_pb2.ContainerStatus(state=api_pb2.CONTAINER_EXITED, exit_code=1, reason="Error")
    waiting = {"another": WaitingReason(reason="ErrImagePull", message="why")}
    told = Containers(main=("c",), waiting=waiting, followed=True)
    pod = ps.pod_row(sandbox("web"), api_pb2.PodSandboxStatus(), [container("c"), failed], {failed.id: why}, told)
    assert output.cells(ps.COLUMNS, pod)[2:4] == ("1/1", "Running")
    assert [row.name for row in pod.containers] == ["c", "debugger"]


def test_pod_row_of_a_pod_that_waits_for_an_image() -> None:
    waiting = {name: WaitingReason(reason="ImagePullBackOff", message="why") for name in ("c", "d")}
    told = Containers(main=("c", "d"), waiting=waiting, followed=True)
    pod = ps.pod_row(sandbox("web"), api_pb2.PodSandboxStatus(), [container("c")], {}, told)
    assert output.cells(ps.COLUMNS, pod)[2:4] == ("1/2", "ImagePullBackOff")
    assert [structs.asdict(row) for row in pod.waiting] == [
        {"name": name, "reason": "ImagePullBackOff", "message": "why"} for name in ("c", "d")
    ]


SIDE, SETUP = row("running", name="side"), row("exited", exit_code=0, name="setup")
FAILED = row("exited", exit_code=3, reason="Error", name="setup")
BACK_OFF = WaitingReason(reason="CrashLoopBackOff", message="")


@pytest.mark.parametrize(
    ("rows", "waiting", "word"),
    [
        ([], {}, "Init:0/2"),
        ([row("created", name="side")], {}, "Init:0/2"),
        ([SIDE, row("running", name="setup")], {}, "Init:1/2"),
        ([SIDE, FAILED], {}, "Init:Error"),
        ([SIDE, FAILED], {"setup": BACK_OFF}, "Init:CrashLoopBackOff"),
        ([], {"": WaitingReason(reason="FailedMount", message="")}, "FailedMount"),
        ([SIDE, SETUP], {}, "ContainerCreating"),
        ([SIDE, SETUP], {"main": BACK_OFF}, "CrashLoopBackOff"),
        ([SIDE, SETUP, row("running", name="main")], {}, "Running"),
        ([row("exited", exit_code=1, name="side"), row("running", name="main")], {"side": BACK_OFF}, "Running"),
        ([SIDE, SETUP, row("exited", exit_code=0, name="main")], {}, "Completed"),
    ],
)
def test_status_word_of_a_pod_with_init_containers(
    rows: list[ps.ContainerRow], waiting: dict[str, WaitingReason], word: str
) -> None:
    """As kubectl has it (printPod)."""
    told = Containers(init=("side", "setup"), sidecars=("side",), main=("main",), waiting=waiting, followed=True)
    assert ps.status_word(True, rows, told) == word


def test_newest_attempts() -> None:
    listed = [container("b"), container("a", attempt=1), container("a", attempt=10), container("a", sandbox_id="t")]
    newest = ps.newest_attempts(listed)
    assert [(item.pod_sandbox_id, item.metadata.name, item.metadata.attempt) for item in newest] == [
        ("s", "a", 10),
        ("s", "b", 0),
        ("t", "a", 0),
    ]


def test_choose_pod_prefers_ready_then_newest() -> None:
    candidates = [
        sandbox("web", identity="old", created=1),
        sandbox("web", identity="new", created=2),
        sandbox("web", identity="stopped", created=3, ready=False),
        sandbox("web", identity="other", namespace="prod", created=4),
    ]
    assert targets.choose_pod(candidates, "web", "default").id == "new"


@pytest.mark.parametrize("name", ["pod", "svc/web"])
def test_choose_pod_says_that_a_name_has_no_type(name: str) -> None:
    with pytest.raises(NotFound) as told:
        targets.choose_pod([sandbox("web")], name, "default")
    assert told.value.hint == "a pod is named without its type: web, not pod/web"


def test_choose_pod_names_the_namespace_that_has_it() -> None:
    with pytest.raises(NotFound) as caught:
        targets.choose_pod([sandbox("web", namespace="prod")], "web", "default")
    assert caught.value.hint == "there is one in prod: add -n prod"


def test_choose_container_asks_which_when_there_are_several() -> None:
    both = [container("a"), container("b")]
    assert targets.choose_container(both, "web", "b").metadata.name == "b"
    with pytest.raises(InvalidArgument, match="containers a, b"):
        targets.choose_container(both, "web", None)
    with pytest.raises(NotFound, match="no container c"):
        targets.choose_container(both, "web", "c")
    with pytest.raises(NotFound, match="no container"):
        targets.choose_container([], "web", None)


def test_choose_container_leaves_ephemeral_containers_out() -> None:
    """After `kubectl debug` there is still one container that is meant when none is named; a debugger can be named."""
    told = Containers(init=("setup",), main=("a",), followed=True)
    three = [container("a"), container("debugger-x"), container("setup")]
    assert targets.choose_container(three, "web", None, told).metadata.name == "a"
    assert targets.choose_container(three, "web", "debugger-x", told).metadata.name == "debugger-x"
    told = Containers(main=("b", "a"), followed=True)
    with pytest.raises(InvalidArgument, match="containers a, b, debugger-x") as caught:
        targets.choose_container([*three[:2], container("b")], "web", None, told)
    assert caught.value.hint == "choose one with -c b"


def test_choose_container_takes_the_newest_attempt() -> None:
    attempts = [container("a", attempt=2), container("a", attempt=11), container("a", attempt=1)]
    assert targets.choose_container(attempts, "web", None).metadata.attempt == 11
