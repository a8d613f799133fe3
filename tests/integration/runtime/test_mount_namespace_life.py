"""The container mount namespace in the life of a daemon: which one it is in, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base import lockfile
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.network import netlink
from podkeep.kernel.process import procfs
from podkeep.mountns import lifecycle
from podkeep.mountns.pin import own, pinned
from support import forked, scratch
from support.container_mounts import ContainerMounts
from support.cri import Pods
from support.daemon import Daemon
from support.mortal import Mortal

pytestmark = pytest.mark.container_mounts("hidden", reason="which namespace a daemon is in is what these are about")

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {{name: life}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: main, image: "{image}", command: [sh, -c, "{script}"], volumeMounts: [{{name: v, mountPath: /v}}]}}
  volumes: [{{name: v, emptyDir: {{medium: Memory}}}}]
"""


@pytest.fixture
def own_daemon(open_directory: Path, registry: object) -> Iterator[Daemon]:
    """A daemon of the test's own, not started, that hides its mounts; nothing of it may be left."""
    base = open_directory / os.urandom(4).hex()
    base.mkdir()
    host = registry.host  # type: ignore[attr-defined]
    daemon = Daemon(base, extra=f'[registries."{host}"]\ninsecure = true\n', mounts=ContainerMounts.HIDDEN)
    # As a daemon that shows its mounts has it, once for all tests.
    scratch.detach_unified()
    before = machine()
    yield daemon
    assert machine() == before
    assert not (base / "mountns").exists()
    assert not daemon.layout.run.exists()


def machine() -> tuple[object, ...]:
    """Return what a daemon changes on its machine, but for its firewall table."""
    return mountinfo.read(), sorted(netlink.links())


def pin_of(daemon: Daemon) -> Path:
    return daemon.base / "mountns/mnt"


def namespace_of(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/mnt").stat().st_ino


def runs(daemon: Daemon, *options: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a runtime with options of its own."""
    return forked.Popen(
        daemon.command("runtime", *options),
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def serving(daemon: Daemon, process: subprocess.Popen[str]) -> int:
    """Wait until a runtime serves, and return the mount namespace that it is in."""
    deadline = time.monotonic() + 60
    while not daemon.listens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return namespace_of(process.pid)


def ended(process: subprocess.Popen[str]) -> str:
    """End a runtime with SIGTERM and return what it wrote."""
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return error


def refusal(daemon: Daemon, *options: str, environment: dict[str, str] | None = None) -> str:
    """Return what a runtime says that must not start, as one line with a hint."""
    _, error = (process := runs(daemon, *options, environment=environment)).communicate(timeout=60)
    assert process.returncode == 1, error
    message, hint = error.splitlines()
    assert message.startswith("podkeep: ")
    assert hint.startswith("hint: ")
    return message


def test_podkeep_run_on_a_machine_with_nothing_leaves_nothing(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    before = machine()
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(MANIFEST.format(image=image, script="echo out; ls -d /v"))
    done = own_daemon.run("run", str(manifest), timeout=120)
    assert (done.returncode, done.stdout) == (0, "out\n/v\n"), done.stderr
    # The runtime that it started waits for more, in what was made on demand.
    assert lifecycle.status(pin_of(own_daemon)).on_demand
    own_daemon.run("runtime", "stop", check=True)
    assert machine() == before
    assert not pin_of(own_daemon).parent.exists()


@pytest.mark.requirement("M29")
def test_pods_keep_it_and_the_next_runtime_is_in_the_same(own_daemon: Daemon, image: str) -> None:
    mortal = Mortal(own_daemon, image)
    try:
        pods = mortal.start()
        container = pods.launch(pods.run())
        process = procfs.identify(pods.host_pid(container))
        inode = pinned(pin_of(own_daemon))
        assert inode == namespace_of(own_daemon.pid)
        for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            os.kill(own_daemon.pid, how)
            assert own_daemon.process is not None
            own_daemon.process.wait(timeout=60)
            assert pinned(pin_of(own_daemon)) == inode
            mortal.start()
            assert namespace_of(own_daemon.pid) == inode
        assert procfs.alive(process)
    finally:
        mortal.close()
    assert pinned(pin_of(own_daemon)) is None


def test_one_left_by_a_killed_runtime_without_pods_is_taken_over_and_removed(own_daemon: Daemon) -> None:
    own_daemon.start()
    inode = pinned(pin_of(own_daemon))
    own_daemon.kill()
    assert pinned(pin_of(own_daemon)) == inode
    own_daemon.start()
    assert namespace_of(own_daemon.pid) == inode
    assert own_daemon.stop() == 0
    assert pinned(pin_of(own_daemon)) is None


def test_nobody_inside_is_cut_off(own_daemon: Daemon) -> None:
    own_daemon.start()
    inode = pinned(pin_of(own_daemon))
    shell = ["nsenter", f"--mount={pin_of(own_daemon)}", "sh", "-c", "echo up; read go"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as somebody:
        assert somebody.stdout is not None
        assert somebody.stdout.readline() == b"up\n"
        assert own_daemon.stop() == 0
        assert pinned(pin_of(own_daemon)) == inode
        own_daemon.start()
        assert namespace_of(own_daemon.pid) == inode
        somebody.communicate(b"\n")
    assert own_daemon.stop() == 0
    assert pinned(pin_of(own_daemon)) is None


@pytest.mark.requirement("M8", "M29", "M36")
def test_one_that_was_started_stays_over_every_restart(own_daemon: Daemon) -> None:
    inode = lifecycle.start(pin_of(own_daemon)).inode
    for _ in range(2):
        own_daemon.start()
        assert namespace_of(own_daemon.pid) == inode
        assert lifecycle.start(pin_of(own_daemon)).inode == inode
        assert own_daemon.stop() == 0
        own_daemon.start().kill()
        assert pinned(pin_of(own_daemon)) == inode
    own_daemon.start()
    assert own_daemon.stop() == 0
    assert lifecycle.stop(pin_of(own_daemon))


@pytest.mark.requirement("M14")
@pytest.mark.parametrize("how", ["--mount-namespace", "--mount-namespace-pid", "KUBENSMNT"])
def test_it_is_told_where_to_be(own_daemon: Daemon, tmp_path: Path, how: str) -> None:
    other = Path("/run") / own_daemon.token / "mnt"
    inode = lifecycle.start(other).inode
    shell = ["nsenter", f"--mount={other}", "sh", "-c", "echo up; read go"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"up\n"
        environment = {"KUBENSMNT": str(other)} if how == "KUBENSMNT" else {}
        options = {"--mount-namespace": (how, str(other)), "--mount-namespace-pid": (how, str(inside.pid))}.get(how, ())
        process = runs(own_daemon, *options, environment=environment)
        assert serving(own_daemon, process) == inode
        ended(process)
        inside.communicate(b"\n")
    # It was told, and did not make it: it does not remove it.
    assert pinned(other) == inode
    assert not pin_of(own_daemon).parent.exists()
    assert lifecycle.stop(other)


@pytest.mark.requirement("M14")
def test_it_does_not_start_where_it_does_not_belong(own_daemon: Daemon, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    flag = "--mount-namespace"
    assert f"{flag}: {tmp_path}/none: no such file" in refusal(own_daemon, flag, f"{tmp_path}/none")
    assert f"{flag}: {plain}: no mount namespace is pinned there" in refusal(own_daemon, flag, str(plain))
    assert "/ns/net is a net namespace and no mount namespace" in refusal(own_daemon, flag, "/proc/self/ns/net")
    assert "there is no process 4194303" in refusal(own_daemon, "--mount-namespace-pid", "4194303")
    assert "KUBENSMNT: /run/none/mnt: no such file" in refusal(own_daemon, environment={"KUBENSMNT": "/run/none/mnt"})
    both = refusal(own_daemon, flag, str(plain), "--mount-namespace-pid", "1")
    assert "name two namespaces" in both


@pytest.mark.requirement("M16")
def test_turned_off_everything_is_on_the_host(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    own_daemon.mounts = ContainerMounts.SHOWN
    own_daemon.write()
    own_daemon.start()
    try:
        assert namespace_of(own_daemon.pid) == own()
        assert not pin_of(own_daemon).parent.exists()
        with Pods(own_daemon.socket, image) as pods:
            pods.pull()
            before = len(mountinfo.under(own_daemon.layout.run))
            sandbox = pods.run()
            pods.launch(sandbox)
            assert len(mountinfo.under(own_daemon.layout.run)) > before
            pods.remove(sandbox)
    finally:
        own_daemon.end()
    # Neither a flag nor the environment turns it on again.
    process = runs(own_daemon, "--mount-namespace", "/run/none/mnt", environment={"KUBENSMNT": "/run/none/mnt"})
    assert serving(own_daemon, process) == own()
    assert "container mounts are not hidden: mountns.enabled is false" in ended(process)


def test_stop_waits_until_the_namespace_is_gone(own_daemon: Daemon) -> None:
    own_daemon.start()
    own_daemon.run("runtime", "stop", check=True)
    assert not lockfile.is_held(own_daemon.layout.lock)
    assert pinned(pin_of(own_daemon)) is None


def test_nothing_is_left_where_the_second_hierarchy_of_hybrid_cgroups_was(
    own_daemon: Daemon, image: str, tmp_path: Path
) -> None:
    with own_daemon as daemon, Pods(daemon.socket, image) as pods:
        pods.pull()
        pods.launch(pods.run())
    # Without what is mounted there: directories of the machine's own file system, of which no mount shows anything.
    mounts.bind("/sys/fs/cgroup", tmp_path)
    try:
        left = list(tmp_path.glob(f"unified{daemon.cgroup_parent}/**"))
    finally:
        mounts.unmount(tmp_path)
    assert left == []
