"""``podkeep runtime``: serve the CRI socket; ``podkeep runtime stop``: end the one that serves.

Owns: the order of a daemon's first steps, which must happen while the process has one thread: the lock of its
directories, its mount namespace; and starting a daemon in the background for verbs that need one. Does not own: what it
serves (``runtime.daemon``).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base import in_force, lockfile
from podkeep.base.config import Config
from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound, PodkeepError, Unavailable
from podkeep.cli import connection
from podkeep.cli import output as forms
from podkeep.cli.invocation import Invocation, pass_invocation
from podkeep.kernel import procfs

if TYPE_CHECKING:
    from podkeep.runtime.model.layout import Layout

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""How long a daemon started in the background may take until it serves; it takes about half a second."""
STOP_TIMEOUT_S = 30.0
BACKGROUND_IDLE_EXIT_S = 60.0
"""A daemon that ``podkeep run`` started ends after this many seconds without a pod and without a request."""


_REPLACEMENTS = 3
"""How often an idle runtime is replaced, while others do the same with another configuration."""


@click.group(name="runtime", invoke_without_command=True)
@click.option(
    "--idle-exit",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="End after this time without a pod and without a request.",
)
@click.option(
    "--mount-namespace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Hide container mounts in the mount namespace pinned on FILE, which must be there.",
)
@click.option(
    "--mount-namespace-pid",
    type=int,
    metavar="PID",
    help="Hide container mounts in the mount namespace of this process.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="As log.level.")
@click.option("--log-format", type=click.Choice(["plain", "json"]), help="As log.format.")
@click.pass_context
def command(
    ctx: click.Context,
    idle_exit: float | None,
    mount_namespace: Path | None,
    mount_namespace_pid: int | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve the CRI socket until SIGTERM; containers run on. SIGHUP reads the configuration again."""
    if ctx.invoked_subcommand is None:
        invocation = ctx.ensure_object(Invocation)
        given = {"log.level": log_level, "log.format": log_format}
        invocation.override(*(f"{key}={value}" for key, value in given.items() if value))
        serve(invocation, idle_exit, mount_namespace, mount_namespace_pid)


@command.command(name="stop")
@click.option(
    "--if-idle", is_flag=True, help="Only if `podkeep run` started it, and it has no pod and nothing to do; else fail."
)
@forms.output_option
@pass_invocation
def stop(invocation: Invocation, if_idle: bool, output: str) -> None:
    """End the runtime that serves. Pods run on; if there are none, everything it made is removed."""
    config = invocation.config
    run = Path(config.runtime.run)
    process = _process(run)
    shut_down(invocation, if_idle=if_idle)
    _wait_until_unlocked(run / "runtime.lock")
    if process is not None:
        # Until then it is in its mount namespace, which `podkeep mountns stop` would not remove.
        procfs.wait(process, STOP_TIMEOUT_S)
    if output == "json":
        forms.echo_json({"stopped": config.runtime.socket})


@command.command(name="unit")
@pass_invocation
def unit(invocation: Invocation) -> None:
    """Print a systemd unit that runs this podkeep with these options.

    \b
    Install it, with the service that makes the mount namespace for containers (not needed with mountns.enabled=false):
      podkeep runtime unit >/etc/systemd/system/podkeep.service
      podkeep mountns install
      systemctl enable --now podkeep
    """
    from podkeep.cli import mountns_place
    from podkeep.cli.unit import runtime_unit

    hidden = invocation.config.mountns.enabled
    # What this shell's environment says is nothing that systemd's services know.
    pin = mountns_place.configured(invocation, {}).pin if hidden else None
    click.echo(runtime_unit(program(), invocation.global_options(), pin), nl=False)


def program() -> list[str]:
    """Return the command that starts this very installation, whatever lies in the directory it is started in."""
    script = Path(sys.argv[0])
    if script.name == "podkeep" and os.sep in sys.argv[0]:
        return [str(script.resolve())]
    # Without -P, Python imports from the working directory first, which may be one that everybody can write to.
    return [sys.executable, "-P", "-m", "podkeep"]


def serve(
    invocation: Invocation,
    idle_exit: float | None,
    mount_namespace: Path | None = None,
    namespace_of: int | None = None,
) -> None:
    """Become the runtime and serve until told to stop.

    :param mount_namespace: file on which the mount namespace to be in is pinned.
    :param namespace_of: ID of a process in the mount namespace to be in.
    :raises FailedPrecondition: if another runtime uses the directories, the process cannot be in the mount namespace
        that it belongs in, or the machine lacks something.
    """
    from podkeep.base import log as logs
    from podkeep.mountns import membership, namespace_ref, unified
    from podkeep.mountns.pin import is_pinned

    config = invocation.config
    if os.geteuid() != 0:
        raise FailedPrecondition("the runtime needs root", hint="run it as root")
    logs.configure(config.log.level, sys.stderr, style=config.log.format)
    # Modes of what the runtime makes are meant as written: a pod's root, nobody on the machine, must pass through.
    os.umask(0o022)
    where = namespace_ref.resolve(
        config.mountns, environ=os.environ, pin=mount_namespace, pid=namespace_of, is_pinned=is_pinned
    )
    if where is None and (mount_namespace is not None or namespace_of is not None):
        log.warning("container mounts are not hidden: mountns.enabled is false")
    run = Path(config.runtime.run)
    _require_writable("runtime.root", Path(config.runtime.root))
    _require_writable("runtime.run", run)
    lock = lockfile.acquire(run / "runtime.lock", hint="a runtime serves already; end it with `podkeep runtime stop`")
    joined = None
    try:
        joined = membership.enter(where, pins=namespace_ref.candidates(config.mountns))
        if where is not None:
            unified.detach()
        # From here on threads may start: gRPC is imported only now.
        from podkeep.runtime.daemon import daemon
        from podkeep.runtime.model.layout import Layout

        options = daemon.Options(idle_exit=idle_exit, load=invocation.load, membership=joined)
        empty = daemon.serve(config, options)
    except BaseException:
        if joined is not None:
            membership.leave(joined)
        _remove_if_hollow(run)
        raise
    # Before the lock goes: who waits for it finds nothing of this runtime any more.
    membership.leave(joined)
    if empty:
        _remove_run_directory(Layout(root=Path(config.runtime.root), run=run))
    os.close(lock)


def _require_writable(key: str, path: Path) -> None:
    """Make a directory if it is missing.

    :raises FailedPrecondition: naming the setting, if it cannot be made, or nothing can be made in it.
    """
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number), str(path))
    except OSError as error:
        raise FailedPrecondition(
            f"{key}: {path} cannot be written: {error.strerror}",
            hint=f"set {key} to a directory that can be written; `findmnt --target {path}` says what it is on",
        ) from error


def _remove_run_directory(layout: Layout) -> None:
    """Remove what a runtime makes below ``run``, and the directory itself if nothing else is in it."""
    from podkeep.kernel.removal import remove_tree
    from podkeep.mountns.membership import PUBLICATION

    made = [path for path in layout.shared_directories() if path.parent == layout.run]
    for path in (*made, layout.run / PUBLICATION, layout.run / in_force.FILE_NAME, layout.lock):
        try:
            remove_tree(path)
        except (OSError, PodkeepError) as error:
            log.warning("could not remove %s: %s", path, error)
    # It may be a mount point of the administrator's, or hold things that are not ours.
    with suppress(OSError):
        layout.run.rmdir()


def _remove_if_hollow(run: Path) -> None:
    """After a failure, remove the directories below ``run`` if there is nothing in any of them; else leave all of it.

    What is in one of them may belong to a pod that runs, and the state that would say so may be unreadable.
    """
    in_use = (entry for name in ("sandboxes", "containers") for entry in (run / name).glob("*"))
    if any(in_use) or any(names and Path(top) != run for top, _, names in os.walk(run)):
        return
    from podkeep.mountns.membership import PUBLICATION

    # Only empty directories go this way, whoever made them first.
    with suppress(OSError):
        for name in ("sandboxes", "containers", "exits", "handlers", "terminals"):
            for top, _, _ in os.walk(run / name, topdown=False):
                os.rmdir(top)
        (run / PUBLICATION).unlink(missing_ok=True)
        (run / in_force.FILE_NAME).unlink(missing_ok=True)
        (run / "runtime.lock").unlink(missing_ok=True)
        run.rmdir()


class Claim:
    """A caller's claim on the runtime of a run directory: while it is held, nobody replaces that runtime.

    Every ``podkeep run`` holds one, shared, from before it looks for a runtime until it ends. Whoever replaces a
    runtime has the only one meanwhile. The file is beside the directory, which a runtime removes when it ends.
    """

    def __init__(self, run: Path) -> None:
        path = run.with_name(f"{run.name}.claims")
        _require_writable("runtime.run", path.parent)
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
        """Let go of it."""
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
    # In another process: gRPC starts threads, and this one has to change its mount namespace yet.
    done = subprocess.run(
        [*program(), *global_options, "runtime", "stop", "--if-idle"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=2 * STOP_TIMEOUT_S,
    )
    if done.returncode != 0:
        log.debug("the runtime is not replaced: %s", done.stderr.decode(errors="replace").strip())
        held.share()
    return done.returncode == 0


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
    _require_writable("runtime.root", log_path.parent)
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
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    return process, start


def shut_down(invocation: Invocation, *, if_idle: bool = False) -> None:
    """Ask the runtime to end.

    :param if_idle: only if nobody minds.
    :raises FailedPrecondition: if somebody does.
    :raises Unavailable: if none answers.
    """
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1 import podkeep_pb2

    path = invocation.config.runtime.socket
    connection.check_listening(path, start=connection.start_command(invocation))

    async def ask() -> None:
        async with CriClient(path) as client:
            await client.node.Shutdown(podkeep_pb2.ShutdownRequest(if_idle=if_idle))

    asyncio.run(ask())


def _process(run: Path) -> procfs.ProcessId | None:
    """Return the process that serves with run directory ``run``, by what it says of itself."""
    from podkeep.mountns import membership

    try:
        told = membership.published(run)
        return None if told is None else procfs.identify(told.pid)
    except (DataLoss, NotFound):
        return None


def _wait_until_unlocked(lock: Path) -> None:
    """Wait until the daemon that held the lock has ended (then its directory may be gone)."""
    try:
        os.close(lockfile.acquire(lock, timeout_s=STOP_TIMEOUT_S, hint="the runtime did not end"))
    except FileNotFoundError:
        return


def _listens(path: str) -> bool:
    try:
        connection.check_listening(path, start="")
    except PodkeepError:
        return False
    return True


def _last_error(path: Path, start: int) -> tuple[str, str]:
    """Return the last error in a log from ``start`` on, and its hint or an empty text."""
    with path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    message, hint = lines[-1] if lines else "it said nothing", ""
    for line in lines:
        if line.startswith("podkeep: "):
            message, hint = line.removeprefix("podkeep: "), ""
        elif line.startswith("hint: "):
            hint = line.removeprefix("hint: ")
    return message, hint
