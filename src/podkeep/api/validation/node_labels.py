"""Which labels a Node gets from its own node; pure.

By others of Kubernetes' domains a node could draw privileged pods to itself: NodeRestriction forbids them, and a
kubelet with them does not start (k8s.io/kubelet, well_known_labels.go).
"""

from __future__ import annotations

KUBELET_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    }
)
"""What every Node is labelled with by its kubelet."""
_LABEL_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_DOMAINS = ("kubernetes.io", "k8s.io")


def is_forbidden(label: str) -> bool:
    """Tell whether a label is not a node's to say, by its key."""
    namespace, slash, _ = label.partition("/")
    if not slash or not _within(namespace, _DOMAINS):
        return False
    return label not in KUBELET_LABELS and not _within(namespace, _LABEL_NAMESPACES)


def words() -> str:
    """Return in words which of Kubernetes' labels are a node's to say."""
    return f"those within {' and '.join(_LABEL_NAMESPACES)}, and {', '.join(sorted(KUBELET_LABELS))}"


def _within(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == domain or namespace.endswith(f".{domain}") for domain in domains)
