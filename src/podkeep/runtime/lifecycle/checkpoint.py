"""CheckpointContainer: what a running container is, with its memory, as one archive; the container runs on.

Owns: driving the OCI runtime's ``checkpoint`` (which drives CRIU) and the archive. Does not own: restoring. The archive
has the layout of CRI-O's and containerd's (the names are those of checkpointctl), so that their tools read it:

    config.dump       which container and image this was      spec.dump      the OCI configuration
    status.dump       the container's record                  container.log  its log until now
    checkpoint/       CRIU's images of processes and memory   dump.log       what CRIU said
    rootfs-diff.tar   the writable layer                      deleted.files  what the container deleted of its image
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from podkeep.base import spawn
from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KernelCallError,
    ResourceExhausted,
    Unimplemented,
    refused,
)
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import ContainerID
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.files import openat
from podkeep.kernel.files.openat import Found, Resolve
from podkeep.kernel.files.removal import remove_tree
from podkeep.kernel.namespace.idmap import IdMap
from podkeep.runtime.bundle.container_log import LogFile, log_file
from podkeep.runtime.model.layout import Layout, container_cgroup
from podkeep.runtime.model.records import Container, Sandbox
from podkeep.runtime.model.state import State
from podkeep.runtime.oci.driver import Driver

if TYPE_CHECKING:
    import tarfile

DEFAULT_TIMEOUT_S = 120.0
"""For requests that name no time, as the kubelet's client waits."""
_PIECE = 1 << 20
_BLOCK_BYTES = 512
_HEADER_BYTES = 2 * _BLOCK_BYTES
_MAX_REMEMBERED = 256 << 20
"""In bytes, of the names that have to be known until the end."""
_WITHOUT_CRIU = ("without CRIU", "checkpoint and restore not supported", "No such command", "unknown command")


class CheckpointPlan(FrozenStruct, kw_only=True):
    """One checkpoint to be made. ``timeout`` in seconds for the part in which the container stands still."""

    container: Container
    sandbox: Sandbox
    location: Path
    timeout: float


class Checkpoints:
    """The checkpoints of one runtime; one at a time for each container."""

    def __init__(
        self, state: State, driver: Callable[[Sandbox], Driver], layout: Layout, cgroups: Cgroups, criu: str
    ) -> None:
        """:param driver: returns the driver of a sandbox's runtime handler."""
        self._state = state
        self._driver = driver
        self._maker = CheckpointMaker(layout=layout, cgroups=cgroups, criu=criu)
        self._running: SingleFlight[None] = SingleFlight()
        self._busy: dict[ContainerID, str] = {}

    async def make(self, text: str, location: str, timeout: float) -> None:
        """Write a checkpoint of a running container to a new archive at ``location``.

        :param timeout: seconds; 0: 120.
        :raises NotFound: if there is no such container, or none any more.
        :raises FailedPrecondition: if it does not run, or not any more, or is being checkpointed to somewhere else.
        :raises InvalidArgument: if ``location`` is no place for a file.
        :raises Unimplemented: naming what is missing, if this machine cannot checkpoint.
        :raises DeadlineExceeded: if it took too long; the container runs on.
        """
        container = self._state.running_container(text)
        if not os.path.isabs(location) or "\0" in location or os.path.basename(location) in {"", ".", ".."}:
            raise InvalidArgument(f"location: {location[:200]!r} is not the absolute path of a file")
        sandbox = self._state.sandbox(container.sandbox_id)
        plan = CheckpointPlan(
            container=container, sandbox=sandbox, location=Path(location), timeout=timeout or DEFAULT_TIMEOUT_S
        )
        await self._running.do((container.id, location), lambda: self._make(plan, self._driver(sandbox)))

    async def _make(self, plan: CheckpointPlan, driver: Driver) -> None:
        container = plan.container.id
        # One at a time for each container: they share its working directory (CheckpointMaker.make) and its freezer.
        # Looked at here and noted at once: of two requests that come together neither would see the other before.
        if container in self._busy:
            raise FailedPrecondition(f"container {container} is being checkpointed to {self._busy[container]}")
        self._busy[container] = str(plan.location)
        try:
            await asyncio.to_thread(self._maker.make, plan, driver)
        except (FailedPrecondition, Internal):
            # What fails because the container has ended or was removed meanwhile is no defect.
            self._state.running_container(container)
            raise
        finally:
            del self._busy[container]


class CheckpointMaker(FrozenStruct, kw_only=True):
    """The blocking part. ``criu`` is a program's path or name."""

    layout: Layout
    cgroups: Cgroups
    criu: str

    def make(self, plan: CheckpointPlan, driver: Driver) -> None:
        """Make a checkpoint; nothing is left of one that fails."""
        criu = spawn.find(self.criu, os.environ.get("PATH"))
        if criu is None:
            raise Unimplemented(
                f"CheckpointContainer: {self.criu} is not there", hint="install CRIU, or set runtime.criu to its path"
            )
        work = self.layout.container_data(plan.container.id) / "checkpoint"
        # Written beside its place and renamed at the end: who looks there never finds half an archive.
        partial = plan.location.with_name(f".{plan.location.name}.partial")
        try:
            # What a killed daemon has left of an earlier one.
            remove_tree(work)
            # The container's directory is not made again: RemoveContainer may have just removed it.
            work.mkdir(mode=0o700)
            (work / "checkpoint").mkdir(mode=0o700)
            self._dump(plan, driver, work, Path(criu))
            self._describe(plan, driver, work)
            _archive(work, partial)
            partial.rename(plan.location)
        except OSError as error:
            raise refused(f"checkpoint of container {plan.container.id}", error) from error
        finally:
            with suppress(OSError):  # such a path is refused above, and nothing is there
                partial.unlink(missing_ok=True)
            remove_tree(work)
            # An OCI runtime makes the directory again by itself. That of a container has its layer and is not empty.
            with suppress(OSError):
                work.parent.rmdir()

    def _dump(self, plan: CheckpointPlan, driver: Driver, work: Path, criu: Path) -> None:
        images = work / "checkpoint"
        argv = driver.checkpoint_command(plan.container.id, images=images, work=work)
        # OCI runtimes look for CRIU in their path.
        path = f"{criu.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        with subprocess.Popen(
            argv,
            env={"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # A group of its own: a timeout has to kill CRIU as well, which is a child of the OCI runtime.
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(timeout=plan.timeout)
            except subprocess.TimeoutExpired as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                self._thaw(plan)
                raise DeadlineExceeded(
                    f"the checkpoint of container {plan.container.id} took longer than {plan.timeout:g} s",
                    hint="the container runs on; give it more time",
                ) from error
        if process.returncode != 0:
            self._thaw(plan)
            raise _dump_error(plan, driver, said.decode(errors="replace"), work / "dump.log")

    def _thaw(self, plan: CheckpointPlan) -> None:
        """Let the container run on: an OCI runtime that was killed half-way has left it frozen."""
        cgroup = container_cgroup(plan.sandbox.config.cgroup_parent, plan.sandbox.id, plan.container.id)
        name, text = ("cgroup.freeze", "0") if self.cgroups.version == 2 else ("freezer.state", "THAWED")
        with suppress(KernelCallError):
            self.cgroups.write(cgroup, name, text)

    def _describe(self, plan: CheckpointPlan, driver: Driver, work: Path) -> None:
        container = plan.container
        config = {
            "id": container.id,
            "name": container.config.name,
            "rootfsImage": container.config.user_specified_image or container.config.image,
            "rootfsImageRef": container.image_id,
            "rootfsImageName": container.config.image,
            "runtime": driver.handler.name,
            "createdTime": _time(container.status.created_at),
            "checkpointedTime": datetime.now(UTC).isoformat(),
            "restored": False,
        }
        (work / "config.dump").write_text(json.dumps(config))
        shutil.copyfile(self.layout.bundle(container.id) / "config.json", work / "spec.dump")
        (work / "status.dump").write_bytes(msgspec.json.encode(container))
        log = log_file(plan.sandbox, container.config)
        if log is not None:
            with suppress(FileNotFoundError, FailedPrecondition):
                _copy_log(log, work / "container.log")
        deleted = write_layer(
            self.layout.writable_layer(container.id),
            work / "rootfs-diff.tar",
            plan.sandbox.config.namespaces.userns,
        )
        (work / "deleted.files").write_text(json.dumps(deleted))


def write_layer(upper: Path, target: Path, idmap: IdMap | None) -> list[str]:
    """Write the upper directory of an overlay as a tar, with the container's own IDs; return what it hides.

    What an overlay notes as deleted (a device 0/0; kernel, overlayfs.rst, whiteouts) is no file of the container. The
    container runs on and may change all of it meanwhile: a file is written with the size that it has when it is opened,
    and what is replaced by something else in between is left out.

    :raises ResourceExhausted: if the layer takes more than half of the free space where ``target`` is, with all holes
        of its files filled, or is larger than a walk goes.
    """
    with openat.closing(openat.open_directory(upper)) as root, _private(target) as file:
        free = os.fstatvfs(file.fileno())
        # Half of it, because all is copied once more, into the archive.
        writer = _LayerWriter(file, idmap, free.f_bavail * free.f_frsize // 2)
        for found in openat.walk(root):
            writer.add(found)
        file.write(bytes(2 * _BLOCK_BYTES))  # what ends a tar
    return sorted(writer.deleted)


class _LayerWriter:
    """``tarfile.TarFile`` would remember every entry."""

    def __init__(self, file: IO[bytes], idmap: IdMap | None, budget: int) -> None:
        self.deleted: list[str] = []
        self._file, self._idmap, self._left, self._remembered = file, idmap, budget, 0
        self._linked: dict[tuple[int, int], str] = {}
        """Device and inode of a file with several names to the first of them."""

    def add(self, found: Found) -> None:
        """Write one file or directory, whatever it is by now."""
        import tarfile  # here and not above, as in _archive: a daemon that makes no checkpoints does without

        if stat.S_ISREG(found.status.st_mode):
            # The container runs on: since the walk it may have put a link, a device or a mount in the file's place.
            fd = openat.open_regular(found.directory, found.name, rules=openat.CONFINED | Resolve.NO_XDEV)
            if fd is not None:
                with openat.closing(fd):
                    self._add_file(found.path, fd)
            return
        item = self._item(found.path, found.status)
        if stat.S_ISDIR(found.status.st_mode):
            item.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.status.st_mode):
            item.type = tarfile.SYMTYPE
            try:
                item.linkname = os.readlink(found.name, dir_fd=found.directory)
            except OSError:
                return
        elif stat.S_ISFIFO(found.status.st_mode):
            item.type = tarfile.FIFOTYPE
        elif stat.S_ISCHR(found.status.st_mode) or stat.S_ISBLK(found.status.st_mode):
            if stat.S_ISCHR(found.status.st_mode) and found.status.st_rdev == 0:
                self._remember(item.name)
                self.deleted.append(item.name)
                return
            item.type = tarfile.CHRTYPE if stat.S_ISCHR(found.status.st_mode) else tarfile.BLKTYPE
            item.devmajor, item.devminor = os.major(found.status.st_rdev), os.minor(found.status.st_rdev)
        else:
            return  # nobody would listen on a socket
        self._write(item, None)

    def _add_file(self, path: str, fd: int) -> None:
        import tarfile

        status = os.fstat(fd)
        item = self._item(path, status)
        if status.st_nlink > 1:
            first = self._linked.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                item.type, item.linkname = tarfile.LNKTYPE, first
                self._write(item, None)
                return
            self._remember(path)
        item.size = status.st_size
        self._write(item, fd)

    def _item(self, path: str, status: os.stat_result) -> tarfile.TarInfo:
        import tarfile

        item = tarfile.TarInfo(path)
        item.mode, item.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
        item.uid, item.gid = status.st_uid, status.st_gid
        if self._idmap is not None:
            item.uid, item.gid = self._idmap.container_uid(item.uid), self._idmap.container_gid(item.gid)
        return item

    def _write(self, item: tarfile.TarInfo, fd: int | None) -> None:
        self._left -= item.size + _HEADER_BYTES + 2 * len(item.name) + 2 * len(item.linkname)
        if self._left < 0:
            raise ResourceExhausted(
                f"the writable layer of the container does not fit on the disk with {item.name[:200]!r}",
                hint="free space where runtime.root is; a checkpoint needs twice what the container has written",
            )
        # A container may give its files names that are no UTF-8.
        self._file.write(item.tobuf(errors="surrogateescape"))
        if fd is None:
            return
        for start in range(0, item.size, _PIECE):
            size = min(_PIECE, item.size - start)
            # Zeros where the file has become shorter meanwhile.
            self._file.write(openat.read_bytes(fd, size).ljust(size, b"\0"))
        self._file.write(bytes(-item.size % _BLOCK_BYTES))

    def _remember(self, path: str) -> None:
        self._remembered += len(path) + _HEADER_BYTES
        if self._remembered > _MAX_REMEMBERED:
            raise ResourceExhausted("the container has deleted, or given several names to, too many files")


def _copy_log(log: LogFile, target: Path) -> None:
    """Copy a log as far as it is written now; it is left out if it is no regular file, or a link leads there."""
    with openat.closing(log.open_directory()) as directory:
        fd = openat.open_regular(directory, log.name)
    if fd is None:
        return
    with openat.closing(fd), _private(target) as file:
        left = os.fstat(fd).st_size
        while left > 0 and (piece := openat.read_bytes(fd, min(left, _PIECE))):
            file.write(piece)
            left -= len(piece)


def _archive(work: Path, target: Path) -> None:
    import tarfile

    with _private(target) as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for path in sorted(work.iterdir()):
                tar.add(path, arcname=path.name)
        file.flush()
        # Before the rename in CheckpointMaker.make: after a power loss a file of that name has to be whole.
        os.fsync(file.fileno())


def _private(path: Path) -> IO[bytes]:
    """Open a new file for root alone: it holds a process's memory."""
    # With O_EXCL no link is followed that somebody has put there: the place is a client's.
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _dump_error(
    plan: CheckpointPlan, driver: Driver, said: str, log: Path
) -> Unimplemented | Internal | ResourceExhausted:
    words = " ".join(said.split()) or "it said nothing"
    if any(text in said for text in _WITHOUT_CRIU):
        return Unimplemented(
            f"CheckpointContainer: the OCI runtime {driver.handler.path} was built without CRIU: {words}",
            hint="use a runtime handler with one that was built with it, for example runc",
        )
    fd = openat.open_beside(log)
    lines = []
    if fd is not None:
        with openat.closing(fd):
            os.lseek(fd, max(0, os.fstat(fd).st_size - _PIECE), os.SEEK_SET)
            told = openat.read_bytes(fd, _PIECE).decode(errors="replace")
        lines = [line for line in told.splitlines() if "Error" in line]
    criu = f"; CRIU: {'; '.join(lines[-3:])}" if lines else ""
    return Internal(
        f"checkpoint of container {plan.container.id} failed: {words[-1000:]}{criu}",
        hint="`criu check` says what this kernel lacks; the container runs on",
    )


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat()
