"""Where a pod may run: filters and scores over what nodes have and what runs there (kube-scheduler's default plugins).

Pure. Not here are topology spread, volumes' topology and preemption: a pod that does not fit waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from podkeep.api.class_resources import DEFAULT_CLASS, annotated
from podkeep.apiserver.admission.pod_specs import containers
from podkeep.apiserver.kinds.pods.resources import aggregate, is_infeasible, is_pod_level, with_actual
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.selectors import LabelSelector, Requirement
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text import quantity

Fields: TypeAlias = Mapping[str, Any]

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
HOSTNAME = "kubernetes.io/hostname"
NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "PreferNoSchedule", "NoExecute"
_ANY = "0.0.0.0"
_TERMINAL = ("Succeeded", "Failed")
_DEFAULTS = {"cpu": 100, "memory": 200 << 20}
"""What a pod counts as in scores if it asks for nothing, in thousandths of a CPU and in bytes."""
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!", "Gt": "gt", "Lt": "lt"}
_TAINT_WEIGHT, _AFFINITY_WEIGHT, _MAX_SCORE = 3, 2, 100


class HostPort(NamedTuple):
    """A port of the node."""

    protocol: str
    address: str
    port: int


class Taint(NamedTuple):
    """A taint of a node."""

    key: str
    value: str
    effect: str


class ClassRequest(NamedTuple):
    """A class (KEP-3008) that a pod as a whole, or a container of it, asks for."""

    level: str
    type: str
    name: str


class AffinityTerm(FrozenStruct):
    """Pods that a pod wants to run beside, or not: by labels and namespace, on nodes that share a label's value."""

    topology_key: str
    selector: LabelSelector | None
    namespaces: frozenset[str] | None
    """None: every namespace."""

    def matches(self, pod: PodNeeds) -> bool:
        """Tell whether a pod is meant."""
        if self.selector is None or (self.namespaces is not None and pod.namespace not in self.namespaces):
            return False
        return self.selector.matches(pod.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeeds:
    """What matters about a pod. ``requests`` are in thousandths of a CPU, and in units of everything else."""

    namespace: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    ports: frozenset[HostPort]
    classes: tuple[ClassRequest, ...]
    affinity: tuple[AffinityTerm, ...]
    anti_affinity: tuple[AffinityTerm, ...]
    spec: Fields = field(compare=False)


class NodeState(FrozenStruct, kw_only=True):
    """What matters about a node, in the units of :class:`PodNeeds`."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Mapping[str, int]
    classes: frozenset[ClassRequest]


@dataclass(slots=True)
class Usage:
    """What runs on a node."""

    pods: dict[Any, PodNeeds] = field(default_factory=dict)
    exclusive: dict[Any, PodNeeds] = field(default_factory=dict)
    """Those that keep others away."""
    requests: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)
    ports: Counter[HostPort] = field(default_factory=Counter)

    def add(self, key: object, pod: PodNeeds) -> None:
        # A pod that has changed counts once.
        self.remove(key)
        self.pods[key] = pod
        if pod.anti_affinity:
            self.exclusive[key] = pod
        self._count(pod, 1)

    def remove(self, key: object) -> None:
        """Count a pod no more; nothing happens if it was not."""
        if (pod := self.pods.pop(key, None)) is not None:
            self.exclusive.pop(key, None)
            self._count(pod, -1)

    def has_more(self, key: object, pod: PodNeeds) -> bool:
        """Tell whether a pod was counted, and with more of anything than ``pod`` takes."""
        before = self.pods.get(key)
        return before is not None and any(pod.requests.get(name, 0) < had for name, had in before.requests.items())

    def _count(self, pod: PodNeeds, sign: int) -> None:
        for name, amount in pod.requests.items():
            self.requests[name] += sign * amount
        for name, least in _DEFAULTS.items():
            self.scored[name] += sign * (pod.requests.get(name, 0) or least)
        for port in pod.ports:
            self.ports[port] += sign


class Place(NamedTuple):
    """A node and what runs there."""

    node: NodeState
    usage: Usage


# What is read of pods and nodes


@lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """Return a quantity of a resource as a number: CPUs in thousandths, anything else in units, rounded up."""
    return quantity.milli(text) if name == "cpu" else quantity.units(text)


def is_terminal(pod: Fields) -> bool:
    return pod.get("status", {}).get("phase") in _TERMINAL


def needs(pod: Fields, *, classes: bool) -> PodNeeds:
    """Return what matters about a pod. ``classes`` tells whether the gate ``ClassResources`` is on."""
    metadata, spec = pod["metadata"], pod.get("spec", {})
    affinity = spec.get("affinity", {})
    namespace = metadata.get("namespace", "")
    return PodNeeds(
        namespace=namespace,
        labels=metadata.get("labels", {}),
        requests=_requests(spec),
        ports=frozenset(_ports(spec)),
        classes=tuple(dict.fromkeys(_classes(metadata, spec))) if classes else (),
        affinity=_terms(affinity.get("podAffinity", {}), namespace),
        anti_affinity=_terms(affinity.get("podAntiAffinity", {}), namespace),
        spec=spec,
    )


def running(pod: Fields) -> PodNeeds:
    """Return what matters about a pod that has a node: what it takes, and what it keeps away.

    Equal ones are the same object, since there may be many.
    """
    metadata, spec = pod["metadata"], pod.get("spec", {})
    namespace = metadata.get("namespace", "")
    return _running(
        namespace,
        tuple(metadata.get("labels", {}).items()),
        tuple(_taken(pod).items()),
        frozenset(_ports(spec)),
        _terms(spec.get("affinity", {}).get("podAntiAffinity", {}), namespace),
    )


@lru_cache(maxsize=4096)
def _running(
    namespace: str,
    labels: tuple[tuple[str, str], ...],
    requests: tuple[tuple[str, int], ...],
    ports: frozenset[HostPort],
    anti_affinity: tuple[AffinityTerm, ...],
) -> PodNeeds:
    return PodNeeds(
        namespace=namespace,
        labels=dict(labels),
        requests=dict(requests),
        ports=ports,
        classes=(),
        affinity=(),
        anti_affinity=anti_affinity,
        spec={},
    )


def _requests(spec: Fields) -> dict[str, int]:
    found = aggregate(spec, "requests") | spec.get("resources", {}).get("requests", {})
    total = {name: amount(name, text) for name, text in found.items()}
    for name, text in spec.get("overhead", {}).items():
        total[name] = total.get(name, 0) + amount(name, text)
    return total


def _taken(pod: Fields) -> dict[str, int]:
    """Return what a pod that has a node takes: while it is resized, the larger of what it asks for and what it has.

    If the resize is infeasible, it is what it has (component-helpers: PodRequests with UseStatusResources).
    """
    spec, status = pod.get("spec", {}), pod.get("status", {})
    actual = with_actual(pod, "requests")
    taken = _requests(actual)
    has = status.get("resources")
    if has is None or not any(is_pod_level(name) for name in spec.get("resources", {}).get("requests", {})):
        return taken
    whole: dict[str, int] = {}
    # Overhead is in both.
    for given in (has.get("requests", {}), status.get("allocatedResources", {})):
        for name, text in given.items():
            if is_pod_level(name):
                whole[name] = max(whole.get(name, 0), amount(name, text))
    if is_infeasible(pod):
        # Of what only the resize asks for as a whole, the pod has what its containers have.
        return _requests({**actual, "resources": {}}) | whole
    return taken | {name: max(value, taken.get(name, 0)) for name, value in whole.items()}


def _ports(spec: Fields) -> Iterator[HostPort]:
    sidecars = (one for one in spec.get("initContainers", ()) if one.get("restartPolicy") == "Always")
    for container in (*sidecars, *spec.get("containers", ())):
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                yield HostPort(port.get("protocol", "TCP"), port.get("hostIP", "") or _ANY, port["hostPort"])


def _classes(metadata: Fields, spec: Fields) -> Iterator[ClassRequest]:
    for kind, name in spec.get("resources", {}).get("classes", {}).items():
        yield ClassRequest("pod", kind, name)
    annotations = metadata.get("annotations", {})
    for _, container in containers(spec):
        given = {kind: item.class_name for kind, item in annotated(annotations, container.get("name", "")).items()}
        for kind, name in (given | container.get("resources", {}).get("classes", {})).items():
            yield ClassRequest("container", kind, name)


def _terms(affinity: Fields, namespace: str) -> tuple[AffinityTerm, ...]:
    return tuple(
        AffinityTerm(
            term.get("topologyKey", ""),
            selectors.of_object(term.get("labelSelector")),
            _namespaces(term, namespace),
        )
        for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ())
    )


def _namespaces(term: Fields, namespace: str) -> frozenset[str] | None:
    # Labels of namespaces are not looked at: a selector of them counts as one of all.
    if "namespaceSelector" in term:
        return None
    return frozenset(term.get("namespaces", ()) or {namespace})


def node_state(node: Fields) -> NodeState:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    return NodeState(
        name=metadata["name"],
        labels=metadata.get("labels", {}),
        taints=tuple(
            Taint(taint.get("key", ""), taint.get("value", ""), taint.get("effect", ""))
            for taint in spec.get("taints", ())
        ),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable={
            name: amount(name, text) for name, text in (status.get("allocatable") or status.get("capacity", {})).items()
        },
        classes=frozenset(
            ClassRequest(level, offer.get("name", ""), name)
            for level, given in (("pod", "podClassResources"), ("container", "containerClassResources"))
            for offer in status.get(given, ())
            for name in (DEFAULT_CLASS, *offer.get("classes", ()))
        ),
    )


# Filters: each returns why a pod cannot run on a node


def _unschedulable(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    if place.node.unschedulable and not _tolerates(pod.spec, Taint(UNSCHEDULABLE, "", NO_SCHEDULE)):
        return ["node(s) were unschedulable"]
    return []


def _taints(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    for taint in place.node.taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not _tolerates(pod.spec, taint):
            return ["node(s) had untolerated taint(s)"]
    return []


def _tolerates(spec: Fields, taint: Taint) -> bool:
    return any(is_toleration_of(toleration, taint) for toleration in spec.get("tolerations", ()))


def is_toleration_of(toleration: Fields, taint: Taint) -> bool:
    if toleration.get("effect", "") not in ("", taint.effect) or toleration.get("key", "") not in ("", taint.key):
        return False
    operator = toleration.get("operator", "")
    return operator == "Exists" or (operator in ("", "Equal") and toleration.get("value", "") == taint.value)


def _node_affinity(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    if _selects(pod.spec, place.node):
        return []
    return ["node(s) didn't match Pod's node affinity/selector"]


def _selects(spec: Fields, node: NodeState) -> bool:
    if not spec.get("nodeSelector", {}).items() <= node.labels.items():
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(term, node) for term in required.get("nodeSelectorTerms", ()))


def _matches(term: Fields, node: NodeState) -> bool:
    expressions, names = term.get("matchExpressions", ()), term.get("matchFields", ())
    # An empty term is no wish for any node: it matches none (v1.NodeSelectorTerm).
    if not expressions and not names:
        return False
    fields = {"metadata.name": node.name}
    return all(_requirement(item).matches(node.labels) for item in expressions) and all(
        _requirement(item).matches(fields) for item in names
    )


def _requirement(item: Fields) -> Requirement:
    return Requirement(item["key"], _OPERATORS[item["operator"]], frozenset(item.get("values", ())))


def _host_ports(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    for wanted in pod.ports:
        for used, count in place.usage.ports.items():
            # Ports whose last pod has gone stay in the Counter, with 0.
            if count > 0 and _conflict(wanted, used):
                return ["node(s) didn't have free ports for the requested pod ports"]
    return []


def _conflict(one: HostPort, other: HostPort) -> bool:
    if (one.protocol, one.port) != (other.protocol, other.port):
        return False
    return one.address == other.address or _ANY in (one.address, other.address)


def _resources(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    allocatable, used = place.node.allocatable, place.usage.requests
    # A node that says nothing of pods takes none.
    found = ["Too many pods"] if len(place.usage.pods) + 1 > allocatable.get("pods", 0) else []
    order = dict.fromkeys(("cpu", "memory", "ephemeral-storage", *sorted(pod.requests)))
    return found + [
        f"Insufficient {name}"
        for name in order
        if pod.requests.get(name, 0) > max(0, allocatable.get(name, 0) - used[name])
    ]


def _class_resources(pod: PodNeeds, place: Place, _: Sequence[Place]) -> list[str]:
    return [
        f"node(s) didn't offer class {asked.name} of class resource {asked.type} to {asked.level}s"
        for asked in pod.classes
        if asked not in place.node.classes
    ]


def _pod_affinity(pod: PodNeeds, place: Place, places: Sequence[Place]) -> list[str]:
    labels = place.node.labels
    # In kube-scheduler's order (interpodaffinity: Filter): its own wishes before those of pods that are there.
    if pod.affinity and not _affinity_holds(pod, labels, places):
        return ["node(s) didn't match pod affinity rules"]
    for term in pod.anti_affinity:
        if term.topology_key in labels and any(map(term.matches, _near(term.topology_key, labels, places))):
            return ["node(s) didn't match pod anti-affinity rules"]
    for other in places:
        for existing in other.usage.exclusive.values():
            for term in existing.anti_affinity:
                key = term.topology_key
                if key in labels and other.node.labels.get(key) == labels[key] and term.matches(pod):
                    return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def _affinity_holds(pod: PodNeeds, labels: Mapping[str, str], places: Sequence[Place]) -> bool:
    if any(term.topology_key not in labels for term in pod.affinity):
        return False

    def all_match(other: PodNeeds) -> bool:
        return all(term.matches(other) for term in pod.affinity)

    def matched(places: Iterable[Place]) -> Iterator[Place]:
        return (place for place in places if any(map(all_match, place.usage.pods.values())))

    # Each pod is looked at once: the terms, all of which it has to match, are many.
    keys = {term.topology_key for term in pod.affinity}
    near = list(matched(place for place in places if any(place.node.labels.get(key) == labels[key] for key in keys)))
    if all(any(place.node.labels.get(key) == labels[key] for place in near) for key in keys):
        return True
    # The first of pods that want to be together has none to be with, anywhere.
    return all_match(pod) and not near and next(matched(places), None) is None


def _near(key: str, labels: Mapping[str, str], places: Sequence[Place]) -> Iterator[PodNeeds]:
    for place in places:
        if place.node.labels.get(key) == labels[key]:
            yield from place.usage.pods.values()


Filter: TypeAlias = Callable[[PodNeeds, Place, Sequence[Place]], list[str]]
FILTERS: tuple[Filter, ...] = (
    _unschedulable,
    _taints,
    _node_affinity,
    _host_ports,
    _resources,
    _class_resources,
    _pod_affinity,
)
"""In order; the first that refuses a node tells why."""


# Scores


def _score(pod: PodNeeds, place: Place) -> tuple[int, int, int]:
    """Return how many taints a pod would rather avoid, how much it prefers the node, and how much of that is free."""
    avoided = sum(
        1 for taint in place.node.taints if taint.effect == PREFER_NO_SCHEDULE and not _tolerates(pod.spec, taint)
    )
    preferred = pod.spec.get("affinity", {}).get("nodeAffinity", {})
    weight = sum(
        item.get("weight", 0)
        for item in preferred.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        if _matches(item.get("preference", {}), place.node)
    )
    free = []
    for name, least in _DEFAULTS.items():
        if capacity := place.node.allocatable.get(name, 0):
            used = place.usage.scored[name] + (pod.requests.get(name, 0) or least)
            free.append(max(0, (capacity - used) * _MAX_SCORE // capacity))
    return avoided, weight, sum(free) // len(free) if free else 0


def best(pod: PodNeeds, fitting: Iterable[Place]) -> str:
    """Return the name of the node that suits a pod best: kube-scheduler's weights; of equal ones the first by name."""
    scores = {place.node.name: _score(pod, place) for place in fitting}
    most_avoided = max(avoided for avoided, _, _ in scores.values())
    most_preferred = max(weight for _, weight, _ in scores.values())

    def total(name: str) -> int:
        avoided, weight, free = scores[name]
        calm = _MAX_SCORE - (avoided * _MAX_SCORE // most_avoided if most_avoided else 0)
        liked = weight * _MAX_SCORE // most_preferred if most_preferred > 0 else 0
        return _TAINT_WEIGHT * calm + _AFFINITY_WEIGHT * liked + free

    return min(scores, key=lambda name: (-total(name), name))


class Decision(NamedTuple):
    """The node that a pod gets, or why it gets none."""

    node: str = ""
    message: str = ""


NO_NODES = Decision(message="no nodes available to schedule pods")


def decide(pod: PodNeeds, places: Sequence[Place], problem: str = "") -> Decision:
    """Return where a pod runs.

    :param problem: why it can run nowhere, if that was found out before.
    """
    if not places:
        return NO_NODES
    intro = f"0/{len(places)} nodes are available:"
    if problem:
        return Decision(message=f"{intro} {problem}.")
    fitting, reasons = [], Counter[str]()
    for place in places:
        why = next(filter(None, (check(pod, place, places) for check in FILTERS)), [])
        reasons.update(why)
        if not why:
            fitting.append(place)
    if fitting:
        return Decision(node=best(pod, fitting))
    shown = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return Decision(message=f"{intro} {shown}.")
