"""What ``podkeep run`` does when its terminal or the runtime goes away, and of which pod it speaks."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess

import pytest
from agent.conftest import Background, Runner, interrupt, until
from agent.manifests import pod, shell

from podkeep.kernel.process import procfs
from support import processes


def test_a_hangup_ends_the_pod(runner: Runner, image: str) -> None:
    process = runner.start(pod(shell(image, "echo up; exec sleep 1000")))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    status, _, said = interrupt(process, signal.SIGHUP)
    assert status == 128 + signal.SIGHUP
    assert "podkeep: " not in said
    assert runner.pods() == []
    assert runner.rows() == []


def test_a_terminal_that_is_closed_ends_the_pod(runner: Runner, image: str) -> None:
    """Nothing can be written to it any more, which must not keep the pod from being ended."""
    file = runner.file(pod(shell(image, "trap 'echo bye; exit 3' TERM; while :; do echo up; sleep 0.1; done")))
    terminal, other = pty.openpty()
    # The leader of a session gets SIGHUP when its terminal is closed.
    process = subprocess.Popen(
        ["setsid", "--ctty", *runner.daemon.command("run", str(file))], stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    until(lambda: b"up" in os.read(terminal, 1 << 16), "its output")
    os.close(terminal)
    assert process.wait(timeout=60) != 0
    assert runner.pods() == []
    assert runner.rows() == []


def test_a_hangup_that_is_ignored_stays_so(runner: Runner, image: str) -> None:
    """As nohup(1) has it: the pod goes on."""
    file = runner.file(pod(shell(image, "echo up; until [ -e /tmp/end ]; do sleep 0.1; done; echo end")))
    process = Background(
        ["nohup", *runner.daemon.command("run", str(file))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    assert runner.daemon.run("exec", "web", "--", "touch", "/tmp/end").returncode == 0
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "end\n"), err


def test_a_runtime_that_is_away_for_long_does_not_end_the_run(own_runner: Runner, image: str) -> None:
    own_runner.daemon.start()
    process = own_runner.start(pod(shell(image, "echo up; until [ -e /tmp/end ]; do sleep 0.1; done; exit 9")))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "up\n"
    own_runner.daemon.kill()
    assert any("trying again" in line for line in process.stderr)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=32)
    own_runner.daemon.start()
    until(lambda: own_runner.daemon.run("exec", "web", "--", "touch", "/tmp/end").returncode == 0, "the command")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 9
    assert said.count("the runtime answers again") == 1


def test_a_step_during_which_the_runtime_ends_is_taken_again(own_runner: Runner, image: str) -> None:
    daemon = own_runner.daemon.start()
    helper = processes.namespace_helper(daemon.pid)
    assert procfs.kill(helper, signal.SIGSTOP)
    process = own_runner.start(pod(shell(image, "echo up"), hostUsers=False))
    until(lambda: list(daemon.layout.root.glob("sandboxes/*")), "the sandbox is being made")
    daemon.kill()
    assert procfs.kill(helper, signal.SIGKILL)
    daemon.start()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "up\n"), err
    assert "trying again" in err


@pytest.mark.parametrize(
    "broken",
    [
        {"volumes": [{"name": "v", "configMap": {"name": "none"}}]},
        {"runtimeClassName": "none"},
        {"hostUsers": False, "runtimeClassName": "none"},
        {
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["h"]}],
            "volumes": [{"name": "v", "secret": {"secretName": "none"}}],
        },
    ],
)
def test_errors_of_a_file_with_several_pods_name_the_pod(runner: Runner, image: str, broken: dict[str, object]) -> None:
    fine = pod(shell(image, "sleep 1000"), name="fine")
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]} if "volumes" in broken else {}
    done = runner.run(fine, pod(shell(image, "true", **mounts), name="broken", **broken))
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("podkeep: ")]
    assert error.startswith("podkeep: broken: ")
    missing = shell(image.rpartition("/")[0] + "/nothing:1", "true", imagePullPolicy="Never")
    done = runner.run(fine, pod(missing, name="broken"))
    assert "podkeep: broken: " in done.stderr


def test_times_of_pods_are_rfc_3339(runner: Runner, image: str) -> None:
    assert runner.run(pod(shell(image, "true")), options=("--keep",)).returncode == 0
    (row,) = json.loads(runner.daemon.run("ps", "--all", "-o", "json").stdout)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["created_at"])
    assert runner.daemon.run("rm", "web").returncode == 0
