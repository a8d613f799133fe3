"""A scratch machine for tests of the container mount namespace: one process plays it, others enter and leave.

It has a mount namespace whose ``/`` is shared, as systemd makes it, with a /run of its own, and process IDs of its own:
its PID 1 is the test's body, so what daemons ask PID 1 is answered by this machine and not by the real one.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """
import importlib, json, os, signal, subprocess, sys, threading, traceback
from msgspec.structs import asdict, replace
from pathlib import Path
from podkeep.base import failpoints
from podkeep.base.errors import FailedPrecondition, InvalidArgument, KernelCallError, PodkeepError
from podkeep.kernel import libc
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.libc import CloneFlag
from podkeep.mountns import lifecycle, membership, netns_directory, contents, record
from podkeep.mountns.pin import HostRoot, is_pinned, locate, own, pinned
from podkeep.mountns.namespace_ref import DEFAULT_PIN, KUBENS_PIN, NamespaceRef

spare = Path(sys.argv[1])
pin = DEFAULT_PIN
place = NamespaceRef(pin=pin, may_make=True, source="default")

def mounted(path):
    return [entry for entry in mountinfo.read() if entry.mount_point == str(path)]

def spawn(body, environment=None, **options):
    "Start a body in a process of its own on this machine."
    command = [sys.executable, "-c", sys.argv[2] + body, *sys.argv[1:]]
    return subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **options,
    )

def forked(body, active=""):
    "Run a body in a process of its own, with failpoints, and return its status and what it wrote; faster than spawn()."
    streams = [os.memfd_create("out"), os.memfd_create("err")]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            os.environ["PODKEEP_FAILPOINTS"] = active
            importlib.reload(failpoints)
            exec(body, dict(globals()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    written = []
    for stream in streams:
        os.lseek(stream, 0, os.SEEK_SET)
        with open(stream) as file:
            written.append(file.read())
    return status, *written

def process(body):
    "Run a body in a process of its own on this machine, and return what it printed."
    status, out, err = forked(body)
    assert status == 0, err
    return out.strip()

def killed_at(failpoint, body):
    "Run a body that is killed at a failpoint."
    status, _, err = forked(body, failpoint + "=kill")
    assert status == -signal.SIGKILL, (failpoint, status, err)

def at_pin(*command):
    entered = ["nsenter", f"--mount={pin}", "--", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True).stdout

def refused(kind, call, *arguments, **options):
    "Return the error that a call must end with."
    try:
        call(*arguments, **options)
    except kind as error:
        return error
    raise AssertionError("it was not refused")
"""


def on_a_scratch_machine(tmp_path: Path, body: str, *, timeout: float = 120) -> None:
    """Run a body, after :data:`PRELUDE`, as the only process of a new machine; the real one must be as it was."""
    spare = tmp_path / "spare"
    spare.mkdir()
    shell = 'mount -t tmpfs tmpfs /run && mount --make-rshared / && exec "$@"'
    machine = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c", shell, "sh"]
    command = [*machine, sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(spare), PRELUDE]
    before = Path("/proc/self/mountinfo").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert Path("/proc/self/mountinfo").read_bytes() == before
