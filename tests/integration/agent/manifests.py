"""Manifests for the agent's tests, as values."""

from __future__ import annotations

import json
from typing import Any


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


def text(*documents: dict[str, Any]) -> str:
    """Return the documents as one manifest."""
    return "\n---\n".join(json.dumps(document) for document in documents)
