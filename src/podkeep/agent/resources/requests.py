"""What a pod asks for: requests and limits of its containers together, of the pod as a whole, and overhead. Pure.

Rules: Kubernetes' resource helpers (KEP-753 for sidecars, KEP-2837 for the pod's own resources, KEP-688 for overhead).
Amounts are whole numbers: thousandths of a CPU, bytes of memory and storage, units of everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

from podkeep.api.containers import Container, ResourceRequirements, is_sidecar
from podkeep.api.pod import Pod
from podkeep.base.text import quantity

Amounts: TypeAlias = Mapping[str, int]
"""By the name of the resource."""
Kind: TypeAlias = Literal["requests", "limits"]

CPU, MEMORY, EPHEMERAL_STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"
HUGE_PAGES = "hugepages-"


# Quantities are parsed again in each judgement over all pods, and pods of one controller have the same.
@lru_cache(maxsize=4096)
def amount(name: str, text: str) -> int:
    """Return a quantity of resource ``name`` as a number, rounded up."""
    return quantity.milli(text) if name == CPU else quantity.units(text)


def text(name: str, value: int) -> str:
    """Return an amount of resource ``name`` as a quantity in Kubernetes' usual form: ``1500m``, ``64Mi``."""
    if name == CPU:
        return quantity.canonical(f"{value}m")
    if name in (MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGE_PAGES):
        return binary(value)
    return quantity.canonical(str(value))


def binary(value: int) -> str:
    """Return bytes as a quantity with a binary suffix: ``64Mi``."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = quantity.units(f"1{suffix}")
        if value and value % unit == 0:
            return f"{value // unit}{suffix}"
    return str(value)


def amounts(texts: Mapping[str, str]) -> dict[str, int]:
    """Return the amounts of resources by name, from quantities as Kubernetes writes them (:func:`amount`)."""
    return {name: amount(name, value) for name, value in texts.items()}


def is_pod_level(name: str) -> bool:
    """Return whether a pod as a whole can ask for resource ``name``."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES)


def pod_level(pod: Pod) -> ResourceRequirements:
    """Return what the pod asks for as a whole, reduced to the resources for which that is possible; maybe nothing."""
    given = pod.spec.resources or ResourceRequirements()
    return ResourceRequirements(
        requests={name: value for name, value in given.requests.items() if is_pod_level(name)},
        limits={name: value for name, value in given.limits.items() if is_pod_level(name)},
    )


def pod_requests(pod: Pod, *, overhead: bool = True) -> dict[str, int]:
    """Return what the pod requests; the pod's own requests go before the sum of the containers'."""
    total = aggregate(pod, "requests") | amounts(pod_level(pod).requests)
    if overhead:
        _merge(total, amounts(pod.spec.overhead), _add)
    return total


def pod_limits(pod: Pod, *, overhead: bool = True) -> dict[str, int]:
    """Return the limits of the pod; overhead is added to those that there are."""
    total = aggregate(pod, "limits") | amounts(pod_level(pod).limits)
    if overhead:
        _merge(total, {k: v for k, v in amounts(pod.spec.overhead).items() if total.get(k)}, _add)
    return total


def aggregate(pod: Pod, kind: Kind) -> dict[str, int]:
    """Return what the containers need together, without what the pod says as a whole.

    Init containers run one after the other, each beside the sidecars before it.
    """
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _merge(total, _of(container, kind), _add)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        needed = _of(container, kind)
        if is_sidecar(container):
            _merge(total, needed, _add)
            _merge(sidecars, needed, _add)
        else:
            # What only sidecars need is part of the total; thousands of both are looked at once.
            _merge(peak, {name: value + sidecars.get(name, 0) for name, value in needed.items()}, max)
    _merge(total, peak, max)
    return total


def total(pods: Iterable[Pod]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pod in pods:
        _merge(found, pod_requests(pod), _add)
    return found


def _of(container: Container, kind: Kind) -> Amounts:
    resources = container.resources
    return amounts(resources.requests if kind == "requests" else resources.limits)


def _merge(into: dict[str, int], more: Amounts, both: Callable[[int, int], int]) -> None:
    for name, value in more.items():
        into[name] = both(into[name], value) if name in into else value


def _add(left: int, right: int) -> int:
    return left + right
