"""Which resources quotas and limits name: ``cpu``, ``requests.memory``, ``hugepages-2Mi``, ``example.com/gpu``.

The rules are those of Kubernetes' pkg/apis/core/validation and pkg/apis/core/helper. Pure.
"""

from __future__ import annotations

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods.resources import HUGE_PAGES
from podkeep.apiserver.kinds.pods.validation.requirements import is_extended, is_native, name_problem

_COMPUTE = frozenset({"cpu", "memory", "ephemeral-storage"})
_QUOTA = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "requests.storage",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
        *_COMPUTE,
        *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _COMPUTE),
    }
)


def is_overcommitted(name: str) -> bool:
    """Tell whether limits of a resource may be larger than requests."""
    return is_native(name) and not name.startswith(HUGE_PAGES)


def is_for_quota(name: str) -> bool:
    """Tell whether a resource is one that quotas know by its own name."""
    return name in _QUOTA or name.startswith((HUGE_PAGES, f"requests.{HUGE_PAGES}"))


def validate_name(name: str, path: str, errors: FieldErrors) -> None:
    """Note why ``name`` is no resource."""
    if why := name_problem(name):
        errors.invalid(path, name, why)


def validate_container_name(name: str, path: str, errors: FieldErrors) -> None:
    """Note why a container cannot ask for ``name``."""
    validate_name(name, path, errors)
    if "/" not in name:
        if name not in _COMPUTE and not name.startswith(HUGE_PAGES):
            errors.invalid(path, name, "must be a standard resource for containers")
    elif not is_native(name) and not is_extended(name):
        errors.invalid(path, name, "doesn't follow extended resource name standard")


def validate_quota_name(name: str, path: str, errors: FieldErrors) -> None:
    """Note why a quota cannot limit ``name``."""
    validate_name(name, path, errors)
    if "/" not in name and not is_for_quota(name):
        errors.invalid(path, name, "must be a standard resource for quota")
