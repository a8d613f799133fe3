"""Decisions about a pod: a table of situations, and pods that are played to their end without a runtime."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from podkeep.agent.backoff import BackOff, event_message, waiting_message
from podkeep.agent.events import PostStartFailed, PullFailed, StepFailed
from podkeep.agent.observed import ContainerView, Observed, SandboxView, State
from podkeep.agent.pod.actions import CreateSandbox, Decision, Finish, StartContainer, StopSandbox, Wait
from podkeep.agent.pod.plan import decide
from podkeep.agent.pod.status.pod_status import StatusFacts, Waiting, exit_code, pod_status
from podkeep.agent.pod.worker import pause_after, with_fresh_back_off
from podkeep.api import manifest
from podkeep.api.containers import ResourceRequirements
from podkeep.api.pod import Pod

NOW = 1_000_000.0
SANDBOX = SandboxView(id="s0", ready=True, attempt=0, created_at=int(NOW * 1e9), ips=("10.0.0.2",))


def make(restart_policy: str = "Always", inits: dict[str, str | None] | None = None, **spec: Any) -> Pod:
    """Return a pod with containers ``a`` and ``b`` and the named init containers with their restart policies."""
    init_containers = [
        {"name": name, "image": "i:1"} | ({"restartPolicy": policy} if policy else {})
        for name, policy in (inits or {}).items()
    ]
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "uid": "u1"},
        "spec": {
            "restartPolicy": restart_policy,
            "initContainers": init_containers,
            "containers": [{"name": name, "image": "i:1"} for name in "ab"],
        }
        | spec,
    }
    (pod,) = manifest.parse(yaml.safe_dump(document), source="f").pods
    return pod


def running(name: str, attempt: int = 0) -> ContainerView:
    return ContainerView(
        id=f"{name}{attempt}",
        name=name,
        sandbox_id="s0",
        attempt=attempt,
        state=State.RUNNING,
        started_at=int(NOW * 1e9),
    )


def exited(name: str, code: int = 0, attempt: int = 0, ago: float = 0.0) -> ContainerView:
    return structs.replace(
        running(name, attempt), state=State.EXITED, exit_code=code, finished_at=int((NOW - ago) * 1e9)
    )


def observed(*views: ContainerView, sandbox: SandboxView | None = SANDBOX) -> Observed:
    return Observed(sandboxes=(sandbox,) if sandbox else (), containers={view.name: (view,) for view in views})


def ask(pod: Pod, seen: Observed, delay: float = 0.0, since: float = NOW) -> Decision:
    return decide(pod, seen, now=NOW, since=since, delay=lambda _: delay)


def ask_with(pod: Pod, seen: Observed, **held: float) -> Decision:
    """Ask with containers held back for so many seconds."""
    later = {name: NOW + seconds for name, seconds in held.items()}
    return decide(pod, seen, now=NOW, since=NOW, delay=lambda _: 0.0, held=later)


def starts(decision: Decision) -> tuple[str, int, bool]:
    assert isinstance(decision.action, StartContainer), decision
    return decision.action.container.name, decision.action.attempt, decision.action.init


def test_the_sandbox_comes_first() -> None:
    assert ask(make(), observed(sandbox=None)) == Decision(actions=(CreateSandbox(attempt=0),), why="it has no sandbox")


def test_a_sandbox_that_died_is_stopped_then_replaced() -> None:
    dead = structs.replace(SANDBOX, ready=False)
    decision = ask(make(), observed(running("a"), sandbox=dead))
    assert decision.action == StopSandbox(sandbox=dead)
    assert ask(make(), observed(exited("a", 137), sandbox=dead)).action == CreateSandbox(attempt=1)


def test_containers_start_in_order() -> None:
    pod = make()
    assert starts(ask(pod, observed())) == ("a", 0, False)
    assert starts(ask(pod, observed(running("a")))) == ("b", 0, False)
    assert ask(pod, observed(running("a"), running("b"))) == Decision(actions=(Wait(),), why="its containers run")


def test_init_containers_run_one_after_the_other_and_before_all_others() -> None:
    pod = make(inits={"i": None, "j": None})
    assert starts(ask(pod, observed())) == ("i", 0, True)
    assert ask(pod, observed(running("i"))).action == Wait()
    assert starts(ask(pod, observed(exited("i")))) == ("j", 0, True)
    assert starts(ask(pod, observed(exited("i"), exited("j")))) == ("a", 0, False)


def test_init_containers_run_again_in_a_new_sandbox() -> None:
    old = structs.replace(exited("i"), sandbox_id="earlier")
    assert starts(ask(make(inits={"i": None}), observed(old))) == ("i", 1, True)


def test_a_failed_init_container_fails_the_pod_or_is_tried_again() -> None:
    failed = observed(exited("i", 1))
    assert ask(make("Never", inits={"i": None}), failed).action == Finish(failed=True)
    assert starts(ask(make("OnFailure", inits={"i": None}), failed)) == ("i", 1, True)
    assert ask(make("Always", inits={"i": None}), failed, delay=20).action == Wait(until=NOW + 20)


def test_a_sidecar_starts_before_the_containers_and_again_when_it_ends() -> None:
    pod = make("Never", inits={"side": "Always"})
    assert starts(ask(pod, observed())) == ("side", 0, True)
    assert starts(ask(pod, observed(running("side")))) == ("a", 0, False)
    others = (running("a"), running("b"))
    assert starts(ask(pod, observed(exited("side", 1), *others))) == ("side", 1, True)
    assert ask(pod, observed(exited("side", 1), *others), delay=10).action == Wait(until=NOW + 10)


def test_a_sidecar_does_not_keep_a_finished_pod_alive() -> None:
    pod = make("Never", inits={"side": "Always"})
    assert ask(pod, observed(running("side"), exited("a"), exited("b"))).action == Finish(failed=False)


@pytest.mark.parametrize(
    ("policy", "codes", "expected"),
    [
        ("Never", (0, 0), Finish(failed=False)),
        ("Never", (0, 3), Finish(failed=True)),
        ("OnFailure", (0, 0), Finish(failed=False)),
        ("OnFailure", (0, 3), "b"),
        ("Always", (0, 0), "a"),
    ],
)
def test_restart_policy(policy: str, codes: tuple[int, int], expected: Finish | str) -> None:
    decision = ask(make(policy), observed(exited("a", codes[0]), exited("b", codes[1])))
    if isinstance(expected, Finish):
        assert decision.action == expected
    else:
        assert starts(decision) == (expected, 1, False)


def test_a_finished_pod_stays_finished_when_its_sandbox_dies() -> None:
    seen = observed(exited("a", 137), exited("b", 137), sandbox=structs.replace(SANDBOX, ready=False))
    assert ask(make("Never"), seen).action == Finish(failed=True)


def test_back_off_delays_one_container_and_not_the_others() -> None:
    assert starts(ask(make(), observed(exited("a", 1)), delay=10)) == ("b", 0, False)
    assert ask(make(), observed(exited("a", 1, ago=4), running("b")), delay=10).action == Wait(until=NOW + 6)


def test_the_deadline_of_a_pod() -> None:
    pod = make(activeDeadlineSeconds=60)
    seen = observed(running("a"), running("b"))
    assert ask(pod, seen, since=NOW - 10).action == Wait(until=NOW + 50)
    action = ask(pod, seen, since=NOW - 60).action
    assert isinstance(action, Finish)
    assert (action.failed, action.reason) == (True, "DeadlineExceeded")


def test_back_off_doubles_to_five_minutes_and_is_forgotten_after_ten_healthy_ones() -> None:
    back_off = BackOff()
    assert back_off.delay("a") == 0
    delays = []
    for _ in range(7):
        back_off.restarted("a", ran=1)
        delays.append(back_off.delay("a"))
    assert delays == [10, 20, 40, 80, 160, 300, 300]
    back_off.restarted("a", ran=601)
    assert back_off.delay("a") == 10


def test_back_off_has_a_longest_delay() -> None:
    back_off = BackOff(maximum=5.0)
    assert [back_off.failed("a"), back_off.failed("a")] == [5, 5]
    back_off = BackOff(maximum=15.0)
    assert [back_off.failed("a"), back_off.failed("a")] == [10, 15]
    # Ten minutes, however short the longest delay is (kubelet, crashLoopBackOff.HasExpiredFunc).
    back_off.restarted("a", ran=31)
    assert back_off.delay("a") == 15
    back_off.restarted("a", ran=601)
    assert back_off.delay("a") == 10


def test_back_offs_begin_anew_with_another_image_or_other_resources() -> None:
    """What crashed for want of memory is started at once when it gets more (kubelet, GetBackoffKey)."""
    before = make()
    a, b = before.spec.containers
    more = msgspec.structs.replace(b, resources=ResourceRequirements(limits={"memory": "1Gi"}))
    for changed in (msgspec.structs.replace(b, image="i:2"), more):
        spec = msgspec.structs.replace(before.spec, containers=(a, changed))
        assert with_fresh_back_off(before, msgspec.structs.replace(before, spec=spec)) == ["b"]
    assert with_fresh_back_off(before, before) == []


def test_what_failed_on_the_way_to_a_container_is_soon_tried_again_however_often_it_failed() -> None:
    """What was missing may be there by now: 10 to 15 seconds (kubelet, backOffPeriod), but for crashes and pulls.

    A container whose hook failed has run: when it runs again is the plan's to say, as after any crash.
    """
    back_off = BackOff()
    failed = StepFailed("no sandbox", reason="FailedCreatePodSandBox")
    assert all(10 <= pause_after(failed, "start/", back_off) <= 15 for _ in range(6))
    crash = StepFailed("no class", reason="Failed", waiting="RunContainerError", container="a")
    assert [pause_after(crash, "start/a", back_off) for _ in range(3)] == [10, 20, 40]
    hook = PostStartFailed("exit 1", container="a", started="id")
    assert [pause_after(hook, "start/a", back_off) for _ in range(3)] == [0, 0, 0]
    pull = PullFailed("none", waiting="ErrImagePull", detail="none", again=7.0)
    assert pause_after(pull, "start/a", back_off) == 7


def test_back_off_is_told_as_a_kubelet_does() -> None:
    assert waiting_message(80, "c", "p_ns(u)") == "back-off 1m20s restarting failed container=c pod=p_ns(u)"
    assert event_message("c", "p_ns(u)") == "Back-off restarting failed container c in pod p_ns(u)"


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_every_pod_comes_to_its_end_with_nothing_remembered_between_decisions(policy: str) -> None:
    """Play a pod; with OnFailure whatever is started fails once and then succeeds."""
    pod = make(policy, inits={"i": None, "side": "Always"})
    views: dict[str, ContainerView] = {}
    sandbox: SandboxView | None = None
    started: list[str] = []
    for _ in range(50):
        decision = decide(
            pod,
            Observed(
                sandboxes=(sandbox,) if sandbox else (), containers={name: (view,) for name, view in views.items()}
            ),
            now=NOW,
            since=NOW,
            delay=lambda _: 0.0,
        )
        action = decision.action
        if isinstance(action, Finish):
            break
        if isinstance(action, CreateSandbox):
            sandbox = SANDBOX
        elif isinstance(action, StartContainer):
            name = action.container.name
            started.append(name)
            views[name] = running(name, action.attempt)
            if name != "side":
                fails = policy == "OnFailure" and action.attempt == 0
                views[name] = exited(name, 1 if fails else 0, action.attempt)
        else:
            pytest.fail(f"nothing to wait for: {decision}")
    assert action == Finish(failed=False)
    once = ["i", "side", "a", "b"]
    assert started == (once if policy == "Never" else ["i", "i", "side", "a", "a", "b", "b"])


def facts(**more: Any) -> StatusFacts:
    base = {"since": NOW, "now": NOW, "host_ips": ("192.0.2.7",), "waiting": {}, "message": lambda _: "bye"}
    return StatusFacts(**(base | more))


def test_the_status_of_a_running_pod() -> None:
    status = pod_status(make(), observed(running("a"), running("b", 1)), facts())
    assert (status.phase, status.pod_ip, status.host_ip) == ("Running", "10.0.0.2", "192.0.2.7")
    assert {condition.type: condition.status for condition in status.conditions}["Ready"] == "True"
    assert [(c.name, c.ready, c.restart_count) for c in status.container_statuses] == [("a", True, 0), ("b", True, 1)]


def test_the_status_says_why_a_container_waits() -> None:
    waiting = {"a": Waiting(reason="ErrImagePull", message="no such image")}
    status = pod_status(make(inits={"i": None}), observed(exited("i")), facts(waiting=waiting))
    assert status.phase == "Pending"
    first, second = (c.state.waiting for c in status.container_statuses)
    assert first is not None
    assert second is not None
    assert (first.reason, first.message) == ("ErrImagePull", "no such image")
    assert second.reason == "PodInitializing"
    assert status.init_container_statuses[0].ready


def test_the_status_of_a_pod_that_ended() -> None:
    seen = observed(exited("a"), exited("b", 137))
    status = pod_status(make("Never"), seen, facts(finished=True, failed=True))
    ended = status.container_statuses[1].state.terminated
    assert status.phase == "Failed"
    assert ended is not None
    assert (ended.exit_code, ended.reason, ended.message) == (137, "Error", "bye")


def test_a_pod_that_was_stopped_before_its_containers_ended_did_not_succeed() -> None:
    never = pod_status(make(), observed(), facts(finished=True))
    half = pod_status(make(), observed(exited("a")), facts(finished=True))
    both = pod_status(make(), observed(exited("a"), exited("b")), facts(finished=True))
    assert (never.phase, half.phase, both.phase) == ("Failed", "Failed", "Succeeded")


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    pod = make("Never", inits={"side": "Always"})
    assert exit_code(pod, observed(exited("a"), exited("b"), exited("side", 143))) == 0
    assert exit_code(pod, observed(exited("a", 2, ago=1), exited("b", 3, ago=5))) == 3


@pytest.mark.requirement("V26", "V28")
def test_a_container_whose_start_failed_holds_up_no_other() -> None:
    pod = make()
    assert starts(ask_with(pod, observed(), a=5)) == ("b", 0, False)
    assert ask_with(pod, observed(running("b")), a=5).action == Wait(until=NOW + 5)
    assert starts(ask_with(pod, observed(running("b")), a=0)) == ("a", 0, False)
    crashed = exited("a", code=1, ago=3.0)
    assert ask_with(pod, observed(crashed, running("b")), a=5).action == Wait(until=NOW + 5)
    assert decide(
        pod, observed(crashed, running("b")), now=NOW, since=NOW, delay=lambda _: 10.0, held={"a": NOW + 5}
    ).action == Wait(until=NOW + 7)


def test_everything_waits_for_an_init_container_whose_start_failed() -> None:
    pod = make(inits={"init": None})
    assert ask_with(pod, observed(), init=5).action == Wait(until=NOW + 5)
    elsewhere = structs.replace(exited("init"), sandbox_id="earlier")
    assert ask_with(pod, observed(elsewhere), init=5).action == Wait(until=NOW + 5)
    assert starts(ask_with(pod, observed(elsewhere), init=0)) == ("init", 1, True)
    limited = make(inits={"init": None}, activeDeadlineSeconds=3)
    assert ask_with(limited, observed(), init=5).action == Wait(until=NOW + 3)
