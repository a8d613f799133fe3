"""``podkeep runtime``: serve the CRI socket, end the runtime that serves, print a systemd unit for it.

Owns: the order of a daemon's first steps, which must happen while the process has one thread: the lock of its
directories, its mount namespace. Does not own: what it serves (``runtime.daemon``), or starting one in the background
(``core.background``).
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podkeep.base import in_force, lockfile
from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound, PodkeepError
from podkeep.cli.core import background, connection, garbage, supervised
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.kernel.process import procfs

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.runtime.model.layout import Layout

log = logging.getLogger(__name__)


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
    # Asked for while it serves: afterwards nothing says which process it was.
    process = _process(run)
    shut_down(invocation, if_idle=if_idle)
    _wait_until_unlocked(run / "runtime.lock")
    if process is not None:
        # Until then it is in its mount namespace, which `podkeep mountns stop` would not remove.
        procfs.wait(process, background.STOP_TIMEOUT_S)
    forms.show(output, {"stopped": config.runtime.socket}, ())


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
    from podkeep.cli.core import service_unit
    from podkeep.cli.mountns import namespace

    pin = namespace.of_services(invocation)
    click.echo(service_unit.RUNTIME.unit(background.program(), invocation.global_options(), pin), nl=False)


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
    supervised.end_with_supervisor()
    # Modes of what the runtime makes are meant as written: a pod's root, nobody on the machine, must pass through.
    os.umask(0o022)
    where = namespace_ref.resolve(
        config.mountns, environ=os.environ, pin=mount_namespace, pid=namespace_of, is_pinned=is_pinned
    )
    if where is None and (mount_namespace is not None or namespace_of is not None):
        log.warning("container mounts are not hidden: mountns.enabled is false")
    run = Path(config.runtime.run)
    background.require_writable("runtime.root", Path(config.runtime.root))
    if (place := Path(config.runtime.socket).parent) != run:
        background.require_writable("runtime.socket", place)
    background.require_writable("runtime.run", run)
    lock = lockfile.acquire(run / "runtime.lock", hint="a runtime serves already; end it with `podkeep runtime stop`")
    joined = None
    try:
        joined = membership.enter(where, pins=namespace_ref.candidates(config.mountns))
        if where is not None:
            unified.detach()
        # From here on threads may start: gRPC is imported only now.
        from podkeep.runtime.daemon import daemon
        from podkeep.runtime.model.layout import Layout

        garbage.as_usual()
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


def _remove_run_directory(layout: Layout) -> None:
    """Remove what a runtime makes below ``run``, and the directory itself if nothing else is in it."""
    from podkeep.kernel.files.removal import remove_tree
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


def shut_down(invocation: Invocation, *, if_idle: bool = False) -> None:
    """Ask the runtime to end.

    :param if_idle: only if nobody minds.
    :raises FailedPrecondition: if somebody does.
    :raises Unavailable: if none answers.
    """

    async def ask(client: CriClient) -> None:
        from podkeep.cri.v1 import podkeep_pb2

        await client.node.Shutdown(podkeep_pb2.ShutdownRequest(if_idle=if_idle))

    connection.call(invocation, ask)


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
        os.close(lockfile.acquire(lock, timeout_s=background.STOP_TIMEOUT_S, hint="the runtime did not end"))
    except FileNotFoundError:
        return
