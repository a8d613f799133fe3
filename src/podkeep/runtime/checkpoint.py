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
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from podkeep.base.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KernelCallError,
    ResourceExhausted,
    Unimplemented,
)
from podkeep.base.ids import ContainerID
from podkeep.base.singleflight import SingleFlight
from podkeep.kernel.cgroups import Cgroups
from podkeep.kernel.idmap import IdMap
from podkeep.kernel.removal import remove_tree
from podkeep.runtime.container_log import log_file
from podkeep.runtime.layout import Layout, container_cgroup
from podkeep.runtime.oci.driver import Driver
from podkeep.runtime.records import Container, ContainerState, Sandbox
from podkeep.runtime.sandboxes import Sandboxes, refusal
from podkeep.runtime.state import State

if TYPE_CHECKING:
    import tarfile

DEFAULT_TIMEOUT_S = 120.0
"""For requests that name no time, as the kubelet's client waits."""
_WITHOUT_CRIU = ("without CRIU", "checkpoint and restore not supported", "No such command", "unknown command")


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """One checkpoint to be made. ``timeout`` in seconds for the part in which the container stands still."""

    container: Container
    sandbox: Sandbox
    location: Path
    timeout: float


class Checkpoints:
    """The checkpoints of one runtime; one at a time for each container."""

    def __init__(self, state: State, sandboxes: Sandboxes, layout: Layout, cgroups: Cgroups, criu: str) -> None:
        self._state = state
        self._sandboxes = sandboxes
        self._maker = CheckpointMaker(layout=layout, cgroups=cgroups, criu=criu)
        self._running: SingleFlight[None] = SingleFlight()
        self._busy: dict[ContainerID, str] = {}

    async def make(self, text: str, location: str, timeout: float) -> None:
        """Write a checkpoint of a running container to a new archive at ``location``.

        :param timeout: seconds; 0: 120.
        :raises NotFound: if there is no such container.
        :raises FailedPrecondition: if it does not run, or is being checkpointed to somewhere else.
        :raises InvalidArgument: if ``location`` is no place for a file.
        :raises Unimplemented: naming what is missing, if this machine cannot checkpoint.
        :raises DeadlineExceeded: if it took too long; the container runs on.
        """
        container = self._state.container(text)
        if container.status.state is not ContainerState.RUNNING:
            raise FailedPrecondition(f"container {container.id} is {container.status.state.value}, not running")
        if not os.path.isabs(location) or "\0" in location or location.endswith("/"):
            raise InvalidArgument(f"location: {location[:200]!r} is not the absolute path of a file")
        if self._busy.get(container.id, location) != location:
            raise FailedPrecondition(f"container {container.id} is being checkpointed to {self._busy[container.id]}")
        sandbox = self._state.sandbox(container.sandbox_id)
        plan = CheckpointPlan(
            container=container, sandbox=sandbox, location=Path(location), timeout=timeout or DEFAULT_TIMEOUT_S
        )
        await self._running.do((container.id, location), lambda: self._make(plan, self._sandboxes.driver(sandbox)))

    async def _make(self, plan: CheckpointPlan, driver: Driver) -> None:
        self._busy[plan.container.id] = str(plan.location)
        try:
            await asyncio.to_thread(self._maker.make, plan, driver)
        finally:
            del self._busy[plan.container.id]


@dataclass(frozen=True, kw_only=True)
class CheckpointMaker:
    """The blocking part. ``criu`` is a program's path or name."""

    layout: Layout
    cgroups: Cgroups
    criu: str

    def make(self, plan: CheckpointPlan, driver: Driver) -> None:
        """Make a checkpoint; nothing is left of one that fails."""
        criu = shutil.which(self.criu)
        if criu is None:
            raise Unimplemented(
                f"CheckpointContainer: {self.criu} is not there", hint="install CRIU, or set runtime.criu to its path"
            )
        work = self.layout.container_data(plan.container.id) / "checkpoint"
        partial = plan.location.with_name(f".{plan.location.name}.partial")
        try:
            remove_tree(work)
            (work / "checkpoint").mkdir(mode=0o700, parents=True)
            self._dump(plan, driver, work, Path(criu))
            self._describe(plan, driver, work)
            _archive(work, partial)
            partial.rename(plan.location)
        except OSError as error:
            raise refusal(f"checkpoint of container {plan.container.id}", error) from error
        finally:
            partial.unlink(missing_ok=True)
            remove_tree(work)

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
        """Let the container run on; who was killed in the middle has frozen it."""
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
        if log is not None and log.exists():
            shutil.copyfile(log, work / "container.log")
        deleted = write_layer(
            self.layout.writable_layer(container.id),
            work / "rootfs-diff.tar",
            plan.sandbox.config.namespaces.userns,
        )
        (work / "deleted.files").write_text(json.dumps(deleted))


def write_layer(upper: Path, target: Path, idmap: IdMap | None) -> list[str]:
    """Write the upper directory of an overlay as a tar, with the container's own IDs; return what it hides.

    What an overlay notes as deleted (a device 0/0; kernel, overlayfs.rst, whiteouts) is no file of the container.
    """
    import tarfile  # here and not above, as in _archive: a daemon that makes no checkpoints does without

    deleted: list[str] = []

    def chosen(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if item.ischr() and (item.devmajor, item.devminor) == (0, 0):
            deleted.append(item.name)
            return None
        if idmap is not None:
            item.uid, item.gid = idmap.container_uid(item.uid), idmap.container_gid(item.gid)
        item.uname = item.gname = ""
        return item

    with _private(target) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(upper.iterdir()):
            tar.add(path, arcname=path.name, filter=chosen)
    return sorted(deleted)


def _archive(work: Path, target: Path) -> None:
    import tarfile

    with _private(target) as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for path in sorted(work.iterdir()):
                tar.add(path, arcname=path.name)
        file.flush()
        os.fsync(file.fileno())


def _private(path: Path) -> IO[bytes]:
    """Open a new file for root alone: it holds a process's memory."""
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
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    except OSError:
        lines = []
    criu = f"; CRIU: {'; '.join(lines[-3:])}" if lines else ""
    return Internal(
        f"checkpoint of container {plan.container.id} failed: {words[-1000:]}{criu}",
        hint="`criu check` says what this kernel lacks; the container runs on",
    )


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat()
