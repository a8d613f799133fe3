"""Directories that no record names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition
from podkeep.runtime.lifecycle.orphans import remove_orphan
from support import setuid

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's processes work on a sandbox")


def test_one_that_roots_process_works_on_stays(tmp_path: Path) -> None:
    orphan = tmp_path / ("ab" * 32)
    orphan.mkdir()
    script = "echo; read end"
    with subprocess.Popen(
        ["sh", "-c", script, "conmon", orphan.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FailedPrecondition, match=f"process {process.pid} works on it"):
            remove_orphan(orphan)
        process.communicate(b"\n")
    remove_orphan(orphan)
    assert not orphan.exists()


@pytest.mark.slow
@pytest.mark.parametrize("changes_user", [False, True])
def test_the_arguments_of_users_keep_none(tmp_path: Path, changes_user: bool) -> None:
    orphan = tmp_path / ("ab" * 32)
    orphan.mkdir()
    argv = ["sh", "-c", "echo; read end", "conmon", orphan.name]
    with (
        setuid.started("conmon", orphan.name, changes_user=changes_user),
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=setuid.USER, group=setuid.USER, extra_groups=[]
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        remove_orphan(orphan)
        process.communicate(b"\n")
    assert not orphan.exists()
