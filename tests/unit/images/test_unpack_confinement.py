"""What the unpack process can reach, seen from outside while it stands still, and by trying from inside."""

from __future__ import annotations

import ctypes
import errno
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from podkeep.base.spawn import own_command
from podkeep.images.layers import messages
from podkeep.images.layers.forms import form_of
from podkeep.images.worker.layers import decode_report
from podkeep.kernel.mount import mountinfo
from podkeep.kernel.process import confine
from podkeep.kernel.process.confine import Capability
from support.images import file, tar
from support.unpacking import REQUEST

MAKES = form_of(REQUEST.driver).makes
_PTRACE_SEIZE = 0x4206
PROGRAM = Path(__file__).with_name("programs") / "try_to_leave.py"


def test_a_confined_process_sees_its_root_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [str(tmp_path), str(os.getpid()), str(server.getsockname()[1])]
        # As the worker does it: the process is the first of a PID namespace.
        isolated = ["unshare", "--pid", "--fork", sys.executable, PROGRAM, *arguments]
        done = subprocess.run(isolated, check=True, capture_output=True, timeout=60)
    tried = json.loads(done.stdout)
    assert tried == {
        "list": "['mine']",
        "up": "['mine']",
        "chroot": errno.EPERM,
        "mount": errno.EPERM,
        "unshare": errno.EPERM,
        "open device": errno.EACCES,
        "signal": errno.ESRCH,
        "connect": errno.ENETUNREACH,
    }
    assert mountinfo.under(tmp_path) == []


@pytest.mark.slow
@pytest.mark.requirement("V61")
def test_the_unpack_process_has_given_up_what_it_does_not_need(tmp_path: Path) -> None:
    root = tmp_path / "layer"
    root.mkdir()
    request = structs.replace(REQUEST, root=str(root))
    process = subprocess.Popen(
        own_command("podkeep.images.layers.unpack"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PODKEEP_FAILPOINTS": "unpack-confined=stop"},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(messages.encode(request) + b"\n" + tar([file("a", "x")]))
        process.stdin.flush()
        proc = Path("/proc") / str(process.pid)
        deadline = time.monotonic() + 20
        while _status(proc)["State"][0] != "T":
            assert time.monotonic() < deadline, "the process never stopped at the failpoint"
            time.sleep(0.01)
        status = _status(proc)
        kept = sum(1 << number for number in Capability)
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {kept}
        assert (int(status["CapInh"], 16), int(status["CapAmb"], 16)) == (0, 0)
        assert status["NoNewPrivs"] == "1"
        assert status["Threads"] == "1"
        assert (status["Seccomp"], status["Seccomp_filters"]) == ("2", "1")
        # Nothing to climb out on: no directory is open, and of files only the record of this layer.
        opened = {entry.name: entry.readlink() for entry in (proc / "fd").iterdir() if int(entry.name) > 2}
        assert set(opened.values()) == {tmp_path / "layer.headers"}
        limits = (proc / "limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)
        assert re.search(r"Max open files +256 +256 ", limits)
        assert re.search(r"Max address space +1073741824 +1073741824 ", limits)
        assert re.search(rf"Max file size +{REQUEST.max_bytes + (1 << 30)} ", limits)
        for namespace in ("mnt", "net", "ipc", "uts"):
            assert (proc / "ns" / namespace).readlink() != Path("/proc/self/ns", namespace).readlink()
        (mount,) = (proc / "mountinfo").read_text().splitlines()
        assert mount.split()[3].endswith(str(root))
        assert {"nosuid", "nodev", "noexec"} <= set(mount.split()[5].split(","))
        interfaces = (proc / "net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=20)
        assert isinstance(decode_report(output, MAKES), messages.Unpacked)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    assert (root / "a").read_text() == "x"


def _status(proc: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in (proc / "status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


@pytest.mark.slow
def test_a_process_that_refuses_a_layer_ends_in_peace(tmp_path: Path) -> None:
    """Its threads have no libraries to end with: they are not to be asked to."""
    refused = gzip.compress(tar([file("a/../b", "x"), file("rest", os.urandom(4 << 20))]), 1)
    for number in range(10):
        root = tmp_path / str(number)
        root.mkdir()
        request = messages.encode(structs.replace(REQUEST, root=str(root), compression="gzip")) + b"\n"
        done = subprocess.run(
            own_command("podkeep.images.layers.unpack"),
            input=request + refused,
            capture_output=True,
            check=False,
            timeout=60,
        )
        report = decode_report(done.stdout, MAKES)
        assert isinstance(report, messages.Refused)
        assert "holds '..'" in report.error
        assert (done.returncode, done.stderr) == (0, b"")


def test_nobody_with_the_same_capabilities_traces_a_confined_process() -> None:
    """As a container's root, who sees the machine's processes, might: it would choose what other pods run."""
    reading, writing = os.pipe()
    confined = os.fork()
    if confined == 0:
        confine.drop_privileges(Capability)
        os.write(writing, b"x")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"x"
        tracer = os.fork()
        if tracer == 0:
            confine.drop_privileges(Capability)
            refused = ctypes.CDLL(None, use_errno=True)["ptrace"](_PTRACE_SEIZE, confined, None, None) == -1
            os._exit(ctypes.get_errno() if refused else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(tracer, 0)[1]) == errno.EPERM
    finally:
        os.close(reading)
        os.close(writing)
        os.kill(confined, signal.SIGKILL)
        os.waitpid(confined, 0)
