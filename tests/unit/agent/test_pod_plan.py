"""What a node decides about a pod: tables of situations, as those of kubelet's computePodActions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from podkeep.agent.convert.container import container_hash
from podkeep.agent.observed import ContainerView, Observed, SandboxView, State
from podkeep.agent.pod.actions import (
    CreateSandbox,
    Finish,
    KillContainer,
    ResetContainer,
    Resize,
    StartContainer,
    StopSandbox,
    Wait,
    WorkerState,
)
from podkeep.agent.pod.plan import decide, over
from podkeep.agent.pod.starter import surplus
from podkeep.agent.probes.model import ProbeResult
from podkeep.api import manifest
from podkeep.api.containers import ResourceRequirements
from podkeep.api.pod import Pod
from podkeep.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from podkeep.base.config import AgentConfig

NOW = 1_000_000.0
READY = SandboxView(id="s0", ready=True, attempt=0, created_at=1, ips=("10.0.0.2",))
DEAD = structs.replace(READY, ready=False)
PROBE = {"exec": {"command": ["true"]}}


def make(policy: str = "Always", *containers: dict[str, Any], inits: Any = (), **spec: Any) -> Pod:
    """Return a pod; without ``containers`` it has ``a``, ``b`` and ``c``."""

    def named(given: dict[str, Any]) -> dict[str, Any]:
        return {"image": "i:1"} | given

    given = containers or tuple({"name": name} for name in "abc")
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u1"},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [named(item) for item in inits],
            "containers": [named(item) for item in given],
        }
        | spec,
    }
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    return pod


def view(name: str, state: State, code: int = 0, attempt: int = 0, **more: Any) -> ContainerView:
    ended = int(NOW * 1e9) if state is State.EXITED else 0
    base = ContainerView(
        id=f"{name}{attempt}",
        name=name,
        sandbox_id="s0",
        attempt=attempt,
        state=state,
        exit_code=code,
        started_at=max(ended - 10**9, 1),
        finished_at=ended,
    )
    return structs.replace(base, **more)


def runs(*names: str) -> list[ContainerView]:
    return [view(name, State.RUNNING) for name in names]


def ended(*names: str, code: int = 0) -> list[ContainerView]:
    return [view(name, State.EXITED, code) for name in names]


def seen(*views: ContainerView, sandbox: SandboxView | None = READY, others: tuple[SandboxView, ...] = ()) -> Observed:
    """Return what the runtime has; of a container's attempts the newest comes first."""
    containers: dict[str, tuple[ContainerView, ...]] = {}
    for item in views:
        containers[item.name] = (*containers.get(item.name, ()), item)
    return Observed(sandboxes=(*((sandbox,) if sandbox else ()), *others), containers=containers)


def told(action: object) -> str:
    """Return an action in a word or two."""
    match action:
        case StopSandbox():
            return f"stop {action.sandbox.id}"
        case CreateSandbox():
            return f"sandbox {action.attempt}"
        case StartContainer():
            return f"start {action.container.name} {action.attempt}"
        case KillContainer():
            return f"kill {action.view.id} {action.reason or '-'}"
        case ResetContainer():
            return f"reset {action.view.id}"
        case Resize():
            return f"resize {' '.join(container.name for container, _ in action.containers)}"
        case Finish():
            return f"finish {'failed' if action.failed else 'well'}"
        case Wait():
            return "wait"
    raise AssertionError(action)


def ask(pod: Pod, observed: Observed, *, state: WorkerState = WorkerState(), delay: float = 0.0) -> list[str]:  # noqa: B008
    """Return the actions of a decision."""
    decision = decide(pod, observed, now=NOW, since=NOW, delay=lambda _: delay, state=state)
    assert decision.why
    return [told(action) for action in decision.actions]


@pytest.mark.parametrize(
    ("policy", "observed", "expected"),
    [
        ("Always", seen(*runs("a", "b", "c")), ["wait"]),
        ("Always", seen(sandbox=None), ["sandbox 0"]),
        ("Always", seen(), ["start a 0", "start b 0", "start c 0"]),
        ("Always", seen(*ended("a", "b"), *runs("c")), ["start a 1", "start b 1"]),
        ("OnFailure", seen(*ended("a"), *ended("b", code=1), *runs("c")), ["start b 1"]),
        ("OnFailure", seen(view("a", State.CREATED), *runs("b", "c")), ["start a 1"]),
        ("Never", seen(*ended("a"), *ended("b", code=1), *runs("c")), ["wait"]),
        ("Never", seen(*ended("a"), *ended("b", code=1), *ended("c")), ["finish failed"]),
        ("Always", seen(*runs("a", "b", "c"), sandbox=DEAD), ["stop s0"]),
        ("Always", seen(*ended("a", "b", "c"), sandbox=DEAD), ["sandbox 1"]),
        ("OnFailure", seen(*ended("a"), *ended("b", "c", code=137), sandbox=DEAD), ["sandbox 1"]),
        ("OnFailure", seen(*ended("a"), *ended("b", "c", code=137)), ["start b 1", "start c 1"]),
        ("OnFailure", seen(*ended("a", "b", "c"), sandbox=DEAD), ["finish well"]),
        ("Never", seen(*ended("a", "b", "c"), sandbox=DEAD), ["finish well"]),
        ("Never", seen(sandbox=DEAD), ["sandbox 1"]),
        ("Never", seen(*ended("a", code=137), sandbox=DEAD), ["finish failed"]),
        ("Always", seen(view("a", State.UNKNOWN), *runs("b", "c")), ["kill a0 Unknown"]),
        ("Never", seen(view("a", State.UNKNOWN), *runs("b", "c")), ["kill a0 Unknown"]),
        # A start whose answer came too late went on: of two attempts that run the newest is kept.
        ("Always", seen(view("a", State.RUNNING, attempt=1), *runs("a", "b", "c")), ["kill a0 Replaced"]),
        ("Always", seen(view("a", State.RUNNING, attempt=1), *ended("a"), *runs("b", "c")), ["wait"]),
        (
            "Always",
            seen(view("a", State.CREATED, attempt=1), *runs("a", "b", "c")),
            ["kill a0 Replaced", "start a 2"],
        ),
        # Of two sandboxes the newest is kept.
        (
            "Always",
            seen(*runs("a", "b", "c"), sandbox=structs.replace(READY, id="s1", attempt=1), others=(READY,)),
            ["stop s0"],
        ),
        (
            "Always",
            seen(*runs("a", "b", "c"), sandbox=structs.replace(READY, id="s1", attempt=1), others=(DEAD,)),
            ["stop s0"],
        ),
    ],
)
def test_containers_and_sandbox(policy: str, observed: Observed, expected: list[str]) -> None:
    assert ask(make(policy), observed) == expected


def started(*containers: str, **results: ProbeResult) -> dict[str, ProbeResult]:
    return {f"{name}0": result for name, result in results.items()}


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
@pytest.mark.parametrize(
    ("probe", "result", "reason", "words"),
    [
        ("livenessProbe", ProbeResult(live=False), "LivenessProbe", "failed liveness probe"),
        ("startupProbe", ProbeResult(started=False), "StartupProbe", "failed startup probe"),
    ],
)
def test_a_probe_that_failed_kills_the_container(
    policy: str, probe: str, result: ProbeResult, reason: str, words: str
) -> None:
    pod = make(policy, {"name": "a", probe: PROBE | {"terminationGracePeriodSeconds": 7}}, {"name": "b"})
    decision = decide(
        pod, seen(*runs("a", "b")), now=NOW, since=NOW, delay=lambda _: 0.0, state=WorkerState(probes={"a0": result})
    )
    (action,) = decision.actions
    assert isinstance(action, KillContainer)
    again = "" if policy == "Never" else ", will be restarted"
    assert action.message == f"Container a {words}{again}"
    assert (action.reason, action.grace, action.replace) == (reason, 7, False)


def test_a_probe_without_an_answer_kills_nothing() -> None:
    pod = make("Always", {"name": "a", "livenessProbe": PROBE, "startupProbe": PROBE})
    assert ask(pod, seen(*runs("a")), state=WorkerState(probes={"a0": ProbeResult()})) == ["wait"]
    assert ask(pod, seen(*runs("a")), state=WorkerState(probes={"a0": ProbeResult(started=True, live=True)})) == [
        "wait"
    ]
    # What another attempt was found to be does not count.
    assert ask(pod, seen(*runs("a")), state=WorkerState(probes={"a7": ProbeResult(live=False)})) == ["wait"]


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_changed_image_replaces_the_container_whatever_its_policy(policy: str) -> None:
    pod = make(policy)
    hashes = {container.name: container_hash(container) for container in pod.spec.containers}
    same = [structs.replace(item, hash=hashes[item.name]) for item in runs("b", "c")]
    old = structs.replace(runs("a")[0], hash="0")
    decision = decide(pod, seen(old, *same), now=NOW, since=NOW, delay=lambda _: 0.0)
    (kill,) = decision.actions
    assert isinstance(kill, KillContainer)
    assert kill.message == "Container a definition changed, will be restarted"
    state = WorkerState(killed={"a0": kill})
    assert ask(pod, seen(old, *same), state=state) == ["wait"]
    gone = structs.replace(old, state=State.EXITED, exit_code=0, finished_at=int(NOW * 1e9))
    assert ask(pod, seen(gone, *same), state=state) == ["start a 1"]


def test_resources_are_no_part_of_what_a_container_is_replaced_for() -> None:
    small, large = (make("Always", {"name": "a", "resources": {"limits": {"cpu": cpu}}}) for cpu in ("1", "2"))
    assert container_hash(small.spec.containers[0]) == container_hash(large.spec.containers[0])


def test_an_unknown_container_is_started_once_it_was_killed() -> None:
    pod, lost = make(), view("a", State.UNKNOWN)
    decision = decide(pod, seen(lost, *runs("b", "c")), now=NOW, since=NOW, delay=lambda _: 0.0)
    kill = decision.action
    assert isinstance(kill, KillContainer)
    assert kill.message == 'Container is in "unknown" state, try killing it before restart'
    assert ask(pod, seen(lost, *runs("b", "c")), state=WorkerState(killed={"a0": kill})) == ["start a 1"]


INITS = ({"name": "i"}, {"name": "j"}, {"name": "k"})


@pytest.mark.parametrize(
    ("policy", "observed", "expected"),
    [
        ("Always", seen(sandbox=None), ["sandbox 0"]),
        ("Always", seen(), ["start i 0"]),
        ("Always", seen(*runs("i")), ["wait"]),
        ("Always", seen(*ended("i")), ["start j 0"]),
        ("Always", seen(*ended("i", "j", "k")), ["start a 0", "start b 0", "start c 0"]),
        # The first of them may have been removed.
        ("Always", seen(*ended("k")), ["start a 0", "start b 0", "start c 0"]),
        ("Always", seen(*ended("k", code=1)), ["start k 1"]),
        ("OnFailure", seen(*ended("i", "j"), *ended("k", code=1)), ["start k 1"]),
        ("Never", seen(*ended("i", "j"), *ended("k", code=1)), ["finish failed"]),
        ("Always", seen(view("k", State.CREATED)), ["start k 1"]),
        ("Always", seen(view("k", State.UNKNOWN)), ["kill k0 Unknown"]),
        # One of the containers runs: what init containers have done is not looked at.
        ("Always", seen(*runs("a", "b", "c")), ["wait"]),
        ("Always", seen(*ended("i", "j"), *ended("k", code=1), *runs("a", "b", "c")), ["wait"]),
        # In a new sandbox all run again.
        (
            "Always",
            seen(*(structs.replace(item, sandbox_id="s9") for item in ended("i", "j", "k", "a"))),
            ["start i 1"],
        ),
    ],
)
def test_init_containers(policy: str, observed: Observed, expected: list[str]) -> None:
    assert ask(make(policy, inits=INITS), observed) == expected


SIDES = (
    {"name": "i", "restartPolicy": "Always", "startupProbe": PROBE},
    {"name": "j"},
    {"name": "k", "restartPolicy": "Always", "livenessProbe": PROBE},
)
UP = ProbeResult(started=True, ready=True, live=True)


@pytest.mark.parametrize("policy", ["Always", "Never"])
@pytest.mark.parametrize(
    ("views", "probes", "expected"),
    [
        ([], {}, ["start i 0"]),
        (runs("i"), {}, ["wait"]),
        (runs("i"), {"i0": ProbeResult(started=False)}, ["kill i0 StartupProbe"]),
        (runs("i"), {"i0": UP}, ["start j 0"]),
        ([*runs("i"), *ended("j")], {"i0": UP}, ["start k 0"]),
        ([*runs("i"), *ended("j"), *runs("k")], {"i0": UP}, ["start a 0", "start b 0", "start c 0"]),
        # The sidecar before the one that runs is started again, too.
        ([*ended("i"), *ended("j"), *runs("k", "a", "b", "c")], {}, ["start i 1"]),
        ([*ended("j"), *ended("i", "k"), *runs("a", "b", "c")], {}, ["start i 1", "start k 1"]),
        (runs("a", "b", "c"), {}, ["start i 0", "start k 0"]),
        ([*runs("i", "k", "a", "b", "c")], {"i0": UP, "k0": ProbeResult(live=False)}, ["kill k0 LivenessProbe"]),
    ],
)
def test_sidecars(policy: str, views: list[ContainerView], probes: Any, expected: list[str]) -> None:
    assert ask(make(policy, inits=SIDES), seen(*views), state=WorkerState(probes=probes)) == expected


def test_sidecars_keep_no_pod_alive() -> None:
    pod = make("OnFailure", inits=SIDES)
    done = seen(*ended("i"), *ended("j"), *runs("k"), *ended("a", "b", "c"))
    assert ask(pod, done) == ["finish well"]


def test_ephemeral_containers_are_started_once_and_before_init_containers() -> None:
    pod = make("Always", inits=INITS, ephemeralContainers=[{"name": "e", "image": "i", "targetContainerName": "a"}])
    assert ask(pod, seen()) == ["start e 0", "start i 0"]
    (first, _) = decide(pod, seen(), now=NOW, since=NOW, delay=lambda _: 0.0).actions
    assert isinstance(first, StartContainer)
    assert (first.kind, first.target) == ("ephemeral container", "a")
    for state in State:
        assert ask(pod, seen(view("e", state), *runs("a", "b", "c"))) == ["wait"]
    before = PodStatus(ephemeral_container_statuses=(status("e", terminated=0),))
    assert ask(pod, seen(*runs("a", "b", "c")), state=WorkerState(previous=before)) == ["wait"]


def rule(action: str, operator: str, *codes: int) -> dict[str, Any]:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


@pytest.mark.parametrize(
    ("policy", "own", "rules", "code", "expected"),
    [
        ("Never", "Always", [], 0, "start a 1"),
        ("Always", "Never", [], 1, "finish failed"),
        ("Always", "OnFailure", [], 0, "finish well"),
        ("Never", "OnFailure", [], 1, "start a 1"),
        ("Never", "Never", [rule("Restart", "In", 42)], 42, "start a 1"),
        ("Never", "Never", [rule("Restart", "In", 42)], 1, "finish failed"),
        ("Never", "Never", [rule("Restart", "NotIn", 42)], 42, "finish failed"),
        ("Never", "Never", [rule("Restart", "NotIn", 42)], 0, "start a 1"),
        ("Never", "Never", [rule("Restart", "In", 1), rule("RestartAllContainers", "In", 1)], 1, "start a 1"),
        ("Never", "Never", [rule("RestartAllContainers", "In", 1)], 1, "reset a0"),
    ],
)
def test_policies_and_rules_of_containers(
    policy: str, own: str, rules: list[dict[str, Any]], code: int, expected: str
) -> None:
    pod = make(policy, {"name": "a", "restartPolicy": own, "restartPolicyRules": rules})
    assert ask(pod, seen(*ended("a", code=code))) == [expected]


def test_init_containers_have_policies_and_rules_too() -> None:
    never = {"name": "i", "restartPolicy": "Never", "restartPolicyRules": [rule("Restart", "In", 42)]}
    assert ask(make("Always", inits=(never,)), seen(*ended("i", code=42))) == ["start i 1"]
    assert ask(make("Always", inits=(never,)), seen(*ended("i", code=1))) == ["finish failed"]


def test_everything_is_reset_and_what_triggered_it_last() -> None:
    trigger = {"name": "a", "restartPolicy": "Never", "restartPolicyRules": [rule("RestartAllContainers", "In", 88)]}
    pod = make("Never", trigger, {"name": "b"}, inits=({"name": "i"},))
    attempts = (view("a", State.EXITED, 88, 1), view("a", State.EXITED, 3, 0))
    observed = seen(*attempts, *runs("b"), *ended("i"))
    assert ask(pod, observed) == ["reset a0", "reset b0", "reset i0", "reset a1"]
    # Once it is gone all start again, with counts that go on.
    before = PodStatus(
        init_container_statuses=(status("i", waiting="RestartingAllContainers", restarts=1),),
        container_statuses=(status("a", terminated=88, restarts=1), status("b", terminated=137)),
    )
    state = WorkerState(previous=before)
    assert ask(pod, seen(), state=state) == ["start i 1"]
    assert ask(pod, seen(*ended("i")), state=state) == ["start a 2", "start b 1"]


def status(name: str, *, terminated: int | None = None, waiting: str = "", restarts: int = 0) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning())
    if terminated is not None:
        state = ContainerState(terminated=ContainerStateTerminated(exit_code=terminated))
    if waiting:
        state = ContainerState(waiting=ContainerStateWaiting(reason=waiting))
    return ContainerStatus(name=name, state=state, ready=False, restart_count=restarts, image="i:1", image_id="")


@pytest.mark.parametrize(
    ("policy", "last", "expected"),
    [
        ("Always", status("a", restarts=4), ["start a 5"]),
        ("Always", status("a", terminated=0, restarts=4), ["start a 5"]),
        ("Always", status("a", waiting="CrashLoopBackOff", restarts=4), ["start a 4"]),
        ("Never", status("a", restarts=0), ["start a 1"]),
        ("Never", status("a", terminated=0), ["finish well"]),
        ("Never", status("a", terminated=2), ["finish failed"]),
        ("OnFailure", status("a", terminated=2), ["start a 1"]),
    ],
)
def test_what_the_runtime_forgot_is_in_the_last_status(policy: str, last: ContainerStatus, expected: list[str]) -> None:
    state = WorkerState(previous=PodStatus(container_statuses=(last,)))
    assert ask(make(policy, {"name": "a"}), seen(), state=state) == expected


LARGE = {"limits": {"cpu": "2", "memory": "64Mi"}}


@pytest.mark.parametrize(
    ("policies", "actuated", "expected"),
    [
        ({}, {"limits": {"cpu": "2000m", "memory": "67108864"}}, ["wait"]),
        ({}, {"limits": {"cpu": "1", "memory": "64Mi"}}, ["resize a"]),
        ({}, None, ["resize a"]),
        ({"cpu": "NotRequired"}, {"limits": {"cpu": "1", "memory": "64Mi"}}, ["resize a"]),
        ({"cpu": "RestartContainer"}, {"limits": {"cpu": "1", "memory": "64Mi"}}, ["kill a0 Resize"]),
        ({"memory": "RestartContainer"}, {"limits": {"cpu": "1", "memory": "64Mi"}}, ["resize a"]),
        ({"memory": "RestartContainer"}, {"limits": {"cpu": "2", "memory": "32Mi"}}, ["kill a0 Resize"]),
    ],
)
def test_resize_of_a_container(policies: dict[str, str], actuated: Any, expected: list[str]) -> None:
    resize = [{"resourceName": name, "restartPolicy": policy} for name, policy in policies.items()]
    pod = make("Always", {"name": "a", "resources": LARGE, "resizePolicy": resize})
    had = {} if actuated is None else {"a": ResourceRequirements(**(actuated | {"requests": actuated["limits"]}))}
    assert ask(pod, seen(*runs("a")), state=WorkerState(actuated=had)) == expected
    assert ask(pod, seen(*runs("a"))) == ["wait"]


def test_resize_of_an_init_container_that_runs() -> None:
    """While it runs; the others are given what they are granted when they start."""
    pod = make("Always", {"name": "a", "resources": LARGE}, inits=[{"name": "i", "resources": LARGE}])
    small = ResourceRequirements(limits={"cpu": "1", "memory": "64Mi"}, requests={"cpu": "1", "memory": "64Mi"})
    old = WorkerState(actuated={"i": small, "a": small})
    assert ask(pod, seen(*runs("i")), state=old) == ["resize i"]
    same = WorkerState(actuated={"i": pod.spec.init_containers[0].resources, "a": small})
    assert ask(pod, seen(*runs("i")), state=same) == ["wait"]


@pytest.mark.parametrize(
    ("policy", "observed", "expected"),
    [
        ("Never", seen(*runs("i")), set()),
        ("Never", seen(*ended("i")), {"i"}),
        ("OnFailure", seen(*ended("i", code=1)), set()),
        ("Always", seen(*ended("i"), *runs("a", "s")), {"i"}),
        ("Always", seen(*runs("a", "s")), {"i"}),
        ("Always", seen(*ended("i", "a"), *runs("s")), {"i"}),
        ("OnFailure", seen(*ended("i", "a"), *runs("s")), {"i", "a"}),
        ("Never", seen(*ended("i", "s"), *ended("a", code=1)), {"i", "a"}),
        ("Never", seen(view("i", State.UNKNOWN), view("a", State.CREATED)), set()),
    ],
)
def test_which_containers_have_ended_for_good(policy: str, observed: Observed, expected: set[str]) -> None:
    pod = make(policy, {"name": "a"}, inits=[{"name": "i"}, {"name": "s", "restartPolicy": "Always"}])
    assert over(pod, observed, WorkerState()) == expected


def test_resize_of_a_pod_as_a_whole() -> None:
    pod = make("Always", {"name": "a"})
    whole = ResourceRequirements(limits={"cpu": "2"})
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=whole))
    had = {"a": ResourceRequirements()}
    old = WorkerState(actuated=had, actuated_pod=ResourceRequirements(limits={"cpu": "1"}))
    assert ask(pod, seen(*runs("a")), state=old)[-1].startswith("resize")
    same = WorkerState(actuated=had, actuated_pod=pod.spec.resources)
    assert ask(pod, seen(*runs("a")), state=same) == ["wait"]


def killed(item: ContainerView, pod: Pod) -> KillContainer:
    return KillContainer(view=item, container=pod.spec.containers[0], reason="LivenessProbe", message="m", grace=1)


@pytest.mark.parametrize(("ago", "expected"), [(60.0, ["start a 2"]), (5.0, ["wait"])])
def test_a_container_that_was_killed_waits_only_if_it_did_not_run_for_long(ago: float, expected: list[str]) -> None:
    """The delay counts from the end before that one, as in a kubelet, which starts it right after the kill."""
    pod = make("Always", {"name": "a"})
    last = view("a", State.EXITED, 137, 1)
    first = view("a", State.EXITED, 137, 0, finished_at=int((NOW - ago) * 1e9))
    state = WorkerState(killed={"a1": killed(last, pod)})
    assert ask(pod, seen(last, first), state=state, delay=10.0) == expected
    assert ask(pod, seen(last, first), delay=10.0) == ["wait"]


@pytest.mark.parametrize(("ran", "expected"), [(599, ["wait"]), (601, ["start a 1"])])
def test_a_container_that_ran_for_ten_minutes_is_started_again_at_once(ran: int, expected: list[str]) -> None:
    """However often it crashed before: its back-off has expired (kubelet, crashLoopBackOff.HasExpiredFunc)."""
    last = view("a", State.EXITED, 1, started_at=int((NOW - ran) * 1e9))
    assert ask(make("Always", {"name": "a"}), seen(last), delay=300.0) == expected


def test_an_attempt_beside_a_newer_one_is_stopped_without_its_hook() -> None:
    """By HTTP the hook reached the newer one. Of one in an unknown state the pod saw it run: that one has its hook."""
    pod = make("Always", {"name": "a"})
    for views, hook in (
        ([view("a", State.RUNNING, attempt=1), view("a", State.RUNNING)], False),
        ([view("a", State.UNKNOWN)], True),
    ):
        (action,) = decide(pod, seen(*views), now=NOW, since=NOW, delay=lambda _: 0.0).actions
        assert isinstance(action, KillContainer)
        assert action.hook is hook


@pytest.mark.parametrize("stamp", [NOW + 3600, NOW - 3600])
def test_a_back_off_is_as_long_whatever_is_done_to_the_clock(stamp: float) -> None:
    """The runtime told the end by a clock that was set since, and it is started again when its time is over."""
    last = view("a", State.EXITED, 1, started_at=int((stamp - 1) * 1e9), finished_at=int(stamp * 1e9))
    pod = make("Always", {"name": "a"})
    for ago, action in ((5, Wait(until=NOW + 5)), (15, None)):
        state = WorkerState(ended={last.id: NOW - ago})
        decision = decide(pod, seen(last), now=NOW, since=NOW, delay=lambda _: 10.0, state=state)
        assert isinstance(decision.action, StartContainer) if action is None else decision.action == action


def test_how_long_a_container_ran_is_as_long_whatever_is_done_to_the_clock() -> None:
    """One that crashed after a second, in which the clock was set two hours ahead, has not become healthy."""
    last = view("a", State.EXITED, 1, started_at=int((NOW - 7200) * 1e9))
    state = WorkerState(ended={last.id: NOW}, ran={last.id: 1.0})
    pod = make("Always", {"name": "a"})
    assert ask(pod, seen(last), state=state, delay=10.0) == ["wait"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["a1", "a0"]),
        ({"maximum_dead_containers_per_container": 0}, ["a1", "a0"]),
        ({"maximum_dead_containers_per_container": 2}, ["a0"]),
        ({"maximum_dead_containers_per_container": -1}, []),
        ({"minimum_container_ttl": 60.0}, ["a0"]),
        ({"minimum_container_ttl": 300.0}, []),
    ],
)
def test_attempts_are_kept_as_the_configuration_says(settings: dict[str, Any], expected: list[str]) -> None:
    """The last one in any case: its end is in the pod's status."""
    ages = {2: 10.0, 1: 50.0, 0: 100.0}
    attempts = [view("a", State.EXITED, 1, n, created_at=int((NOW - age) * 1e9)) for n, age in ages.items()]
    assert [item.id for item in surplus(attempts, AgentConfig(**settings), NOW)] == expected


def test_only_containers_that_are_started_again_are_in_back_off() -> None:
    pod = make("OnFailure")
    observed = seen(*ended("a"), *ended("b", code=1), *runs("c"))
    decision = decide(pod, observed, now=NOW, since=NOW, delay=lambda _: 10.0)
    assert (decision.action, decision.backing_off) == (Wait(until=NOW + 10), ("b",))
    held = decide(pod, observed, now=NOW, since=NOW, delay=lambda _: 0.0, held={"b": NOW + 5})
    assert (held.action, held.backing_off) == (Wait(until=NOW + 5), ())


class _Statuses(tuple[ContainerStatus, ...]):
    """Statuses that count how often they are walked."""

    walks = 0

    def __iter__(self) -> Any:
        _Statuses.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("was", ["terminated", "waiting"])
def test_what_was_reported_is_walked_once_for_all_containers(was: str) -> None:
    """With 10,000 containers that the runtime has not, or no more, a decision took the agent's loop half a minute."""
    names = [f"c{number}" for number in range(40)]
    gone = ContainerState(terminated=ContainerStateTerminated(exit_code=1)) if was == "terminated" else ContainerState()
    reported = _Statuses(
        ContainerStatus(name=name, state=gone, ready=False, restart_count=3, image="i", image_id="") for name in names
    )
    state = WorkerState(previous=PodStatus(container_statuses=reported))
    _Statuses.walks = 0
    inits = [{"name": f"i{number}", "restartPolicy": "Always"} for number in range(40)]
    pod = make("Never", *({"name": name} for name in names), inits=inits)
    decide(pod, seen(*runs("i0")), now=NOW, since=NOW, delay=lambda _: 0.0)
    decide(pod, seen(), state=state, now=NOW, since=NOW, delay=lambda _: 0.0)
    assert _Statuses.walks <= 2
