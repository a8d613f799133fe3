"""Starts touch(1) on MARK, and is killed before that may go on; the process ID is in NOTED.

killed_while_entering.py MARK NOTED
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from podkeep.runtime.oci import entering


def die(pid: int) -> None:
    Path(sys.argv[2]).write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


entering.popen(["/bin/touch", sys.argv[1]], die, start_new_session=True)
