"""What to do next for a pod: a pure function of what is wanted and what is there.

Level-triggered: it is asked in every cycle with everything that is known, never with an event. The answer is one action
and a sentence that says why, which goes to the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from podkeep.agent.pod.observed import ContainerView, Observed, SandboxView, State
from podkeep.api.containers import Container
from podkeep.api.pod import Pod

_NS = 1e9


@dataclass(frozen=True, kw_only=True)
class StopSandbox:
    """Stop what is left of a sandbox that is not ready any more."""

    sandbox: SandboxView


@dataclass(frozen=True, kw_only=True)
class CreateSandbox:
    """Make a sandbox; ``attempt`` counts from 0."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class StartContainer:
    """Pull, create and start one container; ``previous`` is the attempt before it."""

    container: Container
    attempt: int
    init: bool
    previous: ContainerView | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do before ``until`` (seconds since 1970) or before something changes."""

    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The pod is done: stop what is left of it."""

    failed: bool
    reason: str = ""
    message: str = ""


Action = StopSandbox | CreateSandbox | StartContainer | Wait | Finish


@dataclass(frozen=True, kw_only=True)
class Decision:
    """An action and why it is taken."""

    action: Action
    why: str


Delay = Callable[[str], float]
"""Seconds to wait after the last exit of a container before it is started again."""
NOBODY: Mapping[str, float] = {}


def is_sidecar(container: Container) -> bool:
    """Return whether an init container keeps running beside the others (KEP-753: restartPolicy Always)."""
    return container.restart_policy == "Always"


def decide(
    pod: Pod, observed: Observed, *, now: float, since: float, delay: Delay, held: Mapping[str, float] = NOBODY
) -> Decision:
    """Return what to do next for ``pod``.

    :param now: seconds since 1970.
    :param since: when the pod became active, in the same unit; its deadline counts from there.
    :param held: containers whose start failed, and before which time, in the same unit, they are not tried again.
    """
    spec = pod.spec
    done = _done(pod, observed)
    if done is not None:
        return done
    overdue = None if spec.active_deadline_seconds is None else since + spec.active_deadline_seconds
    if overdue is not None and overdue <= now:
        message = "Pod was active on the node longer than the specified deadline"
        return Decision(
            action=Finish(failed=True, reason="DeadlineExceeded", message=message),
            why=f"it has been active for {spec.active_deadline_seconds} s",
        )
    sandbox = observed.sandbox
    if sandbox is None:
        return Decision(action=CreateSandbox(attempt=0), why="it has no sandbox")
    if not sandbox.ready:
        why = f"sandbox {sandbox.id[:12]} is not ready"
        if any(view.state is not State.EXITED for view in observed.inside(sandbox)):
            return Decision(action=StopSandbox(sandbox=sandbox), why=why)
        return Decision(action=CreateSandbox(attempt=sandbox.attempt + 1), why=why)
    return _containers(pod, observed, _Clock(now=now, deadline=overdue, delay=delay, held=held))


@dataclass(frozen=True, kw_only=True)
class _Clock:
    now: float
    deadline: float | None
    delay: Delay
    held: Mapping[str, float]

    def wait(self, *times: float) -> Wait:
        """Wait until the first of ``times``, or the pod's deadline if that is sooner."""
        known = [time for time in (*times, self.deadline) if time is not None]
        return Wait(until=min(known) if known else None)


def _containers(pod: Pod, observed: Observed, clock: _Clock) -> Decision:
    later: list[float] = []
    for container in pod.spec.init_containers:
        latest = observed.latest(container.name)
        if latest is not None and observed.sandbox is not None and latest.sandbox_id != observed.sandbox.id:
            # What it prepared in an earlier sandbox may be gone with that.
            return _again(container, latest, clock)
        if is_sidecar(container):
            if latest is not None and latest.state is State.RUNNING:
                continue
        elif latest is not None and latest.state is State.EXITED and latest.exit_code == 0:
            continue
        elif latest is not None and latest.state is State.RUNNING:
            return Decision(action=clock.wait(*later), why=f"init container {container.name} runs")
        start = _start(container, latest, clock, init=True)
        if isinstance(start, Decision):
            return start
        if not is_sidecar(container) or not _main_started(pod, observed):
            # Everything after this one waits for it.
            return Decision(action=clock.wait(start, *later), why=f"init container {container.name} is in back-off")
        later.append(start)
    for container in pod.spec.containers:
        latest = observed.latest(container.name)
        if latest is not None and (latest.state is State.RUNNING or not _restarts(pod, latest)):
            continue
        start = _start(container, latest, clock, init=False)
        if isinstance(start, Decision):
            return start
        later.append(start)
    why = "containers are in back-off" if later else "its containers run"
    return Decision(action=clock.wait(*later), why=why)


def _start(container: Container, latest: ContainerView | None, clock: _Clock, *, init: bool) -> Decision | float:
    """Return the decision to start ``container``, or the time before which it may not start again."""
    allowed = clock.held.get(container.name, 0.0)
    if latest is not None and latest.state is State.EXITED:
        allowed = max(allowed, latest.finished_at / _NS + clock.delay(container.name))
    if allowed > clock.now:
        return allowed
    attempt = 0 if latest is None else latest.attempt + 1
    kind = "init container" if init else "container"
    why = (
        f"{kind} {container.name} has not run yet"
        if latest is None
        else f"{kind} {container.name} is {latest.state.name.lower()} with exit code {latest.exit_code}"
    )
    return Decision(action=StartContainer(container=container, attempt=attempt, init=init, previous=latest), why=why)


def _again(container: Container, latest: ContainerView, clock: _Clock) -> Decision:
    allowed = clock.held.get(container.name, 0.0)
    if allowed > clock.now:
        return Decision(action=clock.wait(allowed), why=f"init container {container.name} is in back-off")
    action = StartContainer(container=container, attempt=latest.attempt + 1, init=True, previous=latest)
    return Decision(action=action, why=f"init container {container.name} has not run in this sandbox yet")


def _restarts(pod: Pod, view: ContainerView) -> bool:
    """Return whether a container in this state is to run again."""
    if view.state is not State.EXITED:
        return True
    if pod.spec.restart_policy == "OnFailure":
        return view.exit_code != 0
    return pod.spec.restart_policy == "Always"


def _main_started(pod: Pod, observed: Observed) -> bool:
    return any(observed.latest(container.name) is not None for container in pod.spec.containers)


def _done(pod: Pod, observed: Observed) -> Decision | None:
    """Return how the pod ended, or ``None`` if something of it runs or will run."""
    if pod.spec.restart_policy == "Never":
        for container in pod.spec.init_containers:
            latest = observed.latest(container.name)
            failed = latest is not None and latest.state is State.EXITED and latest.exit_code != 0
            if failed and not is_sidecar(container):
                return Decision(action=Finish(failed=True), why=f"init container {container.name} failed")
    views = [observed.latest(container.name) for container in pod.spec.containers]
    ended = [view for view in views if view is not None and view.state is State.EXITED and not _restarts(pod, view)]
    if len(ended) < len(views):
        return None
    failures = [view.name for view in ended if view.exit_code != 0]
    why = f"container {failures[0]} failed" if failures else "all its containers ended well"
    return Decision(action=Finish(failed=bool(failures)), why=why)
