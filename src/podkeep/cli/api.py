"""``podkeep api``: serve the Kubernetes API, back its database up, restore it.

Owns: options, and the lock of the API's directory. Does not own: what is served (``apiserver.server``).
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from podkeep.base import lockfile
from podkeep.base.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from podkeep.cli.core import background, garbage, supervised
from podkeep.cli.core import output as forms
from podkeep.cli.core.invocation import Invocation, pass_invocation

log = logging.getLogger(__name__)

_LOCK = "api.lock"


@click.group(name="api", invoke_without_command=True)
@click.option("--unix-socket", metavar="PATH", help="As api.unix_socket: a socket for root alone; empty for none.")
@click.option("--address", metavar="IP:PORT", help="As api.address: where to serve TLS; empty for nowhere.")
@click.option("--root", metavar="DIR", help="As api.root: the database, keys and certificates.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="As log.level.")
@click.option("--log-format", type=click.Choice(["plain", "json"]), help="As log.format.")
@click.pass_context
def command(
    ctx: click.Context,
    unix_socket: str | None,
    address: str | None,
    root: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve the Kubernetes API until SIGTERM.

    \b
    Examples:
      podkeep api
      podkeep api --address= --unix-socket /run/api.sock
    """
    invocation = ctx.ensure_object(Invocation)
    given = {
        "api.unix_socket": unix_socket,
        "api.address": address,
        "api.root": root,
        "log.level": log_level,
        "log.format": log_format,
    }
    invocation.override(*(f"{key}={value}" for key, value in given.items() if value is not None))
    if ctx.invoked_subcommand is None:
        serve(invocation)


_ENDS = "end the `podkeep node` or `podkeep api` that serves it (`systemctl stop podkeep-node`); pods run on"


@command.command(name="backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@forms.output_option
@pass_invocation
def backup_(invocation: Invocation, file: Path, output: str) -> None:
    """Write a copy of everything that the API stores to FILE, which must not exist; it may be serving meanwhile."""
    from podkeep.apiserver.server import backup

    config = invocation.config.api
    try:
        lock = lockfile.acquire(Path(config.root) / _LOCK)
    except FileNotFoundError as error:
        raise NotFound(f"there is no database in {config.root}") from error
    # The API serves and has the database open: the copy is its to make.
    except FailedPrecondition:
        _download(config.unix_socket, backup.PATH, file)
    else:
        try:
            backup.copy(Path(config.root), file)
        finally:
            os.close(lock)
    forms.show(output, {"file": str(file), "bytes": file.stat().st_size}, (f"{file}: {file.stat().st_size} bytes",))


@command.command(name="restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--replace", is_flag=True, help="Though there is a database, which is lost.")
@forms.output_option
@pass_invocation
def restore(invocation: Invocation, file: Path, replace: bool, output: str) -> None:
    """Make a backup the API's database; the API must not be serving."""
    from podkeep.apiserver.server import backup

    root = Path(invocation.config.api.root)
    background.require_writable("api.root", root)
    lock = lockfile.acquire(root / _LOCK, hint=_ENDS)
    try:
        backup.restore(root, file, replace=replace)
    finally:
        os.close(lock)
    forms.show(output, {"restored": str(file)}, (f"restored {file} to {root}",))


def _download(unix_socket: str, path: str, file: Path) -> None:
    """Write what the server answers at a path to a new file.

    :raises Unavailable: if it does not answer, or breaks off.
    """
    import http.client
    import socket

    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    made = False
    try:
        connection.sock.connect(unix_socket)
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise Unavailable(f"the API on {unix_socket} refuses: {answer.read(1000).decode(errors='replace')}")
        # For its owner alone: the objects in a backup include Secrets.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        made = True
        with open(descriptor, "wb") as target:  # noqa: PTH123 - a descriptor
            while piece := answer.read(1 << 16):
                target.write(piece)
            target.flush()
            # Told as written, it must be on the disk: who makes a backup may be about to remove the original.
            os.fsync(descriptor)
    except FileExistsError as error:
        raise AlreadyExists(f"{file} exists", hint="name another file, or remove it") from error
    except (OSError, http.client.HTTPException) as error:
        if made:
            file.unlink(missing_ok=True)
        raise Unavailable(f"no backup from the API on {unix_socket}: {error}") from error
    finally:
        connection.close()


def serve(invocation: Invocation) -> None:
    """Become the API server and serve until told to stop.

    :raises FailedPrecondition: if another server has the directory, or an address is taken.
    """
    from podkeep.base import log as logs

    config = invocation.config
    logs.configure(config.log.level, sys.stderr, style=config.log.format)
    supervised.end_with_supervisor()
    # The database and the keys are root's alone, whatever makes files beside them (SQLite's journal).
    os.umask(0o077)
    root = Path(config.api.root)
    background.require_writable("api.root", root)
    lock = lockfile.acquire(root / _LOCK, hint="another `podkeep api` serves this directory")
    from podkeep.apiserver.server import daemon

    garbage.as_usual()
    daemon.serve(config, log.info)
    os.close(lock)
