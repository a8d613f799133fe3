"""The verbs against a real daemon, on a pod that runs in its own user namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel.mount import mounts
from support import forked
from support.daemon import Daemon
from support.images import Layout, busybox_layout, file
from support.registry import Registry
from support.running_node import own_base
from support.waiting import TIMEOUT_S

SCRIPT = "echo one; echo two; echo oops >&2; echo three; until [ -e /tmp/done ]; do sleep 0.05; done; echo last"


def manifest(image: str, *, name: str = "web", script: str = SCRIPT, containers: tuple[str, ...] = ("main",)) -> str:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostUsers": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": container, "image": image, "command": ["sh", "-c", script]} for container in containers
            ],
        },
    }
    return json.dumps(pod)


def pods(daemon: Daemon) -> dict[str, dict[str, Any]]:
    done = daemon.run("ps", "-a", "-o", "json", check=True)
    return {pod["name"]: pod for pod in json.loads(done.stdout)}


def wait_for_status(daemon: Daemon, name: str, status: str, runner: subprocess.Popen[bytes]) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_S
    while (pod := pods(daemon).get(name)) is None or pod["status"] != status:
        assert runner.poll() is None, f"podkeep run ended with {runner.returncode}"
        assert time.monotonic() < deadline, f"{pod} is not {status}"
    return pod


@contextmanager
def running_pod(daemon: Daemon, path: Path, text: str, *, name: str = "web") -> Iterator[subprocess.Popen[bytes]]:
    """Run a pod in the background until it says that it is running, and have it removed at the end."""
    path.write_text(text)
    with forked.Popen(daemon.command("run", str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as runner:
        try:
            wait_for_status(daemon, name, "Running", runner)
            yield runner
        finally:
            if runner.poll() is None:
                runner.terminate()
                runner.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def runner(daemon: Daemon, image: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with running_pod(daemon, tmp_path / "pod.json", manifest(image)) as running:
        yield running


def test_ps_of_nothing(daemon: Daemon) -> None:
    done = daemon.run("ps")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no pods\n")
    assert daemon.run("ps", "-o", "json").stdout == "[]\n"


@pytest.mark.usefixtures("runner")
def test_ps_shows_the_pod(daemon: Daemon) -> None:
    header, line = daemon.run("ps", check=True).stdout.splitlines()
    assert header.split() == ["NAME", "NAMESPACE", "READY", "STATUS", "RESTARTS", "AGE", "IP", "UIDS"]
    name, namespace, ready, status, restarts, _, address, uids = line.split()
    assert (name, namespace, ready, status, restarts) == ("web", "default", "1/1", "Running", "0")
    first, last = (int(part) for part in uids.split("-"))
    assert first >= 65536
    assert last == first + 65535
    assert address in daemon.run("exec", "web", "--", "ip", "-4", "addr", check=True).stdout
    inside = daemon.run("exec", "web", "--", "cat", "/proc/self/uid_map", check=True).stdout.split()
    assert inside == ["0", str(first), "65536"]


@pytest.mark.usefixtures("runner")
def test_exec_passes_on_both_outputs_and_the_status(daemon: Daemon) -> None:
    done = daemon.run("exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.usefixtures("runner")
def test_exec_that_takes_too_long_is_ended(daemon: Daemon) -> None:
    done = daemon.run("exec", "--timeout", "1", "web", "--", "sleep", "60")
    assert done.returncode == 1
    assert done.stderr.startswith("podkeep: ")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("runner")
def test_errors_name_what_is_not_there(daemon: Daemon) -> None:
    for arguments, message in [
        (("logs", "nosuch"), "podkeep: no pod nosuch in namespace default\n"),
        (("logs", "web", "-n", "prod"), "podkeep: no pod web in namespace prod\nhint: there is one in default"),
        (("exec", "web", "-c", "side", "--", "true"), "podkeep: pod web has no container side\nhint: it has main"),
        (("rm", "nosuch"), "podkeep: pod default/nosuch not found\n"),
        (("logs", "web", "--previous"), "podkeep: there is no earlier attempt"),
    ]:
        done = daemon.run(*arguments)
        assert done.returncode == 1
        assert done.stderr.startswith(message)


@pytest.mark.usefixtures("runner")
def test_a_pod_that_cannot_be_removed_keeps_no_other_from_it(daemon: Daemon) -> None:
    done = daemon.run("rm", "--grace-period", "0", "nosuch", "web", "no")
    assert (done.returncode, done.stdout) == (1, "removed default/web\n"), done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("podkeep: ")] == [
        "podkeep: pod default/nosuch not found",
        "podkeep: pod default/no not found",
    ]


@contextmanager
def background(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a verb in the background; at the end it is not waited for but ended."""
    with forked.Popen(daemon.command(*arguments), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_logs(daemon: Daemon, runner: subprocess.Popen[bytes]) -> None:
    with background(daemon, "logs", "-f", "web") as following:
        assert following.stdout is not None
        assert [following.stdout.readline() for _ in range(3)] == ["one\n", "two\n", "three\n"]
        done = daemon.run("logs", "web", check=True)
        assert (done.stdout, done.stderr) == ("one\ntwo\nthree\n", "oops\n")
        # Which of two streams is written to the log first is chance, so only the number of lines is certain.
        tail = daemon.run("logs", "--tail", "1", "web", check=True)
        assert len((tail.stdout + tail.stderr).splitlines()) == 1
        stamped = daemon.run("logs", "--timestamps", "web", check=True).stdout.splitlines()
        assert [line.partition(" ")[2] for line in stamped] == ["one", "two", "three"]
        assert all(line.startswith("20") for line in stamped)
        command = ["sh", "-c", 'exec "$0" "$@" >&-', *daemon.command("logs", "web")]
        closed = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
        assert (closed.returncode, closed.stderr) == (0, "oops\n")
        daemon.run("exec", "web", "--", "touch", "/tmp/done", check=True)
        assert following.stdout.read() == "last\n"
        assert following.wait(timeout=TIMEOUT_S) == 0
    out, err = runner.communicate(timeout=TIMEOUT_S)
    assert (out, runner.returncode) == (b"one\ntwo\nthree\nlast\n", 0)
    assert b"oops\n" in err
    assert "web" not in pods(daemon)


def test_a_pod_with_several_containers_needs_a_name(daemon: Daemon, image: str, tmp_path: Path) -> None:
    text = manifest(image, name="pair", script="sleep 60", containers=("one", "two"))
    with running_pod(daemon, tmp_path / "pod.json", text, name="pair"):
        done = daemon.run("exec", "pair", "--", "true")
        assert (done.returncode, done.stderr) == (
            1,
            "podkeep: pod pair has containers one, two\nhint: choose one with -c one\n",
        )
        assert daemon.run("exec", "-c", "two", "pair", "--", "true").returncode == 0


def test_a_kept_pod_is_shown_when_asked_for_and_removed(daemon: Daemon, image: str, tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(manifest(image, name="done", script="echo hello; exit 3"))
    assert daemon.run("run", "--keep", str(path)).returncode == 3
    pod = pods(daemon)["done"]
    assert pod["status"] == "Error"
    (ended,) = pod["containers"]
    assert (ended["exit_code"], ended["reason"], ended["message"]) == (3, "Error", "")
    assert daemon.run("logs", "done", check=True).stdout == "hello\n"
    done = daemon.run("rm", "done")
    assert (done.returncode, done.stdout) == (0, "removed default/done\n")
    assert "done" not in pods(daemon)
    assert daemon.run("run", "--keep", str(path)).returncode == 3
    done = daemon.run("rm", "done", "-o", "json", check=True)
    assert json.loads(done.stdout) == {"removed": [{"namespace": "default", "name": "done"}]}
    assert "done" not in pods(daemon)


def test_all_pods_are_removed_at_once(daemon: Daemon, image: str, tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    ended = [json.loads(manifest(image, name=name, script="true")) for name in ("one", "two")]
    ended[1]["metadata"]["namespace"] = "other"
    path.write_text("\n---\n".join(map(json.dumps, ended)))
    assert daemon.run("run", "--keep", str(path)).returncode == 0
    removed = daemon.run("rm", "--all", check=True).stdout.splitlines()  # side by side: in any order
    assert sorted(removed) == ["removed default/one", "removed other/two"]
    assert pods(daemon) == {}
    nothing = daemon.run("rm", "--all", check=True)
    assert (nothing.stdout, nothing.stderr) == ("", "no pods\n")
    for wrong in ((), ("--all", "one")):
        assert "name the pods, or give --all" in daemon.run("rm", *wrong).stderr


def test_images_are_pulled_listed_and_removed(daemon: Daemon, registry: Registry, busybox: Layout) -> None:
    name = registry.push(busybox, "verbs/pulled:v1")
    assert daemon.run("image", "pull", "-q", name, check=True).stdout == f"{busybox.image_id}\n"
    assert name.rpartition(":")[0] in daemon.run("image", "ls", check=True).stdout
    [listed] = [
        item for item in json.loads(daemon.run("image", "ls", "-o", "json").stdout) if name in item["repo_tags"]
    ]
    assert listed["id"] == busybox.image_id
    assert f"untagged {name}\n" in daemon.run("image", "rm", name, check=True).stdout
    again = daemon.run("image", "rm", name)
    assert (again.returncode, again.stderr) == (
        1,
        f"podkeep: no image {name}\nhint: `podkeep image ls` lists the images\n",
    )


def test_image_load(daemon: Daemon, tmp_path: Path) -> None:
    layout = busybox_layout(tmp_path / "layout", name="localhost/loaded:v1", layers=[[file("marker", "loaded")]])
    archive = layout.tar(tmp_path / "image.tar")
    loaded = daemon.run("image", "load", "-o", "json", str(archive), check=True)
    assert json.loads(loaded.stdout) == ["localhost/loaded:v1"]
    daemon.run("image", "rm", "localhost/loaded:v1", check=True)


def test_doctor_knows_the_runtime(daemon: Daemon) -> None:
    done = daemon.run("doctor", "-o", "json", check=True)
    found = {item["name"]: item for item in json.loads(done.stdout)}
    assert found["runtime"]["level"] == "ok"
    assert daemon.socket in found["runtime"]["detail"]
    assert found["handler crun"]["level"] == "ok"
    assert "user_namespaces: yes" in found["handler crun"]["detail"]


def test_doctor_says_why_a_handler_has_no_user_namespaces(open_directory: Path) -> None:
    """Below what covers a part of /proc, as in many containers, no user namespace can have a /proc of its own."""
    covered = "/proc/version"
    mounts.bind("/dev/null", covered)
    try:
        with Daemon(own_base(open_directory)) as daemon:
            done = daemon.run("doctor", "-o", "json")
    finally:
        mounts.unmount(covered)
    found = {item["name"]: item for item in json.loads(done.stdout)}
    for name in ("handler crun", "handler (default)"):
        assert found[name]["level"] == "warning"
        assert "user_namespaces: no" in found[name]["detail"]
        assert "proc" in found[name]["detail"]
        assert found[name]["fix"] == f"unmount what is mounted below /proc before the runtime starts: '{covered}'"


@pytest.mark.usefixtures("runner")
def test_ps_imports_no_more_than_it_needs(daemon: Daemon) -> None:
    code = (
        "import sys\nfrom podkeep.cli.main import main\n"
        f"try:\n    main(['--config', {str(daemon.config)!r}, 'ps'])\nfinally:\n    print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    loaded = set(done.stdout.split())
    assert not loaded & {"rich", "podkeep.agent", "podkeep.runtime", "podkeep.api", "podkeep.images", "pyroute2"}
    assert "podkeep.cri.client" in loaded
