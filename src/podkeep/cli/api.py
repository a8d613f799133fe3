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
from podkeep.cli.core import background
from podkeep.cli.core.invocation import Invocation

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


def serve(invocation: Invocation) -> None:
    """Become the API server and serve until told to stop.

    :raises FailedPrecondition: if another server has the directory, or an address is taken.
    """
    from podkeep.base import log as logs

    config = invocation.config
    logs.configure(config.log.level, sys.stderr, style=config.log.format)
    os.umask(0o077)
    root = Path(config.api.root)
    background.require_writable("api.root", root)
    lock = lockfile.acquire(root / _LOCK, hint="another `podkeep api` serves this directory")
    from podkeep.apiserver.server import daemon

    daemon.serve(config, log.info)
    os.close(lock)
