"""Changing classes of what runs: together with limits or alone, all or nothing, also when the daemon is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound, PodkeepError
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.runtime.model.layout import container_cgroup
from support import streams
from support.class_types import (
    BIG,
    SMALL,
    ClassTypes,
    container_classes,
    in_force,
    oom_score,
    pod_classes,
    share,
)
from support.cri import Pods, error_of, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.registry import Registry
from support.waiting import wait_for

MIB = 1 << 20
LIMITS = {"memory_limit_in_bytes": 64 * MIB, "cpu_quota": 50_000, "cpu_period": 100_000}


@pytest.fixture(scope="module")
def classed(open_directory: Path, registry: Registry, image: str) -> Iterator[tuple[Daemon, ClassTypes]]:
    """A daemon that offers the types of support/class_types.py."""
    base = open_directory / f"classed-{os.urandom(3).hex()}"
    base.mkdir()
    types = ClassTypes.make(base)
    with Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n{types.toml()}') as daemon:
        with Pods(daemon.socket, image) as client:
            client.pull()
        yield daemon, types


@pytest.fixture
def daemon(classed: tuple[Daemon, ClassTypes]) -> Iterator[Daemon]:
    """The daemon; fails a test that leaves something behind."""
    daemon, _ = classed
    before = daemon.resources()
    yield daemon
    assert daemon.resources() == before


@pytest.fixture
def types(classed: tuple[Daemon, ClassTypes]) -> ClassTypes:
    """Its types, whose hook has not been called yet."""
    _, types = classed
    types.calls.write_text("")
    return types


@pytest.fixture
def pods(daemon: Daemon, types: ClassTypes, image: str) -> Iterator[Pods]:
    """A client that removes its pods."""
    with Pods(daemon.socket, image) as client:
        yield client


def update(pods: Pods, container: str, limits: dict[str, Any] | None = None, /, **classes: str) -> None:
    request = api.UpdateContainerResourcesRequest(container_id=container)
    if limits is not None:
        request.linux.CopyFrom(api.LinuxContainerResources(**limits))
    if classes:
        request.class_resources.CopyFrom(container_classes(**classes))
    pods.call("UpdateContainerResources", request)


def update_request(container: str, **classes: str) -> tuple[str, Any]:
    request = api.UpdateContainerResourcesRequest(container_id=container, class_resources=container_classes(**classes))
    return "UpdateContainerResources", request


def update_pod(pods: Pods, sandbox: str, config: api.PodSandboxConfig | None = None, /, **classes: str) -> None:
    config = config or api.PodSandboxConfig()
    config.class_resources.CopyFrom(pod_classes(**classes))
    request = api.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox, config=config)
    answer = pods.call("UpdatePodSandboxConfig", request)
    assert answer == api.UpdatePodSandboxConfigResponse()


def launch(pods: Pods, sandbox: str, **classes: str) -> str:
    resources = api.LinuxContainerResources(**LIMITS)
    return pods.launch(sandbox, resources=resources, class_resources=container_classes(**classes))


def memory(daemon: Daemon, pods: Pods, container: str) -> str:
    (listed,) = pods.containers(id=container)
    cgroup = container_cgroup(daemon.cgroup_parent, SandboxID(listed.pod_sandbox_id), ContainerID(container))
    groups = Cgroups()
    return (groups.read(cgroup, "memory.limit_in_bytes" if groups.version == 1 else "memory.max") or "").strip()


def everything(daemon: Daemon, pods: Pods, container: str) -> tuple[object, ...]:
    """Return what a refused update must leave as it was."""
    return (
        share(daemon, pods, container=container),
        oom_score(pods, container),
        memory(daemon, pods, container),
        in_force(pods, container=container),
        pods.status(container).resources,
    )


@pytest.mark.requirement("Q8", "Q9")
def test_a_class_changes_and_nothing_else(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), share="small", oom="low")
    assert share(daemon, pods, container=container) == SMALL
    before = everything(daemon, pods, container)
    update(pods, container, share="big")
    assert share(daemon, pods, container=container) == BIG
    assert in_force(pods, container=container) == {"share": "big", "oom": "low"}
    assert everything(daemon, pods, container)[1:3] == before[1:3]
    assert pods.status(container).resources == before[4]


@pytest.mark.requirement("Q9")
@pytest.mark.requirement("Q42")
@pytest.mark.parametrize("tty", [False, True])
def test_a_streamed_command_has_the_class_of_now_and_no_descriptor_of_ours(pods: Pods, tty: bool) -> None:
    container = launch(pods, pods.run(), oom="low")
    update(pods, container, oom="high")
    command = ["sh", "-c", "cat /proc/self/oom_score_adj; ls /proc/self/fd"]
    url = pods.call(
        "Exec", api.ExecRequest(container_id=container, cmd=command, stdout=True, stderr=not tty, tty=tty)
    ).url

    async def output() -> bytes:
        return (await streams.collect(await streams.connect("websocket", url)))[0]

    # The last one is the directory that `ls` reads.
    assert pods.wait(output()).split() == [b"900", b"0", b"1", b"2", b"3"]


def test_limits_change_and_no_class(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), share="big", oom="high")
    update(pods, container, {"memory_limit_in_bytes": 96 * MIB})
    assert memory(daemon, pods, container) == str(96 * MIB)
    assert in_force(pods, container=container) == {"share": "big", "oom": "high"}
    assert (share(daemon, pods, container=container), oom_score(pods, container)) == (BIG, 900)


@pytest.mark.requirement("Q9")
def test_a_class_has_the_last_word_on_a_file_that_limits_name_too(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), share="big")
    update(pods, container, {"cpu_shares": 512})
    assert share(daemon, pods, container=container) == BIG
    assert pods.status(container).resources.linux.cpu_shares == 512
    update(pods, container, {"cpu_shares": 600}, share="small")
    assert share(daemon, pods, container=container) == SMALL


@pytest.mark.requirement("Q8", "Q9")
def test_limits_and_classes_change_together(pods: Pods, daemon: Daemon, types: ClassTypes) -> None:
    container = launch(pods, pods.run(), share="small", oom="low")
    update(pods, container, {"memory_limit_in_bytes": 96 * MIB}, share="big", oom="high", watched="good")
    assert everything(daemon, pods, container)[:4] == (
        BIG,
        900,
        str(96 * MIB),
        {"share": "big", "oom": "high", "watched": "good"},
    )
    assert ("apply", "good", None) in types.told("watched")
    update(pods, container, watched="fine")
    assert ("apply", "fine", "good") in types.told("watched")


@pytest.mark.requirement("Q79")
def test_the_default_is_a_class_with_a_name(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), share="big")
    update(pods, container, share="default")
    assert in_force(pods, container=container) == {"share": "small"}
    message = error_of(lambda: update(pods, container, oom="default"), InvalidArgument)
    assert message.startswith("class resource oom: ")
    assert "default" in message


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], type[PodkeepError], str]] = {
    "no such class": (
        {"cpu_quota": 20_000},
        {"share": "huge", "oom": "high"},
        InvalidArgument,
        "class resource share: ",
    ),
    "no such type": ({"cpu_quota": 20_000}, {"nosuch": "x", "oom": "high"}, InvalidArgument, "class resource nosuch: "),
    "a type that is off": ({"cpu_quota": 20_000}, {"rdt": "gold"}, FailedPrecondition, "class resource rdt: "),
    "immutable": (
        {"cpu_quota": 20_000},
        {"bolted": "steel", "share": "big"},
        InvalidArgument,
        "class resource bolted: ",
    ),
    "refused by its hook": (
        {"memory_limit_in_bytes": 96 * MIB, "cpu_shares": 77},
        {"share": "big", "oom": "high", "watched": "bad"},
        FailedPrecondition,
        "class resource watched: ",
    ),
    "not in force afterwards": (
        {"memory_limit_in_bytes": 96 * MIB},
        {"share": "big", "watched": "weak"},
        FailedPrecondition,
        "class resource watched: ",
    ),
    "not in force afterwards, without limits": (
        {},
        {"share": "big", "watched": "weak"},
        FailedPrecondition,
        "class resource watched: ",
    ),
    "limits that cannot be": ({"cpu_period": 10}, {"share": "big", "watched": "fine"}, InvalidArgument, "linux"),
    "no name": ({"cpu_quota": 20_000}, {"share": ""}, InvalidArgument, "class resource share: "),
}


@pytest.mark.requirement("Q5", "Q9", "Q13")
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_update_changes_nothing(pods: Pods, daemon: Daemon, types: ClassTypes, case: str) -> None:
    limits, classes, kind, begin = REFUSED[case]
    container = launch(pods, pods.run(), share="small", oom="low", bolted="iron", watched="good")
    before = everything(daemon, pods, container)
    message = error_of(lambda: update(pods, container, limits, **classes), kind)
    assert message.startswith(begin)
    assert everything(daemon, pods, container) == before
    applied = [item for item in types.told("watched") if item[0] == "apply"]
    assert applied[-1][1] == "good"


@pytest.mark.requirement("Q9")
def test_a_refused_update_takes_back_classes_that_there_were_none_of(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run())
    before = everything(daemon, pods, container)
    message = error_of(lambda: update(pods, container, share="big", oom="high", watched="bad"), FailedPrecondition)
    assert "nobody is let in" in message
    assert everything(daemon, pods, container) == before


@pytest.mark.requirement("Q13")
def test_the_class_of_an_immutable_type_can_be_named_as_it_is(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), bolted="iron")
    update(pods, container, bolted="iron", share="big")
    assert in_force(pods, container=container) == {"bolted": "iron", "share": "big"}
    without = launch(pods, pods.run(pod("other")))
    assert "immutable" in error_of(lambda: update(pods, without, bolted="iron"), InvalidArgument)


def test_a_created_container_changes_and_an_ended_one_does_not(pods: Pods, daemon: Daemon) -> None:
    container = pods.create(pods.run(), class_resources=container_classes(share="small", watched="good"))
    update(pods, container, share="big", watched="fine")
    pods.start(container)
    assert share(daemon, pods, container=container) == BIG
    pods.stop(container)
    message = error_of(lambda: update(pods, container, share="small"), FailedPrecondition)
    assert "is exited" in message
    error_of(lambda: update(pods, "no-such-container", share="small"), NotFound)


def test_updates_at_the_same_time_end_as_one_of_them(pods: Pods, daemon: Daemon) -> None:
    container = launch(pods, pods.run(), share="small", oom="low")
    pairs = [("big", "high"), ("small", "low"), ("big", "low"), ("small", "high")] * 4
    requests = [update_request(container, share=one, oom=other) for one, other in pairs]
    assert all(isinstance(answer, api.UpdateContainerResourcesResponse) for answer in pods.call_all(requests))
    classes = in_force(pods, container=container)
    assert share(daemon, pods, container=container) == {"big": BIG, "small": SMALL}[classes["share"]]
    assert oom_score(pods, container) == {"high": 900, "low": 100}[classes["oom"]]


def test_a_container_that_ends_meanwhile_is_released(pods: Pods, daemon: Daemon, types: ClassTypes) -> None:
    for number in range(5):
        types.calls.write_text("")
        container = launch(pods, pods.run(pod(f"brief-{number}")), watched="good")
        stop = ("StopContainer", api.StopContainerRequest(container_id=container))
        pods.call_all([update_request(container, watched="fine", share="big"), stop])
        pods.remove_container(container)
        assert types.told("watched")[-1][0] == "release"


def test_a_container_that_starts_meanwhile_starts(pods: Pods, daemon: Daemon) -> None:
    """The class that is verified is the one that is in force by then."""
    sandbox = pods.run()
    for number in range(5):
        container = pods.create(
            sandbox, name=f"main-{number}", class_resources=container_classes(share="small", watched="good")
        )
        start = ("StartContainer", api.StartContainerRequest(container_id=container))
        answers = pods.call_all([start, update_request(container, share="big", watched="fine")])
        assert [type(answer) for answer in answers] == [
            api.StartContainerResponse,
            api.UpdateContainerResourcesResponse,
        ]
        assert pods.status(container).state == api.CONTAINER_RUNNING
        assert in_force(pods, container=container) == {"share": "big", "watched": "fine"}
        assert share(daemon, pods, container=container) == BIG


def test_a_container_that_is_removed_meanwhile_is_released(pods: Pods, daemon: Daemon, types: ClassTypes) -> None:
    sandbox = pods.run()
    for number in range(5):
        container = pods.launch(sandbox, name=f"main-{number}", class_resources=container_classes(watched="good"))
        removal = ("RemoveContainer", api.RemoveContainerRequest(container_id=container))
        pods.call_all([update_request(container, watched="fine", oom="high"), removal])
        assert types.told("watched")[-1][0] == "release"
        assert pods.containers(id=container) == []


# pods


@pytest.mark.requirement("Q10", "Q17", "Q18")
def test_the_class_of_a_pod_changes(pods: Pods, daemon: Daemon) -> None:
    config = pod()
    config.class_resources.CopyFrom(pod_classes(share="small", qos="Burstable"))
    sandbox = pods.run(config)
    assert share(daemon, pods, sandbox=sandbox) == SMALL
    update_pod(pods, sandbox, share="big")
    assert share(daemon, pods, sandbox=sandbox) == BIG
    assert in_force(pods, sandbox=sandbox) == {"share": "big", "qos": "Burstable"}
    # The kubelet sends the configuration of before with every container.
    container = launch(pods, sandbox, share="small")
    assert in_force(pods, sandbox=sandbox) == {"share": "big", "qos": "Burstable"}
    assert share(daemon, pods, sandbox=sandbox) == BIG
    assert in_force(pods, container=container) == {"share": "small"}
    again = pod(config.metadata.name)
    update_pod(pods, sandbox, again, qos="default")
    assert in_force(pods, sandbox=sandbox) == {"share": "big", "qos": "BestEffort"}
    assert pods.run(config) == sandbox


@pytest.mark.requirement("Q18")
def test_a_pods_refused_update_changes_nothing(pods: Pods, daemon: Daemon) -> None:
    config = pod(labels={"app": "web"})
    config.class_resources.CopyFrom(pod_classes(share="small", bolted="iron"))
    sandbox = pods.run(config)

    def refused(kind: type[PodkeepError], given: api.PodSandboxConfig | None = None, **classes: str) -> str:
        message = error_of(lambda: update_pod(pods, sandbox, given, **classes), kind)
        assert share(daemon, pods, sandbox=sandbox) == SMALL
        assert in_force(pods, sandbox=sandbox) == {"share": "small", "bolted": "iron"}
        return message

    other = api.PodSandboxConfig(labels={"app": "db"})
    assert refused(InvalidArgument, other, share="big").startswith("config.labels: ")
    assert refused(InvalidArgument, share="big", oom="low").startswith("class resource oom: ")
    assert refused(InvalidArgument, share="huge").startswith("class resource share: ")
    assert "immutable" in refused(InvalidArgument, share="big", bolted="steel")
    for class_name in ("bad", "weak"):
        message = refused(FailedPrecondition, share="big", watched=class_name)
        assert message.startswith("class resource watched: ")
    error_of(lambda: update_pod(pods, "no-such-sandbox", share="big"), NotFound)
    error_of(lambda: update_pod(pods, "", share="big"), InvalidArgument)
    pods.stop_pod(sandbox)
    assert "notready" in error_of(lambda: update_pod(pods, sandbox, share="big"), FailedPrecondition)


def test_a_pod_that_is_stopped_meanwhile_is_released(pods: Pods, daemon: Daemon, types: ClassTypes) -> None:
    for number in range(5):
        config = pod(f"brief-{number}")
        config.class_resources.CopyFrom(pod_classes(watched="good"))
        sandbox = pods.run(config)
        request = api.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox)
        request.config.class_resources.CopyFrom(pod_classes(watched="fine", share="big"))
        stop = ("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        pods.call_all([("UpdatePodSandboxConfig", request), stop])
        assert types.told("watched")[-1][0] == "release"
        assert in_force(pods, sandbox=sandbox) == {}
        pods.remove(sandbox)


def test_a_pods_class_that_comes_while_its_containers_end_is_released(
    pods: Pods, daemon: Daemon, types: ClassTypes, image: str
) -> None:
    """Stopping waits for the containers, here until the hook lets go of one of them."""
    releasing, go = Path(f"{types.hook}.releasing"), Path(f"{types.hook}.go")
    usual = types.hook.read_text()
    types.hook.write_text(
        usual.replace(
            "told=$(cat)\n",
            f"""told=$(cat)
case "$1 $told" in release*'"level": "container"'*)
  touch {releasing}; while [ ! -e {go} ]; do sleep 0.01; done;;
esac
""",
        )
    )
    sandbox = pods.run()

    def stop() -> None:
        with Pods(daemon.socket, image) as others:
            others.stop_pod(sandbox)

    stopping = threading.Thread(target=stop)
    try:
        launch(pods, sandbox, watched="good")
        stopping.start()
        wait_for(releasing.exists, "the hook to be told that the container ended")
        update_pod(pods, sandbox, watched="fine", share="big")
    finally:
        go.touch()
        stopping.join()
        types.hook.write_text(usual)
    assert users(pods) == []
    assert in_force(pods, sandbox=sandbox) == {}
    assert types.told("watched")[-1] == ("release", "fine", None)


def users(pods: Pods) -> list[str]:
    """Return the IDs of what is in a class, as the daemon says."""
    info = pods.call("Status", api.StatusRequest(verbose=True)).info
    return [user["id"] for user in json.loads(info["classResourceUsers"])]


def test_limits_that_change_while_it_ends_keep_nothing_in_a_class(pods: Pods, daemon: Daemon) -> None:
    """What is counted as in use would keep a class in the configuration for ever."""
    for number in range(5):
        config = pod(f"brief-{number}")
        config.class_resources.CopyFrom(pod_classes(share="big"))
        sandbox = pods.run(config)
        container = launch(pods, sandbox, share="small")
        assert sorted(users(pods)) == sorted([sandbox, container])
        limits = api.LinuxContainerResources(cpu_shares=512 + number)
        of_container = api.UpdateContainerResourcesRequest(container_id=container, linux=limits)
        of_pod = api.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox, resources=limits)
        pods.call_all(
            [
                ("UpdateContainerResources", of_container),
                ("UpdatePodSandboxResources", of_pod),
                ("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox)),
            ]
        )
        wait_for(lambda: users(pods) == [], "nothing to be in a class")
        assert in_force(pods, container=container) == {}
        pods.remove(sandbox)


@pytest.mark.requirement("Q9")
def test_the_limits_of_a_pod_leave_its_class_alone(pods: Pods, daemon: Daemon) -> None:
    config = pod()
    config.class_resources.CopyFrom(pod_classes(share="big"))
    sandbox = pods.run(config)
    request = api.UpdatePodSandboxResourcesRequest(
        pod_sandbox_id=sandbox, resources=api.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=96 * MIB)
    )
    pods.call("UpdatePodSandboxResources", request)
    assert share(daemon, pods, sandbox=sandbox) == BIG
    assert in_force(pods, sandbox=sandbox) == {"share": "big"}


# the daemon ends


@pytest.fixture
def mortal_types(mortal: Mortal) -> ClassTypes:
    """The types of a daemon that the test kills."""
    types = ClassTypes.make(mortal.daemon.base)
    mortal.daemon.extra += types.toml()
    mortal.daemon.write()
    return types


def killed(mortal: Mortal, point: str, change: Any) -> Pods:
    """Have the daemon killed at a point of a change, and return a client of the next one."""
    mortal.daemon.stop()
    pods = mortal.start(failpoints=f"{point}=kill")
    with pytest.raises(PodkeepError):
        change(pods)
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(10)
    return mortal.start()


@pytest.mark.requirement("Q9", "Q16")
@pytest.mark.parametrize(
    "point", ["update.noted", "update.limited", "class.changed.oom", "class.changed.watched", "update.written"]
)
def test_a_daemon_killed_in_an_update_puts_back_what_the_record_says(
    mortal: Mortal, mortal_types: ClassTypes, point: str
) -> None:
    pods = mortal.start()
    container = launch(pods, pods.run(), oom="low", share="small")
    before = everything(mortal.daemon, pods, container)
    limits = {"memory_limit_in_bytes": 96 * MIB, "cpu_shares": 77}
    classes = {"oom": "high", "share": "big", "watched": "good"}
    pods = killed(mortal, point, lambda pods: update(pods, container, limits, **classes))
    assert everything(mortal.daemon, pods, container) == before
    told = mortal_types.told("watched")
    assert told == [] or told[-1][0] == "release"
    update(pods, container, limits, **classes)
    assert everything(mortal.daemon, pods, container)[:3] == (BIG, 900, str(96 * MIB))


@pytest.mark.requirement("Q9", "Q16")
def test_a_first_class_of_a_killed_update_leaves_the_limit_of_before(mortal: Mortal, mortal_types: ClassTypes) -> None:
    """The class found the limit of the update in its file, which is taken back as well."""
    pods = mortal.start()
    container = launch(pods, pods.run())
    before = everything(mortal.daemon, pods, container)
    pods = killed(mortal, "class.changed.share", lambda pods: update(pods, container, {"cpu_shares": 77}, share="big"))
    assert everything(mortal.daemon, pods, container) == before


@pytest.mark.requirement("Q16")
def test_what_ended_after_a_killed_update_is_released(mortal: Mortal, mortal_types: ClassTypes) -> None:
    pods = mortal.start()
    container = pods.launch(pods.run())
    process = pods.host_pid(container)
    mortal.daemon.stop()
    pods = mortal.start(failpoints="class.changed.watched=kill")
    with pytest.raises(PodkeepError):
        update(pods, container, watched="good")
    assert mortal.daemon.process is not None
    mortal.daemon.process.wait(10)
    os.kill(process, signal.SIGKILL)
    pods = mortal.start()
    assert pods.exited(container).exit_code == 137
    assert [item[0] for item in mortal_types.told("watched")] == ["apply", "release"]


@pytest.mark.requirement("Q16", "Q18")
@pytest.mark.parametrize("point", ["update.noted", "class.changed.share", "update.written"])
def test_a_daemon_killed_in_an_update_of_a_pod(mortal: Mortal, mortal_types: ClassTypes, point: str) -> None:
    pods = mortal.start()
    config = pod()
    config.class_resources.CopyFrom(pod_classes(share="small"))
    sandbox = pods.run(config)
    pods = killed(mortal, point, lambda pods: update_pod(pods, sandbox, share="big", watched="good"))
    assert share(mortal.daemon, pods, sandbox=sandbox) == SMALL
    assert in_force(pods, sandbox=sandbox) == {"share": "small"}
    told = mortal_types.told("watched")
    assert told == [] or told[-1][0] == "release"
    update_pod(pods, sandbox, share="big")
    assert share(mortal.daemon, pods, sandbox=sandbox) == BIG


@pytest.mark.requirement("Q16")
def test_changed_classes_survive_a_kill(mortal: Mortal, mortal_types: ClassTypes) -> None:
    pods = mortal.start()
    sandbox = pods.run()
    container = launch(pods, sandbox, share="small", oom="low")
    update(pods, container, share="big", oom="high")
    update_pod(pods, sandbox, share="big")
    mortal.daemon.kill()
    pods = mortal.start()
    assert in_force(pods, container=container) == {"share": "big", "oom": "high"}
    assert in_force(pods, sandbox=sandbox) == {"share": "big"}
    assert share(mortal.daemon, pods, container=container) == BIG
    assert share(mortal.daemon, pods, sandbox=sandbox) == BIG
    assert oom_score(pods, container) == 900
    update(pods, container, share="small")
    assert share(mortal.daemon, pods, container=container) == SMALL
