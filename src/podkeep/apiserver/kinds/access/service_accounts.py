"""Service accounts. Their tokens are signed by whoever serves ``token``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podkeep.apiserver.kinds.cells import AGE, NAME, at
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.schema.table import Kind

MOUNTABLE_SECRETS = "kubernetes.io/enforce-mountable-secrets"
"""The annotation by which pods of a service account may only use the secrets that it names."""


def _clean_secrets(value: Object, _: Object | None = None) -> None:
    """Keep the names of the secrets alone."""
    # As upstream's strategy (cleanSecretReferences): other fields of a reference would promise what nobody looks at.
    for secret in value.get("secrets", ()):
        for name in secret.keys() - {"name"}:
            del secret[name]


def _warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    if MOUNTABLE_SECRETS not in at(new, "metadata", "annotations", default=()):
        return []
    if old is not None and MOUNTABLE_SECRETS in at(old, "metadata", "annotations", default=()):
        return []
    return [
        f"metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access"
        " to mounted secrets"
    ]


RESOURCES = (
    Resource(
        kind=Kind("", "v1", "ServiceAccount"),
        plural="serviceaccounts",
        short_names=("sa",),
        subresources=frozenset({"token"}),
        columns=(NAME, AGE),
        strategy=Strategy(
            prepare_create=_clean_secrets,
            prepare_update=_clean_secrets,
            warnings=_warnings,
            returns_deleted=True,
        ),
    ),
)
