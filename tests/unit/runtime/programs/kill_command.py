"""Have the number of a session pass to a stranger while its command is killed; run in a PID namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from podkeep.kernel.process import procfs
from podkeep.runtime.oci.exec import kill_command

RUNTIME = """
import subprocess, sys, time
command = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open(sys.argv[1], "w") as file:
    file.write(str(command.pid))
print(flush=True)
command.wait()
print(flush=True)
time.sleep(1)
"""
"""Stands for an OCI runtime that starts a command, waits for it, and takes a while to end."""

with tempfile.TemporaryDirectory() as directory:
    pid_file = Path(directory, "pid")
    runtime = subprocess.Popen([sys.executable, "-c", RUNTIME, pid_file], stdout=subprocess.PIPE)
    assert runtime.stdout is not None
    runtime.stdout.readline()
    # The kernel tells when a process was started in hundredths of a second; no ID passes to another in one.
    begun = procfs.identify(int(pid_file.read_text())).start_time
    while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < begun + 2:
        pass
    killing = threading.Thread(target=kill_command, args=(runtime, pid_file))
    killing.start()
    runtime.stdout.readline()
    print("command killed", flush=True)
    number = int(pid_file.read_text())
    stranger = None
    while stranger is None or stranger.pid != number:
        assert killing.is_alive(), "the number came too late"
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
        stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    killing.join()
    try:
        print(f"stranger killed: {stranger.wait(0.1)}", flush=True)
    except subprocess.TimeoutExpired:
        print("stranger lives", flush=True)
