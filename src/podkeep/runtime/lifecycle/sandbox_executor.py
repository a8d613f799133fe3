"""Making and unmaking pod sandboxes: the kernel's side.

Owns: the order in which a sandbox's resources are made, and their removal. Does not own: records or which address is
free (``sandboxes.py``). Everything blocks; the server calls it on threads.

A sandbox is: pinned namespaces, a shared memory mount, a cable on the bridge, a cgroup, three files. No process, unless
its containers share a PID namespace: then catatonit holds it. Removal is one list of steps that are each safe to
repeat, used alike to stop a sandbox, to undo half of one, and to clean up after a daemon that was killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from podkeep.base import atomicfile, failpoints
from podkeep.base.errors import Internal, InvalidArgument, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.base.undo import UndoStack
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.files import openat
from podkeep.kernel.files.removal import remove_tree, unmount_below
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountFlag
from podkeep.kernel.namespace import namespaces, nshelper
from podkeep.kernel.namespace.idmap import IdMapping
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.bundle import pod_files, relabel
from podkeep.runtime.bundle.staging import make_passable
from podkeep.runtime.cgroup_driver import pod_cgroups, slices
from podkeep.runtime.class_resources.model import QOS, Level
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.class_resources.targets import sandbox_target
from podkeep.runtime.model.layout import Layout, cgroup_parents, sandbox_cgroup
from podkeep.runtime.model.records import (
    NamespaceMode,
    Sandbox,
    SandboxConfig,
    SandboxState,
    SandboxStatus,
    Security,
)
from podkeep.runtime.network.networks import Networks, addresses
from podkeep.runtime.oci import seccomp, sysctls
from podkeep.runtime.oci.compose import Config, compose, joining, labelled, mapped, only_program, setting
from podkeep.runtime.oci.confinement import Confinement, oom_score_floor
from podkeep.runtime.oci.driver import Driver
from podkeep.runtime.oci.spec import DEFAULT_MASKED, DEFAULT_READONLY

SHM_BYTES = 64 << 20
"""Size of a pod's /dev/shm, as everywhere in the field."""
INFRA_OOM_SCORE = -998
"""The process that all of a pod hangs on is among the last to be killed (kubelet: PodInfraOOMAdj)."""
_INFRA_ID = 65535
"""User and group of that process, inside: those of the pause image, which no image's account is likely to have."""


class SandboxExecutor(FrozenStruct, kw_only=True):
    """Makes and unmakes sandboxes below one layout."""

    layout: Layout
    helper: NamespaceHelper
    cgroups: Cgroups
    networks: Networks
    catatonit: str
    confinement: Confinement = msgspec.field(default_factory=Confinement)
    classes: ClassResources = msgspec.field(default_factory=ClassResources)

    def create(self, sandbox: Sandbox, driver: Driver) -> SandboxStatus:
        """Make everything a sandbox consists of, and return its status with what is known of it now.

        That is the process which holds its PID namespace, if it has one, and what a CNI plugin said of its network.

        :raises PodkeepError: if anything fails; what was made until then is gone again.
        """
        with UndoStack() as undo:
            undo.push(f"undo sandbox {sandbox.id}", lambda: self.remove(sandbox, driver))
            self._write_files(sandbox)
            failpoints.reach("sandbox.files")
            made = self._make_namespaces(sandbox)
            # From here on the undo knows, too, what the network plugins said.
            sandbox = msgspec.structs.replace(sandbox, status=made)
            # Those of an interface can be written only now: a new network namespace has none but lo.
            self._write_interface_sysctls(sandbox)
            failpoints.reach("sandbox.namespaces")
            # QoS classes have no file of the cgroup: they enforce nothing.
            classed = any(item.name != QOS for item in self.classes.catalog.offers(Level.POD))
            pod_cgroups.create(self.cgroups, sandbox.config.cgroup_parent, sandbox.id, classed=classed)
            failpoints.reach("sandbox.cgroups")
            target = sandbox_target(sandbox)
            self.classes.apply(target, sandbox.status.class_resources)
            # A container's classes are verified when it starts; those of a pod before anything is in it.
            self.classes.verify(target, sandbox.status.class_resources)
            failpoints.reach("sandbox.classed")
            infra = None
            if sandbox.config.namespaces.pid is NamespaceMode.POD:
                infra = self._start_infra(sandbox, driver)
            failpoints.reach("sandbox.infra")
        return msgspec.structs.replace(sandbox.status, infra=infra)

    def stop(self, sandbox: Sandbox, driver: Driver) -> None:
        """End what runs in a sandbox and give back its namespaces, network and cgroup; safe to repeat.

        :raises Internal: listing what could not be undone, after everything was tried.
        """
        run, cgroup = self.layout.sandbox_run(sandbox.id), self.cgroup(sandbox)
        if self.is_stopped(sandbox):
            # Clients stop a sandbox again and again, and always before they remove it.
            return
        _try_all(
            sandbox,
            [
                ("end its infra process", lambda: self._stop_infra(sandbox, driver)),
                ("kill what is in its cgroup", lambda: self.cgroups.kill(cgroup)),
                # Before its cgroup goes: a type of classes finds the pod by that.
                ("take it out of its classes", lambda: self._release_classes(sandbox)),
                ("disconnect it", lambda: self.networks.detach(sandbox)),
                ("clear its run directory", lambda: _clear(run)),
                ("remove its cgroup", lambda: self._remove_cgroups(sandbox)),
            ],
        )

    def is_stopped(self, sandbox: Sandbox) -> bool:
        """Return whether nothing is left for :meth:`stop` to give back, by the record and on the machine."""
        status = sandbox.status
        noted = status.network or status.infra or status.made_cgroups or status.held_classes
        if status.state is SandboxState.READY or noted:
            return False
        # Its cgroup is the last to go.
        return not self.layout.sandbox_run(sandbox.id).exists() and not self.cgroups.exists(self.cgroup(sandbox))

    def remove(self, sandbox: Sandbox, driver: Driver) -> None:
        """Stop a sandbox and remove its files; safe to repeat.

        :raises Internal: listing what could not be undone; then its files stay, too.
        :raises OSError: if the file system refuses to remove them.
        """
        self.stop(sandbox, driver)
        remove_tree(self.layout.sandbox_data(sandbox.id))

    def is_gone(self, sandbox: Sandbox) -> bool:
        """Return whether :meth:`create` undid everything, or came to nothing: its files are the last to go."""
        return not self.layout.sandbox_data(sandbox.id).exists() and not self.layout.sandbox_run(sandbox.id).exists()

    def is_whole(self, sandbox: Sandbox) -> bool:
        """Return whether the directory, namespaces and infra process of a sandbox are there."""
        run = self.layout.sandbox_run(sandbox.id)
        pins = (self.layout.namespace_pin(sandbox.id, kind) for kind in namespace_kinds(sandbox.config))
        infra = sandbox.status.infra
        return run.is_dir() and all(map(mountinfo.is_mount_point, pins)) and (infra is None or procfs.alive(infra))

    def cgroup(self, sandbox: Sandbox) -> str:
        return sandbox_cgroup(sandbox.config.cgroup_parent, sandbox.id)

    def _release_classes(self, sandbox: Sandbox) -> None:
        if held := sandbox.status.held_classes:
            self.classes.release(sandbox_target(sandbox), held)

    def missing_cgroups(self, config: SandboxConfig) -> tuple[str, ...]:
        """Return the parents of a sandbox's cgroup that are not there yet, outermost first.

        :raises InvalidArgument: if one is a file of the cgroup tree, as the kernel has them beside the directories.
        """
        parents = cgroup_parents(config.cgroup_parent)
        for parent in parents:
            if any(directory.is_file() for directory in self.cgroups.directories(parent)):
                raise InvalidArgument(f"config.linux.cgroup_parent: {parent} is a file of the kernel's")
        return tuple(parent for parent in parents if not self.cgroups.exists(parent))

    def _write_files(self, sandbox: Sandbox) -> None:
        data = self.layout.sandbox_data(sandbox.id)
        # A pod may write into its files and set their mode: a setuid program of root's must be nobody's to run.
        data.mkdir(mode=0o700)
        config = sandbox.config
        texts = {
            "resolv.conf": pod_files.resolv_conf(config.dns, _machine_text("/etc/resolv.conf")),
            "hosts": pod_files.hosts(config, addresses(sandbox.status), _machine_text("/etc/hosts")),
            "hostname": f"{config.hostname}\n",
        }
        for name, text in texts.items():
            (data / name).write_text(text)
            (data / name).chmod(0o644)
        # Where SELinux is on, confined containers could not read them otherwise.
        if label := self.confinement.labels(sandbox).mount:
            relabel.relabel(str(data), label)
        run = self.layout.sandbox_run(sandbox.id)
        make_passable(run, config.namespaces.userns)
        (run / "ns").mkdir(mode=0o711)

    def _make_namespaces(self, sandbox: Sandbox) -> SandboxStatus:
        config = sandbox.config
        # A PID namespace begins with its first process and ends with it: _start_infra makes it.
        kinds = namespace_kinds(config) - {NamespaceKind.PID}
        with ExitStack() as closing:
            made: dict[NamespaceKind, int] = {}
            if kinds:
                hostname = config.hostname if NamespaceKind.UTS in kinds and config.hostname else None
                request = NamespaceRequest(
                    kinds=kinds, idmap=config.namespaces.userns, hostname=hostname, sysctls=self._sysctls(config)[0]
                )
                with _asked_sysctls(config):
                    made = self.helper.create(request)
            for fd in made.values():
                closing.callback(os.close, fd)
            for kind, fd in made.items():
                namespaces.pin(fd, self.layout.namespace_pin(sandbox.id, kind))
            failpoints.reach("sandbox.pinned")
            if config.namespaces.ipc is NamespaceMode.POD:
                self._mount_shm(sandbox)
            if NamespaceKind.USER in made:
                self._map_files(sandbox, made[NamespaceKind.USER])
            if NamespaceKind.NET not in made:
                return sandbox.status
            return self._connect(sandbox, made[NamespaceKind.NET])

    def _sysctls(self, config: SandboxConfig) -> tuple[dict[str, str], dict[str, str]]:
        """Return what is written into the sandbox's new namespaces, and what once its network is there."""
        kinds = _kind_names(config)
        wanted = sysctls.effective(config.sysctls, self.confinement.sysctls, kinds, config.namespaces.userns)
        return sysctls.split(wanted, kinds)

    def _write_interface_sysctls(self, sandbox: Sandbox) -> None:
        config = sandbox.config
        _, wanted = self._sysctls(config)
        if not wanted:
            return
        files = [nshelper.sysctl_path(name, value, list(_kind_names(config))) for name, value in wanted.items()]

        def write() -> None:
            for path, value in files:
                nshelper.write_sysctl(path, value)

        pin = self.layout.namespace_pin(sandbox.id, NamespaceKind.NET)
        with openat.closing(namespaces.open_pinned(pin)) as netns, _asked_sysctls(config):
            namespaces.run_in_netns(netns, write)

    def _connect(self, sandbox: Sandbox, netns: int) -> SandboxStatus:
        status = self.networks.attach(sandbox, netns)
        if addresses(status) != addresses(sandbox.status):
            # Only a plugin's answer has them. Nothing reads the file before there are containers.
            text = pod_files.hosts(sandbox.config, addresses(status), "")
            (self.layout.sandbox_data(sandbox.id) / "hosts").write_text(text)
        return status

    def _map_files(self, sandbox: Sandbox, userns: int) -> None:
        target = self.layout.mapped_files(sandbox.id)
        target.mkdir(mode=0o711)
        # Mapped here, once for all containers of the pod: crun 1.8.1 fails with EPERM where it has to idmap a mount.
        with openat.closing(mounts.clone_tree(self.layout.sandbox_data(sandbox.id), idmap_userns=userns)) as copy:
            mounts.attach(copy, target)

    def _mount_shm(self, sandbox: Sandbox) -> None:
        shm, idmap = self.layout.shm(sandbox.id), sandbox.config.namespaces.userns
        shm.mkdir(mode=0o711)
        uid, gid = (0, 0) if idmap is None else (idmap.host_uid(0), idmap.host_gid(0))
        options = f"mode=1777,size={SHM_BYTES},uid={uid},gid={gid}"
        if label := self.confinement.labels(sandbox).mount:
            options += f',context="{label}"'
        mounts.tmpfs(shm, options, attrs=MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC)

    def _remove_cgroups(self, sandbox: Sandbox) -> None:
        pod_cgroups.remove(self.cgroups, sandbox.config.cgroup_parent, sandbox.id)
        for parent in reversed(sandbox.status.made_cgroups):
            # Another sandbox in it has it in its record, too, and removes it when it goes.
            if not self.cgroups.remove_empty(parent):
                return

    def _start_infra(self, sandbox: Sandbox, driver: Driver) -> ProcessId:
        """Start catatonit as the first process of a PID namespace that the pod's containers will share."""
        bundle = self.layout.infra_bundle(sandbox.id)
        rootfs = bundle / "rootfs"
        rootfs.mkdir(parents=True)
        idmap = sandbox.config.namespaces.userns
        if idmap is not None:
            os.chown(rootfs, idmap.host_uid(0), idmap.host_gid(0))
        config = self._infra_config(sandbox, str(rootfs), str(self._infra_program()))
        (bundle / "config.json").write_text(json.dumps(config))
        process = driver.create_detached(ContainerID(sandbox.id), bundle)
        driver.start(ContainerID(sandbox.id), process)
        with open(f"/proc/{process.pid}/ns/pid", "rb") as namespace:  # noqa: PTH123 - a magic link
            if not procfs.alive(process):  # the number may be another process's by now
                raise Internal(f"the infra process of sandbox {sandbox.id} ended at once")
            namespaces.pin(namespace.fileno(), self.layout.namespace_pin(sandbox.id, NamespaceKind.PID))
        return process

    def _infra_program(self) -> Path:
        """Return a copy of catatonit that only root may read.

        A process that executes what it may not read cannot be dumped (proc(5), ``PR_SET_DUMPABLE``): nothing in the pod
        traces it, or goes by ``/proc/1`` into its mounts; in a user namespace not even with all capabilities, because
        the file's owner is not mapped there (kernel, ``would_dump``).
        """
        source, copy = Path(self.catatonit), self.layout.infra_program
        found = source.stat()
        with suppress(FileNotFoundError):
            known = copy.stat()
            if (known.st_size, known.st_mtime_ns) == (found.st_size, found.st_mtime_ns):
                return copy
        atomicfile.write(copy, source.read_bytes(), mode=0o711)
        if self.confinement.selinux.enabled:
            os.setxattr(copy, relabel.ATTRIBUTE, os.getxattr(source, relabel.ATTRIBUTE))
        # Last: a copy that has not the times of its source is made anew at the next use.
        os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
        return copy

    def _infra_config(self, sandbox: Sandbox, rootfs: str, source: str) -> Config:
        """Return the configuration of the infra process, as confined as any container by default.

        It shares its PID namespace with the pod's containers: what they could reach by it must not be more than they
        have themselves.
        """
        config, idmap = sandbox.config, sandbox.config.namespaces.userns
        kinds = sorted(namespace_kinds(config) - {NamespaceKind.PID}, key=lambda kind: kind.value)
        oci_names = {NamespaceKind.NET: "network"}
        joined = {oci_names.get(kind, kind.value): str(self.layout.namespace_pin(sandbox.id, kind)) for kind in kinds}
        cgroup = slices.infra_cgroup(config.cgroup_parent, sandbox.id).oci
        score = max(INFRA_OOM_SCORE, oom_score_floor(procfs.capability_bounding_set()))
        uid, gid = (_INFRA_ID, _INFRA_ID) if idmap is None else (_infra_id(idmap.uids), _infra_id(idmap.gids))
        apparmor = self.confinement.apparmor_profile(Security())
        profile = self.confinement.default_seccomp
        calls = None if profile is None else seccomp.to_oci(profile, capabilities=(), machine=os.uname().machine)
        return compose(
            only_program(source, "/catatonit", "-P", rootfs=rootfs, cgroup=cgroup),
            setting("root", readonly=True),
            setting("process", user={"uid": uid, "gid": gid}, noNewPrivileges=True, oomScoreAdj=score),
            setting("process", apparmorProfile=apparmor or None),
            setting("linux", maskedPaths=list(DEFAULT_MASKED), readonlyPaths=list(DEFAULT_READONLY), seccomp=calls),
            joining({"pid": "", "mount": "", **joined}),
            mapped(idmap),
            labelled(self.confinement.labels(sandbox)),
        )

    def _stop_infra(self, sandbox: Sandbox, driver: Driver) -> None:
        if sandbox.status.infra is not None:
            procfs.kill(sandbox.status.infra, signal.SIGKILL)
        driver.delete(ContainerID(sandbox.id))


def namespace_kinds(config: SandboxConfig) -> frozenset[NamespaceKind]:
    """Return the namespaces that a sandbox has of its own; pure."""
    options, result = config.namespaces, set()
    if options.network is NamespaceMode.POD:
        # CRI has no option for UTS.
        result |= {NamespaceKind.NET, NamespaceKind.UTS}
    if options.ipc is NamespaceMode.POD:
        result.add(NamespaceKind.IPC)
    if options.pid is NamespaceMode.POD:
        result.add(NamespaceKind.PID)
    if options.userns is not None:
        result.add(NamespaceKind.USER)
    return frozenset(result)


def _infra_id(mappings: tuple[IdMapping, ...]) -> int:
    """Return the user or group of the infra process inside; of fewer IDs the last of those with root's."""
    (first,) = (item for item in mappings if item.container_id == 0)
    return min(_INFRA_ID, first.length - 1)


def _kind_names(config: SandboxConfig) -> frozenset[str]:
    return frozenset(kind.name for kind in namespace_kinds(config))


@contextmanager
def _asked_sysctls(config: SandboxConfig) -> Iterator[None]:
    """Have a sysctl that the kernel does not take be the request's fault, if it is the request's."""
    try:
        yield
    except KernelCallError as error:
        sysctls.refuse_asked(error, config.sysctls, _kind_names(config))
        raise


def _try_all(sandbox: Sandbox, steps: list[tuple[str, Callable[[], object]]]) -> None:
    undo = UndoStack()
    # An UndoStack takes the step that was pushed last first.
    for description, step in reversed(steps):
        undo.push(f"{description} (sandbox {sandbox.id})", step)
    undo.run()
    if undo.failed:
        raise Internal("; ".join(f"could not {description}: {error}" for description, error in undo.failed))


def _clear(directory: Path) -> None:
    """Remove a directory with mounts in it; while one of them cannot be unmounted, nothing is removed."""
    unmount_below(directory)
    remove_tree(directory)


def _machine_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
