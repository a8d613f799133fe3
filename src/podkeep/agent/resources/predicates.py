"""May a pod run on this node: what a kubelet checks of every new pod, over facts about the node and what runs. Pure.

Owns the reasons and messages, which are upstream's (pkg/kubelet/lifecycle, eviction, sysctl, nodeshutdown), and which
pods a critical pod takes the place of. Does not own what needs the runtime (classes, handlers: ``pod/admission.py``),
or the facts (``node.py``, ``node_status``, ``eviction``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from podkeep.agent.resources import critical, preemption, requests
from podkeep.agent.resources.node_selection import NO_EXECUTE, NO_SCHEDULE, Taint, selects, tolerates, untolerated
from podkeep.agent.resources.qos import qos_class
from podkeep.api.class_resources import containers
from podkeep.api.containers import is_sidecar
from podkeep.api.pod import Pod
from podkeep.api.validation.objects import SAFE_SYSCTLS
from podkeep.base.frozen import FrozenStruct

EVICTED = "Evicted"
NODE_SHUTDOWN = "NodeShutdown"
SYSCTL_FORBIDDEN = "SysctlForbidden"
UNEXPECTED = "UnexpectedAdmissionError"
MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE = "MemoryPressure", "DiskPressure", "PIDPressure"
_OS = "linux"
_OS_LABEL = "kubernetes.io/os"
_MEMORY_TAINT = Taint("node.kubernetes.io/memory-pressure", "", NO_SCHEDULE)
_ANY_ADDRESS = "0.0.0.0"


class NodeFacts(FrozenStruct, kw_only=True):
    """What admission knows of the node. ``allocatable`` in the units of ``requests``; without a name: not limited."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Taint] = ()
    allocatable: Mapping[str, int] = msgspec.field(default_factory=dict)
    conditions: Sequence[str] = ()
    """Those of node pressure that hold, in the order in which a kubelet lists them (eviction manager)."""
    supplemental_groups_policy: bool = True
    """Whether the runtime keeps to ``supplementalGroupsPolicy: Strict`` (CRI: RuntimeFeatures)."""
    allowed_unsafe_sysctls: Sequence[str] = ()
    """Names, or prefixes that end with ``*``."""
    app_armor: bool = True
    """Whether the kernel enforces AppArmor profiles."""
    shutting_down: bool = False


class Rejection(FrozenStruct, kw_only=True):
    """Why the node does not take a pod on: the reason and message of its event and, after a prefix, of its status."""

    reason: str
    message: str


class Preempt(FrozenStruct, kw_only=True):
    """The pod may run once these pods are ended (``preemption.MESSAGE``); it is critical and there is no room."""

    pods: tuple[Pod, ...]
    resource: str
    """What there was not enough of, for the metric."""


class Insufficient(NamedTuple):
    """A resource of which there is not enough."""

    resource: str
    requested: int
    used: int
    capacity: int

    def rejection(self) -> Rejection:
        """Return what a pod that must wait is told."""
        return Rejection(
            reason=f"OutOf{self.resource}",
            message=f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}",
        )


class HostPort(NamedTuple):
    """A port of the node that a pod wants; ``address`` 0.0.0.0: on every address."""

    protocol: str
    address: str
    port: int


def admit(pod: Pod, others: Sequence[Pod], facts: NodeFacts) -> Rejection | Preempt | None:
    """Decide whether ``pod`` may run beside ``others``.

    :param others: the pods that are taken on and have not ended, with the resources they were granted.
    :returns: why not, or which pods are to be ended first, or nothing.
    """
    found = _pressure(pod, facts) or _sysctls(pod, facts) or _operating_system(pod) or _groups_policy(pod, facts)
    if found is not None:
        return found
    # Upstream's order: too few resources are told before what else is wrong, so that messages are the same.
    unfit = insufficient(pod, others, facts.allocatable)
    if unfit and not critical.is_critical(pod):
        return unfit[0].rejection()
    found = _predicates(pod, others, facts) or _app_armor(pod, facts) or _shutdown(facts)
    if found is not None:
        return found
    # A critical pod takes the place of others, but not as long as it cannot run for another reason.
    return _preempt(pod, others, unfit) if unfit else None


def insufficient(pod: Pod, others: Sequence[Pod], allocatable: Mapping[str, int]) -> list[Insufficient]:
    """Return what there is not enough of for ``pod`` beside ``others``, in a kubelet's order."""
    found = []
    pods = allocatable.get(requests.PODS)
    if pods is not None and len(others) + 1 > pods:
        found.append(Insufficient(requests.PODS, 1, len(others), pods))
    wanted = requests.pod_requests(pod)
    if not any(wanted.values()):
        return found
    used = requests.total(others)
    first = (requests.CPU, requests.MEMORY, requests.EPHEMERAL_STORAGE)
    for name in (*first, *sorted(wanted.keys() - set(first))):
        if not wanted.get(name):
            continue
        capacity = allocatable.get(name)
        if capacity is None:
            if name in first or _is_extended(name):
                continue  # not counted here, or a resource of the cluster that the node does not know
            capacity = 0
        if wanted[name] > capacity - used.get(name, 0):
            found.append(Insufficient(name, wanted[name], used.get(name, 0), capacity))
    return found


def beyond_capacity(pod: Pod, allocatable: Mapping[str, int]) -> str:
    """Return why the node could never give a pod what it asks for, in a kubelet's words; empty if it could, alone."""
    wanted = requests.pod_requests(pod)
    for name in (requests.MEMORY, requests.CPU):
        capacity = allocatable.get(name)
        if capacity is not None and wanted.get(name, 0) > capacity:
            return f"Node didn't have enough capacity: {name}, requested: {wanted[name]}, capacity: {capacity}"
    return ""


def host_ports(pod: Pod) -> frozenset[HostPort]:
    """Return the ports of the node that a pod wants for as long as it runs: those of init containers do not count."""
    sidecars = [container for container in pod.spec.init_containers if is_sidecar(container)]
    return frozenset(
        HostPort(port.protocol or "TCP", port.host_ip or _ANY_ADDRESS, port.host_port)
        for container in (*sidecars, *pod.spec.containers)
        for port in container.ports
        if port.host_port > 0
    )


def conflict(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> HostPort | None:
    """Return a wanted port that is taken, or nothing."""
    by_port: dict[tuple[str, int], set[str]] = {}
    for item in taken:
        by_port.setdefault((item.protocol, item.port), set()).add(item.address)
    for item in sorted(wanted):
        addresses = by_port.get((item.protocol, item.port), set())
        # A port on every address collides with one on any address, and the other way round.
        if addresses and (item.address == _ANY_ADDRESS or not addresses.isdisjoint({item.address, _ANY_ADDRESS})):
            return item
    return None


def _pressure(pod: Pod, facts: NodeFacts) -> Rejection | None:
    if not facts.conditions or critical.is_critical(pod):
        return None
    if list(facts.conditions) == [MEMORY_PRESSURE]:
        tolerated = any(tolerates(item, _MEMORY_TAINT) for item in pod.spec.tolerations)
        if qos_class(pod) != "BestEffort" or tolerated:
            return None
    return Rejection(reason=EVICTED, message=f"The node had condition: [{' '.join(facts.conditions)}]. ")


def _sysctls(pod: Pod, facts: NodeFacts) -> Rejection | None:
    security = pod.spec.security_context
    for item in () if security is None else security.sysctls:
        problem = _sysctl_problem(item.name.replace("/", "."), pod, facts.allowed_unsafe_sysctls)
        if problem:
            return Rejection(reason=SYSCTL_FORBIDDEN, message=f"forbidden sysctl: {problem}")
    return None


def _sysctl_problem(name: str, pod: Pod, allowed: Sequence[str]) -> str:
    by_prefix = any(name.startswith(item[:-1]) for item in allowed if item.endswith("*"))
    if name not in SAFE_SYSCTLS and name not in allowed and not by_prefix:
        return f'"{name}" not allowlisted'
    if name.startswith("net.") and pod.spec.host_network:
        return f'"{name}" not allowed with host net enabled'
    if not name.startswith("net.") and pod.spec.host_ipc:
        return f'"{name}" not allowed with host ipc enabled'
    return ""


def _operating_system(pod: Pod) -> Rejection | None:
    # The pod's own label, as upstream reads it.
    if pod.metadata.labels.get(_OS_LABEL, _OS) != _OS:
        return Rejection(
            reason="PodOSSelectorNodeLabelDoesNotMatch",
            message="Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if pod.spec.os is not None and pod.spec.os.name != _OS:
        return Rejection(
            reason="PodOSNotSupported", message="Failed to admit pod as the OS field doesn't match node OS"
        )
    return None


def _groups_policy(pod: Pod, facts: NodeFacts) -> Rejection | None:
    security = pod.spec.security_context
    if security is None or security.supplemental_groups_policy != "Strict" or facts.supplemental_groups_policy:
        return None
    return Rejection(
        reason="SupplementalGroupsPolicyNotSupported",
        message="SupplementalGroupsPolicy=Strict is not supported in this node",
    )


def _predicates(pod: Pod, others: Sequence[Pod], facts: NodeFacts) -> Rejection | None:
    if not selects(pod.spec, facts.name, facts.labels):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.spec.node_name not in ("", facts.name):
        return _failed("NodeName", "node(s) didn't match the requested node name")
    wanted = host_ports(pod)
    if wanted and conflict(wanted, (port for other in others for port in host_ports(other))) is not None:
        return _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if not critical.is_static(pod) and untolerated(facts.taints, pod.spec.tolerations, [NO_EXECUTE]) is not None:
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def _failed(predicate: str, why: str) -> Rejection:
    return Rejection(reason=predicate, message=f"Predicate {predicate} failed: {why}")


def _preempt(pod: Pod, others: Sequence[Pod], unfit: Sequence[Insufficient]) -> Rejection | Preempt:
    needed = {item.resource: item.requested - (item.capacity - item.used) for item in unfit}
    chosen = preemption.choose(pod, others, needed)
    if chosen is None:
        listed = "".join(f"(res: {name}, q: {value}), " for name, value in preemption.missing(pod, others, needed))
        return Rejection(
            reason=UNEXPECTED,
            message="Unexpected error while attempting to recover from admission failure: preemption: error finding a "
            f"set of pods to preempt: no set of running pods found to reclaim resources: [{listed}]",
        )
    return Preempt(pods=chosen, resource=unfit[0].resource)


def _app_armor(pod: Pod, facts: NodeFacts) -> Rejection | None:
    profiles = [None if pod.spec.security_context is None else pod.spec.security_context.apparmor_profile]
    profiles += [
        None if container.security_context is None else container.security_context.apparmor_profile
        for _, container in containers(pod.spec)
    ]
    if facts.app_armor or not any(item is not None and item.type != "Unconfined" for item in profiles):
        return None
    return Rejection(reason="AppArmor", message="Cannot enforce AppArmor: AppArmor is not enabled on the host")


def _shutdown(facts: NodeFacts) -> Rejection | None:
    if not facts.shutting_down:
        return None
    return Rejection(reason=NODE_SHUTDOWN, message="Pod was rejected as the node is shutting down.")


def _is_extended(name: str) -> bool:
    """Return whether a resource is one that a device plugin, or somebody outside, counts."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")
