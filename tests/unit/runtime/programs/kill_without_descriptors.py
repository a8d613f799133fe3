"""Have the number of an OCI runtime pass to a stranger while nothing can be looked at, as there is no descriptor left.

Run in a PID namespace of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from podkeep.runtime.oci.exec import kill_command

OTHERS = """
import subprocess, sys
number = int(sys.stdin.readline())
stranger = None
while stranger is None or stranger.pid != number:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(number - 1))
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("there", flush=True)
sys.stdin.readline()
try:
    print(f"stranger killed: {stranger.wait(0.1)}", flush=True)
except subprocess.TimeoutExpired:
    print("stranger lives", flush=True)
"""
"""Starts a process with a number that it is told, and tells later what became of that."""


def talking(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )


others = talking(sys.executable, "-c", OTHERS)
runtime = talking("/bin/sh", "-c", "read told")
assert others.stdin is not None
assert others.stdout is not None
assert runtime.stdin is not None
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
killing = threading.Thread(target=kill_command, args=(runtime, Path("/nowhere")))
killing.start()
runtime.stdin.write("\n")
while runtime.returncode is None:  # it is waited for in between
    time.sleep(0.001)
print("runtime ended", flush=True)
others.stdin.write(f"{runtime.pid}\n")
others.stdout.readline()
assert killing.is_alive(), "the number came too late"
killing.join()
others.stdin.write("\n")
print(others.stdout.readline(), end="", flush=True)
