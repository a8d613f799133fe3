"""The directories, cgroups and runtimes of kubelets on this machine, which must not be the agent's.

A kubelet removes whatever it does not know: pod directories below its root ("Orphaned pod found, removing"), log
directories of pods, cgroups below ``kubepods``, containers and sandboxes of the runtime that it uses ("Clean up
containers for orphaned pod"). A pod of ours in there loses its volumes while it runs, or is ended every few seconds.

Owns: what kubelets use, and the refusal to share one with a kubelet that runs. Does not own: which
processes are kubelets (``mountns.daemons``). Called before a pod is taken on, and by ``podkeep doctor``. Blocking.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.mountns import daemons
from podkeep.mountns.daemons import KUBELET

ROOT = "/var/lib/kubelet"
"""Default of a kubelet's ``--root-dir``."""
POD_LOGS = "/var/log/pods"
"""Default of a kubelet's ``podLogsDir``."""
_CGROUPS = frozenset({"kubepods", "kubepods.slice"})
"""The cgroup of a kubelet's pods, below its ``cgroupRoot``."""
_SOCKETS = ("pod-resources/kubelet.sock", "device-plugins/kubelet.sock")
"""Sockets below a kubelet's root, which it serves for as long as it runs."""
_CONNECT_S = 2.0
_MAX_AGE_S = 10.0
"""Seconds for which it is good enough to know which kubelets run."""
_NOBODY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED})
"""Errors of connect(2) that say that no process serves a socket; any other leaves it open."""


class Kubelet(FrozenStruct, kw_only=True):
    """A kubelet that runs: how it was found, the directories that it removes things from, and its runtime's socket."""

    who: str
    root: str
    pod_logs: tuple[str, ...]
    endpoint: str = ""


def require_apart(config: Config) -> list[Kubelet]:
    """Return the kubelets that run, if none of them uses a directory, a cgroup or the runtime of the agent.

    :raises FailedPrecondition: naming the setting, its value and the kubelet.
    """
    kubelets = find(config)
    _refuse(config, kubelets)
    return kubelets


class KnownKubelets:
    """The kubelets that run, not looked for more often than needed: that reads all of /proc.

    An agent asks for each pod, and pods come in crowds.

    :param found: those that were found just now.
    """

    def __init__(self, config: Config, found: list[Kubelet] | None = None) -> None:
        self._config = config
        self._found = found or []
        self._until = 0.0 if found is None else time.monotonic() + _MAX_AGE_S
        self._lock = asyncio.Lock()

    async def require_apart(self) -> list[Kubelet]:
        """Return the kubelets that run, if none of them uses a directory, a cgroup or the runtime of the agent.

        :raises FailedPrecondition: naming the setting, its value and the kubelet.
        """
        found = await self.found()
        _refuse(self._config, found)
        return found

    async def found(self) -> list[Kubelet]:
        # Whoever comes while /proc is read waits for that answer, and does not read it once more.
        async with self._lock:
            if time.monotonic() >= self._until:
                self._found = await asyncio.to_thread(find, self._config)
                self._until = time.monotonic() + _MAX_AGE_S
        return self._found


def find(config: Config) -> list[Kubelet]:
    """Return the kubelets that run on this machine.

    One whose process cannot be seen, because it is in a container of its own, is known by its sockets.
    """
    found = [
        Kubelet(
            who=str(daemon),
            root=daemon.root or ROOT,
            pod_logs=(daemon.pod_logs,) if daemon.pod_logs else (POD_LOGS,),
            endpoint=daemon.endpoint,
        )
        for daemon in daemons.find()
        if daemon.name == KUBELET
    ]
    # Also at the agent's own root: a kubelet in a container may have it mounted there under whatever path it sees.
    for root in dict.fromkeys((ROOT, config.agent.root)):
        served = next((path for path in (f"{root}/{name}" for name in _SOCKETS) if _is_served(path)), None)
        if served is not None and all(os.path.realpath(item.root) != os.path.realpath(root) for item in found):
            found.append(Kubelet(who=f"the kubelet that serves {served}", root=root, pod_logs=(POD_LOGS,)))
    return found


def _refuse(config: Config, kubelets: Sequence[Kubelet]) -> None:
    for refusal in conflicts(config, kubelets):
        raise refusal
    ours = os.path.realpath(config.runtime.socket)
    for kubelet in kubelets:
        if kubelet.endpoint and os.path.realpath(kubelet.endpoint) == ours:
            raise FailedPrecondition(
                f"runtime.socket: {ours} is the runtime of {kubelet.who}, which ends pods that it does not know",
                hint="give the pod to the kubelet, or set runtime.root, run and socket to those of another runtime",
            )


def conflicts(config: Config, kubelets: Sequence[Kubelet]) -> Iterator[FailedPrecondition]:
    """Yield a refusal for each setting that names what one of ``kubelets`` removes things from.

    That its runtime is podkeep's is in order, until the agent has pods there.
    """
    agent = config.agent
    for kubelet in kubelets:
        # By device and inode as well: the directory that a kubelet sweeps may be mounted at another path.
        if _overlap(agent.root, kubelet.root) or _is_same(f"{agent.root}/pods", f"{kubelet.root}/pods"):
            yield _refusal("agent.root", agent.root, kubelet.who, "pod directories", type(agent)().root)
        for logs in kubelet.pod_logs:
            if _overlap(agent.pod_logs, logs):
                yield _refusal("agent.pod_logs", agent.pod_logs, kubelet.who, "logs", type(agent)().pod_logs)
        parent = config.runtime.cgroup_parent
        if _CGROUPS & set(parent.split("/")) or parent.startswith("kubepods-"):
            yield _refusal(
                "runtime.cgroup_parent", parent, kubelet.who, "cgroups", type(config.runtime)().cgroup_parent
            )


def pod_directories(config: Config, kubelets: Sequence[Kubelet]) -> list[Path]:
    """Return where pods of kubelets have their directories, also of one that does not run now; not the agent's own."""
    roots = dict.fromkeys(os.path.realpath(root) for root in (ROOT, *(item.root for item in kubelets)))
    return [Path(root) / "pods" for root in roots if root != os.path.realpath(config.agent.root)]


def _refusal(key: str, value: str, who: str, what: str, default: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{key}: {value} is in use by {who}, which removes {what} of pods that it does not know",
        hint=f"set {key} to something of its own, such as {default} (the default)",
    )


def _overlap(one: str, other: str) -> bool:
    """Say whether a directory is another, or in it: by their paths, and by what is mounted there."""
    first, second = os.path.realpath(one), os.path.realpath(other)
    return os.path.commonpath((first, second)) in {first, second} or _is_in(first, second) or _is_in(second, first)


def _is_in(path: str, directory: str) -> bool:
    return any(_is_same(str(place), directory) for place in (Path(path), *Path(path).parents))


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _is_served(path: str) -> bool:
    """Say whether somebody accepts connections on a unix socket; yes where that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(path)
        except TimeoutError:
            return True
        except OSError as error:
            # A path that is too long for a socket address has no errno, and no socket.
            return error.errno is not None and error.errno not in _NOBODY
    return True
