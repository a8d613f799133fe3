"""Daemons as copies of their supervisor: what it imports for them, and what of it they have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

_STATE = """
import os, sys
def state():
    return len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd"))
"""
_FORK = """
import json, os, signal, sys
from podkeep.base import forks
from podkeep.kernel.process import title

def daemon():
    title.show(["podkeep", "agent"])
    write = sys.stderr.write
    write(json.dumps({
        "argv": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode().split("\\0"),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "leads": os.getsid(0) == os.getpid(),
        "descriptors": [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")],
        "terminates": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }))
    sys.exit(7)

signal.signal(signal.SIGTERM, lambda *_: None)
kept = open("/dev/null"), os.pipe()
read, write = os.pipe()
child = forks.start(daemon, stderr=write, env={"A": "b"})
os.close(write)
told = json.loads(os.fdopen(read).read())
told["status"] = child.wait()
waits = forks.start(signal.pause, stderr=2, env={})
assert waits.poll() is None
os.kill(waits.pid, signal.SIGKILL)
told["killed"] = waits.wait()
told["blocked here"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(json.dumps(told))
"""


def run(program: str) -> Any:
    """Return what a program prints, decoded."""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_supervisor_imports_starts_no_thread_and_opens_nothing() -> None:
    program = f"""{_STATE}
import json
from podkeep.cli.node import preload
before = state()
preload.shared()
preload.agent()
print(json.dumps([before, state()]))
"""
    before, after = run(program)
    assert before[0] == 1
    assert after == before


def test_a_daemon_has_of_its_supervisor_only_what_was_imported() -> None:
    told = run(_FORK)
    assert told["argv"] == ["podkeep", "agent"]
    assert told["environment"] == {"A": "b"}
    assert told["directory"] == "/"
    assert told["leads"]
    assert told["descriptors"] == []
    assert told["terminates"]
    assert told["blocked"] == []
    assert told["blocked here"] == []


def test_the_end_of_a_daemon_is_told_as_that_of_a_program() -> None:
    told = run(_FORK)
    assert told["status"] == 7
    assert told["killed"] == -signal.SIGKILL


def test_after_an_update_a_daemon_is_not_a_copy() -> None:
    program = """
import json, os, pathlib, shutil, sys, tempfile
import podkeep
with tempfile.TemporaryDirectory() as directory:
    source = shutil.copytree(pathlib.Path(podkeep.__file__).parent / "base", pathlib.Path(directory) / "podkeep/base")
    first = source.parent / "__init__.py"
    first.write_text("")
    podkeep.__file__ = str(first)
    from podkeep.base import forks
    found = [forks.is_same_installation()]
    (source.parent / "new").write_text("")
    os.rename(source.parent / "new", first)
    found.append(forks.is_same_installation())
    first.unlink()
    found.append(forks.is_same_installation())
print(json.dumps(found))
"""
    assert run(program) == [True, False, False]
