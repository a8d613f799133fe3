"""A container that is asked for, and the plan of it: all that is decided before anything is mounted or copied for it.

Owns: what a plan holds, and making it. Does not own: looking up what it depends on, and carrying it out
(``container_executor.py``). Pure.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from podkeep.base.frozen import FrozenStruct
from podkeep.images.formats.image import Image
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.bundle.container_log import LogFile
from podkeep.runtime.model.records import Container, Sandbox
from podkeep.runtime.oci import spec
from podkeep.runtime.oci.compose import Config, Edit, compose
from podkeep.runtime.oci.mounts import StagedMount, check_device_nodes
from podkeep.runtime.oci.spec import SpecInput
from podkeep.runtime.oci.users import User


class ContainerRequest(FrozenStruct, kw_only=True):
    """A container to be made, with everything it refers to."""

    container: Container
    sandbox: Sandbox
    image: Image
    log: LogFile | None
    target: ProcessId | None = None
    """The process whose PID namespace it joins (NamespaceMode TARGET)."""
    volume_images: Mapping[int, Image] = msgspec.field(default_factory=dict)
    """The images among its volumes, by the number of the mount."""
    given_up: threading.Event = msgspec.field(default_factory=threading.Event)
    """Set when its caller has gone: what takes long in its making ends."""


class ContainerPlan(FrozenStruct, kw_only=True):
    """What is made for a container once its root file system is there; its text is what a log may say of it."""

    user: User
    label: str
    """The SELinux label of its files; empty where SELinux is off."""
    volumes: Mapping[str, str]
    """Path in the container to the host path of an anonymous volume of its image."""
    staged: Mapping[int, StagedMount]
    """Number of a mount of the request to what is bound in its place: copies of paths, and images."""
    devices: Mapping[str, StagedMount]
    """Host path that a CDI device needs mounted to its copy, in a pod with a user namespace."""
    config: Config
    """The OCI configuration, with mounts whose flags are not locked yet (``Staging.lock``)."""

    def __str__(self) -> str:
        """Without arguments and environment, which may hold secrets."""
        linux = self.config["linux"]
        values = {
            "user": f"{self.user.uid}:{self.user.gid}",
            "cgroup": linux["cgroupsPath"],
            "namespaces": ",".join(f"{item['type']}={item.get('path', 'new')}" for item in linux["namespaces"]),
            "mounts": ",".join(f"{item['destination']}={item['source']}" for item in self.config["mounts"]),
            "devices": ",".join(item["path"] for item in linux.get("devices", ())),
            "label": self.label,
        }
        return " ".join(f"{name}={value}" for name, value in values.items() if value)


def resolve(given: SpecInput, devices: Mapping[str, StagedMount], *edits: Edit) -> ContainerPlan:
    """Return the plan of a container.

    :param given: the request with what was looked up for it.
    :param devices: copies for CDI; see :class:`ContainerPlan`.
    :param edits: what is added to the OCI configuration, in this order.
    :raises InvalidArgument: if the request contradicts itself or its image.
    :raises PodkeepError: what an edit raises.
    """
    config = compose(spec.build(given), *edits)
    check_device_nodes(config)
    return ContainerPlan(
        user=given.user,
        label=given.labels.mount,
        volumes=given.volumes,
        staged=given.staged,
        devices=devices,
        config=config,
    )
