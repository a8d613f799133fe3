"""Image volumes (KEP-4639) at their alpha stage, which a gate brings back: without sub paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.api.feature_gates import IMAGE_VOLUME_SUB_PATHS, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.admission.pod_specs import containers, template
from podkeep.apiserver.meta.status import invalid

_WHY = "not allowed in image volume sources"
_FIELDS = ("subPath", "subPathExpr")


class ImageVolumes:
    """The plugin ``ImageVolumes``, which cannot be disabled."""

    def __init__(self, gates: FeatureGates | None = None) -> None:
        self._sub_paths = (gates or FeatureGates()).enabled(IMAGE_VOLUME_SUB_PATHS)

    def mutate(self, attributes: Attributes) -> None: ...

    def validate(self, attributes: Attributes) -> None:
        """Refuse sub paths of image volumes with the gate off. What an object has already it keeps.

        :raises StatusError: 422 (core/validation, Kubernetes 1.31: ``ValidateVolumeMounts``).
        """
        resource = attributes.target.resource
        if self._sub_paths or attributes.value is None:
            return
        before = {(path, text) for path, text in _sub_paths(resource.storage_name, attributes.old or {})}
        errors = FieldErrors()
        for path, text in _sub_paths(resource.storage_name, attributes.value):
            if (path, text) not in before:
                errors.invalid(path, text, _WHY)
        if errors.found:
            raise invalid(resource.kind.kind, resource.kind.group, attributes.target.name, errors.found)


def _sub_paths(resource: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sub paths of image volumes in a pod or a template, with the paths of their fields."""
    found = template(resource, value)
    if found is None:
        return
    path = f"{found.path}.spec" if found.path else "spec"
    images = {volume.get("name") for volume in found.spec.get("volumes", ()) if "image" in volume}
    for where, container in containers(found.spec, path):
        for index, mount in enumerate(container.get("volumeMounts", ())):
            for field in _FIELDS:
                if mount.get("name") in images and (text := mount.get(field)):
                    yield f"{where}.volumeMounts[{index}].{field}", text
