"""Manifests for the agent's tests, as values."""

from __future__ import annotations

import base64
import json
from typing import Any

FOREVER = "trap 'exit 0' TERM; sleep 99999 & wait"
"""Ends when it is told to, and not before. A loop of short sleeps would start twenty processes a second."""


def shell(image: str, script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """Return a container that runs ``script``."""
    return {"name": name, "image": image, "command": ["sh", "-c", script]} | more


def pod(*containers: dict[str, Any], name: str = "web", **spec: Any) -> dict[str, Any]:
    """Return a Pod that runs once."""
    base = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": base | spec}


def config_map(name: str, **data: str) -> dict[str, Any]:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, **data: str) -> dict[str, Any]:
    """Return a Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def basic(user: str = "user", password: str = "secret") -> str:
    """Return a name and a password as HTTP's basic authentication has them."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def pull_secret(name: str, *hosts: str, auth: str | None = None) -> dict[str, Any]:
    """Return a Secret with the same credentials for each of ``hosts``."""
    auths = {host: {"auth": auth or basic()} for host in hosts}
    document = secret(name, **{".dockerconfigjson": json.dumps({"auths": auths})})
    return document | {"type": "kubernetes.io/dockerconfigjson"}


def image_volume(reference: str, name: str = "volume", **more: Any) -> dict[str, Any]:
    """Return a volume that is an image or an artifact."""
    return {"name": name, "image": {"reference": reference} | more}


def mount(path: str = "/volume", name: str = "volume", **more: Any) -> dict[str, Any]:
    """Return where a container has a volume."""
    return {"name": name, "mountPath": path} | more


def text(*documents: dict[str, Any]) -> str:
    """Return the documents as one manifest."""
    return "\n---\n".join(json.dumps(document) for document in documents)
