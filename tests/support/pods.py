"""Pods for tests of pure decisions: from the same documents that a client sends, without defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.api.pod import Pod


def resources(requests: str = "", limits: str = "") -> dict[str, dict[str, str]]:
    """Return ``resources`` from texts such as ``"cpu=1 memory=64Mi"``; a limit is a request, as the API has it."""
    given_limits = dict(item.split("=") for item in limits.split())
    given_requests = given_limits | dict(item.split("=") for item in requests.split())
    return {"requests": given_requests, "limits": given_limits}


def container(name: str = "main", requests: str = "", limits: str = "", **fields: Any) -> dict[str, Any]:
    """Return a container's document."""
    return {"name": name, "image": "i", "resources": resources(requests, limits), **fields}


def pod(
    *containers: Mapping[str, Any],
    name: str = "web",
    init: Sequence[Mapping[str, Any]] = (),
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """Return a pod; without containers it has one that asks for nothing."""
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **(metadata or {})},
        "spec": {"initContainers": init, "containers": containers or [container()], **spec},
    }
    return msgspec.convert(document, Pod)
