"""Copies of mounts that a container's creation needs: idmapped, read-only with all that is mounted below, or read-only
whatever the pod does.

Owns: making the copies below the container's bundle, and taking them away. Does not own: the mounts themselves, or what
is asked of them (``oci/mounts.py``). They are made here and not by the OCI runtime: crun 1.8.1 may look at the
container's user namespace before its process has entered it, and then fails with EPERM; runc 1.1 does not map at all;
and neither of them makes submounts read-only. Called by ``container_executor.py``; everything blocks.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from podkeep.base.errors import FailedPrecondition
from podkeep.kernel import mountinfo, mounts
from podkeep.kernel.idmap import IdMap
from podkeep.kernel.mounts import MountAttr
from podkeep.kernel.namespaces import NamespaceHelper, NamespaceKind, open_pinned
from podkeep.runtime.layout import Layout
from podkeep.runtime.oci.mounts import is_below, normal
from podkeep.runtime.records import Container, Mount, Propagation, Sandbox


@dataclass(frozen=True)
class Staging:
    """Makes and removes the copies."""

    layout: Layout
    helper: NamespaceHelper

    def stage(self, container: Container, sandbox: Sandbox) -> dict[int, dict[str, str]]:
        """Make a copy of every mount that needs one, and return where, by the mount's number.

        What is mounted below is listed apart, because crun 1.8.1 binds no more than the mount itself into a user
        namespace.

        :raises FailedPrecondition: naming the path, if mounts cannot pass on what the request wants.
        :raises KernelCallError: naming the path, if its file system cannot be idmapped (KEP-127, handling of volumes).
        """
        of_paths = {number: mount for number, mount in enumerate(container.config.mounts) if mount.host_path}
        for mount in of_paths.values():
            check_propagation(mount)
        in_userns = sandbox.config.namespaces.userns is not None
        paths = [normal(mount.container_path) for mount in container.config.mounts]
        chosen = {number: mount for number, mount in of_paths.items() if _needs_copy(mount, paths)}
        if not chosen:
            return {}
        result: dict[int, dict[str, str]] = {}
        directory = self.layout.staged_mounts(container.id)
        make_passable(directory, sandbox.config.namespaces.userns)
        with ExitStack() as closing:
            namespaces: dict[IdMap, int] = {}
            for number, mount in chosen.items():
                if mount.idmap is not None and mount.idmap not in namespaces:
                    namespaces[mount.idmap] = self.open_userns(sandbox, mount.idmap)
                    closing.callback(os.close, namespaces[mount.idmap])
                target = directory / str(number)
                _copy(mount, target, None if mount.idmap is None else namespaces[mount.idmap])
                result[number] = _apart(mount, target) if in_userns else {"": str(target)}
        return result

    def stage_sources(
        self, container: Container, sandbox: Sandbox, sources: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Make idmapped copies of host paths for a pod in a user namespace, and return them by path, as ``stage`` does.

        For a pod with the machine's users nothing is done: the host paths can be mounted as they are.

        :raises KernelCallError: naming the path, if its file system cannot be idmapped.
        """
        idmap = sandbox.config.namespaces.userns
        if idmap is None or not sources:
            return {}
        directory = self.layout.staged_mounts(container.id)
        if not directory.exists():
            make_passable(directory, idmap)
        result = {}
        userns = self.open_userns(sandbox, idmap)
        try:
            for number, source in enumerate(sources):
                mount = Mount(container_path="", host_path=os.path.realpath(source), idmap=idmap)
                target = directory / f"source-{number}"
                _copy(mount, target, userns)
                result[source] = _apart(mount, target)
        finally:
            os.close(userns)
        return result

    def unstage(self, container: Container) -> None:
        """Remove the copies of a container; safe to repeat."""
        directory = self.layout.staged_mounts(container.id)
        if directory.exists():
            for target in directory.iterdir():
                if mountinfo.is_mount_point(target):
                    # A copy that passes mounts on is a peer of the volume: unmounting it would unmount what is
                    # mounted below the volume itself.
                    mounts.set_propagation(target, mounts.Propagation.PRIVATE, recursive=True)
                mounts.unmount(target, lazy=True)
                # Never a recursive removal: if the mount were still there, it would empty a volume.
                if target.is_dir():
                    target.rmdir()
                else:
                    target.unlink()
            directory.rmdir()

    def open_userns(self, sandbox: Sandbox, idmap: IdMap) -> int:
        """Return a user namespace with these mappings: the pod's own if it has them. The caller closes it."""
        if idmap == sandbox.config.namespaces.userns:
            return open_pinned(self.layout.namespace_pin(sandbox.id, NamespaceKind.USER))
        return self.helper.user_namespace(idmap)


def _needs_copy(mount: Mount, paths: Sequence[str]) -> bool:
    """Return whether a mount is made from a copy; ``paths`` are those of all mounts, in their normal form.

    One that is only read-only is, if it is below another volume: there the pod may exchange the directory before the
    OCI runtime, which mounts first and sets the flag afterwards, comes back by the path.
    """
    if mount.idmap is not None or mount.recursive_read_only:
        return True
    if not mount.readonly or mount.propagation is Propagation.BIDIRECTIONAL:
        return False
    target = normal(mount.container_path)
    return any(target != path and is_below(target, path) for path in paths)


def _copy(mount: Mount, target: Path, userns: int | None) -> None:
    private = mount.propagation is Propagation.PRIVATE
    copy = mounts.clone_tree(
        mount.host_path,
        recursive=True,
        idmap_userns=userns,
        attrs=MountAttr.RDONLY if mount.recursive_read_only else MountAttr.NONE,
        propagation=mounts.Propagation.PRIVATE if private else mounts.Propagation.UNCHANGED,
    )
    try:
        if mount.readonly and not mount.recursive_read_only:
            mounts.mount_setattr(copy, set_=MountAttr.RDONLY)
        _make_mount_point(target, like=Path(mount.host_path))
        mounts.attach(copy, target)
    finally:
        os.close(copy)


def _apart(mount: Mount, target: Path) -> dict[str, str]:
    """Return each mount of a copy with its path below the copy's own."""
    copies = [Path(entry.mount_point) for entry in mountinfo.under(target)]
    if len(copies) > 1 and mount.propagation is Propagation.BIDIRECTIONAL:
        # Binding them one by one would mount them once more on the machine.
        raise FailedPrecondition(
            f"{mount.host_path} has mounts below it, and cannot be a Bidirectional volume of a pod in a user namespace",
            hint="use HostToContainer, or a volume for each of the mounts",
        )
    return {_relative(copy, target): str(copy) for copy in copies}


def check_propagation(mount: Mount) -> None:
    """Check that mounts can come from, or go to, the machine as the request wants.

    :raises FailedPrecondition: naming the mount that the path is on, if that one does not pass anything on.
    """
    if mount.propagation is Propagation.PRIVATE:
        return
    found = mountinfo.holding(mount.host_path)
    kinds = {field.partition(":")[0] for field in found.propagation}
    if mount.propagation is Propagation.BIDIRECTIONAL and "shared" not in kinds:
        wanted = "a shared mount"
    elif not kinds & {"shared", "master"}:
        wanted = "a shared or slave mount"
    else:
        return
    # In this very namespace: the host's mount may be shared, or not be there at all (docs/mount-namespace.md).
    command = f"nsenter --target {os.getpid()} --mount -- mount --make-rshared {shlex.quote(found.mount_point)}"
    raise FailedPrecondition(
        f"path {mount.host_path!r} is mounted on {found.mount_point!r} but it is not {wanted}",
        hint=f"make it one where the runtime's mounts are: `{command}`",
    )


def _relative(path: Path, top: Path) -> str:
    return "" if path == top else str(path.relative_to(top))


def make_passable(directory: Path, idmap: IdMap | None) -> None:
    """Make a directory that only root and the pod's own root pass: below are setuid programs of an image."""
    directory.mkdir(mode=0o700)
    if idmap is not None:
        os.chown(directory, 0, idmap.host_gid(0))
        directory.chmod(0o710)


def _make_mount_point(target: Path, *, like: Path) -> None:
    if like.is_dir():
        target.mkdir()
    else:
        target.touch()
