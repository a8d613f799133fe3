"""The plugin ``LimitRanger``: what single pods, containers and claims may ask for, and what they get if they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import refused, require_few
from podkeep.apiserver.kinds.pods.resources import aggregate
from podkeep.apiserver.kinds.policy.limit_ranges import CLAIM, CONTAINER, POD
from podkeep.apiserver.meta import values
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.base.text import quantity
from podkeep.base.text.printable import aggregated

ANNOTATION = "kubernetes.io/limit-ranger"
"""What the plugin has set in a pod."""
_PODS = "pods"
_CLAIMS = "persistentvolumeclaims"
_MAX_PROBLEMS = 1_000
"""That are looked for: there may be as many as containers times limits."""
MAX_BYTES = 1 << 20
"""Of the LimitRanges of a namespace, all of which are read twice for each pod and claim of it."""
_GROUPS = (("containers", "container"), ("initContainers", "init container"))

Amounts = Mapping[str, str]


class LimitRanger:
    """The plugin.

    :param lister: of ``limitranges``.
    """

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Give containers the requests and limits that they leave out."""
        if _concerns(attributes) and attributes.target.resource.storage_name == _PODS and attributes.value is not None:
            for limit_range in self._ranges(attributes):
                _set_defaults(attributes.value, limit_range)

    def validate(self, attributes: Attributes) -> None:
        """Refuse what is out of range.

        :raises StatusError: 403.
        """
        if not _concerns(attributes) or attributes.value is None:
            return
        is_pod = attributes.target.resource.storage_name == _PODS
        for limit_range in self._ranges(attributes):
            found = (
                _pod_problems(attributes.value, limit_range)
                if is_pod
                else _claim_problems(attributes.value, limit_range)
            )
            if text := aggregated(islice(found, _MAX_PROBLEMS)):
                raise refused(attributes, text)

    def _ranges(self, attributes: Attributes) -> list[list[Mapping[str, Any]]]:
        """Return the limits of each LimitRange.

        :raises StatusError: 403, if they are too many to hold what is written against them.
        """
        namespace = attributes.target.namespace
        size = 0
        for _, each in self._lister.sizes("limitranges", namespace):
            size += each
            if size > MAX_BYTES:
                why = f"the LimitRanges of namespace {namespace} have more than {MAX_BYTES} bytes together"
                raise refused(attributes, f"{why}; delete some first")
        found = [item.get("spec", {}).get("limits", []) for item in self._lister.list("limitranges", namespace)]
        require_few(attributes, sum(map(len, found)), "limits")
        return found


def _concerns(attributes: Attributes) -> bool:
    """Tell whether a write may change what a pod or claim asks for."""
    target, operation = attributes.target, attributes.operation
    # What is marked for deletion is let be, so that it can end, as in kube-apiserver (runLimitFunc).
    if operation is Operation.DELETE or (attributes.old and "deletionTimestamp" in metadata(attributes.old)):
        return False
    if target.resource.storage_name == _PODS:
        return (target.subresource, operation) in (("", Operation.CREATE), ("resize", Operation.UPDATE))
    return target.resource.storage_name == _CLAIMS and not target.subresource


def _set_defaults(pod: Object, limits: list[Mapping[str, Any]]) -> None:
    defaults: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for limit in limits:
        if limit.get("type") == CONTAINER:
            defaults["requests"] |= limit.get("defaultRequest", {})
            defaults["limits"] |= limit.get("default", {})
    done = []
    added = 0
    for group, word in _GROUPS:
        for container in pod.get("spec", {}).get(group, ()):
            resources = container.setdefault("resources", {})
            for kind, amounts in defaults.items():
                given = resources.get(kind, {})
                if missing := sorted(amounts.keys() - given.keys()):
                    # Many containers times many amounts would be far more than what anybody sent.
                    added += len(missing)
                    if added > values.MAX_VALUES:
                        raise values.too_many(values.MAX_VALUES)
                    resources[kind] = {**given, **{name: amounts[name] for name in missing}}
                    done.append(f"{', '.join(missing)} {kind.removesuffix('s')} for {word} {container.get('name', '')}")
    if done:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(done)}"


def _pod_problems(pod: Object, limits: list[Mapping[str, Any]]) -> Iterator[str]:
    spec = pod.get("spec", {})
    for limit in limits:
        if limit.get("type") == CONTAINER:
            for group, _ in _GROUPS:
                for container in spec.get(group, ()):
                    resources = container.get("resources", {})
                    yield from _problems(limit, resources.get("requests", {}), resources.get("limits", {}))
        elif limit.get("type") == POD:
            yield from _problems(limit, _of_pod(spec, "requests"), _of_pod(spec, "limits"))


def _of_pod(spec: Mapping[str, Any], kind: str) -> Amounts:
    whole = spec.get("resources", {}).get(kind, {})
    # What the pod asks for as a whole comes before its containers' sum (KEP-2837).
    return aggregate(spec, kind) | {name: whole[name] for name in ("cpu", "memory") if name in whole}


def _claim_problems(claim: Object, limits: list[Mapping[str, Any]]) -> Iterator[str]:
    requests: Amounts = claim.get("spec", {}).get("resources", {}).get("requests", {})
    for limit in limits:
        if limit.get("type") == CLAIM:
            for name, bound in limit.get("min", {}).items():
                yield from _least(CLAIM, name, bound, requests, {})
            for name, bound in limit.get("max", {}).items():
                yield from _bounded(
                    f"maximum {name} usage per {CLAIM} is {bound}", bound, _larger, request=requests.get(name)
                )


def _problems(limit: Mapping[str, Any], requests: Amounts, limits: Amounts) -> Iterator[str]:
    kind = limit["type"]
    for name, bound in limit.get("min", {}).items():
        yield from _least(kind, name, bound, requests, limits)
    for name, bound in limit.get("max", {}).items():
        text = f"maximum {name} usage per {kind} is {bound}"
        found = list(_bounded(text, bound, _larger, limit=limits.get(name)))
        yield from found or _if_given(text, bound, _larger, request=requests.get(name))
    for name, bound in limit.get("maxLimitRequestRatio", {}).items():
        yield from _ratio(kind, name, bound, requests.get(name), limits.get(name))


def _least(kind: str, name: str, bound: str, requests: Amounts, limits: Amounts) -> Iterator[str]:
    text = f"minimum {name} usage per {kind} is {bound}"
    found = list(_bounded(text, bound, _smaller, request=requests.get(name)))
    yield from found or _if_given(text, bound, _smaller, limit=limits.get(name))


def _larger(value: Decimal, bound: Decimal) -> bool:
    return value > bound


def _smaller(value: Decimal, bound: Decimal) -> bool:
    return value < bound


def _bounded(text: str, bound: str, is_wrong: Callable[[Decimal, Decimal], bool], **given: str | None) -> Iterator[str]:
    """Yield what is wrong with an amount that must be there; ``given`` has it, by the word that messages use."""
    ((word, value),) = given.items()
    if value is None:
        yield f"{text}.  No {word} is specified"
    else:
        yield from _if_given(text, bound, is_wrong, **given)


def _if_given(
    text: str, bound: str, is_wrong: Callable[[Decimal, Decimal], bool], **given: str | None
) -> Iterator[str]:
    ((word, value),) = given.items()
    if value is not None and is_wrong(quantity.parse(value), quantity.parse(bound)):
        yield f"{text}, but {word} is {value}"


def _ratio(kind: str, name: str, bound: str, request: str | None, limit: str | None) -> Iterator[str]:
    text = f"{name} max limit to request ratio per {kind} is {bound}"
    asked, most = quantity.parse(request or "0"), quantity.parse(limit or "0")
    if not asked:
        yield f"{text}, but no request is specified or request is 0"
    elif not most:
        yield f"{text}, but no limit is specified or limit is 0"
    elif most / asked > quantity.parse(bound):
        yield f"{text}, but provided ratio is {most / asked:.6f}"
