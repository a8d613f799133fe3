"""What a node says of a pod: phases, statuses of containers and conditions, as kubelet's own tables have them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from podkeep.agent.observed import Confinement, ContainerView, Observed, SandboxView, State
from podkeep.agent.pod.news import tells_anew
from podkeep.agent.pod.status.conditions import is_only_the_sandbox
from podkeep.agent.pod.status.phase import at_its_end, phase
from podkeep.agent.pod.status.pod_status import StatusFacts, Waiting, pod_status
from podkeep.agent.probes.model import ProbeResult
from podkeep.api import manifest
from podkeep.api.pod import Pod
from podkeep.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    LinuxContainerUser,
    PodCondition,
    PodIP,
    PodStatus,
)
from podkeep.apiserver.meta import values

NOW = 1_700_000_000.0
THEN, PRESENT = "2020-01-01T00:00:00Z", "2023-11-14T22:13:20Z"
SANDBOX = SandboxView(id="s0", ready=True, attempt=0, created_at=1, ips=("10.0.0.2", "fd00::2"))
PROBE = {"exec": {"command": ["true"]}}


def make(policy: str = "Always", containers: Any = ("a", "b"), inits: Any = (), **more: Any) -> Pod:
    def named(item: Any) -> dict[str, Any]:
        return {"image": "i:1"} | ({"name": item} if isinstance(item, str) else item)

    metadata = {"name": "web", "uid": "u1", "generation": 3} | more.pop("metadata", {})
    spec = {
        "restartPolicy": policy,
        "containers": [named(item) for item in containers],
        "initContainers": [named(item) for item in inits],
    }
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | more}
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    return pod


def side(name: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "restartPolicy": "Always"} | more


def said(name: str, what: str, *, last: int | None = None, **more: Any) -> ContainerStatus:
    """Return a status: ``run``, ``wait``, ``none``, or an exit code."""
    states = {
        "run": ContainerState(running=ContainerStateRunning()),
        "wait": ContainerState(waiting=ContainerStateWaiting()),
        "none": ContainerState(),
    }
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=int(what))) if what.isdigit() else None
    before = ContainerState() if last is None else ContainerState(terminated=ContainerStateTerminated(exit_code=last))
    base = {"name": name, "state": ended or states[what], "last_state": before, "ready": False, "restart_count": 0}
    return ContainerStatus(**(base | {"image": "", "image_id": ""} | more))


def phase_of(pod: Pod, words: str, *, terminal: bool = False, initialized: bool = True) -> str:
    """Return the phase of a pod whose containers are as ``a=run b=wait/1`` says: state, and last exit code."""
    statuses = []
    for word in words.split():
        name, _, state = word.partition("=")
        what, _, last = state.partition("/")
        statuses.append(said(name, what.strip("+"), last=int(last) if last else None, started=what.endswith("+")))
    names = {container.name for container in pod.spec.init_containers}
    inits = [item for item in statuses if item.name in names]
    mains = [item for item in statuses if item.name not in names]
    return phase(pod, inits, mains, terminal=terminal, initialized=initialized)


@pytest.mark.parametrize(
    ("policy", "words", "expected"),
    [
        ("Always", "", "Pending"),
        ("Always", "a=run b=run", "Running"),
        ("Always", "a=0 b=1", "Running"),
        ("Always", "a=run b=0", "Running"),
        ("Always", "a=run", "Pending"),
        ("Always", "a=run b=wait", "Pending"),
        ("Always", "a=run b=wait/1", "Running"),
        ("Always", "a=wait/1 b=wait/1", "Running"),
        ("Never", "a=run b=run", "Running"),
        ("Never", "a=0 b=0", "Succeeded"),
        ("Never", "a=1 b=1", "Failed"),
        ("Never", "a=run b=0", "Running"),
        ("Never", "a=run", "Pending"),
        ("OnFailure", "a=run b=run", "Running"),
        ("OnFailure", "a=0 b=0", "Succeeded"),
        ("OnFailure", "a=1 b=1", "Running"),
        ("OnFailure", "a=run b=0", "Running"),
        ("OnFailure", "a=run b=wait", "Pending"),
        ("OnFailure", "a=run b=wait/1", "Running"),
        ("Always", "a=none b=run", "Pending"),
    ],
)
def test_phase_of_containers(policy: str, words: str, expected: str) -> None:
    assert phase_of(make(policy), words) == expected


@pytest.mark.parametrize(
    ("words", "expected"), [("a=0 b=0", "Succeeded"), ("a=0 b=1", "Failed"), ("a=0 b=run", "Running")]
)
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_phase_of_a_pod_that_ends_whatever_its_policy(policy: str, words: str, expected: str) -> None:
    assert phase_of(make(policy), words, terminal=True) == expected


@pytest.mark.parametrize(
    ("policy", "words", "expected"),
    [
        ("Always", "i=run", "Pending"),
        ("Always", "i=wait a=wait b=wait", "Pending"),
        ("Never", "i=1 a=wait b=wait", "Failed"),
        ("OnFailure", "i=1 a=wait b=wait", "Pending"),
        ("Never", "i=wait/1 a=wait b=wait", "Failed"),
        ("Always", "i=0 a=run b=run", "Running"),
        ("Always", "i=0 a=wait b=wait", "Pending"),
        ("Never", "i=0 a=0 b=0", "Succeeded"),
    ],
)
def test_phase_with_init_containers(policy: str, words: str, expected: str) -> None:
    assert phase_of(make(policy, inits=("i",)), words) == expected


@pytest.mark.parametrize(
    ("words", "initialized", "expected"),
    [
        ("s=run a=wait b=wait", False, "Pending"),
        ("s=run+ a=wait b=wait", False, "Pending"),
        ("s=run+ a=run b=run", True, "Running"),
        ("s=run a=run b=run", True, "Running"),
        ("s=run a=run b=run", False, "Pending"),
        ("s=1 a=run b=run", True, "Running"),
        ("s=wait/1 a=run b=run", True, "Running"),
        ("s=run+ a=0 b=0", True, "Running"),
        ("s=137 a=0 b=0", True, "Succeeded"),
        ("s=1 a=0 b=1", True, "Failed"),
        ("a=run b=run", True, "Pending"),
    ],
)
def test_phase_with_sidecars(words: str, initialized: bool, expected: str) -> None:
    assert phase_of(make("Never", inits=(side(),)), words, initialized=initialized) == expected


@pytest.mark.parametrize(("code", "expected"), [("42", "Running"), ("1", "Failed")])
def test_phase_with_a_rule(code: str, expected: str) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    pod = make("Never", ({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [rule]}, "b"))
    assert phase_of(pod, f"a={code} b=0") == expected


# ------------------------------------------------------------------------------------------------- whole statuses


def view(name: str, state: State, attempt: int = 0, code: int = 0, **more: Any) -> ContainerView:
    base = {"id": f"{name}{attempt}", "name": name, "sandbox_id": "s0", "attempt": attempt, "state": state}
    times = {"exit_code": code, "started_at": int(NOW * 1e9), "finished_at": int(NOW * 1e9) * (state is State.EXITED)}
    return ContainerView(**(base | times | {"image": "i:1", "image_ref": "sha256:1"} | more))


def observed(*views: ContainerView, sandbox: SandboxView | None = SANDBOX) -> Observed:
    containers: dict[str, tuple[ContainerView, ...]] = {}
    for item in views:
        containers[item.name] = (*containers.get(item.name, ()), item)
    return Observed(sandboxes=(sandbox,) if sandbox else (), containers=containers)


def status_of(pod: Pod, seen: Observed, **facts: Any) -> PodStatus:
    base = {"since": NOW, "now": NOW, "host_ips": ("192.0.2.7",), "waiting": {}, "message": lambda _: ""}
    return pod_status(pod, seen, StatusFacts(**(base | facts)))


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
@pytest.mark.parametrize("code", [0, 137])
def test_a_container_that_is_replaced_has_not_ended(policy: str, code: int) -> None:
    """After kubectl set image, whatever the policy: an end that was told is final where nothing is restarted."""
    seen = observed(view("a", State.EXITED, code=code))
    found = status_of(make(policy, ("a",)), seen, replaced={"a0"})
    assert found.phase == "Running"
    assert only(found).state == ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
    last = only(found).last_state.terminated
    assert last is not None
    assert last.exit_code == code
    failed = status_of(make(policy, ("a",)), seen, replaced={"a0"}, waiting={"a": Waiting(reason="ErrImagePull")})
    assert failed.phase == "Running"
    assert only(failed).state == ContainerState(waiting=ContainerStateWaiting(reason="ErrImagePull"))


def test_a_container_that_is_replaced_in_a_pod_that_ends_has_ended() -> None:
    seen = observed(view("a", State.EXITED, code=137))
    found = status_of(make("Never", ("a",)), seen, replaced={"a0"}, finished=True)
    assert found.phase == "Failed"
    assert only(found).state.terminated is not None


def only(status: PodStatus) -> ContainerStatus:
    (found,) = status.container_statuses
    return found


def condition(status: PodStatus, kind: str) -> PodCondition:
    (found,) = (item for item in status.conditions if item.type == kind)
    return found


def test_the_status_says_everything_of_a_running_container() -> None:
    user = ContainerUser(linux=LinuxContainerUser(uid=1, gid=2, supplemental_groups=(2, 3)))
    resources = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "64Mi"}}
    mounts = [{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "IfPossible"}]
    container = {"name": "a", "resources": resources, "volumeMounts": mounts}
    container |= {"lifecycle": {"stopSignal": "SIGUSR1"}}
    pod = make(containers=(container,), volumes=[{"name": "v", "emptyDir": {}}], os={"name": "linux"})
    confined = Confinement(cpu_period_us=100_000, cpu_quota_us=50_000, cpu_shares=256, memory_limit_bytes=32 << 20)
    more = {"user": user, "stop_signal": "SIGUSR1", "resources": confined, "recursive_mounts": frozenset({"/v"})}
    found = only(status_of(pod, observed(view("a", State.RUNNING, **more)), runtime="podkeep"))
    assert msgspec.json.decode(msgspec.json.encode(found)) == {
        "name": "a",
        "state": {"running": {"startedAt": PRESENT}},
        "lastState": {},
        "ready": True,
        "started": True,
        "restartCount": 0,
        "image": "i:1",
        "imageID": "sha256:1",
        "containerID": "podkeep://a0",
        "allocatedResources": {"cpu": "250m", "memory": "64Mi"},
        # The memory limit is not yet what was allocated; the rest is.
        "resources": {
            "limits": {"cpu": "500m", "memory": "32Mi"},
            "requests": {"cpu": "250m", "memory": "64Mi"},
        },
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Enabled"}],
        "user": {"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2, 3]}},
        "stopSignal": "SIGUSR1",
    }


def test_what_is_the_pods_own() -> None:
    status = status_of(make(), observed(view("a", State.RUNNING), view("b", State.RUNNING)))
    assert (status.phase, status.observed_generation, status.qos_class) == ("Running", 3, "BestEffort")
    assert (status.pod_ip, status.pod_ips) == ("10.0.0.2", (PodIP(ip="10.0.0.2"), PodIP(ip="fd00::2")))
    assert (status.host_ip, status.start_time) == ("192.0.2.7", PRESENT)
    assert {item.observed_generation for item in status.conditions} == {3}
    sixth = status_of(make(), observed(), host_ips=("2001:db8::1",))
    assert sixth.pod_ip == "fd00::2"
    assert status_of(make(hostNetwork=True), observed()).pod_ip == "192.0.2.7"


def test_addresses_and_start_time_stay_when_the_sandbox_is_gone() -> None:
    before = PodStatus(pod_ips=(PodIP(ip="10.0.0.9"),), start_time=THEN, observed_generation=7)
    status = status_of(make(), observed(sandbox=None), previous=before)
    assert (status.pod_ip, status.start_time, status.observed_generation) == ("10.0.0.9", THEN, 7)


@pytest.mark.parametrize(
    ("views", "before", "restarts", "state", "last"),
    [
        # Of the runtime: the newest attempt, and how the one before ended.
        ([(State.RUNNING, 1, 0), (State.EXITED, 0, 3)], None, 1, "run", 3),
        ([(State.EXITED, 2, 5)], None, 2, "5", None),
        # Attempts that the runtime has forgotten count on.
        ([(State.RUNNING, 0, 0)], ("4", 6, "podkeep://x"), 7, "run", 4),
        ([(State.RUNNING, 0, 0)], ("run", 6, "podkeep://a0"), 6, "run", None),
        # It ran and is nowhere.
        ([], ("run", 2, "podkeep://x"), 3, "wait", 137),
        ([], ("5", 2, "podkeep://x"), 2, "5", None),
        ([], ("wait", 2, ""), 2, "wait", None),
        ([(State.UNKNOWN, 0, 0)], ("run", 2, "podkeep://a0"), 2, "137", None),
        ([(State.UNKNOWN, 0, 0)], None, 0, "wait", None),
        ([(State.CREATED, 0, 0)], None, 0, "wait", None),
    ],
)
def test_states_and_restart_counts(
    views: list[tuple[State, int, int]],
    before: tuple[str, int, str] | None,
    restarts: int,
    state: str,
    last: int | None,
) -> None:
    previous = PodStatus()
    if before is not None:
        reported = said("a", before[0], restart_count=before[1], container_id=before[2])
        previous = PodStatus(container_statuses=(reported,))
    seen = observed(*(view("a", kind, attempt, code) for kind, attempt, code in views))
    found = only(status_of(make(containers=("a",)), seen, previous=previous))
    ended = found.state.terminated
    shown = "run" if found.state.running else "wait" if found.state.waiting else str(ended and ended.exit_code)
    before_that = found.last_state.terminated
    assert (found.restart_count, shown, before_that and before_that.exit_code) == (restarts, state, last)


@pytest.mark.parametrize(
    ("policy", "code", "waits"),
    [("Always", 0, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_a_container_waits_only_if_it_is_started_again(policy: str, code: int, waits: bool) -> None:
    waiting = {"a": Waiting(reason="CrashLoopBackOff", message="m")}
    found = only(status_of(make(policy, ("a",)), observed(view("a", State.EXITED, 0, code)), waiting=waiting))
    assert (found.state.waiting is not None) is waits
    assert (found.last_state.terminated is not None) is waits


@pytest.mark.parametrize("count", [1, 100])
def test_what_containers_say_fits_in_a_status(count: int) -> None:
    """A hook that fails prints what it likes, in every container; a status that is too large would never be written."""
    names = tuple(f"c{number}" for number in range(count))
    waiting = {name: Waiting(reason="PostStartHookError", message="\ufffd" * 20_000) for name in names}
    found = status_of(make("Always", names), observed(), waiting=waiting).container_statuses
    messages = [item.state.waiting.message for item in found if item.state.waiting is not None]
    assert len(messages) == count
    assert all(1000 < len(message.encode()) <= 4096 for message in messages)
    assert sum(len(message.encode()) for message in messages) <= 256 * 1024


def test_the_message_of_an_end_is_the_runtimes_and_the_containers() -> None:
    seen = observed(view("a", State.EXITED, 0, 1, message="killed", reason="OOMKilled"))
    ended = only(status_of(make(containers=("a",)), seen, message=lambda _: "words")).state.terminated
    assert ended is not None
    assert (ended.reason, ended.message) == ("OOMKilled", "killed: words")


def test_init_containers_that_were_removed_count_as_done_once_others_run() -> None:
    status = status_of(make(inits=("i", side())), observed(view("a", State.RUNNING)))
    first, second = status.init_container_statuses
    assert first.state.terminated is not None
    assert (first.state.terminated.exit_code, first.state.terminated.reason) == (0, "Completed")
    assert first.ready
    assert second.state.waiting is not None


PROBED = {"name": "a", "startupProbe": PROBE, "readinessProbe": PROBE}


@pytest.mark.parametrize(
    ("result", "before", "started", "ready"),
    [
        (None, None, False, False),
        (ProbeResult(started=False), None, False, False),
        (ProbeResult(started=True), None, True, False),
        (ProbeResult(started=True, ready=True), None, True, True),
        (ProbeResult(started=False, ready=True), None, False, False),
        # An agent that was started anew has no results yet.
        (None, said("a", "run", started=True, ready=True, container_id="podkeep://a0"), True, True),
        (
            ProbeResult(ready=False),
            said("a", "run", started=True, ready=True, container_id="podkeep://a0"),
            True,
            False,
        ),
        (None, said("a", "run", started=True, ready=True, container_id="podkeep://other"), False, False),
    ],
)
def test_started_and_ready(
    result: ProbeResult | None, before: ContainerStatus | None, started: bool, ready: bool
) -> None:
    probes = {} if result is None else {"a0": result}
    previous = PodStatus(container_statuses=() if before is None else (before,))
    found = only(
        status_of(make(containers=(PROBED,)), observed(view("a", State.RUNNING)), probes=probes, previous=previous)
    )
    assert (found.started, found.ready) == (started, ready)


# ------------------------------------------------------------------------------------------------------ conditions


def test_conditions_of_a_pod_that_is_not_there_yet() -> None:
    status = status_of(make(inits=("i",)), observed(sandbox=None))
    shown = {item.type: (item.status, item.reason, item.message) for item in status.conditions}
    assert shown == {
        "PodReadyToStartContainers": ("False", "", ""),
        "Initialized": ("False", "ContainersNotInitialized", "containers with incomplete status: [i]"),
        "Ready": ("False", "ContainersNotReady", "containers with unready status: [a b]"),
        "ContainersReady": ("False", "ContainersNotReady", "containers with unready status: [a b]"),
        "PodScheduled": ("True", "", ""),
    }


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "PodCompleted"), (1, "Failed", "PodFailed")])
def test_conditions_of_a_pod_that_has_ended(code: int, phase: str, reason: str) -> None:
    status = status_of(make("Never", ("a",)), observed(view("a", State.EXITED, 0, code)))
    assert status.phase == phase
    assert (condition(status, "Ready").status, condition(status, "Ready").reason) == ("False", reason)
    assert condition(status, "Initialized").reason == ("PodCompleted" if phase == "Succeeded" else "")


def test_sidecars_count_for_readiness() -> None:
    pod = make("Always", ("a",), (side(readinessProbe=PROBE),))
    status = status_of(pod, observed(view("a", State.RUNNING), view("s", State.RUNNING)))
    assert condition(status, "Ready").message == "containers with unready status: [s]"
    assert condition(status, "Initialized").status == "True"


def with_conditions(pod: Pod, *conditions: PodCondition) -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(conditions=conditions))


def test_readiness_gates_and_conditions_of_others() -> None:
    pod = make("Always", ("a",), readinessGates=[{"conditionType": "x/one"}, {"conditionType": "x/two"}])
    seen = observed(view("a", State.RUNNING))
    other = PodCondition(type="x/one", status="False", last_transition_time=THEN, observed_generation=1)
    status = status_of(with_conditions(pod, other), seen)
    ready = condition(status, "Ready")
    assert (ready.status, ready.reason) == ("False", "ReadinessGatesNotReady")
    assert ready.message == (
        'the status of pod readiness gate "x/one" is not "True", but False, '
        'corresponding condition of pod readiness gate "x/two" does not exist.'
    )
    assert condition(status, "ContainersReady").status == "True"
    assert condition(status, "x/one") == other
    both = (replace_status(other, "True"), PodCondition(type="x/two", status="True"))
    assert condition(status_of(with_conditions(pod, *both), seen), "Ready").status == "True"


def replace_status(item: PodCondition, status: Any) -> PodCondition:
    return msgspec.structs.replace(item, status=status)


def test_conditions_keep_the_time_of_their_last_change() -> None:
    pod = make("Always", ("a",))
    old = [PodCondition(type=kind, status="True", last_transition_time=THEN) for kind in ("Ready", "PodScheduled")]
    waits = status_of(pod, observed(), previous=PodStatus(conditions=tuple(old)), now=NOW)
    assert condition(waits, "PodScheduled").last_transition_time == THEN
    assert condition(waits, "Ready").last_transition_time == PRESENT


def test_conditions_of_the_agent() -> None:
    pod, seen = make("Never", ("a",)), observed(view("a", State.RUNNING))
    resize = PodCondition(type="PodResizeInProgress", status="True")
    target = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    status = status_of(pod, seen, conditions=(resize, target))
    assert condition(status, "PodResizeInProgress").status == "True"
    # Once chosen to go, a pod stays so; a resize is over when it has ended.
    ended = status_of(pod, observed(view("a", State.EXITED)), conditions=(resize,), previous=status)
    assert condition(ended, "DisruptionTarget").reason == "TerminationByKubelet"
    assert not any(item.type == "PodResizeInProgress" for item in ended.conditions)


def test_a_pod_whose_containers_all_restart_says_so() -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}
    pod = make("Never", ({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [rule]}, "b"))
    seen = observed(view("a", State.EXITED, 0, 88), view("b", State.RUNNING))
    first = status_of(pod, seen)
    assert (first.phase, condition(first, "AllContainersRestarting").status) == ("Running", "True")
    gone = status_of(pod, observed(), previous=first)
    assert condition(gone, "AllContainersRestarting").status == "False"
    assert gone.phase == "Running"
    for found in gone.container_statuses:
        assert found.state.waiting is not None
        assert (found.state.waiting.reason, found.restart_count) == ("RestartingAllContainers", 1)


# ----------------------------------------------------------------------------------------------------------- the end


def test_an_end_is_told_when_nothing_of_the_pod_runs_any_more() -> None:
    """Until then it is not ready, but has what it has: its place on the node, in its Job and in its budget."""
    target = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    seen = observed(view("a", State.RUNNING), view("b", State.RUNNING))
    runs = status_of(make(), seen)
    end = {"finished": True, "reason": "Evicted", "text": "too large", "conditions": (target,)}
    status = status_of(make(), seen, previous=runs, **end)
    assert (status.phase, status.reason, status.message) == ("Running", "", "")
    assert (condition(status, "Ready").status, condition(status, "Ready").reason) == ("False", "PodFailed")
    assert not any(item.type == "DisruptionTarget" for item in status.conditions)
    later = status_of(make(), observed(view("a", State.EXITED)), previous=status, **end)
    assert (later.phase, later.reason, later.message) == ("Failed", "Evicted", "too large")
    assert condition(later, "DisruptionTarget").reason == "TerminationByKubelet"


def test_a_failed_init_container_ends_the_pod_when_its_sidecars_have_ended() -> None:
    pod = make("Never", ("a",), (side(), "i"))
    seen = observed(view("s", State.RUNNING), view("i", State.EXITED, 0, 1))
    assert status_of(pod, seen).phase == "Pending"
    seen = observed(view("s", State.EXITED, 0, 137), view("i", State.EXITED, 0, 1))
    assert status_of(pod, seen).phase == "Failed"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_phase_that_is_an_end_stays(phase: Any) -> None:
    pod = msgspec.structs.replace(make(), status=PodStatus(phase=phase, reason="R", message="m"))
    status = status_of(pod, observed(view("a", State.RUNNING), view("b", State.RUNNING)))
    assert (status.phase, status.reason, status.message) == (phase, "R", "m")


def test_at_its_end_every_container_that_was_begun_has_ended() -> None:
    pod = make("Always", ("a", "b"), ("i", "j", "k"))
    before = PodStatus(
        phase="Running",
        init_container_statuses=(said("i", "0"), said("j", "run"), said("k", "wait")),
        container_statuses=(said("a", "wait"), said("b", "wait")),
    )
    status = at_its_end(pod, before)
    codes = [item.state.terminated and item.state.terminated.exit_code for item in status.init_container_statuses]
    assert (status.phase, codes) == ("Failed", [0, 137, None])
    # The containers proper were never begun.
    assert all(item.state.waiting is not None for item in status.container_statuses)
    begun = msgspec.structs.replace(before, container_statuses=(said("a", "run"), said("b", "wait")))
    ends = [item.state.terminated for item in at_its_end(pod, begun).container_statuses]
    assert [(end.exit_code, end.reason) for end in ends if end] == [(137, "ContainerStatusUnknown")] * 2


def test_a_static_pod_keeps_its_phase() -> None:
    pod = make(metadata={"annotations": {"kubernetes.io/config.source": "file"}})
    assert at_its_end(pod, PodStatus(phase="Running", container_statuses=(said("a", "0"),))).phase == "Running"


def test_a_pod_that_is_deleted_restarts_nothing_in_its_status() -> None:
    pod = make("Always", ("a",), metadata={"deletionTimestamp": PRESENT})
    waiting = {"a": Waiting(reason="CrashLoopBackOff")}
    found = only(status_of(pod, observed(view("a", State.EXITED, 0, 1)), waiting=waiting))
    assert found.state.terminated is not None


def test_resources_of_the_pod_as_a_whole() -> None:
    container = {"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "500m", "memory": "10Mi"}}}
    pod = make(containers=({"name": "a"} | container, {"name": "b"} | container))
    status = status_of(pod, observed())
    assert status.allocated_resources == {"cpu": "1", "memory": "20Mi"}
    assert status.resources is not None
    assert (status.resources.limits, status.resources.requests) == ({"cpu": "2"}, {"cpu": "1", "memory": "20Mi"})


def test_a_view_of_another_attempt_says_nothing_of_this_one() -> None:
    seen = observed(structs.replace(view("a", State.RUNNING, 1), id="new"), view("a", State.EXITED, 0, 2))
    before = PodStatus(container_statuses=(said("a", "2", container_id="podkeep://a0", ready=False),))
    found = only(status_of(make(containers=("a",)), seen, previous=before))
    assert (found.container_id, found.restart_count) == ("podkeep://new", 1)


def test_a_status_that_adds_nothing_but_the_sandbox_is_known_as_such() -> None:
    pod = make(containers=("a",))
    before, made = status_of(pod, Observed()), status_of(pod, observed())
    started = status_of(pod, observed(view("a", State.RUNNING)))
    assert before != made
    assert is_only_the_sandbox(before, made)
    assert not is_only_the_sandbox(made, started)


def test_the_echo_of_its_own_status_is_no_news_for_a_worker() -> None:
    """Each status that was written had the pod looked at once more."""
    pod = make(containers=("a",))
    metadata = msgspec.structs.replace(pod.metadata, resource_version="2")
    status = status_of(pod, observed(view("a", State.RUNNING)))
    assert not tells_anew(pod, msgspec.structs.replace(pod, metadata=metadata, status=status))


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"generation": 2}},
        {"metadata": {"deletion_timestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"active_deadline_seconds": 5}},
        {"status": {"phase": "Failed"}},
        {"status": {"conditions": (PodCondition(type="example.com/gate", status="True"),)}},
    ],
)
def test_what_others_change_is_news_for_a_worker(change: dict[str, dict[str, Any]]) -> None:
    pod = make(containers=("a",))
    parts = {name: msgspec.structs.replace(getattr(pod, name), **fields) for name, fields in change.items()}
    assert tells_anew(pod, msgspec.structs.replace(pod, **parts))


def test_an_id_of_megabytes_leaves_a_status_that_an_api_takes() -> None:
    seen = observed(view("a", State.RUNNING, id="x" * (2 << 20)))
    status = status_of(make(containers=("a",)), seen)
    assert status.container_statuses[0].container_id.startswith("podkeep://xxx")
    assert len(msgspec.json.encode(status)) < 10_000


def test_a_user_with_thousands_of_groups_leaves_a_status_that_an_api_takes() -> None:
    """They are the image's, and a pod whose statuses are refused cannot be deleted."""
    many = ContainerUser(linux=LinuxContainerUser(uid=1, gid=2, supplemental_groups=tuple(range(1 << 16))))
    few = ContainerUser(linux=LinuxContainerUser(uid=1, gid=2, supplemental_groups=tuple(range(1_000))))
    seen = observed(view("a", State.RUNNING, user=many), view("b", State.RUNNING, user=few))
    told = msgspec.to_builtins(status_of(make(), seen))
    assert [status.get("user") for status in told["containerStatuses"]] == [None, msgspec.to_builtins(few)]
    values.require_few({"metadata": {}, "status": told})
