"""A place of its own for a comparison: mount, network and PID namespaces, a directory, a cgroup name.

Everything a run starts, mounts or links lives in these namespaces and goes with their first process, however the run
ends; the cgroups and the directory are removed afterwards from outside. Nothing of the machine is changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_REMOVE_SECONDS = 10.0


def run(module: str, arguments: Sequence[str], directory: Path) -> int:
    """Run ``python -m module --inside DIR ARGUMENTS`` in fresh namespaces and clean up: its exit code.

    ``directory`` is where the run's own directory is made; it has to carry an overlay's upper layer.
    """
    with _workplace(directory) as work:
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        inside = [sys.executable, "-m", module, "--inside", str(work), *arguments]
        command = ["unshare", *namespaces, "--", "catatonit", "--", *inside]
        with _terminable():
            return subprocess.run(command, check=False, env={**os.environ, "TMPDIR": str(work)}).returncode


@contextmanager
def _workplace(directory: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="podkeep-bench-", dir=directory))
    work.chmod(0o711)  # root of a user namespace has to pass through to its root file system
    try:
        yield work
    finally:
        # After an interrupt the last processes of the namespaces may still be ending.
        remove_cgroups(cgroup(work))
        _retried(lambda: shutil.rmtree(work))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the block as Ctrl-C does, so that what it started is ended and cleaned up."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def cgroup(work: Path) -> str:
    """The cgroup, as CRI spells a parent, below which a run in ``work`` puts its pods."""
    return f"/{work.name}"


def settle() -> None:
    """Inside the namespaces: loopback up, and a /run of its own so that no daemon meets the machine's state."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    resolver = Path("/etc/resolv.conf")
    target, content = resolver.resolve(), resolver.read_text() if resolver.exists() else ""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"], check=True)
    if target.is_relative_to("/run"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


def daemon_command(command: Sequence[str]) -> list[str]:
    """``command`` in a mount namespace of its own whose ``/`` is shared, as on a machine with systemd."""
    shared = 'mount --make-rshared / && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", shared, "sh", *command]


def remove_cgroups(name: str) -> None:
    """Remove the cgroup in every hierarchy, children first; waits briefly for processes that are just ending.

    :raises OSError: naming the cgroup that stays busy.
    """
    hierarchies = [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else list(CGROUPS.iterdir())
    for top in {(hierarchy / name.lstrip("/")).resolve() for hierarchy in hierarchies}:
        for path, _, _ in os.walk(top, topdown=False):
            _retried(Path(path).rmdir)


def _retried(remove: Callable[[], None]) -> None:
    """Call ``remove`` until it succeeds, its object is gone, or the deadline has passed."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            remove()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
