"""What ``podkeep node`` tells of its daemons: a file in its run directory, for verbs that ask whether a node runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from podkeep.base import atomicfile, lockfile
from podkeep.base.config import Config

FILE = "node.json"
LOCK = "node.lock"


class DaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon. ``state`` is ``waiting`` (for others), ``starting``, ``ready``, ``failed`` (it is started again), or
    ``stopped``; ``since`` seconds since 1970; ``restarts`` how often it was started again."""

    name: str
    state: str
    pid: int = 0
    since: float = 0.0
    restarts: int = 0
    status: str = ""
    """What it says of itself, such as where it serves."""
    problem: str = ""
    """What is wrong though it serves, in few words."""
    reason: str = ""
    """Why it ended last; kept until it serves again."""
    hint: str = ""
    had_served: bool = False
    """Whether it served before it ended for that reason."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them; ``kubeconfig`` is the file with which the agent reaches its API."""

    pid: int
    runtime: str
    """The socket of its runtime, a path."""
    kubeconfig: str
    embedded: bool
    """Whether the API is this machine's own."""
    name: str = ""
    """Of the Node object, which the command line that started it may have said; empty: what the configuration says."""
    daemons: tuple[DaemonReport, ...] = ()


def write(run: Path, report: NodeReport) -> None:
    """Write it where :func:`read` finds it.

    :raises OSError: if it cannot be written.
    """
    atomicfile.write(run / FILE, msgspec.json.encode(report), mode=0o644)


def read(run: Path) -> NodeReport | None:
    """Return what the node that runs tells; None: none runs, or it cannot be understood."""
    if not is_running(run):
        return None
    try:
        return msgspec.json.decode((run / FILE).read_bytes(), type=NodeReport)
    except (OSError, msgspec.MsgspecError):
        return None


def of(config: Config) -> NodeReport | None:
    """Return what the node tells that runs with this configuration's runtime.

    Another configuration's node may have the same run directory, which has a default: its pods are elsewhere.
    """
    told = read(Path(config.node.run))
    return told if told is not None and told.runtime == runtime_socket(config) else None


def runtime_socket(config: Config) -> str:
    return config.runtime.socket.removeprefix("unix://")


def is_running(run: Path) -> bool:
    """Return whether a ``podkeep node`` has this run directory."""
    try:
        return lockfile.is_held(run / LOCK)
    except PermissionError:  # root's alone: then the report says it
        return (run / FILE).exists()


def with_daemons(report: NodeReport, daemons: tuple[DaemonReport, ...]) -> NodeReport:
    return msgspec.structs.replace(report, daemons=daemons)
