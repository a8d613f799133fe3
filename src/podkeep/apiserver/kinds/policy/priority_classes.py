"""Priority classes of pods. The two of the system are there from the start."""

from __future__ import annotations

from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.cells import AGE, NAME, column, number
from podkeep.apiserver.kinds.field_rules import immutable, not_supported
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.schema.table import Kind

KIND = Kind("scheduling.k8s.io", "v1", "PriorityClass")
SYSTEM_PREFIX = "system-"
HIGHEST = 1_000_000_000
"""The largest value that users may give."""
_CRITICAL = 2 * HIGHEST
SYSTEM = {
    "system-cluster-critical": _CRITICAL,
    "system-node-critical": _CRITICAL + 1000,
}
"""The values of the system's own classes, by name."""
_ABOUT = {
    "system-cluster-critical": "Used for system critical pods that must run in the cluster, but can be moved to another"
    " node if necessary.",
    "system-node-critical": "Used for system critical pods that must not be moved from their current node.",
}
_POLICIES = ("PreemptLowerPriority", "Never")


def system_classes() -> list[dict[str, Any]]:
    """Return the classes that a server makes when it starts for the first time."""
    return [
        {
            "apiVersion": KIND.api_version,
            "kind": KIND.kind,
            "metadata": {"name": name},
            "value": value,
            "description": _ABOUT[name],
        }
        for name, value in SYSTEM.items()
    ]


def _default(value: Object) -> None:
    value.setdefault("preemptionPolicy", _POLICIES[0])
    value.setdefault("value", 0)


def _prepare_create(value: Object) -> None:
    value["metadata"]["generation"] = 1  # and it stays that


def _validate(value: Object, errors: FieldErrors) -> None:
    name, priority = metadata(value).get("name", ""), value.get("value", 0)
    if name.startswith(SYSTEM_PREFIX):
        if why := _not_of_the_system(name, priority, value.get("globalDefault", False)):
            errors.forbidden(
                "metadata.name",
                f"priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {why}",
            )
    elif priority > HIGHEST:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST}")
    policy = value.get("preemptionPolicy", "")
    if errors.required("preemptionPolicy", policy) and policy not in _POLICIES:
        not_supported("preemptionPolicy", policy, _POLICIES, errors)


def _not_of_the_system(name: str, priority: int, is_default: bool) -> str:
    if name not in SYSTEM:
        return f"{name} is not a known system priority class"
    if priority != SYSTEM[name]:
        return f"value of {name} PriorityClass must be {SYSTEM[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def _validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    if new.get("value", 0) != old.get("value", 0):
        errors.forbidden("value", "may not be changed in an update.")
    immutable(new.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy", errors)


def _undeletable(name: str) -> str:
    # Pods that the node cannot do without name these classes, and are refused if they are missing.
    return "this is a system priority class and cannot be deleted" if name in SYSTEM else ""


RESOURCES = (
    Resource(
        kind=KIND,
        plural="priorityclasses",
        namespaced=False,
        short_names=("pc",),
        columns=(
            NAME,
            number("Value", "value"),
            column("Global-Default", lambda value: value.get("globalDefault", False), type="boolean"),
            AGE,
            column("PreemptionPolicy", lambda value: value.get("preemptionPolicy", "")),
        ),
        strategy=Strategy(
            default=_default,
            prepare_create=_prepare_create,
            validate_create=_validate,
            validate_update=_validate_update,
            undeletable=_undeletable,
        ),
    ),
)
