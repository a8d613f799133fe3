"""What to do next for a pod: a pure function of what is wanted and what is there.

Level-triggered: it is asked in every cycle with everything that is known, never with an event. The answer is the
actions that can be taken now, in the order in which a kubelet 1.36 takes them, and a sentence that says why, which goes
to the log. Taking the first of them alone and asking again is always right, and so is leaving out a ``KillContainer``
that takes long and noting it in :attr:`WorkerState.killed` meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from podkeep.agent.backoff import HEALTHY_AFTER
from podkeep.agent.convert.container import container_hash
from podkeep.agent.observed import ContainerView, Observed, SandboxView, State
from podkeep.agent.pod.actions import (
    NO_STATE,
    Action,
    ContainerKind,
    CreateSandbox,
    Decision,
    Finish,
    KillContainer,
    KillReason,
    ResetContainer,
    Resize,
    StartContainer,
    StopSandbox,
    Wait,
    WorkerState,
)
from podkeep.agent.pod.restarts import restarts_after, restarts_all, restarts_when_killed
from podkeep.agent.probes.model import NO_PROBES
from podkeep.api.containers import Container, EphemeralContainer, ResourceRequirements, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import ContainerStatus, PodStatus
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import quantity

_NS = 1e9
DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"
ALL_RESTARTING = "AllContainersRestarting"
RESET_MESSAGE = "killing"
"""Of the event about a container that runs when all are started again, in a kubelet's words."""
Delay = Callable[[str], float]
"""Seconds to wait after the last exit of a container before it is started again."""
NOBODY: Mapping[str, float] = {}


def decide(
    pod: Pod,
    observed: Observed,
    *,
    now: float,
    since: float,
    delay: Delay,
    held: Mapping[str, float] = NOBODY,
    state: WorkerState = NO_STATE,
) -> Decision:
    """Return what to do next for ``pod``.

    :param pod: as it was allocated: a resize that the node has not accepted is not in it.
    :param now: seconds since 1970, by a steady clock.
    :param since: when the pod became active, in the same unit; its deadline counts from there.
    :param held: containers whose start failed, and before which time, in the same unit, they are not tried again.
    """
    before = _Before(pod, observed, state)
    done = _done(pod, before)
    if done is not None:
        return done
    spec = pod.spec
    overdue = None if spec.active_deadline_seconds is None else since + spec.active_deadline_seconds
    if overdue is not None and overdue <= now:
        return Decision(
            actions=(Finish(failed=True, reason=DEADLINE_EXCEEDED, message=DEADLINE_MESSAGE),),
            why=f"it has been active for {spec.active_deadline_seconds} s",
        )
    reset = _reset(pod, observed)
    if reset:
        return Decision(actions=reset, why="a container ended in a way that restarts all")
    sandbox = _sandbox(pod, observed)
    if sandbox is not None:
        return sandbox
    return _Containers(pod, before, _Clock(now=now, deadline=overdue, delay=delay, held=held)).decide()


def reported(status: PodStatus) -> tuple[ContainerStatus, ...]:
    return (*status.init_container_statuses, *status.container_statuses, *status.ephemeral_container_statuses)


def restarting_all(pod: Pod, observed: Observed, previous: PodStatus) -> bool:
    """Return whether all containers are being removed to start again, by what ended or what was reported."""
    if any(item.type == ALL_RESTARTING and item.status == "True" for item in previous.conditions):
        return True
    before = {status.name: status.state.terminated for status in reported(previous)}
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        view, ended = observed.latest(container.name), before.get(container.name)
        if view is not None:
            code = view.exit_code if view.state is State.EXITED else None
        else:
            code = None if ended is None else ended.exit_code
        if code is not None and restarts_all(container, code):
            return True
    return False


class _Before:
    """What the runtime says of a pod, and what was last reported: by name, for it may have 10,000 containers."""

    def __init__(self, pod: Pod, observed: Observed, state: WorkerState) -> None:
        self.observed = observed
        self.state = state
        self._pod = pod
        self._previous = PodStatus() if state.previous is None else state.previous
        self._reported = {status.name: status for status in reversed(reported(self._previous))}

    def reported(self, name: str) -> ContainerStatus | None:
        return self._reported.get(name)

    @cached_property
    def restarts_all(self) -> bool:
        return restarting_all(self._pod, self.observed, self._previous)

    def next_attempt(self, name: str) -> int:
        """Return the number of the next attempt of a container, which is its restart count.

        Of a container that the runtime has forgotten, what was last reported counts. One that waits has been counted on
        already then.
        """
        latest = self.observed.latest(name)
        if latest is not None:
            return latest.attempt + 1
        before = self.reported(name)
        if before is None:
            return 0
        return before.restart_count + (1 if before.state.running or before.state.terminated else 0)


def as_container(ephemeral: EphemeralContainer) -> Container:
    """Return an ephemeral container without what only those have."""
    return Container(**{name: getattr(ephemeral, name) for name in Container.__struct_fields__})


class _Clock(FrozenStruct, kw_only=True):
    now: float
    deadline: float | None
    delay: Delay
    held: Mapping[str, float]

    def wait(self, *times: float) -> Wait:
        """Wait until the first of ``times``, or the pod's deadline if that is sooner."""
        moments = [time for time in (*times, self.deadline) if time is not None]
        return Wait(until=min(moments) if moments else None)


def _ended(pod: Pod, container: Container, before: _Before) -> int | None:
    """Return the exit code of a container that ended and does not run again; ``None`` of any other."""
    latest = before.observed.latest(container.name)
    if latest is None:
        code = _code_before(container, before)
    elif latest.state is State.EXITED and not _is_replaced(latest, before.state):
        code = latest.exit_code
    else:
        code = None
    return None if code is None or restarts_after(container, pod.spec, code) else code


def over(pod: Pod, observed: Observed, state: WorkerState) -> frozenset[str]:
    """Return the names of the containers that have ended for good: none of them runs again in the pod's sandbox."""
    before = _Before(pod, observed, state)
    found = {container.name for container in pod.spec.containers if _ended(pod, container, before) is not None}
    begun = any(observed.latest(container.name) is not None for container in pod.spec.containers)
    for container in pod.spec.init_containers:
        view = observed.latest(container.name)
        # One that is done may have been removed.
        done = begun if view is None else view.state is State.EXITED and (begun or view.exit_code == 0)
        if done and not is_sidecar(container):
            found.add(container.name)
    return frozenset(found)


def _code_before(container: Container, before: _Before) -> int | None:
    """Return how a container ended that the runtime has forgotten; one that was removed to start again has not."""
    status = before.reported(container.name)
    if status is None or status.state.terminated is None:
        return None
    return None if before.restarts_all else status.state.terminated.exit_code


def _is_replaced(view: ContainerView, state: WorkerState) -> bool:
    killed = state.killed.get(view.id)
    return killed is not None and killed.replace


def _done(pod: Pod, before: _Before) -> Decision | None:
    """Return how the pod ended, or ``None`` if something of it runs or will run."""
    for container in pod.spec.init_containers:
        if not is_sidecar(container) and _ended(pod, container, before):
            return Decision(actions=(Finish(failed=True),), why=f"init container {container.name} failed")
    codes = {container.name: _ended(pod, container, before) for container in pod.spec.containers}
    if any(code is None for code in codes.values()):
        return None
    failures = [name for name, code in codes.items() if code]
    why = f"container {failures[0]} failed" if failures else "all its containers ended well"
    return Decision(actions=(Finish(failed=bool(failures)),), why=why)


def _reset(pod: Pod, observed: Observed) -> tuple[Action, ...]:
    """Return what is removed when the end of a container restarts all; what triggered it comes last."""
    triggers: list[Action] = []
    others: list[Action] = []
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for view in observed.containers.get(container.name, ()):
            is_trigger = view.state is State.EXITED and restarts_all(container, view.exit_code)
            (triggers if is_trigger else others).append(ResetContainer(view=view))
    latest = (observed.latest(container.name) for container in (*pod.spec.containers, *pod.spec.init_containers))
    by_name = {container.name: container for container in (*pod.spec.containers, *pod.spec.init_containers)}
    asked = any(
        view is not None and view.state is State.EXITED and restarts_all(by_name[view.name], view.exit_code)
        for view in latest
    )
    return (*others, *triggers) if asked else ()


def _sandbox(pod: Pod, observed: Observed) -> Decision | None:
    """Return what is to be done about the sandbox, or ``None`` if the containers can be looked at."""
    sandbox = observed.sandbox
    if sandbox is None:
        return Decision(actions=(CreateSandbox(attempt=0),), why="it has no sandbox")
    left = [
        other
        for other in observed.sandboxes
        # A sandbox that is not ready may still hold containers that run: they are stopped first, so that no container
        # runs twice once the next sandbox is there.
        if (other is not sandbox and other.ready)
        or ((other is not sandbox or not other.ready) and _lives(observed, other))
    ]
    if left:
        reason = "is not ready" if left[0] is sandbox else "is not the newest"
        stops = tuple(StopSandbox(sandbox=other) for other in left)
        return Decision(actions=stops, why=f"sandbox {left[0].id[:12]} {reason}")
    if sandbox.ready:
        return None
    why = f"sandbox {sandbox.id[:12]} is not ready"
    created = [
        (container, view) for container in pod.spec.containers if (view := observed.latest(container.name)) is not None
    ]
    again = [
        view
        for item, view in created
        if view.state is not State.EXITED or restarts_after(item, pod.spec, view.exit_code)
    ]
    if pod.spec.restart_policy == "Never" and created and not again:
        # What ran does not run again, so nothing is started beside it in another sandbox.
        return Decision(actions=(Finish(failed=True),), why=why)
    return Decision(actions=(CreateSandbox(attempt=sandbox.attempt + 1),), why=why)


def _lives(observed: Observed, sandbox: SandboxView) -> bool:
    return any(view.state is not State.EXITED for view in observed.inside(sandbox))


class _Containers:
    """The decision about the containers of a pod whose sandbox is ready."""

    def __init__(self, pod: Pod, before: _Before, clock: _Clock) -> None:
        self._pod = pod
        self._before = before
        self._observed = before.observed
        self._state = before.state
        self._clock = clock
        self._kills: list[KillContainer] = []
        self._starts: list[StartContainer] = []
        self._resized: list[tuple[Container, ContainerView]] = []
        self._later: list[float] = []
        self._backing_off: list[str] = []
        self._why = ""

    def decide(self) -> Decision:
        ephemeral = self._ephemeral()
        initialized = self._init_containers()
        inits = self._allowed(self._starts)
        self._starts = []
        if initialized:
            for container in self._pod.spec.containers:
                self._container(container)
        self._older_attempts()
        mains = self._allowed(self._starts)
        resize = self._resize() if initialized or self._resized else ()
        actions: tuple[Action, ...] = (*self._kills, *self._allowed(ephemeral), *inits, *resize, *mains)
        backing_off = tuple(self._backing_off)
        if actions:
            return Decision(actions=actions, why=self._reason(actions[0]), backing_off=backing_off)
        default = "containers are in back-off" if self._later else "its containers run"
        return Decision(actions=(self._clock.wait(*self._later),), why=self._why or default, backing_off=backing_off)

    # ------------------------------------------------------------------------------------------------ which to start

    def _ephemeral(self) -> list[StartContainer]:
        """Ephemeral containers are started once, whether or not the pod is initialized."""
        return [
            StartContainer(
                container=as_container(item), attempt=0, kind="ephemeral container", target=item.target_container_name
            )
            for item in self._pod.spec.ephemeral_containers
            if self._observed.latest(item.name) is None and not self._ran_before(item.name)
        ]

    def _ran_before(self, name: str) -> bool:
        before = self._before.reported(name)
        return before is not None and (before.state.running is not None or before.state.terminated is not None)

    def _here(self, name: str) -> ContainerView | None:
        """Return the newest attempt if it is in this sandbox: what others prepared may be gone with theirs."""
        view = self._observed.latest(name)
        sandbox = self._observed.sandbox
        return view if view is not None and sandbox is not None and view.sandbox_id == sandbox.id else None

    def _init_containers(self) -> bool:
        """Note which init containers to start and kill; return whether the other containers may run.

        From the last to the first, since those that are done may have been removed; the first that is found says that
        all before it are done, and only sidecars among those are looked at.
        """
        inits = self._pod.spec.init_containers
        if not inits:
            return True
        initialized = any(
            (view := self._here(container.name)) is not None and view.state in {State.CREATED, State.RUNNING}
            for container in self._pod.spec.containers
        )
        done_before = initialized
        starts: list[int] = []
        for index in reversed(range(len(inits))):
            container, view = inits[index], self._here(inits[index].name)
            if view is None:
                if done_before and is_sidecar(container):
                    starts.append(index)
                continue
            if done_before and not is_sidecar(container):
                continue
            begins, ready = self._init_container(container, view)
            if begins:
                starts.append(index)
            if ready and index == len(inits) - 1:
                initialized = True
            elif ready and not done_before:
                starts.append(index + 1)
            done_before = True
        if not done_before:
            starts.append(0)
        self._starts = [self._start(inits[index], "init container") for index in sorted(starts)]
        return initialized

    def _init_container(self, container: Container, view: ContainerView) -> tuple[bool, bool]:
        """Return whether an init container is started again, and whether what comes after it may run."""
        if view.state is State.CREATED:
            return True, False
        if view.state is State.EXITED:
            if is_sidecar(container) or view.exit_code != 0:
                return True, False
            return False, True
        if view.state is State.UNKNOWN:
            return self._kill_unknown(container, view, "Init container"), False
        if not is_sidecar(container):
            self._note_resize(container, view)
            self._why = self._why or f"init container {container.name} runs"
            return False, False
        return False, self._sidecar(container, view)

    def _sidecar(self, container: Container, view: ContainerView) -> bool:
        """Look at a sidecar that runs; return whether it has started."""
        result = self._state.probes.get(view.id, NO_PROBES)
        if container.startup_probe is not None and not result.started:
            if result.started is False:
                self._kill(container, view, "StartupProbe", f"Init container {container.name} failed startup probe")
            self._why = self._why or f"init container {container.name} has not started yet"
            return False
        if _changed(container, view):
            self._kill(container, view, "Definition", f"Init container {container.name} definition changed")
        elif container.liveness_probe is not None and result.live is False:
            self._kill(container, view, "LivenessProbe", f"Init container {container.name} failed liveness probe")
        else:
            self._note_resize(container, view)
        return True

    def _container(self, container: Container) -> None:
        view = self._observed.latest(container.name)
        if view is None:
            # The runtime has forgotten it, but what was last reported counts: what has ended for good is not started
            # once more.
            if _ended(self._pod, container, self._before) is None:
                self._starts.append(self._start(container, "container"))
        elif view.state is State.UNKNOWN:
            if self._kill_unknown(container, view, "Container"):
                self._starts.append(self._start(container, "container"))
        elif view.state is not State.RUNNING:
            again = view.state is State.CREATED or _is_replaced(view, self._state)
            if again or restarts_after(container, self._pod.spec, view.exit_code):
                self._starts.append(self._start(container, "container"))
        else:
            self._running(container, view)

    def _running(self, container: Container, view: ContainerView) -> None:
        result = self._state.probes.get(view.id, NO_PROBES)
        reason: KillReason
        if _changed(container, view):
            reason, message = "Definition", f"Container {container.name} definition changed"
        elif container.liveness_probe is not None and result.live is False:
            reason, message = "LivenessProbe", f"Container {container.name} failed liveness probe"
        elif container.startup_probe is not None and result.started is False:
            reason, message = "StartupProbe", f"Container {container.name} failed startup probe"
        else:
            self._note_resize(container, view)
            return
        if reason == "Definition" or restarts_when_killed(container, self._pod.spec):
            message += ", will be restarted"
        self._kill(container, view, reason, message)

    def _older_attempts(self) -> None:
        """Kill what runs beside a newer attempt: a start that answered too late may have gone on to its end."""
        for container in (*self._pod.spec.init_containers, *self._pod.spec.containers):
            for view in self._observed.containers.get(container.name, ())[1:]:
                if view.state is State.RUNNING:
                    message = f"Container {container.name} has a newer attempt, attempt {view.attempt} is stopped"
                    self._kill(container, view, "Replaced", message)

    # ------------------------------------------------------------------------------------------------------- actions

    def _kill_unknown(self, container: Container, view: ContainerView, what: str) -> bool:
        """Kill a container in an unknown state before it is started again; return whether that was done."""
        # The runtime may say UNKNOWN for ever: one kill is tried, and then the container is started again.
        if view.id in self._state.killed:
            return True
        # Nobody knows whether it runs: without this two attempts could run side by side (kubelet, computePodActions).
        message = f'{what} is in "unknown" state, try killing it before restart'
        self._kill(container, view, "Unknown", message)
        return False

    def _kill(self, container: Container, view: ContainerView, reason: KillReason, message: str) -> None:
        if view.id in self._state.killed:
            self._why = self._why or f"container {container.name} is being stopped"
            return
        replace = reason in {"Definition", "Resize"}
        grace = kill_grace(self._pod, container, reason)
        self._kills.append(
            KillContainer(
                view=view,
                container=container,
                reason=reason,
                message=message,
                grace=grace,
                replace=replace,
                # Its pod never saw it run, and a hook would reach the newer attempt: by HTTP, or by what they share.
                hook=reason != "Replaced",
            )
        )

    def _start(self, container: Container, kind: ContainerKind) -> StartContainer:
        attempt, latest = self._before.next_attempt(container.name), self._observed.latest(container.name)
        return StartContainer(container=container, attempt=attempt, kind=kind, previous=latest)

    def _note_resize(self, container: Container, view: ContainerView) -> None:
        """Note that a running container gets other resources, or kill it if that takes a restart."""
        # One that is being stopped gets the resources with its next attempt; an update would race with its end.
        if self._state.actuated is None or view.id in self._state.killed:
            return
        # If it is not known what it was given, it is updated, but never restarted for it.
        actuated = self._state.actuated.get(container.name)
        wanted = _amounts(container.resources, self._pod.spec.resources)
        had = None if actuated is None else _amounts(actuated, self._state.actuated_pod)
        if wanted == had and actuated is not None and actuated.classes == container.resources.classes:
            return
        changed = set() if had is None else {name for name, kind in wanted if wanted[name, kind] != had[name, kind]}
        policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
        if any(policies.get(name) == "RestartContainer" for name in changed):
            self._kill(container, view, "Resize", f"Container {container.name} resize requires restart")
        else:
            self._resized.append((container, view))

    def _resize(self) -> tuple[Resize, ...]:
        own, actuated = self._pod.spec.resources or ResourceRequirements(), self._state.actuated_pod
        had = actuated or ResourceRequirements()
        changed = own.classes != had.classes or _amounts(own, None) != _amounts(had, None)
        pod_level = self._state.actuated is not None and changed
        return (Resize(containers=tuple(self._resized)),) if self._resized or pod_level else ()

    # --------------------------------------------------------------------------------------------------------- times

    def _allowed(self, starts: list[StartContainer]) -> list[StartContainer]:
        """Return what may be started now; an init container that may not yet holds up everything after it."""
        allowed = []
        for start in starts:
            moment = self._not_before(start)
            if moment <= self._clock.now:
                allowed.append(start)
                continue
            self._later.append(moment)
            # A start that failed waits with the reason of its failure (ErrImagePull), not with CrashLoopBackOff.
            if moment > self._clock.held.get(start.container.name, 0.0):
                self._backing_off.append(start.container.name)
            # Init containers run one after the other: the ones behind must not overtake one that waits.
            if start.init and not is_sidecar(start.container):
                self._why = f"init container {start.container.name} is in back-off"
                break
        return allowed

    def _not_before(self, start: StartContainer) -> float:
        name, latest = start.container.name, start.previous
        held = self._clock.held.get(name, 0.0)
        # An init container that ended in an earlier sandbox is due again in the new one: that is no crash, so no
        # back-off.
        if latest is None or latest.state is not State.EXITED or (start.init and self._here(name) is None):
            return held
        if self._state.ran.get(latest.id, latest.ran) > HEALTHY_AFTER:
            return held
        delay = self._clock.delay(name)
        if latest.id in self._state.killed:
            # The agent ended it, so what counts is how long it had run (kubelet: the exit before is looked at).
            attempts = self._observed.containers.get(name, ())
            before = self._ended_at(attempts[1]) if len(attempts) > 1 else 0.0
            if before + delay <= self._ended_at(latest):
                return held
        return max(held, self._ended_at(latest) + delay)

    def _ended_at(self, view: ContainerView) -> float:
        return self._state.ended.get(view.id, view.finished_at / _NS)

    def _reason(self, action: Action) -> str:
        if isinstance(action, KillContainer):
            return action.message[0].lower() + action.message[1:]
        if isinstance(action, StartContainer):
            name, before = f"{action.kind} {action.container.name}", action.previous
            if before is None:
                return f"{name} has not run yet"
            if action.init and self._here(action.container.name) is None:
                return f"{name} has not run in this sandbox yet"
            return f"{name} is {before.state.name.lower()} with exit code {before.exit_code}"
        return "its resources change"


def kill_grace(pod: Pod, container: Container, reason: KillReason) -> int:
    """Return the grace period of a container in seconds: of the pod's deletion, else of the probe, else of the pod."""
    if pod.metadata.deletion_grace_period_seconds is not None:
        return pod.metadata.deletion_grace_period_seconds
    probes = {"LivenessProbe": container.liveness_probe, "StartupProbe": container.startup_probe}
    probe = probes.get(reason)
    if probe is not None and probe.termination_grace_period_seconds is not None:
        return probe.termination_grace_period_seconds
    return pod.spec.termination_grace_period_seconds or 0


def _changed(container: Container, view: ContainerView) -> bool:
    """Return whether a running container is not the one that is wanted; without a hash nothing is known about it."""
    return bool(view.hash) and view.hash != container_hash(container)


def _amounts(own: ResourceRequirements, outer: ResourceRequirements | None) -> dict[tuple[str, str], int]:
    """Return a container's CPU in thousandths and memory in bytes; limits of the pod hold where it has none."""
    limits = dict(own.limits)
    for name, amount in (outer.limits if outer is not None else {}).items():
        limits.setdefault(name, amount)
    read = {"cpu": quantity.milli, "memory": quantity.units}
    return {
        (name, kind): read[name](amounts[name]) if name in amounts else 0
        for kind, amounts in (("limits", limits), ("requests", own.requests))
        for name in read
    }
