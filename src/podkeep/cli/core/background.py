"""A runtime in the background, for verbs that need one: started if none answers, kept, replaced when it is idle.

Called by ``podkeep run``, and by the verbs that bring images. Does not own: serving (``runtime``).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from podkeep.base import in_force, lockfile, spawn
from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition, PodkeepError, Unavailable
from podkeep.cli.core import connection
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.core.output import told_error

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long a daemon started in the background may take until it serves; it takes about half a second."""
STOP_TIMEOUT_S = 30.0
BACKGROUND_IDLE_EXIT_S = 60.0
"""A daemon that ``podkeep run`` started ends after this many seconds without a pod and without a request."""


_REPLACEMENTS = 3
"""How often an idle runtime is replaced, while others do the same with another configuration."""


def program() -> list[str]:
    """Return the command that starts this very installation, whatever lies in the directory it is started in."""
    script = Path(sys.argv[0])
    if script.name == "podkeep" and os.sep in sys.argv[0]:
        return [str(script.resolve())]
    # Without -P, Python imports from the working directory first, which may be one that everybody can write to.
    return [sys.executable, "-P", "-m", "podkeep"]


def require_writable(key: str, path: Path, mode: int = 0o711) -> None:
    """Make a directory if it is missing, with ``mode`` whatever the umask is.

    :raises FailedPrecondition: naming the setting, if it cannot be made, or nothing can be made in it.
    """
    try:
        umask = os.umask(0o022)
        try:
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        finally:
            os.umask(umask)
        if not os.access(path, os.W_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number), str(path))
    except OSError as error:
        existing = next(place for place in (path, *path.parents) if place.exists())  # findmnt needs one
        raise FailedPrecondition(
            f"{key}: {path} cannot be written: {error.strerror}",
            hint=f"set {key} to a directory that can be written; `findmnt --target {existing}` says what it is on",
        ) from error


class Claim:
    """A caller's claim on the runtime of a run directory: while it is held, nobody replaces that runtime.

    Every ``podkeep run`` holds one, shared, from before it looks for a runtime until it ends. Whoever replaces a
    runtime has the only one meanwhile. The file is beside the directory, which a runtime removes when it ends.
    """

    def __init__(self, run: Path) -> None:
        path = run.with_name(f"{run.name}.claims")
        require_writable("runtime.run", path.parent)
        self._fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.share()

    def share(self) -> None:
        """Hold it beside others, waiting for one who replaces the runtime."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def take_alone(self) -> bool:
        """Hold it alone if nobody else has one; else hold it beside them, and return False."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The kernel has let go of what was held before.
            self.share()
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)


def claim(config: Config, global_options: Sequence[str]) -> Claim:
    """Have a runtime with this configuration: the one that serves, a new one, or a new one in place of an idle one.

    What the runtime has otherwise, because it is in use, is told on standard error.

    :returns: what keeps others from replacing it, until it is closed.
    :raises PodkeepError: as :func:`ensure_running`.
    """
    run = Path(config.runtime.run)
    held = Claim(run)
    try:
        for _ in range(_REPLACEMENTS):
            ensure_running(config, global_options)
            told = in_force.read(run, config.runtime.socket)
            differing = in_force.differences(told, config) if told is not None else ()
            if told is None or not differing:
                return held
            if not told.replaceable or not _replace_idle(held, global_options):
                break
            # In the moment in which the claim becomes a shared one, another may have started a runtime.
            held.share()
        ensure_running(config, global_options)
        connection.tell_differences(config)
    except BaseException:
        held.close()
        raise
    return held


def _replace_idle(held: Claim, global_options: Sequence[str]) -> bool:
    """End the runtime that serves if nobody has a use for it; return whether it has ended."""
    if not held.take_alone():
        return False
    ended = stop_if_idle(global_options)
    if not ended:
        held.share()
    return ended


def stop_if_idle(global_options: Sequence[str]) -> bool:
    """End the runtime that serves if `podkeep run` started it and nobody has a use for it; return whether it ended."""
    # In another process: gRPC starts threads, and this one is going to fork, or to change its mount namespace.
    argv = [*program(), *global_options, "runtime", "stop", "--if-idle"]
    done = spawn.run(argv, cwd="/", timeout=2 * STOP_TIMEOUT_S)
    if done.returncode != 0:
        log.debug("the runtime does not end: %s", done.stderr.decode(errors="replace").strip())
    return done.returncode == 0


def ensure_if_root(invocation: Invocation) -> None:
    """Do as :func:`ensure_running` if this user may start a runtime."""
    if os.geteuid() == 0:
        ensure_running(invocation.config, invocation.global_options())


def ensure_running(config: Config, global_options: Sequence[str]) -> bool:
    """Start a runtime in the background unless one answers, and wait until it serves.

    If another one has the directories, because it starts or ends at this moment, it is waited for.

    :param global_options: command line options that give the new process the same configuration.

    :returns: whether one was started.
    :raises FailedPrecondition: with what it said, if it ended instead.
    :raises Unavailable: if none serves in time.
    """
    path = config.runtime.socket
    if _listens(path):
        return False
    lock = Path(config.runtime.run) / "runtime.lock"
    log_path = Path(config.runtime.root) / "runtime.log"
    require_writable("runtime.root", log_path.parent)
    deadline = time.monotonic() + START_TIMEOUT_S
    process, start = _start(global_options, log_path)
    while not _listens(path):
        ended = process.poll() is not None
        if ended and not _listens(path) and not lockfile.is_held(lock):
            message, hint = _last_error(log_path, start)
            if lockfile.IN_USE not in message:
                raise FailedPrecondition(
                    f"the runtime ended at once: {message}",
                    hint=f"{hint}; its log is {log_path}" if hint else f"its log is {log_path}",
                )
            # The other one has ended in the meantime without serving.
            process, start = _start(global_options, log_path)
        if time.monotonic() > deadline:
            if not ended:
                process.send_signal(signal.SIGTERM)
            raise Unavailable(
                f"the runtime does not serve {path} after {START_TIMEOUT_S:g} s", hint=f"its log is {log_path}"
            )
        time.sleep(0.01)
    return True


def _start(global_options: Sequence[str], log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a runtime in the background; return it and where in the log it begins."""
    argv = [*program(), *global_options, "runtime", "--idle-exit", str(BACKGROUND_IDLE_EXIT_S)]
    # It names what pods have on this machine; users pass its directory.
    with open(log_path, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as log:
        os.fchmod(log.fileno(), 0o600)
        start = log.tell()
        process = subprocess.Popen(
            # A session of its own: Ctrl-C and the end of the caller's terminal are not for a runtime that others use as
            # well.
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    return process, start


def _listens(path: str) -> bool:
    try:
        connection.check_listening(path)
    except PodkeepError:
        return False
    return True


def _last_error(path: Path, start: int) -> tuple[str, str]:
    """Return the last error in a log from ``start`` on, and its hint or an empty text."""
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    message, hint = told_error(lines)
    return message or (lines[-1] if lines else "it said nothing"), hint
