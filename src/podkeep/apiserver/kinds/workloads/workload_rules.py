"""What workloads have in common: rules for their pod templates, and what their statuses begin with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.pods.template import drop_pod_template, pod_template_warnings, validate_pod_template
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.patch.values import equal

UNSERVED = "no pods are made of it unless kube-controller-manager runs beside podkeep"
MISMATCH = "`selector` does not match template `labels`"


def shown_rolling(rolling: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a rolling update as an error shows it."""
    if rolling is None:
        return None
    return {"MaxUnavailable": rolling.get("maxUnavailable", 0), "MaxSurge": rolling.get("maxSurge", 0)}


def template_labels(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a pod template; an empty map if there are none."""
    found: dict[str, str] = at(template, "metadata", "labels", default={})
    return found


def selector_matches(selector: Mapping[str, Any] | None, template: Mapping[str, Any]) -> bool:
    """Tell whether a ``LabelSelector`` without errors selects the pods of a template."""
    found = field_rules.parsed(selector)
    return found is not None and found.matches(template_labels(template))


def note_mismatch(template: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    """Note that the selector of a workload does not select its own pods."""
    shown = field_rules.in_order(at(template, "metadata", "labels"))
    errors.invalid(f"{path}.metadata.labels", shown, MISMATCH)


def required_selector(spec: Mapping[str, Any], workload: str, errors: FieldErrors) -> None:
    """Note what is wrong with a ``spec.selector`` that has to select something."""
    selector = spec.get("selector")
    if selector is None:
        errors.required("spec.selector", "")
        return
    field_rules.label_selector(selector, "spec.selector", errors)
    if field_rules.is_empty(selector):
        errors.invalid("spec.selector", field_rules.shown(selector), f"empty selector is invalid for {workload}")


def long_running_template(template: dict[str, Any], path: str, workload: str, errors: FieldErrors) -> None:
    """Note every rule that a template breaks whose pods are to run for good."""
    validate_pod_template(template, path, errors)
    always_restarted(template, path, workload, errors)


def always_restarted(template: Mapping[str, Any], path: str, workload: str, errors: FieldErrors) -> None:
    """Note what would let pods that are to run for good come to an end."""
    spec = template.get("spec", {})
    if spec.get("restartPolicy") != "Always":
        errors.unsupported(f"{path}.spec.restartPolicy", spec.get("restartPolicy", ""), ("Always",))
    if spec.get("activeDeadlineSeconds") is not None:
        errors.forbidden(f"{path}.spec.activeDeadlineSeconds", f"activeDeadlineSeconds in {workload} is not Supported")


def validate_replicas(
    status: Mapping[str, Any], counted: tuple[str, ...], numbers: tuple[str, ...], errors: FieldErrors
) -> None:
    """Note numbers of a status that cannot be.

    :param counted: the numbers of pods that are at most ``replicas``.
    :param numbers: all that are not negative, ``counted`` among them.
    """
    field_rules.not_negative(status, numbers, "status", errors)
    field_rules.not_above(status, counted, "replicas", "cannot be greater than status.replicas", errors)


def validate_collisions(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note a ``status.collisionCount`` that was taken back."""
    count, before = at(new, "status", "collisionCount"), at(old, "status", "collisionCount")
    if before is not None and (count is None or count < before):
        errors.invalid("status.collisionCount", count or 0, "cannot be decremented")


def begin_status(value: Object, **zeros: int) -> None:
    """Fill in the numbers that a status always has."""
    status = value.setdefault("status", {})
    for name, zero in zeros.items():
        status.setdefault(name, zero)


def name_warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    """Return what is to be said of a new workload whose name cannot be the host name of a pod."""
    why = "" if old is not None else names.dns_label(new["metadata"]["name"])
    if not why:
        return []
    return [
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label"
        f" is recommended: [{why}]"
    ]


def template_warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    """Return what is to be said of the template of a workload that is new or has changed."""
    spec = new.get("spec", {})
    if "template" not in spec or (old is not None and equal(spec, old.get("spec"))):
        return []
    return pod_template_warnings(spec["template"], "spec.template")


def drop_template(new: Object, old: Object | None, gates: FeatureGates) -> None:
    """Remove fields of ``spec.template`` whose feature gate is off, unless the old one uses them."""
    if (template := at(new, "spec", "template")) is not None:
        drop_pod_template(template, at(old or {}, "spec", "template"), gates)
