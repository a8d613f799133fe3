"""blockio with cgroup version 2: io.max and weights of containers, and limits of a pod that its containers share.

Version 1, and what is offered there, is tests/integration/runtime/test_blockio.py. Rates are low, for an emulated disk.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from podkeep.runtime.class_resources.blockio import limits
from support.images import busybox_layout
from support.nested.machine import Machine

IMAGE = "localhost/busybox:blockio"
CONFIG = "/etc/podkeep/config.toml"
CLASSES = "/etc/podkeep/blockio.yaml"
UNIT = "/etc/systemd/system/podkeep.service"
SCRIPT = "/root/blockio.py"
DISK_IMAGE = "/root/blockio.img"
TIMEOUT_S = 400
MIB = 1 << 20
TOLERANCE = 0.1

SETTINGS = """\
[runtime]
cgroup_driver = "{driver}"
[class_resources]
blockio_config = "/etc/podkeep/blockio.yaml"
"""
BLOCKIO = """\
Classes:
  slow:
    - Devices: [{disk}]
      ThrottleReadBps: 2Mi
      ThrottleWriteIOPS: 50
  pod:
    - Devices: [{disk}]
      ThrottleReadBps: 3Mi
  weighed:
    - Weight: 400
    - Devices: [{disk}]
      Weight: 700
  free:
"""

STEPS = '''\
"""Does what a test says on its standard input, and prints what was found; JSON both."""

import asyncio, glob, json, subprocess, sys
from podkeep.base.errors import PodkeepError
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2 as api

given = json.load(sys.stdin)

def classes(message, field, name):
    if name:
        getattr(message.class_resources, field)["blockio"] = name
    return message

def content(directory):
    names = ("io.max", "io.bfq.weight")
    return {name: open(path).read() for name in names for path in glob.glob(f"{directory}/{name}")}

async def measure(client, container, count):
    clock = "read now _ </proc/uptime; echo $now"
    script = f"{clock}; dd if=/dev/disk of=/dev/null iflag=direct bs=64k count={count} 2>/dev/null || exit; {clock}"
    answer = await client.runtime.ExecSync(
        api.ExecSyncRequest(container_id=container, cmd=["sh", "-c", script], timeout=200), timeout=300
    )
    return [float(line) for line in answer.stdout.split()]

async def run():
    async with CriClient("/run/podkeep/podkeep.sock") as client:
        runtime = client.runtime
        config = api.PodSandboxConfig(metadata=api.PodSandboxMetadata(name="b", uid="b", namespace="n"))
        options = config.linux.security_context.namespace_options
        options.network, options.pid = api.NODE, api.CONTAINER
        classes(config, "class", given["pod"])
        try:
            sandbox = (await runtime.RunPodSandbox(api.RunPodSandboxRequest(config=config), timeout=200)).pod_sandbox_id
        except PodkeepError as error:
            return {"refused": str(error)}
        found = {}
        try:
            place = glob.glob(f"/sys/fs/cgroup/**/*{sandbox}*/", recursive=True)[0]
            found["pod"] = [content(place)]
            containers, places = [], []
            for number, name in enumerate(given["containers"]):
                wanted = api.ContainerConfig(
                    metadata=api.ContainerMetadata(name=f"c{number}"), image=api.ImageSpec(image=given["image"]),
                    command=["sleep", "10000"],
                    devices=[api.Device(container_path="/dev/disk", host_path=given["disk"], permissions="r")],
                )
                wanted.linux.security_context.namespace_options.CopyFrom(options)
                classes(wanted, "classes", name)
                request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=wanted, sandbox_config=config)
                container = (await runtime.CreateContainer(request, timeout=200)).container_id
                await runtime.StartContainer(api.StartContainerRequest(container_id=container), timeout=200)
                request = api.ContainerStatusRequest(container_id=container, verbose=True)
                pid = json.loads((await runtime.ContainerStatus(request)).info["info"])["pid"]
                with open(f"/proc/{pid}/cgroup") as file:
                    places.append("/sys/fs/cgroup" + file.read().strip().partition("::")[2])
                containers.append(container)
            found["containers"] = [[content(path)] for path in places]
            async def read_all():
                if given["count"]:
                    measuring = [measure(client, container, given["count"]) for container in containers]
                    found.setdefault("times", []).append(await asyncio.gather(*measuring))
            await read_all()
            for name in given["changes"]:
                for container in containers:
                    request = api.UpdateContainerResourcesRequest(container_id=container)
                    await runtime.UpdateContainerResources(classes(request, "classes", name), timeout=200)
                for path, seen in zip(places, found["containers"]):
                    seen.append(content(path))
                await read_all()
            for name in given["podChanges"]:
                changed = classes(api.PodSandboxConfig(metadata=config.metadata), "class", name)
                request = api.UpdatePodSandboxConfigRequest(pod_sandbox_id=sandbox, config=changed)
                await runtime.UpdatePodSandboxConfig(request, timeout=200)
                found["pod"].append(content(place))
                await read_all()
            if given["reload"]:
                # systemd looks after the cgroups of its units when it reads them again.
                subprocess.run(["systemctl", "daemon-reload"], check=True)
                found["pod"].append(content(place))
                for path, seen in zip(places, found["containers"]):
                    seen.append(content(path))
        finally:
            await runtime.StopPodSandbox(api.StopPodSandboxRequest(pod_sandbox_id=sandbox), timeout=200)
            await runtime.RemovePodSandbox(api.RemovePodSandboxRequest(pod_sandbox_id=sandbox), timeout=200)
        return found

print(json.dumps(asyncio.run(run())))
'''


class Node:
    """podkeep as a service of the nested machine, which has a loop device."""

    def __init__(self, machine: Machine, driver: str, disk: str) -> None:
        self.machine = machine
        self.driver = driver
        self.disk = disk
        self.number = machine.run(f"cat /sys/block/{disk.removeprefix('/dev/')}/dev", check=True).stdout.strip()

    def does(self, **given: Any) -> dict[str, Any]:
        """Run a pod: ``pod`` and ``containers`` are their classes, ``count`` blocks of 64 KiB are read by each."""
        whole = {"image": IMAGE, "disk": self.disk, "pod": "", "count": 0, "changes": [], "podChanges": [], **given}
        whole.setdefault("reload", False)
        self.machine.write("/root/given.json", json.dumps(whole))
        command = f"{sys.executable} {SCRIPT} < /root/given.json"
        found: dict[str, Any] = json.loads(self.machine.run(command, timeout=TIMEOUT_S, check=True).stdout)
        return found

    def maximum(self, **rates: int) -> str:
        """Return what io.max says of the disk."""
        values = " ".join(f"{key}={rates.get(key, 'max')}" for key in ("rbps", "wbps", "riops", "wiops"))
        return f"{self.number} {values}\n"


@pytest.fixture(scope="module", params=["cgroupfs", "systemd"])
def node(request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    layout = busybox_layout(tmp_path_factory.mktemp("nested-blockio") / "busybox", name=IMAGE)
    machine.put(layout.path, "/root/busybox-blockio")
    make = f"modprobe loop; truncate -s 64M {DISK_IMAGE} && losetup --find --show {DISK_IMAGE}"
    disk = machine.run(make, check=True).stdout.strip()
    machine.write(CONFIG, SETTINGS.format(driver=request.param))
    machine.write(CLASSES, BLOCKIO.format(disk=disk))
    machine.write(SCRIPT, STEPS)
    machine.write(UNIT, machine.podkeep("runtime", "unit").stdout)
    machine.write(f"{UNIT}.d/slow.conf", f"[Service]\nTimeoutStartSec={TIMEOUT_S}\nWatchdogSec={TIMEOUT_S}\n")
    machine.podkeep("mountns", "install", "podkeep")
    try:
        machine.run("systemctl daemon-reload && systemctl start podkeep", timeout=TIMEOUT_S, check=True)
        machine.podkeep("image", "load", "--quiet", "/root/busybox-blockio", timeout=TIMEOUT_S)
        yield Node(machine, request.param, disk)
    finally:
        machine.run("journalctl --unit podkeep --no-pager --output cat >/dev/ttyS0")
        machine.run("systemctl stop podkeep container-mount-namespace", timeout=TIMEOUT_S)
        machine.run(
            ["rm", "-rf", CONFIG, CLASSES, UNIT, f"{UNIT}.d", SCRIPT, "/root/busybox-blockio", "/root/given.json"]
        )
        machine.podkeep("mountns", "uninstall", check=False)
        machine.run(f"losetup --detach {disk}; rm {DISK_IMAGE}; systemctl daemon-reload")
        assert machine.run("losetup --noheadings").stdout == ""


def assert_limited(times: list[list[list[float]]], count: int, rate: int) -> None:
    """Check that all together read ``rate`` bytes in a second at first, and much more at last, without a class.

    An emulated machine is kept waiting often, so ``rate`` is a ceiling; that it was the limit is seen when it is gone.
    """
    rates = []
    for together in times:
        started, ended = min(start for start, _ in together), max(end for _, end in together)
        rates.append(len(together) * count * (64 << 10) / (ended - started))
    assert rates[0] <= rate * (1 + TOLERANCE), rates
    assert rates[-1] >= 2 * rate, rates


@pytest.mark.requirement("Q44", "Q48")
def test_io_max_of_a_container(node: Node) -> None:
    count = 3 * 2 * MIB // (64 << 10)
    found = node.does(containers=["slow"], count=count, changes=["pod", "free"])
    assert [seen["io.max"] for seen in found["containers"][0]] == [
        node.maximum(rbps=2 * MIB, wiops=50), node.maximum(rbps=3 * MIB), "",
    ]  # fmt: skip
    assert_limited(found["times"], count, 2 * MIB)


@pytest.mark.requirement("Q3", "Q17", "Q49")
def test_the_containers_of_a_pod_share_its_limit(node: Node) -> None:
    count = 3 * 3 * MIB // (64 << 10) // 2
    found = node.does(pod="pod", containers=["", ""], count=count, podChanges=["slow", "free"])
    assert [seen.get("io.max") for seen in found["pod"]] == [
        node.maximum(rbps=3 * MIB), node.maximum(rbps=2 * MIB, wiops=50), "",
    ]  # fmt: skip
    assert [seen["io.max"] for seen, *_ in found["containers"]] == ["", ""]
    # Together they get what the pod may.
    assert_limited(found["times"], count, 3 * MIB)


@pytest.mark.requirement("Q16", "Q49")
def test_limits_outlive_that_systemd_reads_its_units_again(node: Node) -> None:
    found = node.does(pod="pod", containers=["slow"], reload=True)
    assert [seen["io.max"] for seen in found["pod"]] == [node.maximum(rbps=3 * MIB)] * 2
    assert [seen["io.max"] for seen in found["containers"][0]] == [node.maximum(rbps=2 * MIB, wiops=50)] * 2


@pytest.mark.requirement("Q44", "Q48", "Q50")
def test_weights_of_bfq(node: Node) -> None:
    scheduler = f"/sys/block/{node.disk.removeprefix('/dev/')}/queue/scheduler"
    node.machine.run(f"modprobe bfq && echo bfq > {scheduler}", check=True)
    weighed, default = f"default 400\n{node.number} 700\n", "default 100\n"
    try:
        found = node.does(containers=["weighed"], changes=["free", "weighed"], reload=True)
        assert [seen[limits.BFQ_WEIGHT] for seen in found["containers"][0]] == [weighed, default, weighed, weighed]
        found = node.does(pod="weighed", containers=[], podChanges=["free", "weighed"], reload=True)
        if node.driver == "systemd":
            assert (
                "class resource blockio: no class 'weighed' for pods; hint: offered: free, pod, slow"
                in found["refused"]
            )
        else:
            assert [seen[limits.BFQ_WEIGHT] for seen in found["pod"]] == [weighed, default, weighed, weighed]
    finally:
        node.machine.run(f"echo none > {scheduler}", check=True)
