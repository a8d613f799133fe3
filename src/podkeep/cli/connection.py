"""Reaching the runtime from a verb.

Owns: the check that something listens, before gRPC is imported, so that "nothing runs" is said at once, and the event
loop of a verb. Does not own: RPC errors (``cri.client``).
"""

from __future__ import annotations

import asyncio
import errno
import shlex
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from podkeep.base.errors import PermissionDenied, Unavailable
from podkeep.cli.invocation import Invocation

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient

Result = TypeVar("Result")


def run(invocation: Invocation, operation: Callable[[CriClient], Awaitable[Result]]) -> Result:
    """Connect to the configured runtime, run ``operation`` with the client, and return its result.

    :raises Unavailable: if no runtime listens; the hint is the command that starts one.
    :raises PermissionDenied: if this user may not connect.
    :raises PodkeepError: what the operation raises.
    """
    path = invocation.config.runtime.socket
    check_listening(path, start=start_command(invocation))

    async def connected() -> Result:
        from podkeep.cri.client import CriClient

        async with CriClient(path) as client:
            return await operation(client)

    return asyncio.run(connected())


def start_command(invocation: Invocation) -> str:
    """Return the command that starts the runtime this invocation would talk to."""
    return shlex.join(["podkeep", *invocation.global_options(), "runtime"])


def check_listening(path: str, *, start: str) -> None:
    """Return if a process accepts connections on the unix socket ``path``.

    :param start: command that starts the runtime, for the hint.
    :raises Unavailable: if none does.
    :raises PermissionDenied: if the socket exists and this user may not connect.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except PermissionError as error:
            raise PermissionDenied(f"may not connect to the runtime on {path}", hint="run it as root") from error
        except OSError as error:
            why = "no such socket" if error.errno == errno.ENOENT else str(error.strerror or error)
            raise Unavailable(f"no runtime answers on {path}: {why}", hint=f"start it as root: {start}") from error
