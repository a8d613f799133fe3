"""Setting the house in order after the previous daemon ended, however it ended.

Owns: comparing the records with the machine, once, before requests are served. Runs without an event loop; blocks.
What a container may have filled is only moved aside (``leftovers.py``), and removed while requests are served.

    record says            found                        done
    CREATING, REMOVING     anything                     undone to the end, record deleted
    sandbox READY          its namespaces are gone      rest removed, NOTREADY (a reboot, or a kill in StopPodSandbox)
      NOTREADY             something is left of it      rest removed
    container CREATED,     its processes live           watched again
      RUNNING              dead, exit code noted        EXITED with that code
                           dead, nothing noted          EXITED, ContainerStatusUnknown
    another boot           anything                     every process is gone, no sandbox is whole
    none                   a directory                  removed (a power loss took the record)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.kernel.cgroup.cgroups import Cgroups
from podkeep.kernel.process import procfs
from podkeep.runtime.bundle.leftovers import Leftovers
from podkeep.runtime.cgroup_driver.pod_cgroups import limited
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.class_resources.targets import container_target, sandbox_target
from podkeep.runtime.lifecycle import orphans, updates
from podkeep.runtime.lifecycle.container_executor import ContainerExecutor
from podkeep.runtime.lifecycle.containers import ended_status, note_oom_kills, without_classes
from podkeep.runtime.lifecycle.handlers import HandlerTable
from podkeep.runtime.lifecycle.sandbox_executor import SandboxExecutor
from podkeep.runtime.lifecycle.sandboxes import ended_sandbox
from podkeep.runtime.lifecycle.strays import kill_strays
from podkeep.runtime.model.layout import Layout, container_cgroup, sandbox_cgroup
from podkeep.runtime.model.records import Container, ContainerState, NamespaceMode, Sandbox, SandboxState
from podkeep.runtime.model.state import State

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""How long undoing sandboxes may take before the rest is left to the client: with many pods and a CNI plugin that waits
for a controller which is not there, the daemon would not start for hours.
"""


class Recovery(FrozenStruct, kw_only=True):
    """One pass over the records."""

    state: State
    layout: Layout
    handlers: HandlerTable
    cgroups: Cgroups
    classes: ClassResources
    sandboxes: SandboxExecutor
    containers: ContainerExecutor
    leftovers: Leftovers
    deadline: float = msgspec.field(default_factory=lambda: time.monotonic() + TIMEOUT_S)
    """When what takes long is left to the client (``time.monotonic``)."""

    def start_classes(self) -> None:
        """Put the configuration of class resources into force, also for those that are in a class; before :meth:`run`.

        :raises PodkeepError: if it cannot be.
        """
        used: list[dict[str, str]] = []
        for sandbox in self.state.sandboxes():
            used += (sandbox.status.class_resources, sandbox.status.class_change)
        for container in self.state.containers():
            used += (container.status.class_resources, container.status.class_change)
        self.classes.start(used)

    def run(self) -> None:
        """Bring records and machine together. What cannot be removed stays recorded, for RemovePodSandbox to retry.

        Whatever goes wrong with one record, the daemon serves the others.
        """
        boot = procfs.boot_id()
        rebooted = self.state.boot not in ("", boot)
        if rebooted:
            log.info("the machine was rebooted: no process and no namespace is left from before")
            self._forget_processes()
        for sandbox in self.state.sandboxes():
            # Half made or half removed: its containers go with it, and need no look of their own.
            if not sandbox.status.state.shown:
                _attempt(f"sandbox {sandbox.id}", partial(self._finish_sandbox, sandbox))
        for container in self.state.containers():
            # Before the sandboxes: the cgroup of one that is stopped goes only when its containers are out of their
            # classes.
            _attempt(f"container {container.id}", partial(self._check_container, container))
        for sandbox in self.state.sandboxes():
            _attempt(f"sandbox {sandbox.id}", partial(self._check_sandbox, sandbox, rebooted=rebooted))
        # Only now: what was undone above is no user of a copy any more, and its directories have no record.
        used = [item.id for item in self.state.containers()]
        recover = partial(self.containers.layers.trees.recover, used, remove=self.leftovers.put_aside)
        _attempt("copies of images for user namespaces", recover)
        _attempt("directories without a record", self._sweep)
        # Last, so that a daemon that is killed before it is done sees the reboot again.
        if self.state.boot != boot:
            self.state.note_boot(boot)

    def _forget_processes(self) -> None:
        """Drop what named processes and cgroups of the last boot: the numbers are others' now, the cgroups may be."""
        for sandbox in self.state.sandboxes():
            status = msgspec.structs.replace(sandbox.status, infra=None, made_cgroups=(), oom_kills=0)
            self.state.set_sandbox(sandbox.id, status, ending=True)
        for container in self.state.containers():
            ended = container.status
            if ended.state.lives:
                # Its cgroup was of the last boot, too.
                ended = ended_status(container, self.layout, 0, why_unknown="the machine was rebooted before it ended")
            ended = msgspec.structs.replace(ended, process=None, monitor=None)
            self.state.set_container(container.id, ended, ending=True)

    def _check_container(self, container: Container) -> None:
        if container.status.update_undo:
            container = self._take_back_update(container)
        if not container.status.state.shown:
            self._finish_container(container)
        elif container.status.state.lives:
            if not _lives(container):
                self._note_end(container)
            elif container.status.held_classes:
                self._in_time(f"container {container.id}", partial(self._restore_classes, container))
        elif container.status.held_classes:
            self._release_classes(container)

    def _restore_classes(self, container: Container) -> None:
        """Put a container into the classes of its record: a change may have been under way, or they mean else now."""
        status = container.status
        target = container_target(self.cgroups, self.state.sandbox(container.sandbox_id), container)
        held = self.classes.restore(target, status.class_resources, status.class_change)
        if status.class_change:
            status = msgspec.structs.replace(status, class_change={}, class_resources=held)
            self.state.set_container(container.id, status)

    def _release_classes(self, container: Container) -> None:
        self.containers.release_classes(container, self.state.sandbox(container.sandbox_id))
        self.state.set_container(container.id, without_classes(container.status), ending=True)

    def _take_back_update(self, container: Container) -> Container:
        """Give a container the limits it had before an update that was not finished."""
        sandbox = self.state.sandbox(container.sandbox_id)
        cgroup = container_cgroup(sandbox.config.cgroup_parent, sandbox.id, container.id)
        if self.cgroups.exists(cgroup):
            log.info("taking back an unfinished update of container %s", container.id)
            if container.status.class_change and _lives(container):
                # The last thing done is the first to be undone: a class may have found a limit of the update in its
                # file. Afterwards the classes are looked at again: they may mean something else by now.
                _attempt(f"container {container.id}", partial(self._restore_classes, container))
            where = limited(self.cgroups, cgroup)
            updates.roll_back(self.cgroups, where, container.status.update_undo)
        status = msgspec.structs.replace(self.state.container(container.id).status, update_undo=())
        return self.state.set_container(container.id, status, ending=True)

    def _check_sandbox(self, sandbox: Sandbox, *, rebooted: bool) -> None:
        if sandbox.status.update_undo:
            sandbox = self._take_back_update_of_pod(sandbox)
        ready = sandbox.status.state is SandboxState.READY
        if ready and not rebooted and self.sandboxes.is_whole(sandbox):
            if sandbox.status.held_classes:
                self._in_time(f"sandbox {sandbox.id}", partial(self._restore_classes_of_pod, sandbox))
        elif not self.sandboxes.is_stopped(sandbox):
            self._stop_sandbox(sandbox)

    def _take_back_update_of_pod(self, sandbox: Sandbox) -> Sandbox:
        """Give a sandbox the limits it had before an update that was not finished; it changed no class."""
        cgroup = sandbox_cgroup(sandbox.config.cgroup_parent, sandbox.id)
        if self.cgroups.exists(cgroup):
            log.info("taking back an unfinished update of sandbox %s", sandbox.id)
            updates.roll_back(self.cgroups, cgroup, sandbox.status.update_undo)
        return self.state.set_sandbox(sandbox.id, msgspec.structs.replace(sandbox.status, update_undo=()), ending=True)

    def _restore_classes_of_pod(self, sandbox: Sandbox) -> None:
        status = sandbox.status
        held = self.classes.restore(sandbox_target(sandbox), status.class_resources, status.class_change)
        if status.class_change:
            status = msgspec.structs.replace(status, class_change={}, class_resources=held)
            self.state.set_sandbox(sandbox.id, status)

    def _sweep(self) -> None:
        known = {*(item.id for item in self.state.sandboxes()), *(item.id for item in self.state.containers())}
        for path in orphans.orphans(self.layout, known):
            log.info("removing %s, which no record names", path)
            _attempt(f"{path}, which no record names", partial(self._remove_orphan, path))

    def _remove_orphan(self, path: Path) -> None:
        orphans.remove_orphan(path, remove=self.leftovers.put_aside)

    def _note_end(self, container: Container) -> None:
        status = ended_status(container, self.layout, note_oom_kills(self.state, self.containers, container))
        container = self.state.set_container(container.id, status, ending=True)
        if container.config.namespaces.pid is not NamespaceMode.CONTAINER:
            # Its first process was no init: the others did not end with it.
            self.containers.kill_rest(container, self.state.sandbox(container.sandbox_id))
        if container.status.held_classes:
            self._release_classes(container)

    def _finish_sandbox(self, sandbox: Sandbox) -> None:
        log.info("cleaning up sandbox %s, which was %s", sandbox.id, sandbox.status.state.value)
        for container in self.state.containers(sandbox.id):
            self._finish_container(container)
        if self._in_time(f"sandbox {sandbox.id}", partial(self._undo_sandbox, sandbox)):
            self.state.forget_sandbox(sandbox.id)
        else:
            status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
            self.state.set_sandbox(sandbox.id, status, ending=True)

    def _in_time(self, what: str, step: Callable[[], object]) -> bool:
        if time.monotonic() < self.deadline:
            return _attempt(what, step)
        log.warning("%s is left as it is, because the others took too long; stop or remove it", what)
        return False

    def _undo_sandbox(self, sandbox: Sandbox) -> None:
        if left := self.state.containers(sandbox.id):
            raise FailedPrecondition(f"{len(left)} of its containers could not be removed")
        driver = self.handlers.driver(sandbox.config.handler)
        # Before the removal: an OCI runtime that is still at work would make the cgroup anew.
        kill_strays(driver, sandbox.id)
        self.sandboxes.remove(sandbox, driver)

    def _finish_container(self, container: Container) -> None:
        log.info("cleaning up container %s, which was %s", container.id, container.status.state.value)
        if _attempt(f"container {container.id}", partial(self._undo_container, container)):
            self.state.forget_container(container.id)
        else:
            status = msgspec.structs.replace(container.status, state=ContainerState.EXITED, reason="Error")
            self.state.set_container(container.id, status, ending=True)

    def _undo_container(self, container: Container) -> None:
        sandbox = self.state.sandbox(container.sandbox_id)
        driver = self.handlers.driver(sandbox.config.handler)
        kill_strays(driver, container.id)
        self.containers.kill_rest(container, sandbox)
        self.containers.remove(container, sandbox, driver, remove=self.leftovers.put_aside)

    def _stop_sandbox(self, sandbox: Sandbox) -> None:
        log.info("sandbox %s lacks a part of what it was made of: it is stopped", sandbox.id)
        status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
        stopped = self._in_time(f"sandbox {sandbox.id}", partial(self._stop, sandbox))
        if stopped:
            status = ended_sandbox(status)
        self.state.set_sandbox(sandbox.id, status, ending=True)
        if stopped:
            # Only now: another sandbox with this address would share it with what could not be stopped.
            self.state.free_address(sandbox.id)

    def _stop(self, sandbox: Sandbox) -> None:
        self.sandboxes.stop(sandbox, self.handlers.driver(sandbox.config.handler))


def _attempt(what: str, step: Callable[[], object]) -> bool:
    """Take a step for one record and return whether it succeeded; a failure is logged and keeps nobody else waiting."""
    try:
        step()
    except Exception as error:
        # One record must not keep the daemon from serving the others.
        expected = isinstance(error, PodkeepError | OSError)
        log.warning("%s: %s", what, error or type(error).__name__, exc_info=None if expected else error)
        return False
    return True


def _lives(container: Container) -> bool:
    processes = (container.status.monitor, container.status.process)
    return any(process is not None and procfs.alive(process) for process in processes)
