"""Where pod specs are: in pods, and in the templates of what makes pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from podkeep.apiserver.kinds.pods.validation.fields import CONTAINER_FIELDS

_TEMPLATES = {
    "podtemplates": ("template",),
    "replicationcontrollers": ("spec", "template"),
    "apps/daemonsets": ("spec", "template"),
    "apps/deployments": ("spec", "template"),
    "apps/replicasets": ("spec", "template"),
    "apps/statefulsets": ("spec", "template"),
    "batch/cronjobs": ("spec", "jobTemplate", "spec", "template"),
    "batch/jobs": ("spec", "template"),
}
"""The path to the template, by resource as the store names it."""
PODS = "pods"
RESOURCES = frozenset({PODS, *_TEMPLATES})
"""Whose objects have pod specs."""


class Template(NamedTuple):
    """A pod, or a template of one. ``path`` leads to it, such as ``spec.template``; empty for a pod."""

    path: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]


def template(resource: str, value: Mapping[str, Any]) -> Template | None:
    """Return the pod, or its template, in an object; None if it has none."""
    if resource == PODS:
        return Template("", value.get("metadata", {}), value.get("spec", {}))
    path = _TEMPLATES.get(resource)
    if path is None:
        return None
    for name in path:
        if name not in value:
            return None
        value = value[name]
    return Template(".".join(path), value.get("metadata", {}), value.get("spec", {}))


def containers(spec: Mapping[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every container with its path: init containers, containers, ephemeral containers."""
    for field in CONTAINER_FIELDS:
        for index, container in enumerate(spec.get(field, ())):
            yield f"{path}.{field}[{index}]", container


def images(spec: Mapping[str, Any], path: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield every image that a pod names, with the path of the field: of containers and of volumes (KEP-4639)."""
    for where, container in containers(spec, path):
        if image := container.get("image"):
            yield f"{where}.image", image
    for index, volume in enumerate(spec.get("volumes", ())):
        if reference := volume.get("image", {}).get("reference"):
            yield f"{path}.volumes[{index}].image.reference", reference
