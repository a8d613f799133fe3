"""``make shell`` and ``make trace``: a runtime to try things with, what one request did, and nothing left of either."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podkeep.kernel.cgroup.cgroups import Cgroups
from support import processes
from support.documents import ROOT
from support.waiting import TIMEOUT_S, wait_for

pytestmark = pytest.mark.container_mounts("hidden", reason="it is a machine of its own, with the default")
WORKBENCH = (sys.executable, "-m", "support.workbench")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"}
HERE = 'echo "base $WORKBENCH"; sed -n "s/^cgroup_parent = /cgroup /p" "$PODKEEP_CONFIG"'


def run(*arguments: str, script: str = "", status: int = 0) -> str:
    done = subprocess.run(
        [*WORKBENCH, *arguments], input=script, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def require_nothing_left(said: str) -> None:
    """Check that the machine that said so is gone: its directory, its processes, its cgroups."""
    [base], [cgroup] = (
        re.findall(r"^base (.+)$", said, re.MULTILINE),
        re.findall(r'^cgroup "(.+)"$', said, re.MULTILINE),
    )
    assert not Path(base).parent.exists()
    assert processes.find_by_argument(base) == []
    assert not Cgroups().exists(cgroup)


def test_commands_in_the_shell_reach_a_runtime_that_is_gone_at_its_end() -> None:
    said = run(
        "shell",
        script=f"{HERE}\npodkeep run examples/userns.yaml --keep >/dev/null &\n{POD}\nexit 7\n",
        status=7,
    )
    assert "userns   default     1/1" in said
    require_nothing_left(said)


POD = """\
until podkeep ps | grep -q 1/1; do sleep 0.1; done
podkeep ps
echo "endpoint $CONTAINER_RUNTIME_ENDPOINT"
podkeep image pull -q "$IMAGE"
"""


def test_a_shell_that_is_told_to_end_leaves_nothing() -> None:
    with subprocess.Popen(
        [*WORKBENCH, "shell", "--run", f"{HERE}; exec sleep 1000"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        said = "".join(shell.stdout.readline() for _ in range(2))
        [base] = re.findall(r"^base (.+)$", said, re.MULTILINE)
        wait_for(lambda: processes.find_by_argument(base), "its runtime")
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    require_nothing_left(said)


def test_a_trace_has_the_steps_the_failpoints_and_the_programs_of_a_request() -> None:
    said = run("trace", "CreateContainer", "--least", "0")
    assert said.startswith("CreateContainer: the last of 2 requests")
    places = [said.index(text) for text in ("Containers._make", "ContainerExecutor.create", "* container.rootfs")]
    assert places == sorted(places)
    [executor] = re.findall(r"^.*ContainerExecutor\.create .*$", said, re.MULTILINE)
    assert "[thread work_" in executor
    assert re.search(r"\$ \S*conmon --cid [0-9a-f]{12}…", said)
    assert "# runtime.v1.RuntimeService/CreateContainer took" in said
    assert "goes on" not in said.partition("ContainerExecutor.create")[2].partition("* container.rootfs")[0]


def test_a_trace_of_what_a_command_asks_for() -> None:
    said = run("trace", "DescribeImages", "--run", f"{HERE}; podkeep image ls")
    assert "localhost/busybox" in said
    assert "DescribeImages: its one request" in said
    require_nothing_left(said)


def test_a_command_that_makes_no_such_request_is_told() -> None:
    assert "made no request Version" in run("trace", "Version", "--run", "true")


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(AssertionError, match="invalid choice: 'RunPod'"):
        run("trace", "RunPod")
