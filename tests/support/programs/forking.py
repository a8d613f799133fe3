"""A fork server: imports podkeep once, and runs each of its daemons and verbs that it is asked for in a copy of itself.

forking.py SOCKET PADDING

``podkeep node`` starts its daemons in this way (``podkeep.base.forks``). A request on the inherited socket with this
number (SOCK_SEQPACKET) is JSON, ``{"argv": [...], "env": {...}, "cwd": "/", "group": 0}``, with a pipe that gets the
exit status, and standard input, output and error; the group is that of processes, 0 for a session of its own. The
answer is its process ID, with a pidfd. The server ends when nobody holds the other end of its socket; the daemons stay.
PADDING makes room for the command lines of what runs, which /proc shows in place of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import podkeep
from podkeep.base import forks
from podkeep.kernel.process import title

_REQUEST_BYTES = 1 << 20
_LATER = (
    "_strptime",
    "click._textwrap",
    "click.shell_completion",
    "cryptography.hazmat.backends.openssl.backend",
    "encodings.idna",
    "importlib.readers",
    "zipfile",
)
"""What libraries import when it is needed."""


def main(channel: socket.socket) -> None:
    """Serve until the other end is closed."""
    running: dict[int, tuple[forks.Fork, int]] = {}
    """Pipes for the exit status, by pidfd."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    selector.unregister(key.fd)
                    _tell(key.fd, *running.pop(key.fd))
                    continue
                request, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 4)
                if not request:
                    return
                status, *files = files
                asked = json.loads(request)
                fork = forks.copy(partial(_run, asked, files))
                for file in files:
                    os.close(file)
                pidfd = os.pidfd_open(fork.pid)
                running[pidfd] = fork, status
                selector.register(pidfd, selectors.EVENT_READ)
                socket.send_fds(channel, [str(fork.pid).encode()], [pidfd])


def _run(asked: dict[str, Any], files: list[int]) -> None:
    """Be what was asked for, with ``files`` as standard streams."""
    if asked["group"]:
        os.setpgid(0, asked["group"])
    else:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # How the server's are buffered depends on what they are; and multiprocessing has closed its standard input.
    out, error = sys.stdout, sys.stderr
    sys.stdin = open(0, encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=error.encoding, errors=error.errors, closefd=False)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    title.show(asked["argv"])
    sys.argv[1:] = asked["argv"][asked["argv"].index("podkeep") + 1 :]
    runpy.run_module("podkeep", run_name="__main__", alter_sys=True)


def _tell(pidfd: int, fork: forks.Fork, status: int) -> None:
    """Say how a daemon has ended, to whoever still wants to know."""
    os.close(pidfd)
    with suppress(BrokenPipeError):
        os.write(status, str(fork.wait()).encode())
    os.close(status)


def _import_all() -> None:
    """Import what any verb or daemon may: most of it they import when they run."""
    for module in pkgutil.walk_packages(podkeep.__path__, "podkeep."):
        if module.name != "podkeep.__main__":  # it runs the command line
            importlib.import_module(module.name)
    for name in _LATER:
        importlib.import_module(name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who asks ends; copies have their own handler
    _import_all()
    main(socket.socket(fileno=int(sys.argv[1])))
