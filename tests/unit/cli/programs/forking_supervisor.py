"""A supervisor that starts daemons as copies of itself, and prints in JSON what they have of it and how they end."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from podkeep.base import forks
from podkeep.kernel.process import title


def daemon() -> None:
    """Write to standard error, in JSON, what this process has; end with status 7."""
    title.show(["podkeep", "agent"])
    found = {
        "argv": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "leads": os.getsid(0) == os.getpid(),
        "descriptors": [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")],
        "terminates": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    sys.stderr.write(json.dumps(found))
    raise SystemExit(7)


signal.signal(signal.SIGTERM, lambda *_: None)
kept = os.open("/dev/null", os.O_RDONLY), *os.pipe()
read, write = os.pipe()
child = forks.start(daemon, stderr=write, env={"A": "b"})
os.close(write)
with os.fdopen(read) as said:
    told = json.loads(said.read())
told["status"] = child.wait()
waits = forks.start(signal.pause, stderr=2, env={})
assert waits.poll() is None
os.kill(waits.pid, signal.SIGKILL)
told["killed"] = waits.wait()
told["blocked here"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(json.dumps(told))
