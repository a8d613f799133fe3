"""What a node may do: read its own objects, and what the pods on it name (``plugin/pkg/auth/authorizer/node``).

An index of what pods name is kept over a lister, and follows what is written. Everything else that is asked for is
compared with the rules of the role ``system:node``. What a node may write of these is for admission to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from podkeep.apiserver.auth import pod_references
from podkeep.apiserver.auth.following import Changes, Following
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.rules import Rule
from podkeep.apiserver.auth.user import User, node_of
from podkeep.apiserver.meta import selectors
from podkeep.apiserver.meta.lister import ChangingLister, Lister
from podkeep.apiserver.meta.objects import metadata
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import quote

LEASE_NAMESPACE = "kube-node-lease"
_ALLOWED = Decision(allowed=True)
_NO_OPINION = Decision(allowed=False)


class Ref(NamedTuple):
    """An object that pods name: a resource, and its namespace and name."""

    resource: str
    namespace: str
    name: str


class _Metadata(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    annotations: dict[str, str] = {}


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    env: list[dict[str, Any]] = []
    env_from: list[dict[str, Any]] = []


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    image_pull_secrets: list[dict[str, Any]] = []
    init_containers: list[_Container] = []
    containers: list[_Container] = []
    ephemeral_containers: list[_Container] = []
    volumes: list[dict[str, Any]] = []


class _NamingPod(msgspec.Struct, frozen=True):
    """What of a pod the index is made of: all pods are read for it, and may be large."""

    metadata: _Metadata
    spec: _PodSpec = _PodSpec()


class _Pod(FrozenStruct):
    """What the index keeps of a pod. ``shape`` is what changes if its references may have."""

    node: str
    shape: tuple[str, int]
    references: tuple[Ref, ...]


class _Volume(FrozenStruct):
    claim: tuple[str, str]
    secrets: tuple[tuple[str, str], ...]


@dataclass
class _Index:
    """Which nodes' pods name an object, and which volumes a claim or secret belongs to."""

    pods: dict[tuple[str, str], _Pod] = field(default_factory=dict)
    named: dict[str, Counter[Ref]] = field(default_factory=dict)
    """Of each node, how many pods on it name an object."""
    volumes: dict[str, _Volume] = field(default_factory=dict)
    secrets: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """The volumes that need a secret."""
    shared: dict[tuple[Ref, ...], tuple[tuple[Ref, ...], int]] = field(default_factory=dict)
    """References of pods, once for all that have the same, and how many these are."""

    def set_pod(self, namespace: str, name: str, pod: Mapping[str, Any] | None) -> None:
        """Take up what a pod is now; None: it is gone."""
        known = self.pods.get((namespace, name))
        node = pod.get("spec", {}).get("nodeName", "") if pod else ""
        if pod is None or not node:
            self._drop(namespace, name, known)
            return
        shape = _shape(pod)
        if known is not None and (known.node, known.shape) == (node, shape):
            return
        self._drop(namespace, name, known)
        references, count = self.shared.get(given := tuple(_references(pod)), (given, 0))
        self.shared[references] = references, count + 1
        self.pods[namespace, name] = _Pod(node, shape, references)
        if references:
            self.named.setdefault(node, Counter()).update(references)

    def _drop(self, namespace: str, name: str, known: _Pod | None) -> None:
        if known is None:
            return
        del self.pods[namespace, name]
        for ref in known.references:
            named = self.named[known.node]
            named[ref] -= 1
            if not named[ref]:
                del named[ref]
            if not named:
                del self.named[known.node]
        references, count = self.shared.pop(known.references)
        if count > 1:
            self.shared[references] = references, count - 1

    def set_volume(self, name: str, volume: Mapping[str, Any] | None) -> None:
        """Take up what a PersistentVolume is now; None: it is gone."""
        if (known := self.volumes.pop(name, None)) is not None:
            for secret in known.secrets:
                self.secrets[secret].discard(name)
                if not self.secrets[secret]:
                    del self.secrets[secret]
        claim = volume.get("spec", {}).get("claimRef") if volume else None
        if volume is None or claim is None:
            return
        secrets = tuple(dict.fromkeys(pod_references.volume_secrets(volume)))
        self.volumes[name] = _Volume((claim.get("namespace", ""), claim.get("name", "")), secrets)
        for secret in secrets:
            self.secrets.setdefault(secret, set()).add(name)

    def reaches(self, node: str, ref: Ref) -> bool:
        """Tell whether a pod on a node names an object, or a claim whose volume it is or is of."""
        if ref.resource == "pods":
            known = self.pods.get((ref.namespace, ref.name))
            return known is not None and known.node == node
        if ref.resource == "persistentvolumes":
            return self._has_volume(node, ref.name)
        if ref in self.named.get(node, ()):
            return True
        volumes = self.secrets.get((ref.namespace, ref.name), ()) if ref.resource == "secrets" else ()
        return any(self._has_volume(node, volume) for volume in volumes)

    def _has_volume(self, node: str, name: str) -> bool:
        volume = self.volumes.get(name)
        return volume is not None and Ref("persistentvolumeclaims", *volume.claim) in self.named.get(node, ())


def _shape(pod: Mapping[str, Any]) -> tuple[str, int]:
    """Return what of a pod on a node tells whether it names other things than before (all else cannot change)."""
    return metadata(pod).get("uid", ""), len(pod["spec"].get("ephemeralContainers", ()))


def _references(pod: Mapping[str, Any]) -> Iterable[Ref]:
    if pod_references.is_mirror(pod):
        return ()  # a node must never get at anything by a pod that it made itself
    namespace = metadata(pod)["namespace"]
    account = pod["spec"].get("serviceAccountName")
    found = {
        "serviceaccounts": [account] if account else [],
        "secrets": pod_references.secrets(pod),
        "configmaps": pod_references.config_maps(pod),
        "persistentvolumeclaims": pod_references.claims(pod),
    }
    return dict.fromkeys(Ref(resource, namespace, name) for resource, names in found.items() for name in names)


class NodeAuthorizer:
    """Authorizes nodes; has no opinion on other users.

    :param rules: of the role ``system:node``.
    """

    def __init__(self, lister: ChangingLister, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._index = Following(lister, _built, _follow)

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        """Allow what a node may do; have no opinion on the rest."""
        node = node_of(user)
        if node is None:
            return _NO_OPINION
        if not node:
            return _no(f"unknown node for user {quote(user.name)}")
        if attributes.resource_request:
            decide = _RESOURCES.get((attributes.group, attributes.resource))
            if decide is not None:
                return decide(self, node, attributes)
        return _ALLOWED if any(rule.allows(attributes) for rule in self._rules) else _NO_OPINION

    def _reached(self, node: str, asked: RequestAttributes) -> Decision:
        if not asked.name:
            return _no("No Object name found")
        if self._index.current().reaches(node, Ref(asked.resource, asked.namespace, asked.name)):
            return _ALLOWED
        return _no(f"no relationship found between node '{node}' and this object")

    def _read(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.verb not in ("get", "list", "watch"):
            return _no("can only read resources of this type")
        if asked.subresource:
            return _no("cannot read subresource")
        if not asked.namespace:
            return _no("can only read namespaced object of this type")
        # Lists and watches have the name of an object if their field selector leaves one: so kubelets read single
        # objects.
        return self._reached(node, asked)

    def _get(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.verb != "get":
            return _no("can only get individual resources of this type")
        return _no("cannot get subresource") if asked.subresource else self._reached(node, asked)

    def _claim(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.subresource != "status":
            return self._get(node, asked)
        if asked.verb not in ("update", "patch"):
            return _no("can only get/update/patch this type")
        return self._reached(node, asked)

    def _service_account(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.verb == "get" and not asked.subresource:
            return self._read(node, asked)
        if asked.verb != "create" or not asked.name:
            return _no("can only create tokens for individual service accounts")
        if asked.subresource != "token":
            return _no("can only create token subresource of serviceaccount")
        return self._reached(node, asked)

    def _node(self, node: str, asked: RequestAttributes) -> Decision:
        # Which nodes are written is for admission to say.
        if asked.subresource == "status" and asked.verb in ("update", "patch"):
            return _ALLOWED
        if asked.subresource or asked.verb not in ("create", "update", "patch", "get", "list", "watch"):
            return _NO_OPINION
        if asked.verb in ("create", "update", "patch") or asked.name == node:
            return _ALLOWED
        what = f"cannot read '{asked.name}'" if asked.name else "cannot read all nodes"
        return _no(f"node '{node}' {what}, only its own Node object")

    def _pod(self, node: str, asked: RequestAttributes) -> Decision:
        # Which pods are written is for admission to say.
        if (asked.subresource, asked.verb) in _POD_WRITES:
            return _ALLOWED
        if asked.subresource or asked.verb not in ("get", "list", "watch"):
            return _NO_OPINION
        if asked.verb == "get":
            return self._get(node, asked)
        if _selects(asked.field_selector, "spec.nodeName", node):
            return _ALLOWED
        if asked.name:
            return self._reached(node, asked)
        return _no("can only list/watch pods with spec.nodeName field selector")

    def _lease(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.verb not in _OWN_VERBS:
            return _no("can only get, create, update, patch, or delete a node lease")
        if asked.namespace != LEASE_NAMESPACE:
            return _no(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
        # The name of what is created is in the body: NodeRestriction looks at it.
        if asked.verb != "create" and asked.name != node:
            return _no("can only access node lease with the same name as the requesting node")
        return _ALLOWED

    def _csi_node(self, node: str, asked: RequestAttributes) -> Decision:
        if asked.verb not in _OWN_VERBS:
            return _no("can only get, create, update, patch, or delete a CSINode")
        if asked.subresource:
            return _no("cannot authorize CSINode subresources")
        if asked.verb != "create" and asked.name != node:
            return _no("can only access CSINode with the same name as the requesting node")
        return _ALLOWED


_OWN_VERBS = ("get", "create", "update", "patch", "delete")
_POD_WRITES = {("", "create"), ("", "delete"), ("status", "update"), ("status", "patch"), ("eviction", "create")}
_Decide = Callable[[NodeAuthorizer, str, RequestAttributes], Decision]
_RESOURCES: Mapping[tuple[str, str], _Decide] = {
    ("", "secrets"): NodeAuthorizer._read,
    ("", "configmaps"): NodeAuthorizer._read,
    ("", "persistentvolumeclaims"): NodeAuthorizer._claim,
    ("", "persistentvolumes"): NodeAuthorizer._get,
    ("", "serviceaccounts"): NodeAuthorizer._service_account,
    ("", "nodes"): NodeAuthorizer._node,
    ("", "pods"): NodeAuthorizer._pod,
    ("coordination.k8s.io", "leases"): NodeAuthorizer._lease,
    ("storage.k8s.io", "csinodes"): NodeAuthorizer._csi_node,
    # Not served: whoever asks is told that no pod of the node has one.
    ("storage.k8s.io", "volumeattachments"): NodeAuthorizer._get,
    ("resource.k8s.io", "resourceclaims"): NodeAuthorizer._get,
}


def _no(reason: str) -> Decision:
    return Decision(allowed=False, reason=reason)


def _selects(selector: str, name: str, value: str) -> bool:
    """Tell whether a field selector leaves only objects whose field ``name`` is ``value``."""
    try:
        return (name, value) in selectors.parse_fields(selector).equal
    except StatusError:
        return False


def _built(lister: Lister) -> _Index:
    index = _Index()
    for part in lister.parts("pods", "", _NamingPod):
        index.set_pod(part.metadata.namespace, part.metadata.name, msgspec.to_builtins(part))
    for volume in lister.list("persistentvolumes"):
        index.set_volume(metadata(volume)["name"], volume)
    return index


def _follow(index: _Index, lister: Lister, changes: Changes) -> None:
    for resource, namespace, name in dict.fromkeys(changes):
        if resource == "pods":
            part = lister.part(resource, namespace, name, _NamingPod)
            index.set_pod(namespace, name, None if part is None else msgspec.to_builtins(part))
        elif resource == "persistentvolumes":
            index.set_volume(name, lister.get(resource, namespace, name))
