"""Working directories that lead to a descriptor of the OCI runtime (CVE-2024-21626 is one of runc's own)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.kernel.process import procfs
from support.cri import BLOCK, Pods, namespaces, pod
from support.daemon import Daemon

HIGHEST = 128
"""Descriptors of the daemon have numbers below it here; what conmon inherits keeps its number."""


@pytest.mark.parametrize("userns", [False, True], ids=["host users", "own users"])
def test_no_descriptor_leads_a_container_out_of_its_root(
    daemon: Daemon, pods: Pods, tmp_path: Path, userns: bool
) -> None:
    logs = tmp_path / "logs"
    options = namespaces(user=BLOCK) if userns else None
    sandbox = pods.run(pod(log_directory=str(logs), **({"options": options} if options else {})))
    assert max(map(int, os.listdir(f"/proc/{daemon.pid}/fd"))) < HIGHEST
    for number in range(3, HIGHEST):
        path = f"/proc/self/fd/{number}"
        with pytest.raises(PodkeepError) as refused:
            pods.create(sandbox, name=f"c{number}", working_dir=path, log_path=f"{number}.log")
        assert isinstance(refused.value, InvalidArgument), str(refused.value)
        assert "chdir" in str(refused.value)


def test_conmon_holds_no_directory_that_the_oci_runtime_would_inherit(
    daemon: Daemon, pods: Pods, tmp_path: Path
) -> None:
    container = pods.launch(pods.run(pod(log_directory=str(tmp_path))), log_path="0.log")
    conmon = procfs.identify(int((daemon.layout.bundle(container) / "conmon.pid").read_text()))
    held = [entry for entry in Path(f"/proc/{conmon.pid}/fd").iterdir() if entry.is_dir()]
    # Its own are closed when it executes something.
    flags = [(Path(f"/proc/{conmon.pid}/fdinfo") / entry.name).read_text().split("flags:\t")[1] for entry in held]
    assert all(int(text.split()[0], 8) & os.O_CLOEXEC for text in flags), held


@pytest.mark.parametrize("letter", ["é", "\N{GRINNING FACE}"], ids=["two bytes", "four bytes"])
def test_a_long_working_directory_in_any_script_is_the_requests_fault(pods: Pods, letter: str) -> None:
    """crun cuts its message after so many bytes, also in the middle of a letter."""
    sandbox = pods.run()
    for shift in range(len(letter.encode())):
        path = "/" + "a" * shift + letter * (4080 // len(letter.encode()))
        with pytest.raises(PodkeepError) as refused:
            pods.create(sandbox, working_dir=path)
        assert isinstance(refused.value, InvalidArgument), str(refused.value)
        assert "File name too long" in str(refused.value)
