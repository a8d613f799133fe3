"""kubeconfig files: which one counts, what one of its contexts means, and what is wrong with it."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.client import kubeconfig

WHOLE = """
apiVersion: v1
kind: Config
current-context: here
clusters:
- name: c
  cluster: {server: "https://192.0.2.1:6443", certificate-authority: ca.crt, tls-server-name: kubernetes}
- name: other
  cluster: {server: "https://192.0.2.2", insecure-skip-tls-verify: true}
users:
- name: u
  user: {client-certificate-data: Y2VydA==, client-key: keys/u.key}
- name: t
  user: {tokenFile: token, as: ann, as-groups: [dev]}
- name: x
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./plugin
      args: [get]
      env: [{name: A, value: b}]
      provideClusterInfo: true
      interactiveMode: Never
contexts:
- {name: here, context: {cluster: c, user: u, namespace: shop}}
- {name: there, context: {cluster: other, user: t}}
- {name: exec, context: {cluster: other, user: x}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(WHOLE)
    return path


def test_the_current_context(file: Path) -> None:
    found = kubeconfig.load([file])
    assert (found.server, found.server_name, found.namespace) == ("https://192.0.2.1:6443", "kubernetes", "shop")
    assert found.authority.path == str(file.parent / "ca.crt")
    assert found.certificate.data == b"cert"
    assert found.key.path == str(file.parent / "keys/u.key")
    assert not found.insecure


def test_another_context(file: Path) -> None:
    found = kubeconfig.load([file], "there")
    assert found.token_file == str(file.parent / "token")
    assert found.impersonate == (("Impersonate-User", "ann"), ("Impersonate-Group", "dev"))
    assert found.insecure
    assert found.namespace == "default"


def test_exec_credentials(file: Path) -> None:
    plugin = kubeconfig.load([file], "exec").exec_plugin
    assert plugin is not None
    assert plugin.command == str(file.parent / "plugin")
    assert plugin.arguments == ("get",)
    assert plugin.environment == (("A", "b"),)
    assert plugin.cluster == {"server": "https://192.0.2.2", "insecure-skip-tls-verify": True}
    assert not plugin.interactive


def test_no_secret_is_shown(file: Path) -> None:
    assert "Y2VydA" not in repr(kubeconfig.load([file]))
    assert "cert'" not in repr(kubeconfig.load([file]))


def test_the_first_of_several_files_wins(file: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text('clusters: [{name: c, cluster: {server: "https://192.0.2.9"}}]\n')
    assert kubeconfig.load([first, file]).server == "https://192.0.2.9"


@pytest.mark.parametrize(
    ("text", "context", "said"),
    [
        ("{", "", "is no kubeconfig"),
        ("[1]", "", "is no kubeconfig"),
        ("clusters: 7", "", "is no kubeconfig"),
        ("kind: Config", "", "no current-context"),
        (WHOLE, "nowhere", "there is no context 'nowhere'; there are: exec, here, there"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]", "", "there is no cluster 'c'"),
        (WHOLE.replace("tls-server-name: kubernetes", "proxy-url: http://p"), "", "proxy-url is not supported"),
        (WHOLE.replace("{client-certificate-data", "{auth-provider: {name: gcp}, client-certificate-data"), "", "exec"),
        (
            WHOLE.replace("k8s.io/v1\n", "k8s.io/v1alpha1\n"),
            "exec",
            "apiVersion 'client.authentication.k8s.io/v1alpha1'",
        ),
        (WHOLE.replace("Y2VydA==", "?"), "", "is no kubeconfig"),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str, context: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as refused:
        kubeconfig.load([path], context)
    assert said in str(refused.value)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"#" * (kubeconfig.MAX_BYTES + 1))
    with pytest.raises(InvalidArgument, match="has more than"):
        kubeconfig.load([path])


def test_which_api_is_meant(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FailedPrecondition, match="no Kubernetes API is known here"):
        kubeconfig.find()
    (tmp_path / "home/.kube").mkdir(parents=True)
    (tmp_path / "home/.kube/config").write_text(WHOLE.replace("192.0.2.1", "192.0.2.3"))
    none = str(tmp_path / "none")
    assert kubeconfig.find(socket=none).server == "https://192.0.2.3:6443"
    assert kubeconfig.find(socket=none, own=True).server == f"unix://{none}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "api.sock"))
        assert kubeconfig.find(socket=str(tmp_path / "api.sock")).server == f"unix://{tmp_path}/api.sock"
        assert kubeconfig.find(socket=str(tmp_path / "api.sock"), context="there").server == "https://192.0.2.2"
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/missing{os.pathsep}{file}")
        assert kubeconfig.find(socket=str(tmp_path / "api.sock")).server == "https://192.0.2.1:6443"
        assert kubeconfig.find(str(tmp_path / "home/.kube/config")).server == "https://192.0.2.3:6443"


def test_base64_of_a_certificate_is_what_kubectl_writes(file: Path) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n"
    file.write_text(WHOLE.replace("Y2VydA==", base64.b64encode(pem).decode()))
    assert kubeconfig.load([file]).certificate.data == pem
