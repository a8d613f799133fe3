"""Whether user namespaces and idmapped mounts work here: found out by doing it.

The probes mount things, so the process that runs them first moves to a mount namespace of its own, which ends with it:
nothing they do can be seen outside or is left behind but for one temporary directory, which is removed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from podkeep.base.errors import FailedPrecondition, KernelCallError, PodkeepError
from podkeep.cli.diagnosis import finding
from podkeep.cli.diagnosis.finding import Finding
from podkeep.images.layers.names import EROFS
from podkeep.images.snapshots.choice import choose
from podkeep.kernel import libc
from podkeep.kernel.mount import mounts
from podkeep.kernel.namespace import idmap
from podkeep.kernel.namespace.namespaces import NamespaceHelper
from podkeep.runtime.bundle import rootfs_variants
from podkeep.runtime.bundle.rootfs_variants import Tried, Variant, Variants

if TYPE_CHECKING:
    from podkeep.base.config import Config

_HOST_ID = 65536
"""The first host ID of the block that the probes map to; the first one above those of the machine itself (KEP-127)."""

_NEW_KERNEL = "boot Linux 6.3 or newer"


def examine(config: Config) -> list[Finding]:
    """Try everything; moves the calling, single-threaded process to a mount namespace of its own."""
    try:
        _leave_mount_namespace()
        with NamespaceHelper() as helper, ExitStack() as closing:
            userns = helper.user_namespace(idmap.block(_HOST_ID, 65536))
            closing.callback(os.close, userns)
            root = Path(config.runtime.root)
            found = [finding.ok("user namespaces", "work"), *_probe_tmpfs(userns)]
            # Where nothing can be made, nothing can be tried; ``machine`` tells that.
            return (
                [*found, *_probes(config, root, userns), layers(config)]
                if os.access(existing_parent(root), os.W_OK)
                else found
            )
    except PodkeepError as error:
        fix = "sysctl -w user.max_user_namespaces=15000"
        return [finding.failed("user namespaces", error, why="none can be made", fix=fix)]


def _leave_mount_namespace() -> None:
    libc.unshare(libc.CloneFlag.NEWNS)
    mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)


def _probes(config: Config, root: Path, userns: int) -> Iterator[Finding]:
    where = f"in {existing_parent(root)}"
    elsewhere = "put runtime.root on ext4, xfs or btrfs (docs/configuration.md), or boot Linux 6.3 or newer"
    why_root = "files of a pod with its own user namespace would belong to nobody"
    with _directory(root) as top:
        yield _try(f"idmapped mount {where}", lambda: _try_directory(top, userns), why=why_root, fix=elsewhere)
        yield root_file_systems(config.runtime.user_namespace_rootfs, top, userns, fix=elsewhere)


def _probe_tmpfs(userns: int) -> Iterator[Finding]:
    why_tmpfs = "Secrets, ConfigMaps and emptyDirs in memory cannot be mounted for such a pod"
    yield _try("idmapped tmpfs", lambda: _try_tmpfs(userns), why=why_tmpfs, fix=_NEW_KERNEL)


def root_file_systems(wanted: str, top: Path, userns: int, *, fix: str) -> Finding:
    """Say in which way images get the owners of a pod with a user namespace, and what each way costs here."""
    name, why = "root file systems", "images cannot be mounted for a pod with its own user namespace"

    def attempt(variant: Variant) -> Tried:
        return rootfs_variants.attempt(variant, top / "rootfs", lambda: os.dup(userns))

    try:
        variants = Variants(wanted, attempt)
    except FailedPrecondition as error:
        return finding.failed(name, error, why="the runtime does not start", fix=fix)
    if variants.choice.variant is None:
        return finding.missing(name, variants.choice.why_not, why=why, fix=fix)
    used = variants.choice.variant
    ways = variants.all()
    costs = ", ".join(f"{item.variant} {item.seconds * 1000:.1f} ms" for item in ways if not item.why_not)
    broken = "".join(f"; {item.variant} does not work: {item.why_not}" for item in ways if item.why_not)
    detail = f"{used.value}; mounting {rootfs_variants.FILES} files took: {costs}{broken}"
    if used is Variant.IDMAPPED or wanted != rootfs_variants.AUTO:
        return finding.ok(name, detail)
    return finding.warning(
        name,
        detail,
        why="each image is copied for each mapping of a user namespace, whole or without its data",
        fix=fix,
    )


def layers(config: Config) -> Finding:
    """Say how layers of images will be kept, in the root directory's file system, and why not better."""
    name, wanted = "image layers", config.images.snapshot_driver
    fix = "boot Linux 6.12 or newer, with runtime.root on a disk"
    with _directory(Path(config.runtime.root)) as top:
        try:
            choice = choose(top, wanted)
        except FailedPrecondition as error:
            return finding.failed(name, error, why="the runtime does not start", fix=fix)
    if choice.driver == EROFS:
        return finding.ok(name, "erofs: as file system images, nothing is unpacked")
    if not choice.why_not:
        return finding.ok(name, f"{choice.driver}: as configured (images.snapshot_driver)")
    why = "every file of an image is written when it is pulled, which takes several times as long"
    return finding.warning(name, f"{choice.driver}: {choice.why_not}", why=why, fix=fix)


def existing_parent(path: Path) -> Path:
    """Return ``path``, or the nearest directory above it that exists: where it would be made."""
    return next(candidate for candidate in (path, *path.parents) if candidate.is_dir())


@contextmanager
def _directory(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=existing_parent(root), prefix="podkeep-doctor-") as name:
        yield Path(name)


def _try(name: str, probe: Callable[[], int], *, why: str, fix: str) -> Finding:
    """Judge by the owner that a file of UID 0 has through the mount that ``probe`` makes."""

    def look() -> str:
        try:
            owner = probe()
        except KernelCallError as error:
            raise FailedPrecondition(error.message) from error  # ``fix`` says more than its hint
        if owner != _HOST_ID:
            raise FailedPrecondition(f"accepted, but the owner 0 appears as {owner} and not as {_HOST_ID}")
        return "works"

    return finding.tried(name, look, why=why, fix=fix)


def _try_directory(top: Path, userns: int) -> int:
    source = top / "source"
    source.mkdir()
    (source / "file").touch()
    fd = mounts.clone_tree(source, idmap_userns=userns)
    try:
        return os.stat("file", dir_fd=fd).st_uid
    finally:
        os.close(fd)


def _try_tmpfs(userns: int) -> int:
    with ExitStack() as closing:
        context = mounts.fsopen("tmpfs")
        closing.callback(os.close, context)
        mounts.fsconfig_create(context)
        fd = mounts.fsmount(context)
        closing.callback(os.close, fd)
        mounts.mount_setattr(fd, userns=userns)
        return os.fstat(fd).st_uid
