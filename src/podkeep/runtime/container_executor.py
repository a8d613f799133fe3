"""Making and unmaking containers: the kernel's side.

Owns: the root file system, the bundle, the lookups in the image that the configuration needs, and removal. Does not
own: records (``containers.py``) or the configuration's content (``oci/spec.py``). Everything blocks; the server calls
it on threads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from podkeep.base import failpoints
from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    KernelCallError,
    NotFound,
    PodkeepError,
    refused,
)
from podkeep.base.ids import ContainerID
from podkeep.base.undo import UndoStack
from podkeep.images.image import Image
from podkeep.images.store import ImageStore
from podkeep.kernel import cgroup_dynmods, mounts, openat, overlay, procfs, removal
from podkeep.kernel.namespaces import NamespaceKind
from podkeep.kernel.procfs import ProcessId
from podkeep.runtime import anonymous_volumes, cdi_nodes, container_log, devices, image_volumes, relabel, targets
from podkeep.runtime.cdi_registry import Registry
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.class_resources import qos
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.class_resources.targets import container_target
from podkeep.runtime.container_log import LogFile
from podkeep.runtime.image_volumes import ImageVolumes
from podkeep.runtime.layout import Layout, container_cgroup
from podkeep.runtime.oci import cdi_edits, spec, users
from podkeep.runtime.oci.driver import Created, Driver, ExecLimits, ExecResult, Stdio
from podkeep.runtime.oci.mounts import POD_FILES, check_device_nodes
from podkeep.runtime.records import (
    Container,
    NamespaceMode,
    ProfileKind,
    Sandbox,
    Seccomp,
)
from podkeep.runtime.sandbox_executor import SandboxExecutor
from podkeep.runtime.staging import Staging, make_passable

_PASSWD_LIMIT = 1 << 20
_PROFILE_LIMIT = 4 << 20
"""Bytes of the image's passwd and group files that are looked at."""
EMPTIED_BYTES = 16 << 20
"""Page cache of a container that is dropped when it is removed; more of it may be worth keeping for the next one."""


@dataclass(frozen=True, kw_only=True)
class ContainerPlan:
    """A container to be made, with everything it refers to."""

    container: Container
    sandbox: Sandbox
    image: Image
    log: LogFile | None
    target: ProcessId | None = None
    """The process whose PID namespace it joins (NamespaceMode TARGET)."""
    volume_images: Mapping[int, Image] = field(default_factory=dict)
    """The images among its volumes, by the number of the mount."""


@dataclass(frozen=True, kw_only=True)
class MadeContainer:
    """What is only known once a container exists."""

    created: Created
    user: users.User


@dataclass(frozen=True)
class ContainerExecutor:
    """Makes and unmakes containers below one layout."""

    layout: Layout
    images: ImageStore
    sandboxes: SandboxExecutor
    seccomp_default: Path
    cdi: Registry = field(default_factory=lambda: Registry(()))
    image_volume_policy: image_volumes.Policy = field(default_factory=image_volumes.Policy)

    def create(self, plan: ContainerPlan, driver: Driver) -> MadeContainer:
        """Make the root file system and the bundle, and have the container created.

        :raises PodkeepError: if anything fails; what was made until then is gone again.
        """
        container = plan.container
        with ExitStack() as held, UndoStack() as undo:
            # An OCI runtime that fails halfway may leave its cgroup, of which its own delete knows nothing then.
            undo.push(f"remove the cgroup of container {container.id}", lambda: self._remove_cgroup(plan))
            undo.push(f"undo container {container.id}", lambda: self.remove(container, plan.sandbox, driver))
            edits = self.cdi.edits(container.config.cdi_devices)
            bundle = self.layout.bundle(container.id)
            make_passable(bundle, plan.sandbox.config.namespaces.userns)
            log = None if plan.log is None else self._mount_log(container.id, plan.log, undo)
            failpoints.reach("container.log")
            launch = driver.launch(container.id, bundle, self.layout.exits, _stdio(container, log))
            undo.push(f"end the conmon of container {container.id}", launch.close)
            failpoints.reach("container.launched")
            self._make_rootfs(plan)
            failpoints.reach("container.rootfs")
            volumes, found = self._make_volumes(plan)
            user = self._user(plan)
            staged = self._staging.stage(container, plan.sandbox)
            label = self.sandboxes.labels(plan.sandbox, container.config.security).mount
            staged |= self._image_volumes.stage(container, plan.sandbox, plan.volume_images, label=label)
            copies = self._staging.stage_sources(container, plan.sandbox, cdi_nodes.sources(edits))
            failpoints.reach("container.staged")
            given = replace(self._spec_input(plan, user, staged, held), volumes=volumes, targets=found)
            if driver.handler.privileged_without_host_devices:
                given = replace(given, host=self._host_facts, machine_devices=False)
            config = spec.build(given)
            passed = driver.handler.passed_annotations(plan.sandbox.config.annotations, container.config.annotations)
            if passed:
                config["annotations"] = {**config.get("annotations", {}), **passed}
            config = cdi_edits.apply(config, cdi_nodes.prepare(edits, copies))
            check_device_nodes(config)
            whole = {place for copy in copies.values() for place in copy.values()}
            config = self._staging.lock(container, plan.sandbox, config, whole=whole)
            failpoints.reach("container.locked")
            config = qos.edit_of_pod(plan.sandbox.status.class_resources, config)
            config = self.classes.edit(container.status.class_resources, config)
            if label:
                relabel_mounts(container, volumes, label, self.layout.images)
            _write_private(bundle / "config.json", json.dumps(config))
            failpoints.reach("container.bundle")
            created = launch.create()
            # The container has its own copies now.
            self._staging.unstage(container)
            if _has_root_read_only_for_good(plan):
                overlay.make_readonly(self.layout.rootfs(container.id))
            failpoints.reach("container.created")
            # Its process waits to be told to start the program: nothing has run outside its classes.
            target = container_target(self.sandboxes.cgroups, plan.sandbox, container)
            target = replace(target, process=created.process)
            self.classes.apply(target, container.status.class_resources)
            failpoints.reach("container.classed")
        return MadeContainer(created=created, user=user)

    def expect_move(self) -> None:
        """See :func:`podkeep.kernel.cgroup_dynmods.expect_move`.

        :raises OSError: if the daemon may not write to its own cgroup.
        """
        cgroup_dynmods.expect_move(self.sandboxes.cgroups.layout)

    @property
    def classes(self) -> ClassResources:
        """The class resources of the node."""
        return self.sandboxes.classes

    def start(self, container: Container, sandbox: Sandbox, driver: Driver) -> None:
        """Check that a created container is in its classes, and let it run its program.

        :raises PodkeepError: if it does not run, or is not in its classes: then nothing of the program has run.
        """
        process = container.status.process
        if container.status.class_resources:
            # Its first process is there, and waits. Afterwards is too late: a short program is done by then.
            target = container_target(self.sandboxes.cgroups, sandbox, container)
            try:
                self.classes.verify(target, container.status.class_resources)
            except PodkeepError:
                if process is None or procfs.alive(process):  # what has ended is in no class any more, nor starts
                    raise
        try:
            driver.start(container.id)
        except PodkeepError as error:
            # A daemon that was killed right after it started the program did not come to note it.
            if process is not None and driver.has_started(process):
                return
            if process is not None and not procfs.alive(process):
                raise FailedPrecondition(
                    f"container {container.id}: its process ended before its program was started",
                    hint="something killed it: raise its memory limit, or its pod's",
                ) from error
            raise

    def release_classes(self, container: Container, sandbox: Sandbox) -> None:
        """Take a container that ended out of its classes; safe to repeat.

        :raises PodkeepError: the first error of a type; every type gets its turn.
        """
        if held := container.status.held_classes:
            self.classes.release(container_target(self.sandboxes.cgroups, sandbox, container), held)

    def remove(self, container: Container, sandbox: Sandbox, driver: Driver) -> None:
        """Remove everything of a container whose processes are dead or may be killed; safe to repeat.

        :raises PodkeepError: if something cannot be removed.
        """
        # Here, because the OCI runtime removes it.
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)
        self.sandboxes.cgroups.empty(cgroup, EMPTIED_BYTES)
        driver.delete(container.id)
        self.release_classes(container, sandbox)
        self._staging.unstage(container)
        for place in (self.layout.rootfs(container.id), self.layout.log_directory(container.id)):
            mounts.unmount(place, lazy=True)
        for directory in (self.layout.bundle(container.id), self.layout.container_data(container.id)):
            removal.remove_tree(directory)
        self.layout.exit_file(container.id).unlink(missing_ok=True)

    def _remove_cgroup(self, plan: ContainerPlan) -> None:
        cgroup = container_cgroup(plan.sandbox.config.cgroup_parent, plan.sandbox.id, plan.container.id)
        self.sandboxes.cgroups.kill(cgroup)
        self.sandboxes.cgroups.remove(cgroup)

    def kill_rest(self, container: Container, sandbox: Sandbox) -> None:
        """Kill every process in the container's cgroup."""
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)
        self.sandboxes.cgroups.kill(cgroup)

    def exec_sync(
        self,
        container: Container,
        sandbox: Sandbox,
        driver: Driver,
        command: tuple[str, ...],
        limits: ExecLimits,
    ) -> ExecResult:
        """Run a command in a running container.

        :raises DeadlineExceeded: if it took too long and was killed.
        :raises Cancelled: if it was told to stop and was killed.
        """
        bundle = self.layout.bundle(container.id)
        config = json.loads((bundle / "config.json").read_text())
        config, enter = self.sandboxes.command_classes(container, sandbox, config)
        return driver.exec_sync(container.id, bundle, spec.process_for_exec(config, command), limits, enter=enter)

    @cached_property
    def _staging(self) -> Staging:
        return Staging(self.layout, self.sandboxes.helper)

    @cached_property
    def _image_volumes(self) -> ImageVolumes:
        return ImageVolumes(images=self.images, staging=self._staging, policy=self.image_volume_policy)

    def _mount_log(self, container: ContainerID, log: LogFile, undo: UndoStack) -> Path:
        """Mount the directory of a log for conmon, and return the path of the log in it."""
        directory, new = container_log.prepare(log)
        place = self.layout.log_directory(container)
        with openat.closing(directory):
            place.mkdir(mode=0o700)
            mounts.attach(directory, place)
        if new:
            undo.push(f"remove the empty log {log}", lambda: container_log.remove_empty(log))
        return place / log.name

    def _make_rootfs(self, plan: ContainerPlan) -> None:
        container, idmap = plan.container, plan.sandbox.config.namespaces.userns
        data = self.layout.container_data(container.id)
        rootfs = self.layout.rootfs(container.id)
        rootfs.mkdir(mode=0o755)
        make_passable(data, idmap)
        upper, work = data / "upper", data / "work"
        upper.mkdir()
        upper.chmod(0o755)
        work.mkdir(mode=0o700)
        if idmap is not None:
            # New files get the pod's own host IDs; only the root of the tree must be given to the pod's root.
            os.chown(upper, idmap.host_uid(0), idmap.host_gid(0))
        with ExitStack() as closing:
            userns = None
            if idmap is not None:
                userns = self._staging.open_userns(plan.sandbox, idmap)
                closing.callback(os.close, userns)
            lowers = self.images.lowers(plan.image, userns=userns)
            for fd in lowers:
                closing.callback(os.close, fd)
            label = self.sandboxes.labels(plan.sandbox, container.config.security).mount
            overlay.mount_overlay(
                lowers,
                upper=upper,
                work=work,
                target=rootfs,
                context=label,
                volatile=_has_root_read_only_for_good(plan),
            )

    def _make_volumes(self, plan: ContainerPlan) -> tuple[dict[str, str], dict[str, str]]:
        """Return the image's volumes, and where in the image the paths of mounts are."""
        container = plan.container
        mounted = [mount.container_path for mount in container.config.mounts]
        volumes = anonymous_volumes.wanted(plan.image.config.volumes, mounted)
        rootfs = self.layout.rootfs(container.id)
        root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            targets.check_virtual(root)
            found = targets.resolve_all(root, (*mounted, *volumes, *POD_FILES))
            volumes = anonymous_volumes.distinct(volumes, found)
        finally:
            os.close(root)
        directory, idmap = self.layout.volumes(container.id), plan.sandbox.config.namespaces.userns
        return anonymous_volumes.make(volumes, rootfs=rootfs, directory=directory, idmap=idmap), found

    def _user(self, plan: ContainerPlan) -> users.User:
        root = os.open(self.layout.rootfs(plan.container.id), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            passwd, group = _read_inside(root, b"etc/passwd"), _read_inside(root, b"etc/group")
        finally:
            os.close(root)
        user = users.resolve(plan.container.config.security, plan.image.config.user, passwd=passwd, group=group)
        spec.check_mapped(user, plan.sandbox.config.namespaces.userns)
        return user

    def _spec_input(
        self, plan: ContainerPlan, user: users.User, staged: Mapping[int, Mapping[str, str]], held: ExitStack
    ) -> spec.SpecInput:
        container, sandbox = plan.container, plan.sandbox
        privileged = container.config.security.privileged
        return spec.SpecInput(
            sandbox=sandbox.config,
            container=container.config,
            image=plan.image.config,
            user=user,
            host=self._host_facts_with_devices if privileged else self._host_facts,
            rootfs=str(self.layout.rootfs(container.id)),
            cgroup=slices.container_place(sandbox.config.cgroup_parent, sandbox.id, container.id).oci,
            namespaces=self._namespaces(plan, held),
            files=self.sandboxes.files(sandbox),
            hostname=sandbox.config.hostname or os.uname().nodename,
            staged=staged,
            image_volume_options=self.image_volume_policy.options,
            devices=devices.requested(container.config.devices),
            seccomp_profile=self._seccomp(container.config.security.seccomp),
            apparmor_profile=self.sandboxes.confinement.apparmor_profile(container.config.security),
            labels=self.sandboxes.labels(sandbox, container.config.security),
        )

    def _namespaces(self, plan: ContainerPlan, held: ExitStack) -> dict[str, str]:
        """Return OCI namespace types with what to join while ``held`` is open, or an empty path for a new one."""
        options, sandbox = plan.container.config.namespaces, plan.sandbox

        def pin(kind: NamespaceKind) -> str:
            return str(self.layout.namespace_pin(sandbox.id, kind))

        result = {"mount": ""}
        if sandbox.config.namespaces.userns is not None:
            result["user"] = pin(NamespaceKind.USER)
        if sandbox.config.namespaces.network is NamespaceMode.POD:
            result |= {"network": pin(NamespaceKind.NET), "uts": pin(NamespaceKind.UTS)}
        if options.ipc is NamespaceMode.POD:
            result["ipc"] = pin(NamespaceKind.IPC)
        elif options.ipc is NamespaceMode.CONTAINER:
            result["ipc"] = ""
        if options.pid is NamespaceMode.POD:
            result["pid"] = pin(NamespaceKind.PID)
        elif options.pid is NamespaceMode.CONTAINER:
            result["pid"] = ""
        elif options.pid is NamespaceMode.TARGET:
            result["pid"] = _target_namespace(plan.target, options.target_id, held)
        if not plan.container.config.security.privileged:
            result["cgroup"] = ""
        return result

    def _seccomp(self, profile: Seccomp) -> Mapping[str, Any] | None:
        if profile.kind is ProfileKind.UNCONFINED:
            return None
        if profile.kind is ProfileKind.RUNTIME_DEFAULT:
            return self._default_profile
        return _read_profile(Path(profile.path))

    @cached_property
    def _default_profile(self) -> Mapping[str, Any]:
        return _read_profile(self.seccomp_default)

    @cached_property
    def _host_facts(self) -> spec.HostFacts:
        return self.sandboxes.confinement.host_facts(self.sandboxes.cgroups)

    @property
    def _host_facts_with_devices(self) -> spec.HostFacts:
        return replace(self._host_facts, devices=tuple(devices.machine_devices()))


def _stdio(container: Container, log: Path | None) -> Stdio:
    config = container.config
    return Stdio(log=log, stdin=config.stdin, stdin_once=config.stdin_once, tty=config.tty)


def _has_root_read_only_for_good(plan: ContainerPlan) -> bool:
    """Return whether the root file system becomes read-only as a whole, once the OCI runtime has made mount points.

    The OCI runtime sets a flag of the mount only, which the root of a user namespace can take off again.
    """
    mapped = plan.sandbox.config.namespaces.userns is not None
    return mapped and plan.container.config.security.readonly_rootfs


def _target_namespace(target: ProcessId | None, name: str, held: ExitStack) -> str:
    """Return a path of the PID namespace of ``target``, the first process of container ``name``.

    It is that of a descriptor, which ``held`` closes: if the process ends meanwhile, another one may get its ID, and
    that one's namespace may be the machine's.

    :raises FailedPrecondition: if it has ended.
    """
    try:
        if target is None:
            raise ProcessLookupError
        fd = os.open(f"/proc/{target.pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        held.callback(os.close, fd)
        if not procfs.alive(target):
            raise ProcessLookupError
    except OSError as error:
        raise FailedPrecondition(f"namespace_options.target_id: {name} has ended") from error
    return f"/proc/{os.getpid()}/fd/{fd}"


def relabel_mounts(container: Container, volumes: Mapping[str, str], label: str, store: Path) -> None:
    """Give what is mounted from the machine the container's SELinux label, where that is asked for.

    Images that are volumes have it in their mount: their files in ``store``, which all pods share, stay as they are.

    :raises InvalidArgument: if a path is the machine's, or has the store's files in it or is one of them.
    """
    asked = [mount.host_path for mount in container.config.mounts if mount.selinux_relabel and mount.host_path]
    kept = Path(os.path.realpath(store))
    for path in map(Path, asked):
        if path.is_relative_to(kept) or kept.is_relative_to(path):
            raise InvalidArgument(
                f"SELinux relabeling of {path} is not allowed: images that all pods share are there",
                hint="mount a directory of the pod's own, or do not ask",
            )
    for each in (*asked, *volumes.values()):
        relabel.relabel(each, label)


def _read_inside(root: int, path: bytes) -> str:
    """Return the text of a file of an image, resolved inside it; empty if it is missing or no regular file."""
    try:
        found = openat.read_regular(root, path, _PASSWD_LIMIT, rules=openat.INSIDE)
    except KernelCallError:
        return ""
    return (found or b"").decode(errors="replace")


def _read_profile(path: Path) -> Mapping[str, Any]:
    try:
        profile = json.loads(_read_regular(path, _PROFILE_LIMIT))
    except FileNotFoundError as error:
        raise NotFound(
            f"seccomp profile {path} does not exist", hint="`podkeep doctor` says what is missing"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"seccomp profile {path} is not JSON: {error}") from error
    except OSError as error:
        raise refused("seccomp profile", error) from error
    if not isinstance(profile, dict) or "defaultAction" not in profile:
        raise InvalidArgument(f"seccomp profile {path} has no defaultAction")
    return profile


def _read_regular(path: Path, limit: int) -> bytes:
    """Return a file whose path a request names.

    :raises InvalidArgument: if it is no regular file, or longer than ``limit`` bytes.
    :raises OSError: if there is none, or it cannot be read.
    """
    fd = openat.open_named_regular(path)
    if fd is None:
        raise InvalidArgument(f"{path} is not a regular file")
    with openat.closing(fd):
        data = openat.read_bytes(fd, limit + 1)
    if len(data) > limit:
        raise InvalidArgument(f"{path} has more than {limit} bytes")
    return data


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def exit_code_of(path: Path) -> tuple[int, int] | None:
    """Return the exit code and the time (nanoseconds since the epoch) that conmon noted, or None if it did not."""
    try:
        return int(path.read_text()), path.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
