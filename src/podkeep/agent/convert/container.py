"""From a container of a Pod to the CRI message that creates it. Pure; the plan says what the node has prepared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from podkeep.agent.convert import names
from podkeep.agent.convert.namespaces import namespace_options
from podkeep.agent.convert.security import ImageUser, SeccompPolicy, container_security
from podkeep.agent.environment.variables import expand_all
from podkeep.agent.resources import class_messages as class_resources
from podkeep.agent.resources.qos import LinuxResources
from podkeep.agent.user_namespaces.model import PodUserNamespace
from podkeep.api.containers import Container
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.cri import id_mappings
from podkeep.cri.v1 import api_pb2

_PROPAGATION = {
    None: api_pb2.PROPAGATION_PRIVATE,
    "None": api_pb2.PROPAGATION_PRIVATE,
    "HostToContainer": api_pb2.PROPAGATION_HOST_TO_CONTAINER,
    "Bidirectional": api_pb2.PROPAGATION_BIDIRECTIONAL,
}


_MAX_IMAGE_ANNOTATIONS = 8 << 20
"""Characters of annotations that all images in a container's mounts have together. Each has those of the pod: 1,000
mounts and 256 KiB of annotations are a message of 256 MiB, of which CRI takes 16."""


class PlannedImage(FrozenStruct, kw_only=True):
    """An image that is a volume: its name in the manifest, and what PullImage or ImageStatus returned for it."""

    reference: str
    ref: str


class PlannedMount(FrozenStruct, kw_only=True):
    """What appears where in the container: of the node, or of an image (then ``host_path`` is None)."""

    host_path: Path | None = None
    image: PlannedImage | None = None
    sub_path: str = ""
    """Of an image; that of a path of the node is resolved already."""
    container_path: str
    read_only: bool = False
    recursive_read_only: bool = False
    """Of the node; what is mounted below it is read-only, too (KEP-3857). The runtime must be able to do it."""
    propagation: str | None = None
    selinux_relabel: bool = False
    """The files are the pod's own, and get its label."""


class PlannedDevice(FrozenStruct, kw_only=True):
    """A device of the node, and where it is in the container (``volumeDevices``)."""

    host_path: Path
    container_path: str
    read_only: bool = False


class ContainerPlan(FrozenStruct, kw_only=True):
    """What the node adds to a container when it asks for it.

    ``image_ref`` is what PullImage or ImageStatus returned; ``user_namespace`` as in the sandbox's plan.
    """

    attempt: int
    image_ref: str
    image_user: ImageUser
    environment: Mapping[str, str]
    mounts: Sequence[PlannedMount]
    resources: LinuxResources
    user_namespace: PodUserNamespace | None
    seccomp: SeccompPolicy
    devices: Sequence[PlannedDevice] = ()
    groups: Sequence[int] = ()
    """Of volumes, which every process of the container is in."""
    handler: str | None = None
    """Of the runtime; ``None``: the one that is called as the pod's RuntimeClass is."""
    target_id: str = ""
    """Of an ephemeral container, the container whose processes it sees."""
    classes: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By type; those of the pod as a whole are none of its containers' (KEP-3008, Proposal)."""


def container_config(pod: Pod, container: Container, plan: ContainerPlan) -> api_pb2.ContainerConfig:
    """Return the configuration that CreateContainer gets.

    :raises InvalidArgument: if the container must not run as root and would, or asks for what cannot be had.
    """
    _require_short(pod.metadata.annotations, sum(mount.image is not None for mount in plan.mounts))
    namespaces = namespace_options(pod.spec, plan.user_namespace, plan.target_id)
    resources = plan.resources
    return api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=container.name, attempt=plan.attempt),
        image=api_pb2.ImageSpec(
            image=plan.image_ref,
            user_specified_image=container.image,
            runtime_handler=_handler(pod, plan),
        ),
        command=expand_all(container.command, plan.environment),
        args=expand_all(container.args, plan.environment),
        working_dir=container.working_dir,
        envs=[api_pb2.KeyValue(key=key, value=value.encode()) for key, value in plan.environment.items()],
        mounts=[_mount(mount, pod, plan) for mount in plan.mounts],
        devices=[
            api_pb2.Device(
                host_path=str(device.host_path),
                container_path=device.container_path,
                permissions="r" if device.read_only else "mrw",
            )
            for device in plan.devices
        ],
        labels=names.pod_labels(pod) | {names.CONTAINER_NAME: container.name},
        annotations=_annotations(pod, container, plan.attempt),
        log_path=names.log_path(container.name, plan.attempt),
        stdin=container.stdin,
        stdin_once=container.stdin_once,
        tty=container.tty,
        stop_signal=_stop_signal(container),
        class_resources=class_resources.of_container(plan.classes),
        linux=api_pb2.LinuxContainerConfig(
            resources=api_pb2.LinuxContainerResources(
                cpu_period=resources.cpu_period_us,
                cpu_quota=resources.cpu_quota_us,
                cpu_shares=resources.cpu_shares,
                memory_limit_in_bytes=resources.memory_limit_bytes,
                oom_score_adj=resources.oom_score_adj,
                hugepage_limits=[
                    api_pb2.HugepageLimit(page_size=size, limit=limit)
                    for size, limit in sorted(resources.hugepage_limits.items())
                ],
                unified=resources.unified,
            ),
            security_context=container_security(pod, container, namespaces, plan.image_user, plan.seccomp, plan.groups),
        ),
    )


def _require_short(annotations: Mapping[str, str], images: int) -> None:
    size = images * sum(len(key) + len(value) for key, value in annotations.items())
    if size > _MAX_IMAGE_ANNOTATIONS:
        raise InvalidArgument(
            f"the annotations of the pod have {size} characters in all of the container's {images} mounts of images, "
            f"more than {_MAX_IMAGE_ANNOTATIONS}"
        )


def _handler(pod: Pod, plan: ContainerPlan) -> str:
    return (pod.spec.runtime_class_name or "") if plan.handler is None else plan.handler


def _mount(mount: PlannedMount, pod: Pod, plan: ContainerPlan) -> api_pb2.Mount:
    """Every mount of a pod whose volumes are idmapped carries the pod's mapping (KEP-127, handling of volumes).

    Images need none of it: the runtime maps them as it maps the root file system.
    """
    own = plan.user_namespace
    id_map = own.id_map if own is not None and own.idmapped_volumes else None
    image = None
    if mount.image is not None:
        image = api_pb2.ImageSpec(
            image=mount.image.ref,
            user_specified_image=mount.image.reference,
            runtime_handler=_handler(pod, plan),
            annotations=pod.metadata.annotations,
        )
    return api_pb2.Mount(
        host_path="" if mount.host_path is None else str(mount.host_path),
        image=image,
        image_sub_path=mount.sub_path,
        container_path=mount.container_path,
        readonly=mount.read_only,
        recursive_read_only=mount.recursive_read_only,
        selinux_relabel=mount.selinux_relabel,
        propagation=_PROPAGATION[mount.propagation],
        uidMappings=[] if id_map is None else id_mappings.messages(id_map.uids),
        gidMappings=[] if id_map is None else id_mappings.messages(id_map.gids),
    )


def _annotations(pod: Pod, container: Container, attempt: int) -> dict[str, str]:
    annotations = {
        names.CONTAINER_HASH: container_hash(container),
        names.RESTART_COUNT: str(attempt),
        names.TERMINATION_MESSAGE_PATH: container.termination_message_path,
        names.TERMINATION_MESSAGE_POLICY: container.termination_message_policy or "File",
        names.GRACE_PERIOD: str(pod.spec.termination_grace_period_seconds or 0),
    }
    if pod.metadata.deletion_grace_period_seconds is not None:
        annotations[names.DELETION_GRACE_PERIOD] = str(pod.metadata.deletion_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        annotations[names.PRE_STOP] = msgspec.json.encode(container.lifecycle.pre_stop).decode()
    if container.ports:
        annotations[names.PORTS] = msgspec.json.encode(container.ports).decode()
    return annotations


def _stop_signal(container: Container) -> api_pb2.Signal.ValueType:
    """Return the signal with which a container is stopped; without one it is that of its image (KEP-4960)."""
    asked = None if container.lifecycle is None else container.lifecycle.stop_signal
    if asked is None:
        return api_pb2.RUNTIME_DEFAULT
    return api_pb2.Signal.Value(asked.replace("+", "PLUS").replace("-", "MINUS"))


def container_hash(container: Container) -> str:
    """Return eight hex digits that change when the container has to be started anew because its specification changed.

    Of what a running pod may change only the image is that; resources are resized in place (kubelet, HashContainer).
    """
    return hashlib.sha256(msgspec.json.encode([container.name, container.image])).hexdigest()[:8]
