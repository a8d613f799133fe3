"""Labels, annotations and paths that a kubelet gives to sandboxes and containers; other tools know them too."""

from __future__ import annotations

from podkeep.api.pod import Pod

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"

CONFIG_SOURCE = "kubernetes.io/config.source"


def pod_labels(pod: Pod) -> dict[str, str]:
    """Return the labels by which everything of ``pod`` is found again."""
    return {
        POD_NAME: pod.metadata.name,
        POD_NAMESPACE: pod.metadata.namespace,
        POD_UID: pod.metadata.uid,
    }


def log_directory(root: str, pod: Pod) -> str:
    """Return the directory of a pod's logs."""
    return f"{root}/{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}"


def log_path(container: str, attempt: int) -> str:
    """Return a container's log file, relative to the pod's log directory."""
    return f"{container}/{attempt}.log"


def hostname(pod: Pod) -> str:
    """Return the pod's hostname: the one it asks for, or its name cut to what a hostname may be."""
    return pod.spec.hostname or pod.metadata.name[:63].rstrip("-.")
