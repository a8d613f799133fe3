"""``resourceFieldRef``: what a container may use or has asked for, as a number in units of a divisor. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.api.volumes import ResourceFieldSelector
from podkeep.base.errors import InvalidArgument, NotFound
from podkeep.base.text import quantity

_OF_NODE = ("cpu", "memory", "ephemeral-storage")
"""Of these a container may have no limit; of huge pages it always has one."""


def value(pod: Pod, selector: ResourceFieldSelector, allocatable: Mapping[str, str], container: str = "") -> str:
    """Return the decimal digits of the amount, rounded up to a whole number of divisors; 0 of what is not asked for.

    :param allocatable: quantities by resource, what the node has for pods: a container without a limit has the pod's,
        and without one of the pod what the node has.
    :param container: name of the container that asks, where the selector names none.
    :raises NotFound: if the pod has no container of that name.
    :raises InvalidArgument: if the resource is none of those that can be asked for.
    """
    found = _container(pod, selector.container_name or container)
    kind, _, resource = selector.resource.partition(".")
    if kind not in {"limits", "requests"} or not (resource in _OF_NODE or resource.startswith("hugepages-")):
        raise InvalidArgument(f"unsupported container resource : {selector.resource}")
    amounts = found.resources.limits if kind == "limits" else found.resources.requests
    amount = amounts.get(resource, "0")
    if kind == "limits" and resource in _OF_NODE and quantity.parse(amount) == 0:
        amount = _of_pod(pod, resource) or allocatable.get(resource, amount)
    return str(_divided(amount, selector.divisor, in_milli=resource == "cpu"))


def _of_pod(pod: Pod, resource: str) -> str:
    """Return the limit of the pod as a whole, empty if it has none (KEP-2837)."""
    limits = {} if pod.spec.resources is None else pod.spec.resources.limits
    amount = limits.get(resource, "0")
    return "" if quantity.parse(amount) == 0 else amount


def _divided(amount: str, divisor: str, *, in_milli: bool) -> int:
    convert = quantity.milli if in_milli else quantity.units
    by = convert(divisor) if divisor else 0
    # A divisor of 0 counts as 1 (Kubernetes: API defaults).
    return int((Decimal(convert(amount)) / (by or convert("1"))).to_integral_value(rounding=ROUND_CEILING))


def _container(pod: Pod, name: str) -> Container:
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.name == name:
            return container
    raise NotFound(f"container {name} not found")
