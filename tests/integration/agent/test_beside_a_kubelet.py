"""Pods of ``podkeep run`` on a machine with a kubelet, which removes directories of pods that it does not know."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from agent.conftest import Runner, free_blocks, until
from agent.manifests import pod, shell

from podkeep.agent.user_namespaces import blocks as userns
from podkeep.base.config import Config
from podkeep.kernel.mount import mounts
from support import forked
from support.daemon import Daemon


@contextmanager
def kubelet(directory: Path, *options: str) -> Iterator[int]:
    """A process that the machine takes for a kubelet: root's, of this name, with these options."""
    program = Path(shutil.copy("/bin/sh", directory / "kubelet-program"))
    program = program.rename(directory / "kubelet")
    process = subprocess.Popen([program, "-c", "read line", "kubelet", *options], stdin=subprocess.PIPE)
    try:
        until(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == "kubelet", "the kubelet")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("key", "what"), [("agent.root", "pod directories"), ("agent.pod_logs", "logs")])
def test_a_directory_of_a_running_kubelet_is_refused(
    own_runner: Runner, image: str, tmp_path: Path, key: str, what: str
) -> None:
    daemon = own_runner.daemon.start()
    config = tmp_path / "kubelet.yaml"
    directory = daemon.base / ("kubelet" if key == "agent.root" else "logs")
    other = tmp_path / "other"
    root, logs = (directory, other) if key == "agent.root" else (other, directory)
    config.write_text(f"kind: KubeletConfiguration\npodLogsDir: {logs}\n")
    with kubelet(tmp_path, f"--root-dir={root}", f"--config={config}") as pid:
        done = own_runner.run(pod(shell(image, "true")))
    assert done.returncode == 1
    assert done.stderr == (
        f"podkeep: {key}: {directory} is in use by kubelet (pid {pid}), which removes {what} of pods that it does not "
        f"know\nhint: set {key} to something of its own, such as {getattr(Config().agent, key.partition('.')[2])} (the "
        "default)\n"
    )
    assert own_runner.pods() == []
    assert [path.name for path in (daemon.base / "kubelet", daemon.base / "logs") if path.exists()] == []
    assert own_runner.run(pod(shell(image, "true"))).returncode == 0


@pytest.mark.parametrize("below", ["", "pods"])
def test_a_kubelets_directory_is_refused_wherever_it_is_mounted(
    own_runner: Runner, image: str, tmp_path: Path, below: str
) -> None:
    daemon = own_runner.daemon.start()
    ours, theirs = daemon.base / "kubelet", tmp_path / "theirs"
    for directory in (ours / below, theirs / below):
        directory.mkdir(parents=True, exist_ok=True)
    mounts.bind(theirs / below, ours / below)
    with ExitStack() as stack:
        stack.callback(mounts.unmount, ours / below)
        with kubelet(tmp_path, f"--root-dir={theirs}") as pid:
            done = own_runner.run(pod(shell(image, "true")))
        assert done.returncode == 1
        assert f"podkeep: agent.root: {ours} is in use by kubelet (pid {pid})" in done.stderr


def test_a_directory_of_a_kubelet_in_a_container_is_refused_by_its_socket(own_runner: Runner, image: str) -> None:
    daemon = own_runner.daemon.start()
    path = daemon.base / "kubelet/pod-resources/kubelet.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        done = own_runner.run(pod(shell(image, "true")))
        assert done.returncode == 1
        assert f"in use by the kubelet that serves {path}" in done.stderr
        assert own_runner.pods() == []
    # Nobody serves it any more: a kubelet that does not run removes nothing.
    assert own_runner.run(pod(shell(image, "true"))).returncode == 0


def test_the_cgroup_of_a_kubelets_pods_is_refused_while_one_runs(
    own_runner: Runner, image: str, tmp_path: Path
) -> None:
    own_runner.daemon.start()
    own_runner.daemon.settings = ("runtime.cgroup_parent=/kubepods/ours",)
    with kubelet(tmp_path, f"--root-dir={tmp_path / 'other'}"):
        done = own_runner.run(pod(shell(image, "true")))
    assert done.returncode == 1
    assert "podkeep: runtime.cgroup_parent: /kubepods/ours is in use by kubelet" in done.stderr


@pytest.mark.parametrize("how", ["option", "file"])
def test_the_runtime_of_a_kubelet_is_refused_while_it_runs(
    own_runner: Runner, image: str, tmp_path: Path, how: str
) -> None:
    daemon = own_runner.daemon.start()
    link = tmp_path / "link.sock"
    link.symlink_to(daemon.socket)
    config = tmp_path / "kubelet.yaml"
    config.write_text(f"containerRuntimeEndpoint: unix://{link}\n" if how == "file" else "")
    option = f"--container-runtime-endpoint=unix://{link}" if how == "option" else f"--config={config}"
    with kubelet(tmp_path, f"--root-dir={tmp_path / 'other'}", option) as pid:
        done = own_runner.run(pod(shell(image, "true")))
        assert not [line for line in daemon.run("doctor").stdout.splitlines() if line.startswith("missing  kubelet")]
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"podkeep: runtime.socket: {daemon.socket} is the runtime of kubelet (pid {pid}), which ends pods that it does "
        "not know\nhint: give the pod to the kubelet"
    )
    assert own_runner.pods() == []
    assert own_runner.run(pod(shell(image, "true"))).returncode == 0


def test_user_ids_that_a_kubelets_pod_has_are_not_given_to_another(
    own_runner: Runner, image: str, tmp_path: Path
) -> None:
    own_runner.daemon.start()
    record = tmp_path / "other/pods/11111111-2222-3333-4444-555555555555/userns"
    record.parent.mkdir(parents=True)
    kubelets, ours = free_blocks(2)
    record.write_bytes(userns.render(userns.Block(first=kubelets)))
    with kubelet(tmp_path, f"--root-dir={tmp_path / 'other'}"):
        done = own_runner.run(pod(shell(image, "cat /proc/self/uid_map"), hostUsers=False))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", str(ours), "65536"]


@pytest.fixture
def with_defaults(own_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon whose agent has the default directories, on file systems of the test's own."""
    text = own_daemon.config.read_text()
    before, _, after = text.partition("[agent]\n")
    own_daemon.config.write_text(before + "".join(after.splitlines(keepends=True)[2:]))
    with ExitStack() as stack:
        for directory in ("/var/lib", "/var/log"):
            mounts.mount("tmpfs", Path(directory), fstype="tmpfs", data="mode=755")
            stack.callback(mounts.unmount, Path(directory))
        own_daemon.start()
        stack.callback(own_daemon.stop)
        yield own_daemon


def test_pods_made_where_earlier_versions_had_them_are_found_and_removed(
    with_defaults: Daemon, image: str, tmp_path: Path
) -> None:
    daemon = with_defaults
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod(shell(image, "echo said"), hostUsers=False)))
    old = ("--set", "agent.root=/var/lib/kubelet", "--set", "agent.pod_logs=/var/log/pods")
    daemon.run(*old, "run", "--keep", str(manifest), check=True)
    (directory,) = Path("/var/lib/kubelet/pods").iterdir()
    assert len(os.listdir("/var/log/pods")) == 1
    refused = daemon.run("run", str(manifest))
    assert "pod default/web already exists" in refused.stderr
    manifest.write_text(json.dumps(pod(shell(image, "cat /proc/self/uid_map"), name="new", hostUsers=False)))
    assert daemon.run("run", str(manifest), check=True).stdout.split()[1] == str(free_blocks(2)[1])
    removed = daemon.run("rm", "--all", check=True)
    assert removed.stdout == "removed default/web\n"
    assert not directory.exists()
    assert os.listdir("/var/log/pods") == []


def test_pods_are_in_directories_of_podkeeps_own_by_default(with_defaults: Daemon, image: str, tmp_path: Path) -> None:
    daemon = with_defaults
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod(shell(image, "sleep 1000"))))
    with kubelet(tmp_path):
        running = forked.Popen(daemon.command("run", str(manifest)), stderr=subprocess.PIPE)
        until(lambda: '"running"' in daemon.run("ps", "-o", "json").stdout, "the pod")
        assert not Path("/var/lib/kubelet").exists()
        assert not Path("/var/log/pods").exists()
        (directory,) = Path("/var/lib/podkeep/agent/pods").iterdir()
        assert [path.name for path in Path("/var/log/podkeep/pods").iterdir()] == [f"default_web_{directory.name}"]
        daemon.run("rm", "web", "--grace-period", "0", check=True)
        running.communicate()
    assert list(Path("/var/lib/podkeep/agent/pods").iterdir()) == []
