"""Pods stay on a node that does not answer for some minutes, unless they say how long.

The plugin ``DefaultTolerationSeconds``, which upstream has on.
"""

from __future__ import annotations

from typing import Any

from podkeep.apiserver.admission.attributes import Attributes
from podkeep.apiserver.admission.pod_specs import PODS

DEFAULT_SECONDS = 300
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


class DefaultTolerationSeconds:
    """The plugin ``DefaultTolerationSeconds``; both parameters are in seconds."""

    def __init__(self, not_ready: int = DEFAULT_SECONDS, unreachable: int = DEFAULT_SECONDS) -> None:
        self._seconds = {NOT_READY: not_ready, UNREACHABLE: unreachable}

    def mutate(self, attributes: Attributes) -> None:
        target = attributes.target
        if attributes.value is None or target.subresource or target.resource.storage_name != PODS:
            return
        spec = attributes.value.setdefault("spec", {})
        tolerations: list[dict[str, Any]] = spec.get("tolerations", [])
        given = {
            toleration.get("key", "") for toleration in tolerations if toleration.get("effect", "") in ("", "NoExecute")
        }
        added = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            for key, seconds in self._seconds.items()
            if given.isdisjoint({key, ""})
        ]
        if added:
            spec["tolerations"] = tolerations + added

    def validate(self, attributes: Attributes) -> None: ...
