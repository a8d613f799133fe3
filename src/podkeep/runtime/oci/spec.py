"""The OCI configuration of a container. Pure: everything it needs comes in as a value.

Sources of the rules: OCI runtime-spec (config.md, config-linux.md); CRI's field comments; KEP-127, handling of volumes,
for the mappings. Called by ``container_plan.py`` with the facts that ``container_executor.py`` looked up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from podkeep.base.errors import FailedPrecondition, InvalidArgument
from podkeep.base.frozen import FrozenStruct
from podkeep.images.formats.image import ImageRunConfig
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.runtime.model.records import ContainerConfig, Resources, SandboxConfig
from podkeep.runtime.oci import capabilities, mounts, resources, seccomp
from podkeep.runtime.oci.compose import Config, Edit, base, compose, joining, labelled, mapped, mounting, setting
from podkeep.runtime.oci.mounts import OciMount, PodFiles, StagedMount, normal
from podkeep.runtime.oci.resources import ResourceFacts
from podkeep.runtime.oci.selinux import Labels
from podkeep.runtime.oci.users import User

DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_MASKED = (
    "/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
    "/sys/devices/virtual/powercap",
)  # fmt: skip
DEFAULT_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


class HostFacts(FrozenStruct, kw_only=True):
    """What the machine and the daemon can give."""

    capabilities: frozenset[str]
    """The daemon's capability bounding set."""
    machine: str
    oom_score_floor: int
    """The lowest oom_score_adj that the daemon may write."""
    resources: ResourceFacts = msgspec.field(default_factory=ResourceFacts)
    rlimits: tuple[Mapping[str, str | int], ...] = ()
    """Limits of every container's processes, in OCI's form."""
    has_mqueue: bool = True
    """Whether the machine has a directory of message queues at /dev/mqueue."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """The machine's device nodes in OCI's form, for privileged containers."""


class SpecInput(FrozenStruct, kw_only=True):
    """All that a container's configuration is made of."""

    sandbox: SandboxConfig
    container: ContainerConfig
    image: ImageRunConfig
    user: User
    host: HostFacts
    rootfs: str
    cgroup: str
    namespaces: Mapping[str, str]
    """OCI namespace type to the path of one to join; an empty path: a new one. The host's are left out."""
    files: PodFiles
    hostname: str = ""
    """The pod's host name; of a pod that has none of its own, the machine's."""
    machine_devices: bool = True
    """Whether a privileged container has the machine's devices; else it has those that it asked for."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """Device nodes the container asked for, in OCI's form, with ``access`` and ``source`` (the host's path) beside."""
    staged: Mapping[int, StagedMount] = msgspec.field(default_factory=dict)
    """Number of a mount of the container to what is bound in its place, for images and what needs a copy."""
    volumes: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Path in the container to the host path of an anonymous volume of the image."""
    targets: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Path of a mount, in its normal form, to where the links of the image lead from there."""
    seccomp_profile: Mapping[str, Any] | None = None
    """The parsed profile; None: unconfined."""
    apparmor_profile: str = ""
    """The name of a loaded profile; empty: none is applied."""
    labels: Labels = msgspec.field(default_factory=Labels)


def build(given: SpecInput) -> Config:
    """Return the content of ``config.json``.

    :raises InvalidArgument: if the request contradicts itself or its image.
    """
    security, idmap = given.container.security, given.sandbox.namespaces.userns
    bounding = capabilities.container_set(security, given.host.capabilities)
    confined = None
    # CRI (LinuxContainerSecurityContext.privileged): no seccomp restrictions, whatever profile is named.
    if given.seccomp_profile is not None and not security.privileged:
        confined = seccomp.to_oci(given.seccomp_profile, capabilities=bounding, machine=given.host.machine)
    return compose(
        base(*arguments(given.container, given.image), rootfs=given.rootfs, cgroup=given.cgroup),
        setting("root", readonly=security.readonly_rootfs),
        joining(given.namespaces),
        mapped(idmap),
        setting(
            "linux",
            resources=_resources(
                # Whoever cannot make device nodes, or shall not have the machine's, needs no right to all of them.
                given.container.resources,
                given.host.resources,
                all_devices=security.privileged and given.machine_devices and idmap is None,
                devices=given.devices,
            ),
            rootfsPropagation=mounts.rootfs_propagation(given.container.mounts),
            maskedPaths=_paths(security.masked_paths, DEFAULT_MASKED, privileged=security.privileged),
            readonlyPaths=_paths(security.readonly_paths, DEFAULT_READONLY, privileged=security.privileged),
            devices=_device_nodes(given) or None,
            seccomp=confined,
        ),
        _process(given, bounding),
        labelled(given.labels),
        mounting(*_mounts(given)),
    )


def arguments(container: ContainerConfig, image: ImageRunConfig) -> tuple[str, ...]:
    """Return the program and its arguments (CRI: ContainerConfig.command and args).

    :raises InvalidArgument: if neither the request nor the image names one.
    """
    if container.command:
        result = (*container.command, *container.args)
    elif container.args:
        result = (*image.entrypoint, *container.args)
    else:
        result = (*image.entrypoint, *image.cmd)
    if not result:
        raise InvalidArgument(
            f"container {container.name!r}: no command: neither the request nor the image {container.image} names one",
            hint="set command",
        )
    return result


def _process(given: SpecInput, bounding: frozenset[str]) -> Edit:
    security, container = given.container.security, given.container
    sets = dict.fromkeys(("bounding", "effective", "permitted"), sorted(bounding))
    # An unprivileged user keeps only what is ambient; the kernel clears the rest at exec (capabilities(7)).
    if ambient := sorted(capabilities.ambient_set(security, bounding)):
        sets |= dict.fromkeys(("inheritable", "ambient"), ambient)
    return setting(
        "process",
        user={"uid": given.user.uid, "gid": given.user.gid, "additionalGids": list(given.user.groups)},
        env=_environment(given),
        cwd=posixpath.join("/", container.working_dir or given.image.working_dir),
        terminal=container.tty,
        noNewPrivileges=security.no_new_privs,
        # A lower value than the daemon may give would keep the container from being created
        # (proc_pid_oom_score_adj(5)).
        oomScoreAdj=max(container.resources.oom_score_adj, given.host.oom_score_floor),
        capabilities=sets,
        rlimits=[dict(limit) for limit in given.host.rlimits] or None,
        apparmorProfile=given.apparmor_profile or None,
    )


def _environment(given: SpecInput) -> list[str]:
    # An image may say otherwise, as with the peers: servers take HOSTNAME for the address to listen on.
    result = {"HOSTNAME": given.hostname} if given.hostname else {}
    for entry in given.image.env:
        name, _, value = entry.partition("=")
        result[name] = value
    if "PATH" not in result:
        result["PATH"] = DEFAULT_PATH.partition("=")[2]
    if given.container.tty:
        # As the peers say: without it programs such as vi do not work in a terminal.
        result.setdefault("TERM", "xterm")
    result.update(given.container.envs)
    # Last: what the request or the image says of it wins over the passwd file.
    result.setdefault("HOME", given.user.home)
    return [f"{name}={value}" for name, value in result.items()]


def _mounts(given: SpecInput) -> list[OciMount]:
    return mounts.build(
        mounts.MountInput(
            container=given.container,
            files=given.files,
            own_ipc="ipc" in given.namespaces,
            has_mqueue=given.host.has_mqueue,
            staged=given.staged,
            volumes=given.volumes,
            targets=given.targets,
            device_paths=tuple(normal(device["path"]) for device in given.devices),
            devices={device["path"]: device["source"] for device in given.devices} if _maps_ids(given) else {},
        )
    )


def _maps_ids(given: SpecInput) -> bool:
    return given.sandbox.namespaces.userns is not None


def _device_nodes(given: SpecInput) -> list[dict[str, Any]]:
    """Return the device nodes to be made. In a user namespace none can be: the machine's are mounted there."""
    if _maps_ids(given):
        return []
    nodes = {device["path"]: device for device in given.devices}
    if given.container.security.privileged:
        nodes |= {device["path"]: device for device in given.host.devices if device["path"] not in nodes}
    return [{key: value for key, value in node.items() if key not in {"access", "source"}} for node in nodes.values()]


def _paths(asked: tuple[str, ...] | None, default: tuple[str, ...], *, privileged: bool) -> list[str]:
    if privileged:
        return []
    return list(default if asked is None else asked)


def _resources(
    asked: Resources, facts: ResourceFacts, *, all_devices: bool, devices: tuple[Mapping[str, Any], ...]
) -> dict[str, Any]:
    allowed: list[dict[str, Any]] = [{"allow": all_devices, "access": "rwm"}]
    if not all_devices:
        keys = ("type", "major", "minor", "access")
        allowed += [{"allow": True, **{key: device[key] for key in keys}} for device in devices]
    return {"devices": allowed, **resources.to_oci(asked, facts)}


def check_mapped(user: User, idmap: IdMap | None) -> None:
    """Check that a user exists in the pod's user namespace.

    :raises InvalidArgument: naming the ID that is not mapped (KEP-127: the kernel would only say EINVAL).
    """
    if idmap is None:
        return
    idmap.host_uid(user.uid)
    for gid in (user.gid, *user.groups):
        idmap.host_gid(gid)


def process_for_exec(config: Mapping[str, Any], command: tuple[str, ...]) -> dict[str, Any]:
    """Return the process of a command run beside a container's own (OCI runtime command line, exec --process).

    :param config: the container's configuration, as :func:`build` made it.
    :raises InvalidArgument: if ``command`` is empty.
    :raises FailedPrecondition: if ``config`` has no process.
    """
    if not command:
        raise InvalidArgument("exec: the request has no command")
    if "process" not in config:
        raise FailedPrecondition("the container's configuration has no process")
    return {**config["process"], "args": list(command), "terminal": False}
