"""``podkeep node``: three daemons under one supervisor, and the command line of the node that they are."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.config import load
from podkeep.cli.core.left_running import running_without
from podkeep.cli.node.command import left_running
from support import forked
from support.container_mounts import ContainerMounts
from support.cri import Pods
from support.daemon import Daemon
from support.registry import Registry
from support.running_node import own_base
from support.waiting import TIMEOUT_S, wait_for

READY = "all daemons serve"
EXAMPLES = Path(__file__).parents[3] / "examples" / "node"


class Node:
    """A ``podkeep node`` with directories and ports of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.run = daemon.base / "node"
        self.log: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str, until: str = READY, program: Sequence[str] = ()) -> None:
        """Start it and wait until it says ``until``; ``program`` in place of ``python -m podkeep``."""
        command = self.daemon.command("node", *options)
        if program:
            command[: command.index("podkeep") + 1] = program
        self.process = forked.Popen(command, stderr=subprocess.PIPE, text=True)
        stream = self.process.stderr
        assert stream is not None
        for line in stream:
            self.log.append(line)
            if until in line:
                break
        else:
            raise AssertionError(f"podkeep node ended: {''.join(self.log)}")
        threading.Thread(target=self.log.extend, args=[stream], daemon=True).start()

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(TIMEOUT_S)
            self.process = None

    def daemons(self) -> dict[str, dict[str, Any]]:
        """Return what it tells of its daemons, by name."""
        told = json.loads((self.run / "node.json").read_bytes())
        return {item["name"]: item for item in told["daemons"]}

    def podkeep(self, *arguments: str, status: int | None = 0, stdin: str = "") -> str:
        """Run a verb; return what it printed, with its errors if it is to fail."""
        done = forked.run(
            self.daemon.command(*arguments), input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert status is None or done.returncode == status, (done.stdout, done.stderr, self.log[-30:])
        return done.stdout + (done.stderr if status != 0 else "")

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as the administrator, and return what it printed."""
        kubeconfig = self.daemon.base / "api" / "admin.conf"
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(self.daemon.base)}
        done = subprocess.run(
            ["kubectl", *arguments], capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr, self.log[-30:])
        return done.stdout

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return the first true value of ``condition``."""
        return wait_for(condition, lambda: f"{what}\n{''.join(self.log[-50:])}")


@pytest.fixture
def node(open_directory: Path, registry: Registry, mounts_of_containers: ContainerMounts) -> Iterator[Node]:
    """A node of the test's own, not started."""
    base = own_base(open_directory)
    extra = f"""
port = 0
node_name = "node-1"
[api]
root = "{base / "api"}"
unix_socket = "{base / "api.sock"}"
address = "127.0.0.1:{20000 + os.getpid() % 10000}"
[registries."{registry.host}"]
insecure = true
"""
    found = Node(Daemon(base, extra=extra, mounts=mounts_of_containers))
    yield found
    if found.process is not None:
        found.podkeep("delete", "pods", "--all", "-A", status=None)
        found.end()
    found.daemon.end()


def manifest(name: str, image: str, script: str, restart: str = "Always") -> str:
    """Return a pod of one container, as JSON."""
    container = {"name": "main", "image": image, "command": ["sh", "-c", script]}
    spec = {"containers": [container], "restartPolicy": restart, "terminationGracePeriodSeconds": 0}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    )


def test_a_pod_runs_on_whatever_is_killed(node: Node, image: str) -> None:
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "echo started; exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    container = json.loads(node.podkeep("get", "pod/web", "-o", "json"))["status"]["containerStatuses"][0][
        "containerID"
    ]
    for name in ("agent", "api", "runtime"):
        before = node.daemons()[name]
        os.kill(before["pid"], signal.SIGKILL)
        again = node.until(
            lambda name=name, pid=before["pid"]: (
                (item := node.daemons()[name])["state"] == "ready" and item["pid"] != pid and item
            ),
            f"{name} serves again",
        )
        assert again["restarts"] == 1
    assert [line for line in node.log if "killed by SIGKILL" in line] != []
    assert len([line for line in node.log if "killed by SIGKILL" in line]) == 3, "each is told once"

    def is_same() -> bool:
        status = json.loads(node.podkeep("get", "pod/web", "-o", "json", status=None) or "{}").get("status", {})
        told = status.get("containerStatuses", [{}])[0]
        return bool(told.get("ready")) and told.get("containerID") == container

    node.until(is_same, "the same container is ready")
    assert node.podkeep("logs", "web") == "started\n"


def test_the_daemons_of_the_installed_program_write_lines_of_a_log_only(node: Node) -> None:
    node.start(program=[str(Path(sys.executable).with_name("podkeep"))])
    assert [line for line in node.log if not re.match(r"(\w+: )?\d{4}-\d\d-\d\dT\S+ [A-Z]+ ", line)] == []


def test_a_second_node_is_refused_and_pods_outlive_the_first(node: Node, image: str) -> None:
    node.start()
    said = node.podkeep("node", status=1)
    assert "is in use by another process" in said
    assert "a node runs already" in said
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    socket = node.daemon.base / "api.sock"
    socket.rename(node.daemon.base / "away.sock")
    said = node.podkeep("get", "pods", status=1)
    assert said.endswith("hint: the node that runs here starts it again by itself; `podkeep status` says how it is\n")
    node.end()
    ends = [line for line in node.log if "supervisor stopping" in line]
    assert [line.split()[-1] for line in ends] == ["agent", "api", "runtime"], "in this order"
    runs_on = "does not run: start it with `podkeep node`; 1 container of its pods runs on without it\n"
    assert node.podkeep("status", status=1) == f"node node-1: {runs_on}"
    node.start()
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    told = json.loads(node.podkeep("get", "pod/web", "-o", "json"))["status"]["containerStatuses"][0]
    assert told["restartCount"] == 0


def test_pods_that_a_node_left_behind_are_ended_as_its_uninstallation_says(node: Node, image: str) -> None:
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    node.end()
    config = load(node.daemon.config)
    assert running_without(config) == 1
    _, hint = left_running(1, [])
    start, remove, stop = (shlex.split(words)[1:] for words in hint.split("`")[1::2])
    with forked.Popen(node.daemon.command(*start[:-1])) as runtime:
        node.until(node.daemon.listens, "the runtime serves")
        said = node.podkeep(*remove)
        node.podkeep(*stop)
        assert runtime.wait(TIMEOUT_S) == 0
    assert start[-1] == "&"
    assert said == "removed default/web\n"
    assert running_without(config) == 0


def test_the_daemons_of_a_killed_supervisor_end_and_the_next_one_serves(node: Node) -> None:
    node.start()
    pids = [item["pid"] for item in node.daemons().values()]
    node.end(signal.SIGKILL)
    node.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its daemons are gone")
    node.start()
    assert {item["state"] for item in node.daemons().values()} == {"ready"}


def test_the_service_manager_hears_which_daemons_do_not_serve(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``systemctl status`` shows is so now, and not what was so when it started."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)

        def hear(text: bytes) -> None:
            while text not in manager.recv(4096):
                pass

        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        node.start()
        monkeypatch.delenv("NOTIFY_SOCKET")
        hear(b"STATUS=all daemons serve")
        pid = node.daemons()["agent"]["pid"]
        os.kill(pid, signal.SIGKILL)
        hear(b"STATUS=agent does not serve")
        hear(b"STATUS=all daemons serve")
        assert node.daemons()["agent"]["pid"] != pid


def test_a_daemon_that_cannot_start_says_why_once(node: Node) -> None:
    api = node.daemon.base / "api"
    api.mkdir()
    (api / "pki").write_text("in the way")
    node.start(until="api cannot start")
    node.until(lambda: node.daemons()["api"]["restarts"] >= 2, "it was tried again")
    assert len([line for line in node.log if "api cannot start" in line]) == 1
    assert node.podkeep("status", status=1).startswith("node node-1: api cannot start: ")
    (api / "pki").unlink()
    node.until(lambda: node.daemons()["agent"]["state"] == "ready", "all serve")
    assert [line for line in node.log if "api serves again" in line] != []


def test_status_says_in_the_first_line_what_is_wrong(node: Node, image: str) -> None:
    node.start()
    node.until(lambda: node.podkeep("status", status=None).startswith("node node-1: Ready\n"), "all is well")
    told = json.loads(node.podkeep("status", "-o", "json"))
    # The node that runs says what it is called, which may have been said on its own command line alone.
    assert node.podkeep("--set", "agent.node_name=other", "status").startswith("node node-1: Ready\n")
    assert (told["is_well"], [item["name"] for item in told["daemons"]]) == (True, ["runtime", "api", "agent"])
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}Z", item["since"]) for item in told["daemons"])
    node.podkeep("apply", "-f", "-", stdin=manifest("bad", image, "exit 3"))
    said = node.until(
        lambda: (text := node.podkeep("status", status=None)) and "CrashLoopBackOff" in text and text, "it is told"
    )
    assert said.startswith("node node-1: Ready; 1 pod not well\n")
    assert re.search(r"default +bad +CrashLoopBackOff .*container main: back-off .*; before: exit status 3", said)
    # Between two attempts it is told how the last one ended, for a moment.
    first = "pod/bad in default: CrashLoopBackOff: container main: back-off "
    node.until(lambda: node.podkeep("describe", "pod", "bad").startswith(first), first)


def test_apply_shows_what_the_api_warns_of(node: Node, image: str) -> None:
    """Once, however many objects it is about."""
    node.start()
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": json.loads(manifest("web", image, "true", "Always"))["spec"]}
    items = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        for name in ("one", "two")
    ]
    both = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    said = node.podkeep("apply", "-f", "-", stdin=both, status=None)
    warning = (
        "warning: this Deployment is only stored: no pods are made of it unless kube-controller-manager runs beside"
        " podkeep"
    )
    assert sorted(said.splitlines()) == ["deployment.apps/one created", "deployment.apps/two created", warning]


def test_exec_says_why_there_is_nothing_to_run_it_in(node: Node, image: str) -> None:
    """In a container between two attempts, and in a pod that has failed before its containers started."""
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("bad", image, "exit 3"))
    late = json.loads(manifest("late", image, "true", "Never"))
    late["spec"]["initContainers"] = [{"name": "first", "image": image, "command": ["sh", "-c", "exit 3"]}]
    node.podkeep("apply", "-f", "-", stdin=json.dumps(late))
    waits = r'podkeep: container "main" in pod "bad" is waiting to start: CrashLoopBackOff: back-off \d+s restarting'
    node.until(lambda: re.match(waits, said := node.podkeep("exec", "bad", "id", status=1)) and said, "it waits")
    assert node.podkeep("exec", "bad", "id", status=1).endswith(
        "hint: `podkeep logs bad -c main` shows what it wrote\n"
    )
    node.podkeep("wait", "pod/late", "--for=jsonpath={.status.phase}=Failed", "--timeout", "1m")
    for verb in (["logs", "late"], ["exec", "late", "id"]):
        said = 'podkeep: pod "late" does not run: container first: exit status 3\n'
        assert node.podkeep(*verb, status=1) == f"{said}hint: `podkeep describe pod late` says more\n"


def test_settings_that_do_not_go_together_are_refused(node: Node) -> None:
    """Before anything is started."""
    said = node.podkeep("--set", "agent.kubeconfig=/etc/other.conf", "node", status=78)
    assert "agent.kubeconfig: /etc/other.conf is how another API is reached, and this node has its own" in said
    assert "hint: add --no-api" in said
    said = node.podkeep("node", "--no-api", status=78)
    assert "a node without an API of its own needs one to reach" in said
    assert not (node.run / "node.json").exists()


def test_a_broken_static_manifest_is_told_where_people_look(node: Node, image: str) -> None:
    """In the status of the node, in an event, and in a metric; until it is right."""
    manifests = node.daemon.base / "manifests"
    manifests.mkdir()
    config = node.daemon.config.read_text()
    node.daemon.config.write_text(config.replace("[agent]\n", f'[agent]\nstatic_pod_path = "{manifests}"\n'))
    (manifests / "bad.yaml").write_text("kind: Pod\nspec: [")
    node.start()
    text = f"static pod {manifests}/bad.yaml is left out: "
    node.until(lambda: text in node.podkeep("status", status=None), "the status says it")
    node.until(
        lambda: node.podkeep("status", status=1).startswith("node node-1: Ready; 1 static pod is left out\n"),
        "its first line does, and so does its exit status",
    )
    node.until(lambda: text in node.podkeep("events", "-A", status=None), "an event says it")
    (manifests / "bad.yaml").write_text(manifest("good", image, "exec sleep 1000"))
    node.until(lambda: text not in node.podkeep("status", status=None), "the status does not say it any more")
    node.podkeep("wait", "pod/good-node-1", "--for=condition=Ready", "--timeout", "1m")
    node.until(lambda: node.podkeep("status", status=None).startswith("node node-1: Ready\n"), "all is well")
    (manifests / "bad.yaml").unlink()
    node.until(lambda: "good" not in node.podkeep("get", "pods", status=None), "the static pod is gone")


def test_run_gives_pods_to_the_node_and_removes_what_it_created(node: Node, image: str) -> None:
    node.start()
    files = node.daemon.base / "manifests"
    files.mkdir()
    (files / "one.yaml").write_text(manifest("one", image, "echo out; echo err >&2; exit 5", "Never"))
    (files / "two.yaml").write_text(manifest("two", image, "echo second", "Never"))
    done = forked.run(
        node.daemon.command("run", str(files / "one.yaml"), str(files / "two.yaml")),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 5
    assert sorted(done.stdout.splitlines()) == ["[one/main] out", "[two/main] second"]
    assert "[one/main] err" in done.stderr
    assert "No resources found" in node.podkeep("get", "pods", status=None) or node.podkeep("get", "pods") == ""
    node.podkeep("run", "-d", str(files / "two.yaml"))
    node.podkeep("wait", "pod/two", "--for=jsonpath={.status.phase}=Succeeded", "--timeout", "1m")
    assert node.podkeep("delete", "pod", "two") == "pod/two deleted\n"


def _failing_beside_another(node: Node, image: str) -> list[str]:
    """Return the command that runs a pod of whose end there is something to tell, and one that stays."""
    files = node.daemon.base / "manifests"
    files.mkdir()
    (files / "fails.yaml").write_text(manifest("fails", image, "echo why >/dev/termination-log; exit 3", "Never"))
    (files / "stays.yaml").write_text(manifest("stays", image, "exec sleep 1000"))
    return node.daemon.command("run", str(files / "fails.yaml"), str(files / "stays.yaml"))


def test_a_run_on_the_node_whose_errors_cannot_be_written_leaves_no_pod(node: Node, image: str) -> None:
    node.start()
    command = _failing_beside_another(node, image)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nowhere:
        done = forked.run(command, stdout=subprocess.DEVNULL, stderr=nowhere, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert node.podkeep("get", "pods") == ""


def test_a_signal_ends_a_run_on_the_node_whose_errors_are_not_read(node: Node, image: str) -> None:
    node.start()
    command = _failing_beside_another(node, image)
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    with forked.Popen(command, stdout=subprocess.DEVNULL, stderr=write) as process:
        try:
            tasks = Path(f"/proc/{process.pid}/task")
            node.until(
                lambda: any("pipe_write" in task.read_text() for task in tasks.glob("*/wchan")), "what is said waits"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()
            os.close(write)
            os.close(read)
    assert node.podkeep("get", "pods") == ""


def test_delete_waits_as_kubectl_does(node: Node, image: str) -> None:
    """Times are written like kubectl's; a grace period of 0 ends the pod, and does not only forget it."""
    node.start()
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    pod = json.loads(manifest("web", image, script))
    pod["spec"]["terminationGracePeriodSeconds"] = 1000
    node.podkeep("apply", "-f", "-", stdin=json.dumps(pod))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    status = json.loads(node.podkeep("get", "pod/web", "-o", "json"))["status"]
    with Pods(node.daemon.socket, "") as client:
        process = client.host_pid(status["containerStatuses"][0]["containerID"].rpartition("/")[2])
    said = node.podkeep("delete", "pod/web", "--timeout=1ms", status=1)
    assert said.startswith("podkeep: pod/web is not gone after 0.001 s\n")
    assert node.podkeep("delete", "pod/web", "--wait=false") == "pod/web deleted\n"
    assert node.podkeep("delete", "pod/web", "--grace-period=0", "--timeout", "1m") == "pod/web deleted\n"
    assert not Path(f"/proc/{process}").exists()
    for options, why in (
        (("--now", "--grace-period=5"), "--now and --grace-period cannot be specified together"),
        (("--force", "--grace-period=5"), "--force and --grace-period greater than 0 cannot be specified together"),
        (("--force", "--now"), "--force and --grace-period greater than 0 cannot be specified together"),
    ):
        assert why in node.podkeep("delete", "pod/web", *options, status=2)
    assert "--timeout=soon: not a duration" in node.podkeep("delete", "pod/web", "--timeout=soon", status=1)


def test_a_backup_is_put_back_and_pods_run_on(node: Node, image: str) -> None:
    """What the backup has runs on untouched; what it does not know is removed. Not while the API serves."""
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    backup = str(node.daemon.base / "backup.db")
    node.podkeep("api", "backup", backup)
    said = node.podkeep("api", "restore", "--replace", backup, status=1)
    assert "is in use by another process\nhint: end the `podkeep node` or `podkeep api` that serves it" in said
    node.podkeep("apply", "-f", "-", stdin=manifest("later", image, "trap exit TERM; while :; do sleep 0.1; done"))
    node.podkeep("wait", "pod/later", "--for=condition=Ready", "--timeout", "1m")
    before = json.loads(node.podkeep("get", "pod/web", "-o", "json"))["status"]["containerStatuses"]
    node.end()
    assert "damaged" in node.podkeep("api", "restore", "--replace", str(node.daemon.config), status=1)
    node.podkeep("api", "restore", "--replace", backup)
    node.start()
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    assert json.loads(node.podkeep("get", "pod/web", "-o", "json"))["status"]["containerStatuses"] == before
    pods = node.daemon.base / "kubelet" / "pods"
    node.until(lambda: len(list(pods.iterdir())) == 1, "nothing of the pod that the backup does not have is left")


def test_run_says_why_containers_failed(node: Node, image: str) -> None:
    """As without a node: an exit status alone does not say that memory ran out, or which init container failed."""
    node.start()
    pods = []
    for name, script, more in (
        ("hungry", "exec tail /dev/zero", {"resources": {"limits": {"memory": "16Mi"}}}),
        ("telling", "echo no room >/dev/termination-log; exit 4", {}),
        ("late", "true", {}),
    ):
        pod = json.loads(manifest(name, image, script, "Never"))
        pod["spec"]["containers"][0].update(more)
        pods.append(pod)
    pods[2]["spec"]["initContainers"] = [{"name": "first", "image": image, "command": ["sh", "-c", "exit 3"]}]
    expected = (
        ("container main ended with exit status 137: OOMKilled", 137),
        ("container main ended with exit status 4: no room", 4),
        ("init container first ended with exit status 3", 3),
    )
    for pod, (words, status) in zip(pods, expected, strict=True):
        said = node.podkeep("run", "-", status=status, stdin=json.dumps(pod))
        assert f"podkeep: {words}" in said.splitlines()
    said = node.podkeep("run", "-", status=None, stdin="\n---\n".join(map(json.dumps, pods)))
    for pod, (words, _) in zip(pods, expected, strict=True):
        assert f"podkeep: {pod['metadata']['name']}: {words}" in said.splitlines()


_CLAIM = {"name": "gpu", "resourceClaimName": "gpu"}


def test_a_run_on_the_node_ends_with_a_pod_that_cannot_be_started(node: Node, image: str) -> None:
    """It said nothing, and waited for ever; without a node it ended."""
    node.start()
    pod = json.loads(manifest("web", image, "exec sleep 1000"))
    container = pod["spec"]["containers"][0]
    hook = {"postStart": {"exec": {"command": ["false"]}}}
    said = node.podkeep("run", "-", status=1, stdin=json.dumps(_with_container(pod, lifecycle=hook)))
    assert 'podkeep: PostStartHookError: Exec lifecycle hook ([false]) for Container "main"' in said
    pod["spec"]["volumes"] = [{"name": "v", "configMap": {"name": "none"}}]
    container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    said = node.podkeep("run", "-", status=1, stdin=json.dumps(pod))
    assert 'podkeep: FailedMount: MountVolume.SetUp failed for volume "v" : configmap "none" not found' in said
    assert "hint: with --retry it is tried again" in said
    pod["spec"] = {"containers": [{**container, "volumeMounts": []}], "resourceClaims": [_CLAIM]}
    said = node.podkeep("run", "-", status=1, stdin=json.dumps(pod))
    assert "podkeep: FailedPrepareDynamicResources: Failed to prepare dynamic resources: claims gpu" in said
    assert node.podkeep("get", "pods") == ""


def test_a_run_on_the_node_tells_what_probes_say(node: Node, image: str) -> None:
    node.start()
    probe = {"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}, "periodSeconds": 1, "timeoutSeconds": 30}
    pod = _with_container(json.loads(manifest("web", image, "exec sleep 1000")), readinessProbe=probe)
    file, errors = node.daemon.base / "web.json", node.daemon.base / "errors"
    file.write_text(json.dumps(pod))
    with errors.open("w") as told, forked.Popen(node.daemon.command("run", str(file)), stderr=told) as process:
        try:
            words = "podkeep: main: Readiness probe failed: not yet"
            node.until(lambda: words in errors.read_text().splitlines(), "the failure is told")
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()


def _with_container(pod: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a copy of a pod of one container, with further fields of that."""
    [container] = pod["spec"]["containers"]
    return {**pod, "spec": {**pod["spec"], "containers": [container | more]}}


def test_a_run_without_a_pod_says_what_there_is_instead(node: Node, image: str) -> None:
    node.start()
    document = json.loads(manifest("web", image, "true"))
    said = node.podkeep("run", "-", status=1, stdin=json.dumps({**document, "kind": "Pdo"}))
    assert said == "podkeep: -: there is no Pod in it, only Pdo\n"


def test_arguments_that_cannot_be_sent_are_named(node: Node, image: str) -> None:
    node.start()
    node.podkeep("run", "-d", "-", stdin=manifest("web", image, "sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    bad = os.fsdecode(b"a\xffb")
    for verb in (
        ["exec", "web", "echo", bad],
        ["cp", f"web:/{bad}", "."],
        ["cp", "/etc/hostname", f"web:/{bad}"],
        ["get", "pod", bad],
        ["describe", "pod", bad],
        ["delete", "pod", bad],
        ["rm", bad],
        ["image", "rm", bad],
        ["events", "-n", bad],
    ):
        said = node.podkeep(*verb, status=1).splitlines()
        assert len(said) == 1, said
        assert said[0].startswith("podkeep: '"), said
        assert said[0].endswith(" is not UTF-8"), said


def test_verbs_say_why_a_pod_does_not_run_that_no_node_has(node: Node, image: str) -> None:
    """The runtime knows nothing of it, and that there is no such pod would be wrong."""
    node.start()
    pod = json.loads(manifest("huge", image, "true"))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5000"}}
    node.podkeep("apply", "-f", "-", stdin=json.dumps(pod))
    node.until(lambda: "Insufficient cpu" in node.podkeep("describe", "pod", "huge"), "the scheduler has tried")
    words = 'podkeep: pod "huge" is waiting to start: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.'
    for verb in (
        ["logs", "huge"],
        ["logs", "huge", "--all-containers"],
        ["exec", "huge", "true"],
        ["attach", "huge"],
        ["cp", "huge:/etc/hosts", "."],
        ["port-forward", "huge", ":80"],
        ["classes", "set", "huge", "oom=low"],
        ["classes", "set", "huge/main", "oom=low"],
    ):
        assert node.podkeep(*verb, status=1).splitlines()[0] == words, verb
    assert "no pods" in node.podkeep("ps") + node.podkeep("ps", status=None)
    assert node.podkeep("ps", "-a").splitlines()[1].split()[:5] == ["huge", "default", "0/1", "Pending", "0"]
    pod["metadata"]["name"] = "elsewhere"
    pod["spec"].update(nodeName="node-1", nodeSelector={"disk": "none"}, restartPolicy="Never")
    node.podkeep("apply", "-f", "-", stdin=json.dumps(pod))
    node.podkeep("wait", "pod/elsewhere", "--for=jsonpath={.status.phase}=Failed", "--timeout", "1m")
    rejected = 'podkeep: pod "elsewhere" does not run: Pod was rejected: '
    assert node.podkeep("logs", "elsewhere", status=1).startswith(rejected)
    assert node.podkeep("logs", "nothing", status=1).startswith("podkeep: no pod nothing in namespace default\n")


def test_objects_that_are_named_are_one_table_and_one_that_is_missing_hides_none(node: Node) -> None:
    node.start()
    both = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in ("a", "much-longer")]
    node.podkeep("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, both)))
    said = node.podkeep("get", "cm", "a", "nothing", "much-longer", status=1).splitlines()
    assert [line.index(column) for line, column in zip(said[:3], ("DATA", "0", "0"), strict=True)] == [14, 14, 14]
    assert said[3:] == ['podkeep: configmaps "nothing" not found']
    done = node.daemon.run("get", "cm", "nothing", "a", "much-longer", "-o", "json")
    assert [item["metadata"]["name"] for item in json.loads(done.stdout)["items"]] == ["a", "much-longer"]
    assert (done.returncode, done.stderr) == (1, 'podkeep: configmaps "nothing" not found\n')
    done = node.daemon.run("get", "cm", "nothing", "-o", "yaml")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", 'podkeep: configmaps "nothing" not found\n')


def test_a_conflict_of_an_apply_says_how_to_go_on(node: Node) -> None:
    node.start()
    value = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1"}}
    node.podkeep("apply", "-f", "-", stdin=json.dumps(value))
    node.kubectl("patch", "configmap", "one", "-p", '{"data": {"a": "2"}}')
    said = node.podkeep("apply", "-f", "-", status=1, stdin=json.dumps(value))
    assert "Apply failed with 1 conflict" in said
    assert "hint: --force-conflicts takes these fields over" in said
    assert (
        node.podkeep("apply", "-f", "-", "--force-conflicts", stdin=json.dumps(value)) == "configmap/one configured\n"
    )


def test_port_forward_knows_the_names_of_ports(node: Node, image: str) -> None:
    node.start()
    pod = json.loads(manifest("web", image, "while true; do echo hello | nc -l -p 7000; done"))
    pod["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": 7000}]
    node.podkeep("apply", "-f", "-", stdin=json.dumps(pod))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    assert node.podkeep("port-forward", "web", ":metrics", status=1) == (
        "podkeep: pod web has no port that is named 'metrics'\nhint: give its number, or one of http\n"
    )
    argv = node.daemon.command("port-forward", "web", ":http")
    with forked.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.fullmatch(r"Forwarding from 127\.0\.0\.1:(\d+) -> 7000\n", process.stdout.readline())
            assert said is not None
            address = ("127.0.0.1", int(said.group(1)))
            node.until(lambda: socket.create_connection(address).makefile().read() == "hello\n", "the pod's word")
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_rm_deletes_pods_of_the_node(node: Node, image: str) -> None:
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    assert node.podkeep("rm", "web") == "removed default/web\n"
    assert "not found" in node.podkeep("get", "pod", "web", status=1)


def test_rm_says_how_static_pods_end(node: Node, image: str) -> None:
    """What the API has of one would be made anew, and it would run on."""
    manifests = node.daemon.base / "manifests"
    manifests.mkdir()
    (manifests / "web.yaml").write_text(manifest("web", image, "exec sleep 1000"))
    config = node.daemon.config.read_text()
    node.daemon.config.write_text(config.replace("[agent]\n", f'[agent]\nstatic_pod_path = "{manifests}"\n'))
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("other", image, "exec sleep 1000"))
    name = node.until(lambda: re.search(r"web-\S+", node.podkeep("get", "pods", status=None)), "its mirror").group()
    node.podkeep("wait", "pod/other", f"pod/{name}", "--for=condition=Ready", "--timeout", "1m")

    assert node.podkeep("rm", "--all") == "removed default/other\n"
    said = node.podkeep("rm", name, status=1)

    assert f"pod default/{name} is a static pod: it runs for as long as its file is there" in said
    assert f"hint: remove its file from {manifests}" in said
    assert "1/1" in node.podkeep("get", "pod", name)


def test_pods_are_ended_with_the_node_if_told(node: Node, image: str) -> None:
    node.start("--stop-pods")
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    node.end()
    assert [line for line in node.log if "no pod is left" in line] != []
    assert node.podkeep("status", status=1).endswith("start it with `podkeep node`\n")
    node.start()
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")


def test_files_go_in_and_come_out(node: Node, image: str) -> None:
    node.start()
    node.podkeep("apply", "-f", "-", stdin=manifest("web", image, "exec sleep 1000"))
    node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
    tree = node.daemon.base / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "f").write_bytes(os.urandom(300_000))
    node.podkeep("cp", str(tree), "web:/tmp")
    node.podkeep("exec", "web", "--", "ln", "-s", "/etc/passwd", "/tmp/tree/link")
    node.podkeep("cp", "web:/tmp/tree", str(node.daemon.base / "back"))
    assert (node.daemon.base / "back/d/f").read_bytes() == (tree / "d/f").read_bytes()
    assert not (node.daemon.base / "back/link").is_symlink()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_run_by_podkeep_and_by_kubectl(node: Node, image: str, path: Path) -> None:
    text = path.read_text().replace("localhost/busybox:demo", image)
    file = node.daemon.base / path.name
    file.write_text(text.replace("/var/tmp/podkeep-example", str(node.daemon.base / "host")))
    node.start()
    name = path.stem
    if name == "web":
        node.podkeep("apply", "-f", str(file))
        node.podkeep("wait", "pod/web", "--for=condition=Ready", "--timeout", "1m")
        assert "hello from a ConfigMap" in node.podkeep("exec", "web", "--", "wget", "-qO-", "http://127.0.0.1:8080")
        node.podkeep("delete", "-f", str(file))
    else:
        said = node.podkeep("run", str(file))
        assert said != ""
    node.kubectl("apply", "-f", str(file))
    if name == "web":
        node.kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
        assert "hello from a ConfigMap" in node.kubectl("exec", "web", "--", "wget", "-qO-", "http://127.0.0.1:8080")
    else:
        node.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        container = ["-c", "reader"] if name == "shared" else ["-c", "main"] if name in ("init", "sidecar") else []
        logs = node.kubectl("logs", name, *container)
        assert logs.splitlines() == [
            line.removeprefix(f"[{container[1]}] ") if container else line for line in said.splitlines()
        ]
    node.kubectl("delete", "-f", str(file))


def test_an_address_that_the_machine_does_not_have_is_told_with_what_to_write(node: Node) -> None:
    config = node.daemon.config.read_text()
    node.daemon.config.write_text(config.replace("[agent]\n", '[agent]\naddress = "192.0.2.1"\n'))
    node.start(until="agent cannot start: ")
    (said,) = (line for line in node.log if "agent cannot start: " in line)
    assert "cannot listen on 192.0.2.1:" in said
    assert "(write an address of this machine, or leave agent.address out)" in said
