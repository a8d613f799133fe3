"""Where a runtime is, by what it says and by who listens on its socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.agent.mount_namespace import RuntimeNamespace, of_listener, reported
from podkeep.mountns.pin import own


def test_what_podkeep_says() -> None:
    said = json.dumps({"inode": 7, "pin": "", "hidden": True, "inSync": False})
    assert reported(said) == RuntimeNamespace(inode=7, hidden=True)
    for nothing in ("", "4026531840", "{}", "[]", '{"inode": null, "hidden": true}'):
        assert reported(nothing) is None


@pytest.mark.requirement("M35")
def test_a_runtime_that_says_nothing_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    assert of_listener(path) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        here = of_listener(path)
    assert here is not None
    assert here.inode == own()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a mount namespace")
def test_one_that_listens_in_another_namespace(tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    listen = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    command = ["unshare", "--mount", sys.executable, "-c", f"{listen}; print(flush=True); input()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        there = of_listener(path)
        assert there == RuntimeNamespace(inode=os.stat(f"/proc/{process.pid}/ns/mnt").st_ino)
        process.communicate(b"\n")
    assert there.inode != own()
