"""What admission plugins are told, without a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence
from typing import Any

from podkeep.apiserver.admission.attributes import Admission, Attributes, Operation
from podkeep.apiserver.auth.user import NOBODY, User
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.schema.table import Kind
from support.objects import Decoded

NAMESPACED = {
    "pods": Kind("", "v1", "Pod"),
    "podtemplates": Kind("", "v1", "PodTemplate"),
    "replicationcontrollers": Kind("", "v1", "ReplicationController"),
    "persistentvolumeclaims": Kind("", "v1", "PersistentVolumeClaim"),
    "deployments": Kind("apps", "v1", "Deployment"),
    "daemonsets": Kind("apps", "v1", "DaemonSet"),
    "statefulsets": Kind("apps", "v1", "StatefulSet"),
    "replicasets": Kind("apps", "v1", "ReplicaSet"),
    "jobs": Kind("batch", "v1", "Job"),
    "cronjobs": Kind("batch", "v1", "CronJob"),
    "configmaps": Kind("", "v1", "ConfigMap"),
}
CLUSTER = {
    "namespaces": Kind("", "v1", "Namespace"),
    "nodes": Kind("", "v1", "Node"),
    "persistentvolumes": Kind("", "v1", "PersistentVolume"),
    "storageclasses": Kind("storage.k8s.io", "v1", "StorageClass"),
}
RESOURCES = {
    name: Resource(kind=kind, plural=name, namespaced=name in NAMESPACED)
    for name, kind in {**NAMESPACED, **CLUSTER}.items()
}


class Objects(Decoded):
    """A lister of given objects, each under the name of its resource as the store names it."""

    def __init__(self, *objects: tuple[str, Mapping[str, Any]]) -> None:
        self._objects = objects

    def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return next((value for value in self.list(resource, namespace) if value["metadata"]["name"] == name), None)

    def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
        for found, value in self._objects:
            if found == resource and namespace in ("", value["metadata"].get("namespace", "")):
                yield value


class CountedObjects(Objects):
    """The same, and ``read``: the name of each object that was read, in order."""

    def __init__(self, *objects: tuple[str, Mapping[str, Any]]) -> None:
        super().__init__(*objects)
        self.read: MutableSequence[str] = []

    def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
        for value in super().list(resource, namespace):
            self.read.append(value["metadata"]["name"])
            yield value


def attributes(
    resource: str,
    value: dict[str, Any] | None,
    old: dict[str, Any] | None = None,
    *,
    operation: Operation | None = None,
    subresource: str = "",
    user: User = NOBODY,
) -> Attributes:
    """Return what is told of a write; without ``operation`` of an update if there is an old object."""
    metadata = (value or old or {}).get("metadata", {})
    namespace = metadata.get("namespace", "default") if resource in NAMESPACED else ""
    target = Target(RESOURCES[resource], namespace, metadata.get("name", ""), subresource)
    found = operation or (Operation.UPDATE if old is not None else Operation.CREATE)
    return Attributes(operation=found, target=target, value=value, old=old, user=user)


def admit(plugin: Admission, told: Attributes) -> Attributes:
    """Let a plugin change and refuse a write."""
    plugin.mutate(told)
    plugin.validate(told)
    return told
