"""The plugin ``RuntimeClass``: pods get the overhead and the scheduling rules of their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import refused
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.patch.values import copy, equal
from podkeep.base.text import quantity

_CLASSES = "node.k8s.io/runtimeclasses"
# Each toleration is held against each other one.
_MOST_COMPARED = 500
_OTHER = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"

Toleration = Mapping[str, Any]


class RuntimeClass:
    """The plugin.

    :param lister: of ``runtimeclasses``.
    """

    def __init__(self, lister: Lister) -> None:
        self._lister = lister

    def mutate(self, attributes: Attributes) -> None:
        """Give a new pod what its class says.

        :raises StatusError: 403, if there is no such class or the pod says otherwise.
        """
        if attributes.value is None or not _concerns(attributes):
            return
        spec = attributes.value.setdefault("spec", {})
        found = self._class(attributes, spec)
        if overhead := _overhead(found):
            if spec.get("overhead") and not _same(overhead, spec["overhead"]):
                raise refused(attributes, _OTHER)
            spec["overhead"] = dict(overhead)
        scheduling = found.get("scheduling", {})
        for key, value in scheduling.get("nodeSelector", {}).items():
            given = spec.setdefault("nodeSelector", {}).setdefault(key, value)
            if given != value:
                raise refused(
                    attributes,
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] ="
                    f" {given}",
                )
        if added := scheduling.get("tolerations"):
            # A copy: the lister's objects are everybody's, and later plugins change this pod.
            spec["tolerations"] = copy(merged_tolerations(spec.get("tolerations", ()), added))

    def validate(self, attributes: Attributes) -> None:
        """Refuse an overhead that is not that of the class.

        :raises StatusError: 403.
        """
        if attributes.value is None or not _concerns(attributes):
            return
        spec = attributes.value.get("spec", {})
        overhead, given = _overhead(self._class(attributes, spec)), spec.get("overhead", {})
        if given and not overhead:
            raise refused(
                attributes, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            )
        if not _same(overhead, given):
            raise refused(attributes, _OTHER)

    def _class(self, attributes: Attributes, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        name = spec.get("runtimeClassName")
        if name is None:
            return {}
        found = self._lister.get(_CLASSES, "", name)
        if found is None:
            raise refused(attributes, f'pod rejected: RuntimeClass "{name}" not found')
        return found


def _concerns(attributes: Attributes) -> bool:
    target = attributes.target
    return (
        target.resource.storage_name == "pods" and not target.subresource and attributes.operation is Operation.CREATE
    )


def _overhead(found: Mapping[str, Any]) -> Mapping[str, str]:
    overhead: Mapping[str, str] = found.get("overhead", {}).get("podFixed", {})
    return overhead


def _same(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    return left.keys() == right.keys() and all(
        quantity.parse(value) == quantity.parse(right[name]) for name, value in left.items()
    )


def merged_tolerations(first: Sequence[Toleration], second: Sequence[Toleration]) -> list[Toleration]:
    """Return tolerations without those that others cover (Kubernetes: ``MergeTolerations``).

    Of very many, only those that are there twice are left out.
    """
    both = list({msgspec.json.encode(item, order="sorted"): item for item in (*first, *second)}.values())
    if len(both) > _MOST_COMPARED:
        return both
    merged: list[Toleration] = []
    for index, item in enumerate(both):
        if any(_covers(other, item) for other in merged):
            continue
        if any(not equal(item, other) and _covers(other, item) for other in both[index + 1 :]):
            continue
        merged.append(item)
    return merged


def _covers(wide: Toleration, narrow: Toleration) -> bool:
    """Tell whether whatever ``narrow`` tolerates, ``wide`` does."""
    if equal(wide, narrow):
        return True
    operator = wide.get("operator", "")
    if narrow.get("key", "") != wide.get("key", "") and (wide.get("key") or operator != "Exists"):
        return False
    if wide.get("effect") and narrow.get("effect", "") != wide["effect"]:
        return False
    seconds = wide.get("tolerationSeconds")
    if wide.get("effect") == "NoExecute" and seconds is not None:
        wanted = narrow.get("tolerationSeconds")
        if wanted is None or wanted > seconds:
            return False
    if operator in ("", "Equal"):
        return narrow.get("operator") == "Equal" and bool(narrow.get("value", "") == wide.get("value", ""))
    return bool(operator == "Exists")
