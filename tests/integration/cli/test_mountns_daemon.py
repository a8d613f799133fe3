"""Verbs of podkeep beside a runtime that hides its mounts, from the host and from inside; and with the hiding off."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation
from support import forked, scratch
from support.container_mounts import HIDDEN, SHOWN, ContainerMounts
from support.daemon import Daemon
from support.images import busybox_layout

pytestmark = pytest.mark.container_mounts("hidden", reason="its subject is what is hidden, and what both ways share")

TIMEOUT_S = 120
PLACES = ["host", "inside"]
LISTING = """
id; cat /proc/self/uid_map /config/key; stat -c '%a %u %n' /config/key /secret/key /memory /disk
awk '{print $5, $6, $(NF - 2)}' /proc/self/mountinfo | sort
echo out; echo err >&2; echo ready; until [ -e /tmp/done ]; do sleep 0.05; done; exit 5
"""


def manifest(path: Path, image: str, name: str = "web") -> Path:
    volumes = {"config": {"configMap": {"name": "data"}}, "secret": {"secret": {"secretName": "data"}}}
    volumes |= {"memory": {"emptyDir": {"medium": "Memory"}}, "disk": {"emptyDir": {}}}
    container = {
        "name": "main",
        "image": image,
        "command": ["sh", "-c", LISTING],
        "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"} for volume in volumes],
    }
    spec = {
        "hostUsers": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": volume, **source} for volume, source in volumes.items()],
    }
    documents: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "data"}, "data": {"key": "value\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "data"}, "stringData": {"key": "secret\n"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return path


@contextmanager
def running(daemon: Daemon, file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the pod in the background, from when it is ready until the end of the block; then it is removed."""
    command = daemon.command("run", str(file))
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "ready\n":
                    break
            else:
                process.wait(timeout=TIMEOUT_S)
                raise AssertionError(f"it ended with {process.returncode}: {process.stderr and process.stderr.read()}")
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def pod(daemon: Daemon, image: str, tmp_path: Path) -> Iterator[None]:
    with running(daemon, manifest(tmp_path / "pod.yaml", image)):
        yield


def places(daemon: Daemon, where: str, *arguments: str) -> list[str]:
    """Return the command line of a verb, as it is or inside."""
    command = daemon.command(*arguments)
    return command if where == "host" else [*daemon.command("mountns", "exec", "--"), *command]


def run(daemon: Daemon, where: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked.run(places(daemon, where, *arguments), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == status, done.stderr
    return done


def host_table(daemon: Daemon) -> list[str]:
    """Return what is mounted below a daemon's directory as the host sees it."""
    pin = str(daemon.base / "mountns")
    found = (entry.mount_point for entry in mountinfo.under(daemon.base))
    return sorted(point for point in found if not point.startswith(pin))


@pytest.mark.usefixtures("pod")
@pytest.mark.requirement("M26", "M34")
def test_host_sees_no_mount_of_a_pod_and_who_enters_sees_all(daemon: Daemon) -> None:
    assert host_table(daemon) == []
    inside = run(
        daemon, "host", "mountns", "exec", "--", "findmnt", "--list", "--noheadings", "--output", "TARGET,FSTYPE"
    )
    seen = [line.split() for line in inside.stdout.splitlines()]
    below = {
        (point.removeprefix(f"{daemon.base}/").split("/")[0], kind) for point, kind in seen if str(daemon.base) in point
    }
    assert {("run", "overlay"), ("run", "nsfs"), ("run", "tmpfs"), ("kubelet", "tmpfs")} <= below


@pytest.mark.usefixtures("pod")
def test_status_names_the_runtime_and_counts_its_mounts(daemon: Daemon) -> None:
    found = json.loads(run(daemon, "host", "mountns", "status", "-o", "json").stdout)
    assert (found["source"], found["on_demand"], found["in_sync"]) == ("the runtime", True, True)
    assert {"name": "podkeep runtime", "pid": daemon.pid, "inode": found["inode"], "inside": True} in found["daemons"]
    assert "podkeep run" in {item["name"] for item in found["daemons"]}
    assert {"conmon", "python3"} & {item["name"] for item in found["processes"]}
    assert found["container_mounts"] >= 5
    shown = run(daemon, "host", "mountns", "status").stdout
    assert f"podkeep runtime (pid {daemon.pid})" in shown
    assert re.search(r"^in sync +yes$", shown, flags=re.MULTILINE)


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("where", PLACES)
def test_other_verbs_work_from_both(daemon: Daemon, where: str) -> None:
    [row] = json.loads(run(daemon, where, "ps", "-o", "json").stdout)
    assert (row["name"], row["status"]) == ("web", "Running")
    assert row["uids"], "the user IDs of the pod are read from its directory"
    assert "ready\n" in run(daemon, where, "logs", "web").stdout
    assert run(daemon, where, "exec", "web", "--", "cat", "/secret/key").stdout == "secret\n"
    assert run(daemon, where, "exec", "--timeout", "9", "web", "--", "cat", "/config/key").stdout == "value\n"
    assert json.loads(run(daemon, where, "image", "ls", "-o", "json").stdout)
    # Its status from inside is PID 1's matter, which knows what is pinned; that of the tests is on another machine.
    doctor = forked.run(places(daemon, where, "doctor", "-o", "json"), capture_output=True, timeout=TIMEOUT_S)
    assert doctor.returncode == 0 or where == "inside"
    found = {item["name"]: item["level"] for item in json.loads(doctor.stdout)}
    assert (found["runtime"], found["user namespaces"], found["root file systems"]) == ("ok", "ok", "ok")
    run(daemon, where, "config", "check")


@pytest.mark.parametrize("where", PLACES)
def test_pods_are_run_and_removed_from_both(daemon: Daemon, image: str, tmp_path: Path, where: str) -> None:
    file = manifest(tmp_path / "pod.yaml", image)
    ended = file.with_name("ended.yaml")
    ended.write_text(file.read_text().replace("until [ -e /tmp/done ]", "until true"))
    run(daemon, where, "run", "--keep", str(ended), status=5)
    assert json.loads(run(daemon, where, "ps", "-a", "-o", "json").stdout)[0]["status"] == "Error"
    assert run(daemon, where, "rm", "web").stdout == "removed default/web\n"
    assert json.loads(run(daemon, where, "ps", "-a", "-o", "json").stdout) == []
    assert host_table(daemon) == []


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A file system of the host's that is not seen in the namespace, as on a host whose mounts are private."""
    top = tmp_path / "private"
    top.mkdir()
    mounts.bind(top, top)
    mounts.set_propagation(top, Propagation.PRIVATE)
    below = top / "disk"
    below.mkdir()
    mounts.tmpfs(below, "mode=0755")
    yield below
    mounts.unmount(below)
    mounts.unmount(top)


def test_archives_are_where_the_caller_sees_them(daemon: Daemon, private: Path, tmp_path: Path) -> None:
    layout = busybox_layout(tmp_path / "layout", name="localhost/private:1")
    archive = layout.tar(private / "image.tar")
    assert daemon.run("mountns", "exec", "--", "ls", str(private)).stdout == "", "the namespace must not see it"
    daemon.run("image", "load", "-q", str(archive), check=True)
    try:
        daemon.run("image", "save", "-q", "-o", str(private / "saved.tar"), "localhost/private:1", check=True)
        saved = ("image", "save", "-q", "--format", "oci-dir", "-o", str(private / "saved"), "localhost/private:1")
        daemon.run(*saved, check=True)
    finally:
        daemon.run("image", "rm", "localhost/private:1", check=True)
    daemon.run("image", "load", "-q", str(private / "saved.tar"), check=True)
    daemon.run("image", "rm", "localhost/private:1", check=True)
    daemon.run("image", "load", "-q", str(private / "saved"), check=True)
    daemon.run("image", "rm", "localhost/private:1", check=True)


def machine() -> list[tuple[str, str]]:
    """Return the mount points of the scratch machine, with what is mounted."""
    return sorted((entry.mount_point, entry.fs_type) for entry in mountinfo.read())


def toggled(daemon: Daemon, mounts: ContainerMounts) -> Daemon:
    daemon.mounts = mounts
    daemon.write()
    return daemon.start()


@pytest.mark.requirement("M16")
def test_one_switch_turns_it_off_and_on_again(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    scratch.detach_unified()
    file, before = manifest(tmp_path / "pod.yaml", image), machine()
    own, pin = os.stat("/proc/self/ns/mnt").st_ino, own_daemon.base / "mountns"
    for way in (HIDDEN, SHOWN, HIDDEN):
        daemon = toggled(own_daemon, way)
        assert (os.stat(f"/proc/{daemon.pid}/ns/mnt").st_ino == own) is (way is SHOWN)
        with running(daemon, file) as agent:
            assert (os.stat(f"/proc/{agent.pid}/ns/mnt").st_ino == own) is (way is SHOWN)
            seen = {Path(point).relative_to(daemon.base).parts[0] for point in host_table(daemon)}
            assert seen == (set() if way is HIDDEN else {"run", "kubelet"})
            assert pin.exists() is (way is HIDDEN)
            status = daemon.run("mountns", "status")
            assert status.returncode == (0 if way is HIDDEN else 1)
            entered = daemon.run("mountns", "exec", "--", "true")
            assert entered.returncode == (0 if way is HIDDEN else 125)
            if way is SHOWN:
                assert f"the runtime that serves (pid {daemon.pid}) hides no mounts" in entered.stderr
        assert daemon.stop() == 0
        assert machine() == before
        assert not pin.exists()
        assert not daemon.layout.run.exists()


@pytest.mark.requirement("M16")
def test_turned_off_it_stays_off_while_a_namespace_is_pinned(own_daemon: Daemon) -> None:
    own_daemon.run("mountns", "start", check=True)
    daemon = toggled(own_daemon, SHOWN)
    try:
        assert os.stat(f"/proc/{daemon.pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino
    finally:
        daemon.stop()
        daemon.run("mountns", "stop", check=True)
    assert not (daemon.base / "mountns").exists()


def outcome(daemon: Daemon, commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Return status and outputs of verbs, without what no two daemons have in common."""
    found = []
    for command in commands:
        done = daemon.run(*command, timeout=TIMEOUT_S)
        texts = []
        for text in (done.stdout, done.stderr):
            text = text.replace(str(daemon.base), "BASE").replace(daemon.token, "TOKEN")
            text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b(?:[0-9a-f]{64}|[0-9a-f]{12})\b", "ID", text)
            text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+\d\d:\d\d)?|\d+\.\d+\.\d+\.\d+|\b\d+s\b", "VALUE", text)
            texts.append(re.sub(r'"(age)": [\d.]+', r'"\1": VALUE', text))
        found.append((done.returncode, *texts))
    return found


@pytest.mark.requirement("M30")
def test_users_see_no_difference(own_daemon: Daemon, image: str, tmp_path: Path) -> None:
    scratch.detach_unified()
    file = manifest(tmp_path / "pod.yaml", image)
    ended = tmp_path / "ended.yaml"
    ended.write_text(file.read_text().replace("until [ -e /tmp/done ]", "until true"))
    broken = tmp_path / "broken.yaml"
    broken.write_text(ended.read_text().replace(json.dumps(image), '"localhost/absent:1", "imagePullPolicy": "Never"'))
    commands = [
        ["run", str(ended)],
        ["run", "--keep", str(ended)],
        ["run", "-o", "json", str(broken)],
        ["ps", "-a", "-o", "json"],
        ["ps", "-a"],
        ["logs", "web"],
        ["exec", "web", "--", "true"],
        ["rm", "web", "-o", "json"],
        ["ps", "-a"],
        ["image", "ls"],
    ]
    seen = {}
    for way in (HIDDEN, SHOWN):
        daemon = toggled(own_daemon, way)
        daemon.run("image", "pull", "-q", image, check=True)
        seen[way] = outcome(daemon, commands)
        daemon.stop()
    assert [status for status, _, _ in seen[HIDDEN]] == [5, 5, 1, 0, 0, 0, 1, 0, 0, 0]
    assert "/memory rw" in seen[HIDDEN][0][1], "the container's own mount table is compared, too"
    for command, hidden, shown in zip(commands, seen[HIDDEN], seen[SHOWN], strict=True):
        assert hidden == shown, command
