"""Images are always pulled, so that a pod needs the credentials for what another pod left on the node.

The plugin ``AlwaysPullImages``, which is off unless it is asked for. It covers image volumes (KEP-4639) and ephemeral
containers, which kube-apiserver's passes over: they would have what it keeps from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.pod_specs import PODS, containers
from podkeep.apiserver.meta.status import forbidden

ALWAYS = "Always"
_EPHEMERAL = "ephemeralcontainers"


class AlwaysPullImages:
    """The plugin ``AlwaysPullImages``."""

    def mutate(self, attributes: Attributes) -> None:
        """Set the pull policy of every image of a new pod, of a pod that gets other images, and of new ephemeral
        containers."""
        for _, owner, name in _policies(attributes):
            owner[name] = ALWAYS

    def validate(self, attributes: Attributes) -> None:
        """Refuse another pull policy.

        :raises StatusError: 403.
        """
        errors = FieldErrors()
        for path, owner, name in _policies(attributes):
            if owner.get(name) != ALWAYS:
                errors.unsupported(path, owner.get(name, ""), [ALWAYS])
        if errors.found:
            target = attributes.target
            why = ", ".join(map(str, errors.found))
            raise forbidden(target.resource.plural, target.resource.group, target.name, why)


def _has_new_images(attributes: Attributes, value: Mapping[str, Any]) -> bool:
    if attributes.operation is not Operation.UPDATE or attributes.old is None:
        return True
    # Pods from before the plugin was on can still be changed, as long as they get no other image
    # (isUpdateWithNoNewImages).
    spec, before = value.get("spec", {}), attributes.old.get("spec", {})
    return not (_of_containers(spec) <= _of_containers(before) and _of_volumes(spec) <= _of_volumes(before))


def _of_containers(spec: Mapping[str, Any]) -> set[str]:
    return {container.get("image", "") for _, container in containers(spec)}


def _of_volumes(spec: Mapping[str, Any]) -> set[str]:
    return {volume["image"].get("reference", "") for volume in spec.get("volumes", ()) if "image" in volume}


def _policies(attributes: Attributes) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield every pull policy that matters: its path, what it is a field of, and the field's name there."""
    target, value = attributes.target, attributes.value
    if value is None or target.resource.storage_name != PODS:
        return
    if target.subresource == _EPHEMERAL:
        yield from _of_new_containers(value, attributes.old or {})
    elif not target.subresource and _has_new_images(attributes, value):
        yield from _of_all(value.get("spec", {}))


def _of_new_containers(value: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    # Whatever their images: one that the pod has may be kept from its containers by the credentials it lacks. Those
    # from before the plugin was on cannot be changed.
    known = {container.get("name") for container in old.get("spec", {}).get("ephemeralContainers", ())}
    for index, container in enumerate(value.get("spec", {}).get("ephemeralContainers", ())):
        if container.get("name") not in known:
            yield f"spec.ephemeralContainers[{index}].imagePullPolicy", container, "imagePullPolicy"


def _of_all(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path, container in containers(spec):
        yield f"{path}.imagePullPolicy", container, "imagePullPolicy"
    for index, volume in enumerate(spec.get("volumes", ())):
        if "image" in volume:
            yield f"spec.volumes[{index}].image.pullPolicy", volume["image"], "pullPolicy"
