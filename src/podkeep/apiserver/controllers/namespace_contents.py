"""What every namespace has: the service account ``default`` and the ConfigMap ``kube-root-ca.crt``; and the namespaces
that are always there.

After kube-controller-manager's serviceaccounts-controller and root-ca-certificate-publisher, and kube-apiserver's
systemnamespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Create,
    Item,
    Patch,
    Plan,
    Write,
    service_account,
)
from podkeep.apiserver.controllers.namespaces import NAMESPACES
from podkeep.apiserver.kinds.cluster.namespaces import SYSTEM
from podkeep.apiserver.meta.lister import Lister

SERVICE_ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
_CA_KEY = "ca.crt"
_DESCRIPTION = {
    "kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using"
    " internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed"
    " across distributions of Kubernetes clusters."
}
_RESOURCES = {"serviceaccounts": SERVICE_ACCOUNT, "configmaps": ROOT_CA}


class NamespaceContents:
    """The controller.

    :param root_ca: PEM of the certificate authority that pods verify this API with.
    """

    name = "serviceaccounts-controller"
    user = service_account("service-account-controller")
    resources = frozenset({NAMESPACES, *_RESOURCES})

    def __init__(self, root_ca: str) -> None:
        self._root_ca = root_ca

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the namespace that may lack something."""
        key = change.key
        if key.resource == NAMESPACES:
            # Without the one for leases no node could say that it is alive.
            if not change.is_deletion or key.name in SYSTEM:
                yield key.name
        elif key.name == _RESOURCES[key.resource] and (change.is_deletion or change.key.resource == "configmaps"):
            yield key.namespace

    def reconcile(self, item: Item, lister: Lister, _now: datetime) -> Plan:
        name = str(item)
        namespace = lister.get(NAMESPACES, "", name)
        if namespace is None and name in SYSTEM:
            return Plan(writes=[Create(resource=NAMESPACES, namespace="", value={"metadata": {"name": name}})])
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return NOTHING
        writes: list[Write] = []
        if lister.get("serviceaccounts", name, SERVICE_ACCOUNT) is None:
            account = {"metadata": {"name": SERVICE_ACCOUNT}}
            writes.append(Create(resource="serviceaccounts", namespace=name, value=account))
        found = lister.get("configmaps", name, ROOT_CA)
        data = {_CA_KEY: self._root_ca}
        if found is None:
            bundle = {"metadata": {"name": ROOT_CA, "annotations": _DESCRIPTION}, "data": data}
            writes.append(Create(resource="configmaps", namespace=name, value=bundle))
        elif found.get("data") != data or not _DESCRIPTION.items() <= found["metadata"].get("annotations", {}).items():
            others = dict.fromkeys(found.get("data", {}).keys() - data.keys())
            patch = {"metadata": {"annotations": _DESCRIPTION}, "data": {**others, **data}, "binaryData": None}
            writes.append(Patch(resource="configmaps", namespace=name, name=ROOT_CA, patch=patch))
        return Plan(writes=writes)
