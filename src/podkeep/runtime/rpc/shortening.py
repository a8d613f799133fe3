"""Leaving labels and annotations out of what would be more than one message holds.

Whoever writes a pod chooses its labels and annotations, 1 MiB of them; the message is everybody's. So some pods with
as many as the Kubernetes API takes must not keep a kubelet from seeing the others.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence
from typing import Protocol

from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.rpc.chunks import FRAME, LIST_BYTES

log = logging.getLogger(__name__)

OF_KUBELETS = frozenset(
    {
        "io.kubernetes.pod.name",
        "io.kubernetes.pod.namespace",
        "io.kubernetes.pod.uid",
        "io.kubernetes.pod.deletionGracePeriod",
        "io.kubernetes.pod.terminationGracePeriod",
        "io.kubernetes.container.name",
        "io.kubernetes.container.hash",
        "io.kubernetes.container.hashWithoutResources",
        "io.kubernetes.container.ports",
        "io.kubernetes.container.preStopHandler",
        "io.kubernetes.container.resources",
        "io.kubernetes.container.restartCount",
        "io.kubernetes.container.terminationMessagePath",
        "io.kubernetes.container.terminationMessagePolicy",
        "io.kubernetes.container.type",
    }
)
"""Labels and annotations by which a kubelet knows its pods and containers again (Kubernetes, kubelet/types/labels.go
and kuberuntime/labels.go). No prefix says which: a pod may have any other that begins alike."""
KEPT_CHARACTERS = (1 << 20, 4096, 256)
"""The longest values of these that are kept; the next number is for what does not fit with the one before. An author
of pods has a say in some (the handler, the ports). What identifies a pod has 253 characters at most."""


class Described(Protocol):
    """A message with the labels and annotations of a sandbox or container."""

    @property
    def annotations(self) -> MutableMapping[str, str]: ...

    @property
    def labels(self) -> MutableMapping[str, str]: ...

    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's


def leave_out(message: Described, kept: int) -> None:
    """Take labels and annotations off a message but the kubelet's with values of at most ``kept`` characters."""
    for texts in (message.annotations, message.labels):
        for key in [key for key, text in texts.items() if key not in OF_KUBELETS or len(text) > kept]:
            del texts[key]


def shorten_statuses(
    sandbox: api.PodSandboxStatus, containers: Sequence[api.ContainerStatus], *, most: int = LIST_BYTES
) -> bool:
    """Shorten the statuses of a pod that go into one message, if they have more than ``most`` bytes.

    Those that have more than their share lose labels and annotations, then mounts: each may name the same long path.

    :return: whether they fit then.
    """
    parts: list[api.PodSandboxStatus | api.ContainerStatus] = [sandbox, *containers]
    if _fit(parts, most):
        return True
    share = most // len(parts) - FRAME
    log.debug("statuses of pod sandbox %s are more than a message holds: some are shortened", sandbox.id)
    for kept in KEPT_CHARACTERS:
        for part in parts:
            if part.ByteSize() > share:
                leave_out(part, kept)
        if _fit(parts, most):
            return True
    for container in containers:
        if container.ByteSize() > share:
            del container.mounts[:]
    return _fit(parts, most)


def _fit(parts: Sequence[Described], most: int) -> bool:
    return sum(part.ByteSize() + FRAME for part in parts) <= most
