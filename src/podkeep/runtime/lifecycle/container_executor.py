"""Making and unmaking containers: the kernel's side.

Owns: the root file system, the bundle, the lookups that a plan needs, carrying it out, and removal. Does not own:
records (``containers.py``) or what is decided (``container_plan.py``). Everything blocks; the server calls it on
threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import structs

from podkeep.base import failpoints
from podkeep.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    KernelCallError,
    NotFound,
    PodkeepError,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.base.undo import UndoStack
from podkeep.images.formats.image import ImageRunConfig
from podkeep.kernel.cgroup import cgroup_dynmods
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.files import openat, removal
from podkeep.kernel.mount import mounts, overlay
from podkeep.kernel.mount.overlay import OverlayFlag
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.bundle import anonymous_volumes, container_log, pod_files, relabel, targets
from podkeep.runtime.bundle.container_log import LogFile
from podkeep.runtime.bundle.image_layers import ImageLayers, Wanted
from podkeep.runtime.bundle.image_volumes import ImageVolumes
from podkeep.runtime.bundle.leftovers import Remove
from podkeep.runtime.bundle.staging import Staging, make_passable
from podkeep.runtime.cgroup_driver import slices
from podkeep.runtime.class_resources import qos
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.class_resources.targets import container_target
from podkeep.runtime.lifecycle import oom_kills
from podkeep.runtime.lifecycle.container_plan import ContainerPlan, ContainerRequest, resolve
from podkeep.runtime.lifecycle.oom_kills import OomKills
from podkeep.runtime.lifecycle.strays import kill_strays
from podkeep.runtime.model.layout import Layout, container_cgroup
from podkeep.runtime.model.records import Container, NamespaceMode, ProfileKind, Sandbox, Seccomp
from podkeep.runtime.oci import devices, spec, users, working_directory
from podkeep.runtime.oci.cdi import edits as cdi_edits
from podkeep.runtime.oci.cdi import nodes as cdi_nodes
from podkeep.runtime.oci.cdi.registry import Registry
from podkeep.runtime.oci.cdi.spec import Edits
from podkeep.runtime.oci.compose import setting
from podkeep.runtime.oci.confinement import Confinement, read_profile
from podkeep.runtime.oci.driver import Created, Driver, ExecLimits, ExecResult, Handler, Stdio
from podkeep.runtime.oci.entering import Enter
from podkeep.runtime.oci.mounts import POD_FILES

log = logging.getLogger(__name__)

_PASSWD_LIMIT = 1 << 20
"""Bytes of the image's passwd and group files that are looked at."""
EMPTIED_BYTES = 16 << 20
"""Page cache of a container that is dropped when it is removed; more of it may be worth keeping for the next one."""


class MadeContainer(FrozenStruct, kw_only=True):
    """What is only known once a container exists."""

    created: Created
    user: users.User
    remap_seconds: float = 0.0
    """How long it took to give its images the owners of its pod."""


@dataclass(frozen=True, kw_only=True)
class ContainerExecutor:
    """Makes and unmakes containers below one layout."""

    layout: Layout
    layers: ImageLayers
    cgroups: Cgroups
    staging: Staging
    image_volumes: ImageVolumes
    confinement: Confinement = field(default_factory=Confinement)
    classes: ClassResources = field(default_factory=ClassResources)
    cdi: Registry = field(default_factory=lambda: Registry(()))

    def create(self, request: ContainerRequest, driver: Driver) -> MadeContainer:
        """Make the root file system and the bundle, and have the container created.

        :raises PodkeepError: if anything fails; what was made until then is gone again.
        """
        container, sandbox = request.container, request.sandbox
        with ExitStack() as held, UndoStack() as undo:
            # An OCI runtime that fails halfway may leave its cgroup, of which its own delete knows nothing then.
            undo.push(f"remove the cgroup of container {container.id}", lambda: self._remove_cgroup(request))
            undo.push(f"undo container {container.id}", lambda: self.remove(container, sandbox, driver))
            # Looked up first: a device that no file has is refused before anything is mounted.
            edits = self.cdi.edits(container.config.cdi_devices)
            bundle = self.layout.bundle(container.id)
            make_passable(bundle, sandbox.config.namespaces.userns)
            # Before conmon is started, which is given the path of the log in that mount.
            output = None if request.log is None else self._mount_log(container.id, request.log, undo)
            failpoints.reach("container.log")
            # conmon loads its libraries while the root file system and the configuration are made; it has nothing
            # created until it gets a byte by its pipe (Launch.create).
            launch = driver.launch(container.id, bundle, self.layout.exits, _stdio(container, output))
            undo.push(f"end the conmon of container {container.id}", launch.close)
            failpoints.reach("container.launched")
            remap = self._make_rootfs(request)
            failpoints.reach("container.rootfs")
            plan = self._plan(request, driver.handler, edits, held)
            log.debug("container %s: %s", container.id, plan)
            remap += self._stage(request, plan)
            failpoints.reach("container.staged")
            whole = {copy.source for copy in plan.devices.values()}
            # After all edits of the configuration: mounts that CDI has added are locked as well.
            config = self.staging.lock(container, sandbox, plan.config, whole=whole)
            failpoints.reach("container.locked")
            # Only now it is known where all mounts are.
            self._check_working_directory(container, driver, config)
            if plan.label:
                relabel_mounts(container, plan.volumes, plan.label, self.layout.images)
            _write_private(bundle / "config.json", json.dumps(config))
            failpoints.reach("container.bundle")
            # First of all that is undone: what is at work would go on with what is removed.
            undo.push(f"end what works on container {container.id}", lambda: kill_strays(driver, container.id))
            created = launch.create(request.given_up)
            # The container has its own copies now.
            self.staging.unstage(container)
            if _has_root_read_only_for_good(request):
                overlay.make_readonly(self.layout.rootfs(container.id))
            failpoints.reach("container.created")
            working_directory.check(created.process)
            # Its process waits to be told to start the program: nothing has run outside its classes.
            target = container_target(self.cgroups, sandbox, container)
            target = structs.replace(target, process=created.process)
            self.classes.apply(target, container.status.class_resources)
            failpoints.reach("container.classed")
        return MadeContainer(created=created, user=plan.user, remap_seconds=remap)

    def expect_move(self) -> None:
        """See :func:`podkeep.kernel.cgroup.cgroup_dynmods.expect_move`.

        :raises OSError: if the daemon may not write to its own cgroup.
        """
        cgroup_dynmods.expect_move(self.cgroups.layout)

    def start(self, container: Container, sandbox: Sandbox, driver: Driver) -> None:
        """Check that a created container is in its classes, and let it run its program.

        :raises PodkeepError: if it does not run, or is not in its classes: then nothing of the program has run.
        """
        process = container.status.process
        assert process is not None
        if container.status.class_resources:
            # Its first process is there, and waits. Afterwards is too late: a short program is done by then.
            target = container_target(self.cgroups, sandbox, container)
            try:
                self.classes.verify(target, container.status.class_resources)
            except PodkeepError:
                if procfs.alive(process):  # what has ended is in no class any more, nor starts
                    raise
        try:
            driver.start(container.id, process)
        except PodkeepError as error:
            # A daemon that was killed right after it started the program did not come to note it.
            if driver.has_started(process):
                return
            if not procfs.alive(process):
                raise FailedPrecondition(
                    f"container {container.id}: its process ended before its program was started",
                    hint="something killed it: who stopped it, or its memory limit or its pod's",
                ) from error
            raise

    def oom_kills(self, container: Container, sandbox: Sandbox, living: Iterable[ContainerID]) -> OomKills:
        """Return how many processes of a container that ended the kernel has killed because memory ran out.

        What cannot be read is 0: that a container has ended is noted in any case.

        :param living: the other containers of its sandbox that have not ended.
        """
        try:
            return oom_kills.at_end(self.cgroups, sandbox, container.id, living)
        except PodkeepError as error:
            log.warning("the reason why container %s ended cannot be read: %s", container.id, error)
            return OomKills(own=0, ended=sandbox.status.oom_kills)

    def release_classes(self, container: Container, sandbox: Sandbox) -> None:
        """Take a container that ended out of its classes; safe to repeat.

        :raises PodkeepError: the first error of a type; every type gets its turn.
        """
        if held := container.status.held_classes:
            self.classes.release(container_target(self.cgroups, sandbox, container), held)

    def remove(
        self, container: Container, sandbox: Sandbox, driver: Driver, *, remove: Remove = removal.remove_tree
    ) -> None:
        """Remove everything of a container whose processes are dead or may be killed; safe to repeat.

        :param remove: takes away trees that may be large.
        :raises PodkeepError: if something cannot be removed.
        """
        # Here, because the OCI runtime removes it.
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)
        # A removed memory cgroup stays in the kernel for as long as a page is charged to it, and makes reclaim slower.
        self.cgroups.empty(cgroup, EMPTIED_BYTES)
        driver.delete(container.id)
        self.release_classes(container, sandbox)
        self.staging.unstage(container)
        for place in (self.layout.rootfs(container.id), self.layout.log_directory(container.id)):
            mounts.unmount(place, lazy=True)
        removal.remove_tree(self.layout.bundle(container.id))
        remove(self.layout.container_data(container.id))
        # Only now: the root file system that was unmounted above was made of them.
        self.layers.release(container.id, remove=remove)
        self.layout.exit_file(container.id).unlink(missing_ok=True)

    def _remove_cgroup(self, request: ContainerRequest) -> None:
        sandbox = request.sandbox
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, request.container.id)
        self.cgroups.kill(cgroup)
        self.cgroups.remove(cgroup)

    def kill_rest(self, container: Container, sandbox: Sandbox) -> None:
        """Kill every process in the container's cgroup."""
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)
        self.cgroups.kill(cgroup)

    def exec_sync(
        self,
        container: Container,
        sandbox: Sandbox,
        driver: Driver,
        command: tuple[str, ...],
        limits: ExecLimits,
        *,
        checked: Callable[[], bool],
    ) -> ExecResult:
        """Run a command in a running container; ``checked`` as in :meth:`podkeep.runtime.oci.driver.Driver.exec_sync`.

        :raises NotFound: if the container was removed.
        :raises DeadlineExceeded: if it took too long and was killed.
        :raises Cancelled: if it was told to stop and was killed.
        """
        process, enter = self.command(container, sandbox, command)
        bundle = self.layout.bundle(container.id)
        return driver.exec_sync(container.id, bundle, process, limits, checked=checked, enter=enter)

    def command(
        self, container: Container, sandbox: Sandbox, command: tuple[str, ...]
    ) -> tuple[dict[str, Any], Enter | None]:
        """Return the process of a command in a container, in OCI's form, and how it gets into the container's classes.

        :raises NotFound: if the container was removed.
        """
        try:
            text = (self.layout.bundle(container.id) / "config.json").read_text()
        except FileNotFoundError as error:
            raise NotFound(f"container {container.id} was removed meanwhile") from error
        config = json.loads(text)
        target = container_target(self.cgroups, sandbox, container)
        config, enter = self.classes.command(target, container.status.class_resources, config)
        return spec.process_for_exec(config, command), enter

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

    def _make_rootfs(self, request: ContainerRequest) -> float:
        """Mount the root file system, and return the seconds that it took to give it the owners of the pod."""
        container, idmap = request.container, request.sandbox.config.namespaces.userns
        data = self.layout.container_data(container.id)
        rootfs = self.layout.rootfs(container.id)
        rootfs.mkdir(mode=0o755)
        make_passable(data, idmap)
        upper, work = data / "upper", data / "work"
        upper.mkdir()
        # Whatever the umask: the upper directory has the mode that the container's root directory shows.
        upper.chmod(0o755)
        work.mkdir(mode=0o700)
        if idmap is not None:
            # New files get the pod's own host IDs; only the root of the tree must be given to the pod's root.
            os.chown(upper, idmap.host_uid(0), idmap.host_gid(0))
        wanted = Wanted(
            container=container.id,
            idmap=idmap,
            # Opened by who needs it: with trees of the pod's own owners nothing is idmapped.
            userns=partial(self.staging.userns, request.sandbox, idmap),
            at=rootfs,
            given_up=request.given_up,
        )
        with self.layers.lowers(request.image, wanted) as lowers:
            flags = lowers.flags
            if _has_root_read_only_for_good(request):
                flags |= OverlayFlag.VOLATILE
            overlay.mount_overlay(
                lowers.fds,
                upper=upper,
                work=work,
                target=rootfs,
                context=self.confinement.labels(request.sandbox, container.config.security).mount,
                flags=flags,
            )
        return lowers.seconds

    def _plan(self, request: ContainerRequest, handler: Handler, edits: Edits, held: ExitStack) -> ContainerPlan:
        """Look up what the plan of a container depends on, and return the plan; nothing is changed.

        :param edits: of the CDI devices.
        :param held: keeps open what the configuration names by descriptor.
        """
        container, sandbox = request.container, request.sandbox
        security = container.config.security
        # Now and not with the request: the record of this container keeps its image from being removed.
        run = self.layers.images.run_config(request.image)
        user, found, volumes = self._look_inside(request, run)
        machine_devices = not handler.privileged_without_host_devices
        given = spec.SpecInput(
            sandbox=sandbox.config,
            container=container.config,
            image=run,
            user=user,
            host=self._host_facts_with_devices if security.privileged and machine_devices else self._host_facts,
            rootfs=str(self.layout.rootfs(container.id)),
            cgroup=slices.container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id).oci,
            namespaces=self._namespaces(request, held),
            files=pod_files.paths(self.layout, sandbox),
            hostname=sandbox.config.hostname or os.uname().nodename,
            machine_devices=machine_devices,
            devices=devices.requested(container.config.devices),
            staged=self.staging.planned(container, sandbox) | self.image_volumes.planned(container),
            volumes=anonymous_volumes.placed(volumes, self.layout.volumes(container.id)),
            targets=found,
            seccomp_profile=self._seccomp(security.seccomp),
            apparmor_profile=self.confinement.apparmor_profile(security),
            labels=self.confinement.labels(sandbox, security),
        )
        passed = handler.passed_annotations(sandbox.config.annotations, container.config.annotations)
        copies = self.staging.planned_sources(container, sandbox, cdi_nodes.sources(edits))
        return resolve(
            given,
            copies,
            setting("annotations", **passed),
            partial(cdi_edits.apply, cdi_nodes.prepare(edits, copies)),
            partial(qos.edit_of_pod, sandbox.status.class_resources),
            partial(self.classes.edit, container.status.class_resources),
        )

    def _look_inside(
        self, request: ContainerRequest, run: ImageRunConfig
    ) -> tuple[users.User, dict[str, str], tuple[str, ...]]:
        """Return what the root file system says: the user, where the paths of mounts lead, the image's volumes."""
        security, idmap = request.container.config.security, request.sandbox.config.namespaces.userns
        mounted = [mount.container_path for mount in request.container.config.mounts]
        volumes = anonymous_volumes.wanted(run.volumes, mounted)
        rootfs = self.layout.rootfs(request.container.id)
        with openat.closing(os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
            targets.check_virtual(root)
            found = targets.resolve_all(root, (*mounted, *volumes, *POD_FILES))
            passwd, group = _read_inside(root, b"etc/passwd"), _read_inside(root, b"etc/group")
        user = users.resolve(security, run.user, passwd=passwd, group=group)
        spec.check_mapped(user, idmap)
        return user, found, anonymous_volumes.distinct(volumes, found)

    def _check_working_directory(self, container: Container, driver: Driver, config: Mapping[str, Any]) -> None:
        """Check that the OCI runtime makes no working directory where a link to another process leads."""
        alone = container.config.namespaces.pid is NamespaceMode.CONTAINER
        if alone or not driver.makes_directories_anywhere:
            return
        with openat.closing(openat.open_directory(self.layout.rootfs(container.id))) as root:
            mounted = (item["destination"] for item in config["mounts"])
            targets.check_working_directory(root, config["process"]["cwd"], mounted)

    def _stage(self, request: ContainerRequest, plan: ContainerPlan) -> float:
        """Make the volumes, copies of mounts and mounted images of a plan; return the seconds as ``_make_rootfs``."""
        container, sandbox = request.container, request.sandbox
        rootfs, idmap = self.layout.rootfs(container.id), sandbox.config.namespaces.userns
        anonymous_volumes.make(plan.volumes, rootfs=rootfs, idmap=idmap, given_up=request.given_up)
        self.staging.stage(container, sandbox, plan.staged)
        remap = self.image_volumes.stage(
            container, sandbox, request.volume_images, plan.staged, label=plan.label, given_up=request.given_up
        )
        self.staging.stage_sources(container, sandbox, plan.devices)
        return remap

    def _namespaces(self, request: ContainerRequest, held: ExitStack) -> dict[str, str]:
        """Return OCI namespace types with what to join while ``held`` is open, or an empty path for a new one."""
        options, sandbox = request.container.config.namespaces, request.sandbox

        def pin(kind: NamespaceKind) -> str:
            return str(self.layout.namespace_pin(sandbox.id, kind))

        result = {"mount": ""}
        if sandbox.config.namespaces.userns is not None:
            result["user"] = pin(NamespaceKind.USER)
        if sandbox.config.namespaces.network is NamespaceMode.POD:
            # CRI has no option for UTS: that namespace goes with the network.
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
            result["pid"] = _target_namespace(request.target, options.target_id, held)
        if not request.container.config.security.privileged:
            result["cgroup"] = ""
        return result

    def _seccomp(self, profile: Seccomp) -> Mapping[str, Any] | None:
        if profile.kind is ProfileKind.UNCONFINED:
            return None
        if profile.kind is ProfileKind.RUNTIME_DEFAULT:
            if self.confinement.default_seccomp is None:
                raise FailedPrecondition("this runtime has no seccomp profile for RuntimeDefault")
            return self.confinement.default_seccomp
        return read_profile(Path(profile.path))

    @cached_property
    def _host_facts(self) -> spec.HostFacts:
        return self.confinement.host_facts(self.cgroups)

    @property
    def _host_facts_with_devices(self) -> spec.HostFacts:
        # Devices come and go, so these are not kept as the other facts are.
        return structs.replace(self._host_facts, devices=tuple(devices.machine_devices()))


def _stdio(container: Container, log: Path | None) -> Stdio:
    config = container.config
    return Stdio(log=log, stdin=config.stdin, stdin_once=config.stdin_once, tty=config.tty)


def _has_root_read_only_for_good(request: ContainerRequest) -> bool:
    """Return whether the root file system becomes read-only as a whole, once the OCI runtime has made mount points.

    The OCI runtime sets a flag of the mount only, which the root of a user namespace can take off again.
    """
    mapped = request.sandbox.config.namespaces.userns is not None
    return mapped and request.container.config.security.readonly_rootfs


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
    # Not /proc/self: the OCI runtime opens it, which does not inherit the descriptor.
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


def _write_private(path: Path, text: str) -> None:
    # Private from the start: the environment of a container may hold secrets.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def exit_code_of(path: Path) -> tuple[int, int] | None:
    """Return the exit code and the time (nanoseconds since the epoch) that conmon noted, or None if it did not."""
    try:
        return int(path.read_text()), path.stat().st_mtime_ns
    except (OSError, ValueError):
        return None
