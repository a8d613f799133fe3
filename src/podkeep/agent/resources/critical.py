"""Which pods the node keeps before others: static ones and those of a system's priority. Pure."""

from __future__ import annotations

from podkeep.api.pod import Pod

CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
"""The least priority of a critical pod (Kubernetes: twice the highest that a user can give)."""
SYSTEM_NODE_CRITICAL = "system-node-critical"
_API = "api"


def is_static(pod: Pod) -> bool:
    """Return whether the pod comes from a manifest of this node: its source is named and is not the API."""
    return pod.metadata.annotations.get(CONFIG_SOURCE, _API) != _API


def is_mirror(pod: Pod) -> bool:
    """Return whether the pod is what shows a static pod in the API."""
    return CONFIG_MIRROR in pod.metadata.annotations


def is_critical(pod: Pod) -> bool:
    """Return whether the node's own work depends on the pod."""
    return is_static(pod) or is_mirror(pod) or priority(pod) >= SYSTEM_CRITICAL_PRIORITY


def is_node_critical(pod: Pod) -> bool:
    """Return whether the pod is the last that is to be killed when memory runs out."""
    return is_critical(pod) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL


def priority(pod: Pod) -> int:
    """Return the priority of the pod; 0 if it has none."""
    return pod.spec.priority or 0


def may_preempt(pod: Pod, other: Pod) -> bool:
    """Return whether ``other`` may be ended to make room for ``pod``."""
    if is_critical(pod) and not is_critical(other):
        return True
    if pod.spec.priority is None or other.spec.priority is None:
        return False
    return pod.spec.priority > other.spec.priority
