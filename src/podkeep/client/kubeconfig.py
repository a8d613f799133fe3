"""kubeconfig files: finding, reading and merging them as kubectl does, and what one of their contexts means.

``KUBECONFIG`` may name several files: the first that has a cluster, user or context of a name, or the current context,
wins (client-go, tools/clientcmd). Paths in a file are relative to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument, PodkeepError
from podkeep.base.text import netloc
from podkeep.client.settings import ExecPlugin, Pem, Settings

MAX_BYTES = 4 << 20
"""Of a kubeconfig file."""
_API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Base(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A table of a kubeconfig; keys that are not known are passed over."""


class _Cluster(_Base, frozen=True, kw_only=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _Variable(_Base, frozen=True, kw_only=True):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    command: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _User(_Base, frozen=True, kw_only=True):
    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class _Context(_Base, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Base, frozen=True, kw_only=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(_Base, frozen=True, kw_only=True):
    name: str
    user: _User = _User()


class _NamedContext(_Base, frozen=True, kw_only=True):
    name: str
    context: _Context = _Context()


class _File(_Base, frozen=True, kw_only=True):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str = ""


Part = TypeVar("Part")


def find(explicit: str = "", *, socket: str = "", context: str = "", own: bool = False) -> Settings:
    """Return the API that a person on this machine means.

    That is, in order: the file that is named; the files of ``KUBECONFIG``; the embedded API's socket, if it is there
    and may be used; ``~/.kube/config``; the API of the cluster in which this process is a pod.

    :param socket: the embedded API's socket; empty: it has none.
    :param context: which context of the files; empty: the current one.
    :param own: this machine is a node with an API of its own. That is meant, then, though it may not serve at the
        moment: what was meant for it must not reach another cluster.
    :raises FailedPrecondition: if there is none.
    :raises InvalidArgument: if a file is wrong.
    """
    if explicit:
        return load([Path(explicit)], context)
    if named := [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]:
        return load([path for path in named if path.exists()] or named[:1], context)
    if socket and not context and (own or os.access(socket, os.W_OK)):
        return Settings(server=f"unix://{socket}")
    home = Path("~/.kube/config").expanduser()
    if home.exists():
        return load([home], context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (IN_CLUSTER / "token").exists():
        return in_cluster()
    raise FailedPrecondition(
        "no Kubernetes API is known here",
        hint="start `podkeep node`, or name a file with --kubeconfig or KUBECONFIG",
    )


def in_cluster() -> Settings:
    """Return the API of the cluster in which this process is a pod, as its service account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = IN_CLUSTER / "namespace"
    return Settings(
        server=f"https://{netloc.join(host, port)}",
        authority=Pem(path=str(IN_CLUSTER / "ca.crt")),
        token_file=str(IN_CLUSTER / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def load(paths: Sequence[Path], context: str = "") -> Settings:
    """Return what a context of the files says.

    :param context: its name; empty: the current one of the first file that names one.
    :raises FailedPrecondition: if a file cannot be read.
    :raises InvalidArgument: if it is no kubeconfig, or what the context names is not there or not supported.
    """
    files = [(path, _read(path)) for path in paths]
    name = context or next((file.current_context for _, file in files if file.current_context), "")
    where = ", ".join(map(str, paths))
    if not name:
        raise InvalidArgument(f"{where}: no current-context", hint="name one with --context")
    contexts = {item.name: item.context for _, file in reversed(files) for item in file.contexts or ()}
    chosen = _named(contexts, name, "context", where)
    clusters = {item.name: (path, item.cluster) for path, file in reversed(files) for item in file.clusters or ()}
    users = {item.name: (path, item.user) for path, file in reversed(files) for item in file.users or ()}
    at, cluster = _named(clusters, chosen.cluster, "cluster", where)
    user_at, user = _named(users, chosen.user, "user", where) if chosen.user else (paths[0], _User())
    found = _settings(name, chosen, (at, cluster), (user_at, user))
    return replace(found, files=tuple(str(path.absolute()) for path in paths))


def renewed(settings: Settings) -> Settings:
    """Return settings with the certificates and keys that their files have now, which may be in the middle of a change.

    Those of another server, or of files that cannot be read or lack something that they had, are not taken.
    """
    try:
        now = load([Path(path) for path in settings.files], settings.context)
    except PodkeepError:
        return settings
    had, has = ((item.authority, item.certificate, item.key) for item in (settings, now))
    if now.server != settings.server or list(map(bool, had)) != list(map(bool, has)):
        return settings
    return replace(settings, authority=now.authority, certificate=now.certificate, key=now.key)


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FailedPrecondition(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InvalidArgument(f"kubeconfig {path} has more than {MAX_BYTES} bytes")
    import yaml

    from podkeep.base.text import yaml_text

    try:
        value = yaml_text.load(data) or {}
        return msgspec.convert(value, _File)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise InvalidArgument(f"{path} is no kubeconfig: {text}") from error


def _named(found: Mapping[str, Part], name: str, what: str, where: str) -> Part:
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise InvalidArgument(f"{where}: there is no {what} {name!r}; there are: {known}")
    return found[name]


def _settings(name: str, context: _Context, cluster_at: tuple[Path, _Cluster], user_at: tuple[Path, _User]) -> Settings:
    (at, cluster), (by, user) = cluster_at, user_at
    if cluster.proxy_url:
        raise InvalidArgument(f"{at}: proxy-url is not supported", hint="name a server that is reached without a proxy")
    if user.auth_provider is not None:
        raise InvalidArgument(
            f"{by}: auth-provider is not supported, and no longer by kubectl", hint="use exec credentials"
        )
    if not cluster.server:
        raise InvalidArgument(f"{at}: cluster {context.cluster!r} has no server")
    return Settings(
        server=cluster.server,
        authority=_pem(at, cluster.certificate_authority, cluster.certificate_authority_data),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        certificate=_pem(by, user.client_certificate, user.client_certificate_data),
        key=_pem(by, user.client_key, user.client_key_data),
        token=user.token,
        token_file=_beside(by, user.token_file),
        username=user.username,
        password=user.password,
        exec_plugin=_plugin(by, user.exec, cluster) if user.exec else None,
        impersonate=tuple(_impersonation(user)),
        namespace=context.namespace or "default",
        context=name,
    )


def _beside(file: Path, path: str) -> str:
    return str(file.absolute().parent / path) if path else ""


def _pem(file: Path, path: str, data: bytes) -> Pem:
    return Pem(data=data) if data else Pem(path=_beside(file, path))


def _plugin(file: Path, wanted: _Exec, cluster: _Cluster) -> ExecPlugin:
    if wanted.api_version not in _API_VERSIONS:
        raise InvalidArgument(
            f"{file}: exec: apiVersion {wanted.api_version!r} is not supported", hint=f"use {_API_VERSIONS[0]}"
        )
    command = wanted.command
    if os.sep in command and not os.path.isabs(command):
        command = _beside(file, command)
    return ExecPlugin(
        command=command,
        arguments=tuple(wanted.args or ()),
        environment=tuple((item.name, item.value) for item in wanted.env or ()),
        api_version=wanted.api_version,
        install_hint=wanted.install_hint,
        interactive=wanted.interactive_mode == "Always",
        cluster=_cluster_info(file, cluster) if wanted.provide_cluster_info else None,
    )


def _cluster_info(file: Path, cluster: _Cluster) -> dict[str, Any]:
    """Return a cluster as an exec plugin is told of it (``ExecCredentialSpec.cluster``)."""
    data = cluster.certificate_authority_data
    if not data and cluster.certificate_authority:
        data = Path(_beside(file, cluster.certificate_authority)).read_bytes()
    cluster_info: dict[str, Any] = {"server": cluster.server}
    if cluster.tls_server_name:
        cluster_info["tls-server-name"] = cluster.tls_server_name
    if cluster.insecure_skip_tls_verify:
        cluster_info["insecure-skip-tls-verify"] = True
    if data:
        cluster_info["certificate-authority-data"] = data
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            cluster_info["config"] = extension.get("extension")
    return cluster_info


def _impersonation(user: _User) -> list[tuple[str, str]]:
    if not user.as_user:
        return []
    headers = [("Impersonate-User", user.as_user)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    headers += [
        (f"Impersonate-Extra-{key}", value) for key, values in (user.as_user_extra or {}).items() for value in values
    ]
    return headers
