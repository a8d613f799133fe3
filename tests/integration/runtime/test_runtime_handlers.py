"""Runtime handlers: Debian's runc 1.1.5 beside crun. It reads the mappings of a mount and ignores them, so no pod that
asks for a user namespace may run with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import FailedPrecondition, InvalidArgument, NotFound
from podkeep.base.ids import ContainerID
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.mount import mounts
from support.cri import BLOCK, Pods, bind, error_of, namespaces, pod
from support.daemon import Daemon
from support.registry import Registry

CLEAR = "user namespaces is not supported by the runtime handler"
HANDLERS = """
[runtime.handlers.crun]
path = "/usr/bin/crun"
[runtime.handlers.runc]
path = "/usr/sbin/runc"
[runtime.handlers.broken]
path = "/bin/false"
[runtime.handlers.missing]
path = "/no/such/runtime"
[runtime.handlers.special]
path = "/usr/bin/crun"
options = ["--log-format=json", "--cgroup-manager=cgroupfs"]
annotations = ["tests.example/*"]
privileged_without_host_devices = true
"""


@pytest.fixture(scope="module")
def runc_daemon(open_directory: Path, registry: Registry) -> Iterator[Daemon]:
    """A daemon that has runc, a program that always fails and one that does not exist as further handlers."""
    version = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("runc version 1.1."), f"the tests are about a runc that ignores mappings, not {version}"
    extra = f'[registries."{registry.host}"]\ninsecure = true\n{HANDLERS}'
    base = open_directory / f"handlers-{os.urandom(3).hex()}"
    base.mkdir()
    with Daemon(base, extra=extra) as daemon:
        yield daemon


@pytest.fixture
def runc_pods(runc_daemon: Daemon, image: str) -> Iterator[Pods]:
    """A client of that daemon, which holds afterwards what it held before."""
    before = runc_daemon.resources()
    with Pods(runc_daemon.socket, image) as client:
        client.pull()
        yield client
    assert runc_daemon.resources() == before


@pytest.mark.requirement("U25", "U85")
def test_features_are_what_handlers_really_do(runc_pods: Pods) -> None:
    handlers = runc_pods.call("Status", api.StatusRequest()).runtime_handlers
    assert {item.name: item.features.user_namespaces for item in handlers} == {
        "": True, "crun": True, "runc": False, "broken": False, "missing": False,
        "special": True,
    }  # fmt: skip
    assert len(handlers) == 6
    # runc 1.1.5 does not know such mounts; it needs not, the runtime makes them.
    assert {item.name: item.features.recursive_read_only_mounts for item in handlers} == {
        "": True, "crun": True, "runc": True, "broken": False, "missing": False, "special": True,
    }  # fmt: skip


def test_recursive_read_only_mount_with_a_handler_that_does_not_work(runc_pods: Pods, tmp_path: Path) -> None:
    sandbox = runc_pods.run(handler="broken")
    mount = bind(tmp_path, "/v", readonly=True, recursive_read_only=True)
    message = error_of(lambda: runc_pods.create(sandbox, mounts=[mount]), FailedPrecondition)
    assert message.startswith("RROUnsupported: runtime handler 'broken' does not support recursive read-only mounts: ")
    assert runc_pods.containers() == []


def test_recursive_read_only_mount_with_runc(runc_pods: Pods, open_directory: Path) -> None:
    volume = open_directory / "with-runc"
    (volume / "below").mkdir(parents=True)
    mounts.tmpfs(volume / "below", "mode=777")
    try:
        sandbox = runc_pods.run(handler="runc")
        mount = bind(volume, "/v", readonly=True, recursive_read_only=True)
        container = runc_pods.launch(sandbox, mounts=[mount, bind(volume, "/w", readonly=True)])
        for path, code in (("/v/new", 1), ("/v/below/new", 1), ("/w/new", 1), ("/w/below/new", 0)):
            assert runc_pods.exec(container, "touch", path).exit_code == code, path
    finally:
        mounts.unmount(volume / "below")


@pytest.mark.requirement("U25", "U85")
def test_pod_in_a_user_namespace_is_refused_by_a_handler_that_ignores_mappings(runc_pods: Pods) -> None:
    config = pod(options=namespaces(user=BLOCK))
    message = error_of(lambda: runc_pods.run(config, handler="runc"), FailedPrecondition)
    assert f"{CLEAR} 'runc': /usr/sbin/runc ignores mounts[].uidMappings" in message
    assert runc_pods.sandboxes() == []


@pytest.mark.requirement("U24", "U85")
def test_mapped_mount_is_refused_by_a_handler_that_ignores_mappings(runc_pods: Pods, tmp_path: Path) -> None:
    sandbox = runc_pods.run(handler="runc")
    message = error_of(lambda: runc_pods.create(sandbox, mounts=[bind(tmp_path, "/v", BLOCK)]), FailedPrecondition)
    assert f"{CLEAR} 'runc'" in message
    assert runc_pods.containers() == []


@pytest.mark.requirement("U85")
@pytest.mark.parametrize("pid", [api.CONTAINER, api.POD])
def test_pod_of_the_hosts_user_namespace_runs_with_it(runc_pods: Pods, pid: api.NamespaceMode) -> None:
    sandbox = runc_pods.run(pod(options=namespaces(pid=pid)), handler="runc")
    assert runc_pods.pod_status(sandbox).status.runtime_handler == "runc"
    container = runc_pods.launch(sandbox, "sh", "-c", "trap 'exit 4' TERM; touch /ready; while :; do sleep 0.01; done")
    assert runc_pods.read(container, "cat /proc/self/uid_map").split() == ["0", "0", "4294967295"]
    runc_pods.read(container, "while ! test -e /ready; do sleep 0.01; done")
    runc_pods.stop(container, timeout=30)
    assert runc_pods.status(container).exit_code == 4


@pytest.mark.requirement("U85")
def test_crun_beside_it_runs_pods_in_user_namespaces(runc_pods: Pods) -> None:
    for number, handler in enumerate(("", "crun")):
        sandbox = runc_pods.run(pod(f"pod{number}", options=namespaces(user=BLOCK)), handler=handler)
        container = runc_pods.launch(sandbox)
        assert runc_pods.read(container, "cat /proc/self/uid_map").split() == ["0", "65536", "65536"]


def test_words_of_runc_are_passed_on(runc_pods: Pods) -> None:
    sandbox = runc_pods.run(handler="runc")
    assert error_of(lambda: runc_pods.create(sandbox, "/etc"), InvalidArgument) == (
        "OCI runtime create failed: runc create failed: unable to start container process: "
        'exec: "/etc": permission denied'
    )


def test_exec_with_runc(runc_pods: Pods) -> None:
    container = runc_pods.launch(runc_pods.run(handler="runc"))
    answer = runc_pods.exec(container, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (answer.stdout, answer.stderr, answer.exit_code) == (b"out\n", b"err\n", 3)


@pytest.mark.parametrize("handler", ["broken", "missing"])
def test_handler_that_does_not_work_says_so_and_leaves_nothing(runc_pods: Pods, handler: str) -> None:
    sandbox = runc_pods.run(handler=handler)
    with pytest.raises(Exception, match=r"OCI runtime create failed|/no/such/runtime"):
        runc_pods.create(sandbox)
    assert runc_pods.containers() == []
    assert CLEAR in error_of(
        lambda: runc_pods.run(pod("other", options=namespaces(user=BLOCK)), handler=handler), FailedPrecondition
    )


def test_options_of_a_handler(runc_pods: Pods, runc_daemon: Daemon) -> None:
    annotations = {"tests.example/a": "pod", "tests.example/b": "pod", "other.example/c": "pod"}
    config = pod(annotations=annotations, options=namespaces())
    config.linux.security_context.privileged = True
    sandbox = runc_pods.run(config, handler="special")
    inside = runc_pods.launch(
        sandbox, security={"privileged": True}, annotations={"tests.example/b": "container", "run.oci.x": "no"}
    )
    bundle = runc_daemon.layout.bundle(ContainerID(inside))
    written = json.loads((bundle / "config.json").read_text())
    assert written["annotations"] == {"tests.example/a": "pod", "tests.example/b": "container"}
    devices = set(runc_pods.read(inside, "ls /dev").split())
    assert devices.isdisjoint({"kmsg", "loop-control", "mem", "kvm"})
    made = runc_pods.exec(inside, "sh", "-c", "mknod /kmsg c 1 11 && head -c 1 /kmsg")
    assert "Operation not permitted" in made.stderr.decode(), "a node that it makes is closed to it"
    monitor = (bundle / "conmon.pid").read_text()
    arguments = Path(f"/proc/{monitor}/cmdline").read_text().split("\0")
    assert {"--log-format=json", "--cgroup-manager=cgroupfs"} <= set(arguments)
    assert runc_pods.exec(inside, "true").exit_code == 0
    assert runc_pods.status(inside).annotations == {"tests.example/b": "container", "run.oci.x": "no"}


def test_handler_that_is_not_configured(runc_pods: Pods) -> None:
    message = error_of(lambda: runc_pods.run(handler="kata"), NotFound)
    assert "'kata' is not configured" in message
    assert "broken, crun, missing, runc, special" in message
