"""What the runtime knows about sandboxes and containers: immutable configurations and small statuses.

Values only. Requests are turned into configurations at the edge (``rpc/convert/``); the state database stores both as
JSON. A configuration never changes after creation; a status is replaced as a whole.

    sandbox      CREATING ──▶ READY ──▶ NOTREADY ──▶ REMOVING ──▶ (gone)
                    └──────── undone ────────────────────▶ (gone)
    container    CREATING ──▶ CREATED ──▶ RUNNING ──▶ EXITED ──▶ REMOVING ──▶ (gone)
                    └──────── undone ────────────────────▶ (gone)

CREATING and REMOVING are never shown to a client: a daemon that starts again undoes the first and finishes the second.
"""

from __future__ import annotations

import enum

import msgspec

from podkeep.base.ids import ContainerID, HandlerName, ImageID, SandboxID
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.kernel.process.procfs import ProcessId


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of what is stored."""


class NamespaceMode(enum.IntEnum):
    """CRI: NamespaceMode."""

    POD = 0
    CONTAINER = 1
    NODE = 2
    TARGET = 3


class Propagation(enum.IntEnum):
    """CRI: MountPropagation."""

    PRIVATE = 0
    HOST_TO_CONTAINER = 1
    BIDIRECTIONAL = 2


class GroupsPolicy(enum.IntEnum):
    """CRI: SupplementalGroupsPolicy."""

    MERGE = 0
    STRICT = 1


class ProfileKind(enum.IntEnum):
    """CRI: SecurityProfile.ProfileType."""

    RUNTIME_DEFAULT = 0
    UNCONFINED = 1
    LOCALHOST = 2


class Seccomp(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A seccomp profile; ``path`` is absolute and of LOCALHOST only."""

    kind: ProfileKind = ProfileKind.UNCONFINED
    path: str = ""


class AppArmor(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An AppArmor profile; ``profile`` is the name of one and of LOCALHOST only."""

    kind: ProfileKind = ProfileKind.RUNTIME_DEFAULT
    profile: str = ""


class SELinuxOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: SELinuxOption; an empty part was not given."""

    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class NamespaceOptions(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: NamespaceOption. ``userns`` is None for the host's user namespace."""

    network: NamespaceMode = NamespaceMode.POD
    pid: NamespaceMode = NamespaceMode.POD
    ipc: NamespaceMode = NamespaceMode.POD
    target_id: str = ""
    userns: IdMap | None = None


class Dns(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: DNSConfig."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class HostPort(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: PortMapping, of one with a host port. ``host_ip`` is an address in its shortest form; empty: every one."""

    protocol: str
    """``tcp``, ``udp`` or ``sctp``."""
    host_port: int
    container_port: int
    host_ip: str = ""


class NetworkMaker(enum.StrEnum):
    """What connects pods: see ``runtime/network/``."""

    BRIDGE = "bridge"
    CNI = "cni"


class NetworkAttachment(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What made a sandbox's network, and what it needs to undo that, whatever the configuration says by then."""

    made_by: NetworkMaker = NetworkMaker.BRIDGE
    cni_list: str = ""
    """CNI: the network configuration list, as JSON."""
    cni_result: str = ""
    """CNI: what ADD returned, as JSON; empty until it did."""


class Resources(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: LinuxContainerResources. 0 means not set; memory in bytes, CPU period and quota in microseconds."""

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    memory_limit: int = 0
    memory_swap_limit: int = 0
    oom_score_adj: int = 0
    hugepage_limits: dict[str, int] = {}
    unified: dict[str, str] = {}


class SandboxConfig(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A pod sandbox as it was asked for."""

    name: str
    uid: str
    namespace: str
    attempt: int = 0
    hostname: str = ""
    log_directory: str = ""
    dns: Dns | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cgroup_parent: str = ""
    sysctls: dict[str, str] = {}
    namespaces: NamespaceOptions = NamespaceOptions()
    privileged: bool = False
    selinux: SELinuxOptions = SELinuxOptions()
    handler: HandlerName = HandlerName("")
    host_ports: tuple[HostPort, ...] = ()
    resources: Resources | None = None
    overhead: Resources | None = None
    """CRI: LinuxPodSandboxConfig.resources and overhead; only noted, because the sums leave out what is unlimited."""
    class_resources: dict[str, str] = {}
    """KEP-3008: PodSandboxConfig.class_resources, types to classes as they were asked for."""

    def key(self) -> str:
        """Return what makes a sandbox the same for a caller that repeats its request."""
        return "/".join((self.namespace, self.name, self.uid, str(self.attempt)))


class SandboxState(enum.StrEnum):
    """See the drawing at the top."""

    CREATING = "creating"
    READY = "ready"
    NOTREADY = "notready"
    REMOVING = "removing"

    @property
    def shown(self) -> bool:
        """Whether clients see it: it was made as a whole, and nobody began to remove it."""
        return self in (SandboxState.READY, SandboxState.NOTREADY)


class SandboxStatus(Record, frozen=True, kw_only=True, omit_defaults=True):
    """``created_at`` in nanoseconds since the epoch; ``address`` is empty on the host network."""

    state: SandboxState
    created_at: int
    address: str = ""
    more_addresses: tuple[str, ...] = ()
    """Those of the other address family, or whatever else a CNI plugin gave."""
    network: NetworkAttachment | None = None
    """None when there is nothing to undo: on the host network, and after the end."""
    infra: ProcessId | None = None
    """The process that holds a shared PID namespace."""
    made_cgroups: tuple[str, ...] = ()
    """The cgroups that did not exist before, outermost first: those the runtime removes."""
    resources: Resources | None = None
    overhead: Resources | None = None
    """What UpdatePodSandboxResources last asked for; the cgroup of the sandbox has it."""
    update_undo: tuple[tuple[str, str], ...] = ()
    """While that is being written: files of the cgroup and what they held, to be written back in this order."""
    selinux_level: str = ""
    """The SELinux level that was chosen for the pod's containers; empty where SELinux is off or the pod names one."""
    class_resources: dict[str, str] = {}
    """Types to the classes in force, which have configured names; none after the end."""
    class_change: dict[str, str] = {}
    """While classes are being changed: those that it goes to; what a start finds here is taken back."""
    oom_kills: int = 0
    """How many processes of its containers that ended were killed because memory ran out (lifecycle/oom_kills.py)."""

    @property
    def held_classes(self) -> dict[str, str]:
        """Types to a class that is to be given back at the end: the one in force, or that of a change under way."""
        return {**self.class_change, **self.class_resources}


# weakref: messages are kept for as long as the record that they were made of (rpc/encoded.py).
class Sandbox(Record, frozen=True, kw_only=True, omit_defaults=True, weakref=True):
    """A pod sandbox."""

    id: SandboxID
    config: SandboxConfig
    status: SandboxStatus


class VolumeImage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: Mount.image and image_sub_path. ``reference`` is the request's; what it meant is in the container."""

    reference: str
    user_specified_image: str = ""
    sub_path: str = ""
    """Relative, without ``..``; empty: the whole image."""


class Mount(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: Mount, of a host path or, where ``image`` is given and ``host_path`` is empty, of an image.

    ``host_path`` is resolved: it has no symbolic link.
    """

    container_path: str
    host_path: str
    readonly: bool = False
    recursive_read_only: bool = False
    """Of ``readonly`` mounts without propagation only (KEP-3857)."""
    selinux_relabel: bool = False
    propagation: Propagation = Propagation.PRIVATE
    idmap: IdMap | None = None
    image: VolumeImage | None = None


class Device(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: Device."""

    container_path: str
    host_path: str
    permissions: str = "rwm"


class Security(Record, frozen=True, kw_only=True, omit_defaults=True):
    """CRI: LinuxContainerSecurityContext. Masked and read-only paths are None if the caller gave no context."""

    privileged: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    ambient_capabilities: tuple[str, ...] = ()
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_username: str = ""
    supplemental_groups: tuple[int, ...] = ()
    groups_policy: GroupsPolicy = GroupsPolicy.MERGE
    readonly_rootfs: bool = False
    no_new_privs: bool = False
    masked_paths: tuple[str, ...] | None = None
    readonly_paths: tuple[str, ...] | None = None
    seccomp: Seccomp = Seccomp()
    apparmor: AppArmor | None = None
    """None: the request says nothing, which is the default profile where there is one."""
    selinux: SELinuxOptions = SELinuxOptions()


class ContainerConfig(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A container as it was asked for."""

    name: str
    attempt: int = 0
    image: str
    """The reference in the request (CRI: ImageSpec.image)."""
    user_specified_image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """Fully qualified names, of the request's field and of its annotations."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    log_path: str = ""
    """Relative to the sandbox's log directory; empty: no log."""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    stop_signal: str = ""
    namespaces: NamespaceOptions = NamespaceOptions()
    resources: Resources = Resources()
    security: Security = Security()
    class_resources: dict[str, str] = {}
    """KEP-3008: ContainerConfig.class_resources, types to classes as they were asked for."""


class ContainerState(enum.StrEnum):
    """See the drawing at the top."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"

    @property
    def shown(self) -> bool:
        """Whether clients see it: it was made as a whole, and nobody began to remove it."""
        return self not in (ContainerState.CREATING, ContainerState.REMOVING)

    @property
    def lives(self) -> bool:
        """Whether it has a process: it was created, and has not ended."""
        return self in (ContainerState.CREATED, ContainerState.RUNNING)


class ContainerStatus(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Times in nanoseconds since the epoch, 0 for "not yet"."""

    state: ContainerState
    created_at: int
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    process: ProcessId | None = None
    """The container's first process."""
    monitor: ProcessId | None = None
    """Its conmon."""
    user: tuple[int, int, tuple[int, ...]] = (0, 0, ())
    """UID, GID and supplementary GIDs of the first process, inside the container."""
    remap_seconds: float = 0.0
    """How long it took at its creation to give its images the owners of its user namespace."""
    resources: Resources | None = None
    """Those in force after an update; None: the configuration's."""
    update_undo: tuple[tuple[str, str], ...] = ()
    """While an update is being written: files of the cgroup and what they held, to be written back in this order."""
    class_resources: dict[str, str] = {}
    """Types to the classes in force, which have configured names; changed last, so that a start can put them back. None
    after the end."""
    class_change: dict[str, str] = {}
    """While classes are being changed: those that it goes to; what a start finds here is taken back."""

    @property
    def held_classes(self) -> dict[str, str]:
        """Types to a class that is to be given back at the end: the one in force, or that of a change under way."""
        return {**self.class_change, **self.class_resources}


class Container(Record, frozen=True, kw_only=True, omit_defaults=True, weakref=True):
    """A container. ``image_id``, ``image_ref`` (a repo digest, or the ID): what ``config.image`` meant at creation.

    ``image_name`` is the whole name under which that was asked for (``Image.name_for``).
    """

    id: ContainerID
    sandbox_id: SandboxID
    config: ContainerConfig
    image_id: ImageID
    image_ref: str
    image_name: str = ""
    volume_images: dict[int, ImageID] = {}
    """Number of a mount to the image that its reference meant at creation; none of these can be removed."""
    image_stop_signal: str = ""
    """The image's stop signal, as the image spells it."""
    status: ContainerStatus

    @property
    def reported_image(self) -> str:
        """The name by which its image is reported; a record of an older podkeep has no ``image_name``."""
        return self.image_name or self.config.user_specified_image or self.config.image

    @property
    def images(self) -> frozenset[ImageID]:
        """The images that cannot be removed while there is this container: its own and those of its volumes."""
        return frozenset((self.image_id, *self.volume_images.values()))

    @property
    def image_names(self) -> frozenset[str]:
        """What these images were asked for by, as it was written, and are reported as.

        Who makes the container again, or reads its status, looks for that.
        """
        volumes = [mount.image for mount in self.config.mounts if mount.image is not None]
        names = {self.image_name, self.image_ref, self.config.user_specified_image, self.config.image}
        names |= {name for volume in volumes for name in (volume.reference, volume.user_specified_image)}
        return frozenset(names - {""})
