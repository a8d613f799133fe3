"""Namespaces. One that is deleted stays until ``spec.finalizers`` is empty: what is in it goes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, at, column
from podkeep.apiserver.kinds.field_rules import named
from podkeep.apiserver.kinds.resources import ALL_VERBS, Part, Resource, Strategy
from podkeep.apiserver.meta.objects import FOREGROUND, ORPHAN, Object, metadata
from podkeep.apiserver.schema.table import Kind

SYSTEM = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Those that are always there."""
NAME_LABEL = "kubernetes.io/metadata.name"
KUBERNETES = "kubernetes"
"""The finalizer that a namespace has in its spec until what is in it is gone."""
ACTIVE = "Active"
TERMINATING = "Terminating"


def _default(value: Object) -> None:
    _label(value)
    if not at(value, "status", "phase"):
        value.setdefault("status", {})["phase"] = ACTIVE


def _label(value: Object) -> None:
    fields = metadata(value)
    if fields.get("name"):
        fields.setdefault("labels", {})[NAME_LABEL] = fields["name"]


def _prepare_create(value: Object) -> None:
    _label(value)  # the name may have been generated after the defaults
    value["status"] = {"phase": ACTIVE}
    finalizers = value.setdefault("spec", {}).setdefault("finalizers", [])
    if KUBERNETES not in finalizers:
        finalizers.append(KUBERNETES)


def _prepare_update(new: Object, old: Object) -> None:
    spec = new.setdefault("spec", {})
    # They change through the subresource `finalize` alone (namespaceStrategy: PrepareForUpdate).
    spec.pop("finalizers", None)
    if finalizers := at(old, "spec", "finalizers"):
        spec["finalizers"] = list(finalizers)


def _validate(value: Object, errors: FieldErrors) -> None:
    for name in at(value, "spec", "finalizers", default=()):
        _finalizer(name, "spec.finalizers", errors)


def _finalizer(name: str, path: str, errors: FieldErrors) -> None:
    named(path, name, names.label_key_problems(name), errors)
    if "/" not in name and name not in (KUBERNETES, ORPHAN, FOREGROUND):
        errors.invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")


def _validate_status(new: Object, _: Object, errors: FieldErrors) -> None:
    phase = at(new, "status", "phase", default="")
    if "deletionTimestamp" in metadata(new):
        if phase != TERMINATING:
            errors.invalid("status.Phase", phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
    elif phase != ACTIVE:
        errors.invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")


def _prepare_finalize(new: Object, _: Object) -> None:
    """Take the finalizers, and the rest but for the status."""
    _label(new)


def _validate_finalize(new: Object, _: Object, errors: FieldErrors) -> None:
    for index, name in enumerate(at(new, "spec", "finalizers", default=())):
        _finalizer(name, f"spec.finalizers[{index}]", errors)


def _begin_deletion(value: Object) -> None:
    # A namespace has none: it goes when what is in it is gone.
    value["metadata"].pop("deletionGracePeriodSeconds", None)
    value.setdefault("status", {})["phase"] = TERMINATING


def _removable(value: Mapping[str, Any]) -> bool:
    return not at(value, "spec", "finalizers")


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "Namespace"),
        plural="namespaces",
        namespaced=False,
        short_names=("ns",),
        subresources=frozenset({"finalize", "status"}),
        verbs=ALL_VERBS - {"deletecollection"},
        columns=(NAME, column("Status", lambda value: at(value, "status", "phase", default="")), AGE),
        strategy=Strategy(
            default=_default,
            prepare_create=_prepare_create,
            prepare_update=_prepare_update,
            validate=_validate,
            validate_status=_validate_status,
            parts={"finalize": Part(prepare=_prepare_finalize, validate=_validate_finalize)},
            status=True,
            name_rule=names.dns_label,
            begin_deletion=_begin_deletion,
            removable=_removable,
            returns_deleted=True,
            selectable=lambda value: {"status.phase": at(value, "status", "phase", default="")},
        ),
    ),
)
