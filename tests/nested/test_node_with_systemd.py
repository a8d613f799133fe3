"""``podkeep node`` with systemd: pods in slices of cgroup version 2, and a shutdown that logind announces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.images import busybox_layout
from support.nested.machine import Machine
from support.nested.node import NestedNode
from support.pods import resources

pytestmark = pytest.mark.first  # of the longest, and a worker keeps a file's tests
IMAGE = "localhost/busybox:nested"
CONFIG = """\
[runtime]
cgroup_driver = "systemd"
[agent]
shutdown_grace_period = 120.0
"""
FOREVER = "trap 'exit 0' TERM; sleep 100000 & wait"
OUT_OF_MEMORY = "until [ -e /go/now ]; do sleep 1; done; rm /go/now; dd if=/dev/zero of=/dev/null bs=256M"


def pod(name: str, script: str, limits: str = "", requests: str = "", **spec: Any) -> dict[str, Any]:
    """Return a pod whose container runs ``script`` and has the machine's directory ``/root/go`` at ``/go``."""
    container = {
        "name": "c",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": resources(requests, limits),
        "volumeMounts": [{"name": "go", "mountPath": "/go"}],
    }
    go = {"name": "go", "hostPath": {"path": "/root/go", "type": "DirectoryOrCreate"}}
    whole = {"containers": [container], "volumes": [go], "terminationGracePeriodSeconds": 60} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def slice_of(found: dict[str, Any], level: str = "") -> str:
    """Return the directory of a pod's slice, below that of its QoS class if this has one."""
    uid = found["metadata"]["uid"].replace("-", "_")
    if not level:
        return f"/sys/fs/cgroup/podkeep.slice/podkeep-pod{uid}.slice"
    return f"/sys/fs/cgroup/podkeep.slice/podkeep-{level}.slice/podkeep-{level}-pod{uid}.slice"


def container(found: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod's container."""
    (status,) = found["status"]["containerStatuses"]
    return dict(status)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedNode]:
    """A node that the machine's systemd runs, with the systemd cgroup driver."""
    with Machine() as machine:
        machine.write("/etc/podkeep/config.toml", CONFIG)
        node = NestedNode(machine)
        node.start(busybox_layout(tmp_path_factory.mktemp("node") / "busybox", name=IMAGE))
        yield node


def read(node: NestedNode, *paths: str) -> list[str]:
    """Return what is in files of one line."""
    return node.machine.run(["cat", *paths], check=True).stdout.splitlines()


def test_pods_are_in_slices_with_their_limits_and_follow_a_resize(node: NestedNode) -> None:
    """A container's ID, and a restart of the agent, show that nothing is started anew for it."""
    before = node.holding()
    node.apply(
        pod("guaranteed", FOREVER, limits="cpu=500m memory=64Mi"),
        pod("burstable", FOREVER, requests="cpu=250m memory=16Mi"),
        pod("besteffort", FOREVER),
    )
    first = node.running("guaranteed")
    place = slice_of(first)
    scope = f"{place}/podkeep-pod*.slice/podkeep-*.scope"
    limits = "$f/memory.max $f/cpu.max"
    assert read(node, f"{place}/memory.max", f"{place}/cpu.max") == [str(64 << 20), "50000 100000"]
    shown = node.machine.run(f"for f in {scope}; do [ -e $f/container ] && f=$f/container; cat {limits}; done")
    assert shown.stdout.splitlines() == [str(64 << 20), "50000 100000"]
    burstable, besteffort = node.running("burstable"), node.running("besteffort")
    # Weights as the kernel's version 1 shares become them: 256 and 2 of 262144.
    assert read(node, f"{slice_of(burstable, 'burstable')}/cpu.weight") == ["10"]
    assert read(node, f"{slice_of(besteffort, 'besteffort')}/cpu.weight") == ["1"]

    node.kill("agent")
    change = {"spec": {"containers": [{"name": "c", "resources": resources(limits="cpu=250m memory=96Mi")}]}}
    node.patch("guaranteed", change, subresource="resize")
    node.until(
        lambda: read(node, f"{place}/memory.max", f"{place}/cpu.max") == [str(96 << 20), "25000 100000"],
        "the slice has what was asked for",
    )
    resized = node.pod(
        "guaranteed",
        lambda found: container(found).get("resources", {}).get("limits") == {"cpu": "250m", "memory": "96Mi"},
        "the status says so",
    )
    assert (container(resized)["containerID"], container(resized)["restartCount"]) == (
        container(first)["containerID"],
        0,
    )

    # systemd writes what it knows again when it is told of a change of any unit.
    node.machine.run("systemctl daemon-reload", timeout=node.timeout_s, check=True)
    assert read(node, f"{place}/memory.max", f"{place}/cpu.max") == [str(96 << 20), "25000 100000"]

    summary = node.ask("GET", f"/api/v1/nodes/{node.name}/proxy/stats/summary")
    used = {item["podRef"]["name"]: item["memory"]["workingSetBytes"] for item in summary["pods"]}
    assert used.keys() == {"guaranteed", "burstable", "besteffort"}
    assert all(0 < each < 16 << 20 for each in used.values()), used

    assert node.emptied() == before


def test_memory_that_runs_out_restarts_a_container(node: NestedNode) -> None:
    before = node.holding()
    node.apply(pod("eater", OUT_OF_MEMORY, limits="cpu=500m memory=64Mi"))
    node.running("eater")
    node.machine.run(": >/root/go/now", check=True)
    found = node.pod("eater", lambda found: container(found)["restartCount"] == 1, "restarted")
    last = container(found)["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("OOMKilled", 137)
    assert node.emptied() == before


def test_a_shutdown_of_the_machine_waits_for_pods(node: NestedNode) -> None:
    """logind tells the agent, which ends the pod; what it says of its end is kept over the boot."""
    before = node.holding()
    script = "trap 'sleep 2; echo ended >/go/end; exit 3' TERM; echo >/go/began; sleep 100000 & wait"
    node.apply(pod("web", script))
    node.running("web")
    node.until(lambda: not node.machine.run("ls /root/go/began").returncode, "it has its trap")
    locks = node.machine.run("systemd-inhibit --list --no-legend --no-pager", check=True).stdout
    assert [line.split()[-1] for line in locks.splitlines() if "podkeep" in line] == ["delay"]

    node.reboot()

    assert read(node, "/root/go/end") == ["ended"]
    found = node.phase("web", "Failed")
    assert found["status"]["reason"] == "Terminated"
    assert found["status"]["message"] == "Pod was terminated in response to imminent node shutdown."
    assert container(found)["state"]["terminated"]["exitCode"] == 3
    node.apply(pod("next", FOREVER))
    node.running("next")
    assert node.emptied() == before
