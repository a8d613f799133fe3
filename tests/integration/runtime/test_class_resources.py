"""Containers and pods in their classes, by a real daemon: made, checked, kept over restarts, reloaded, released."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import FailedPrecondition, Internal, InvalidArgument, PodkeepError, Unavailable
from podkeep.base.ids import ContainerID, SandboxID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.model.layout import container_cgroup
from support.cri import Pods, error_of, pod
from support.mortal import Mortal
from support.processes import write_script
from support.waiting import wait_for

WEIGHT = "cpu.shares" if Cgroups().version == 1 else "cpu.weight"
DEMO = "vendor.example/demo"
HOOK = """#!/bin/sh
told=$(cat)
test -e "$0.refuse-$1" && { echo "$1 is refused today" >&2; exit 1; }
printf '%s %s\\n' "$1" "$told" >> "$0.log"
"""


def configuration(hook: Path, *, weights: dict[str, int], oom: dict[str, int], more: str = "") -> str:
    """Return [class_resources]: a type ``weight`` of a cgroup's file, one with a hook at both levels, and oom."""
    classes = "\n".join(f'[class_resources.types.weight.classes.{name}.cgroup]\n"{WEIGHT}" = "{value}"'
                        for name, value in weights.items())  # fmt: skip
    scores = "\n".join(f"{name} = {score}" for name, score in oom.items())
    return f"""
[class_resources.container_defaults]
weight = "much"
[class_resources.oom]
{scores}
{classes}
[class_resources.types."{DEMO}"]
levels = ["container", "pod"]
hook = "{hook}"
[class_resources.types."{DEMO}".classes.red.parameters]
shade = "dark"
[class_resources.types."{DEMO}".classes.blue]
{more}
"""


WEIGHTS = {"much": 700, "little": 40}
OOM = {"likely": 600, "unlikely": 300}


class Node:
    """A daemon with these types, to be started, killed and reloaded."""

    def __init__(self, mortal: Mortal) -> None:
        self.mortal, self.daemon = mortal, mortal.daemon
        self._extra = self.daemon.extra
        self.hook = write_script(self.daemon.base / "hook", HOOK)
        self.configure()

    def configure(self, **changes: Any) -> None:
        self.daemon.extra = self._extra + configuration(self.hook, **({"weights": WEIGHTS, "oom": OOM} | changes))
        self.daemon.write()

    def start(self, *, failpoints: str = "") -> Pods:
        return self.mortal.start(failpoints=failpoints)

    def refuse(self, action: str, *, on: bool = True) -> None:
        """Have the hook fail from now on, or not any more."""
        mark = Path(f"{self.hook}.refuse-{action}")
        if on:
            mark.touch()
        else:
            mark.unlink()

    def told(self) -> list[tuple[str, str, str]]:
        """Return what the hook was told: action, class, and the container's or pod's ID."""
        log = Path(f"{self.hook}.log")
        lines = log.read_text().splitlines() if log.exists() else []
        found = []
        for line in lines:
            action, _, text = line.partition(" ")
            told = json.loads(text)
            found.append((action, told["class"], told["id"]))
        return found

    def reload(self) -> str:
        """Send SIGHUP and return the log's line about it."""
        before = self.daemon.log.read_text()
        self.daemon.hang_up()

        def line() -> str:
            new = self.daemon.log.read_text()[len(before) :].splitlines()
            ends = ("configuration read again", "the configuration stays as it was")
            return next((item for item in new if any(end in item for end in ends)), "")

        return str(wait_for(line, "the end of the reload"))

    def cgroup(self, pods: Pods, container: str) -> str:
        (listed,) = pods.containers(id=container)
        return self.cgroup_of(listed.pod_sandbox_id, container)

    def cgroup_of(self, sandbox: str, container: str) -> str:
        return container_cgroup(self.daemon.cgroup_parent, SandboxID(sandbox), ContainerID(container))

    def weight(self, pods: Pods, container: str) -> int:
        return int(Cgroups().read(self.cgroup(pods, container), WEIGHT) or 0)

    def config_json(self, container: str) -> Any:
        return json.loads((self.daemon.layout.bundle(ContainerID(container)) / "config.json").read_text())


@pytest.fixture
def node(mortal: Mortal) -> Iterator[Node]:
    made = Node(mortal)
    yield made
    for action in ("apply", "verify", "release"):
        Path(f"{made.hook}.refuse-{action}").unlink(missing_ok=True)


def asking(**classes: str) -> api.ContainerClassResources:
    """Return classes of a container; ``demo`` stands for the type with the hook."""
    return api.ContainerClassResources(
        classes={DEMO if name == "demo" else name: item for name, item in classes.items()}
    )


def pod_asking(name: str = "pod", **classes: str) -> api.PodSandboxConfig:
    config = pod(name)
    for key, value in classes.items():
        getattr(config.class_resources, "class")[DEMO if key == "demo" else key] = value
    return config


def held_by_pod(pods: Pods, sandbox: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(pods.pod_status(sandbox, verbose=True).info["info"])["classResources"]
    return found


def update(pods: Pods, container: str, **classes: str) -> None:
    request = api.UpdateContainerResourcesRequest(container_id=container, class_resources=asking(**classes))
    pods.call("UpdateContainerResources", request)


def score(pods: Pods, container: str) -> int:
    return procfs.oom_score_adj(pods.host_pid(container))


@pytest.mark.requirement("Q1", "Q3", "Q77", "Q78", "Q79")
def test_classes_of_containers_and_of_pods(node: Node) -> None:
    pods = node.start()
    before = node.daemon.resources()
    sandbox = pods.run(pod_asking(demo="red", qos="Burstable"))
    resources = api.LinuxContainerResources(oom_score_adj=900, cpu_shares=100)
    asked = asking(weight="default", oom="likely", qos="Guaranteed")
    both = [pods.launch(sandbox, name=name, class_resources=asked, resources=resources) for name in "ab"]
    for container in both:
        assert pods.classes(container) == {"oom": "likely", "qos": "Guaranteed", "weight": "much"}
        assert (score(pods, container), node.weight(pods, container)) == (600, 700)
        assert pods.read(container, "cat /proc/self/oom_score_adj") == "600"
        annotations = node.config_json(container)["annotations"]
        assert annotations["io.kubernetes.pod.qos-class"] == "Burstable"
        assert annotations["io.kubernetes.container.qos-class"] == "Guaranteed"
    assert held_by_pod(pods, sandbox) == {DEMO: "red", "qos": "Burstable"}
    # What the pod has is no default of its containers, and nothing is given that nobody asked for.
    plain = pods.launch(sandbox, name="plain", resources=resources)
    assert pods.classes(plain) == {}
    assert score(pods, plain) == 900
    assert node.told() == [("apply", "red", sandbox), ("verify", "red", sandbox)]
    assert "tests/pod: QoS class Burstable" in node.daemon.log.read_text()
    pods.remove(sandbox)
    assert node.told()[2:] == [("release", "red", sandbox)]
    assert node.daemon.resources() == before


@pytest.mark.requirement("Q5")
def test_what_is_not_offered_makes_nothing(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    before = node.daemon.resources()
    for asked, kind, text in (
        ({"oom": "nosuch"}, InvalidArgument, "class resource oom: no class 'nosuch' for containers"),
        ({"foo": "bar"}, InvalidArgument, "class resource foo: this node has no such type"),
        ({"rdt": "gold"}, FailedPrecondition, "class resource rdt: RDT is disabled"),
        ({"oom": "default"}, InvalidArgument, "class resource oom: this node has no default class for containers"),
    ):
        message = error_of(lambda: pods.create(sandbox, class_resources=asking(**asked)), kind)  # noqa: B023
        assert message.startswith(text)
    message = error_of(lambda: pods.run(pod_asking("other", oom="likely")), InvalidArgument)
    assert message.startswith("class resource oom: ")
    assert node.daemon.resources() == before
    assert pods.containers() == []


def test_a_class_is_released_when_its_container_ends_and_once(node: Node) -> None:
    pods = node.start()
    container = pods.launch(pods.run(), "true", class_resources=asking(demo="blue"))
    pods.exited(container)
    wait_for(lambda: len(node.told()) == 3, "the release")
    wait_for(lambda: pods.classes(container) == {}, "the record of the release")
    pods.remove_container(container)
    assert node.told() == [(action, "blue", container) for action in ("apply", "verify", "release")]


def test_a_class_that_cannot_be_had_undoes_the_container(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    before = node.daemon.resources()
    node.refuse("apply")
    asked = asking(oom="likely", demo="blue", weight="little")
    for _ in range(2):
        message = error_of(lambda: pods.create(sandbox, class_resources=asked), FailedPrecondition)
        assert message.startswith(f"class resource {DEMO}: ")
        assert "apply is refused today" in message
        assert node.daemon.resources() == before
    config = pod_asking("other", demo="red")
    assert "apply is refused today" in error_of(lambda: pods.run(config), FailedPrecondition)
    assert node.daemon.resources() == before
    node.refuse("apply", on=False)
    assert pods.classes(pods.launch(sandbox, class_resources=asked))[DEMO] == "blue"


def test_a_class_that_is_not_in_force_ends_the_start(node: Node) -> None:
    pods = node.start()
    container = pods.create(pods.run(), class_resources=asking(demo="blue"))
    node.refuse("verify")
    message = error_of(lambda: pods.start(container), FailedPrecondition)
    assert message.startswith(f"class resource {DEMO}: ")
    status = pods.exited(container)
    assert (status.reason, status.exit_code) == ("StartError", 128)
    assert "verify is refused today" in status.message
    pods.remove_container(container)


def test_a_program_whose_class_is_not_in_force_does_not_run_however_short_it_is(node: Node) -> None:
    """It is not started first and looked at then: by that time it may have done all that it was to do."""
    pods = node.start()
    shared = node.daemon.base / "shared"
    shared.mkdir()
    mount = api.Mount(container_path="/shared", host_path=str(shared))
    command = ("sh", "-c", "echo ran > /shared/trace")
    container = pods.create(pods.run(), *command, class_resources=asking(demo="blue"), mounts=[mount])
    node.refuse("verify")
    assert "verify is refused today" in error_of(lambda: pods.start(container), FailedPrecondition)
    assert pods.exited(container).reason == "StartError"
    assert not (shared / "trace").exists()
    node.refuse("verify", on=False)
    again = pods.launch(
        pods.run(pod("other")), *command, class_resources=asking(demo="blue"), mounts=[mount], attempt=1
    )
    assert pods.exited(again).exit_code == 0
    assert (shared / "trace").read_text() == "ran\n"


def test_a_pod_whose_class_is_not_in_force_is_not_made(node: Node) -> None:
    pods = node.start()
    before = node.daemon.resources()
    node.refuse("verify")
    config = pod_asking(demo="red")
    assert "verify is refused today" in error_of(lambda: pods.run(config), FailedPrecondition)
    assert [told[0] for told in node.told()] == ["apply", "release"]
    assert node.daemon.resources() == before


def test_a_container_whose_class_cannot_be_released_is_shown_until_it_can(node: Node) -> None:
    pods = node.start()
    container = pods.create(pods.run(), class_resources=asking(demo="blue"))
    node.refuse("release")
    assert "release is refused today" in error_of(lambda: pods.remove_container(container), FailedPrecondition)
    assert [item.id for item in pods.containers()] == [container]
    node.refuse("release", on=False)
    pods.remove_container(container)
    assert pods.containers() == []
    assert node.told()[-1] == ("release", "blue", container)


POINTS = ("sandbox.classed", "class.applied.qos", "container.classed", "class.applied.oom", f"class.applied.{DEMO}")


def classed_pod(pods: Pods) -> str:
    sandbox = pods.run(pod_asking(qos="Burstable"))
    return pods.launch(sandbox, class_resources=asking(demo="blue", oom="likely", weight="little"))


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("action", ["kill", "error"])
def test_failing_in_the_middle_leaves_nothing(node: Node, name: str, action: str) -> None:
    pods = node.start(failpoints=f"{name}={action}")
    before = node.daemon.resources()
    of_pod = name in {"sandbox.classed", "class.applied.qos"}
    if action == "kill":
        error_of(lambda: classed_pod(pods), Unavailable)
        assert node.daemon.process is not None
        assert node.daemon.process.wait(timeout=60) == -signal.SIGKILL
        pods = node.start()
    else:
        assert error_of(lambda: classed_pod(pods), Internal) == f"failpoint {name} reached"
    assert pods.containers() == []
    assert len(pods.sandboxes()) == (not of_pod)
    actions = [told[0] for told in node.told()]
    assert actions.count("apply") <= actions.count("release")
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    assert node.daemon.resources() == before
    if action == "kill":
        assert pods.classes(classed_pod(pods)) == {DEMO: "blue", "oom": "likely", "weight": "little"}


@pytest.mark.requirement("Q16")
def test_classes_survive_the_daemon_and_what_was_changed_meanwhile_is_put_back(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run(pod_asking(demo="red"))
    container = pods.launch(sandbox, class_resources=asking(oom="likely", weight="little", demo="blue"))
    pid = pods.host_pid(container)
    node.daemon.kill()
    Cgroups().write(node.cgroup_of(sandbox, container), WEIGHT, "321")
    pods = node.start()
    assert pods.host_pid(container) == pid
    assert pods.classes(container) == {DEMO: "blue", "oom": "likely", "weight": "little"}
    assert held_by_pod(pods, sandbox) == {DEMO: "red"}
    assert (score(pods, container), node.weight(pods, container)) == (600, 40)
    assert node.told()[-2:] == [("verify", "blue", container), ("verify", "red", sandbox)]
    # The new daemon knows who is in a class, for reloads and for the end.
    node.configure(weights={"much": 700, "little": 55})
    assert "read again" in node.reload()
    assert node.weight(pods, container) == 55
    pods.remove(sandbox)
    assert node.told()[-2:] == [("release", "blue", container), ("release", "red", sandbox)]


def test_what_ended_while_no_daemon_ran_is_released(node: Node) -> None:
    pods = node.start()
    container = pods.launch(pods.run(), class_resources=asking(demo="blue", oom="likely"))
    process = procfs.identify(pods.host_pid(container))
    node.daemon.kill()
    procfs.kill(process, signal.SIGKILL)
    wait_for(node.daemon.layout.exit_file(ContainerID(container)).exists, "the end of the container")
    pods = node.start()
    assert node.told()[-1] == ("release", "blue", container)
    assert pods.classes(container) == {}
    pods.remove_container(container)
    assert node.told().count(("release", "blue", container)) == 1


@pytest.mark.requirement("Q9")
@pytest.mark.parametrize("name", ["class.changed.oom", f"class.changed.{DEMO}", "class.changed.weight"])
def test_a_change_that_was_killed_is_taken_back(node: Node, name: str) -> None:
    pods = node.start(failpoints=f"{name}=kill")
    sandbox = pods.run()
    container = pods.launch(sandbox, class_resources=asking(oom="likely", weight="little"))
    error_of(lambda: update(pods, container, oom="unlikely", weight="much", demo="red"), Unavailable)
    assert node.daemon.process is not None
    assert node.daemon.process.wait(timeout=60) == -signal.SIGKILL
    pods = node.start()
    assert pods.classes(container) == {"oom": "likely", "weight": "little"}
    assert (score(pods, container), node.weight(pods, container)) == (600, 40)
    if name != "class.changed.oom":
        assert node.told()[-1] == ("release", "red", container)
    update(pods, container, oom="unlikely", weight="much", demo="red")
    assert pods.classes(container) == {DEMO: "red", "oom": "unlikely", "weight": "much"}
    assert (score(pods, container), node.weight(pods, container)) == (300, 700)


def test_commands_run_with_the_classes_of_today(node: Node) -> None:
    pods = node.start()
    container = pods.launch(pods.run(), class_resources=asking(oom="unlikely"))
    update(pods, container, oom="likely")
    assert pods.read(container, "cat /proc/self/oom_score_adj") == "600"


@pytest.mark.requirement("Q29")
def test_a_reload_changes_what_is_offered_and_what_classes_mean(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    container = pods.launch(sandbox, class_resources=asking(oom="likely", weight="little"))
    node.configure(weights={"little": 60, "much": 700}, oom={"likely": 650, "certain": 1000})
    line = node.reload()
    assert "applied: class_resources.oom" in line
    assert (score(pods, container), node.weight(pods, container)) == (650, 60)
    answer = pods.call("Status", api.StatusRequest())
    offered = {
        item.Name: [each.Name for each in item.classes] for item in answer.status.resources.container_class_resources
    }
    assert offered["oom"] == ["certain", "likely"]
    update(pods, container, oom="certain")
    assert score(pods, container) == 1000
    # The file may be the same, and what it names not: read again every time.
    Cgroups().write(node.cgroup(pods, container), WEIGHT, "321")
    node.reload()
    assert node.weight(pods, container) == 60


def test_a_reload_that_takes_a_class_away_from_somebody_is_refused(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    container = pods.launch(sandbox, class_resources=asking(oom="likely", weight="little"))
    before = pods.call("Status", api.StatusRequest()).status.resources
    node.configure(weights={"little": 99, "much": 700}, oom={"unlikely": 1}, more='[log]\nlevel = "error"')
    line = node.reload()
    assert "class resource oom: class 'likely' would be gone, and tests/pod/main is in it" in line
    assert (score(pods, container), node.weight(pods, container)) == (600, 40)
    assert pods.call("Status", api.StatusRequest()).status.resources == before
    assert pods.classes(pods.launch(sandbox, name="new", class_resources=asking(oom="likely"))) == {"oom": "likely"}
    for item in pods.containers():
        pods.remove_container(item.id)
    assert "read again" in node.reload()


def test_a_reload_that_fails_in_the_middle_changes_nothing(node: Node) -> None:
    pods = node.start(failpoints="class.activated=error")
    container = pods.launch(pods.run(), class_resources=asking(oom="likely", weight="little"))
    node.configure(weights={"little": 60, "much": 700}, oom={"likely": 650}, more='[log]\nformat = "json"')
    assert "failpoint class.activated reached" in node.reload()
    assert (score(pods, container), node.weight(pods, container)) == (600, 40)
    assert not node.daemon.log.read_text().splitlines()[-1].startswith("{")
    update(pods, container, oom="unlikely")
    assert score(pods, container) == 300


def test_a_reload_that_cannot_reach_a_container_changes_nothing(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    first = pods.launch(sandbox, name="first", class_resources=asking(demo="blue", oom="likely"))
    second = pods.launch(sandbox, name="second", class_resources=asking(oom="likely", weight="little"))
    node.configure(weights={"little": 60, "much": 700}, oom={"likely": 650})
    node.refuse("apply")
    assert f"class resource {DEMO}: " in node.reload()
    assert [score(pods, item) for item in (first, second)] == [600, 600]
    assert node.weight(pods, second) == 40
    node.refuse("apply", on=False)
    assert "read again" in node.reload()
    assert [score(pods, item) for item in (first, second)] == [650, 650]
    assert node.weight(pods, second) == 60


def test_a_daemon_that_is_killed_during_a_reload_carries_it_out_when_it_starts(node: Node) -> None:
    pods = node.start(failpoints="class.activated=kill")
    container = pods.launch(pods.run(), class_resources=asking(oom="likely", weight="little"))
    node.configure(weights={"little": 60, "much": 700})
    assert node.daemon.process is not None
    node.daemon.hang_up()
    assert node.daemon.process.wait(timeout=60) == -signal.SIGKILL
    pods = node.start()
    assert (score(pods, container), node.weight(pods, container)) == (600, 60)


def test_reloads_while_pods_come_and_go(node: Node) -> None:
    pods = node.start()
    before = node.daemon.resources()
    sandboxes = [pods.run(pod_asking(f"pod{number}", qos="Burstable")) for number in range(4)]
    asked = asking(oom="likely", weight="little", demo="blue")
    for little in (50, 60, 70):
        node.configure(weights={"little": little, "much": 700})
        creating = [
            ("CreateContainer", pods.create_request(sandbox, name=f"c{little}", class_resources=asked))
            for sandbox in sandboxes
        ]
        node.daemon.hang_up()
        containers = [answer.container_id for answer in pods.call_all(creating)]
        pods.call_all([("StartContainer", api.StartContainerRequest(container_id=item)) for item in containers])
        # Whichever came first: those from before, those in the making, and those of today have what it means now.
        assert "read again" in node.reload()
        assert {node.weight(pods, item.id) for item in pods.containers()} == {little}
        assert {score(pods, item) for item in containers} == {600}
    for sandbox in sandboxes:
        pods.remove(sandbox)
    assert node.daemon.resources() == before
    actions = [action for action, _, _ in node.told()]
    assert actions.count("release") == 12


@pytest.mark.requirement("Q33")
def test_a_start_without_a_class_in_use_leaves_its_containers_alone(node: Node) -> None:
    pods = node.start()
    sandbox = pods.run()
    container = pods.launch(sandbox, class_resources=asking(oom="likely", demo="blue"))
    pid = pods.host_pid(container)
    assert node.daemon.stop() == 0
    node.configure(oom={"other": 5})
    pods = node.start()
    assert pods.host_pid(container) == pid
    assert pods.status(container).state == api.CONTAINER_RUNNING
    assert score(pods, container) == 600
    assert "keeps class likely of oom, which is not configured any more" in node.daemon.log.read_text()
    assert pods.read(container, "cat /proc/self/oom_score_adj") == "600"
    message = error_of(lambda: pods.create(sandbox, name="new", class_resources=asking(oom="likely")), InvalidArgument)
    assert message.startswith("class resource oom: no class 'likely'")
    update(pods, container, oom="other")
    assert (pods.classes(container)["oom"], score(pods, container)) == ("other", 5)


@pytest.mark.requirement("Q80")
def test_a_configuration_that_cannot_be_stops_the_start_and_refuses_the_reload(node: Node) -> None:
    pods = node.start()
    container = pods.launch(pods.run(), class_resources=asking(oom="likely"))
    node.configure(oom={"default": 5})
    assert "class_resources.oom: no class may be called 'default'" in node.reload()
    assert score(pods, container) == 600
    checked = node.daemon.run("config", "check")
    assert checked.returncode != 0
    assert "class_resources.oom" in checked.stderr
    node.daemon.kill()
    with pytest.raises(AssertionError, match=r"class_resources.oom: no class may be called 'default'"):
        node.start()
    node.configure()
    assert score(node.start(), container) == 600


def test_equal_requests_find_what_is_there_also_with_classes(node: Node) -> None:
    pods = node.start()
    config = pod_asking(qos="Burstable")
    sandbox = pods.run(config)
    container = pods.create(sandbox, class_resources=asking(oom="likely"))
    assert pods.run(config) == sandbox
    assert pods.create(sandbox, class_resources=asking(oom="likely")) == container
    with pytest.raises(PodkeepError, match="exists as"):
        pods.create(sandbox, class_resources=asking(oom="unlikely"))
