"""The status of a pod (v1.PodStatus) from what is wanted and what was observed. Pure."""

from __future__ import annotations

from collections.abc import Set

import msgspec

from podkeep.agent.events import PodRejected
from podkeep.agent.network.addresses import by_family
from podkeep.agent.observed import Observed, State
from podkeep.agent.pod.plan import as_container
from podkeep.agent.pod.status.conditions import DISRUPTION_TARGET, conditions, with_times
from podkeep.agent.pod.status.containers import ContainerStatuses
from podkeep.agent.pod.status.facts import StatusFacts, Waiting
from podkeep.agent.pod.status.phase import at_its_end, phase
from podkeep.agent.resources import requests
from podkeep.agent.resources.qos import qos_class
from podkeep.api.containers import ResourceRequirements, is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.status import HostIP, PodCondition, PodIP, PodPhase, PodStatus
from podkeep.base.text import rfc3339

__all__ = ["StatusFacts", "Waiting", "exit_code", "pod_status", "rejected"]

_ENDS = frozenset({"Succeeded", "Failed"})


def pod_status(pod: Pod, observed: Observed, facts: StatusFacts) -> PodStatus:
    """Return the status of ``pod``.

    A terminal phase stays, restart counts never go down, and conditions of others are kept.
    """
    previous = facts.previous or pod.status
    statuses = ContainerStatuses(pod, observed, facts, previous)
    inits, mains = statuses.init(), statuses.main()
    ephemeral = statuses.ephemeral([as_container(item) for item in pod.spec.ephemeral_containers])
    ips = _pod_ips(pod, observed, facts, previous)
    status = PodStatus(
        observed_generation=max(pod.metadata.generation, previous.observed_generation),
        host_ip=next(iter(facts.host_ips), ""),
        host_ips=tuple(HostIP(ip=address) for address in facts.host_ips),
        pod_ip=next(iter(ips), ""),
        pod_ips=tuple(PodIP(ip=address) for address in ips),
        start_time=previous.start_time or rfc3339.of_nanoseconds(int(facts.since * 1e9)),
        init_container_statuses=inits,
        container_statuses=mains,
        ephemeral_container_statuses=ephemeral,
        qos_class=pod.status.qos_class or qos_class(pod),
        allocated_resources=_texts(requests.pod_requests(pod)),
        resources=_pod_resources(pod),
        # Set by others and kept as they are.
        nominated_node_name=previous.nominated_node_name,
        resource_claim_statuses=previous.resource_claim_statuses,
        extended_resource_claim_status=previous.extended_resource_claim_status,
    )
    status = _with_phase(pod, observed, facts, previous, status, statuses.replaced())
    if facts.finished and not _anything_runs(observed):
        status = at_its_end(pod, status)
    held = _ends_early(pod, observed, status)
    found = conditions(pod, observed, status, previous, _own_conditions(facts, previous, status, held=held))
    now = rfc3339.of_nanoseconds(int(facts.now * 1e9))
    if held:
        before = {"phase": previous.phase or "Pending", "reason": previous.reason, "message": previous.message}
        status = msgspec.structs.replace(status, **before)
    return msgspec.structs.replace(status, conditions=with_times(found, previous, now))


def rejected(pod: Pod, rejection: PodRejected, now: float) -> PodStatus:
    """Return the status of a pod that the node did not take on: as much as a kubelet says of it.

    :param now: seconds since 1970, when it was looked at, which is its start time.
    """
    return PodStatus(
        start_time=pod.status.start_time or rfc3339.of_nanoseconds(int(now * 1e9)),
        observed_generation=pod.metadata.generation,
        phase="Failed",
        reason=rejection.reason,
        message=rejection.message,
        qos_class=qos_class(pod),
    )


def exit_code(pod: Pod, observed: Observed) -> int:
    """Return how the pod ended: 0, or the exit code of the container that failed first (128+n: killed by signal n)."""
    beside = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    beside |= {container.name for container in pod.spec.ephemeral_containers}
    latest = (views[0] for name, views in observed.containers.items() if views and name not in beside)
    failures = [view for view in latest if view.state is State.EXITED and view.exit_code != 0]
    if not failures:
        return 0
    return min(failures, key=lambda view: view.finished_at).exit_code


def _with_phase(
    pod: Pod, observed: Observed, facts: StatusFacts, previous: PodStatus, status: PodStatus, replaced: Set[str]
) -> PodStatus:
    """Return ``status`` with a phase, and the reason and message of that."""
    now = phase(
        pod,
        status.init_container_statuses,
        status.container_statuses,
        terminal=facts.finished,
        initialized=_has_begun(pod, observed),
        replaced=replaced,
    )
    reason, message = facts.reason, facts.text
    if reason or (facts.finished and facts.failed and not _anything_runs(observed)):
        now = "Failed"
    now = end_of(pod.status.phase) or end_of(previous.phase if now not in _ENDS else None) or now
    if not reason and now == previous.phase:
        reason, message = previous.reason or pod.status.reason, previous.message or pod.status.message
    return msgspec.structs.replace(status, phase=now, reason=reason, message=message)


def end_of(before: PodPhase | None) -> PodPhase | None:
    """Return a phase that was reported and cannot be left any more."""
    return before if before in _ENDS else None


def _ends_early(pod: Pod, observed: Observed, status: PodStatus) -> bool:
    """Return whether the pod has an end that must not be told yet, since something of it still runs.

    Who sees the end of a pod takes what it had for free: a scheduler its resources, a Job its place (kubelet,
    mergePodStatus). Its conditions say already that it is not ready.
    """
    return status.phase in _ENDS and pod.status.phase not in _ENDS and _anything_runs(observed)


def _own_conditions(
    facts: StatusFacts, previous: PodStatus, status: PodStatus, *, held: bool
) -> tuple[PodCondition, ...]:
    given = facts.conditions
    if held:
        # It comes with the end.
        given = tuple(item for item in given if item.type != DISRUPTION_TARGET)
    if status.phase in _ENDS:
        given = tuple(item for item in given if item.type == DISRUPTION_TARGET)
    if not any(item.type == DISRUPTION_TARGET for item in given):
        # It was set once, when the pod was chosen to go.
        given += tuple(item for item in previous.conditions if item.type == DISRUPTION_TARGET)
    return given


def _anything_runs(observed: Observed) -> bool:
    return any(view.state is State.RUNNING for views in observed.containers.values() for view in views[:1])


def _has_begun(pod: Pod, observed: Observed) -> bool:
    """Return whether one of the containers proper has been made in this sandbox."""
    sandbox = observed.sandbox
    names = {container.name for container in pod.spec.containers}
    return sandbox is not None and any(view.name in names for view in observed.inside(sandbox))


def _pod_ips(pod: Pod, observed: Observed, facts: StatusFacts, previous: PodStatus) -> tuple[str, ...]:
    """Return the pod's addresses, those of the node's first family first; a pod keeps the last it had."""
    if pod.spec.host_network:
        return facts.host_ips
    ips = observed.sandbox.ips if observed.sandbox is not None else ()
    if not ips:
        return tuple(item.ip for item in previous.pod_ips)
    return by_family(ips, facts.host_ips)


def _pod_resources(pod: Pod) -> ResourceRequirements:
    claims = pod.spec.resources.claims if pod.spec.resources is not None else ()
    return ResourceRequirements(
        requests=_texts(requests.pod_requests(pod)), limits=_texts(requests.pod_limits(pod)), claims=claims
    )


def _texts(amounts: requests.Amounts) -> dict[str, str]:
    return {name: requests.text(name, amount) for name, amount in amounts.items()}
