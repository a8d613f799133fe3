"""``podkeep run`` and classes: what is in force, what is refused and in which words, and what lives on without them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.conftest import Runner, interrupt, until
from agent.manifests import FOREVER, pod, shell

from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.cgroup.cgroups import Cgroups
from support import forked
from support.api_server import ApiServer
from support.class_types import BIG, SHARE_FILE, SMALL, ClassTypes, in_force
from support.cri import Pods
from support.daemon import Daemon
from support.rdt import RdtNode
from support.registry import Registry
from support.resctrl.fixture import Mount

RDT = "rdt.resources.alpha.kubernetes.io"
BLOCKIO = "blockio.resources.alpha.kubernetes.io"
DOCUMENT = Path(__file__).parents[3] / "docs" / "class-resources.md"
OFF = ("--set", "agent.feature_gates.ClassResources=false")
LIMITED = {"requests": {"memory": "1Mi"}}
_DISK = """
Classes:
  fast:
  - Devices: ["/dev/nosuch-*"]
    ThrottleReadBps: "100M"
  slow:
  - Devices: ["/dev/nosuch-*"]
    ThrottleReadBps: "1M"
"""


def configure(daemon: Daemon) -> ClassTypes:
    """Let a daemon, not started yet, offer the types of support/class_types.py, and blockio."""
    disk = daemon.base / "blockio.yaml"
    disk.write_text(_DISK)
    types = ClassTypes.make(daemon.base)
    daemon.extra += types.toml(more=f'blockio_config = "{disk}"')
    daemon.write()
    return types


@pytest.fixture(scope="module")
def classed(open_directory: Path, registry: Registry, image: str) -> Iterator[Daemon]:
    """A daemon with classes for the tests that leave it as it is."""
    base = open_directory / f"classed-{os.urandom(3).hex()}"
    base.mkdir()
    daemon = Daemon(base, extra=f'[registries."{registry.host}"]\ninsecure = true\n')
    configure(daemon)
    with daemon:
        with Pods(daemon.socket, image) as client:
            client.pull()
        yield daemon


@pytest.fixture
def runner(classed: Daemon, tmp_path: Path) -> Iterator[Runner]:
    """A runner on that daemon; fails a test that leaves something behind."""
    before = classed.resources()
    runner = Runner(classed, tmp_path)
    yield runner
    assert runner.left_behind() == []
    assert classed.resources() == before


@pytest.fixture
def changing(own_runner: Runner) -> Runner:
    """A runner on a daemon with classes, of the test's own: it restarts it with others."""
    configure(own_runner.daemon)
    own_runner.daemon.start()
    return own_runner


def classed_as(**classes: str) -> dict[str, Any]:
    """Return what a container adds to be in ``classes``."""
    return {"resources": {"classes": classes}}


def annotated(document: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """Return a Pod with the annotations."""
    return document | {"metadata": document["metadata"] | {"annotations": annotations}}


def running(daemon: Daemon, image: str) -> dict[str, str]:
    """Return the ID of the running container of each name, over all pods."""
    with Pods(daemon.socket, image) as pods:
        chosen = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
        return {item.metadata.name: item.id for item in pods.containers(state=chosen)}


def classes_of(daemon: Daemon, image: str) -> dict[str, dict[str, str]]:
    """Return the classes in force of each running container, by name."""
    with Pods(daemon.socket, image) as pods:
        return {name: in_force(pods, container=item) for name, item in running(daemon, image).items()}


def started(runner: Runner, image: str, *names: str) -> None:
    """Wait until these containers run."""
    until(lambda: set(names) <= running(runner.daemon, image).keys(), f"{names} run")


def in_back_off(runner: Runner, pod_name: str) -> dict[str, Any]:
    """Return the row of a pod whose container could not be created."""

    def found() -> list[dict[str, Any]]:
        return [row for row in runner.rows() if row["name"] == pod_name and row["status"] == "CreateContainerError"]

    row: dict[str, Any] = until(found, f"{pod_name} waits with CreateContainerError")[0]
    return row


# -------------------------------------------------------------------------------------------------- what is in force


@pytest.mark.requirement("Q1", "Q3", "Q51", "Q53", "Q76", "Q77")
def test_fields_of_pod_and_containers_are_in_force(runner: Runner, image: str) -> None:
    document = pod(
        shell(image, FOREVER, "one", resources={"classes": {"share": "big", "qos": "Burstable"}}),
        shell(image, FOREVER, "two", resources=LIMITED | {"classes": {"share": "big"}}),
        shell(image, FOREVER, "none"),
        initContainers=[shell(image, FOREVER, "proxy", restartPolicy="Always", **classed_as(oom="high"))],
        resources={"classes": {"share": "small"}},
    )
    with runner.start(document) as process:
        started(runner, image, "one", "two", "none", "proxy")
        assert classes_of(runner.daemon, image) == {
            "one": {"share": "big", "qos": "Burstable"},
            "two": {"share": "big"},
            "none": {},
            "proxy": {"oom": "high"},
        }
        with Pods(runner.daemon.socket, image) as pods:
            (sandbox,) = pods.sandboxes()
            assert in_force(pods, sandbox=sandbox.id) == {"share": "small", "qos": "Burstable"}
            ids = running(runner.daemon, image)
            assert [shares(pods, ids[name]) for name in ("one", "two")] == [BIG, BIG]
            assert shares(pods, ids["one"], above=1) == SMALL
        interrupt(process)


def shares(pods: Pods, container: str, *, above: int = 0) -> str:
    """Return the shares of a container's cgroup, or of the one that many levels above it."""
    groups = Cgroups()
    for line in Path(f"/proc/{pods.host_pid(container)}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if ("cpu" if groups.version == 1 else "") in controllers.split(","):
            parts = path.split("/")
            return (groups.read("/".join(parts[: len(parts) - above]), SHARE_FILE) or "").strip()
    raise AssertionError(f"{container} is in no cgroup of cpu")


@pytest.mark.requirement("Q21", "Q22", "Q23", "Q24")
def test_annotations_are_in_force_for_containers_of_every_kind(runner: Runner, image: str) -> None:
    document = pod(
        shell(image, FOREVER, "main"),
        shell(image, FOREVER, "other"),
        initContainers=[shell(image, FOREVER, "proxy", restartPolicy="Always")],
    )
    annotations = {f"{BLOCKIO}/default": "slow", f"{BLOCKIO}/container.main": "fast"}
    with runner.start(annotated(document, **annotations)) as process:
        started(runner, image, "main", "other", "proxy")
        found = classes_of(runner.daemon, image)
        assert found == {"main": {"blockio": "fast"}, "other": {"blockio": "slow"}, "proxy": {"blockio": "slow"}}
        with Pods(runner.daemon.socket, image) as pods:
            (sandbox,) = pods.sandboxes()
            assert in_force(pods, sandbox=sandbox.id) == {"qos": "BestEffort"}
        interrupt(process)


@pytest.mark.requirement("Q19", "Q20", "Q23", "Q27", "Q82")
def test_annotations_lead_into_groups_of_rdt(own_runner: Runner, resctrl: Mount, image: str) -> None:
    """On a stand-in for resctrl; with the annotations of the agent and of today's runtimes on one pod."""
    rdt = RdtNode(own_runner.daemon, resctrl())
    own_runner.daemon.start()
    document = pod(
        shell(image, FOREVER, "main"),
        shell(image, FOREVER, "other"),
        initContainers=[shell(image, FOREVER, "proxy", restartPolicy="Always")],
    )
    annotations = {
        f"{RDT}/default": "silver",
        f"{RDT}/container.main": "gold",
        "rdt.resources.beta.kubernetes.io/pod": "bronze",
    }
    with own_runner.start(annotated(document, **annotations)) as process:
        started(own_runner, image, "main", "other", "proxy")
        with Pods(own_runner.daemon.socket, image) as pods:
            processes = {name: pods.host_pid(item) for name, item in running(own_runner.daemon, image).items()}
        groups = {group: rdt.resctrl.tasks(group) for group in ("gold", "silver", "bronze")}
        assert {
            name: [group for group, tasks in groups.items() if pid in tasks] for name, pid in processes.items()
        } == {
            "main": ["gold"],
            "other": ["silver"],
            "proxy": ["silver"],
        }
        assert groups["bronze"] == set()
        interrupt(process)


@pytest.mark.requirement("Q27")
def test_todays_annotations_of_runtimes_do_not_win_over_what_the_agent_says(runner: Runner, image: str) -> None:
    document = pod(shell(image, FOREVER, "alpha"), shell(image, FOREVER, "field", **classed_as(blockio="slow")))
    annotations = {
        "blockio.resources.beta.kubernetes.io/pod": "fast",
        "blockio.resources.beta.kubernetes.io/container.field": "fast",
        f"{BLOCKIO}/container.alpha": "slow",
    }
    with runner.start(annotated(document, **annotations)) as process:
        started(runner, image, "alpha", "field")
        assert classes_of(runner.daemon, image) == {"alpha": {"blockio": "slow"}, "field": {"blockio": "slow"}}
        interrupt(process)


@pytest.mark.requirement("Q79")
def test_default_is_the_class_that_the_node_chose(runner: Runner, image: str) -> None:
    with runner.start(pod(shell(image, FOREVER, **classed_as(share="default")))) as process:
        started(runner, image, "main")
        assert classes_of(runner.daemon, image) == {"main": {"share": "small"}}
        interrupt(process)
    done = runner.run(pod(shell(image, "true", **classed_as(oom="default"))))
    assert done.returncode == 1
    assert "class resource oom: this node has no default class for containers (container main)" in done.stderr


@pytest.mark.requirement("Q94", "Q53", "Q51")
def test_classes_from_the_command_line(runner: Runner, image: str) -> None:
    document = pod(shell(image, FOREVER, "named", **classed_as(share="big")), shell(image, FOREVER, "other"))
    options = ("--class", "share=small", "--class", "oom=low", "--pod-class", "share=big")
    with runner.start(document, options=options) as process:
        started(runner, image, "named", "other")
        assert classes_of(runner.daemon, image) == {
            "named": {"share": "big", "oom": "low"},
            "other": {"share": "small", "oom": "low"},
        }
        with Pods(runner.daemon.socket, image) as pods:
            (sandbox,) = pods.sandboxes()
            assert in_force(pods, sandbox=sandbox.id) == {"share": "big", "qos": "BestEffort"}
        interrupt(process)


@pytest.mark.requirement("Q94")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--class", "gold"), "--class: 'gold' is not TYPE=CLASS"),
        (("--class", "-a=gold"), "--class: type '-a' name part must consist of alphanumeric characters"),
        (("--pod-class", "a="), "--pod-class: class '' must be 1 to 63 letters"),
        (("--class", "a=b", "--class", "a=c"), "--class: a is given twice, as b and c"),
        (
            ("--pod-class", "qos=Guaranteed"),
            "--class, --pod-class: pod web: spec.resources.classes[qos]: Forbidden: it",
        ),
    ],
)
def test_what_the_command_line_cannot_ask_for(
    runner: Runner, image: str, options: tuple[str, ...], message: str
) -> None:
    done = runner.run(pod(shell(image, "true")), options=options)
    assert done.returncode == 1
    assert done.stderr.startswith(f"podkeep: {message}")


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.requirement("Q5", "Q30", "Q31", "Q84")
def test_a_rejected_pod_is_told_with_its_status_and_leaves_nothing(runner: Runner, image: str) -> None:
    names = ("rejected", "other")
    documents = [
        pod(shell(image, "true", **classed_as(share="nosuch")), name=names[0]),
        pod(shell(image, FOREVER), name=names[1]),
    ]
    done = runner.run(*documents, options=("-o", "json", "--keep"))
    problem = 'class resource share: this node has no class "nosuch" for containers, it has big, small (container main)'
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        f"podkeep: rejected: Pod was rejected: {problem}",
        "hint: `podkeep classes` shows what this node offers",
    ]
    items = json.loads(done.stdout)["items"]
    assert [item["metadata"]["name"] for item in items] == list(names)
    status = items[0]["status"]
    assert status == {
        "phase": "Failed",
        "reason": "ClassResourceUnavailable",
        "message": f"Pod was rejected: {problem}",
        "qosClass": "BestEffort",
        "startTime": status["startTime"],
    }
    assert items[1]["status"]["phase"] == "Failed"
    assert runner.rows() == []


def test_an_error_says_which_pod_and_container_of_the_manifest_it_is_about(runner: Runner, image: str) -> None:
    refused = shell(image, "true", "second", **classed_as(watched="bad"))
    single = runner.run(pod(shell(image, FOREVER), refused))
    assert single.stderr.startswith("podkeep: second: Error: class resource watched: ")
    several = runner.run(pod(shell(image, FOREVER), name="one"), pod(refused, name="two"))
    assert several.stderr.startswith("podkeep: two: Error: class resource watched: ")


@pytest.mark.requirement("Q31")
@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"resources": {"classes": {"blockio": "nosuch"}}}, "class resource blockio: this node"),
        (
            {"resources": {"classes": {"oom": "low"}}},
            "class resource oom: this node does not offer it to pods, only to c",
        ),
        ({"initContainers": "oom"}, 'class resource oom: this node has no class "nosuch" for containers, it has high'),
    ],
)
def test_levels_and_init_containers_are_looked_at(
    runner: Runner, image: str, document: dict[str, Any], message: str
) -> None:
    if "initContainers" in document:
        document = {"initContainers": [shell(image, "true", "setup", **classed_as(oom="nosuch"))]}
    done = runner.run(pod(shell(image, "true"), **document))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"podkeep: Pod was rejected: {message}" in done.stderr


@pytest.mark.requirement("Q5", "Q28", "Q57", "Q83", "Q85")
def test_what_the_runtime_refuses_after_admission_says_that_it_is_a_class(runner: Runner, image: str) -> None:
    whole = runner.run(pod(shell(image, "true"), resources={"classes": {"watched": "bad"}}))
    assert whole.returncode == 1
    assert whole.stderr.startswith("podkeep: Failed to create pod sandbox: class resource watched: ")
    single = runner.run(pod(shell(image, "true", **classed_as(watched="bad"))))
    assert single.returncode == 1
    assert single.stderr.startswith("podkeep: Error: class resource watched: ")
    assert "nobody is let in" in single.stderr
    with runner.start(pod(shell(image, "true", **classed_as(watched="bad"))), options=("--retry",)) as process:
        (waiting,) = in_back_off(runner, "web")["waiting"]
        assert waiting["name"] == "main"
        assert waiting["message"].startswith("class resource watched: ")
        interrupt(process)


# --------------------------------------------------------------------------------- what lives on, and what does not


def without_classes(daemon: Daemon) -> None:
    """Restart the daemon, as a kill -9 of it, without any class but those of ``qos``."""
    daemon.kill()
    daemon.extra = daemon.extra.partition("\n[class_resources]")[0]
    daemon.write()
    daemon.start()


@pytest.mark.requirement("Q28", "Q33", "Q82", "Q83", "Q85")
def test_a_class_that_is_gone_ends_nothing_and_fails_what_is_started_again(changing: Runner, image: str) -> None:
    again = "until [ -e /data/go ]; do sleep 0.05; done; rm /data/go; exit 1"
    state = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    document = pod(
        shell(image, again, "again", **classed_as(share="big"), **state),
        shell(image, FOREVER, "stays", **classed_as(share="big")),
        restartPolicy="OnFailure",
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    with changing.start(document, options=("--retry",)) as process:
        started(changing, image, "again", "stays")
        before = running(changing.daemon, image)
        without_classes(changing.daemon)
        assert classes_of(changing.daemon, image) == {"again": {"share": "big"}, "stays": {"share": "big"}}
        (directory,) = changing.pods()
        (directory / "volumes/kubernetes.io~empty-dir/data/go").touch()
        (waiting,) = in_back_off(changing, "web")["waiting"]
        assert waiting["name"] == "again"
        assert waiting["message"].startswith("class resource share: ")
        assert running(changing.daemon, image) == {"stays": before["stays"]}
        assert classes_of(changing.daemon, image) == {"stays": {"share": "big"}}
        # The next pod that asks for it is not even taken on.
        done = changing.run(pod(shell(image, "true", **classed_as(share="big")), name="late"))
        assert "class resource share: this node does not offer it to containers (container main)" in done.stderr
        interrupt(process)


@pytest.mark.requirement("Q17", "Q18", "Q26")
def test_a_container_that_is_started_again_has_the_class_of_its_manifest_and_the_pod_that_of_its_change(
    runner: Runner, image: str
) -> None:
    document = pod(
        shell(image, FOREVER, **classed_as(share="big")),
        restartPolicy="Always",
        resources={"classes": {"share": "big"}},
    )
    with runner.start(document) as process:
        started(runner, image, "main")
        (first,) = running(runner.daemon, image).values()
        runner.daemon.run("classes", "set", "web/main", "share=small", check=True)
        runner.daemon.run("classes", "set", "web", "share=small", check=True)
        assert classes_of(runner.daemon, image) == {"main": {"share": "small"}}
        with Pods(runner.daemon.socket, image) as pods:
            os.kill(pods.host_pid(first), signal.SIGKILL)
            until(lambda: running(runner.daemon, image).get("main", first) != first, "it is started again")
            (sandbox,) = pods.sandboxes()
            assert in_force(pods, sandbox=sandbox.id) == {"share": "small", "qos": "BestEffort"}
        assert classes_of(runner.daemon, image) == {"main": {"share": "big"}}
        interrupt(process)


@pytest.mark.requirement("Q26", "Q33", "Q61", "Q82", "Q93")
def test_up_down_up(changing: Runner, image: str) -> None:
    """With the feature, without it, with it again: what runs keeps its class, what is new has what is on then."""
    daemon = changing.daemon
    field = pod(shell(image, FOREVER, "field", **classed_as(share="big")), name="field")
    annotation = annotated(pod(shell(image, FOREVER, "note"), name="note"), **{f"{BLOCKIO}/default": "slow"})
    with changing.start(field, annotation) as process:
        started(changing, image, "field", "note")
        up = running(daemon, image)
        # The agent goes, as when its node is updated; its pods do not.
        process.send_signal(signal.SIGKILL)
        process.wait()

        down = changing.file(
            annotated(pod(shell(image, FOREVER, "later"), name="later"), **{f"{BLOCKIO}/default": "slow"})
        )
        refused = daemon.run(*OFF, "run", str(changing.file(field | {"metadata": {"name": "again"}})))
        assert refused.returncode == 1
        assert (
            "spec.containers[0].resources.classes: Forbidden: the feature gate ClassResources is off" in refused.stderr
        )
        with forked.Popen(daemon.command(*OFF, "run", str(down)), text=True, stderr=subprocess.PIPE) as second:
            started(changing, image, "later")
            assert classes_of(daemon, image) == {
                "field": {"share": "big"},
                "note": {"blockio": "slow"},
                "later": {},
            }
            with Pods(daemon.socket, image) as pods:
                sandboxes = {item.metadata.name: in_force(pods, sandbox=item.id) for item in pods.sandboxes()}
            assert sandboxes == {"field": {"qos": "BestEffort"}, "note": {"qos": "BestEffort"}, "later": {}}
            interrupt(second)

        with changing.start(json.loads(down.read_text())) as third:
            started(changing, image, "later")
            assert classes_of(daemon, image)["later"] == {"blockio": "slow"}
            interrupt(third)
        # Whatever came and went: the containers of before are the same, in the same classes.
        assert running(daemon, image) == up
        daemon.run("rm", "--grace-period", "0", "field", "note", check=True)


@pytest.mark.first
@pytest.mark.requirement("Q1", "Q93")
def test_a_full_node_of_pods_in_one_class(changing: Runner, image: str) -> None:
    """As many pods as a node has, in few classes, in one manifest; then the runtime is killed and comes back."""
    count = 110
    documents = [
        pod(shell(image, "sleep 1000", **classed_as(share="big")), name=f"p{number}", hostNetwork=True)
        for number in range(count)
    ]
    with changing.start(*documents, options=("--pod-class", "share=small")) as process:

        def users() -> bool:
            report = json.loads(changing.daemon.run("classes", "-o", "json", check=True).stdout)
            found = {
                (item["name"], item["level"], entry["name"]): len(entry["users"])
                for item in report["types"]
                for entry in item["classes"]
            }
            return found["share", "container", "big"] == found["share", "pod", "small"] == count

        def all_run() -> bool:
            state = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
            with Pods(changing.daemon.socket, image) as client:
                return len(client.containers(state=state)) == count

        # A container that is being started when the runtime is killed ends the run: its pod could not be started.
        until(all_run, "all containers run")
        assert users()
        changing.daemon.kill()
        changing.daemon.start()
        assert users()
        status, _, said = interrupt(process)
    assert (status, [line for line in said.splitlines() if line.startswith("podkeep: ")]) == (130, [])


# --------------------------------------------------------------------------------------------------- the feature gate


@pytest.mark.requirement("Q25", "Q61", "Q81")
def test_with_the_gate_off_annotations_mean_nothing_and_the_pod_runs(runner: Runner, image: str) -> None:
    document = annotated(pod(shell(image, FOREVER)), **{f"{RDT}/default": "nosuch", f"{BLOCKIO}/default": "slow"})
    with forked.Popen(
        runner.daemon.command(*OFF, "run", str(runner.file(document))), text=True, stderr=subprocess.PIPE
    ) as process:
        started(runner, image, "main")
        assert classes_of(runner.daemon, image) == {"main": {}}
        interrupt(process)
    done = runner.daemon.run(*OFF, "run", "--class", "share=big", str(runner.file(document)))
    assert done.stderr.startswith("podkeep: --class and --pod-class: the feature gate ClassResources is off")
    unknown = runner.daemon.run("--set", "agent.feature_gates.ClassResource=true", "run", str(runner.file(document)))
    assert unknown.stderr == (
        "podkeep: agent.feature_gates: unrecognized feature gate: ClassResource\nhint: did you mean ClassResources?\n"
    )


@pytest.mark.requirement("Q83", "Q84")
def test_who_uses_classes_and_what_failed_is_found_as_the_documentation_says(
    runner: Runner, image: str, tmp_path: Path
) -> None:
    """With its own command lines, over pods as ``podkeep run -o json`` prints them; only the API server is played."""
    ended = [
        pod(shell(image, "true"), name="plain"),
        pod(shell(image, "true", **classed_as(share="big")), name="field"),
        pod(shell(image, "true"), name="whole", resources={"classes": {"share": "big"}}),
        annotated(pod(shell(image, "true"), name="note"), **{f"{BLOCKIO}/default": "slow"}),
    ]
    rejected = pod(shell(image, "true", **classed_as(share="nosuch")), name="rejected")
    items = [
        *json.loads(runner.run(*ended, options=("-o", "json")).stdout)["items"],
        json.loads(runner.run(rejected, options=("-o", "json")).stdout),
    ]
    waits = {"waiting": {"reason": "CreateContainerError", "message": "Error: class resource share: gone"}}
    items.append(items[0] | {"metadata": {"name": "waits"}, "status": {"containerStatuses": [{"state": waits}]}})
    commands = re.findall(r"^(kubectl get pods .*)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    with ApiServer(items) as server:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(server.kubeconfig()))
        found = [names_in(command, {"KUBECONFIG": str(config), "HOME": str(tmp_path)}) for command in commands]
    assert found == [["rejected"], ["waits"], ["field", "whole", "rejected"], ["note"]]


def names_in(command: str, environment: dict[str, str]) -> list[str]:
    """Return what stands before the colon of every line that a command prints."""
    done = subprocess.run(
        ["sh", "-c", command], env=os.environ | environment, capture_output=True, text=True, timeout=60, check=True
    )
    return [line.partition(":")[0] for line in done.stdout.splitlines()]
