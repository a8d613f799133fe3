"""``podkeep api`` as kubectl's users see it, over TLS on loopback."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_daemon import ApiDaemon

CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: one
  labels: {a: b}
data:
  x: "1"
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: nginx, image: "nginx:1", ports: [{containerPort: 80}]}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api")) as daemon:
        yield daemon


def test_apply_changes_what_is_there(api: ApiDaemon) -> None:
    assert api.kubectl("apply", "-f", "-", stdin=CONFIG_MAP) == "configmap/one created\n"
    assert api.kubectl("apply", "-f", "-", stdin=CONFIG_MAP) == "configmap/one unchanged\n"
    changed = CONFIG_MAP.replace('x: "1"', 'z: "2"')
    difference = api.kubectl("diff", "-f", "-", stdin=changed, status=1)
    assert '-  x: "1"\n' in difference
    assert api.kubectl("apply", "-f", "-", stdin=changed) == "configmap/one configured\n"
    assert json.loads(api.kubectl("get", "cm", "one", "-o", "json"))["data"] == {"z": "2"}
    assert api.kubectl("delete", "-f", "-", stdin=CONFIG_MAP).startswith('configmap "one" deleted')


def test_server_side_apply_tells_who_owns_a_field(api: ApiDaemon) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert api.kubectl(*apply, stdin=CONFIG_MAP) == "configmap/one serverside-applied\n"
    changed = CONFIG_MAP.replace('"1"', '"2"')
    refused = api.kubectl(*apply, "--field-manager=other", stdin=changed, status=1)
    assert 'conflict with "kubectl": .data.x' in refused
    api.kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=changed)
    assert api.kubectl("get", "cm", "one", "-o", "jsonpath={.data.x}") == "2"
    api.kubectl("delete", "cm", "one")


def test_every_kind_of_patch_and_edit(api: ApiDaemon) -> None:
    api.kubectl("create", "-f", "-", stdin=DEPLOYMENT)
    container = '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","image":"nginx:2"}]}}}}'
    api.kubectl("patch", "deploy", "web", "-p", container)
    api.kubectl("patch", "deploy", "web", "--type=merge", "-p", '{"spec":{"paused":true}}')
    api.kubectl("patch", "deploy", "web", "--type=json", "-p", '[{"op":"remove","path":"/spec/paused"}]')
    api.kubectl("edit", "deploy", "web", edit="s/nginx:2/nginx:3/")
    api.kubectl("scale", "deploy", "web", "--replicas=3")
    api.kubectl("label", "deploy", "web", "tier=front")
    api.kubectl("annotate", "deploy", "web", "why=because")
    found = json.loads(api.kubectl("get", "deploy", "web", "-o", "json"))
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:3"
    assert "paused" not in found["spec"]
    assert found["spec"]["replicas"] == 3
    assert found["metadata"]["labels"]["tier"] == "front"
    table = api.kubectl("get", "deploy", "-o", "wide").split()
    assert table[:8] == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"]
    api.kubectl("delete", "deploy", "web")


def test_what_is_made_on_the_command_line(api: ApiDaemon) -> None:
    for kind, *words in (
        ("namespace", "made"),
        ("configmap", "c", "-n", "made", "--from-literal=a=b"),
        ("secret", "generic", "s", "-n", "made", "--from-literal=a=b"),
        ("serviceaccount", "bob", "-n", "made"),
        ("deployment", "d", "-n", "made", "--image=x"),
        ("service", "clusterip", "d", "-n", "made", "--tcp=80"),
        ("job", "j", "-n", "made", "--image=x"),
        ("quota", "q", "-n", "made", "--hard=pods=3"),
        ("role", "r", "-n", "made", "--verb=get", "--resource=pods"),
        ("rolebinding", "r", "-n", "made", "--role=r", "--serviceaccount=made:bob"),
    ):
        api.kubectl("create", kind, *words)
    bob = "--as=system:serviceaccount:made:bob"
    assert api.kubectl("auth", "can-i", "get", "pods", "-n", "made", bob) == "yes\n"
    assert api.kubectl("auth", "can-i", "list", "pods", "-n", "made", bob, status=1).startswith("no")
    refused = api.kubectl("get", "pods", "-n", "made", bob, status=1)
    assert 'User "system:serviceaccount:made:bob" cannot list resource "pods" in API group ""' in refused
    service = json.loads(api.kubectl("get", "svc", "d", "-n", "made", "-o", "json"))
    assert service["spec"]["clusterIP"].startswith("10.0.0.")
    api.kubectl("delete", "namespace", "made")
    assert "NotFound" in api.kubectl("get", "namespace", "made", status=1)


def test_a_pod_waits_for_a_node(api: ApiDaemon) -> None:
    command = ["kubectl", "--kubeconfig", str(api.kubeconfig), "get", "sa", "-w", "--no-headers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().split()[0] == "default"
        watching.terminate()
    api.kubectl("run", "p", "--image=x")
    api.kubectl("wait", "--for=condition=PodScheduled=false", "pod/p", "--timeout=60s")
    assert "no nodes available to schedule pods" in api.kubectl("get", "pod", "p", "-o", "yaml")
    assert "kube-api-access-" in api.kubectl("describe", "pod", "p")
    api.kubectl("delete", "pod", "p")


def test_a_watch_shows_changes_as_they_come(api: ApiDaemon) -> None:
    command = ["kubectl", "--kubeconfig", str(api.kubeconfig), "get", "cm", "-w", "-l", "seen=yes", "--no-headers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        api.kubectl("create", "cm", "unseen")
        api.kubectl("create", "cm", "seen")
        api.kubectl("label", "cm", "seen", "seen=yes")
        assert watching.stdout.readline().split()[0] == "seen"
        api.kubectl("delete", "cm", "seen", "unseen")
        assert watching.stdout.readline().split()[0] == "seen"
        watching.terminate()


def test_what_there_is_can_be_asked(api: ApiDaemon) -> None:
    kinds = api.kubectl("api-resources", "--no-headers")
    assert "deployments" in kinds
    assert "ingresses" not in kinds
    assert "apps/v1\n" in api.kubectl("api-versions")
    assert "FIELDS:" in api.kubectl("explain", "deployment.spec.strategy")
    assert "<map[string]string>" in api.kubectl("explain", "configmap.data")
    refused = api.kubectl("apply", "-f", "-", stdin=CONFIG_MAP.replace("\ndata:", "\ndato:"), status=1)
    assert 'unknown field "dato"' in refused
    assert api.kubectl("get", "--raw", "/readyz") == "ok"


def test_what_is_not_served_is_told(api: ApiDaemon) -> None:
    api.kubectl("create", "deploy", "lone", "--image=x")
    refused = api.kubectl("autoscale", "deploy/lone", "--max=3", status=1)
    assert "podkeep has no horizontalpodautoscalers.autoscaling, since nothing would act on them" in refused
    refused = api.kubectl("create", "ingress", "i", "--rule=a/b=c:80", status=1)
    assert "podkeep has no ingresses.networking.k8s.io" in refused
    api.kubectl("delete", "deploy", "lone")


def test_a_patch_without_a_name_is_told_in_json(api: ApiDaemon) -> None:
    api.kubectl("create", "deploy", "unnamed", "--image=x")
    patch = '{"spec":{"template":{"spec":{"containers":[{"image":"y","tty":true}]}}}}'
    refused = api.kubectl("patch", "deploy", "unnamed", "-p", patch, status=1)
    assert 'map: {"image":"y","tty":true} does not contain declared merge key: name' in refused
    api.kubectl("delete", "deploy", "unnamed")


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path, scratch_machine: None) -> None:
    with ApiDaemon(tmp_path) as daemon:
        daemon.kubectl("create", "cm", "kept", "--from-literal=a=b")
        daemon.stop(signal.SIGKILL)
        daemon.start()
        assert daemon.kubectl("get", "cm", "kept", "-o", "jsonpath={.data.a}") == "b"


def test_the_unix_socket_is_roots(api: ApiDaemon) -> None:
    assert api.socket.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(api.socket))
        client.sendall(b"GET /api/v1/namespaces/default HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := client.recv(65536):
            answer += data
    assert b"HTTP/1.1 200" in answer
    assert b'"name":"default"' in answer
