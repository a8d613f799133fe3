"""Pod templates: what workloads and PodTemplates make pods from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.pods import gates as pod_gates
from podkeep.apiserver.kinds.pods.defaults import default_pod_spec
from podkeep.apiserver.kinds.pods.validation.spec import (
    validate_annotations,
    validate_pod_spec,
    validate_profiles_agree,
)
from podkeep.apiserver.kinds.pods.warnings import warnings
from podkeep.apiserver.patch.managers import MAX_ANNOTATION_BYTES, annotation_bytes

Template = dict[str, Any]
"""A ``PodTemplateSpec``: ``metadata`` and ``spec``."""


def default_pod_template(template: Template) -> None:
    """Fill in what a template leaves out, but what only a pod has, such as requests that follow from limits."""
    default_pod_spec(template.setdefault("spec", {}))


def drop_pod_template(template: Template, old: Template | None, gates: FeatureGates) -> None:
    """Remove fields whose feature gate is off, unless the old template uses them."""
    pod_gates.drop(template.get("spec", {}), None if old is None else old.get("spec", {}), gates)


def validate_pod_template(template: Template, path: str, errors: FieldErrors) -> None:
    """Note every rule that a template breaks after defaulting.

    :param path: of the template: ``spec.template``, or ``template`` of a PodTemplate.
    """
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    annotations = metadata.get("annotations", {})
    # These two paths are kube-apiserver's.
    field_rules.labels(metadata.get("labels", {}), f"{path}.labels", errors)
    where = f"{path}.annotations"
    for key in annotations:
        field_rules.named(where, key, names.label_key_problems(key.lower()), errors)
    if annotation_bytes(annotations) > MAX_ANNOTATION_BYTES:
        errors.add(where, f"Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes")
    validate_annotations(annotations, spec, f"{path}.spec", where, errors)
    validate_pod_spec(spec, f"{path}.spec", errors, metadata=metadata, is_pod=False)
    validate_profiles_agree(annotations, spec, f"{path}.spec", errors)
    if spec.get("ephemeralContainers"):
        errors.forbidden(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")


def pod_template_warnings(template: Mapping[str, Any], path: str) -> list[str]:
    """Return what a client should know of a template that is taken."""
    return warnings(template, f"{path}.")
