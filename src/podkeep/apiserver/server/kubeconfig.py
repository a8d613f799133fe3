"""kubeconfig files: where the API is, whom to believe that it is the API, and who one is."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec

from podkeep.apiserver.server.certificate_orders import Pair, Wanted
from podkeep.apiserver.server.certificates import AUTHORITY, CLIENTS, Files, of_node
from podkeep.base import atomicfile
from podkeep.base.errors import refused
from podkeep.base.text import netloc

CLUSTER = "podkeep"


def server_url(host: str, port: int) -> str:
    """Return the URL of an API that listens on an IP address; on any address, it is at this machine's own."""
    address = ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"https://{netloc.join(host, port)}"


def kubeconfig(server: str, authority: str, user: str, pair: Pair | tuple[str, str]) -> str:
    """Return the file as YAML.

    :param authority: certificate of the API's authority, as PEM.
    :param pair: certificate and key of the user.
    """
    certificate, key = (pair.certificate, pair.key) if isinstance(pair, Pair) else pair
    return _document(
        {"certificate-authority-data": _base64(authority), "server": server},
        user,
        {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)},
    )


def _of_files(server: str, files: Files, client: Wanted) -> str:
    """Return the file of a client on this machine that runs for longer than its certificate is good.

    It reads the files of a kubeconfig again when they change, but not the kubeconfig itself.
    """
    return _document(
        {"certificate-authority": str(files.certificate(AUTHORITY).absolute()), "server": server},
        client.common_name,
        {
            "client-certificate": str(files.certificate(client.name).absolute()),
            "client-key": str(files.key(client.name).absolute()),
        },
    )


def _document(cluster: Mapping[str, str], user: str, credentials: Mapping[str, str]) -> str:
    context = f"{user}@{CLUSTER}"
    value = {
        "apiVersion": "v1",
        "clusters": [{"cluster": cluster, "name": CLUSTER}],
        "contexts": [{"context": {"cluster": CLUSTER, "user": user}, "name": context}],
        "current-context": context,
        "kind": "Config",
        "preferences": {},
        "users": [{"name": user, "user": credentials}],
    }
    return msgspec.yaml.encode(value).decode()


class _Named(msgspec.Struct):
    name: str


class _UseOf(msgspec.Struct):
    cluster: str = ""
    user: str = ""


class _Context(msgspec.Struct):
    name: str
    context: _UseOf


class _Content(msgspec.Struct):
    kind: str = ""
    clusters: list[_Named] | None = None
    contexts: list[_Context] | None = None
    users: list[_Named] | None = None


def is_own(data: bytes) -> bool:
    """Return whether a file is a kubeconfig as :func:`kubeconfig` makes it, of whichever user, or an empty one.

    :raises msgspec.MsgspecError: if it is no kubeconfig.
    """
    content = msgspec.yaml.decode(data, type=_Content)
    clusters, contexts, users = content.clusters or [], content.contexts or [], content.users or []
    if content.kind != "Config" or len(users) > 1:
        return False
    known = {f"{user.name}@{CLUSTER}" for user in users}
    return (
        all(cluster.name == CLUSTER for cluster in clusters)
        and all(context.name in known and context.context.cluster == CLUSTER for context in contexts)
        and bool(contexts) == bool(users)
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write_all(files: Files, server: str, node: str = "") -> list[Path]:
    """Write the kubeconfig of each client that has one, where it is not what is there; return what was written.

    :param node: name of the node whose kubelet has one, too; empty: none.

    :raises FailedPrecondition: if they cannot be written, or what is to be in them cannot be read.
    :raises ResourceExhausted: if the disk is full.
    """
    written = []
    try:
        authority = files.certificate(AUTHORITY).read_text()
        wanted = {}
        for client in CLIENTS:
            pair = (files.certificate(client.name).read_text(), files.key(client.name).read_text())
            wanted[client.name] = kubeconfig(server, authority, client.common_name, pair)
        if node:
            kubelet, _ = of_node(node, ())
            wanted[kubelet.name] = _of_files(server, files, kubelet)
        for name, text in wanted.items():
            path, data = files.kubeconfig(name), text.encode()
            if not path.exists() or path.read_bytes() != data:
                atomicfile.write(path, data)
                written.append(path)
    except OSError as error:
        raise refused("kubeconfigs of the API cannot be written", error) from error
    return written
