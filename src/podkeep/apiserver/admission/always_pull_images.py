"""Images are always pulled, so that a pod needs the credentials for what another pod left on the node.

The plugin ``AlwaysPullImages``, which is off unless it is asked for. It covers image volumes (KEP-4639).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.pod_specs import PODS, containers
from podkeep.apiserver.meta.status import forbidden

ALWAYS = "Always"


class AlwaysPullImages:
    """The plugin ``AlwaysPullImages``."""

    def mutate(self, attributes: Attributes) -> None:
        """Set the pull policy of every image of a new pod, and of a pod that gets other images."""
        if attributes.value is not None and _matters(attributes):
            for _, owner, name in _policies(attributes.value.get("spec", {})):
                owner[name] = ALWAYS

    def validate(self, attributes: Attributes) -> None:
        """Refuse another pull policy.

        :raises StatusError: 403.
        """
        if attributes.value is None or not _matters(attributes):
            return
        errors = FieldErrors()
        for path, owner, name in _policies(attributes.value.get("spec", {})):
            if owner.get(name) != ALWAYS:
                errors.unsupported(path, owner.get(name, ""), [ALWAYS])
        if errors.found:
            target = attributes.target
            why = ", ".join(map(str, errors.found))
            raise forbidden(target.resource.plural, target.resource.group, target.name, why)


def _matters(attributes: Attributes) -> bool:
    if attributes.target.resource.storage_name != PODS or attributes.target.subresource or attributes.value is None:
        return False
    if attributes.operation is not Operation.UPDATE or attributes.old is None:
        return True
    # Pods from before the plugin was on can still be changed, as long as they get no other image
    # (isUpdateWithNoNewImages).
    spec, before = attributes.value.get("spec", {}), attributes.old.get("spec", {})
    return not (_of_containers(spec) <= _of_containers(before) and _of_volumes(spec) <= _of_volumes(before))


def _of_containers(spec: Mapping[str, Any]) -> set[str]:
    return {container.get("image", "") for _, container in containers(spec)}


def _of_volumes(spec: Mapping[str, Any]) -> set[str]:
    return {volume["image"].get("reference", "") for volume in spec.get("volumes", ()) if "image" in volume}


def _policies(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield every pull policy: its path, what it is a field of, and the field's name there."""
    for path, container in containers(spec):
        yield f"{path}.imagePullPolicy", container, "imagePullPolicy"
    for index, volume in enumerate(spec.get("volumes", ())):
        if "image" in volume:
            yield f"spec.volumes[{index}].image.pullPolicy", volume["image"], "pullPolicy"
