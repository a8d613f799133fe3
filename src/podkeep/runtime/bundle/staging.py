"""Copies of mounts that a container's creation needs: idmapped, read-only with all that is mounted below, or protected
whatever the pod does.

Owns: making the copies below the container's bundle, and taking them away. Does not own: the mounts themselves, or what
is asked of them (``oci/mounts.py``). They are made here and not by the OCI runtime: crun 1.8.1 may look at the
container's user namespace before its process has entered it, and then fails with EPERM; runc 1.1 does not map at all;
and neither of them makes submounts read-only. Called by ``container_executor.py``; everything blocks.
"""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from podkeep.base.errors import FailedPrecondition, KernelCallError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.files import openat
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import MountAttr
from podkeep.kernel.namespace import nshelper
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, open_pinned
from podkeep.runtime.bundle import targets
from podkeep.runtime.bundle.nesting import Hands, Nesting
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import Container, Mount, Propagation, Sandbox
from podkeep.runtime.oci.compose import Config
from podkeep.runtime.oci.mounts import BIND_OPTIONS, OciMount, StagedMount, is_bind, protected, protection


class Staging(FrozenStruct):
    """Makes and removes the copies."""

    layout: Layout
    helper: NamespaceHelper

    def location(self, container: Container, name: str) -> str:
        """Return the host path of one of a container's staged mounts; pure."""
        return str(self.layout.staged_mounts(container.id) / name)

    def planned(self, container: Container, sandbox: Sandbox) -> dict[int, StagedMount]:
        """Return the copies that mounts of paths need, by the mount's number; pure."""
        in_userns = sandbox.config.namespaces.userns is not None
        return {
            number: StagedMount(source=self.location(container, str(number)))
            for number, mount in enumerate(container.config.mounts)
            # In a user namespace all of them are locked (see ``lock``), one mount at a time.
            if mount.host_path and (in_userns or mount.idmap is not None or mount.recursive_read_only)
        }

    def stage(self, container: Container, sandbox: Sandbox, planned: Mapping[int, StagedMount]) -> None:
        """Make the copies of mounts of paths that :meth:`planned` returned; others may be among ``planned``.

        :raises FailedPrecondition: naming the path, if mounts cannot pass on what the request wants.
        :raises KernelCallError: naming the path, if its file system cannot be idmapped (KEP-127, handling of volumes).
        """
        of_paths = {number: mount for number, mount in enumerate(container.config.mounts) if mount.host_path}
        for mount in of_paths.values():
            check_propagation(mount)
        chosen = {number: mount for number, mount in of_paths.items() if number in planned}
        if not chosen:
            return
        directory = self.directory(container, sandbox)
        with ExitStack() as closing:
            # One user namespace for all mounts with the same mappings: each one that is not the pod's costs a process.
            namespaces: dict[IdMap | None, int | None] = {}
            for number, mount in chosen.items():
                if mount.idmap not in namespaces:
                    namespaces[mount.idmap] = closing.enter_context(self.userns(sandbox, mount.idmap))
                _copy(mount, Path(planned[number].source), namespaces[mount.idmap])
        shared = {n: mount for n, mount in chosen.items() if mount.propagation is Propagation.BIDIRECTIONAL}
        if sandbox.config.namespaces.userns is not None and shared:
            deep = _deep(directory)
            for number, mount in shared.items():
                _check_not_deep(mount, planned[number].source, deep)

    def planned_sources(self, container: Container, sandbox: Sandbox, sources: Sequence[str]) -> dict[str, StagedMount]:
        """Return the idmapped copies of host paths for a pod in a user namespace, by path; pure.

        For a pod with the machine's users there are none: the host paths can be mounted as they are.
        """
        if sandbox.config.namespaces.userns is None:
            return {}
        return {path: StagedMount(source=self.location(container, f"source-{n}")) for n, path in enumerate(sources)}

    def stage_sources(self, container: Container, sandbox: Sandbox, planned: Mapping[str, StagedMount]) -> None:
        """Make the copies that :meth:`planned_sources` returned.

        :raises KernelCallError: naming the path, if its file system cannot be idmapped.
        """
        idmap = sandbox.config.namespaces.userns
        if idmap is None or not planned:
            return
        self.directory(container, sandbox)
        with self.userns(sandbox, idmap) as userns:
            for path, staged in planned.items():
                mount = Mount(container_path="", host_path=openat.resolved(path), idmap=idmap)
                _copy(mount, Path(staged.source), userns)

    def lock(self, container: Container, sandbox: Sandbox, config: Config, *, whole: Collection[str] = ()) -> Config:
        """Return the OCI configuration with bind mounts that keep their protection, whatever the pod does.

        Where the pod has the machine's users it can do nothing to a mount once it is made; see :meth:`_make_protected`.

        In a user namespace a process with CAP_SYS_ADMIN could take read-only, nosuid, nodev and noexec off a mount, be
        it that the request asked for them or that the machine has the source mounted so; and it could unmount what is
        mounted below a volume, and so reach what lies beneath: the directory itself of one that is bound read-only onto
        itself.
        Every mount with one of these is made from a copy whose flags, and what is mounted below, the kernel locked
        (:meth:`NamespaceHelper.lock_mounts`).

        crun 1.8.1 cannot copy such a mount with what is below it before it is in the pod's user namespace, and then
        binds it inside, where the kernel lets it have all of it.

        What is mounted below another one is put together before (:mod:`podkeep.runtime.bundle.nesting`).

        :param whole: sources whose flags are for what is mounted below them, too: those of :meth:`planned_sources`.
        :raises FailedPrecondition: naming a mount that passes mounts on to the machine, which the kernel does not lock.
        """
        idmap = sandbox.config.namespaces.userns
        nested = self._nested(container, sandbox, config, whole)
        if idmap is None:
            return config if nested is None else self._make_protected(container, sandbox, nested)
        config = nested or config
        result: list[OciMount] = [item.copy() for item in config["mounts"]]
        with ExitStack() as closing:

            def opened(fd: int) -> int:
                closing.callback(os.close, fd)
                return fd

            directory = self.layout.staged_mounts(container.id)
            deep = _deep(directory) if directory.exists() else frozenset()
            copies: dict[int, int] = {}
            for number, item in enumerate(result):
                # Others are not copied: the end of a copy is a wait for the kernel.
                if is_bind(item) and _is_to_lock(item, deep):
                    copies[number] = opened(
                        _protected_copy(item, recursive=item["source"] in deep, whole=item["source"] in whole)
                    )
                    # The flags of the copy count, not those of the source, which may have changed since.
                    item["options"] = protected(item["options"], _protection_of(copies[number]))
            if not copies:
                return config
            _check_lockable([result[number] for number in copies])
            directory = self.directory(container, sandbox)
            userns = closing.enter_context(self.userns(sandbox, idmap))
            assert userns is not None
            locked = self.helper.lock_mounts(userns, list(copies.values()))
            for fd in locked:
                opened(fd)
            for number, fd in zip(copies, locked, strict=True):
                target = directory / f"locked-{number}"
                _attach(fd, target)
                result[number]["source"] = str(target)
        return {**config, "mounts": result}

    def _make_protected(self, container: Container, sandbox: Sandbox, config: Config) -> Config:
        """Return the OCI configuration with copies for bind mounts with flags, where some were left to the OCI runtime.

        It mounts first, and comes back by the path to set the flags. In a volume another container of the pod may
        exchange the directory meanwhile, and have the mount without them. And where something is mounted in a volume,
        it makes a file or directory as root for that, wherever a link in the volume leads: what is to be read-only has
        to be so by then (crun 1.8.1 sets flags when all is mounted).
        """
        if not _has_nested(item["destination"] for item in config["mounts"] if is_bind(item)):
            return config
        result = []
        for number, item in enumerate(config["mounts"]):
            if is_bind(item) and protection(item["options"]) and "rshared" not in item["options"]:
                with openat.closing(_protected_copy(item, recursive="rbind" in item["options"])) as copy:
                    target = self.directory(container, sandbox) / f"protected-{number}"
                    _attach(copy, target)
                item = {**item, "source": str(target)}
            result.append(item)
        return {**config, "mounts": result}

    def _nested(self, container: Container, sandbox: Sandbox, config: Config, whole: Collection[str]) -> Config | None:
        """Return the OCI configuration with what is mounted below other bind mounts put together; None: nothing is."""
        with openat.closing(openat.open_directory(self.layout.rootfs(container.id))) as root, ExitStack() as closing:
            found = targets.resolve_all(root, (item["destination"] for item in config["mounts"] if is_bind(item)))
            if not _has_nested(found.values()):
                return None
            idmap = sandbox.config.namespaces.userns
            userns = closing.enter_context(self.userns(sandbox, idmap))
            numbers = itertools.count()

            def attach(copy: int) -> str:
                directory = self.directory(container, sandbox)
                target = directory / f"nested-{next(numbers)}"
                _attach(copy, target)
                return str(target)

            def make(directory: int, name: str, is_directory: bool) -> None:
                if userns is None:
                    nshelper.make_empty(directory, name, is_directory=is_directory)
                else:
                    self.helper.make_empty(userns, directory, name, is_directory=is_directory)

            hands = Hands(copy=lambda item: _whole_copy(item, whole), attach=attach, make=make)
            nesting = Nesting(root, hands)
            closing.callback(nesting.close)
            for item in config["mounts"]:
                nesting.add(item)
            return {**config, "mounts": nesting.mounts()}

    def unstage(self, container: Container) -> None:
        """Remove the copies of a container; safe to repeat."""
        directory = self.layout.staged_mounts(container.id)
        if directory.exists():
            if mountinfo.is_mount_point(directory):
                # A copy that passes mounts on is a peer of the volume: unmounting it would unmount what is mounted
                # below the volume itself.
                mounts.set_propagation(directory, mounts.Propagation.PRIVATE, recursive=True)
                mounts.unmount(directory, lazy=True)
            # Never a recursive removal: if a mount were still there, it would empty a volume.
            directory.rmdir()

    def directory(self, container: Container, sandbox: Sandbox) -> Path:
        """Return where the copies of a container are made: a file system of their own.

        They go with it in one step; the end of every single mount is a wait for the kernel.
        """
        directory, idmap = self.layout.staged_mounts(container.id), sandbox.config.namespaces.userns
        if not directory.exists():
            directory.mkdir(mode=0o700)
            # In a user namespace crun 1.8.1 binds as the pod's root, which has to pass (see lock). There are mount
            # points in it and nothing else.
            mode, gid = ("0700", 0) if idmap is None else ("0710", idmap.host_gid(0))
            mounts.tmpfs(directory, f"size=1m,mode={mode},gid={gid}")
            # A mount made below a shared one is shared: the copies would appear wherever the runtime's mounts are
            # passed on to.
            mounts.set_propagation(directory, mounts.Propagation.PRIVATE)
        return directory

    @contextmanager
    def userns(self, sandbox: Sandbox, idmap: IdMap | None) -> Iterator[int | None]:
        """Open a user namespace with these mappings, the pod's own if it has them; None: there are no mappings."""
        if idmap is None:
            yield None
            return
        own = idmap == sandbox.config.namespaces.userns
        pin = self.layout.namespace_pin(sandbox.id, NamespaceKind.USER)
        with openat.closing(open_pinned(pin) if own else self.helper.user_namespace(idmap)) as fd:
            yield fd


def _copy(mount: Mount, target: Path, userns: int | None) -> None:
    private = mount.propagation is Propagation.PRIVATE
    copy = mounts.clone_tree(
        mount.host_path,
        recursive=True,
        idmap_userns=userns,
        attrs=MountAttr.RDONLY if mount.recursive_read_only else MountAttr.NONE,
        propagation=mounts.Propagation.PRIVATE if private else mounts.Propagation.UNCHANGED,
    )
    with openat.closing(copy):
        if mount.readonly and not mount.recursive_read_only:
            # Not recursive: what lies below a read-only mount stays writable unless the request says recursive (CRI,
            # Mount).
            mounts.mount_setattr(copy, set_=MountAttr.RDONLY)
        _attach(copy, target)


def _deep(directory: Path) -> frozenset[str]:
    """Return which copies in a directory have mounts below them.

    The table is read once at most, for a node may have thousands of mounts.
    """
    if not mountinfo.has_nested(directory):
        return frozenset()
    found = {entry.mount_point for entry in mountinfo.under(directory)}
    return frozenset(str(above) for path in found for above in Path(path).parents) & found


def _check_not_deep(mount: Mount, copy: str, deep: Collection[str]) -> None:
    if copy in deep:
        # Locking makes slaves of what is mounted below.
        raise FailedPrecondition(
            f"{mount.host_path} has mounts below it, and cannot be a Bidirectional volume of a pod in a user namespace",
            hint="use HostToContainer, or a volume for each of the mounts",
        )


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


def make_passable(directory: Path, idmap: IdMap | None) -> None:
    """Make a directory that only root and the pod's own root pass: below are setuid programs of an image."""
    directory.mkdir(mode=0o700)
    if idmap is not None:
        # The group alone: its owner stays root, so that the pod's root can pass and change nothing.
        os.chown(directory, 0, idmap.host_gid(0))
        directory.chmod(0o710)


def _is_to_lock(item: OciMount, deep: Collection[str]) -> bool:
    """Return whether a bind mount has something that a process in the pod must not be able to take off."""
    return item["source"] in deep or bool(protection(item["options"]) | _protection_of(item["source"]))


def _protected_copy(
    item: OciMount, *, recursive: bool, whole: bool = False, propagation: mounts.Propagation | None = None
) -> int:
    """Return a detached copy of a bind mount's source with the flags that it asks for.

    :param recursive: with what is mounted below.
    :param whole: the flags are for that, too.
    :param propagation: None: private if it asks for that, else as the source's.
    """
    if propagation is None:
        private = "rprivate" in item["options"]
        propagation = mounts.Propagation.PRIVATE if private else mounts.Propagation.UNCHANGED
    copy = mounts.clone_tree(item["source"], recursive=recursive, propagation=propagation)
    try:
        mounts.mount_setattr(copy, set_=_attributes(protection(item["options"])), recursive=recursive and whole)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _has_nested(places: Iterable[str]) -> bool:
    tops = set(places)
    return not all(tops.isdisjoint(map(str, PurePosixPath(place).parents)) for place in tops)


def _whole_copy(item: OciMount, whole: Collection[str]) -> int:
    """Return a detached copy of a bind mount's source with all that the OCI runtime would give it."""
    options = item["options"]
    unknown = [option for option in options if option not in BIND_OPTIONS]
    if unknown:
        raise FailedPrecondition(
            f"the mount at {item['destination']}, above or below another one, cannot have the options"
            f" {', '.join(unknown)}"
        )
    # Never a peer of its source: what is mounted below it would be mounted there, too, for all pods. A CDI device may
    # say nothing of propagation.
    follows = not {"slave", "rslave"}.isdisjoint(options)
    propagation = mounts.Propagation.SLAVE if follows else mounts.Propagation.PRIVATE
    flags_below = item["source"] in whole or "rro" in options
    return _protected_copy(item, recursive="rbind" in options, whole=flags_below, propagation=propagation)


_ATTRIBUTES = {
    "ro": (MountAttr.RDONLY, os.ST_RDONLY),
    "nosuid": (MountAttr.NOSUID, os.ST_NOSUID),
    "nodev": (MountAttr.NODEV, os.ST_NODEV),
    "noexec": (MountAttr.NOEXEC, os.ST_NOEXEC),
}


def _attributes(names: frozenset[str]) -> MountAttr:
    result = MountAttr.NONE
    for name in names:
        result |= _ATTRIBUTES[name][0]
    return result


def _protection_of(mount: int | str) -> frozenset[str]:
    """Return which of ro, nosuid, nodev and noexec a mount is, or the one that a path is on."""
    flags = os.statvfs(mount).f_flag
    return frozenset(name for name, (_, flag) in _ATTRIBUTES.items() if flags & flag)


def _check_lockable(items: Sequence[OciMount]) -> None:
    for item in items:
        if "rshared" in item["options"]:
            raise FailedPrecondition(
                f"the mount at {item['destination']} is read-only, nosuid, nodev or noexec, which a pod in a user"
                " namespace could undo, as it is Bidirectional",
                hint="use HostToContainer, or a directory that is not mounted so on the machine",
            )


def _attach(copy: int, target: Path) -> None:
    """Attach a detached mount at ``target``, which is made.

    :raises FailedPrecondition: if what it is a mount of has no name any more: the kernel attaches no such mount.
    """
    if stat.S_ISDIR(os.fstat(copy).st_mode):
        target.mkdir()
    else:
        target.touch()
    try:
        mounts.attach(copy, target)
    except KernelCallError as error:
        if error.errno != errno.ENOENT:
            raise
        raise FailedPrecondition(
            "what one of the volumes is mounted from was removed meanwhile",
            hint="a container of the pod may do that with a directory that is another one's subPath",
        ) from error
