"""The plugin ``ClassQuota``: which QoS classes pods of a namespace may ask for (KEP-3008, access control).

A quota that has ``podClassResources`` allows pods to ask, for the pod as a whole, for the classes there and no others;
``containerClassResources`` likewise for containers, whether by field or by the alpha annotations. A type that is not
listed, or has no classes, is not allowed. Several quotas allow what each of them does; without any, everything is
allowed. A quota with scopes counts for the pods in them. What a pod has already it keeps.

The reserved name ``default`` is a class like others: it has to be listed, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from podkeep.api.class_resources import annotated
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.admission.pod_specs import PODS, containers
from podkeep.apiserver.admission.quota.ledger import QuotaLedger
from podkeep.apiserver.admission.quota.usage import in_scope
from podkeep.apiserver.admission.refusal import refused
from podkeep.apiserver.kinds.cluster.class_infos import CONTAINER, POD
from podkeep.apiserver.meta.objects import metadata


class _Asked(NamedTuple):
    """A class that a pod asks for. ``container`` is empty for the pod as a whole."""

    container: str
    type: str
    name: str


class ClassQuota:
    """The plugin."""

    def __init__(self, ledger: QuotaLedger, gates: FeatureGates | None = None) -> None:
        self._ledger = ledger
        self._enabled = (gates or FeatureGates()).enabled(CLASS_RESOURCES)

    def mutate(self, attributes: Attributes) -> None: ...

    def validate(self, attributes: Attributes) -> None:
        """Refuse a pod that asks for a class which a quota does not allow.

        :raises StatusError: 403.
        """
        value, target = attributes.value, attributes.target
        if not self._enabled or value is None or target.resource.storage_name != PODS:
            return
        if target.subresource == "status":
            return
        before = set(_asked(attributes.old or {}))
        new = [item for item in _asked(value) if item not in before]
        if not new:
            return
        for quota in self._ledger.quotas(target.namespace):
            if in_scope(quota, PODS, value):
                _check(attributes, new, quota)


def _asked(pod: Mapping[str, Any]) -> Iterator[_Asked]:
    spec, annotations = pod.get("spec", {}), metadata(pod).get("annotations", {})
    for kind, name in spec.get("resources", {}).get("classes", {}).items():
        yield _Asked("", kind, name)
    for _, container in containers(spec):
        owner = container.get("name", "")
        for kind, name in container.get("resources", {}).get("classes", {}).items():
            yield _Asked(owner, kind, name)
        for kind, given in annotated(annotations, owner).items():
            yield _Asked(owner, kind, given.class_name)


def _check(attributes: Attributes, asked: list[_Asked], quota: Mapping[str, Any]) -> None:
    spec = quota.get("spec", {})
    allowed = {
        field: {info.get("name", ""): dict.fromkeys(info.get("classes", ())) for info in spec[field]}
        for field in (POD, CONTAINER)
        if field in spec
    }
    for item in asked:
        types = allowed.get(CONTAINER if item.container else POD)
        if types is None or item.name in types.get(item.type, ()):
            continue
        who = f"container {item.container}" if item.container else "the pod"
        known = ",".join(types.get(item.type, ())) or "none"
        raise refused(
            attributes,
            f"exceeded class quota: {quota['metadata']['name']}, requested: {item.type}={item.name} for {who}, allowed"
            f" classes of {item.type}: {known}",
        )
