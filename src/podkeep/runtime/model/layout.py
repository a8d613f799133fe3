"""Where everything of the runtime lives. Pure: only paths, nothing is read or made.

    <root>/state.db                     sandboxes, containers, addresses (SQLite)
    <root>/images/                      the image store
    <root>/catatonit                    the program of infra processes, which only root may read
    <root>/sandboxes/<id>/              resolv.conf, hosts, hostname
    <root>/containers/<id>/{upper,work} the writable layer
    <root>/containers/<id>/volumes/<n>  the image's VOLUMEs
    <root>/changed/                     images with the owners of pods (runtime.bundle.changed_trees)
    <root>/leftovers/                   what a killed daemon left (runtime.bundle.leftovers)
    <run>/sandboxes/<id>/ns/<kind>      pinned namespaces
    <run>/sandboxes/<id>/shm            /dev/shm of the pod
    <run>/sandboxes/<id>/files          idmapped copy of the pod's files, for a pod in a user namespace
    <run>/containers/<id>/              the OCI bundle: config.json, rootfs/, conmon's files
    <run>/containers/<id>/log           the directory of its log, mounted so that no link in it is followed
    <run>/exits/<id>                    exit code, written by conmon
    <run>/handlers/<name>/              state of the OCI runtime
    <run>/layers/<id>                   mounted layers of images
    <run>/terminals/<token>             sockets over which the terminals of commands come
    <run>/mount-namespace.json          which mount namespace the runtime is in (podkeep.mountns.membership)
    <run>/configuration.json            the configuration in force (podkeep.base.in_force)

Directories that a container's processes must traverse as an unprivileged host user have mode 0711 where they are all
pods', 0710 with the pod's group where they are one's (``staging.make_passable``); all else 0700. IDs are no secret.
"""

from __future__ import annotations

from pathlib import Path

from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID, HandlerName, SandboxID
from podkeep.kernel.namespace.namespaces import NamespaceKind
from podkeep.runtime.cgroup_driver import slices


class Layout(FrozenStruct):
    """The paths below the two directories of a runtime."""

    root: Path
    run: Path

    @property
    def state(self) -> Path:
        return self.root / "state.db"

    @property
    def reserve(self) -> Path:
        return self.root / "reserve"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def changed_trees(self) -> Path:
        return self.root / "changed"

    @property
    def leftovers(self) -> Path:
        return self.root / "leftovers"

    @property
    def rootfs_probe(self) -> Path:
        return self.root / "probe-rootfs"

    @property
    def layers(self) -> Path:
        return self.run / "layers"

    @property
    def exits(self) -> Path:
        return self.run / "exits"

    @property
    def lock(self) -> Path:
        return self.run / "runtime.lock"

    @property
    def terminals(self) -> Path:
        return self.run / "terminals"

    @property
    def infra_program(self) -> Path:
        return self.root / "catatonit"

    @property
    def sandboxes_data(self) -> Path:
        return self.root / "sandboxes"

    @property
    def sandboxes_run(self) -> Path:
        return self.run / "sandboxes"

    @property
    def containers_data(self) -> Path:
        return self.root / "containers"

    @property
    def bundles(self) -> Path:
        return self.run / "containers"

    @property
    def handlers(self) -> Path:
        return self.run / "handlers"

    def sandbox_data(self, sandbox: SandboxID) -> Path:
        return self.sandboxes_data / sandbox

    def sandbox_run(self, sandbox: SandboxID) -> Path:
        return self.sandboxes_run / sandbox

    def namespace_pin(self, sandbox: SandboxID, kind: NamespaceKind) -> Path:
        return self.sandbox_run(sandbox) / "ns" / kind.value

    def shm(self, sandbox: SandboxID) -> Path:
        return self.sandbox_run(sandbox) / "shm"

    def mapped_files(self, sandbox: SandboxID) -> Path:
        return self.sandbox_run(sandbox) / "files"

    def infra_bundle(self, sandbox: SandboxID) -> Path:
        return self.sandbox_run(sandbox) / "infra"

    def container_data(self, container: ContainerID) -> Path:
        return self.containers_data / container

    def writable_layer(self, container: ContainerID) -> Path:
        return self.container_data(container) / "upper"

    def volumes(self, container: ContainerID) -> Path:
        return self.container_data(container) / "volumes"

    def bundle(self, container: ContainerID) -> Path:
        return self.bundles / container

    def rootfs(self, container: ContainerID) -> Path:
        return self.bundle(container) / "rootfs"

    def log_directory(self, container: ContainerID) -> Path:
        return self.bundle(container) / "log"

    def staged_mounts(self, container: ContainerID) -> Path:
        return self.bundle(container) / "mounts"

    def exit_file(self, container: ContainerID) -> Path:
        return self.exits / container

    def handler_root(self, handler: HandlerName) -> Path:
        return self.handlers / handler

    def shared_directories(self) -> tuple[Path, ...]:
        """Return the directories that exist while the runtime does."""
        return (
            self.root,
            self.sandboxes_data,
            self.containers_data,
            self.run,
            self.sandboxes_run,
            self.bundles,
            self.exits,
            self.handlers,
            self.terminals,
        )


def veth_name(sandbox: SandboxID) -> str:
    """Return the name of the host's end of a pod's cable; an interface name has at most 15 characters."""
    return f"pk{sandbox[:12]}"


def sandbox_cgroup(parent: str, sandbox: SandboxID) -> str:
    """Return the path of a sandbox's cgroup below ``parent``, a path or a slice."""
    return slices.sandbox_path(parent, sandbox)


def cgroup_parents(parent: str) -> tuple[str, ...]:
    """Return ``parent`` and the cgroups above it, without the root, outermost first; none of a slice."""
    return slices.parents(parent)


def container_cgroup(parent: str, sandbox: SandboxID, container: ContainerID) -> str:
    return slices.container_cgroup(parent, sandbox, container).path
