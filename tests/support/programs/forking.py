"""A fork server: imports podkeep once, and runs each of its daemons and verbs that it is asked for in a copy of itself.

forking.py SOCKET PADDING

``podkeep node`` starts its daemons in this way (``podkeep.base.forks``). A request on the inherited socket with this
number (SOCK_SEQPACKET) is JSON, ``{"argv": [...], "env": {...}, "cwd": ""}``, with a pipe that gets the exit status and
the standard error; for a verb, whose ``cwd`` is its working directory, also with its standard output and input. The
answer is its process ID, with a pidfd. The server ends when nobody holds the other end of its socket; the daemons stay.
PADDING makes room for the command lines of what runs, which /proc shows in place of its own.
"""

from __future__ import annotations

import json
import os
import runpy
import selectors
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import podkeep.agent.daemon.daemon
import podkeep.apiserver.server.daemon
import podkeep.cli.agent
import podkeep.cli.api
import podkeep.cli.main
import podkeep.cli.runtime
import podkeep.runtime.daemon.daemon  # noqa: F401
from podkeep.base import forks
from podkeep.kernel.process import title

_REQUEST_BYTES = 1 << 20


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
                if asked["cwd"]:
                    fork = forks.copy(partial(_run, asked, files))
                else:
                    fork = forks.start(partial(_become, asked["argv"]), stderr=files[0], env=asked["env"])
                for file in files:
                    os.close(file)
                pidfd = os.pidfd_open(fork.pid)
                running[pidfd] = fork, status
                selector.register(pidfd, selectors.EVENT_READ)
                socket.send_fds(channel, [str(fork.pid).encode()], [pidfd])


def _run(asked: dict[str, Any], files: list[int]) -> None:
    for number, file in zip((2, 1, 0), files, strict=True):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- multiprocessing has closed that of the server
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    _become(asked["argv"])


def _tell(pidfd: int, fork: forks.Fork, status: int) -> None:
    """Say how a daemon has ended, to whoever still wants to know."""
    os.close(pidfd)
    with suppress(BrokenPipeError):
        os.write(status, str(fork.wait()).encode())
    os.close(status)


def _become(argv: list[str]) -> None:
    """Be what the command line ``argv``, with ``-m podkeep`` in it, is."""
    title.show(argv)
    sys.argv[1:] = argv[argv.index("podkeep") + 1 :]
    runpy.run_module("podkeep", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
