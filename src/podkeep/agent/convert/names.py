"""Labels, annotations and paths that a kubelet gives to sandboxes and containers; other tools know them too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument
from podkeep.cri.v1 import api_pb2

Listed = TypeVar("Listed", api_pb2.PodSandbox, api_pb2.Container)

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
DELETION_GRACE_PERIOD = "io.kubernetes.pod.deletionGracePeriod"
PRE_STOP = "io.kubernetes.container.preStopHandler"
PORTS = "io.kubernetes.container.ports"

CONFIG_SOURCE = "kubernetes.io/config.source"
_MAX_HOSTNAME = 63
_MAX_KERNEL_NAME = 64
"""Linux: ``__NEW_UTS_LEN``."""


def pod_labels(pod: Pod) -> dict[str, str]:
    """Return the labels by which everything of ``pod`` is found again."""
    return {
        POD_NAME: pod.metadata.name,
        POD_NAMESPACE: pod.metadata.namespace,
        POD_UID: pod.metadata.uid,
    }


def with_labels(listed: Iterable[Listed], selector: Mapping[str, str]) -> list[Listed]:
    """Return what has these labels of what the runtime lists; it may not filter, and others' must be left alone."""
    return [item for item in listed if selector.items() <= item.labels.items()]


def log_directory(root: str, pod: Pod) -> str:
    meta = pod.metadata
    return f"{root}/{log_directory_of(meta.namespace, meta.name, meta.uid)}"


def log_directory_of(namespace: str, name: str, uid: str) -> str:
    """Return the name of a pod's directory in that of all logs."""
    return f"{namespace}_{name}_{uid}"


def is_directory_name(text: str) -> bool:
    """Return whether a name that the runtime has told leads to one directory, and not elsewhere: logs are there."""
    return text not in ("", ".", "..") and {"/", "\0"}.isdisjoint(text)


def log_path(container: str, attempt: int) -> str:
    """Return a container's log file, relative to the pod's log directory."""
    return f"{container}/{attempt}.log"


def hostname(pod: Pod) -> str:
    """Return the pod's hostname: the one it asks for, or its name, cut to what a hostname may be."""
    asked = pod.spec.hostname_override or pod.spec.hostname or pod.metadata.name
    # A DNS label must not end with what the cut has made its last character (kubelet, truncatePodHostnameIfNeeded).
    return asked if len(asked) <= _MAX_HOSTNAME else asked[:_MAX_HOSTNAME].rstrip("-.")


def domain(pod: Pod, cluster_domain: str) -> str:
    """Return the pod's domain; empty if it has no subdomain, or its hostname is overridden (KEP-4762).

    Without a cluster's domain it is the subdomain alone.
    """
    subdomain = pod.spec.subdomain
    if not subdomain or pod.spec.hostname_override is not None:
        return ""
    return f"{subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}" if cluster_domain else subdomain


def kernel_name(pod: Pod, cluster_domain: str) -> str:
    """Return what ``uname`` says in the pod: its hostname, or all of its name if it asks for that (KEP-1797).

    :raises InvalidArgument: if that is too long for the kernel.
    """
    inside = domain(pod, cluster_domain)
    if not inside or not pod.spec.set_hostname_as_fqdn:
        return hostname(pod)
    name = f"{hostname(pod)}.{inside}"
    if len(name) > _MAX_KERNEL_NAME:
        raise InvalidArgument(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long "
            f"({_MAX_KERNEL_NAME} characters is the max, {len(name)} characters requested)",
            hint="use a shorter hostname or subdomain, or leave setHostnameAsFQDN out",
        )
    return name


def full_name(pod: Pod) -> str:
    """Return a pod as messages call it (kubelet, format.Pod)."""
    return f"{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})"
