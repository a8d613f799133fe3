"""NodeRestriction: a node writes its own objects only, and of those the fields that a kubelet reports.

What nodes may read is for :mod:`podkeep.apiserver.auth.node`. Without this plugin nodes may write each other's objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from podkeep.api.validation import node_labels
from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.refusal import name_of, refused
from podkeep.apiserver.auth import pod_references
from podkeep.apiserver.auth.interfaces import Authorizer, RequestAttributes
from podkeep.apiserver.auth.node import LEASE_NAMESPACE
from podkeep.apiserver.auth.user import node_of
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import not_found
from podkeep.base.text.printable import quote

_CLAIM_STATUS = frozenset({"capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"})


class NodeRestriction:
    """The plugin.

    :param authorizer: is asked whether a node may have tokens for audiences that its pods do not name.
    """

    def __init__(self, lister: Lister, authorizer: Authorizer) -> None:
        self._lister = lister
        self._authorizer = authorizer

    def mutate(self, attributes: Attributes) -> None:
        """Refuse what a node may not create or change."""
        # Where kube-apiserver has it (Admit). A deletion is not mutated, so that validate() looks at it.
        self._check(attributes)

    def validate(self, attributes: Attributes) -> None:
        """Refuse what a node may not delete."""
        if attributes.operation is Operation.DELETE:
            self._check(attributes)

    def _check(self, attributes: Attributes) -> None:
        node = node_of(attributes.user)
        if node is None:
            return
        if not node:
            raise refused(attributes, f"could not determine node from user {quote(attributes.user.name)}")
        resource = attributes.target.resource
        check = _CHECKS.get((resource.group, resource.plural))
        if check is not None:
            check(self, node, attributes)

    def _pod(self, node: str, attributes: Attributes) -> None:
        checks = {"": self._whole_pod, "status": _pod_status, "eviction": self._eviction}
        subresource = attributes.target.subresource
        if subresource not in checks:
            raise refused(
                attributes, f"unexpected pod subresource {quote(subresource)}, only 'status' and 'eviction' are allowed"
            )
        checks[subresource](node, attributes)

    def _whole_pod(self, node: str, attributes: Attributes) -> None:
        if attributes.operation is Operation.CREATE:
            self._new_pod(node, attributes)
        elif attributes.operation is not Operation.DELETE:
            raise refused(
                attributes,
                f'unexpected operation "{attributes.operation}", node "{node}" can only create and delete mirror pods',
            )
        elif _node_of_pod(self._existing_pod(attributes)) != node:
            raise refused(attributes, f'node "{node}" can only delete pods with spec.nodeName set to itself')

    def _existing_pod(self, attributes: Attributes, name: str = "") -> Mapping[str, Any]:
        name = name or name_of(attributes)
        pod = self._lister.get("pods", attributes.target.namespace, name)
        if pod is None:
            raise not_found("pods", "", name)
        return pod

    def _new_pod(self, node: str, attributes: Attributes) -> None:
        pod = attributes.value or {}
        if not pod_references.is_mirror(pod):
            raise refused(
                attributes,
                f'pod does not have "{pod_references.MIRROR}" annotation, node "{node}" can only create mirror pods',
            )
        if _node_of_pod(pod) != node:
            raise refused(attributes, f'node "{node}" can only create pods with spec.nodeName set to itself')
        self._owner(node, attributes, metadata(pod).get("ownerReferences", []))
        # A node may read what its pods name: those that it makes itself must name nothing.
        if reference := pod_references.api_reference(pod):
            raise refused(attributes, f'node "{node}" can not create pods that reference {reference}')

    def _owner(self, node: str, attributes: Attributes, owners: list[Mapping[str, Any]]) -> None:
        only = f'node "{node}" can only create pods with'
        if len(owners) > 1:
            raise refused(attributes, f"{only} a single owner reference set to itself")
        owner = owners[0] if owners else {}
        if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
            raise refused(attributes, f"{only} an owner reference set to itself")
        if not owner.get("controller"):
            raise refused(attributes, f"{only} a controller owner reference set to itself")
        if owner.get("blockOwnerDeletion"):
            raise refused(attributes, f'node "{node}" must not set blockOwnerDeletion on an owner reference')
        found = self._lister.get("nodes", "", node)
        if found is None:
            raise not_found("nodes", "", node)
        if owner.get("uid") != (uid := metadata(found)["uid"]):
            raise refused(attributes, f"node {node} UID mismatch: expected {owner.get('uid', '')} got {uid}")

    def _eviction(self, node: str, attributes: Attributes) -> None:
        if attributes.operation is not Operation.CREATE:
            raise refused(attributes, f"unexpected operation {attributes.operation}")
        if not name_of(attributes):
            raise refused(attributes, "could not determine pod from request data")
        if _node_of_pod(self._existing_pod(attributes)) != node:
            raise refused(attributes, f"node {node} can only evict pods with spec.nodeName set to itself")

    def _node(self, node: str, attributes: Attributes) -> None:
        name = name_of(attributes)
        if name != node:
            raise refused(attributes, f'node "{node}" is not allowed to modify node "{name}"')
        new, old = attributes.value or {}, attributes.old or {}
        spec, before = new.get("spec", {}), old.get("spec", {})
        if attributes.operation is Operation.CREATE:
            if "configSource" in spec:
                raise refused(attributes, f'node "{node}" is not allowed to create pods with a non-nil configSource')
            # By other labels a node could steer privileged pods to itself (admitNode).
            if labels := _forbidden_labels(new, {}):
                raise refused(
                    attributes, f'node "{node}" is not allowed to set the following labels: {", ".join(labels)}'
                )
        if attributes.operation is not Operation.UPDATE:
            return
        if "configSource" in spec and spec["configSource"] != before.get("configSource"):
            raise refused(
                attributes, f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
            )
        # Without its taints a node would get pods that were to be kept away from it.
        if (spec.get("taints") or []) != (before.get("taints") or []):
            raise refused(attributes, f'node "{node}" is not allowed to modify taints')
        # With an owner that is gone, a node would be garbage, and could come back with other labels and taints
        # (CVE-2025-5187).
        if (metadata(new).get("ownerReferences") or []) != (metadata(old).get("ownerReferences") or []):
            raise refused(attributes, f'node "{node}" is not allowed to modify ownerReferences')
        if labels := _forbidden_labels(new, old):
            raise refused(attributes, f"is not allowed to modify labels: {', '.join(labels)}")

    def _claim(self, node: str, attributes: Attributes) -> None:
        if attributes.target.subresource != "status":
            raise refused(attributes, "may only update PVC status")
        if attributes.operation is not Operation.UPDATE:
            raise refused(attributes, f'unexpected operation "{attributes.operation}"')
        if _beyond_claim_status(attributes.value or {}) != _beyond_claim_status(attributes.old or {}):
            raise refused(
                attributes,
                f'node "{node}" is not allowed to update fields other than status.quantity and status.conditions',
            )

    def _service_account(self, node: str, attributes: Attributes) -> None:
        if attributes.operation is not Operation.CREATE or attributes.target.subresource != "token":
            return
        spec = (attributes.value or {}).get("spec", {})
        ref = spec.get("boundObjectRef", {})
        if (ref.get("apiVersion"), ref.get("kind")) != ("v1", "Pod") or not ref.get("name"):
            raise refused(attributes, "node requested token not bound to a pod")
        if not ref.get("uid"):
            raise refused(attributes, "node requested token with a pod binding without a uid")
        pod = self._existing_pod(attributes, ref["name"])
        if ref["uid"] != metadata(pod)["uid"]:
            raise refused(
                attributes,
                f"the UID in the bound object reference ({ref['uid'][:80]}) does not match the UID in record. The"
                " object might have been deleted and then recreated",
            )
        if _node_of_pod(pod) != node:
            raise refused(attributes, "node requested token bound to a pod scheduled on a different node")
        self._audience(attributes, pod, spec.get("audiences", []))

    def _audience(self, attributes: Attributes, pod: Mapping[str, Any], audiences: list[str]) -> None:
        if len(audiences) > 1:
            raise refused(attributes, "node may only request 0 or 1 audiences")
        audience = audiences[0] if audiences else ""
        if audience in _token_audiences(pod):
            return
        user = attributes.user
        asked = RequestAttributes(
            verb="request-serviceaccounts-token-audience",
            version="v1",
            resource=audience,
            namespace=attributes.target.namespace,
            name=attributes.target.name,
        )
        if not self._authorizer.authorize(user, asked).allowed:
            raise refused(
                attributes,
                f"audience {quote(audience)} not found in pod spec volume, {user.name} is not authorized to request"
                " tokens for this audience",
            )

    def _lease(self, node: str, attributes: Attributes) -> None:
        if attributes.target.namespace != LEASE_NAMESPACE:
            raise refused(attributes, f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
        if name_of(attributes) != node:
            raise refused(attributes, "can only access node lease with the same name as the requesting node")

    def _csi_node(self, node: str, attributes: Attributes) -> None:
        # What is created has its name in its body, which authorization does not see.
        if name_of(attributes) != node:
            raise refused(attributes, "can only access CSINode with the same name as the requesting node")


_CHECKS: Mapping[tuple[str, str], Callable[[NodeRestriction, str, Attributes], None]] = {
    ("", "pods"): NodeRestriction._pod,
    ("", "nodes"): NodeRestriction._node,
    ("", "persistentvolumeclaims"): NodeRestriction._claim,
    ("", "serviceaccounts"): NodeRestriction._service_account,
    ("coordination.k8s.io", "leases"): NodeRestriction._lease,
    ("storage.k8s.io", "csinodes"): NodeRestriction._csi_node,
}


def _node_of_pod(pod: Mapping[str, Any]) -> str:
    name: str = pod.get("spec", {}).get("nodeName", "")
    return name


def _token_audiences(pod: Mapping[str, Any]) -> set[str]:
    return {
        source["serviceAccountToken"].get("audience", "")
        for volume in pod.get("spec", {}).get("volumes", ())
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }


def _pod_status(node: str, attributes: Attributes) -> None:
    if attributes.operation is not Operation.UPDATE:
        raise refused(attributes, f'unexpected operation "{attributes.operation}"')
    new, old = attributes.value or {}, attributes.old or {}
    if _node_of_pod(old) != node:
        raise refused(attributes, f'node "{node}" can only update pod status for pods with spec.nodeName set to itself')
    if (metadata(new).get("labels") or {}) != (metadata(old).get("labels") or {}):
        raise refused(attributes, f'node "{node}" cannot update labels through pod status')
    for name, what in (
        ("resourceClaimStatuses", "resource claim statues"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
    ):
        if (new.get("status", {}).get(name) or None) != (old.get("status", {}).get(name) or None):
            raise refused(attributes, f'node "{node}" cannot update {what}')


def _beyond_claim_status(claim: Mapping[str, Any]) -> Object:
    # An unconditional update has no resourceVersion, and each write changes managedFields.
    fields = {name: item for name, item in metadata(claim).items() if name not in ("resourceVersion", "managedFields")}
    status = {name: item for name, item in claim.get("status", {}).items() if name not in _CLAIM_STATUS}
    return {**claim, "metadata": fields, "status": status}


def _forbidden_labels(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Return the labels that a node sets, changes or removes though they are not its to say, in order."""
    after, before = metadata(new).get("labels") or {}, metadata(old).get("labels") or {}
    changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
    return sorted(filter(node_labels.is_forbidden, changed))
