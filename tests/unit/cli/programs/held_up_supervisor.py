"""A supervisor that is held up while its daemon says that it is alive; prints in JSON how often the daemon began."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from podkeep.base import service
from podkeep.cli.core import supervised
from podkeep.cli.core.node_report import NodeReport
from podkeep.cli.node import child, supervisor
from podkeep.cli.node.child import Command

# In place of a minute, and of 20 and 25 s.
child.WATCHDOG_S = 1
supervisor._LONGEST_WAIT_S, supervisor._HELD_UP_S = 0.2, 0.5


def daemon() -> None:
    """Be alive all the time; write a line once the supervisor has heard of that, and one after it was held up."""
    supervised.end_with_supervisor()
    begun.write_text(begun.read_text() + "x")
    service.ready("serving")
    for turn in range(10**6):
        service.alive()
        time.sleep(0.05)
        if turn == 10:
            sys.stderr.write("hold up\n")
            sys.stderr.flush()
            time.sleep(0.2)  # or what comes next may be read together with that
        if turn == 60:
            held_up.touch()
        if turn == 100:
            sys.stderr.write("go on\n")
            sys.stderr.flush()


def relay(line: str) -> None:
    """Take as long as a terminal that was stopped."""
    if line.endswith("hold up"):
        while not held_up.exists():
            time.sleep(0.01)
    elif line.endswith("go on"):
        os.kill(os.getpid(), signal.SIGTERM)


with tempfile.TemporaryDirectory() as directory:
    begun, held_up = Path(directory) / "begun", Path(directory) / "held-up"
    begun.touch()
    tell = NodeReport(pid=os.getpid(), runtime="", kubeconfig="", embedded=False)
    command = Command(name="agent", argv=(), main=daemon)
    supervisor.Supervisor([command], Path(directory), relay, tell, {}).serve({})
    print(json.dumps({"begun": len(begun.read_text())}))
