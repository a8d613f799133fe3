"""Admission for nodes, service accounts, namespaces and roles: what is changed, and what is refused in which words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from podkeep.apiserver.admission.node_restriction import NodeRestriction
from podkeep.apiserver.admission.rbac_escalation import RbacEscalation
from podkeep.apiserver.admission.service_account import MOUNT_PATH, ServiceAccount, token_volume
from podkeep.apiserver.auth.interfaces import Decision, RequestAttributes
from podkeep.apiserver.auth.pod_references import MIRROR
from podkeep.apiserver.auth.rbac import Rbac
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.schema.table import Kind
from support.objects import Objects

RBAC = "rbac.authorization.k8s.io"
RESOURCES = {
    "pods": Resource(kind=Kind("", "v1", "Pod"), plural="pods"),
    "nodes": Resource(kind=Kind("", "v1", "Node"), plural="nodes", namespaced=False),
    "namespaces": Resource(kind=Kind("", "v1", "Namespace"), plural="namespaces", namespaced=False),
    "persistentvolumeclaims": Resource(kind=Kind("", "v1", "PersistentVolumeClaim"), plural="persistentvolumeclaims"),
    "serviceaccounts": Resource(kind=Kind("", "v1", "ServiceAccount"), plural="serviceaccounts"),
    "leases": Resource(kind=Kind("coordination.k8s.io", "v1", "Lease"), plural="leases"),
    "csinodes": Resource(kind=Kind("storage.k8s.io", "v1", "CSINode"), plural="csinodes", namespaced=False),
    "configmaps": Resource(kind=Kind("", "v1", "ConfigMap"), plural="configmaps"),
    "localsubjectaccessreviews": Resource(
        kind=Kind("authorization.k8s.io", "v1", "LocalSubjectAccessReview"), plural="localsubjectaccessreviews"
    ),
    "roles": Resource(kind=Kind(RBAC, "v1", "Role"), plural="roles"),
    "clusterroles": Resource(kind=Kind(RBAC, "v1", "ClusterRole"), plural="clusterroles", namespaced=False),
    "rolebindings": Resource(kind=Kind(RBAC, "v1", "RoleBinding"), plural="rolebindings"),
    "clusterrolebindings": Resource(
        kind=Kind(RBAC, "v1", "ClusterRoleBinding"), plural="clusterrolebindings", namespaced=False
    ),
}
CREATE, UPDATE, DELETE = Operation.CREATE, Operation.UPDATE, Operation.DELETE
N1 = User(name="system:node:n1", groups=("system:nodes",))
ANN = User(name="ann", groups=("dev",))
ROOT = User(name="root", groups=("system:masters",))


def written(
    operation: Operation,
    resource: str,
    value: Any = None,
    old: Any = None,
    *,
    name: str = "",
    namespace: str = "ns",
    user: User = N1,
) -> Attributes:
    plural, _, subresource = resource.partition("/")
    kind = RESOURCES[plural]
    target = Target(kind, namespace if kind.namespaced else "", name, subresource)
    return Attributes(operation=operation, target=target, value=copy.deepcopy(value), old=old, user=user)


def refusal(plugin: Any, attributes: Attributes) -> str:
    """Return why a write is refused; empty: it is not. Deletions are validated only, as the verbs do it."""
    try:
        if attributes.operation is not DELETE:
            plugin.mutate(attributes)
        plugin.validate(attributes)
    except StatusError as error:
        text = error.message
        return text.partition(" is forbidden: ")[2] if error.code == 403 else text
    return ""


def pod(**more: Any) -> dict[str, Any]:
    fields = {"name": "web", "namespace": "ns", "uid": "u-pod", **more.pop("metadata", {})}
    return {"kind": "Pod", "metadata": fields, "spec": {"containers": [{"name": "c"}], **more}}


def node(name: str = "n1", labels: Any = None, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    fields = {"name": name, "uid": "u-node", "labels": labels or {}, **(metadata or {})}
    return {"kind": "Node", "metadata": fields, "spec": spec}


# NodeRestriction


class Audiences:
    """Lets nodes have tokens for one audience."""

    def authorize(self, user: User, attributes: RequestAttributes) -> Decision:
        assert (attributes.verb, attributes.name) == ("request-serviceaccounts-token-audience", "robot")
        return Decision(attributes.resource == "granted")


PROJECTED = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault", "path": "t"}}]}}
STORED = (
    node(),
    pod(nodeName="n1", volumes=[PROJECTED, token_volume("u")]),
    pod(nodeName="n2", metadata={"name": "far", "uid": "u-far"}),
)
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-node", "controller": True}


def mirror(*owners: Any, node_name: str = "n1", **spec: Any) -> dict[str, Any]:
    fields = {"annotations": {MIRROR: "x"}, "ownerReferences": list(owners or (OWNER,))}
    return pod(metadata=fields, nodeName=node_name, **spec)


def token_request(pod_name: str = "web", uid: str = "u-pod", audiences: Any = (), **ref: Any) -> dict[str, Any]:
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": uid, **ref}
    return {"metadata": {}, "spec": {"boundObjectRef": bound, "audiences": list(audiences)}}


def claim(status: Any = None, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "data", **fields}, "spec": {"a": 1}, "status": status or {}}


ONLY = 'node "n1" can only create pods with'
HOST = "kubernetes.io/hostname"
SAME_LEASE = "can only access node lease with the same name as the requesting node"
NODE_CASES: list[tuple[Attributes, str]] = [
    (written(CREATE, "pods", mirror(), name="web"), ""),
    (
        written(CREATE, "pods", pod(nodeName="n1"), name="web"),
        f'pod does not have "{MIRROR}" annotation, node "n1" can only create mirror pods',
    ),
    (written(CREATE, "pods", mirror(node_name="n2")), f"{ONLY} spec.nodeName set to itself"),
    (written(CREATE, "pods", mirror(OWNER, OWNER)), f"{ONLY} a single owner reference set to itself"),
    (
        written(CREATE, "pods", pod(metadata={"annotations": {MIRROR: "x"}}, nodeName="n1")),
        f"{ONLY} an owner reference set to itself",
    ),
    (written(CREATE, "pods", mirror({**OWNER, "name": "n2"})), f"{ONLY} an owner reference set to itself"),
    (written(CREATE, "pods", mirror({**OWNER, "kind": "Pod"})), f"{ONLY} an owner reference set to itself"),
    (
        written(CREATE, "pods", mirror({**OWNER, "controller": False})),
        f"{ONLY} a controller owner reference set to itself",
    ),
    (
        written(CREATE, "pods", mirror({**OWNER, "blockOwnerDeletion": True})),
        'node "n1" must not set blockOwnerDeletion on an owner reference',
    ),
    (written(CREATE, "pods", mirror({**OWNER, "uid": "x"})), "node n1 UID mismatch: expected x got u-node"),
    (
        written(CREATE, "pods", mirror(serviceAccountName="a")),
        'node "n1" can not create pods that reference serviceaccounts',
    ),
    (
        written(UPDATE, "pods", mirror(), mirror(), name="web"),
        'unexpected operation "UPDATE", node "n1" can only create and delete mirror pods',
    ),
    (written(DELETE, "pods", None, STORED[1], name="web"), ""),
    (
        written(DELETE, "pods", None, STORED[2], name="far"),
        'node "n1" can only delete pods with spec.nodeName set to itself',
    ),
    (written(DELETE, "pods", name="gone"), 'pods "gone" not found'),
    (written(UPDATE, "pods/status", STORED[1], STORED[1], name="web"), ""),
    (
        written(UPDATE, "pods/status", STORED[2], STORED[2], name="far"),
        'node "n1" can only update pod status for pods with spec.nodeName set to itself',
    ),
    (
        written(UPDATE, "pods/status", pod(nodeName="n1", metadata={"labels": {"a": "b"}}), pod(nodeName="n1")),
        'node "n1" cannot update labels through pod status',
    ),
    (
        written(
            UPDATE, "pods/status", {**pod(nodeName="n1"), "status": {"resourceClaimStatuses": [{}]}}, pod(nodeName="n1")
        ),
        'node "n1" cannot update resource claim statues',
    ),
    (written(CREATE, "pods/eviction", {"metadata": {"name": "web"}}, name="web"), ""),
    (
        written(CREATE, "pods/eviction", {"metadata": {}}, name="far"),
        "node n1 can only evict pods with spec.nodeName set to itself",
    ),
    (written(CREATE, "pods/eviction", {"metadata": {}}), "could not determine pod from request data"),
    (written(CREATE, "pods/eviction", {"metadata": {}}, name="gone"), 'pods "gone" not found'),
    (
        written(CREATE, "pods/binding", {"metadata": {}}, name="web"),
        "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed",
    ),
    (written(CREATE, "nodes", node(labels={HOST: "n1", "mine": "1", "kubelet.kubernetes.io/x": "1"})), ""),
    (written(CREATE, "nodes", node("n2")), 'node "n1" is not allowed to modify node "n2"'),
    (written(DELETE, "nodes", None, node("n2"), name="n2"), 'node "n1" is not allowed to modify node "n2"'),
    (
        written(CREATE, "nodes", node(configSource={})),
        'node "n1" is not allowed to create pods with a non-nil configSource',
    ),
    (
        written(
            CREATE,
            "nodes",
            node(labels={"x.k8s.io/a": "", "node-restriction.kubernetes.io/a": "", "node-role.kubernetes.io/a": ""}),
        ),
        'node "n1" is not allowed to set the following labels: node-restriction.kubernetes.io/a,'
        " node-role.kubernetes.io/a, x.k8s.io/a",
    ),
    (
        written(
            UPDATE, "nodes", node(labels={HOST: "x", "a": "b"}), node(labels={"a.kubernetes.io/b": "c"}), name="n1"
        ),
        "is not allowed to modify labels: a.kubernetes.io/b",
    ),
    (written(UPDATE, "nodes/status", node(labels={HOST: "x"}, taints=[]), node(), name="n1"), ""),
    (
        written(UPDATE, "nodes/status", node(taints=[{"key": "a"}]), node(), name="n1"),
        'node "n1" is not allowed to modify taints',
    ),
    (
        written(UPDATE, "nodes", node(metadata={"ownerReferences": [OWNER]}), node(), name="n1"),
        'node "n1" is not allowed to modify ownerReferences',
    ),
    (
        written(UPDATE, "nodes", node(configSource={"a": 1}), node(), name="n1"),
        'node "n1" is not allowed to update configSource to a new non-nil configSource',
    ),
    (written(UPDATE, "persistentvolumeclaims/status", claim({"capacity": {"a": "1"}}), claim(), name="data"), ""),
    (
        written(UPDATE, "persistentvolumeclaims/status", claim({"phase": "Lost"}), claim(), name="data"),
        'node "n1" is not allowed to update fields other than status.quantity and status.conditions',
    ),
    (
        written(UPDATE, "persistentvolumeclaims/status", claim(labels={"a": "b"}), claim(), name="data"),
        'node "n1" is not allowed to update fields other than status.quantity and status.conditions',
    ),
    (written(UPDATE, "persistentvolumeclaims", claim(), claim(), name="data"), "may only update PVC status"),
    (written(CREATE, "serviceaccounts/token", token_request(), name="robot"), ""),
    (written(CREATE, "serviceaccounts/token", token_request(audiences=["vault"]), name="robot"), ""),
    (written(CREATE, "serviceaccounts/token", token_request(audiences=["granted"]), name="robot"), ""),
    (
        written(CREATE, "serviceaccounts/token", token_request(audiences=["other"]), name="robot"),
        'audience "other" not found in pod spec volume, system:node:n1 is not authorized to request tokens for this'
        " audience",
    ),
    (
        written(CREATE, "serviceaccounts/token", token_request(audiences=["a", "b"]), name="robot"),
        "node may only request 0 or 1 audiences",
    ),
    (
        written(CREATE, "serviceaccounts/token", {"metadata": {}, "spec": {}}, name="robot"),
        "node requested token not bound to a pod",
    ),
    (
        written(CREATE, "serviceaccounts/token", token_request(kind="Node"), name="robot"),
        "node requested token not bound to a pod",
    ),
    (
        written(CREATE, "serviceaccounts/token", token_request(uid=""), name="robot"),
        "node requested token with a pod binding without a uid",
    ),
    (
        written(CREATE, "serviceaccounts/token", token_request(uid="x"), name="robot"),
        "the UID in the bound object reference (x) does not match the UID in record. The object might have been deleted"
        " and then recreated",
    ),
    (
        written(CREATE, "serviceaccounts/token", token_request("far", "u-far"), name="robot"),
        "node requested token bound to a pod scheduled on a different node",
    ),
    (written(CREATE, "serviceaccounts/token", token_request("gone"), name="robot"), 'pods "gone" not found'),
    (written(CREATE, "csinodes", {"metadata": {"name": "n1"}}), ""),
    (
        written(CREATE, "csinodes", {"metadata": {"name": "n2"}}),
        "can only access CSINode with the same name as the requesting node",
    ),
    (written(CREATE, "leases", {"metadata": {"name": "n1"}}, namespace="kube-node-lease"), ""),
    (written(CREATE, "leases", {"metadata": {"name": "n2"}}, namespace="kube-node-lease"), SAME_LEASE),
    (
        written(UPDATE, "leases", {"metadata": {"name": "n2"}}, {}, name="n2", namespace="kube-node-lease"),
        SAME_LEASE,
    ),
    (
        written(CREATE, "leases", {"metadata": {"name": "n1"}}),
        'can only access leases in the "kube-node-lease" system namespace',
    ),
    (written(CREATE, "configmaps", {"metadata": {"name": "a"}}), ""),
    (
        written(CREATE, "pods", pod(), user=User(name="system:node:", groups=("system:nodes",))),
        'could not determine node from user "system:node:"',
    ),
    (written(CREATE, "pods", pod(), user=ANN), ""),
    (written(CREATE, "nodes", node("n2"), user=User(name="system:node:n1")), ""),
]


@pytest.mark.parametrize(("attributes", "reason"), NODE_CASES)
def test_what_a_node_may_write(attributes: Attributes, reason: str) -> None:
    assert refusal(NodeRestriction(Objects(*STORED), Audiences()), attributes) == reason


def test_a_mirror_pod_needs_its_node() -> None:
    attributes = written(CREATE, "pods", mirror())
    assert refusal(NodeRestriction(Objects(), Audiences()), attributes) == 'nodes "n1" not found'


# ServiceAccount


def account(name: str = "default", **more: Any) -> dict[str, Any]:
    fields = {"name": name, "namespace": "ns", **more.pop("metadata", {})}
    return {"kind": "ServiceAccount", "metadata": fields, **more}


NAMESPACE = {"kind": "Namespace", "metadata": {"name": "ns"}}


def admitted(value: Any, *objects: Any) -> dict[str, Any]:
    attributes = written(CREATE, "pods", value, user=ANN)
    assert refusal(ServiceAccount(Objects(*objects)), attributes) == ""
    assert attributes.value is not None
    spec: dict[str, Any] = attributes.value["spec"]
    return spec


def test_a_pod_gets_its_accounts_token_and_pull_secrets() -> None:
    spec = admitted(
        pod(initContainers=[{"name": "i"}], volumes=[{"name": "v", "emptyDir": {}}]),
        account(imagePullSecrets=[{"name": "s"}]),
    )
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    own, added = spec["volumes"]
    name = added["name"]
    assert own["name"] == "v"
    assert name.startswith("kube-api-access-")
    assert len(name) == len("kube-api-access-") + 5
    assert added["projected"] == {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
    }
    mount = {"name": name, "readOnly": True, "mountPath": MOUNT_PATH}
    assert [item["volumeMounts"] for item in (*spec["initContainers"], *spec["containers"])] == [[mount], [mount]]


@pytest.mark.parametrize(
    ("own", "of_account", "mounted"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False), (False, None, False)],
)
def test_who_does_not_want_a_token_gets_none(own: bool | None, of_account: bool | None, mounted: bool) -> None:
    field = "automountServiceAccountToken"
    value = pod(**({} if own is None else {field: own}))
    spec = admitted(value, account(**({} if of_account is None else {field: of_account})))
    assert ("volumes" in spec) is mounted


@pytest.mark.parametrize(
    ("spec", "volumes"),
    [
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]}, 0),
        ({"volumes": [{"name": "kube-api-access-abcde", "projected": {}}]}, 1),
    ],
)
def test_what_is_there_already_is_not_added(spec: dict[str, Any], volumes: int) -> None:
    found = admitted(pod(**spec), account())
    assert len(found.get("volumes", ())) == volumes
    assert len(found["containers"][0]["volumeMounts"]) == 1


def test_own_pull_secrets_and_accounts_win() -> None:
    spec = admitted(
        pod(serviceAccountName="robot", imagePullSecrets=[{"name": "mine"}]),
        account("robot", imagePullSecrets=[{"name": "s"}]),
    )
    assert (spec["serviceAccountName"], spec["imagePullSecrets"]) == ("robot", [{"name": "mine"}])
    assert admitted(pod(serviceAccount="robot"), account("robot"))["serviceAccountName"] == "robot"


def test_the_default_account_of_a_new_namespace_is_on_its_way() -> None:
    assert admitted(pod(), NAMESPACE)["serviceAccountName"] == "default"


LOOKUP = 'error looking up service account ns/robot: serviceaccount "robot" not found'
ENFORCED = {"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}
NOT_LISTED = "is not allowed because service account default does not reference that secret"
MIRRORED = {"metadata": {"annotations": {MIRROR: "x"}}}
ENV = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]


@pytest.mark.parametrize(
    ("value", "objects", "reason"),
    [
        (pod(serviceAccountName="robot"), [NAMESPACE], LOOKUP),
        (
            pod(),
            [],
            'error looking up service account ns/default: serviceaccount "default" not found',
        ),
        (pod(**MIRRORED), [], ""),
        (pod(**MIRRORED, serviceAccountName="a"), [], "a mirror pod may not reference service accounts"),
        (pod(**MIRRORED, imagePullSecrets=[{"name": "s"}]), [], "a mirror pod may not reference secrets"),
        (
            pod(**MIRRORED, volumes=[PROJECTED]),
            [],
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
        (
            pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
            [account(**ENFORCED)],
            f'volume with secret.secretName="s" {NOT_LISTED}',
        ),
        (
            pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]),
            [account(**ENFORCED, secrets=[{"name": "s"}])],
            "",
        ),
        (pod(volumes=[{"name": "v", "secret": {"secretName": "s"}}]), [account()], ""),
        (
            pod(initContainers=[{"name": "i", "env": ENV}]),
            [account(**ENFORCED)],
            f'init container i with envVar A referencing secret.secretName="s" {NOT_LISTED}',
        ),
        (
            pod(containers=[{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]),
            [account(**ENFORCED)],
            f'container c with envFrom referencing secret.secretName="s" {NOT_LISTED}',
        ),
        (
            pod(imagePullSecrets=[{"name": "s"}]),
            [account(**ENFORCED)],
            'imagePullSecrets[0].name="s" is not allowed because service account default does not reference that'
            " imagePullSecret",
        ),
    ],
)
def test_what_a_pod_may_not_have_of_an_account(value: Any, objects: list[Any], reason: str) -> None:
    assert refusal(ServiceAccount(Objects(*objects)), written(CREATE, "pods", value, user=ANN)) == reason


def test_ephemeral_containers_are_held_to_the_account_too() -> None:
    debugged = pod(serviceAccountName="default", ephemeralContainers=[{"name": "e", "env": ENV}])
    attributes = written(UPDATE, "pods/ephemeralcontainers", debugged, pod(), name="web", user=ANN)
    expected = f'ephemeral container e with envVar A referencing secret.secretName="s" {NOT_LISTED}'
    assert refusal(ServiceAccount(Objects(account(**ENFORCED))), attributes) == expected
    assert refusal(ServiceAccount(Objects(account())), attributes) == ""


@pytest.mark.parametrize(
    "attributes",
    [
        written(UPDATE, "pods", pod(), pod(), name="web"),
        written(UPDATE, "pods/status", pod(), pod(), name="web"),
        written(CREATE, "pods/binding", {"metadata": {}}, name="web"),
        written(DELETE, "pods", None, pod(), name="web"),
        written(CREATE, "configmaps", {"metadata": {}}),
    ],
)
def test_other_writes_are_left_alone(attributes: Attributes) -> None:
    before = copy.deepcopy(attributes.value)
    assert refusal(ServiceAccount(Objects()), attributes) == ""
    assert attributes.value == before


# NamespaceLifecycle

GOING = {"kind": "Namespace", "metadata": {"name": "old"}, "status": {"phase": "Terminating"}}
MARKED = {"kind": "Namespace", "metadata": {"name": "marked", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
A = {"metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (written(CREATE, "configmaps", A), ""),
        (written(CREATE, "configmaps", A, namespace="gone"), 'namespaces "gone" not found'),
        (written(UPDATE, "configmaps", A, A, namespace="gone"), 'namespaces "gone" not found'),
        (written(DELETE, "configmaps", None, A, namespace="gone"), ""),
        (
            written(CREATE, "configmaps", A, namespace="old"),
            "unable to create new content in namespace old because it is being terminated",
        ),
        (
            written(CREATE, "configmaps", A, namespace="marked"),
            "unable to create new content in namespace marked because it is being terminated",
        ),
        (written(UPDATE, "configmaps", A, A, namespace="old"), ""),
        (written(DELETE, "configmaps", None, A, namespace="old"), ""),
        (written(CREATE, "localsubjectaccessreviews", {}, namespace="gone"), ""),
        (written(CREATE, "namespaces", {"metadata": {"name": "new"}}), ""),
        (written(CREATE, "nodes", node()), ""),
        (written(DELETE, "namespaces", None, A, name="ns"), ""),
        *(
            (written(DELETE, "namespaces", None, A, name=name), "this namespace may not be deleted")
            for name in ("default", "kube-system", "kube-public")
        ),
        (written(DELETE, "configmaps", None, A, name="default"), ""),
    ],
)
def test_what_may_be_written_into_a_namespace(attributes: Attributes, reason: str) -> None:
    assert refusal(NamespaceLifecycle(Objects(NAMESPACE, GOING, MARKED)), attributes) == reason


def test_the_cause_is_told_when_a_namespace_goes_away() -> None:
    with pytest.raises(StatusError) as caught:
        NamespaceLifecycle(Objects(GOING)).mutate(written(CREATE, "configmaps", A, namespace="old"))
    assert caught.value.status()["details"]["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": "namespace old is being terminated",
            "field": "metadata.namespace",
        }
    ]
    assert caught.value.message.startswith('configmaps "a" is forbidden: unable to create')


# escalation


def role(name: str, *rules: Any, namespace: str = "", **more: Any) -> dict[str, Any]:
    fields = {"name": name} | ({"namespace": namespace} if namespace else {})
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": fields, "rules": list(rules), **more}


def binding(ref: str, user: str = "ann", namespace: str = "", name: str = "b") -> dict[str, Any]:
    kind, role_name = ref.split("/")
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role_name},
        "subjects": [{"kind": "User", "name": user}],
    }


def can(verbs: str, resources: str, groups: str = "") -> dict[str, Any]:
    return {"verbs": verbs.split(","), "apiGroups": groups.split(","), "resources": resources.split(",")}


READ = can("get,list", "pods")
SECRET = can("get", "secrets")
EVERYTHING = [can("*", "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
GRANTING = 'user "ann" (groups=["dev"]) is attempting to grant RBAC permissions not currently held:\n'
SECRETS = f'{GRANTING}{{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}}'
SELECTS = {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
AGGREGATES = "must have cluster-admin privileges to use the aggregationRule"
HELD = [role("held", READ), binding("ClusterRole/held"), role("secrets", SECRET), role("local", SECRET, namespace="ns")]
IN_NS = [*HELD, role("held2", SECRET), binding("ClusterRole/held2", namespace="ns", name="c")]
ESCALATES = [*HELD, role("e", can("escalate", "clusterroles", RBAC)), binding("ClusterRole/e", name="c")]
BINDS = [
    *HELD,
    role("e", {**can("bind", "clusterroles", RBAC), "resourceNames": ["secrets"]}),
    binding("ClusterRole/e", name="c"),
]
ADMIN = [role("cluster-admin", *EVERYTHING), binding("ClusterRole/cluster-admin")]
ROLE_CASES: list[tuple[Attributes, list[Any], str]] = [
    (written(CREATE, "clusterroles", role("n", can("get", "pods")), user=ANN), HELD, ""),
    (written(CREATE, "clusterroles", role("n", READ, SECRET), user=ANN), HELD, SECRETS),
    (written(CREATE, "clusterroles", role("n", READ, SECRET), user=ANN), IN_NS, SECRETS),
    (written(CREATE, "roles", role("n", READ, SECRET, namespace="ns"), user=ANN), IN_NS, ""),
    (
        written(CREATE, "roles", role("n", SECRET, namespace="x"), user=ANN, namespace="x"),
        IN_NS,
        SECRETS,
    ),
    (written(CREATE, "clusterroles", role("n", SECRET), user=ROOT), HELD, ""),
    (written(CREATE, "clusterroles", role("n", SECRET), user=ANN), ESCALATES, ""),
    (written(CREATE, "clusterroles", role("n", *EVERYTHING, **SELECTS), user=ANN), ADMIN, ""),
    (written(CREATE, "clusterroles", role("n", **SELECTS), user=ANN), HELD, AGGREGATES),
    (written(UPDATE, "clusterroles", role("n"), role("n", **SELECTS), user=ANN, name="n"), HELD, AGGREGATES),
    (written(UPDATE, "clusterroles", role("n", SECRET), role("n"), user=ANN, name="n"), HELD, SECRETS),
    # What a garbage collector may have to change gives nobody anything.
    (
        written(
            UPDATE,
            "clusterroles",
            {**role("n", SECRET), "metadata": {"name": "n", "finalizers": ["a/b"]}},
            role("n", SECRET),
            user=ANN,
            name="n",
        ),
        HELD,
        "",
    ),
    (written(DELETE, "clusterroles", None, role("n", SECRET), user=ANN, name="n"), HELD, ""),
    (written(CREATE, "clusterrolebindings", binding("ClusterRole/held", "eve"), user=ANN), HELD, ""),
    (written(CREATE, "clusterrolebindings", binding("ClusterRole/secrets"), user=ANN), HELD, SECRETS),
    (written(CREATE, "clusterrolebindings", binding("ClusterRole/secrets"), user=ANN), BINDS, ""),
    (written(CREATE, "rolebindings", binding("ClusterRole/secrets", namespace="ns"), user=ANN), BINDS, ""),
    (written(CREATE, "rolebindings", binding("ClusterRole/secrets", namespace="ns"), user=ANN), IN_NS, ""),
    (written(CREATE, "rolebindings", binding("Role/local", namespace="ns"), user=ANN), HELD, SECRETS),
    (written(CREATE, "rolebindings", binding("Role/local", namespace="ns"), user=ROOT), HELD, ""),
    (
        written(CREATE, "rolebindings", binding("Role/gone", namespace="ns"), user=ANN),
        HELD,
        'role.rbac.authorization.k8s.io "gone" not found',
    ),
    (
        written(CREATE, "clusterrolebindings", binding("ClusterRole/secrets"), user=ANN),
        [*HELD, binding("ClusterRole/gone", name="c")],
        f'{SECRETS}; resolution errors: [clusterrole.rbac.authorization.k8s.io "gone" not found]',
    ),
    (
        written(CREATE, "clusterroles", role("n", can(",".join(map(str, range(5001))), "pods")), user=ANN),
        HELD,
        "its rules are too many to compare with those that the user has: split the role",
    ),
    (written(CREATE, "configmaps", A, user=ANN), HELD, ""),
]


@pytest.mark.parametrize(("attributes", "objects", "reason"), ROLE_CASES)
def test_nobody_grants_more_than_they_have(attributes: Attributes, objects: list[Any], reason: str) -> None:
    rbac = Rbac(Objects(*objects))
    assert refusal(RbacEscalation(rbac, rbac), attributes) == reason


def test_more_subjects_than_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """To administrators, too: their bindings would not count."""
    monkeypatch.setattr("podkeep.apiserver.auth.rbac.MAX_SUBJECTS", 3)
    monkeypatch.setattr("podkeep.apiserver.admission.rbac_escalation.MAX_SUBJECTS", 3)

    def bound(name: str, count: int) -> dict[str, Any]:
        found = binding("Role/r", namespace="ns", name=name)
        return {**found, "subjects": [{"kind": "User", "name": f"u{number}"} for number in range(count)]}

    rbac = Rbac(Objects(bound("a", 2)))
    plugin = RbacEscalation(rbac, rbac)
    why = "the bindings of namespace ns may have 3 subjects together; bind groups, or delete some first"
    assert refusal(plugin, written(CREATE, "rolebindings", bound("b", 1), user=ROOT, name="b")) == ""
    assert refusal(plugin, written(CREATE, "rolebindings", bound("b", 2), user=ROOT, name="b")) == why
    grown = written(UPDATE, "rolebindings", bound("a", 3), bound("a", 2), user=ROOT, name="a")
    assert refusal(plugin, grown) == ""
    # What an earlier release let in may lose some.
    smaller = written(UPDATE, "rolebindings", bound("o", 8), bound("o", 9), user=ROOT, name="o")
    assert refusal(plugin, smaller) == ""
