"""What pods ask for: sums over containers, pod-level requests and limits, the QoS class (Kubernetes: component-helpers
resource/helpers.go, pkg/apis/core/v1/helper/qos). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from podkeep.base.text import quantity

HUGE_PAGES = "hugepages-"
_FINE = re.compile(r"[nu]$|e-[69]$")
"""How canonical quantities end that may be finer than a thousandth."""


def round_up(resources: dict[str, str]) -> None:
    """Round quantities up to thousandths."""
    for name, value in resources.items():
        if _FINE.search(value):
            resources[name] = quantity.canonical(f"{quantity.milli(value)}m")


def round_requirements(requirements: dict[str, Any]) -> None:
    """Round the quantities of a container's or pod's ``resources`` up to thousandths."""
    for name in ("limits", "requests"):
        round_up(requirements.get(name, {}))


def is_pod_level(name: str) -> bool:
    """Return whether a pod as a whole can ask for a resource (KEP-2837)."""
    return name in ("cpu", "memory") or name.startswith(HUGE_PAGES)


def aggregate(spec: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return what the containers of a pod need together.

    Init containers run one after the other, beside those before them that are restarted always (KEP-753).

    :param kind: ``requests`` or ``limits``.
    """
    total: dict[str, str] = {}
    for container in spec.get("containers", ()):
        _merge(total, _of(container, kind), _sum)
    sidecars: dict[str, str] = {}
    peak: dict[str, str] = {}
    for container in spec.get("initContainers", ()):
        needed = dict(_of(container, kind))
        if container.get("restartPolicy") == "Always":
            _merge(total, needed, _sum)
            _merge(sidecars, needed, _sum)
        else:
            # What only sidecars need is part of the total.
            _merge(needed, {name: sidecars[name] for name in needed.keys() & sidecars.keys()}, _sum)
            _merge(peak, needed, _larger)
    _merge(total, peak, _larger)
    return total


def is_infeasible(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod's node will never give it what it asks for by now: it keeps what it has."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one.get("type") == "PodResizePending" and one.get("reason") == "Infeasible" for one in conditions)


def with_actual(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the spec of a pod with what its containers were granted and have by their status, where that is more.

    What was asked for by a resize that does not happen does not count (determineContainerReqs). What the pod has as a
    whole is not looked at.

    :param kind: ``requests`` or ``limits``.
    """
    status: Mapping[str, Any] = pod.get("status", {})
    spec: Mapping[str, Any] = pod.get("spec", {})
    actual = {
        item.get("name", ""): item
        for group in ("containerStatuses", "initContainerStatuses")
        for item in status.get(group, ())
        if "resources" in item
    }
    if not actual:
        return spec
    infeasible = is_infeasible(pod)
    changed = dict(spec)
    for group in ("containers", "initContainers"):
        changed[group] = [
            _largest(item, actual[item["name"]], kind, infeasible=infeasible)
            if item.get("name") in actual and (group == "containers" or item.get("restartPolicy") == "Always")
            else item
            for item in spec.get(group, ())
        ]
    return changed


def _largest(
    container: Mapping[str, Any], status: Mapping[str, Any], kind: str, *, infeasible: bool
) -> Mapping[str, Any]:
    largest = dict(_of(status, kind))
    if kind == "requests":
        _merge(largest, status.get("allocatedResources", {}), _larger)
    if not infeasible:
        _merge(largest, _of(container, kind), _larger)
    return {**container, "resources": {kind: largest}}


def _of(container: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    found: Mapping[str, str] = container.get("resources", {}).get(kind, {})
    return found


def _merge(into: dict[str, str], more: Mapping[str, str], both: Callable[[str, str], str]) -> None:
    for name, value in more.items():
        into[name] = both(into[name], value) if name in into else value


def _larger(left: str, right: str) -> str:
    # Mostly they are the same: a pod is resized now and then.
    return right if left != right and quantity.parse(right) > quantity.parse(left) else left


def _sum(left: str, right: str) -> str:
    """Add two quantities; the result has the kind of suffix of the first, as upstream's has."""
    if left == "0":
        return right
    total = quantity.parse(left) + quantity.parse(right)
    if left.endswith("i") and total == total.to_integral_value():
        return quantity.canonical(f"{total / 1024:f}Ki")
    return quantity.canonical(f"{total.normalize():f}")


def default_pod_level(spec: dict[str, Any]) -> None:
    """Fill in the limits and requests of a pod as a whole, if it has some."""
    resources = spec.get("resources", {})
    if resources.get("limits") or resources.get("requests"):
        given = resources.get("requests", {})
        limits = dict(resources.get("limits", {}))
        for name, value in aggregate(spec, "limits").items():
            if name.startswith(HUGE_PAGES) and name not in given:
                limits.setdefault(name, value)
        if limits:
            resources["limits"] = limits
    if not resources.get("limits"):
        return
    requests = dict(resources.get("requests", {}))
    for name, value in aggregate(spec, "requests").items():
        if name in ("cpu", "memory"):
            requests.setdefault(name, value)
    for name, value in resources["limits"].items():
        if is_pod_level(name):
            requests.setdefault(name, value)
    if requests:
        resources["requests"] = requests


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return a pod's QoS class: ``Guaranteed``, ``Burstable`` or ``BestEffort``."""
    resources = spec.get("resources")
    # Resources of the pod as a whole count alone, even if they are empty; its classes are none of them.
    if resources is not None and (resources.keys() & {"limits", "requests"} or not resources.get("classes")):
        groups = [resources]
    else:
        groups = [
            container.get("resources", {})
            for group in ("containers", "initContainers")
            for container in spec.get(group, ())
        ]
    guaranteed = True
    requests: dict[str, Decimal] = {}
    limits: dict[str, Decimal] = {}
    for group in groups:
        _add_positive(requests, group.get("requests", {}))
        guaranteed &= len(_add_positive(limits, group.get("limits", {}))) == 2
    if not requests and not limits:
        return "BestEffort"
    same = all(name in limits and limits[name] == value for name, value in requests.items())
    return "Guaranteed" if guaranteed and same and len(requests) == len(limits) else "Burstable"


def _add_positive(total: dict[str, Decimal], resources: Mapping[str, str]) -> set[str]:
    found = set()
    for name in ("cpu", "memory"):
        if name in resources and (value := quantity.parse(resources[name])) > 0:
            total[name] = total.get(name, Decimal(0)) + value
            found.add(name)
    return found
