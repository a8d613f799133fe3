"""What nodes may do, by what the pods on them name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from podkeep.apiserver.auth import pod_references
from podkeep.apiserver.auth.default_policy import node_rules
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.node import NodeAuthorizer
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.meta.lister import Part
from support.objects import Objects

N1 = User(name="system:node:n1", groups=("system:nodes", "system:authenticated"))
NO_RELATION = "no relationship found between node 'n1' and this object"


def pod(name: str = "web", node: str = "n1", uid: str = "u", **more: Any) -> dict[str, Any]:
    annotations = more.pop("annotations", {})
    fields = {"name": name, "namespace": "ns", "uid": uid, "annotations": annotations}
    spec = {"containers": [{"name": "c"}], **({"nodeName": node} if node else {}), **more}
    return {"kind": "Pod", "metadata": fields, "spec": spec}


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", **more}


SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("imagePullSecrets", {"imagePullSecrets": [{"name": "s"}]}),
    ("envFrom", {"containers": [container(envFrom=[{"secretRef": {"name": "s"}}])]}),
    (
        "env of an init container",
        {"initContainers": [container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])]},
    ),
    ("ephemeral container", {"ephemeralContainers": [container(envFrom=[{"secretRef": {"name": "s"}}])]}),
    ("secret", {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
    ("projected", {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]}),
    ("azureFile", {"volumes": [{"name": "v", "azureFile": {"secretName": "s"}}]}),
    ("csi", {"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]}),
    *(
        (kind, {"volumes": [{"name": "v", kind: {"secretRef": {"name": "s"}}}]})
        for kind in ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos")
    ),
]
CONFIG_MAPS: list[tuple[str, dict[str, Any]]] = [
    ("envFrom", {"containers": [container(envFrom=[{"configMapRef": {"name": "c"}}])]}),
    (
        "env",
        {"containers": [container(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}])]},
    ),
    ("configMap", {"volumes": [{"name": "v", "configMap": {"name": "c"}}]}),
    ("projected", {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}]}}]}),
]


def asks(
    verb: str, resource: str, namespace: str = "ns", name: str = "", group: str = "", **more: str
) -> RequestAttributes:
    plain, _, subresource = resource.partition("/")
    return RequestAttributes(
        verb=verb, resource=plain, subresource=subresource, namespace=namespace, name=name, group=group, **more
    )


def decided(asked: RequestAttributes, *objects: Any, user: User = N1) -> Decision:
    return NodeAuthorizer(Objects(*objects), node_rules()).authorize(user, asked)


@pytest.mark.parametrize("spec", [case[1] for case in SECRETS], ids=[case[0] for case in SECRETS])
def test_secrets_of_its_pods(spec: dict[str, Any]) -> None:
    for verb in ("get", "list", "watch"):
        assert decided(asks(verb, "secrets", name="s"), pod(**spec)).allowed
    assert decided(asks("get", "secrets", name="t"), pod(**spec)).reason == NO_RELATION
    assert decided(asks("get", "secrets", "other", "s"), pod(**spec)).reason == NO_RELATION
    assert decided(asks("get", "secrets", name="s"), pod(node="n2", **spec)).reason == NO_RELATION
    assert decided(asks("get", "secrets", name="s"), pod(node="", **spec)).reason == NO_RELATION


@pytest.mark.parametrize("spec", [case[1] for case in CONFIG_MAPS], ids=[case[0] for case in CONFIG_MAPS])
def test_config_maps_of_its_pods(spec: dict[str, Any]) -> None:
    assert decided(asks("get", "configmaps", name="c"), pod(**spec)).allowed
    assert decided(asks("get", "configmaps", name="c"), pod(node="n2", **spec)).reason == NO_RELATION


def test_mirror_pods_open_nothing() -> None:
    mirror = pod(annotations={pod_references.MIRROR: "x"}, serviceAccountName="a", **SECRETS[0][1])
    assert decided(asks("get", "secrets", name="s"), mirror).reason == NO_RELATION
    assert decided(asks("create", "serviceaccounts/token", name="a"), mirror).reason == NO_RELATION


def volume(name: str = "pv", claim: str = "data", namespace: str = "ns", **source: Any) -> dict[str, Any]:
    spec = {"claimRef": {"namespace": namespace, "name": claim}} if claim else {}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {**spec, **source}}


CLAIMING = pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])


@pytest.mark.parametrize(
    ("asked", "objects", "allowed"),
    [
        (asks("get", "persistentvolumeclaims", name="data"), [CLAIMING], True),
        (asks("list", "persistentvolumeclaims", name="data"), [CLAIMING], False),
        (asks("get", "persistentvolumeclaims", name="web-v"), [pod(volumes=[{"name": "v", "ephemeral": {}}])], True),
        (asks("patch", "persistentvolumeclaims/status", name="data"), [CLAIMING], True),
        (asks("get", "persistentvolumeclaims/status", name="data"), [CLAIMING], False),
        (asks("patch", "persistentvolumeclaims/status", name="other"), [CLAIMING], False),
        (asks("get", "persistentvolumes", "", "pv"), [CLAIMING, volume()], True),
        (asks("get", "persistentvolumes", "", "pv"), [CLAIMING, volume(claim="other")], False),
        (asks("get", "persistentvolumes", "", "pv"), [CLAIMING, volume(namespace="other")], False),
        (asks("get", "persistentvolumes", "", "pv"), [CLAIMING, volume(claim="")], False),
        (asks("list", "persistentvolumes", ""), [CLAIMING, volume()], False),
        (asks("get", "secrets", name="s"), [CLAIMING, volume(rbd={"secretRef": {"name": "s"}})], True),
        (asks("get", "secrets", name="s"), [CLAIMING, volume(claim="x", rbd={"secretRef": {"name": "s"}})], False),
        (
            asks("get", "secrets", "x", "s"),
            [CLAIMING, volume(csi={"nodeStageSecretRef": {"name": "s", "namespace": "x"}})],
            True,
        ),
        (
            asks("get", "secrets", "x", "s"),
            [CLAIMING, volume(csi={"controllerPublishSecretRef": {"name": "s", "namespace": "x"}})],
            False,
        ),
        (asks("get", "secrets", name="s"), [CLAIMING, volume(azureFile={"secretName": "s"})], True),
        (
            asks("get", "secrets", "x", "s"),
            [CLAIMING, volume(azureFile={"secretName": "s", "secretNamespace": "x"})],
            True,
        ),
    ],
)
def test_claims_and_volumes_of_its_pods(asked: RequestAttributes, objects: list[Any], allowed: bool) -> None:
    assert decided(asked, *objects).allowed is allowed


OWN = "can only access node lease with the same name as the requesting node"
DECISIONS: list[tuple[RequestAttributes, str | None]] = [
    (asks("update", "secrets", name="s"), "can only read resources of this type"),
    (asks("get", "secrets/x", name="s"), "cannot read subresource"),
    (asks("list", "secrets", ""), "can only read namespaced object of this type"),
    (asks("list", "secrets"), "No Object name found"),
    (asks("get", "serviceaccounts", name="acc"), None),
    (asks("get", "serviceaccounts", name="other"), NO_RELATION),
    (asks("create", "serviceaccounts/token", name="acc"), None),
    (asks("create", "serviceaccounts/token", name="other"), NO_RELATION),
    (asks("create", "serviceaccounts/token"), "can only create tokens for individual service accounts"),
    (asks("create", "serviceaccounts", name="a"), "can only create token subresource of serviceaccount"),
    (asks("list", "serviceaccounts"), "can only create tokens for individual service accounts"),
    (asks("get", "nodes", "", "n1"), None),
    (asks("watch", "nodes", "", "n1"), None),
    (asks("get", "nodes", "", "n2"), "node 'n1' cannot read 'n2', only its own Node object"),
    (asks("list", "nodes", ""), "node 'n1' cannot read all nodes, only its own Node object"),
    (asks("create", "nodes", ""), None),
    (asks("patch", "nodes/status", "", "n1"), None),
    (asks("delete", "nodes", "", "n1"), ""),
    (asks("get", "nodes/proxy", "", "n1"), ""),
    (asks("get", "pods", name="web"), None),
    (asks("get", "pods", name="gone"), NO_RELATION),
    (asks("get", "pods/log", name="web"), ""),
    (asks("list", "pods", "", field_selector="spec.nodeName=n1"), None),
    (asks("watch", "pods", "", field_selector="a!=b,spec.nodeName==n1"), None),
    (
        asks("list", "pods", "", field_selector="spec.nodeName=n2"),
        "can only list/watch pods with spec.nodeName field selector",
    ),
    (
        asks("list", "pods", "", field_selector="spec.nodeName!=n1"),
        "can only list/watch pods with spec.nodeName field selector",
    ),
    (asks("list", "pods", "", field_selector="\\"), "can only list/watch pods with spec.nodeName field selector"),
    (asks("list", "pods"), "can only list/watch pods with spec.nodeName field selector"),
    (asks("watch", "pods", name="web", field_selector="metadata.name=web"), None),
    (asks("create", "pods"), None),
    (asks("delete", "pods", name="web"), None),
    (asks("update", "pods", name="web"), ""),
    (asks("patch", "pods/status", name="web"), None),
    (asks("create", "pods/eviction", name="web"), None),
    (asks("create", "pods/exec", name="web"), ""),
    (asks("create", "leases", "kube-node-lease", "", "coordination.k8s.io"), None),
    (asks("update", "leases", "kube-node-lease", "n1", "coordination.k8s.io"), None),
    (asks("update", "leases", "kube-node-lease", "n2", "coordination.k8s.io"), OWN),
    (
        asks("update", "leases", "ns", "n1", "coordination.k8s.io"),
        'can only access leases in the "kube-node-lease" system namespace',
    ),
    (
        asks("list", "leases", "kube-node-lease", "", "coordination.k8s.io"),
        "can only get, create, update, patch, or delete a node lease",
    ),
    (asks("get", "csinodes", "", "n1", "storage.k8s.io"), None),
    (
        asks("get", "csinodes", "", "n2", "storage.k8s.io"),
        "can only access CSINode with the same name as the requesting node",
    ),
    (asks("list", "csinodes", "", "", "storage.k8s.io"), "can only get, create, update, patch, or delete a CSINode"),
    (asks("get", "csinodes/x", "", "n1", "storage.k8s.io"), "cannot authorize CSINode subresources"),
    (asks("get", "volumeattachments", "", "a", "storage.k8s.io"), NO_RELATION),
    (asks("list", "services", ""), None),
    (asks("create", "events"), None),
    (asks("create", "tokenreviews", "", "", "authentication.k8s.io"), None),
    (asks("list", "runtimeclasses", "", "", "node.k8s.io"), None),
    (asks("list", "deployments", "", "", "apps"), ""),
    (RequestAttributes(verb="get", resource_request=False, path="/metrics"), ""),
]


@pytest.mark.parametrize(("asked", "reason"), DECISIONS)
def test_what_a_node_may_do(asked: RequestAttributes, reason: str | None) -> None:
    decision = decided(asked, pod(serviceAccountName="acc"))
    assert (decision.allowed, decision.reason, decision.denied) == (reason is None, reason or "", False)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (User(name="ann", groups=("system:nodes",)), ""),
        (User(name="system:node:n1"), ""),
        (User(name="system:node:", groups=("system:nodes",)), 'unknown node for user "system:node:"'),
    ],
)
def test_others_are_none_of_its_business(user: User, reason: str) -> None:
    assert decided(asks("create", "pods"), user=user) == Decision(False, reason)


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_index_follows_what_is_written(forgotten: bool) -> None:
    objects = Objects()
    node = NodeAuthorizer(objects, node_rules())
    claiming = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}

    def step(*written: Any, deleted: Any = None) -> tuple[bool, bool, bool]:
        for value in written:
            objects.put(value)
        if deleted:
            objects.delete(deleted)
        if forgotten:
            objects.forget()
        asked = [
            asks("get", "secrets", name="s"),
            asks("get", "persistentvolumes", "", "pv"),
            asks("get", "secrets", name="t"),
        ]
        first, second, third = (node.authorize(N1, one).allowed for one in asked)
        return first, second, third

    plain, secret = pod(), pod("other", **SECRETS[0][1])
    ephemeral = pod(ephemeralContainers=[container(envFrom=[{"secretRef": {"name": "s"}}])])
    assert step() == (False, False, False)
    assert step(plain) == (False, False, False)
    assert step(ephemeral) == (True, False, False)  # debugging has added a container
    assert step(secret) == (True, False, False)
    assert step(deleted=ephemeral) == (True, False, False)
    assert step(deleted=secret) == (False, False, False)
    assert step(pod(node="", volumes=[claiming]), volume()) == (False, False, False)
    assert step(pod(volumes=[claiming])) == (False, True, False)  # it was bound
    assert step(volume(rbd={"secretRef": {"name": "t"}})) == (False, True, True)
    assert step(volume(claim="other")) == (False, False, False)
    assert step(volume()) == (False, True, False)
    assert step(deleted=volume()) == (False, False, False)
    assert step(volume()) == (False, True, False)
    assert step(pod(uid="again")) == (False, False, False)  # another one of its name
    objects.delete(pod())
    objects.delete(volume())
    node.authorize(N1, asks("get", "secrets", name="s"))
    assert not any(vars(node._index.current()).values())


def test_no_pod_is_decoded_whole() -> None:
    """There may be thousands of them, of which little is asked: the first request of a node reads them all."""
    whole: list[str] = []

    class Noted(Objects):
        def get(self, resource: str, namespace: str, name: str) -> Mapping[str, Any] | None:
            whole.append(resource)
            return super().get(resource, namespace, name)

        def list(self, resource: str, namespace: str = "") -> Iterator[Mapping[str, Any]]:
            whole.append(resource)
            return super().list(resource, namespace)

        def parts(self, resource: str, namespace: str, of: type[Part]) -> Iterator[Part]:
            return (msgspec.convert(value, of) for value in super().list(resource, namespace))

        def part(self, resource: str, namespace: str, name: str, of: type[Part]) -> Part | None:
            return None if (value := super().get(resource, namespace, name)) is None else msgspec.convert(value, of)

    objects = Noted(pod("a", **SECRETS[0][1]))
    node = NodeAuthorizer(objects, node_rules())
    assert node.authorize(N1, asks("get", "secrets", name="s")).allowed
    objects.put(pod("b", **CONFIG_MAPS[0][1]))
    assert node.authorize(N1, asks("get", "configmaps", name="c")).allowed
    assert "pods" not in whole


def test_pods_that_name_nothing_come_and_go() -> None:
    naming, plain, mirror = pod("a", **SECRETS[0][1]), pod("b"), pod("c", annotations={pod_references.MIRROR: "x"})
    objects = Objects(naming, plain, mirror)
    node = NodeAuthorizer(objects, node_rules())
    asked = asks("get", "secrets", name="s")
    assert node.authorize(N1, asked).allowed
    for value in (naming, plain, mirror):
        objects.delete(value)
        assert not node.authorize(N1, asked).allowed
    assert not any(vars(node._index.current()).values())


def test_what_pods_name_is_kept_once_for_all_of_them() -> None:
    objects = Objects(*(pod(f"p{number}", serviceAccountName="acc") for number in range(50)))
    node = NodeAuthorizer(objects, node_rules())
    node.authorize(N1, asks("get", "secrets", name="s"))
    assert len({id(known.references) for known in node._index.current().pods.values()}) == 1
    for number in range(50):
        objects.put(pod(f"p{number}", serviceAccountName=f"acc{number}"))
        objects.put(pod(f"p{number}", uid="v", serviceAccountName=f"acc{number}"))
    node.authorize(N1, asks("get", "secrets", name="s"))
    assert len(node._index.current().shared) == 50


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/"}}]}, ""),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {}}]}}]}, ""),
        ({"serviceAccountName": "a"}, "serviceaccounts"),
        (SECRETS[0][1], "secrets"),
        (CONFIG_MAPS[0][1], "configmaps"),
        ({"resourceClaims": [{"name": "a"}]}, "resourceclaims"),
        ({"volumes": [{"name": "v", "configMap": {}}]}, "configmaps (via configmap volumes)"),
        ({"volumes": [{"name": "v", "secret": {}}]}, "secrets (via secret volumes)"),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, "csidrivers (via CSI volumes)"),
        ({"volumes": [{"name": "v", "glusterfs": {}}]}, "endpoints (via glusterFS volumes)"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, "persistentvolumeclaims"),
        ({"volumes": [{"name": "v", "ephemeral": {}}]}, "persistentvolumeclaims (via ephemeral volumes)"),
        ({"volumes": [{"name": "v", "azureFile": {}}]}, "secrets (via azureFile volumes)"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}]}}]},
            "serviceaccounts (via projected volumes)",
        ),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {}}]}}]},
            "configmaps (via projected volumes)",
        ),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {}}]}}]}, "clustertrustbundles"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"new": {}}]}}]},
            "unknown source for projected volume v",
        ),
        ({"volumes": [{"name": "v", "new": {}}]}, "unknown volume type for volume v"),
    ],
)
def test_what_a_pod_names_of_the_api(spec: dict[str, Any], reference: str) -> None:
    assert pod_references.api_reference(pod(**spec)) == reference
