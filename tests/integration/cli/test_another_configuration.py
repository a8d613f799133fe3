"""Callers whose configuration is not that of the runtime that serves: an idle one is replaced, else they are told."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base import in_force
from podkeep.base.in_force import InForce
from support import forked
from support.daemon import Daemon
from support.images import busybox_layout
from support.waiting import TIMEOUT_S

TOLD = "podkeep: the runtime that serves has another configuration; not in force: "


@pytest.fixture
def stopped(open_directory: Path, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon's configuration; what runs with it at the end is ended."""
    base = Path(tempfile.mkdtemp(dir=open_directory))
    base.chmod(0o711)
    daemon = Daemon(base=base)
    yield daemon
    if daemon.listens():
        daemon.run("rm", "--all", "--grace-period", "0")
        daemon.run("runtime", "stop")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An archive of an image for :func:`pod`."""
    return busybox_layout(tmp_path / "layout", name="localhost/busybox:1").tar(tmp_path / "image.tar")


def pod(path: Path, script: str = "true") -> Path:
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", script]}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": path.stem}, "spec": spec}))
    return path


def told(daemon: Daemon) -> InForce:
    found = in_force.read(daemon.layout.run, daemon.socket)
    assert found is not None
    return found


def pids_limit(daemon: Daemon) -> int:
    return int(told(daemon).config["runtime"]["pids_limit"])


def test_an_idle_runtime_is_replaced_by_one_with_the_callers_configuration(stopped: Daemon, tmp_path: Path) -> None:
    file = pod(tmp_path / "one.json")
    stopped.run("run", str(file))  # its image is not there; the runtime stays
    first = told(stopped)
    done = stopped.run("--set", "runtime.pids_limit=77", "run", str(file))
    assert TOLD not in done.stderr
    assert pids_limit(stopped) == 77
    assert told(stopped).pid != first.pid
    # The same again, and what no runtime reads: nothing to replace.
    second = told(stopped)
    stopped.run("--set", "runtime.pids_limit=77", "--set", "agent.max_pods=5", "run", str(file))
    assert told(stopped) == second


def test_a_runtime_with_a_pod_stays_and_the_caller_is_told(stopped: Daemon, image: Path, tmp_path: Path) -> None:
    stopped.run("run", str(pod(tmp_path / "none.json")))
    stopped.run("image", "load", str(image), check=True)
    assert stopped.run("run", "--keep", str(pod(tmp_path / "kept.json"))).returncode == 0
    first = told(stopped)
    options = ("--set", "runtime.pids_limit=77", "--set", 'registries."h:5".insecure=true')
    done = stopped.run(*options, "run", str(pod(tmp_path / "two.json", "echo works")))
    assert (done.returncode, done.stdout) == (0, "works\n")
    assert done.stderr.startswith(f"{TOLD}registries.h:5, runtime.pids_limit\nhint: ")
    assert told(stopped) == first
    pulled = stopped.run(*options, "image", "pull", "h:5/x:1")
    assert f"{TOLD}registries.h:5, runtime.pids_limit\n" in pulled.stderr
    assert TOLD not in stopped.run("--set", "runtime.pids_limit=0", "ps").stderr


def test_a_runtime_that_somebody_started_is_not_replaced(stopped: Daemon, tmp_path: Path) -> None:
    stopped.start()
    assert not told(stopped).replaceable
    done = stopped.run("--set", "runtime.pids_limit=77", "run", str(pod(tmp_path / "one.json")))
    assert f"{TOLD}runtime.pids_limit\n" in done.stderr
    assert told(stopped).pid == stopped.pid


def test_what_a_reload_has_put_into_force_is_what_callers_are_compared_with(stopped: Daemon, tmp_path: Path) -> None:
    stopped.start()
    stopped.config.write_text(f'{stopped.config.read_text()}\n[registries."h:5"]\ninsecure = true\n')
    file = pod(tmp_path / "one.json")
    assert f"{TOLD}registries.h:5\n" in stopped.run("run", str(file)).stderr
    stopped.process.send_signal(signal.SIGHUP)
    while "h:5" not in told(stopped).config["registries"]:
        assert stopped.listens()
    assert TOLD not in stopped.run("run", str(file)).stderr
    status = json.loads(stopped.run("doctor", "-o", "json").stdout)
    assert any(item["name"] == "runtime" and item["level"] == "ok" for item in status)


def test_two_at_once_with_different_configurations_never_take_the_others_runtime(
    stopped: Daemon, image: Path, tmp_path: Path
) -> None:
    stopped.run("run", str(pod(tmp_path / "none.json")))
    stopped.run("image", "load", str(image), check=True)
    script = "cat /sys/fs/cgroup/pids/pids.max || cat /sys/fs/cgroup/pids.max"
    for attempt in range(2):
        commands = {
            limit: forked.Popen(
                stopped.command(
                    "--set",
                    f"runtime.pids_limit={limit}",
                    "run",
                    str(pod(tmp_path / f"p{limit}-{attempt}.json", f"({script}) 2>/dev/null")),
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for limit in range(100 + 10 * attempt, 103 + 10 * attempt)
        }
        said = {limit: command.communicate(timeout=2 * TIMEOUT_S) for limit, command in commands.items()}
        assert all(command.returncode == 0 for command in commands.values()), said
        # Whoever was not told had a runtime with its own configuration, for as long as it ran. All are told if each
        # sees that the others have a claim on the one that serves.
        for limit, (output, text) in said.items():
            assert text == "" or text.startswith(f"{TOLD}runtime.pids_limit\n"), said
            assert (text == "") == (f"{limit}\n" in output), said
