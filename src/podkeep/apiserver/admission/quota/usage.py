"""How much of a quota an object uses, and which quotas concern it (Kubernetes: pkg/quota/v1). Pure.

A quota limits resources by name: ``pods``, ``requests.cpu``, ``count/deployments.apps``,
``gold.storageclass.storage.k8s.io/requests.storage``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Any, TypeAlias

from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.resources import HUGE_PAGES, aggregate, is_pod_level, qos_class, with_actual
from podkeep.apiserver.kinds.pods.validation.requirements import is_extended, is_native
from podkeep.apiserver.kinds.policy import resource_quotas as scopes
from podkeep.apiserver.kinds.storage.volume_rules import class_of
from podkeep.apiserver.meta.objects import metadata
from podkeep.base.text import quantity

Object: TypeAlias = Mapping[str, Any]
Amounts: TypeAlias = dict[str, Decimal]

PODS = "pods"
SERVICES = "services"
CLAIMS = "persistentvolumeclaims"
QUOTAS = "resourcequotas"
NOT_COUNTED = frozenset({"events"})
_COUNT = "count/"
_REQUESTS = "requests."
_OF_CLASS = ".storageclass.storage.k8s.io/"
_ALIASES = frozenset({"configmaps", QUOTAS, "replicationcontrollers", "secrets"})
"""Resources whose number a quota can limit by their own name, too."""
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_OF_PODS = frozenset({PODS, *_COMPUTE, *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _COMPUTE)})
_OF_SERVICES = frozenset({SERVICES, "services.nodeports", "services.loadbalancers"})
_OF_CLAIMS = (CLAIMS, "requests.storage")
_ASKED = ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
"""What every container has to ask for if a quota limits it."""
_ONE = Decimal(1)


def count_name(resource: str) -> str:
    """Return what a quota calls the number of objects of a resource, which is named as the store does."""
    group, slash, plural = resource.rpartition("/")
    return f"{_COUNT}{plural}.{group}" if slash else f"{_COUNT}{plural}"


def counted_resources(names: Iterable[str]) -> set[str]:
    """Return the resources, as the store names them, whose objects use what a quota limits."""
    found = set()
    for name in names:
        if name.startswith(_COUNT):
            plural, _, group = name.removeprefix(_COUNT).partition(".")
            found.add(f"{group}/{plural}" if group else plural)
        elif name in _ALIASES:
            found.add(name)
        else:
            found |= {resource for resource, concerns in _CONCERNS.items() if concerns(name)}
    return found - NOT_COUNTED


def _concerns_pods(name: str) -> bool:
    return (
        name in _OF_PODS
        or name.startswith((HUGE_PAGES, f"{_REQUESTS}{HUGE_PAGES}"))
        or (name.startswith(_REQUESTS) and not is_native(name))
    )


def _concerns_services(name: str) -> bool:
    return name in _OF_SERVICES


def _concerns_claims(name: str) -> bool:
    return name in _OF_CLAIMS or name.endswith(tuple(f"{_OF_CLASS}{item}" for item in _OF_CLAIMS))


_CONCERNS = {PODS: _concerns_pods, SERVICES: _concerns_services, CLAIMS: _concerns_claims}


def concerned(resource: str, names: Iterable[str]) -> list[str]:
    """Return those of the names that objects of a resource use."""
    rule = _CONCERNS.get(resource)
    count = count_name(resource)
    return [
        name
        for name in names
        if name == count or (rule is not None and rule(name)) or (name == resource and name in _ALIASES)
    ]


def usage(resource: str, value: Object, now: datetime) -> Amounts:
    """Return what an object uses, by the names that quotas have."""
    if resource in NOT_COUNTED:
        return {}
    used = {count_name(resource): _ONE}
    if resource == PODS:
        return used | (_pod(value) if is_charged(value, now) else {})
    if resource == SERVICES:
        return used | _service(value.get("spec", {}))
    if resource == CLAIMS:
        return used | _claim(value)
    return used | ({resource: _ONE} if resource in _ALIASES else {})


def is_charged(pod: Object, now: datetime) -> bool:
    """Tell whether a pod uses more than its place: not once it has ended, or should have."""
    if at(pod, "status", "phase") in ("Failed", "Succeeded"):
        return False
    return (until := charged_until(pod)) is None or now <= until


def charged_until(pod: Object) -> datetime | None:
    """Return when a pod that has not ended should have; None: not before it changes."""
    fields = metadata(pod)
    if "deletionTimestamp" not in fields or "deletionGracePeriodSeconds" not in fields:
        return None
    # Clients choose it, as an int64, which is more than timedelta() takes.
    grace = timedelta(seconds=min(fields["deletionGracePeriodSeconds"], 10**8))
    try:
        return datetime.fromisoformat(fields["deletionTimestamp"]) + grace
    except OverflowError:
        return None


def _pod(pod: Object) -> Amounts:
    requests, limits = _of_pod(pod, "requests"), _of_pod(pod, "limits")
    used = {PODS: _ONE}
    for name in _COMPUTE:
        if name in requests:
            used[name] = used[f"{_REQUESTS}{name}"] = requests[name]
        if name in limits:
            used[f"limits.{name}"] = limits[name]
    for name, amount in requests.items():
        if name.startswith(HUGE_PAGES):
            used[name] = used[f"{_REQUESTS}{name}"] = amount
        elif is_extended(name):
            used[f"{_REQUESTS}{name}"] = amount
    return used


def _of_pod(pod: Object, kind: str) -> Amounts:
    """Return what a pod asks for, with its overhead; while it is resized, the larger of before and after."""
    spec = pod.get("spec", {})
    total = {name: quantity.parse(text) for name, text in aggregate(with_actual(pod, kind), kind).items()}
    for name, text in at(spec, "resources", kind, default={}).items():
        if is_pod_level(name):
            total[name] = quantity.parse(text)
    for name, text in spec.get("overhead", {}).items():
        # Overhead raises a limit that is there, and makes none (component-helpers: PodLimits).
        if kind == "requests" or total.get(name):
            total[name] = total.get(name, Decimal(0)) + quantity.parse(text)
    return total


def _service(spec: Object) -> Amounts:
    kind, ports = spec.get("type"), spec.get("ports", ())
    balanced = kind == "LoadBalancer"
    used = {SERVICES: _ONE, "services.loadbalancers": Decimal(balanced), "services.nodeports": Decimal(0)}
    if balanced and spec.get("allocateLoadBalancerNodePorts") is False:
        used["services.nodeports"] = Decimal(sum(bool(port.get("nodePort")) for port in ports))
    elif balanced or kind == "NodePort":
        used["services.nodeports"] = Decimal(len(ports))
    return used


def _claim(claim: Object) -> Amounts:
    used = {CLAIMS: _ONE}
    texts = (
        at(claim, "spec", "resources", "requests", "storage"),
        at(claim, "status", "allocatedResources", "storage"),
    )
    if texts[0] is not None:
        largest = max(quantity.parse(text) for text in texts if text is not None)
        used["requests.storage"] = largest.to_integral_value(rounding=ROUND_CEILING)
    name = class_of(claim)
    return used | ({f"{name}{_OF_CLASS}{item}": amount for item, amount in used.items()} if name else {})


# scopes


def in_scope(quota: Object, resource: str, value: Object) -> bool:
    """Tell whether an object is in every scope of a quota; without scopes every object is."""
    spec = quota.get("spec", {})
    items = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes", ())]
    items += at(spec, "scopeSelector", "matchExpressions", default=[])
    rule = {PODS: _pod_in_scope, CLAIMS: _claim_in_scope}.get(resource)
    if resource == PODS:
        # Of others only the name counts, and a selector may have the same one thousands of times.
        by_name = {item.get("scopeName", ""): item for item in items}
        priorities = [item for item in items if item.get("scopeName", "") == scopes.PRIORITY_CLASS]
        items = [*priorities, *(item for name, item in by_name.items() if name != scopes.PRIORITY_CLASS)]
    return all(rule is not None and rule(item, value) for item in items)


def _pod_in_scope(item: Object, pod: Object) -> bool:
    scope: str = item.get("scopeName", "")
    spec: Object = pod.get("spec", {})
    if scope in (scopes.TERMINATING, scopes.NOT_TERMINATING):
        return is_terminating(pod) is (scope == scopes.TERMINATING)
    if scope in (scopes.BEST_EFFORT, scopes.NOT_BEST_EFFORT):
        return (qos_class(spec) == "BestEffort") == (scope == scopes.BEST_EFFORT)
    if scope == scopes.PRIORITY_CLASS:
        name = spec.get("priorityClassName", "")
        return _selected(item, {name} - {""})
    return scope == scopes.CROSS_NAMESPACE and _crosses_namespaces(spec)


def is_terminating(pod: Object) -> bool:
    """Tell whether a pod is to end by itself."""
    deadline: int | None = at(pod, "spec", "activeDeadlineSeconds")
    return deadline is not None and deadline >= 0


def _claim_in_scope(item: Object, claim: Object) -> bool:
    names = {
        at(claim, "spec", "volumeAttributesClassName"),
        at(claim, "status", "currentVolumeAttributesClassName"),
        at(claim, "status", "modifyVolumeStatus", "targetVolumeAttributesClassName"),
    } - {None, ""}
    return item.get("scopeName") == scopes.ATTRIBUTES_CLASS and _selected(item, names)


def _selected(item: Object, names: set[str]) -> bool:
    """Tell whether one of the names of an object, or that it has none, meets a requirement."""
    operator, values = item.get("operator", ""), item.get("values", ())
    if operator == "Exists":
        return bool(names)
    if operator == "DoesNotExist":
        return not names
    if operator == "In":
        return any(name in values for name in names)
    return not names or any(name not in values for name in names)


def _crosses_namespaces(spec: Object) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        given = at(spec, "affinity", kind, default={})
        terms = [
            *given.get("requiredDuringSchedulingIgnoredDuringExecution", ()),
            *(
                item.get("podAffinityTerm", {})
                for item in given.get("preferredDuringSchedulingIgnoredDuringExecution", ())
            ),
        ]
        if any(term.get("namespaces") or "namespaceSelector" in term for term in terms):
            return True
    return False


# what is missing, and how it is told


def missing(pod: Object, names: Iterable[str]) -> str:
    """Return what containers of a pod have to ask for since a quota limits it, or nothing."""
    asked = sorted(set(names) & set(_ASKED))
    spec = pod.get("spec", {})
    whole = spec.get("resources", {})
    if not asked or any(is_pod_level(name) for kind in ("requests", "limits") for name in whole.get(kind, ())):
        return ""
    found: dict[str, set[str]] = {}
    for group in ("containers", "initContainers"):
        for container in spec.get(group, ()):
            resources = container.get("resources", {})
            for name in asked:
                kind, _, resource = name.rpartition(".")
                if resource not in resources.get(kind or "requests", ()):
                    found.setdefault(name, set()).add(container.get("name", ""))
    texts = [f"{name} for: {','.join(sorted(containers))}" for name, containers in sorted(found.items())]
    return f"must specify {'; '.join(texts)}" if texts else ""


def text(amount: Decimal, like: str) -> str:
    """Return an amount as Kubernetes writes it, with the kind of suffix that another one has."""
    if like.endswith("i") and not amount % 1:
        return quantity.canonical(f"{amount / 1024:f}Ki")
    return quantity.canonical(f"{amount.normalize():f}")


def status(quota: Object, used: Mapping[str, Decimal]) -> dict[str, Any]:
    """Return the status of a quota: what is enforced, and how much of it is used.

    Classes that pods may ask for (KEP-3008) are there as the spec has them.
    """
    spec = quota.get("spec", {})
    hard: Mapping[str, str] = spec.get("hard", {})
    lists = {name: spec[name] for name in ("podClassResources", "containerClassResources") if name in spec}
    if not hard:
        return lists
    shown = {name: text(used.get(name, Decimal(0)), limit) for name, limit in hard.items()}
    return {"hard": dict(hard), "used": shown, **lists}
