"""A daemon is killed while conmon is about to have a container created, and a process of a pod gets its process ID."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_DAEMON = """
import sys
from pathlib import Path
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.runtime.oci.driver import Driver, Handler, Stdio

bundle, runtime, terminal = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "terminal"
driver = Driver(handler=Handler(name=HandlerName("h"), path=runtime, root=bundle), conmon="/usr/bin/conmon")
launch = driver.launch(ContainerID("c"), bundle, bundle, Stdio(log=bundle / "0.log", tty=terminal))
print(launch, flush=True)
sys.stdin.read()
"""
_MACHINE = """
import os, signal, subprocess, sys
from pathlib import Path

daemon, bundle, file = sys.argv[1], Path(sys.argv[2]), sys.argv[5]
killed = subprocess.Popen(
    [sys.executable, "-c", daemon, *sys.argv[2:5]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
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
"""


@pytest.mark.parametrize("terminal", ["terminal", "pipes"])
@pytest.mark.parametrize("runtime", ["/usr/bin/crun", "/usr/sbin/runc"])
def test_conmon_executes_and_opens_nothing_of_who_got_the_process_id_of_a_killed_daemon(
    tmp_path: Path, runtime: str, terminal: str
) -> None:
    """conmon is kept waiting by a pipe in the place of its log; it is told to go on by the end of the daemon."""
    taken, file = tmp_path / "taken", tmp_path / "file"
    text = f"#!/bin/sh\ntouch {taken}\n"
    file.write_text(text)
    file.chmod(0o755)
    subprocess.run(["mkfifo", tmp_path / "0.log"], check=True)
    machine = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", _MACHINE]
    subprocess.run([*machine, _DAEMON, tmp_path, runtime, terminal, file], check=True, timeout=60)
    assert not taken.exists()
    assert file.read_text() == text
