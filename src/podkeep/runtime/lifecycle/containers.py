"""The life of containers: records, exits, and the order of a request's steps.

Owns: what happens to a container's record, waiting for its end. Does not own: the kernel side
(``container_executor.py``), messages (``rpc/``). Runs on the event loop; blocking steps go to threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from podkeep.base import failpoints
from podkeep.base.concurrency.singleflight import SingleFlight
from podkeep.base.concurrency.tasks import Tasks, to_its_end
from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PodkeepError,
    ResourceExhausted,
    refused,
)
from podkeep.base.ids import ContainerID, SandboxID, new_id
from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.kernel.process import procfs
from podkeep.kernel.process.procfs import ProcessId
from podkeep.runtime.bundle import container_log, image_volumes
from podkeep.runtime.bundle.container_log import LogFile, log_file
from podkeep.runtime.class_resources.model import Level
from podkeep.runtime.class_resources.registry import ClassResources
from podkeep.runtime.lifecycle.container_executor import ContainerExecutor, exit_code_of
from podkeep.runtime.lifecycle.container_plan import ContainerRequest
from podkeep.runtime.lifecycle.creations import Creations
from podkeep.runtime.lifecycle.monitor import ExitMonitor, Watched
from podkeep.runtime.lifecycle.sandboxes import Sandboxes, require_ready
from podkeep.runtime.lifecycle.strays import await_commands
from podkeep.runtime.model import stop_signal
from podkeep.runtime.model.layout import Layout
from podkeep.runtime.model.records import (
    Container,
    ContainerConfig,
    ContainerState,
    ContainerStatus,
    NamespaceMode,
    Sandbox,
)
from podkeep.runtime.model.state import State, container_key
from podkeep.runtime.oci.driver import EXEC_START_S, Allowance, ExecLimits, ExecResult

log = logging.getLogger(__name__)

UNKNOWN_EXIT_CODE = 255
START_ERROR_EXIT_CODE = 128
"""As the peers have it, for a program that never ran."""
KILL_TIMEOUT_S = 10.0
"""How long a killed container may take to end before StopContainer gives up."""
EXEC_THREADS = 4096
"""Commands of ExecSync that run at a time, others wait: all those of 64 pods. A thread is made when one is needed."""
COMMANDS_OF_POD = 64
"""Of them those of one pod. A kubelet asks for a few for each container: its probes and its hooks."""
STARTS_OF_POD = 4
"""Of them those that are being started at a time: each start keeps a CPU busy for some 10 ms, and that is the runtime's
work, not held to the pod's limits. 64 at a time kept another pod's command waiting for longer than a probe may take."""
OUTPUT_OF_POD = 32 << 20
"""Bytes of output that the commands of one pod keep together until they end."""
OUTPUT_OF_ALL = 128 << 20
"""Of those of all pods: a probe may write as much and go on. A kubelet reads 10 KiB of what one says."""


@dataclass
class PodCommands:
    """The commands of ExecSync that run in one pod, and what their output may take together."""

    output: Allowance
    starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS_OF_POD))
    running: int = 0


class Containers:
    """The containers of one runtime. Repeating a request joins the running one or finds its result."""

    def __init__(
        self,
        state: State,
        executor: ContainerExecutor,
        sandboxes: Sandboxes,
        images: ImageStore,
        classes: ClassResources,
        layout: Layout,
    ) -> None:
        self._state = state
        self._executor = executor
        self._sandboxes = sandboxes
        self._images = images
        self._classes = classes
        self._layout = layout
        self._creations = Creations()
        self._changing: SingleFlight[None] = SingleFlight()
        self._exec_threads = ThreadPoolExecutor(EXEC_THREADS, thread_name_prefix="exec")
        self._commands: dict[SandboxID, PodCommands] = {}
        self._output = Allowance(OUTPUT_OF_ALL)
        # Threads of commands wait for it in the same poll(2) as for the output of their commands.
        self._stop_execs = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._monitor = ExitMonitor(self._ended)
        self._ends: dict[ContainerID, asyncio.Event] = {}
        self._tasks = Tasks("giving back what a container had")
        self._moves = Tasks("beginning the wait of a move into a cgroup")
        self._giving_back: dict[ContainerID, asyncio.Task[None]] = {}
        self._asked_to_end: set[ContainerID] = set()
        """Those that got their stop signal."""
        # Weak: a container's lock goes with the last who waits for it.
        self._reopening: WeakValueDictionary[ContainerID, asyncio.Lock] = WeakValueDictionary()
        self._starting: set[ContainerID] = set()
        self._ended_early: set[ContainerID] = set()
        self._failed_starts: dict[ContainerID, str] = {}
        """Those that end because they could not be started, and why."""

    def watch_all(self) -> None:
        """Watch every container that has not ended; called once when the daemon starts."""
        for container in self._state.containers():
            if container.status.state.lives:
                self._watch(container)

    def close(self) -> None:
        """Stop watching, give up creations, and end the commands that ExecSync runs, which is waited for.

        Containers run on.
        """
        self._creations.give_up()
        self._monitor.close()
        os.eventfd_write(self._stop_execs, 1)
        self._exec_threads.shutdown(cancel_futures=True)
        # Only now: the threads, which have ended, waited for it.
        os.close(self._stop_execs)

    async def create(self, sandbox: Sandbox, config: ContainerConfig) -> ContainerID:
        """Create a container, or return the one that an equal request made before.

        :raises NotFound: if the image is not here.
        :raises AlreadyExists: if a different container has this name.
        :raises Cancelled: if its sandbox is stopped meanwhile, or its callers left and did not come back.
        :raises PodkeepError: if it cannot be made; nothing is left.
        """
        key = container_key(sandbox.id, config)
        container_id = await self._creations.do(key, sandbox.id, partial(self._create, key, sandbox.id, config))
        if self._state.container(container_id).config != config:
            # It joined the making of another container.
            raise _name_taken(key, container_id)
        return container_id

    def is_virtual_machine(self, sandbox: Sandbox) -> bool:
        """Return whether a sandbox is a virtual machine, made without a user namespace."""
        without = sandbox.config.namespaces.userns is None
        return without and self._sandboxes.is_virtual_machine(sandbox.config.handler)

    def give_up(self, sandbox_id: SandboxID) -> None:
        self._creations.give_up(sandbox_id)

    async def _create(
        self, key: str, sandbox_id: SandboxID, config: ContainerConfig, given_up: threading.Event
    ) -> ContainerID:
        # The end of a sandbox holds it, too: nothing is made in one that is being stopped.
        async with self._sandboxes.lock(sandbox_id):
            # A stop sets it before it waits for the lock, so creations that are in the queue before it do not begin.
            if given_up.is_set():
                raise Cancelled(f"the creation of container {key} was given up before it began")
            sandbox = self._state.sandbox(sandbox_id)
            require_ready(sandbox)
            if any(mount.idmap is not None for mount in config.mounts):
                self._sandboxes.require_idmap(sandbox)
            if any(mount.recursive_read_only for mount in config.mounts):
                self._sandboxes.require_recursive_read_only(sandbox)
            existing = self._state.container_by_key(key)
            if existing is not None:
                if existing.config == config and existing.status.state is ContainerState.CREATED:
                    return existing.id
                raise _name_taken(key, existing.id)
            image = self._image(config.image)
            volume_images = image_volumes.find_images(config, self._images.find)
            classes = self._classes.catalog.resolve(Level.CONTAINER, config.class_resources)
            container = Container(
                id=ContainerID(new_id()),
                sandbox_id=sandbox_id,
                config=config,
                image_id=image.id,
                image_ref=image.repo_digests[0] if image.repo_digests else image.id,
                image_name=image.name_for(config.user_specified_image, config.image),
                volume_images={number: found.id for number, found in volume_images.items()},
                image_stop_signal=image.stop_signal,
                status=ContainerStatus(
                    state=ContainerState.CREATING, created_at=time.time_ns(), class_resources=classes
                ),
            )
            request = ContainerRequest(
                container=container,
                sandbox=sandbox,
                image=image,
                log=log_file(sandbox, config),
                target=self._target(sandbox, config),
                volume_images=volume_images,
                given_up=given_up,
            )
            # The record comes before all that it names, so that a daemon that is killed meanwhile leaves nothing
            # unknown.
            self._state.add_container(container)
            return await self._make(request)

    async def _make(self, request: ContainerRequest) -> ContainerID:
        container, driver = request.container, self._sandboxes.driver(request.sandbox)
        # A first write to cgroup.procs waits some 8 ms for an RCU grace period, unless favordynmods is in force; it
        # passes while the container is prepared.
        self._moves.start(self._expect_move())
        try:
            if request.target is not None:
                # Those that are begun from now on find the record.
                target = self._state.container(container.config.namespaces.target_id)
                await asyncio.to_thread(await_commands, driver, target.id, request.target)
            made = await asyncio.to_thread(self._executor.create, request, driver)
            status = msgspec.structs.replace(
                container.status,
                state=ContainerState.CREATED,
                process=made.created.process,
                monitor=made.created.monitor,
                user=(made.user.uid, made.user.gid, made.user.groups),
                remap_seconds=made.remap_seconds,
            )
            created = self._state.set_container(container.id, status)
        except Exception as error:
            # Whatever it was, the record must not outlive it. The executor undid its work; doing it once more finds
            # what its undo could not remove.
            try:
                await asyncio.to_thread(self._executor.remove, container, request.sandbox, driver)
            except (PodkeepError, OSError) as left:
                # It stays recorded, so that RemoveContainer or the next start can finish.
                log.warning("container %s could not be undone: %s", container.id, left)
                status = msgspec.structs.replace(
                    container.status, state=ContainerState.EXITED, reason="Error", message=str(error)
                )
                self._state.set_container(container.id, status, ending=True)
            else:
                await self._forget(container.id)
            if isinstance(error, OSError):
                raise refused(f"container {container.config.name!r}", error) from error
            raise
        self._watch(created)
        return container.id

    async def _expect_move(self) -> None:
        """Begin what the OCI runtime would have to wait for when it moves a process into a cgroup."""
        try:
            await asyncio.to_thread(self._executor.expect_move)
        except OSError as error:
            log.debug("the OCI runtime has to wait for its move into a cgroup: %s", error)

    def _image(self, reference: str) -> Image:
        image = self._images.find(reference)
        if image is None:
            raise NotFound(f"image {reference!r} is not here", hint="pull it: `podkeep image pull IMAGE`")
        if image.kind == "artifact":
            raise FailedPrecondition(
                f"{reference!r} is an artifact of type {image.artifact_type!r}, and no image that containers can run",
                hint="mount it as an image volume; an image's configuration has the diff_ids of its layers",
            )
        if image.unusable:
            raise FailedPrecondition(
                f"no container can be made of image {reference!r}: {image.unusable}",
                hint="build it again without that; `podkeep image rm` removes this one",
            )
        return image

    def _target(self, sandbox: Sandbox, config: ContainerConfig) -> ProcessId | None:
        options = config.namespaces
        if options.pid is not NamespaceMode.TARGET:
            return None
        target = self._state.container(options.target_id)
        if target.sandbox_id != sandbox.id or target.status.state is not ContainerState.RUNNING:
            raise InvalidArgument(f"namespace_options.target_id: {target.id} is no running container of this sandbox")
        return target.status.process

    async def start(self, text: str) -> None:
        """Run the program of a created container.

        :raises NotFound: if there is no such container.
        :raises FailedPrecondition: if it was started before.
        """
        container = self._state.container(text)
        await self._changing.do(("start", container.id), lambda: self._start(container.id))

    async def _start(self, container_id: ContainerID) -> None:
        container = self._state.container(container_id)
        if container.status.state is not ContainerState.CREATED:
            raise FailedPrecondition(f"container {container_id} is {container.status.state.value}, not created")
        sandbox = self._state.sandbox(container.sandbox_id)
        require_ready(sandbox)
        # From here on an end is noted after the start: a listener must hear of them in this order.
        self._starting.add(container_id)
        try:
            await self._start_program(container, sandbox)
        finally:
            self._note_early_end(container_id)

    async def _start_program(self, container: Container, sandbox: Sandbox) -> None:
        # Before the program runs: an end must not be earlier than its start.
        started, driver = time.time_ns(), self._sandboxes.driver(sandbox)
        try:
            await asyncio.to_thread(self._executor.start, container, sandbox, driver)
        except Exception as error:
            # Whatever it was: what is not known to be in its classes does not run on.
            await self._fail_start(container.id, str(error))
            raise
        failpoints.reach("container.started")
        current = self._state.container(container.id).status
        if current.state is ContainerState.CREATED:
            running = msgspec.structs.replace(current, state=ContainerState.RUNNING, started_at=started)
            self._state.set_container(container.id, running)

    def _note_early_end(self, container_id: ContainerID) -> None:
        """Note an end that came before the start was noted; a listener must hear of them in this order."""
        self._starting.discard(container_id)
        if container_id in self._ended_early:
            self._ended_early.discard(container_id)
            self._ended(container_id)

    async def _fail_start(self, container_id: ContainerID, message: str) -> None:
        """End what could not be started. That it ended and why is one change: a listener hears only of the first."""
        self._failed_starts[container_id] = message
        try:
            self._note_early_end(container_id)
            await self._kill(self._state.container(container_id))
        finally:
            del self._failed_starts[container_id]

    async def stop(self, text: str, timeout: float) -> None:
        """Ask a container to end, and kill it when ``timeout`` seconds have passed; a missing one is no error."""
        container = self._state.find_container(text)
        if container is None or not container.status.state.lives:
            return
        ended = self._ends[container.id]
        # What was only created runs no program that could take the signal.
        if timeout > 0 and container.status.state is ContainerState.RUNNING:
            await self._ask_to_end(container, ended, timeout)
        if not ended.is_set():
            await self._kill(container)

    async def _ask_to_end(self, container: Container, ended: asyncio.Event, timeout: float) -> None:
        """Send the stop signal and wait; of several requests at a time the one with the shortest timeout decides.

        The signal is sent once, also if the first caller gave up and comes again: programs take the second one for
        "now" (CRI: StopContainer is idempotent).
        """
        if container.id not in self._asked_to_end and container.status.process is not None:
            procfs.kill(container.status.process, stop_signal.of(container))
            self._asked_to_end.add(container.id)
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), timeout)

    async def _kill(self, container: Container) -> None:
        ended = self._ends.get(container.id)
        if ended is None or ended.is_set():
            return
        if container.status.process is not None:
            procfs.kill(container.status.process, signal.SIGKILL)
        if container.config.namespaces.pid is not NamespaceMode.CONTAINER:
            # Its first process is not the init of a PID namespace: the others do not die with it.
            await asyncio.to_thread(self._executor.kill_rest, container, self._state.sandbox(container.sandbox_id))
        if await _within(ended, KILL_TIMEOUT_S):
            return
        process, monitor = container.status.process, container.status.monitor
        is_starting = container.id in self._starting  # its end is noted after its start
        if not is_starting and process is not None and monitor is not None and not procfs.alive(process):
            # conmon hangs: somebody has put a pipe in the place of its log. What is lost with it is the exit code.
            log.warning("container %s has ended, and its conmon hangs: it is killed", container.id)
            procfs.kill(monitor, signal.SIGKILL)
            if await _within(ended, KILL_TIMEOUT_S):
                return
        raise FailedPrecondition(
            f"container {container.id} did not end within {KILL_TIMEOUT_S:g} s after SIGKILL",
            hint="one of its processes hangs in the kernel (state D); try again",
        )

    async def end_all(self, sandbox_id: SandboxID) -> None:
        for container in self._state.containers(sandbox_id):
            if container.status.state.lives:
                await self._kill(container)
            # The pod's cgroup goes next; before that its containers have to be out of their classes, which have files
            # there.
            await self._given_back(container.id)

    async def _given_back(self, container_id: ContainerID) -> None:
        """Wait until what a container had is given back, or could not be."""
        if (task := self._giving_back.get(container_id)) is not None:
            await asyncio.wait({task})

    async def remove(self, text: str) -> None:
        """Remove a container, killing it first if it runs; a missing one is no error.

        :raises FailedPrecondition: if it is being made, by a thread that its removal would take everything from.
        """
        container = self._state.find_container(text)
        if container is not None:
            if container.status.state is ContainerState.CREATING:
                raise FailedPrecondition(
                    f"container {container.id} is being created",
                    hint="stop its pod sandbox, which gives its creation up, or wait for the end of that",
                )
            await self._changing.do(("remove", container.id), lambda: self._remove(container.id))

    async def _remove(self, container_id: ContainerID) -> None:
        container = self._state.find_container(container_id)
        if container is None:
            return
        if container.status.state.lives:
            await self._kill(container)
        await self._given_back(container_id)
        sandbox = self._state.sandbox(container.sandbox_id)
        container = self._state.container(container_id)
        # What was read above is older than the end and the release that were waited for.
        latest = container.status
        self._state.set_container(
            container_id, msgspec.structs.replace(latest, state=ContainerState.REMOVING), ending=True
        )
        self._monitor.forget(container_id)
        try:
            await asyncio.to_thread(self._executor.remove, container, sandbox, self._sandboxes.driver(sandbox))
        except (PodkeepError, OSError):
            # It is shown again, so that a client which removes what it sees in a list comes back for it.
            status = msgspec.structs.replace(self._state.container(container_id).status, state=latest.state)
            self._state.set_container(container_id, status, ending=True)
            raise
        await self._forget(container_id)
        self._ends.pop(container_id, None)

    async def _forget(self, container_id: ContainerID) -> None:
        """Delete the record of what is gone, and let go of the mounted layers that no other record needs."""
        self._state.forget_container(container_id)
        used = {image for container in self._state.containers() for image in container.images}
        try:
            await asyncio.to_thread(self._images.unmount_unused, used)
        except (PodkeepError, OSError) as error:
            log.warning("layers of container %s stay mounted: %s", container_id, error)

    async def exec_sync(self, text: str, command: tuple[str, ...], timeout: float | None) -> ExecResult:
        """Run a command in a running container.

        :raises FailedPrecondition: if the container does not run.
        :raises ResourceExhausted: if too many run in its pod.
        :raises DeadlineExceeded: if the command took longer than ``timeout`` seconds and was killed.
        :raises asyncio.CancelledError: if the caller gave up; the command is killed then.
        """
        container = self._state.running_container(text)
        sandbox = self._state.sandbox(container.sandbox_id)
        driver = self._sandboxes.driver(sandbox)
        commands = self._commands.setdefault(sandbox.id, PodCommands(Allowance(OUTPUT_OF_POD, self._output)))
        if commands.running >= COMMANDS_OF_POD:
            raise ResourceExhausted(
                f"{commands.running} commands of ExecSync run in pod sandbox {sandbox.id}, and no more may",
                hint="give commands a timeout; those whose caller gives up are ended",
            )
        began = time.monotonic()
        commands.running += 1
        try:
            give_back = await self._turn_to_start(commands, timeout)
            try:
                container = self._state.running_container(container.id)  # it may have ended meanwhile
                given_up = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except BaseException:
                give_back()
                raise
        except BaseException:
            self._count_ended(sandbox.id)
            raise
        loop = asyncio.get_running_loop()
        limits = ExecLimits(
            timeout=timeout,
            since=began,
            stops=(self._stop_execs, given_up),
            started=partial(loop.call_soon_threadsafe, give_back),
            output=commands.output,
        )
        checked = partial(self._state.shares_processes, container)
        run = partial(self._executor.exec_sync, container, sandbox, driver, command, limits, checked=checked)
        self._moves.start(self._expect_move())
        # Commands may run for long; on threads of their own they cannot keep everything else waiting.
        running = loop.run_in_executor(self._exec_threads, run)
        running.add_done_callback(lambda _: give_back())
        running.add_done_callback(lambda done: self._forget_exec(done, given_up, sandbox.id))
        try:
            # Not by awaiting the future: a caller that gives up would cancel it, and _forget_exec would close the
            # eventfd while the thread still waits for it.
            await asyncio.wait({running})
        finally:
            if not running.done():
                # The caller gave up; nobody else would ever end a command without a timeout.
                os.eventfd_write(given_up, 1)
        return running.result()

    def _forget_exec(self, done: asyncio.Future[ExecResult], given_up: int, sandbox: SandboxID) -> None:
        """Count a command as ended: when it has, and not when its caller gave up."""
        os.close(given_up)
        self._count_ended(sandbox)
        if not done.cancelled():
            done.exception()  # otherwise asyncio logs that it was never retrieved

    def _count_ended(self, sandbox: SandboxID) -> None:
        commands = self._commands[sandbox]
        commands.running -= 1
        if not commands.running:
            del self._commands[sandbox]

    @staticmethod
    async def _turn_to_start(commands: PodCommands, timeout: float | None) -> Callable[[], None]:
        """Wait until one more command of a pod may be started; return what is called, once or more, when it has.

        What takes longer than :data:`EXEC_START_S` waits for something, and keeps no CPU busy; nor does its end, which
        may take longer still.

        :raises DeadlineExceeded: if its time is up before.
        """
        try:
            async with asyncio.timeout(timeout):
                await commands.starts.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the command did not finish within {timeout:g} s: it waited for other commands of its pod"
            ) from None
        held = [commands.starts]

        def give_back() -> None:
            timer.cancel()
            while held:
                held.pop().release()

        timer = asyncio.get_running_loop().call_later(EXEC_START_S, give_back)
        return give_back

    async def reopen_log(self, text: str) -> None:
        """Have conmon open the log file anew, after somebody moved it away; for several who ask at a time in turn.

        conmon opens the new file by one name and then renames it: it ends if another request has taken it away, or
        writes to a file without a name. So a request also goes on to its end if its caller gives up.

        :raises FailedPrecondition: if the container does not run, or conmon does not answer.
        """
        container = self._state.running_container(text)
        log = log_file(self._state.sandbox(container.sandbox_id), container.config)
        if log is None:
            raise FailedPrecondition(f"container {container.id} has no log file")
        control = self._layout.bundle(container.id) / "ctl"
        async with self._reopening.setdefault(container.id, asyncio.Lock()):
            await to_its_end(container_log.reopen(log, container.status.monitor, control))

    def running_logs(self) -> list[tuple[ContainerID, LogFile]]:
        """Return the containers that run and have a log, with it."""
        running = [item for item in self._state.containers() if item.status.state is ContainerState.RUNNING]
        logs = [(item.id, log_file(self._state.sandbox(item.sandbox_id), item.config)) for item in running]
        return [(identity, log) for identity, log in logs if log is not None]

    def log_path(self, container: Container) -> str:
        """Return the absolute path of a container's log, or an empty string."""
        path = log_file(self._state.sandbox(container.sandbox_id), container.config)
        return "" if path is None else str(path)

    def _watch(self, container: Container) -> None:
        status = container.status
        assert status.process is not None
        assert status.monitor is not None
        self._ends[container.id] = asyncio.Event()
        self._monitor.watch(container.id, Watched(process=status.process, monitor=status.monitor))

    def _ended(self, container_id: ContainerID) -> None:
        container = self._state.find_container(container_id)
        if container is None or not container.status.state.lives:
            return
        if container_id in self._starting:
            self._ended_early.add(container_id)
            return
        status = ended_status(container, self._layout, note_oom_kills(self._state, self._executor, container))
        if (message := self._failed_starts.get(container_id)) is not None:
            status = msgspec.structs.replace(
                status, reason="StartError", message=message, exit_code=START_ERROR_EXIT_CODE
            )
        self._state.set_container(container_id, status, ending=True)
        # After the record, so that whoever waited for the end finds it noted.
        self._ends[container_id].set()
        self._asked_to_end.discard(container_id)
        outlives = container.config.namespaces.pid is not NamespaceMode.CONTAINER
        if outlives or status.held_classes:
            # It is done for its pod, whoever asked for it.
            with working_for(container.sandbox_id):
                task = self._tasks.start(self._give_back(container.id, kill_rest=outlives))
            self._giving_back[container_id] = task
            task.add_done_callback(lambda _: self._giving_back.pop(container_id, None))

    async def _give_back(self, container_id: ContainerID, *, kill_rest: bool) -> None:
        """Kill what outlived a first process that was not the init of a PID namespace, and release the classes."""
        container = self._state.container(container_id)
        sandbox = self._state.sandbox(container.sandbox_id)
        try:
            if kill_rest:
                await asyncio.to_thread(self._executor.kill_rest, container, sandbox)
            await asyncio.to_thread(self._executor.release_classes, container, sandbox)
        except (PodkeepError, OSError) as error:
            # RemoveContainer does it again.
            log.warning("container %s ended, and not all that belonged to it could be removed: %s", container_id, error)
            return
        latest = self._state.find_container(container_id)
        if latest is not None and latest.status.held_classes:
            self._state.set_container(container_id, without_classes(latest.status), ending=True)


def _name_taken(key: str, container_id: ContainerID) -> AlreadyExists:
    return AlreadyExists(f"container {key} exists as {container_id}", hint="raise metadata.attempt")


def without_classes(status: ContainerStatus) -> ContainerStatus:
    """Return the status of a container that was released from its classes."""
    return msgspec.structs.replace(status, class_resources={}, class_change={})


def note_oom_kills(state: State, executor: ContainerExecutor, container: Container) -> int:
    """Return how many processes of a container that ended were killed because memory ran out.

    What is in its sandbox's record is brought up to date, so it is called once for each end.
    """
    sandbox = state.find_sandbox(container.sandbox_id)
    if sandbox is None:
        return 0
    others = (item for item in state.containers(sandbox.id) if item.id != container.id and item.status.state.lives)
    kills = executor.oom_kills(container, sandbox, [item.id for item in others])
    if kills.ended != sandbox.status.oom_kills:
        status = msgspec.structs.replace(sandbox.status, oom_kills=kills.ended)
        state.set_sandbox(sandbox.id, status, ending=True)
    return kills.own


def ended_status(
    container: Container,
    layout: Layout,
    oom_kills: int,
    *,
    why_unknown: str = "its conmon ended without noting the exit code",
) -> ContainerStatus:
    """Return the status of a container whose processes are gone: the exit code conmon noted, or ContainerStatusUnknown.

    :param oom_kills: how many of its processes were killed because memory ran out.
    """
    noted = exit_code_of(layout.exit_file(container.id))
    if noted is None:
        return msgspec.structs.replace(
            container.status,
            state=ContainerState.EXITED,
            finished_at=time.time_ns(),
            exit_code=UNKNOWN_EXIT_CODE,
            reason="ContainerStatusUnknown",
            message=why_unknown,
        )
    code, finished = noted
    # A file's time is that of the kernel's last tick: of a program that ended at once, before its start.
    finished = max(finished, container.status.started_at)
    reason = "Completed" if code == 0 else "Error"
    # conmon notes each time that memory ran out in the cgroup, unless it is told of the end before it is told of that.
    # What survived it and then succeeded was not killed.
    if code != 0 and ((layout.bundle(container.id) / "oom").exists() or oom_kills):
        reason = "OOMKilled"
    return msgspec.structs.replace(
        container.status, state=ContainerState.EXITED, finished_at=finished, exit_code=code, reason=reason
    )


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
