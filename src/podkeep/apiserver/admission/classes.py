"""Class resources (KEP-3008) of pods that are there: annotations stay, and fields of a gate that is off are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.api.class_resources import ANNOTATED_TYPES, domain
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.admission.pod_specs import PODS, containers
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import invalid

_PREFIXES = tuple(f"{domain(name)}/" for name in ANNOTATED_TYPES)
_GATE_OFF = f"the feature gate {CLASS_RESOURCES.name} is off"
_IMMUTABLE = "annotations of class resources may not be added, changed or removed: they tell what the pod was given"


class ClassResources:
    """The plugin ``ClassResources``, which cannot be disabled."""

    def __init__(self, gates: FeatureGates | None = None) -> None:
        self._enabled = (gates or FeatureGates()).enabled(CLASS_RESOURCES)

    def mutate(self, attributes: Attributes) -> None:
        """Refuse classes with the gate off, before fields of gates that are off are dropped without a word.

        A pod that has them keeps them.

        :raises StatusError: 422.
        """
        if self._enabled or attributes.value is None or not _is_pod(attributes):
            return
        errors = FieldErrors()
        before = {name: classes for _, name, classes in _asked(attributes.old or {})}
        for path, name, classes in _asked(attributes.value):
            if before.get(name) != classes:
                errors.forbidden(path, _GATE_OFF)
        _refuse(attributes, errors)

    def validate(self, attributes: Attributes) -> None:
        """Refuse an update of a pod, by any subresource, that changes an annotation of classes.

        :raises StatusError: 422.
        """
        if attributes.value is None or not _is_pod(attributes):
            return
        # A Binding's annotations become the pod's.
        if attributes.old is None and attributes.target.subresource != "binding":
            return
        now = metadata(attributes.value).get("annotations", {})
        before = {} if attributes.old is None else metadata(attributes.old).get("annotations", {})
        if now == before:
            return
        errors = FieldErrors()
        for key in sorted(now.keys() | before.keys()):
            if key.startswith(_PREFIXES) and now.get(key) != before.get(key):
                errors.forbidden(f"metadata.annotations[{key}]", _IMMUTABLE)
        _refuse(attributes, errors)


def _is_pod(attributes: Attributes) -> bool:
    return attributes.target.resource.storage_name == PODS


def _asked(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield every field with classes: its path, the container's name, which is empty for the pod, and the classes."""
    spec = pod.get("spec", {})
    for path, name, owner in (
        ("spec", "", spec),
        *((path, container.get("name", ""), container) for path, container in containers(spec)),
    ):
        if classes := owner.get("resources", {}).get("classes"):
            yield f"{path}.resources.classes", name, classes


def _refuse(attributes: Attributes, errors: FieldErrors) -> None:
    if errors.found:
        kind = attributes.target.resource.kind
        raise invalid(kind.kind, kind.group, attributes.target.name, errors.found)
