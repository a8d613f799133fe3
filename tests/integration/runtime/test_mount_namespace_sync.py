"""Daemons that end up in different mount namespaces: it is seen, told with both inodes, and fixed as it is told.

Every case is forced on real daemons. A kubelet is stood in for by a copy of sleep(1) of that name: where it is, is
real, what it does is not. What an unmodified kubelet does to pods from another namespace is written in docs/kubelet.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podkeep.cri.v1 import api_pb2 as api
from podkeep.mountns.membership import PUBLICATION
from podkeep.mountns.sync import CONDITION, REASON
from support import forked, nodes
from support.container_mounts import ContainerMounts
from support.cri import Pods, pod
from support.daemon import Daemon
from support.mortal import Mortal
from support.nodes import namespace_of, pin_of, pinned
from support.resources import Resources
from support.waiting import wait_for

pytestmark = pytest.mark.container_mounts("hidden", reason="what is hidden where is what is tested")

ELSEWHERE_S = 30.0
"""What /proc says is used for 10 s."""


@pytest.fixture(autouse=True)
def hidden(own_daemon: Daemon) -> Iterator[None]:
    """Daemons of these tests hide, and what a test made to stay is removed when its daemon has ended."""
    own_daemon.mounts = ContainerMounts.HIDDEN
    own_daemon.write()
    yield
    own_daemon.run("mountns", "stop", "--force", check=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def status(pods: Pods) -> tuple[dict[str, api.RuntimeCondition], dict[str, Any]]:
    """Return the conditions by type, and what the runtime says of its mount namespace."""
    answer = pods.call("Status", api.StatusRequest(verbose=True))
    conditions = {condition.type: condition for condition in answer.status.conditions}
    assert conditions["RuntimeReady"].status, "the node stays ready"
    return conditions, json.loads(answer.info["mountNamespace"])


def apart(pods: Pods) -> str:
    """Wait until the runtime says that it is not in sync, and return what it says."""
    condition = wait_for(lambda: _condition(pods, wanted=False), "the mismatch to be told", ELSEWHERE_S)
    assert condition.reason == REASON
    assert f"mnt:[{status(pods)[1]['inode']}]" in condition.message
    assert not status(pods)[1]["inSync"]
    return str(condition.message)


def together(pods: Pods) -> None:
    """Wait until the runtime says that it is in sync again."""
    condition = wait_for(lambda: _condition(pods, wanted=True), "the mismatch to be over", ELSEWHERE_S)
    assert (condition.reason, condition.message) == ("", "")
    assert status(pods)[1]["inSync"]


def _condition(pods: Pods, *, wanted: bool) -> api.RuntimeCondition | None:
    condition = status(pods)[0][CONDITION]
    return condition if condition.status is wanted else None


def warnings(daemon: Daemon) -> list[str]:
    """Return the lines of the log about namespaces that differ."""
    return [
        line for line in daemon.log.read_text().splitlines() if " but podkeep runtime" in line or "any more;" in line
    ]


def remake(daemon: Daemon) -> int:
    """Make the namespace anew while daemons are in it, as a restart of its service by force does."""
    old = pinned(daemon)
    replace_pinned(daemon)
    assert pinned(daemon) != old
    return pinned(daemon)


def replace_pinned(daemon: Daemon) -> None:
    """Make the namespace anew. If nobody is in the old one, the new one may have its number."""
    daemon.run("mountns", "stop", "--force", check=True)
    daemon.run("mountns", "start", check=True)


def refusal(daemon: Daemon, *options: str) -> str:
    """Return what a runtime that must not start says."""
    command = daemon.command("runtime", *options)
    ended = forked.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert not daemon.listens()
    return ended.stderr


# in sync


@pytest.mark.requirement("M13", "M35")
def test_where_the_runtime_is_is_told(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    conditions, info = status(pods)
    assert info == {
        "inode": namespace_of(daemon.pid),
        "pin": str(pin_of(daemon)),
        "hidden": True,
        "inSync": True,
    }
    assert info["inode"] == pinned(daemon)
    assert info["inode"] != namespace_of()
    assert [*conditions] == ["RuntimeReady", "NetworkReady", CONDITION]
    assert conditions[CONDITION].status
    assert warnings(daemon) == []


@pytest.mark.requirement("M16")
def test_nothing_is_compared_where_nothing_is_hidden(mortal: Mortal) -> None:
    mortal.daemon.mounts = ContainerMounts.SHOWN
    mortal.daemon.write()
    pods = mortal.start()
    conditions, info = status(pods)
    assert [*conditions] == ["RuntimeReady", "NetworkReady"]
    assert info == {"inode": namespace_of(), "pin": "", "hidden": False, "inSync": True}


@pytest.mark.requirement("M13", "M28")
def test_each_agent_is_where_the_runtime_is(mortal: Mortal, image: str, tmp_path: Path) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    for attempt in range(2):
        manifest = tmp_path / f"{attempt}.json"
        manifest.write_text(json.dumps(_sleeper(f"sleeper{attempt}", image)))
        with (tmp_path / "said").open("w") as said:
            agent = forked.Popen(daemon.command("run", str(manifest)), stdout=said, stderr=said)
        try:
            _wait_for_container(pods)
            assert namespace_of(agent.pid) == namespace_of(daemon.pid) == pinned(daemon)
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 128 + signal.SIGTERM, (tmp_path / "said").read_text()
        # The next one finds another runtime in the same place.
        daemon.kill()
        pods = mortal.start()


def _wait_for_container(pods: Pods) -> None:
    running = api.ContainerStateValue(state=api.CONTAINER_RUNNING)
    wait_for(lambda: pods.containers(state=running), "the pod to run")


def _sleeper(name: str, image: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": ["sleep", "1000"]}
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}]
    container["volumeMounts"] = [{"name": "memory", "mountPath": "/memory"}]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.requirement("M29")
def test_kills_in_any_order_leave_all_in_one_namespace(mortal: Mortal, stack: ExitStack) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    first = pinned(daemon)
    pods.launch(pods.run(pod("stays")))
    for kind in ("runtime", "kubelet", "both"):
        if kind != "kubelet":
            daemon.kill()
        if kind != "runtime":
            stack.close()
            stack.enter_context(nodes.kubelet(daemon.base, *nodes.enter(daemon)))
        if kind != "kubelet":
            pods = mortal.start()
        assert {namespace_of(daemon.pid), pinned(daemon)} == {first}
        assert status(pods)[0][CONDITION].status
    assert [item.state for item in pods.containers()] == [api.CONTAINER_RUNNING]
    assert warnings(daemon) == []


# apart: the pin


@pytest.mark.requirement("M35")
def test_a_namespace_made_anew_under_a_runtime(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    old = namespace_of(daemon.pid)
    new = remake(daemon)
    message = apart(pods)
    assert (
        f"mnt:[{new}] is pinned at {pin_of(daemon)}, but podkeep runtime (pid {daemon.pid}) is in mnt:[{old}]"
        in message
    )
    for _ in range(3):
        apart(pods)
    assert len(warnings(daemon)) == 1, "it is logged when it begins"
    assert "remove the pods of this machine (drain the node); then podkeep runtime stop, and start it again" in message
    assert daemon.run("runtime", "stop", check=True)
    pods = mortal.start()
    together(pods)
    assert namespace_of(daemon.pid) == new


@pytest.mark.requirement("M35")
def test_a_pin_that_is_gone(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    old = namespace_of(daemon.pid)
    subprocess.run(["umount", pin_of(daemon)], check=True)
    message = apart(pods)
    assert f"no mount namespace is pinned at {pin_of(daemon)} any more; podkeep runtime" in message
    assert "; then podkeep mountns start; then podkeep runtime stop, and start it again" in message
    assert len(warnings(daemon)) == 1
    daemon.run("mountns", "start", check=True)
    assert daemon.run("runtime", "stop", check=True)
    pods = mortal.start()
    together(pods)
    assert namespace_of(daemon.pid) == pinned(daemon) != old


@pytest.mark.requirement("M33", "M35")
@pytest.mark.parametrize("remade", [False, True])
def test_who_enters_is_where_the_runtime_is_whatever_is_pinned(mortal: Mortal, remade: bool) -> None:
    mortal.start()
    daemon = mortal.daemon
    if remade:
        remake(daemon)
    else:
        daemon.run("mountns", "stop", "--force", check=True)
    inside = daemon.run("mountns", "exec", "--", "readlink", "/proc/self/ns/mnt", check=True)
    assert inside.stdout == f"mnt:[{namespace_of(daemon.pid)}]\n"
    again = daemon.command("mountns", "exec", "--", "true")
    assert daemon.run("mountns", "exec", "--", *again).returncode == 0


@pytest.mark.requirement("M35")
@pytest.mark.parametrize("remade", [False, True])
def test_a_restored_pin_mends_it_and_is_logged(mortal: Mortal, remade: bool) -> None:
    """For a node that cannot be drained: the old namespace is put back, from the host, by hand."""
    pods = mortal.start()
    daemon = mortal.daemon
    container = pods.launch(pods.run(pod("stays")))
    if remade:
        remake(daemon)
        apart(pods)
    subprocess.run(["umount", pin_of(daemon)], check=True)
    apart(pods)
    subprocess.run(["mount", "--bind", f"/proc/{daemon.pid}/ns/mnt", pin_of(daemon)], check=True)
    together(pods)
    assert f"all in mnt:[{pinned(daemon)}] again" in daemon.log.read_text()
    assert pods.read(container, "echo here") == "here"
    daemon.kill()
    pods = mortal.start()
    assert pods.read(container, "echo here") == "here"
    together(pods)


# apart: the kubelet


@pytest.mark.requirement("M35")
def test_a_kubelet_on_the_host(mortal: Mortal, stack: ExitStack) -> None:
    """Its mounts reach the runtime's namespace, what is mounted there does not reach it."""
    daemon = mortal.daemon
    pid = stack.enter_context(nodes.kubelet(daemon.base))
    pods = mortal.start()
    message = apart(pods)
    assert f"kubelet (pid {pid}) is in mnt:[{namespace_of()}], but podkeep runtime (pid {daemon.pid}) is in" in message
    assert "does not see what containers mount in Bidirectional volumes" in message
    wrapped = f"end kubelet (pid {pid}), and start it again with `nsenter --mount={pin_of(daemon)}` before"
    assert wrapped in message
    stack.close()
    stack.enter_context(nodes.kubelet(daemon.base, *nodes.enter(daemon)))
    together(pods)
    assert "again, as they should be" in daemon.log.read_text()


@pytest.mark.requirement("M35")
def test_a_kubelet_that_was_not_restarted_with_the_rest(mortal: Mortal, stack: ExitStack) -> None:
    """The service and the runtime were restarted, and the kubelet was not: nothing goes either way."""
    pods = mortal.start()
    daemon = mortal.daemon
    old = namespace_of(daemon.pid)
    pid = stack.enter_context(nodes.kubelet(daemon.base, *nodes.enter(daemon)))
    together(pods)
    new = remake(daemon)
    # Both are outside: the two are restarted after the pods have gone.
    assert f"then end kubelet (pid {pid})" in apart(pods)
    daemon.kill()
    pods = mortal.start()
    message = apart(pods)
    assert f"kubelet (pid {pid}) is in mnt:[{old}], but podkeep runtime (pid {daemon.pid}) is in mnt:[{new}]" in message
    assert "is an empty directory for containers" in message
    assert "podkeep runtime stop" not in message, "the runtime is where it should be"


@pytest.mark.requirement("M35")
def test_a_kubelet_of_another_runtime_is_no_matter(mortal: Mortal, stack: ExitStack) -> None:
    """It was told to use another socket. The stand-in is a shell here, which takes options."""
    daemon = mortal.daemon
    program = daemon.base / "kubelet"
    program.write_bytes(Path("/bin/sh").resolve().read_bytes())
    program.chmod(0o755)
    words = (program, "-c", "while :; do read line; done", "kubelet", "--container-runtime-endpoint=unix:///run/x.sock")
    stack.enter_context(nodes.running(*words, name="kubelet"))
    together(mortal.start())


# pods left in another namespace


def way(daemon: Daemon, message: str) -> None:
    """Have the daemon start by the command that a refusal names."""
    match = re.search(r"`podkeep ((?:--set (?P<set>\S+) )?runtime ?(?P<option>\S+)?)`", message)
    assert match is not None, message
    daemon.settings = (match["set"],) if match["set"] else ()
    daemon.options = (match["option"],) if match["option"] else ()


def as_before(daemon: Daemon) -> None:
    """Have the daemon start without what :func:`way` added."""
    daemon.settings = daemon.options = ()


def _settled(daemon: Daemon) -> Resources | None:
    """Return what the daemon holds once the process of the container is not the OCI runtime any more."""
    resources = daemon.resources()
    return None if "crun" in resources.processes else resources


@pytest.mark.requirement("M35", "M27")
def test_pods_in_a_namespace_that_lives_on_are_not_abandoned(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    container = pods.launch(pods.run(pod("stays")))
    before = wait_for(lambda: _settled(daemon), "the OCI runtime to end")
    old = namespace_of(daemon.pid)
    new = remake(daemon)
    daemon.kill()
    said = refusal(daemon)
    assert f"there are pods that were made in mnt:[{old}], which still exists: conmon (pid " in said
    assert f"This runtime is in mnt:[{new}], where their mounts are not" in said
    # The way that it names: the pod is whole there, and goes without a trace.
    way(daemon, said)
    pods = mortal.start()
    assert namespace_of(daemon.pid) == old
    assert pods.read(container, "echo here") == "here"
    assert daemon.resources() == before.after_a_restart()
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    daemon.run("runtime", "stop", check=True)
    as_before(daemon)
    pods = mortal.start()
    assert namespace_of(daemon.pid) == new
    together(pods)


@pytest.mark.requirement("M35")
def test_a_sandbox_without_a_process_is_known_by_what_the_runtime_published(mortal: Mortal, stack: ExitStack) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    pods.run(pod("empty"))
    old = namespace_of(daemon.pid)
    # Somebody is in there: a kubelet.
    pid = stack.enter_context(nodes.kubelet(daemon.base, *nodes.enter(daemon)))
    remake(daemon)
    daemon.kill()
    said = refusal(daemon)
    assert f"mnt:[{old}], which still exists: kubelet (pid {pid}) is in it" in said
    way(daemon, said)
    assert [item.state for item in mortal.start().sandboxes()] == [api.SANDBOX_READY]
    daemon.kill()
    # Its namespace ends with the last who is in it, and the pod's mounts with it.
    as_before(daemon)
    stack.close()
    daemon.run("mountns", "start", check=True)
    pods = mortal.start()
    assert [item.state for item in pods.sandboxes()] == [api.SANDBOX_NOTREADY]


@pytest.mark.requirement("M35")
def test_a_sandbox_in_a_namespace_that_only_its_pin_keeps(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    pods.run(pod("empty"))
    old = namespace_of(daemon.pid)
    daemon.kill()
    elsewhere = replace(daemon, settings=(f"mountns.pin={daemon.base}/other/mnt",), process=None)
    elsewhere.config = daemon.config
    said = refusal(elsewhere)
    assert f"made in mnt:[{old}], which still exists: it is pinned at {pin_of(daemon)}" in said
    assert not (daemon.base / "other").exists(), "what was made for the runtime that did not start is gone"
    way(daemon, said)
    assert daemon.options == (f"--mount-namespace={pin_of(daemon)}",)
    assert [item.state for item in mortal.start().sandboxes()] == [api.SANDBOX_READY]


@pytest.mark.requirement("M16", "M35")
@pytest.mark.parametrize("first", ContainerMounts)
def test_hiding_is_not_switched_under_pods(mortal: Mortal, first: ContainerMounts) -> None:
    daemon = mortal.daemon
    daemon.mounts = first
    daemon.write()
    pods = mortal.start()
    container = pods.launch(pods.run(pod("stays")))
    before = namespace_of(daemon.pid)
    daemon.kill()
    daemon.mounts = ContainerMounts.SHOWN if first is ContainerMounts.HIDDEN else ContainerMounts.HIDDEN
    daemon.write()
    said = refusal(daemon)
    assert f"there are pods that were made in mnt:[{before}], which still exists: conmon (pid" in said
    way(daemon, said)
    pods = mortal.start()
    assert namespace_of(daemon.pid) == before
    assert pods.read(container, "echo here") == "here"
    for sandbox in pods.sandboxes():
        pods.remove(sandbox.id)
    daemon.run("runtime", "stop", check=True)
    as_before(daemon)
    assert namespace_of(mortal.start() and daemon.pid) != before


@pytest.mark.requirement("M35")
def test_a_namespace_that_died_with_its_mounts_is_recovered_from(mortal: Mortal) -> None:
    pods = mortal.start()
    daemon = mortal.daemon
    clean = daemon.resources()
    sandbox = pods.run(pod("empty"))
    container = pods.launch(pods.run(pod("runs")))
    process = pods.host_pid(container)
    old = namespace_of(daemon.pid)
    daemon.kill()
    # Everybody who is in it ends, and so does the pin: the kernel unmounts what was mounted there.
    for pid in _inside(old):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _inside(old), "the namespace to be left")
    replace_pinned(daemon)
    os.kill(process, signal.SIGKILL)
    pods = mortal.start()
    assert namespace_of(daemon.pid) == pinned(daemon)
    assert {item.id: item.state for item in pods.sandboxes()}[sandbox] == api.SANDBOX_NOTREADY
    assert pods.status(container).state == api.CONTAINER_EXITED
    for item in pods.sandboxes():
        pods.remove(item.id)
    assert daemon.resources().after_a_restart() == clean.after_a_restart()
    again = pods.launch(pods.run(pod("again")))
    assert pods.read(again, "echo here") == "here"


def _inside(inode: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if namespace_of(entry) == inode:
                    found.append(int(entry))
            except OSError:
                continue
    return found


# podkeep run


def publish(daemon: Daemon, **content: Any) -> None:
    """Write what a runtime published that is gone, or that was killed since: the file outlives it."""
    (daemon.layout.run / PUBLICATION).write_text(json.dumps(content))


@pytest.mark.requirement("M35")
def test_an_agent_that_was_led_astray_does_not_start_a_pod(mortal: Mortal, image: str, tmp_path: Path) -> None:
    """The runtime that answers is another than the one that the file is about."""
    pods = mortal.start()
    daemon = mortal.daemon
    told = json.loads((daemon.layout.run / PUBLICATION).read_text())
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(_sleeper("astray", image)))
    here, there = namespace_of(), namespace_of(daemon.pid)
    with nodes.kubelet(tmp_path, *nodes.SIBLING) as pid:
        publish(daemon, inode=namespace_of(pid), pin="", hidden=True, pid=pid)
        said = daemon.run("run", str(manifest))
        assert said.returncode == 1
        mine = f"mnt:[{namespace_of(pid)}]"
        assert f"podkeep run is in {mine}, but the runtime hides its mounts in mnt:[{there}]" in said.stderr
        assert "hint: was the runtime restarted just now? Start podkeep run again" in said.stderr
    # That process has ended, and its ID may be another's.
    publish(daemon, inode=there, pin="", hidden=True, pid=os.getpid())
    assert daemon.run("run", str(manifest)).returncode == 1
    # One hides, the other does not.
    publish(daemon, inode=here, pin="", hidden=False, pid=1)
    said = daemon.run("run", str(manifest))
    assert said.returncode == 1
    assert f"podkeep run is in mnt:[{here}], but the runtime hides its mounts in mnt:[{there}]" in said.stderr
    publish(daemon, **told)
    assert pods.sandboxes() == []


# podkeep doctor


def findings(daemon: Daemon) -> dict[str, dict[str, str]]:
    """Return what the doctor finds, by name."""
    said = daemon.run("doctor", "-o", "json", timeout=120)
    assert said.returncode in {0, 1}, said.stderr
    return {item["name"]: item for item in json.loads(said.stdout)}


@pytest.mark.requirement("M13", "M35")
def test_the_doctor_sees_each_daemon(mortal: Mortal, stack: ExitStack) -> None:
    daemon = mortal.daemon
    found = findings(daemon)
    assert found["container mounts"]["level"] == "ok"
    assert f"no mount namespace is pinned at {pin_of(daemon)}" in found["container mounts"]["detail"]
    pods = mortal.start()
    kubelet = stack.enter_context(nodes.kubelet(daemon.base, *nodes.enter(daemon)))
    inode = pinned(daemon)
    found = findings(daemon)
    runtime = f"podkeep runtime (pid {daemon.pid})"
    assert f"hidden in mnt:[{inode}], pinned at {pin_of(daemon)}" in found["container mounts"]["detail"]
    assert found["mounts of the host"]["detail"] == "seen inside: / is shared on the host"
    for name in (runtime, f"kubelet (pid {kubelet})"):
        assert found[name] == {
            "name": name, "level": "ok", "detail": f"in mnt:[{inode}], the pinned one", "why": "", "fix": ""
        }  # fmt: skip
    assert found[CONDITION]["level"] == "ok"
    new = remake(daemon)
    message = apart(pods)
    found = findings(daemon)
    assert found["mount namespace"]["level"] == "warning"
    assert found["mount namespace"]["detail"] in message
    assert f"mnt:[{new}] is pinned" in found["mount namespace"]["detail"]
    assert found["mount namespace"]["fix"] in message
    assert found[CONDITION]["level"] == "warning", "pods run"


@pytest.mark.requirement("M35")
def test_the_doctor_sees_a_second_runtime_that_is_elsewhere(mortal: Mortal) -> None:
    mortal.start()
    daemon = mortal.daemon
    base = daemon.base / "second"
    base.mkdir()
    second = Daemon(base, mounts=ContainerMounts.HIDDEN)
    with second:
        name = f"podkeep runtime (pid {second.pid})"
        found = findings(daemon)[name]
        assert found["level"] == "warning"
        assert found["detail"] == f"in mnt:[{namespace_of(second.pid)}], another one than {pin_of(daemon)}'s"


@pytest.mark.requirement("M16")
def test_the_doctor_where_nothing_is_hidden(mortal: Mortal) -> None:
    daemon = mortal.daemon
    mortal.start()
    daemon.run("mountns", "start", check=True)
    daemon.run("runtime", "stop", check=True)
    daemon.mounts = ContainerMounts.SHOWN
    daemon.write()
    mortal.start()
    found = findings(daemon)["container mounts"]
    assert found["level"] == "warning"
    assert found["detail"].startswith(
        f"not hidden by the runtime (pid {daemon.pid}), and mnt:[{pinned(daemon)}] is pinned"
    )
    daemon.run("mountns", "stop", check=True)
    found = findings(daemon)
    assert found["container mounts"]["level"] == "ok"
    assert "mount namespace" not in found
    said = daemon.run("mountns", "status").stdout.splitlines()
    assert [line.split()[0] for line in said] == ["hiding", "pin", "namespace"]
    assert said[-1].split() == ["namespace", "none"]


def test_a_runtime_that_was_stopped_is_in_nobodys_way(mortal: Mortal) -> None:
    """What fixes comes in steps, and each is over when its command is."""
    daemon = mortal.daemon
    daemon.run("mountns", "start", check=True)
    for _ in range(3):
        mortal.start()
        assert daemon.process is not None
        daemon.run("runtime", "stop", check=True)
        assert daemon.process.poll() == 0
    daemon.run("mountns", "stop", check=True)
