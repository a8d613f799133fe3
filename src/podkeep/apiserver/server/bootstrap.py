"""What is there from the start: namespaces, priority classes, authorities, and the roles that everybody counts on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from podkeep.apiserver.auth import default_policy
from podkeep.apiserver.auth.default_policy import Change
from podkeep.apiserver.auth.user import MASTERS, User
from podkeep.apiserver.kinds.access import rbac
from podkeep.apiserver.kinds.cluster import configuration
from podkeep.apiserver.kinds.cluster.namespaces import RESOURCES as NAMESPACE_RESOURCES
from podkeep.apiserver.kinds.cluster.namespaces import SYSTEM
from podkeep.apiserver.kinds.policy import priority_classes
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, Registry, Request

AUTHENTICATION = "extension-apiserver-authentication"
SERVER = User(name="system:apiserver", groups=(MASTERS,))
REQUEST = Request(field_manager="podkeep", user=SERVER)


async def make_namespaces(registry: Registry) -> None:
    """Create the namespaces that every client may count on (kube-apiserver: ``systemnamespaces``)."""
    (resource,) = NAMESPACE_RESOURCES
    await _make(registry, resource, [{"metadata": {"name": name}} for name in SYSTEM])


async def make_priority_classes(registry: Registry) -> None:
    """Create the classes of pods that the system cannot do without (kube-apiserver: ``scheduling/rest``)."""
    (resource,) = priority_classes.RESOURCES
    await _make(registry, resource, priority_classes.system_classes())


async def _make(registry: Registry, resource: Resource, values: Iterable[Object]) -> None:
    """Create objects unless they are there."""
    for value in values:
        try:
            await registry.create(Target(resource, ""), value, REQUEST)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise


async def publish_authorities(registry: Registry, lister: Lister, authorities: str) -> None:
    """Publish which authorities clients' certificates are verified against: schedulers and controllers, which serve
    metrics, ask for them and take the same clients (kube-apiserver: ``clusterauthenticationtrust``).

    :param authorities: certificates as PEM.
    """
    resource = next(item for item in configuration.RESOURCES if item.plural == "configmaps")
    target = Target(resource, "kube-system", AUTHENTICATION)
    data = {"client-ca-file": authorities}
    old = lister.get(*target.key)
    value = {"metadata": {"name": AUTHENTICATION, "namespace": "kube-system"}, "data": data}
    if old is None:
        await registry.create(target._replace(name=""), value, REQUEST)
    elif old.get("data") != data:
        await registry.update(target, {**old, "data": data}, REQUEST)


async def make_roles(registry: Registry, lister: Lister) -> None:
    """Create and complete the default roles and their bindings (kube-apiserver: ``rbac/bootstrap-roles``)."""
    resources = {resource.plural: resource for resource in rbac.RESOURCES}
    for change in default_policy.reconcile(lister):
        await _write(registry, resources[change.plural], change)


async def _write(registry: Registry, resource: Resource, change: Change) -> None:
    fields = metadata(change.value)
    target = Target(resource, fields.get("namespace", ""), fields["name"])
    if change.old is not None and not change.recreate:
        await registry.update(target, _whole(change.value, change.old), REQUEST)
        return
    if change.old is not None:
        await registry.delete(target, DeleteOptions(), REQUEST)
    await registry.create(target._replace(name=""), change.value, REQUEST)


def _whole(value: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that replaces the one it was computed from, and no other."""
    return {**value, "metadata": {**value["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}}
