"""Pod templates: what workloads and PodTemplates make pods from."""

from __future__ import annotations

from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pod_defaults import default_pod_spec


def default_pod_template(template: dict[str, Any]) -> None:
    """Fill in what a template leaves out. What only a pod has is not there, such as requests that follow from limits.

    :param template: a ``PodTemplateSpec``: ``metadata`` and ``spec``; changed in place.
    """
    default_pod_spec(template.setdefault("spec", {}))


def validate_pod_template(template: dict[str, Any], path: str, errors: FieldErrors) -> None:
    """Note every rule that a template breaks after defaulting.

    :param template: a ``PodTemplateSpec``.
    :param path: of the template: ``spec.template``, or ``template`` of a PodTemplate.
    """
    spec = template.get("spec", {})
    errors.required(f"{path}.spec.containers", spec.get("containers"))
