"""The error of a plugin that refuses a write (apiserver: ``admission.NewForbidden``)."""

from __future__ import annotations

from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, forbidden

MAX_COMPARISONS = 50_000
"""Containers of a pod times what of its namespace each is held against: some 4 µs each, in which nobody else is
answered."""
_CONTAINERS = ("containers", "initContainers")


def name_of(attributes: Attributes) -> str:
    """Return the name of the object that is written; empty if it has none yet."""
    name: str = attributes.target.name or metadata(attributes.value or {}).get("name", "")
    return name


def refused(attributes: Attributes, why: str) -> StatusError:
    resource = attributes.target.resource
    name = name_of(attributes) or metadata(attributes.value or {}).get("generateName", "") or "Unknown!"
    return forbidden(resource.plural, resource.group, name, why)


def require_few(attributes: Attributes, many: int, called: str) -> None:
    """Check that the containers of what is written can be held against so many quotas or limits of its namespace.

    :raises StatusError: 403, if not.
    """
    spec = (attributes.value or {}).get("spec", {})
    containers = sum(len(spec.get(group, ())) for group in _CONTAINERS)
    if many * (1 + containers) > MAX_COMPARISONS:
        why = f"the {called} of namespace {attributes.target.namespace} are too many to hold {containers}"
        raise refused(attributes, f"{why} containers against them; delete some first")
