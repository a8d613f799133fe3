"""A daemon that has conmon started for a container, says so, and waits to be killed.

launching.py BUNDLE RUNTIME terminal|pipes
"""

from __future__ import annotations

import sys
from pathlib import Path

from podkeep.base.ids import ContainerID, HandlerName
from podkeep.runtime.oci.driver import Driver, Handler, Stdio

bundle, runtime, terminal = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "terminal"
driver = Driver(handler=Handler(name=HandlerName("h"), path=runtime, root=bundle), conmon="/usr/bin/conmon")
launch = driver.launch(ContainerID("c"), bundle, bundle, Stdio(log=bundle / "0.log", tty=terminal))
print(launch, flush=True)
sys.stdin.read()
