"""The floor beneath a pod: its namespaces, a port of a bridge, conmon and crun by themselves, without a runtime.

Run as a program of its own, because crun wants a machine without hybrid cgroups: it detaches the second hierarchy in a
mount namespace that goes with it. The OCI configuration is that of a pod which podkeep made, without its mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from bench.images import BUSYBOX
from bench.samples import Samples
from podkeep.base.ids import ContainerID, HandlerName
from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest
from podkeep.kernel.network import netlink
from podkeep.kernel.network.netlink import Endpoint
from podkeep.kernel.process import procfs
from podkeep.runtime.oci.driver import Driver, Handler, Stdio

STEPS = ("namespaces", "bridge port", "conmon and crun create", "crun start")
_BRIDGE = "bench-floor"
_ROUTER = IPv4Interface("10.199.0.1/16")
_KINDS = {NamespaceKind.NET: "network", NamespaceKind.IPC: "ipc", NamespaceKind.UTS: "uts"}
_IN_OWN_PLACE = """
if mountpoint --quiet /sys/fs/cgroup/unified; then umount --lazy /sys/fs/cgroup/unified; fi
exec "$@"
"""


def measure(directory: Path, config: dict[str, Any], cgroup: str, count: int) -> Samples:
    """Return the times of ``count`` containers, one after the other, by :data:`STEPS`."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    module = [sys.executable, "-m", "bench.floor", str(directory), cgroup, str(count)]
    place = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", _IN_OWN_PLACE, "sh"]
    done = subprocess.run([*place, *module], check=True, stdout=subprocess.PIPE)
    samples = Samples()
    for name, values in json.loads(done.stdout).items():
        for value in values:
            samples.add(name, value)
    return samples


def main(arguments: list[str]) -> None:
    directory, cgroup, count = Path(arguments[0]), arguments[1], int(arguments[2])
    config = json.loads((directory / "config.json").read_text())
    (directory / "rootfs/bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, directory / "rootfs/bin/sleep")
    for name in ("proc", "dev", "sys", "etc"):
        (directory / "rootfs" / name).mkdir()
    crun, conmon = (str(shutil.which(name)) for name in ("crun", "conmon"))
    driver = Driver(handler=Handler(name=HandlerName("crun"), path=crun, root=directory / "state"), conmon=conmon)
    samples = Samples()
    with NamespaceHelper() as helper:
        netlink.ensure_bridge(_BRIDGE, [_ROUTER], "bench")
        for number in range(count + 1):
            _one(driver, helper, directory, _of_its_own(config, f"{cgroup}/floor-{number}"), number, samples)
        netlink.delete_link(_BRIDGE)
    # The first one of each kind is not counted.
    print(json.dumps({name: samples.values(name)[1:] for name in STEPS}))


def _of_its_own(config: dict[str, Any], cgroup: str) -> dict[str, Any]:
    mounts = [item for item in config["mounts"] if item["type"] != "bind"]
    linux = {**config["linux"], "cgroupsPath": cgroup}
    process = {**config["process"], "args": ["/bin/sleep", "3600"]}
    return {**config, "root": {"path": "rootfs"}, "mounts": mounts, "linux": linux, "process": process}


def _one(
    driver: Driver, helper: NamespaceHelper, directory: Path, config: dict[str, Any], number: int, samples: Samples
) -> None:
    container, bundle = ContainerID(f"floor-{number}"), directory / str(number)
    bundle.mkdir()
    (bundle / "rootfs").symlink_to(directory / "rootfs")
    with ExitStack() as closing:
        with samples.timed("namespaces"):
            made = helper.create(NamespaceRequest(kinds=frozenset(_KINDS), hostname="floor"))
        paths = {}
        for kind, fd in made.items():
            closing.callback(os.close, fd)
            paths[_KINDS[kind]] = f"/proc/{os.getpid()}/fd/{fd}"
        with samples.timed("bridge port"):
            link, netns = f"floor{number}", made[NamespaceKind.NET]
            netlink.create_veth(host_name=link, bridge=_BRIDGE, netns_fd=netns, inner_name="eth0")
            address = IPv4Interface(f"10.199.1.{number % 250 + 1}/16")
            netlink.configure_inside(netns, "eth0", [Endpoint(address=address, gateway=_ROUTER.ip)])
        closing.callback(netlink.delete_link, link)
        namespaces = [
            {**item, "path": paths[item["type"]]} if item["type"] in paths else item
            for item in config["linux"]["namespaces"]
        ]
        config = {**config, "root": {"path": str(directory / "rootfs")}}
        config = {**config, "linux": {**config["linux"], "namespaces": namespaces}}
        (bundle / "config.json").write_text(json.dumps(config))
        with samples.timed("conmon and crun create"):
            created = driver.launch(container, bundle, directory, Stdio(log=None)).create()
        with samples.timed("crun start"):
            driver.start(container, created.process)
        procfs.kill(created.process, signal.SIGKILL)
        procfs.wait(created.monitor, 10)
        driver.delete(container)


if __name__ == "__main__":
    main(sys.argv[1:])
