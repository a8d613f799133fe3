"""Users, as authentication names them (``authentication.k8s.io/v1`` ``UserInfo``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs

from podkeep.api import names
from podkeep.base.frozen import FrozenStruct

ADMIN = "kubernetes-admin"
"""Root of this machine, and whoever has ``admin.conf``."""
ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
"""The group that may do everything."""
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""What of a user's ``extra`` says which credential it was."""
NODES = "system:nodes"
NODE = "system:node:"
"""What the names of nodes' users begin with."""
SERVICE_ACCOUNTS = "system:serviceaccounts"
SERVICE_ACCOUNT = "system:serviceaccount:"
"""What the names of service accounts' users begin with; namespace, a colon and name follow."""
SYSTEM_NAMESPACE = "kube-system"
"""Of the accounts of controllers, those of this API server among them."""
_CONTROL_PLANE = frozenset({"system:kube-controller-manager", "system:kube-scheduler"})


class User(FrozenStruct, kw_only=True):
    """Who asks."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


NOBODY = User(name=ANONYMOUS, groups=(UNAUTHENTICATED,))


def authenticated(user: User) -> User:
    """Return a user with the group of everybody who has shown who they are (apiserver: ``AuthenticatedGroupAdder``)."""
    if user.name == ANONYMOUS or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return structs.replace(user, groups=(*user.groups, AUTHENTICATED))


def node_of(user: User) -> str | None:
    """Return the name of the node whose agent this user is; None for any other user."""
    if not user.name.startswith(NODE) or NODES not in user.groups:
        return None
    return user.name.removeprefix(NODE)


def service_account_name(namespace: str, name: str) -> str:
    return f"{SERVICE_ACCOUNT}{namespace}:{name}"


def service_account_groups(namespace: str) -> tuple[str, str]:
    return SERVICE_ACCOUNTS, f"{SERVICE_ACCOUNTS}:{namespace}"


def service_account_of(user: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account of a user name; None for any other name."""
    namespace, colon, name = user.removeprefix(SERVICE_ACCOUNT).partition(":")
    if not user.startswith(SERVICE_ACCOUNT) or not colon or names.dns_label(namespace) or names.dns_subdomain(name):
        return None
    return namespace, name


def share_of(user: User) -> str:
    """Return whose share of the server a user's requests take: that of a namespace for all its service accounts, since
    whoever may make one there makes as many as they like. Controllers, whose accounts are in ``kube-system``, do not
    wait for each other.
    """
    account = service_account_of(user.name)
    if account is None or account[0] == SYSTEM_NAMESPACE:
        return user.name
    return f"{SERVICE_ACCOUNT}{account[0]}"


def is_of_the_cluster(user: User) -> bool:
    """Tell whether a user is an administrator, a node, or one of those that keep a cluster going: nobody else is to
    keep them waiting."""
    of_the_cluster = {MASTERS, NODES, f"{SERVICE_ACCOUNTS}:{SYSTEM_NAMESPACE}"}
    return user.name in _CONTROL_PLANE or not of_the_cluster.isdisjoint(user.groups)
