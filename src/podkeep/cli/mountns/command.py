"""``podkeep mountns``: the container mount namespace: making it, looking at it, running things in it.

Owns: what people type. Does not own: which namespace it is (``mountns.namespace_ref``), making and removing it
(``mountns.lifecycle``), joining it (``mountns.membership``), files for systemd (``mountns.installation``), what
``status`` says (``status``).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Never

import click
from msgspec import structs

from podkeep.base.errors import FailedPrecondition, PodkeepError
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation
from podkeep.cli.core.output import echo_error, echo_line
from podkeep.cli.mountns import install, namespace

_PROGRAM = {"allow_interspersed_args": False}
"""Options after the first word of a command line are the command's, with or without ``--`` before it."""
_NOT_ENTERED = 125
"""Exit status of env(1) when it fails itself, so that it can be told from the command's; nsenterCmns has the same."""
CANNOT_RUN = 126
"""Exit status of env(1) when a program was found and cannot be run."""
NOT_FOUND = 127
"""Exit status of env(1) when there is no such program."""

# Python ignores them from its start on, and execve(2) hands an ignored signal on: `| head` would not end the command.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


@click.group(name="mountns")
def command() -> None:
    """The mount namespace that keeps container mounts out of the host's mount table.

    What the host mounts appears in it; what the runtime, its hooks, the agent and containers mount stays in it. Who
    wants to see that enters:

    \b
      podkeep mountns exec -- findmnt    the mount table that containers are made of
      podkeep mountns enter              a shell there

    Nothing has to be set up: `podkeep runtime` makes the namespace, and removes it with its last pod. One that a
    kubelet and a runtime share is made to stay: with `start`, or with systemd by what `install` writes. `podkeep ps`,
    `logs` and `exec` and crictl work from anywhere: they ask the runtime.

    The key mountns.enabled = false does without it.
    """


for verb in (install.install, install.uninstall, install.machine_config):
    command.add_command(verb)


@command.command(name="start", short_help="Make the namespace, to stay.")
@forms.output_option
@pass_invocation
def start(invocation: Invocation, output: str) -> None:
    """Make the namespace, to stay until `stop` or a reboot.

    One that is there is kept, with all who are inside. If mounts in it reach no container, they do then.
    """
    namespace.require_mounting("start")
    from podkeep.mountns import lifecycle

    if not invocation.config.mountns.enabled:
        raise FailedPrecondition("container mounts are not to be hidden here: mountns.enabled is false")
    pin = namespace.own_pin(invocation)
    # Modes of what it makes are meant as written: /run/netns is everybody's to list.
    os.umask(0o022)
    started = lifecycle.start(pin)
    line = f"mnt:[{started.inode}] at {pin}{'' if started.made else ' is there already'}"
    forms.show(output, {"pin": pin, "inode": started.inode, "made": started.made}, [line])


@command.command(name="stop", short_help="Remove the namespace.")
@click.option("--force", is_flag=True, help="Also while somebody is inside: who is stays there, and nobody joins them.")
@click.option("--if-unused", is_flag=True, help="Succeed without removing it while somebody is inside.")
@forms.output_option
@pass_invocation
def stop(invocation: Invocation, force: bool, if_unused: bool, output: str) -> None:
    """Remove the namespace.

    Refused while processes or mounts of containers are inside: a new one would not have them.
    """
    if force and if_unused:
        raise click.UsageError("--force and --if-unused do not go together")
    namespace.require_mounting("stop")
    from podkeep.mountns import lifecycle
    from podkeep.mountns.pin import is_pinned

    pin = namespace.own_pin(invocation)
    removed = lifecycle.stop(pin, force=force, if_unused=if_unused)
    kept = f"{pin} is in use and stays" if is_pinned(pin) else f"nothing to remove at {pin}"
    forms.show(output, {"pin": pin, "removed": removed}, [f"removed {pin}" if removed else kept])


@command.command(name="status", short_help="Show who is inside, and what is out of sync.")
@forms.output_option
@click.pass_context
@pass_invocation
def status(invocation: Invocation, ctx: click.Context, output: str) -> None:
    """Show the namespace, who is inside, and whether every daemon is in the same one.

    Ends with status 0 if it is there, shared, and in sync, else with 1. "host's /" says whether what the host mounts
    later is seen inside: it is if that is shared, as systemd makes it.
    """
    namespace.require_mounting("status")
    from podkeep.cli.mountns import status

    told = namespace.runtime(invocation)
    report = status.examine(invocation.config, namespace.of_runtime(invocation, told), told)
    forms.show(output, report.as_json(), report.lines())
    ctx.exit(0 if report.good else 1)


@command.command(name="enter", short_help="Start a shell in the namespace.")
@click.pass_context
@pass_invocation
def enter(invocation: Invocation, ctx: click.Context) -> None:
    """Start a shell in the namespace: $SHELL, else /bin/sh.

    Only this shell and what it starts are inside; `exit` leads back.
    """
    _run_inside(invocation, ctx, [os.environ.get("SHELL") or "/bin/sh"])


@command.command(name="exec", short_help="Run a command in the namespace.", context_settings=_PROGRAM)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
@pass_invocation
def exec_(invocation: Invocation, ctx: click.Context, argv: tuple[str, ...]) -> None:
    """Turn into COMMAND, in the namespace.

    The working directory stays, and so do process ID, streams and signals; the exit status is the command's. It is 127
    if there is none of this name, 126 if it cannot be run, 125 if there is no namespace, as of env(1).

    \b
    Examples:
      podkeep mountns exec -- findmnt --type overlay
      podkeep mountns exec -- ip netns
      podkeep mountns exec -- du -sh /var/lib/podkeep/agent/pods
    """
    _run_inside(invocation, ctx, list(argv))


def _run_inside(invocation: Invocation, ctx: click.Context, argv: list[str]) -> Never:
    """Turn this process into ``argv`` inside, or end with 125 if that is not possible; then nothing was started."""
    try:
        namespace.require_mounting(ctx.info_name or "exec")
        _go_inside(invocation)
    except PodkeepError as error:
        if invocation.debug:
            raise
        echo_error(error)
        ctx.exit(_NOT_ENTERED)
    become(argv)


def _go_inside(invocation: Invocation) -> None:
    from podkeep.mountns import membership, pin

    told = namespace.runtime(invocation)
    if told is not None and told.hidden and told.inode == pin.own():
        return
    place = namespace.to_enter(invocation, told)
    where = _working_directory()
    os.chdir("/")
    membership.enter(structs.replace(place, may_make=False), to_mount=False)
    try:
        os.chdir(where)
    except OSError as error:
        echo_line(f"podkeep: {where} is not there inside ({error.strerror}), the working directory is /", err=True)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return "/"


def become(argv: Sequence[str]) -> Never:
    """Run ``argv`` in this process's place, looked for in ``PATH``; end with 127 or 126 if that cannot be.

    Process ID, standard streams, working directory and limits are the program's as they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed before this process began
            stream.flush()
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), _environment())
    except FileNotFoundError:
        echo_line(f"podkeep: {argv[0]}: no such program, or what runs it is missing", err=True)
        sys.exit(NOT_FOUND)
    except OSError as error:
        echo_line(f"podkeep: {argv[0]}: cannot be run: {error.strerror}", err=True)
        sys.exit(CANNOT_RUN)


def _environment() -> dict[bytes, bytes]:
    """Return the environment that this process was given: Python may have added LC_CTYPE to it (PEP 538)."""
    given = {
        name for name, _, _ in (item.partition(b"=") for item in Path("/proc/self/environ").read_bytes().split(b"\0"))
    }
    return {name: value for name, value in os.environb.items() if name != b"LC_CTYPE" or name in given}
