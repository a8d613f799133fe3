"""Events of pods and of the node, as the recorder takes them."""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.agent.events import Event
from podkeep.api.pod import Pod
from podkeep.base.frozen import FrozenStruct
from podkeep.client.correlation import Reference
from podkeep.client.recorder import Recorder


class Reports(FrozenStruct, kw_only=True):
    """Where events go.

    :ivar node_reference: what events of the node are about.
    """

    recorder: Recorder
    node_reference: Reference

    def of_pod(self, pod: Pod, event: Event) -> None:
        self.recorder.event(_reference(pod, event.container), event.type, event.reason, event.message)

    def of_node(self, event: Event) -> None:
        self.node(event.type, event.reason, event.message)

    def node(self, kind: str, reason: str, message: str) -> None:
        """Report an event of the node; ``kind`` is Normal or Warning."""
        self.recorder.event(self.node_reference, kind, reason, message)

    def pod(self, pod: Pod, kind: str, reason: str, message: str, annotations: Mapping[str, str] | None = None) -> None:
        self.recorder.event(_reference(pod, ""), kind, reason, message, annotations)


def _reference(pod: Pod, container: str) -> Reference:
    metadata = pod.metadata
    return Reference(
        kind="Pod",
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        field_path=field_path(pod, container),
    )


def field_path(pod: Pod, container: str) -> str:
    """Return where in a pod a container is, as a kubelet's events say it; nothing for the pod as a whole."""
    spec = pod.spec
    for field, among in (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        if any(item.name == container for item in among):
            return f"spec.{field}{{{container}}}"
    return ""
