"""A fork server of programs that tests want copies of."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from podkeep.kernel.process import forkserver
from podkeep.kernel.process.forkserver import CHANNEL, FIRST, Program


def _tell() -> None:
    """Say what there is."""
    told = {
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "targets": {number: os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2, FIRST)},
        "environment": {name: value for name, value in os.environ.items() if name.startswith("PODKEEP_")},
        "pid": os.getpid(),
        "leads": os.getpgrp() == os.getsid(0) == os.getpid(),
    }
    os.write(1, json.dumps(told).encode())


def _wait() -> None:
    os.write(1, b"%d" % os.getpid())
    signal.pause()


def _ask() -> None:
    """Start another, and wait."""
    with socket.socket(fileno=CHANNEL) as channel:
        other = forkserver.start(channel, "wait", [0, 1, 2])
        _wait()
        other.close()


def _fail() -> None:
    sys.exit("it failed")


def main() -> None:
    """Serve until the test ends."""
    forkserver.serve(
        {
            "tell": Program(main=_tell),
            "first": Program(main=_tell, pid_namespace=True),
            "wait": Program(main=_wait),
            "ask": Program(main=_ask, asks=True),
            "fail": Program(main=_fail),
        }
    )
