"""`podkeep run` brings the runtime up: two at once, a runtime that cannot start, and what stays of that one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base import config, lockfile
from podkeep.base.errors import FailedPrecondition
from podkeep.cli.core import background
from podkeep.cli.core.output import EXIT_CONFIGURATION
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.mounts import MountFlag
from support import forked
from support.daemon import Daemon
from support.images import busybox_layout
from support.waiting import TIMEOUT_S


@pytest.fixture
def stopped(open_directory: Path) -> Iterator[Daemon]:
    """A daemon's configuration; what runs with it at the end is ended."""
    base = Path(tempfile.mkdtemp(dir=open_directory))
    base.chmod(0o711)
    daemon = Daemon(base=base)
    yield daemon
    if daemon.listens():
        daemon.run("runtime", "stop")


def pod(path: Path) -> Path:
    spec = {"containers": [{"name": "main", "image": "localhost/absent:1", "imagePullPolicy": "Never"}]}
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": path.stem}, "spec": spec}),
    )
    return path


def test_two_that_start_the_runtime_at_once_both_have_it(stopped: Daemon, tmp_path: Path) -> None:
    files = [pod(tmp_path / "one.json"), pod(tmp_path / "two.json")]
    commands = [
        forked.Popen(stopped.command("run", str(file)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for file in files
    ]
    said = [command.communicate(timeout=TIMEOUT_S)[1] for command in commands]
    assert all("localhost/absent:1" in text for text in said), said
    assert (stopped.layout.root / "runtime.log").stat().st_mode & 0o777 == 0o600
    assert lockfile.IN_USE not in "".join(said)
    assert stopped.listens()


def test_stop_and_removals_report_json(stopped: Daemon, tmp_path: Path) -> None:
    stopped.start()
    archive = busybox_layout(tmp_path / "layout", name="localhost/busybox:json").tar(tmp_path / "image.tar")
    assert len(json.loads(stopped.run("image", "load", str(archive), "-o", "json", check=True).stdout)) == 1
    removed = stopped.run("image", "rm", "localhost/busybox:json", "-o", "json", check=True)
    assert "localhost/busybox:json" in json.loads(removed.stdout)[0]["untagged"]
    ended = stopped.run("runtime", "stop", "-o", "json", check=True)
    assert json.loads(ended.stdout) == {"stopped": stopped.socket}
    assert not stopped.layout.run.exists()


def test_directories_that_another_process_has_are_waited_for(stopped: Daemon) -> None:
    stopped.layout.run.mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from podkeep.base import lockfile;"
        "fd = lockfile.acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(stopped.layout.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert lockfile.is_held(stopped.layout.lock)
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from podkeep.base import config;"
            "from podkeep.cli.core import background;"
            "path = Path(sys.argv[1]); print(background.ensure_running(config.load(path), ['--config', str(path)]))",
            str(stopped.config),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    log = stopped.layout.root / "runtime.log"
    while not (log.exists() and lockfile.IN_USE in log.read_text()):
        assert waiting.poll() is None
    holder.communicate(timeout=TIMEOUT_S)
    assert waiting.communicate(timeout=TIMEOUT_S)[0] == "True\n"
    assert stopped.listens()


def test_hint_of_a_runtime_that_cannot_start_is_passed_on(stopped: Daemon) -> None:
    stopped.config.write_text(stopped.config.read_text() + '[registries."no host"]\nnonsense = 1\n')
    good = stopped.config.read_text().partition("[registries")[0]
    bad, stopped.config = stopped.config, stopped.base / "good.toml"
    stopped.config.write_text(good)
    with pytest.raises(FailedPrecondition) as failed:
        background.ensure_running(config.load(stopped.config), ["--config", str(bad)])
    assert "nonsense" in failed.value.message
    assert failed.value.hint == (
        f"docs/configuration.md lists every key; its log is {stopped.layout.root / 'runtime.log'}"
    )


def refused(daemon: Daemon, status: int = 1) -> str:
    done = daemon.run("runtime")
    assert done.returncode == status, done.stderr
    return done.stderr


@pytest.mark.parametrize(("key", "value"), [("default_handler", "absent"), ("cgroup_parent", "not/absolute")])
def test_configuration_with_which_none_starts_leaves_nothing(stopped: Daemon, key: str, value: str) -> None:
    lines = [line for line in stopped.config.read_text().splitlines() if not line.startswith(f"{key} ")]
    stopped.config.write_text("\n".join(lines).replace("[runtime]", f'[runtime]\n{key} = "{value}"'))
    assert value in refused(stopped, EXIT_CONFIGURATION)
    assert not stopped.layout.run.exists()


@pytest.mark.parametrize("key", ["root", "run"])
@pytest.mark.parametrize("verb", ["runtime", "run"])
def test_a_directory_that_cannot_be_written_is_one_clear_error(
    stopped: Daemon, tmp_path: Path, key: str, verb: str
) -> None:
    top = stopped.base / "read-only"
    top.mkdir(mode=0o711)
    stopped.config.write_text(stopped.config.read_text().replace(f'"{stopped.base / key}"', f'"{top / "d" / key}"'))
    mounts.mount("tmpfs", top, fstype="tmpfs", flags=MountFlag.RDONLY)
    try:
        done = stopped.run(verb, *([str(pod(tmp_path / "one.json"))] if verb == "run" else []))
        report = json.loads(stopped.run("doctor", "-o", "json").stdout)
        checked = stopped.run("config", "check")
    finally:
        mounts.unmount(top)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"podkeep: runtime.{key}: {top}/d")
    assert error.endswith(" cannot be written: Read-only file system")
    assert hint.startswith(f"hint: set runtime.{key} to a directory that can be written")
    (found,) = [item for item in report if item["name"] == f"runtime.{key}"]
    assert (found["level"], found["detail"]) == ("missing", f"{top}/d/{key}: cannot be written")
    assert checked.returncode == 1
    assert re.search(rf"^missing +runtime\.{key} +{top}/d/{key}: cannot be written$", checked.stdout, re.MULTILINE)
    assert checked.stderr.startswith(
        f"podkeep: {stopped.config}: what it names is not there, or cannot be used: runtime.{key}\n"
    )


@pytest.mark.parametrize("verb", ["runtime", "run"])
def test_a_directory_of_the_socket_that_cannot_be_written_is_no_defect(
    stopped: Daemon, tmp_path: Path, verb: str
) -> None:
    top = stopped.base / "read-only"
    top.mkdir(mode=0o711)
    mounts.mount("tmpfs", top, fstype="tmpfs", flags=MountFlag.RDONLY)
    setting = ("--set", f"runtime.socket={top}/d/podkeep.sock")
    try:
        done = stopped.run(*setting, verb, *([str(pod(tmp_path / "one.json"))] if verb == "run" else []))
        checked = stopped.run(*setting, "config", "check")
    finally:
        mounts.unmount(top)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.endswith(f"runtime.socket: {top}/d cannot be written: Read-only file system")
    assert f"`findmnt --target {top}` says" in hint
    assert not stopped.layout.run.exists()
    assert re.search(rf"^missing +runtime\.socket +{top}/d: cannot be written$", checked.stdout, re.MULTILINE)


def test_a_socket_may_be_an_address(stopped: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CRI's clients name it."""
    monkeypatch.chdir(tmp_path)
    stopped.socket = str(stopped.base / "missing/podkeep.sock")
    stopped.settings = (f"runtime.socket=unix://{stopped.socket}",)
    assert stopped.start().run("ps").returncode == 0
    assert stopped.stop() == 0
    assert not Path(stopped.socket).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["run", "agent"])
@pytest.mark.parametrize("key", ["root", "pod_logs"])
def test_a_directory_of_pods_that_cannot_be_written_is_no_defect(
    stopped: Daemon, tmp_path: Path, key: str, verb: str
) -> None:
    top = stopped.base / "read-only"
    top.mkdir(mode=0o711)
    mounts.mount("tmpfs", top, fstype="tmpfs", flags=MountFlag.RDONLY)
    try:
        arguments = [str(pod(tmp_path / "one.json"))] if verb == "run" else []
        done = stopped.run("--set", f"agent.{key}={top}/agent", verb, *arguments)
        checked = stopped.run("--set", f"agent.{key}={top}/agent", "config", "check")
    finally:
        mounts.unmount(top)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"podkeep: agent.{key}: {top}/agent cannot be written: Read-only file system"
    assert not stopped.layout.run.exists(), "no runtime was started for it"
    assert checked.returncode == 1
    assert re.search(rf"^missing +agent\.{key} +{top}/agent: cannot be written$", checked.stdout, re.MULTILINE)


def corrupt(daemon: Daemon) -> None:
    daemon.layout.root.mkdir(parents=True)
    daemon.layout.state.write_bytes(b"no database at all" * 100)


def test_corrupt_state_leaves_nothing_of_a_start(stopped: Daemon) -> None:
    corrupt(stopped)
    assert str(stopped.layout.state) in refused(stopped)
    assert not stopped.layout.run.exists()
    assert stopped.layout.state.exists()


def test_what_may_be_a_pods_stays_after_a_failure(stopped: Daemon) -> None:
    corrupt(stopped)
    kept = stopped.layout.run / "containers" / "c1" / "config.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    refused(stopped)
    assert kept.exists()
    assert (stopped.layout.run / "handlers").is_dir()
