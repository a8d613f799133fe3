"""Reaching the runtime from a verb.

Owns: the check that something listens, before gRPC is imported, so that "nothing runs" is said at once, and the event
loop of a verb. Does not own: RPC errors (``cri.client``).
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from podkeep.base.errors import PermissionDenied, Unavailable
from podkeep.cli.core.invocation import Invocation

if TYPE_CHECKING:
    from podkeep.base.config import Config
    from podkeep.cri.client import CriClient

Result = TypeVar("Result")
_SHOWN_KEYS = 10
"""Keys of a configuration that a line has at most."""


def run(
    invocation: Invocation,
    operation: Callable[[CriClient], Awaitable[Result]],
    tables: Collection[str] = (),
) -> Result:
    """Connect to the configured runtime, run ``operation`` with the client, and return its result.

    What the command line has set and the runtime has otherwise is told on standard error.

    :param tables: tables of the configuration of which that is told wherever they were set.
    :raises Unavailable: if no runtime listens; the hint is the command that starts one.
    :raises PermissionDenied: if this user may not connect.
    :raises PodkeepError: what the operation raises.
    """
    check_listening(invocation.config.runtime.socket, hint=lambda: _hint(invocation))
    if invocation.settings or tables:
        named = _named(invocation.settings)
        tell_differences(
            invocation.config,
            lambda key: (
                key.partition(".")[0] in tables or any(_above(key, name) or _above(name, key) for name in named)
            ),
        )
    return call(invocation, operation)


def call(invocation: Invocation, operation: Callable[[CriClient], Awaitable[Result]]) -> Result:
    """Do as :func:`run`, but say nothing of the configuration."""
    path = invocation.config.runtime.socket
    check_listening(path, hint=lambda: _hint(invocation))

    # Here, since the supervisor of a node needs this module and no event loop: it is 4 MiB.
    from podkeep.cli.core import interruptible

    async def connected() -> Result:
        from podkeep.cri.client import CriClient

        async with CriClient(path) as client:
            return await operation(client)

    return interruptible.run(connected())


def _above(one: str, other: str) -> bool:
    """Say whether key ``one`` is ``other``, or a table that it is in."""
    return f"{other}.".startswith(f"{one}.")


def _named(settings: Sequence[str]) -> list[str]:
    """Return the keys that settings give a value, as :mod:`podkeep.base.in_force` writes them."""
    from podkeep.base.config import parse_setting

    def keys(prefix: str, table: Mapping[str, Any]) -> Iterator[str]:
        for key, value in table.items():
            if isinstance(value, dict) and value:
                yield from keys(f"{prefix}{key}.", value)
            else:
                yield f"{prefix}{key}"

    return [key for setting in settings for key in keys("", parse_setting(setting))]


def tell_differences(config: Config, relevant: Callable[[str], bool] = lambda _: True) -> None:
    """Say on standard error which keys the runtime that serves has otherwise, if any.

    :param relevant: of the keys that differ, which ones are told.
    """
    # Reading a configuration imports msgspec; completion does not.
    from podkeep.base import in_force
    from podkeep.base.text.printable import listed
    from podkeep.cli.core.output import echo_line

    told = in_force.read(Path(config.runtime.run), config.runtime.socket)
    differing = [key for key in in_force.differences(told, config) if relevant(key)] if told is not None else []
    if differing:
        keys = listed(differing, _SHOWN_KEYS)
        echo_line(f"podkeep: the runtime that serves has another configuration; not in force: {keys}", err=True)
        echo_line(
            "hint: pods run on while it is started again: podkeep runtime stop, then start it with this configuration",
            err=True,
        )


def start_command(invocation: Invocation) -> str:
    """Return the command that starts the runtime this invocation would talk to: on a node all of it."""
    # A runtime alone would not run the node's pods.
    return command_line(invocation, "node" if was_node(invocation.config) else "runtime")


def was_node(config: Config) -> bool:
    """Return whether this machine ran as a node: an agent that runs the pods of its own API leaves both files."""
    left = (os.path.join(config.api.root, "api.db"), os.path.join(config.agent.root, "agent.lock"))
    return all(map(os.path.exists, left))


def command_line(invocation: Invocation, verb: str) -> str:
    """Return how a verb is run with the same configuration."""
    return shlex.join(["podkeep", *invocation.global_options(), verb])


def _hint(invocation: Invocation, daemon: str = "runtime") -> str:
    """Return what to do when a daemon does not answer: its node, if it runs, starts it again."""
    from podkeep.cli.core import node_report

    told = node_report.of(invocation.config)
    if told is not None and any(report.name == daemon for report in told.daemons):
        return "the node that runs here starts it again by itself; `podkeep status` says how it is"
    command = start_command(invocation) if daemon == "runtime" else command_line(invocation, "node")
    return f"start it as root: {command}"


def require_api(invocation: Invocation) -> None:
    """Return if the embedded API accepts connections.

    :raises PermissionDenied: if this user may not connect.
    :raises Unavailable: if it does not; the hint is the command that starts it, or that its node does.
    """
    check_listening(invocation.config.api.unix_socket, hint=lambda: _hint(invocation, "api"), what="API")


def check_listening(path: str, *, hint: Callable[[], str] = str, what: str = "runtime") -> None:
    """Return if a process accepts connections on the unix socket ``path``.

    :param hint: what to do if none does.
    :raises Unavailable: if none does.
    :raises PermissionDenied: if the socket exists and this user may not connect.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except PermissionError as error:
            raise PermissionDenied(f"may not connect to the {what} on {path}", hint="run it as root") from error
        except OSError as error:
            why = "no such socket" if error.errno == errno.ENOENT else str(error.strerror or error)
            raise Unavailable(f"no {what} answers on {path}: {why}", hint=hint()) from error
