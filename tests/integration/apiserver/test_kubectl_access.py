"""Who may do what, as kubectl shows it: certificates, roles, acting as others, nodes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import forked
from support.api_daemon import ApiDaemon
from support.waiting import TIMEOUT_S

NODE = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "NAME"}}'
WHO = '{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}'
TOKEN_SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: robot, annotations: {kubernetes.io/service-account.name: robot}}
type: kubernetes.io/service-account-token
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {nodeName: n1, containers: [{name: c, image: "nginx:1"}]}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api")) as daemon:
        yield daemon


def user(api: ApiDaemon, name: str, *groups: str) -> Path:
    """Return the kubeconfig of a user, made by ``podkeep kubeconfig``."""
    file = api.base / f"{name.rpartition(':')[2]}.conf"
    command = [sys.executable, "-m", "podkeep", "kubeconfig", "--root", str(api.root), "--user", name]
    command += [part for group in groups for part in ("--group", group)]
    command += ["--server", f"https://{api.address}", "--file", str(file)]
    forked.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    return file


def test_a_user_may_do_what_roles_let_them(api: ApiDaemon) -> None:
    ann = ("--kubeconfig", str(user(api, "ann", "dev")))
    refused = api.kubectl(*ann, "get", "pods", status=1)
    assert 'User "ann" cannot list resource "pods" in API group "" in the namespace "default"' in refused
    api.kubectl("create", "rolebinding", "ann", "--clusterrole=edit", "--group=dev")
    assert api.kubectl(*ann, "auth", "can-i", "create", "deployments") == "yes\n"
    assert "no" in api.kubectl(*ann, "auth", "can-i", "create", "roles", status=1)
    api.kubectl(*ann, "create", "configmap", "mine")
    api.kubectl("create", "rolebinding", "admin", "--clusterrole=admin", "--user=ann")
    grants = ("create", "rolebinding", "more", "--clusterrole=cluster-admin", "--user=ann")
    assert "is attempting to grant RBAC permissions not currently held" in api.kubectl(*ann, *grants, status=1)
    api.kubectl("delete", "rolebinding", "ann", "admin")
    assert "cannot list" in api.kubectl(*ann, "get", "pods", status=1)


def test_a_secret_has_a_token_of_its_service_account(api: ApiDaemon) -> None:
    """As programs outside of the cluster have one that does not end."""
    api.kubectl("create", "sa", "robot")
    api.kubectl("create", "rolebinding", "robot", "--clusterrole=view", "--serviceaccount=default:robot")
    api.kubectl("apply", "-f", "-", stdin=TOKEN_SECRET)
    command = ["kubectl", "--kubeconfig", str(api.kubeconfig), "get", "secrets", "-w", "-o"]
    command += ['jsonpath={.metadata.name} {.data.token}{"\\n"}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = map(str.split, watching.stdout)
        try:
            token = next(words[1] for words in lines if words[0] == "robot" and len(words) > 1)
        finally:
            watching.terminate()
    assert "BEGIN CERTIFICATE" in api.kubectl(
        "get", "secret", "robot", "-o", 'go-template={{index .data "ca.crt" | base64decode}}'
    )
    bearer = ["--kubeconfig=/dev/null", f"--server=https://{api.address}", "--insecure-skip-tls-verify"]
    bearer.append(f"--token={base64.b64decode(token).decode()}")
    assert api.kubectl(*bearer, "auth", "can-i", "list", "pods") == "yes\n"
    assert "Tokens:              robot" in api.kubectl("describe", "sa", "robot")
    api.kubectl("delete", "secret", "robot")
    assert "You must be logged in" in api.kubectl(*bearer, "get", "pods", status=1)


def test_a_bearer_token_of_a_file(tmp_path: Path, scratch_machine: None) -> None:
    """A program without a certificate has a token, as with kube-apiserver's ``--token-auth-file``."""
    file = tmp_path / "tokens.csv"
    file.write_text('s3cret,robot,7,"ci,dev"\n')
    with ApiDaemon(tmp_path, "--set", f"api.token_auth_file={file}") as daemon:
        daemon.kubectl("create", "rolebinding", "dev", "--clusterrole=view", "--group=dev")
        authority = tmp_path / "ca.crt"
        authority.write_text(daemon.kubectl("get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"))
        own = ("--kubeconfig", "/dev/null", "--server", f"https://{daemon.address}")
        own += ("--certificate-authority", str(authority))
        assert daemon.kubectl(*own, "--token", "s3cret", "auth", "can-i", "list", "pods") == "yes\n"
        refused = daemon.kubectl(*own, "--token", "s3cret", "get", "nodes", status=1)
        assert 'User "robot" cannot list resource "nodes"' in refused
        assert "Unauthorized" in daemon.kubectl(*own, "--token", "wrong", "get", "nodes", status=1)


def test_an_administrator_acts_as_others(api: ApiDaemon) -> None:
    ann = ("--kubeconfig", str(user(api, "ann")))
    ask = ("create", "--validate=false", "-o", "json", "-f", "-")
    who = json.loads(api.kubectl("--as", "bob", "--as-group", "ops", *ask, stdin=WHO))
    assert who["status"]["userInfo"] == {"username": "bob", "groups": ["ops", "system:authenticated"]}
    refused = api.kubectl(*ann, "--as", "bob", "get", "pods", status=1)
    assert 'User "ann" cannot impersonate resource "users" in API group "" at the cluster scope' in refused


def token_for(pod: dict[str, Any] | None) -> str:
    """Return a request for a token, bound to a pod if there is one."""
    spec: dict[str, Any] = {}
    if pod is not None:
        fields = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": fields["name"], "uid": fields["uid"]}
    return json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec})


def test_what_signs_tokens_is_there_when_the_first_one_is_made(tmp_path: Path, scratch_machine: None) -> None:
    """It takes 10 MB, which an API without tokens does not need."""
    daemon = ApiDaemon(tmp_path)
    # The program itself: a copy of the fork server could have its memory.
    daemon.environment = {"PYTHONNOUSERSITE": "1"}
    with daemon:
        maps = Path(f"/proc/{daemon.pid}/maps")
        assert "cryptography" not in maps.read_text()
        assert "kube-root-ca.crt" in daemon.kubectl("get", "configmaps", "-A")
        assert "/openid/v1/jwks" in daemon.kubectl("get", "--raw", "/.well-known/openid-configuration")
        assert '"kty":"EC"' in daemon.kubectl("get", "--raw", "/openid/v1/jwks")
        assert "cryptography" not in maps.read_text()
        daemon.kubectl("create", "sa", "robot")
        made = ("create", "--raw", "/api/v1/namespaces/default/serviceaccounts/robot/token", "-f", "-")
        assert json.loads(daemon.kubectl(*made, stdin=token_for(None)))["status"]["token"]
        assert "cryptography" in maps.read_text()


def test_a_node_reads_what_its_pods_name_and_writes_what_is_its_own(api: ApiDaemon) -> None:
    node = ("--kubeconfig", str(user(api, "system:node:n1", "system:nodes")))
    new = ("create", "--validate=false", "-f", "-")
    assert 'node "n1" is not allowed to modify node "n2"' in api.kubectl(
        *node, *new, stdin=NODE.replace("NAME", "n2"), status=1
    )
    api.kubectl(*node, *new, stdin=NODE.replace("NAME", "n1"))
    bundle = ("get", "configmap", "kube-root-ca.crt")
    missing = "no relationship found between node 'n1' and this object"
    assert missing in api.kubectl(*node, *bundle, status=1)
    api.kubectl("create", "-f", "-", stdin=POD)
    api.kubectl(*node, *bundle)
    token = ("create", "--raw", "/api/v1/namespaces/default/serviceaccounts/default/token", "-f", "-")
    assert "node requested token not bound to a pod" in api.kubectl(*node, *token, stdin=token_for(None), status=1)
    web = json.loads(api.kubectl("get", "pod", "web", "-o", "json"))
    assert json.loads(api.kubectl(*node, *token, stdin=token_for(web)))["status"]["token"]
    label = ("label", "node", "n1", "node-role.kubernetes.io/control-plane=")
    assert "is not allowed to modify labels" in api.kubectl(*node, *label, status=1)
    api.kubectl("delete", "pod", "web", "--force", "--grace-period=0")
    assert missing in api.kubectl(*node, *bundle, status=1)
