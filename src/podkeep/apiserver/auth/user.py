"""Users, as authentication names them (``authentication.k8s.io/v1`` ``UserInfo``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
"""The group that may do everything."""
NODES = "system:nodes"
SERVICE_ACCOUNTS = "system:serviceaccounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


NOBODY = User(name=ANONYMOUS, groups=(UNAUTHENTICATED,))
