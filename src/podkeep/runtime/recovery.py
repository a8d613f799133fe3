"""Setting the house in order after the previous daemon ended, however it ended.

Owns: comparing the records with the machine, once, before requests are served. Runs without an event loop; blocks.

    record says            found                        done
    CREATING, REMOVING     anything                     undone to the end, record deleted
    sandbox READY          its namespaces are gone      rest removed, NOTREADY (a reboot, or a kill in StopPodSandbox)
    container CREATED,     its processes live           watched again
      RUNNING              dead, exit code noted        EXITED with that code
                           dead, nothing noted          EXITED, ContainerStatusUnknown
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec

from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.kernel import procfs
from podkeep.runtime.container_executor import ContainerExecutor
from podkeep.runtime.containers import LIVE_STATES, ended_status
from podkeep.runtime.handlers import HandlerTable
from podkeep.runtime.layout import Layout
from podkeep.runtime.records import Container, ContainerState, NamespaceMode, Sandbox, SandboxState
from podkeep.runtime.sandbox_executor import SandboxExecutor
from podkeep.runtime.state import State

log = logging.getLogger(__name__)

_HALF_CONTAINER = frozenset({ContainerState.CREATING, ContainerState.REMOVING})
_HALF_SANDBOX = frozenset({SandboxState.CREATING, SandboxState.REMOVING})


class Recovery:
    """One pass over the records."""

    def __init__(
        self,
        state: State,
        layout: Layout,
        handlers: HandlerTable,
        sandboxes: SandboxExecutor,
        containers: ContainerExecutor,
    ) -> None:
        self._state = state
        self._layout = layout
        self._handlers = handlers
        self._sandboxes = sandboxes
        self._containers = containers

    def run(self) -> None:
        """Bring records and machine together. What cannot be removed stays recorded, for RemovePodSandbox to retry."""
        for sandbox in self._state.sandboxes():
            if sandbox.status.state in _HALF_SANDBOX:
                self._finish_sandbox(sandbox)
        for container in self._state.containers():
            if container.status.state in _HALF_CONTAINER:
                self._finish_container(container)
            elif container.status.state in LIVE_STATES and not _lives(container):
                self._note_end(container)
        for sandbox in self._state.sandboxes():
            if sandbox.status.state is SandboxState.READY and not self._sandboxes.is_whole(sandbox):
                self._stop_sandbox(sandbox)

    def _note_end(self, container: Container) -> None:
        self._state.set_container(container.id, ended_status(container, self._layout))
        if container.config.namespaces.pid is NamespaceMode.CONTAINER:
            return
        # Its first process was no init: the others did not end with it.
        try:
            self._containers.kill_rest(container, self._state.sandbox(container.sandbox_id))
        except PodkeepError as error:
            log.warning("container %s: %s", container.id, error)

    def _finish_sandbox(self, sandbox: Sandbox) -> None:
        log.info("cleaning up sandbox %s, which was %s", sandbox.id, sandbox.status.state.value)
        for container in self._state.containers(sandbox.id):
            self._finish_container(container)
        try:
            self._kill_strays(sandbox, sandbox.id)
            if left := self._state.containers(sandbox.id):
                raise FailedPrecondition(f"{len(left)} of its containers could not be removed")
            self._sandboxes.remove(sandbox, self._handlers.driver(sandbox.config.handler))
        except (PodkeepError, OSError) as error:
            log.warning("sandbox %s: %s", sandbox.id, error)
            status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY)
            self._state.set_sandbox(sandbox.id, status)
        else:
            self._state.forget_sandbox(sandbox.id)

    def _finish_container(self, container: Container) -> None:
        log.info("cleaning up container %s, which was %s", container.id, container.status.state.value)
        sandbox = self._state.sandbox(container.sandbox_id)
        try:
            self._kill_strays(sandbox, container.id)
            self._containers.kill_rest(container, sandbox)
            self._containers.remove(container, self._handlers.driver(sandbox.config.handler))
        except (PodkeepError, OSError) as error:
            log.warning("container %s: %s", container.id, error)
            status = msgspec.structs.replace(container.status, state=ContainerState.EXITED, reason="Error")
            self._state.set_container(container.id, status)
        else:
            self._state.forget_container(container.id)

    def _stop_sandbox(self, sandbox: Sandbox) -> None:
        log.info("sandbox %s is not whole any more", sandbox.id)
        try:
            self._sandboxes.stop(sandbox, self._handlers.driver(sandbox.config.handler))
        except (PodkeepError, OSError) as error:
            log.warning("sandbox %s: %s", sandbox.id, error)
        self._state.free_address(sandbox.id)
        status = msgspec.structs.replace(sandbox.status, state=SandboxState.NOTREADY, infra=None)
        self._state.set_sandbox(sandbox.id, status)

    def _kill_strays(self, sandbox: Sandbox, text: str) -> None:
        """Kill the programs that the previous daemon started for ``text`` and that may still be at work."""
        driver = self._handlers.driver(sandbox.config.handler)
        ours = _real_paths((driver.conmon, driver.handler.path))
        for process in procfs.find_by_argument(text):
            if procfs.executable(process) in ours:
                procfs.kill(process, signal.SIGKILL)
                procfs.wait(process, 5.0)


def _lives(container: Container) -> bool:
    processes = (container.status.monitor, container.status.process)
    return any(process is not None and procfs.alive(process) for process in processes)


def _real_paths(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(str(Path(path).resolve()) for path in paths)
