"""Telling a service manager how a daemon is doing (systemd: sd_notify(3)).

Owns: the protocol, a datagram of ``KEY=VALUE`` lines to the socket that ``NOTIFY_SOCKET`` names. Without that variable,
which only a unit with ``Type=notify`` sets, nothing is sent. A manager that does not listen is no reason to stop
serving: failures are logged.
"""

from __future__ import annotations

import logging
import os
import socket
import time

log = logging.getLogger(__name__)

_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"


PROBLEM = "X_PODKEEP_PROBLEM"
"""Of :func:`ready` and :func:`status`: few words for what is wrong though the daemon serves. systemd takes no notice of
variables that begin with ``X_``."""


def ready(status: str, problem: str = "") -> None:
    """Say that the daemon serves, and in words what."""
    _notify(f"READY=1\n{_said(status, problem)}", waits=True)


def status(text: str, problem: str = "") -> None:
    """Say in words what the daemon does by now, without more."""
    _notify(_said(text, problem))


def reloading() -> None:
    """Say that the configuration is being read again; :func:`ready` says that it is done."""
    _notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", waits=True)


def stopping() -> None:
    _notify("STOPPING=1")


def alive() -> None:
    """Say that the daemon is not stuck; to be called every :func:`watchdog_seconds`."""
    _notify("WATCHDOG=1")


async def feed_watchdog() -> None:
    """Call :func:`alive` as often as the manager wants to hear it, so that it ends an event loop that turns no more."""
    # Here, since the supervisor of a node needs this module and no event loop: it is 4 MiB.
    import asyncio

    pause = watchdog_seconds()
    while pause is not None:
        alive()
        await asyncio.sleep(pause)


def watchdog_seconds() -> float | None:
    """Return how often :func:`alive` is to be called, half of what the manager waits; None: it does not ask for it."""
    microseconds = os.environ.get(_WATCHDOG, "")
    if not microseconds.isdecimal() or int(microseconds) == 0:
        return None
    # The variables may have been inherited: they are for the process that systemd started (sd_watchdog_enabled(3)).
    if os.environ.get(_WATCHDOG_PID, str(os.getpid())) != str(os.getpid()):
        return None
    return int(microseconds) / 2_000_000


def parse(datagram: bytes) -> dict[str, str]:
    """Return what a daemon tells with one datagram, by key: the manager's side."""
    lines = datagram.decode(errors="replace").split("\n")
    return {key: value for key, separator, value in (line.partition("=") for line in lines) if separator}


def _said(status: str, problem: str) -> str:
    return f"{PROBLEM}={_line(problem)}\nSTATUS={_line(status)}" if problem else f"STATUS={_line(status)}"


def _line(text: str) -> str:
    # A newline would begin another variable of the datagram.
    return text.replace("\n", " ")


def _notify(message: str, *, waits: bool = False) -> None:
    """Send a message; with ``waits``, one that the manager acts on and that is not said again, when it has room for it.

    For the others, a manager that takes nothing must not be what keeps the event loop from turning.
    """
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    # An abstract socket, whose name begins with a NUL (unix(7)).
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.connect(address)
            channel.send(message.encode(), 0 if waits else socket.MSG_DONTWAIT)
    except OSError as error:
        log.warning("the service manager was not told %r: %s", message.partition("\n")[0], error)
