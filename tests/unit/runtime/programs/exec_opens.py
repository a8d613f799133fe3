"""Run a command by ``exec_sync`` or ``exec`` and print how its process file was opened and changed.

exec_opens.py DIRECTORY sync|streams
"""

import os
import sys
from pathlib import Path

from podkeep.base.ids import ContainerID, HandlerName
from podkeep.runtime.oci.driver import Driver, ExecLimits, Handler
from podkeep.runtime.oci.exec import ExecStdio


def hook(event: str, arguments: tuple[object, ...]) -> None:
    """Print what happens to the file (Python's audit events)."""
    if event not in ("open", "os.chmod") or not str(arguments[0]).endswith(".json"):
        return
    flags = arguments[2] if event == "open" else 0
    print(event, "new" if isinstance(flags, int) and flags & os.O_EXCL else "")


directory = Path(sys.argv[1])
driver = Driver(handler=Handler(name=HandlerName("h"), path="/bin/true", root=directory), conmon="/usr/bin/conmon")
sys.addaudithook(hook)
if sys.argv[2] == "sync":
    driver.exec_sync(ContainerID("c"), directory, {"args": ["x"]}, ExecLimits(timeout=10.0))
else:
    driver.exec(ContainerID("c"), directory, {"args": ["x"]}, stdio=ExecStdio(), sockets=directory).finish()
