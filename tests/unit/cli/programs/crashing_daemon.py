"""A supervisor of one daemon, which crashes with a thread that waits; prints in JSON what it relays, and the reason."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

from podkeep.base import log
from podkeep.cli.node.child import Child, Command, Output


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def work(begun: threading.Event) -> None:
    begun.set()
    threading.Event().wait()


def daemon() -> None:
    """Crash."""
    log.configure("info", sys.stderr)
    begun = threading.Event()
    threading.Thread(target=work, args=[begun], daemon=True).start()
    begun.wait()
    crash()


relayed: list[str] = []
with tempfile.TemporaryDirectory() as directory:
    command = Command(name="agent", argv=(), main=daemon)
    child = Child(command, Path(directory), Output("agent", relayed.append), {})
    os.set_blocking(child.descriptors()[2], True)
    while child.read_output():
        pass
    reason = child.close()
print(json.dumps({"relayed": relayed, "reason": reason.text}))
