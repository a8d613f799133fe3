"""Directories of pods: ``<agent.root>/pods/<uid>``, who owns them, and what is left when nobody does.

A process that runs a pod holds a lock (flock) on the pod's directory for as long as it works on it. A directory that
nobody holds and whose pod the runtime does not know is an orphan: its process died half-way. Making a directory,
allocating IDs and reclaiming orphans happen under one lock of the agent's root, so several processes can share it.

A kubelet that does not run now may have pods in the same place, and so may agents of other runtimes; neither holds our
lock. Only a directory with our own ``pod.json``, which names the runtime, is ever looked into or removed; what others
made is left alone (but for their ``userns`` files, which ``userns`` respects).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from podkeep.agent import sub_path
from podkeep.agent.user_namespaces import blocks as userns
from podkeep.base import atomicfile, lockfile
from podkeep.base.config import AgentConfig, Config
from podkeep.base.errors import FailedPrecondition, Internal
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import PodUID
from podkeep.base.undo import UndoStack
from podkeep.kernel.files import openat, tree_size
from podkeep.kernel.files.removal import remove_tree, unmount
from podkeep.kernel.files.tree_size import TreeSize
from podkeep.kernel.mount import mountinfo

LOCK_NAME = ".podkeep.lock"
_LOCK_PAUSE_S = 0.01
_IDENTITY = "pod.json"
_UNFINISHED = (f".{_IDENTITY}.", f".{userns.FILE_NAME}.")
"""How the names of files begin that ``atomicfile`` has not given their own name yet."""
_DELETION = "deletion-grace-period"
_GRACE = re.compile(rb"-?[0-9]{1,18}")
_MAX_BYTES = 1 << 16
"""Of a file that says whose a directory is, or that the pod is to end; they have some hundred."""


FORMER_ROOT, FORMER_POD_LOGS = "/var/lib/kubelet", "/var/log/pods"
"""Defaults of ``agent.root`` and ``agent.pod_logs`` until they were a kubelet's no more: pods may be left there."""


def former(config: Config) -> Config | None:
    """Return the configuration as it was when defaults were a kubelet's directories; ``None`` if ``root`` is set."""
    default, agent = AgentConfig(), config.agent
    if agent.root != os.path.realpath(default.root):
        return None
    pod_logs = FORMER_POD_LOGS if agent.pod_logs == os.path.realpath(default.pod_logs) else agent.pod_logs
    return msgspec.structs.replace(config, agent=msgspec.structs.replace(agent, root=FORMER_ROOT, pod_logs=pod_logs))


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which pod a directory belongs to."""

    namespace: str
    name: str


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """``pod.json``: the pod can be found by it before it has a sandbox. ``runtime`` is the socket's path.

    ``managed``: it is the node agent's, not that of a process that runs this pod alone. ``user_namespace``: it was
    given one of its own, though it did not ask. ``node_mapping``: it was given the mapping of all pods of the node.
    """

    namespace: str
    name: str
    runtime: str
    managed: bool = False
    user_namespace: bool = False
    node_mapping: bool = False


class PodDir(FrozenStruct, kw_only=True):
    """Paths inside one pod's directory, named as the kubelet names them."""

    path: Path

    @property
    def hosts(self) -> Path:
        """The file that containers see as /etc/hosts."""
        return self.path / "etc-hosts"

    @property
    def volumes(self) -> Path:
        """Where the content of every volume is that the agent makes."""
        return self.path / "volumes"

    def volume(self, plugin: str, name: str) -> Path:
        """Content of a volume, by the name of its plugin (``kubernetes.io~empty-dir``)."""
        return self.volumes / plugin / name

    @property
    def sub_paths(self) -> Path:
        """Where every ``subPath`` is pinned."""
        return self.path / "volume-subpaths"

    def sub_path(self, volume: str, container: str, index: int) -> Path:
        """Where a ``subPath`` of ``volumeMounts[index]`` is pinned by a bind mount."""
        return self.sub_paths / volume / container / str(index)

    @property
    def containers(self) -> Path:
        """Where the files of every container are, which may write to them: termination logs."""
        return self.path / "containers"

    def container(self, name: str) -> Path:
        """Files made for one container."""
        return self.containers / name

    def size_beside_volumes(self, stop: Callable[[], bool]) -> TreeSize:
        """Count what containers can write to of this directory beside volumes: a pod could fill the disk by it.

        :param stop: asked now and then; what was counted until it says so is returned. Blocking.
        """
        containers = tree_size.measure(str(self.containers), stop=stop, partly=True)
        found = [part for part in (tree_size.measure_file(str(self.hosts)), containers) if part is not None]
        return TreeSize(
            used_bytes=sum(part.used_bytes for part in found),
            inodes=sum(part.inodes for part in found),
            hidden=any(part.hidden for part in found),
        )


class PodDirs:
    """The pod directories of one runtime under one agent root. Blocking: call it from a thread that may wait.

    :param runtime: path of the socket of the runtime that has the pods; directories made for another are not ours.
    """

    def __init__(self, root: Path, runtime: str) -> None:
        self._root = root
        self._runtime = os.path.realpath(runtime)
        self._order = asyncio.Lock()
        self.pods = root / "pods"

    @classmethod
    def of(cls, config: Config) -> PodDirs:
        """Return those that a configuration names."""
        return cls(Path(config.agent.root), config.runtime.socket)

    def make(self) -> None:
        """Make the directory of all pods if it is not there."""
        self.pods.mkdir(mode=0o750, parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the agent's root, waiting for whoever holds it now."""
        fd = self._open_lock()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock of the agent's root without blocking the event loop, in the order of those who wait here.

        Not on a thread: one that waits cannot be cancelled, and when all threads wait, none is left for who holds it.
        """
        async with self._order:
            while (lock := self.try_lock()) is None:  # noqa: ASYNC110 - the kernel sends no event
                await asyncio.sleep(_LOCK_PAUSE_S)
            try:
                yield
            finally:
                os.close(lock)

    def try_lock(self) -> int | None:
        """Return a descriptor that holds the lock of the agent's root until closed, ``None`` if somebody holds it."""
        fd = self._open_lock()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open_lock(self) -> int:
        self.make()
        return os.open(self._root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def directory(self, uid: PodUID) -> PodDir:
        """Return the paths of pod ``uid``, whether it is there or not."""
        return PodDir(path=self.pods / uid)

    def own(self, uid: PodUID) -> int:
        """Make the directory of pod ``uid`` if needed and return a descriptor that holds its lock until closed.

        Who had the lock before may remove the directory at any moment: then there is another one to be had.

        It waits for nobody. Not on a thread: nobody would have the descriptor if the caller is cancelled meanwhile.

        :raises FailedPrecondition: if another process works on this pod.
        """
        directory = self.pods / uid
        while True:
            self.make()
            with suppress(FileExistsError):
                directory.mkdir(mode=0o750)
            try:
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            with ExitStack() as undo:
                undo.callback(os.close, fd)
                if not lockfile.take(fd, 0):
                    raise FailedPrecondition(f"another process is working on pod {uid}")
                if lockfile.is_at(fd, directory):
                    undo.pop_all()
                    return fd

    def identify(
        self,
        uid: PodUID,
        identity: PodIdentity,
        *,
        managed: bool = False,
        user_namespace: bool = False,
        node_mapping: bool = False,
        is_last: bool = True,
    ) -> None:
        """Note in the directory of pod ``uid`` which pod it is, and whether it is one of the node agent's.

        :param user_namespace: it is given one of its own, though it does not ask.
        :param node_mapping: it is given the mapping of all pods of the node.
        :param is_last: as for ``atomicfile.write``: false if the record of its IDs is written next.
        """
        record = _Record(
            namespace=identity.namespace,
            name=identity.name,
            runtime=self._runtime,
            managed=managed,
            user_namespace=user_namespace,
            node_mapping=node_mapping,
        )
        atomicfile.write(self.pods / uid / _IDENTITY, msgspec.json.encode(record), is_last=is_last)

    def find(self, identity: PodIdentity) -> list[PodUID]:
        """Return the pods with this namespace and name that have a directory of ours."""
        return [uid for uid in self.all() if self.identity(uid) == identity]

    def all(self) -> list[PodUID]:
        try:
            return [PodUID(entry) for entry in sorted(os.listdir(self.pods)) if (self.pods / entry).is_dir()]
        except FileNotFoundError:
            return []

    def identity(self, uid: PodUID) -> PodIdentity | None:
        """Return which pod a directory belongs to, ``None`` if it is not ours."""
        record = self._record(uid)
        return None if record is None else PodIdentity(namespace=record.namespace, name=record.name)

    def has_user_namespace(self, uid: PodUID) -> bool:
        """Say whether pod ``uid`` was given a user namespace of its own without asking for it."""
        record = self._record(uid)
        return record is not None and record.user_namespace

    def has_node_mapping(self, uid: PodUID) -> bool:
        """Say whether pod ``uid`` was given the mapping of all pods of the node."""
        record = self._record(uid)
        return record is not None and record.node_mapping

    def managed(self) -> list[PodUID]:
        """Return the pods of the node agent that have a directory."""
        return [uid for uid in self.all() if self.is_managed(uid)]

    def is_managed(self, uid: PodUID) -> bool:
        """Say whether pod ``uid`` is one of the node agent's."""
        record = self._record(uid)
        return record is not None and record.managed

    def _record(self, uid: PodUID) -> _Record | None:
        try:
            record = msgspec.json.decode(self._read(uid, _IDENTITY) or b"", type=_Record)
        # What cannot be read is somebody else's: it is left alone rather than removed.
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return record if record.runtime == self._runtime else None

    def _read(self, uid: PodUID, name: str) -> bytes | None:
        """Return a file of a pod's directory, of which a pod with a hostPath there may make anything.

        None: there is none, or it is none of ours.

        :raises OSError: if it cannot be read.
        """
        fd = openat.open_beside(self.pods / uid / name)
        if fd is None:
            return None
        with openat.closing(fd):
            data = openat.read_bytes(fd, _MAX_BYTES + 1)
        return data if len(data) <= _MAX_BYTES else None

    def is_taken(self, uid: PodUID) -> bool:
        """Say whether the directory of pod ``uid`` is in use; an empty directory may be taken by anybody.

        So may one with nothing but unfinished records: the process that made it ended at that moment.
        """
        try:
            return any(not entry.startswith(_UNFINISHED) for entry in os.listdir(self.pods / uid))
        except FileNotFoundError:
            return False

    def reclaim_empty(self, is_wanted: Callable[[str], bool]) -> list[PodUID]:
        """Remove the directories of pods that are gone, and return whose they were.

        The caller holds the lock of the agent's root, under which others make such directories.
        """
        removed = []
        for uid in self.all():
            if is_wanted(uid) or self.is_taken(uid):
                continue
            try:
                fd = self.own(uid)
            except FailedPrecondition:
                continue
            try:
                _remove(self.pods / uid)
            finally:
                os.close(fd)
            removed.append(uid)
        return removed

    def is_foreign(self, uid: PodUID) -> bool:
        """Say whether the directory of pod ``uid`` is kept by somebody else: a kubelet, or another runtime's agent."""
        return self.is_taken(uid) and self.identity(uid) is None

    def request_deletion(self, uid: PodUID, grace: int) -> None:
        """Ask the process that owns pod ``uid`` to end it; nothing happens if the directory is gone or not ours.

        :param grace: seconds between the stop signal and SIGKILL.
        """
        if self.identity(uid) is None:
            return
        try:
            atomicfile.write(self.pods / uid / _DELETION, str(grace).encode())
        except FileNotFoundError:
            return

    def requested_deletion(self, uid: PodUID) -> int | None:
        """Return the grace period somebody asked for when asking to end pod ``uid``; ``None`` if nobody did."""
        data = self._read(uid, _DELETION) or b""
        return int(data) if _GRACE.fullmatch(data) else None

    def orphans(self, known: Collection[str]) -> list[PodUID]:
        """Return the pods that have a directory of ours, that no process owns, and that are not in ``known``.

        Those of the node agent, which looks after them by itself, are left out.

        The caller holds :meth:`locked`.
        """
        found = []
        for uid in self.all():
            record = self._record(uid)
            if uid in known or record is None or record.managed:
                continue
            try:
                fd = self.own(uid)
            except FailedPrecondition:
                continue
            os.close(fd)
            found.append(uid)
        return found

    def remove(self, uid: PodUID) -> None:
        """Unmount and remove everything of pod ``uid``; nothing happens if there is no directory, or a foreign one.

        The record of its IDs goes after the rest: while anything is left, nobody else gets them. The record of whose
        directory this is goes last: while it is there, the next agent finishes the removal.

        :raises Internal: naming what could not be removed.
        :raises PodkeepError: if what is pinned cannot be taken apart from its volume; everything stays then.
        """
        directory = self.pods / uid
        if not self.is_foreign(uid):
            self._take_apart(uid, f"remove {directory}", lambda: _remove(directory))

    def empty(self, uid: PodUID) -> None:
        """Unmount and remove the volumes of pod ``uid``, and give its IDs back; the rest of its directory stays.

        :raises Internal: naming what could not be removed.
        :raises PodkeepError: if what is pinned cannot be taken apart from its volume; everything stays then.
        """
        if self.identity(uid) is not None:
            self._take_apart(uid, f"remove the volumes of pod {uid}", partial(_remove_volumes, self.directory(uid)))

    def _take_apart(self, uid: PodUID, what: str, last: Callable[[], None]) -> None:
        directory = self.pods / uid
        # Before anything is unmounted: a pin that is a peer would take what is mounted below it away from the volume,
        # too.
        sub_path.let_go(self.directory(uid).sub_paths)
        steps = UndoStack()
        steps.push(what, last)
        # The stack runs backwards: the mount made last is undone first.
        for mount_point in reversed(mountinfo.outermost(mountinfo.under(directory))):
            steps.push(f"unmount {mount_point}", partial(unmount, mount_point))
        steps.run()
        if steps.failed:
            raise Internal("; ".join(f"could not {step}: {error}" for step, error in steps.failed))


def _require_unmounted(directory: Path) -> None:
    left = mountinfo.under(directory)
    if left:
        raise FailedPrecondition(f"{left[0].mount_point} is still mounted")


def _remove_volumes(directory: PodDir) -> None:
    _require_unmounted(directory.path)
    for path in (directory.volumes, directory.sub_paths):
        if path.exists():
            remove_tree(path)
    userns.release(directory.path.parent, directory.path.name)


def _remove(directory: Path) -> None:
    # UndoStack goes on after an unmount that failed; removing a tree then would empty a volume that is still mounted.
    _require_unmounted(directory)
    last = (userns.FILE_NAME, _IDENTITY)
    # The record of who it was is gone by the time a request that had read it is written (`request_deletion`).
    for is_last_try in (False, False, True):
        try:
            entries = sorted(os.listdir(directory), key=lambda name: last.index(name) if name in last else -1)
        except FileNotFoundError:
            return
        for entry in entries:
            remove_tree(directory / entry)
        try:
            directory.rmdir()
        except OSError as error:
            if is_last_try or error.errno != errno.ENOTEMPTY:
                raise
        else:
            return


def places(config: Config) -> list[tuple[Config, PodDirs]]:
    """Return where pods have their directories, or had them by default before, each with the configuration for it."""
    return [(item, PodDirs.of(item)) for item in (config, former(config)) if item is not None]
