"""OCI runtimes executed from a sealed copy in memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.runtime.oci import sealed

OLDER = Path(__file__).with_name("programs") / "older_memfd.py"


def said_by(path: str, *arguments: str) -> str:
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["crun", "runc"])
def test_a_runtime_is_executed_once_and_nobody_can_change_it(name: str) -> None:
    path = shutil.which(name)
    assert path is not None
    copy = sealed.command(path)
    assert sealed.command(path) == copy
    assert os.readlink(copy).startswith(f"/memfd:{name}")
    assert Path(copy).read_bytes() == Path(path).read_bytes()
    assert said_by(copy, "--version") == said_by(path, "--version")
    with pytest.raises(PermissionError):
        os.truncate(copy, 0)
    with Path(copy).open("r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"x")


def test_a_runtime_that_was_exchanged_gets_a_new_copy(tmp_path: Path) -> None:
    path = tmp_path / "crun"
    shutil.copy("/bin/true", path)
    before = sealed.command(str(path))
    shutil.copy("/bin/false", tmp_path / "new")
    (tmp_path / "new").replace(path)
    after = sealed.command(str(path))
    assert subprocess.run([after], check=False).returncode == 1
    # What was told the path of the first one may be about to execute it.
    assert subprocess.run([before], check=False).returncode == 0


def test_what_may_need_to_know_its_place_is_executed_as_it_is(tmp_path: Path) -> None:
    script, other = tmp_path / "crun", tmp_path / "kata"
    script.write_text("#!/bin/sh\nexec $(dirname $0)/real\n")
    shutil.copy("/bin/true", other)
    for path in (script, other, tmp_path / "missing"):
        assert sealed.command(str(path)) == str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["crun", "runc"])
def test_a_kernel_that_does_not_know_the_flag_gets_a_copy_without_it(name: str) -> None:
    path = shutil.which(name)
    assert path is not None
    done = subprocess.run([sys.executable, OLDER, str(errno.EINVAL), path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "refused": "EINVAL",
        "copied": True,
        "changed": False,
        "said": said_by(path, "--version"),
    }
    assert done.stderr == ""


@pytest.mark.slow
def test_a_runtime_that_gets_no_copy_is_said_to_get_none() -> None:
    path = shutil.which("crun")
    assert path is not None
    done = subprocess.run([sys.executable, OLDER, str(errno.EACCES), path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["refused"], answer["copied"]) == ("EACCES", False)
    assert answer["said"] == said_by(path, "--version")
    assert done.stderr.startswith(f"WARNING {path} is executed as it is")
    assert "vm.memfd_noexec" in done.stderr
