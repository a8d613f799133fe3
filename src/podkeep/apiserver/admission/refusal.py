"""The error of a plugin that refuses a write (apiserver: ``admission.NewForbidden``)."""

from __future__ import annotations

from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError, forbidden


def name_of(attributes: Attributes) -> str:
    """Return the name of the object that is written; empty if it has none yet."""
    name: str = attributes.target.name or metadata(attributes.value or {}).get("name", "")
    return name


def refused(attributes: Attributes, why: str) -> StatusError:
    resource = attributes.target.resource
    name = name_of(attributes) or metadata(attributes.value or {}).get("generateName", "") or "Unknown!"
    return forbidden(resource.plural, resource.group, name, why)
