"""Limits and requests of a static pod as a whole: what is filled in, and which rules they obey. Pure.

Rules and words are kube-apiserver's (SetDefaults_Pod, validatePodResources), which a kubelet applies to its static pods
too. Pods of an API come with them applied.
"""

from __future__ import annotations

import msgspec

from podkeep.agent.resources.requests import CPU, HUGE_PAGES, MEMORY, aggregate, amount, is_pod_level, text
from podkeep.api.containers import ResourceRequirements
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod

_SUPPORTED = (CPU, HUGE_PAGES, MEMORY)


def completed(pod: Pod) -> Pod:
    """Return a pod with the limits and requests that follow from those that it has as a whole."""
    own = pod.spec.resources
    if own is None or not (own.limits or own.requests):
        return pod
    limits, requests = dict(own.limits), dict(own.requests)
    for name, value in aggregate(pod, "limits").items():
        if name.startswith(HUGE_PAGES) and name not in requests:
            limits.setdefault(name, text(name, value))
    if limits:
        for name, value in aggregate(pod, "requests").items():
            if name in (CPU, MEMORY):
                requests.setdefault(name, text(name, value))
        for name, given in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, given)
    resources = msgspec.structs.replace(own, limits=limits, requests=requests)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=resources))


def validate(pod: Pod, errors: FieldErrors) -> None:
    """Note every rule that the limits and requests of a pod as a whole break."""
    own, path = pod.spec.resources, "spec.resources"
    if own is None or not (own.limits or own.requests):
        return
    for kind, given in (("limits", own.limits), ("requests", own.requests)):
        for name, value in given.items():
            where = f"{path}.{kind}[{name}]"
            if not is_pod_level(name):
                errors.unsupported(where, name, _SUPPORTED)
            elif amount(name, value) < 0:
                errors.invalid(where, value, "must be greater than or equal to 0")
    _against_limits(own, path, errors)
    _against_containers(pod, own, path, errors)


def _against_limits(own: ResourceRequirements, path: str, errors: FieldErrors) -> None:
    used = own.limits.keys() | own.requests.keys()
    for name, request in own.requests.items():
        limit = own.limits.get(name)
        if limit is None:
            if name.startswith(HUGE_PAGES):
                errors.add(f"{path}.limits", "Required value: Limit must be set for non overcommitable resources")
        elif name.startswith(HUGE_PAGES) and amount(name, request) != amount(name, limit):
            errors.invalid(f"{path}.requests", request, f"must be equal to {name} limit of {limit}")
        elif amount(name, request) > amount(name, limit):
            errors.invalid(f"{path}.requests", request, f"must be less than or equal to {name} limit of {limit}")
    if any(name.startswith(HUGE_PAGES) for name in used) and not used & {CPU, MEMORY}:
        errors.forbidden(path, "HugePages require cpu or memory")


def _against_containers(pod: Pod, own: ResourceRequirements, path: str, errors: FieldErrors) -> None:
    total = aggregate(pod, "requests")
    for name, request in own.requests.items():
        if total.get(name, 0) > amount(name, request):
            why = f"must be greater than or equal to aggregate container requests of {text(name, total.get(name, 0))}"
            errors.invalid(f"{path}.requests[{name}]", request, why)
    for name, together in aggregate(pod, "limits").items():
        # Huge pages alone are never overcommitted.
        if name.startswith(HUGE_PAGES) and name in own.limits and together > amount(name, own.limits[name]):
            why = f"must be greater than or equal to aggregate container limits of {text(name, together)}"
            errors.invalid(f"{path}.limits[{name}]", own.limits[name], why)
    for index, container in enumerate(pod.spec.containers):
        for name, value in container.resources.limits.items():
            if name in own.limits and amount(name, value) > amount(name, own.limits[name]):
                why = f"must be less than or equal to pod limits of {own.limits[name]}"
                errors.invalid(f"{path}.containers[{index}][{name}].limits", value, why)
