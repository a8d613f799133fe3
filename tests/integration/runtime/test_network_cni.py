"""Pods whose network CNI plugins make: Debian's own (bridge, host-local, portmap), and one that does as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import AlreadyExists, Internal, InvalidArgument, Unavailable
from podkeep.cri.v1 import api_pb2 as api
from podkeep.kernel.network import netlink
from support.cniplugin import Plugin, write_list
from support.cri import BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.netpeer import Server, ask, netns_of
from support.waiting import wait_for

DEBIAN = Path("/usr/lib/cni")


@dataclass
class Machine:
    """A daemon that uses CNI, and its two plugins of the test's own."""

    daemon: Daemon
    conf: Path
    bin: Path
    first: Plugin = field(init=False)
    second: Plugin = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.second = (Plugin.make(self.bin, name) for name in ("first", "second"))

    def write(self, *plugins: dict[str, Any], **fields: Any) -> None:
        write_list(self.conf, *(plugins or ({"type": "first"}, {"type": "second"})), **fields)

    def network_ready(self, client: Pods) -> api.RuntimeCondition:
        conditions = client.call("Status", api.StatusRequest()).status.conditions
        (found,) = [item for item in conditions if item.type == "NetworkReady"]
        return found


@pytest.fixture
def machine(own_daemon: Daemon) -> Machine:
    made = Machine(own_daemon, own_daemon.base / "cni", own_daemon.base / "bin")
    own_daemon.network = f'cni_plugin_dirs = ["{made.bin}", "{DEBIAN}"]\ncni_timeout = 10'
    own_daemon.write()
    return made


@pytest.fixture
def client(machine: Machine) -> Iterator[Pods]:
    """A client of the daemon, which is started with the test's configuration at the first call."""
    with Pods(machine.daemon.socket, "") as made:
        yield made


@contextmanager
def anew(client: Pods) -> Iterator[Pods]:
    """A client of a daemon that was started again; sandboxes stay when it is closed."""
    again = client.again()
    again.__enter__()
    try:
        yield again
    finally:
        again.close()


# Debian's plugins


def debian_list(machine: Machine, **fields: Any) -> None:
    bridge = f"cni{machine.daemon.token}"
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.99.7.0/24"}], [{"subnet": "fd99:7::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "dataDir": str(machine.daemon.base / "leases"),
    }
    machine.write(
        {"type": "bridge", "bridge": bridge, "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        **fields,
    )


def leases(machine: Machine) -> set[str]:
    directory = machine.daemon.base / "leases" / "testnet"
    return {path.name for path in directory.iterdir() if path.name[0].isalnum() and path.name not in {"lock"}} - {
        "last_reserved_ip.0",
        "last_reserved_ip.1",
    }


def dnat_rules() -> list[str]:
    saved = subprocess.run(["iptables-save", "-t", "nat"], capture_output=True, text=True, check=True).stdout
    return [line for line in saved.splitlines() if "DNAT" in line and "CNI-DN" in line]


@pytest.fixture
def debian(machine: Machine) -> Iterator[Machine]:
    """A machine with Debian's plugins; what they leave is removed: the bridge is nobody's to remove."""
    assert (DEBIAN / "portmap").exists(), "containernetworking-plugins is not installed"
    debian_list(machine)
    machine.daemon.start()
    yield machine
    subprocess.run(["ip", "link", "delete", f"cni{machine.daemon.token}"], check=False, capture_output=True)


def test_debians_bridge_and_portmap(debian: Machine, client: Pods) -> None:
    mapping = api.PortMapping(protocol=api.TCP, container_port=80, host_port=12090)
    before = debian.daemon.resources()
    sandbox = client.run(pod("server", hostname="web-0", port_mappings=[mapping], options=namespaces(user=BLOCK)))
    network = client.pod_status(sandbox).status.network
    assert network.ip == "10.99.7.2"
    assert [item.ip for item in network.additional_ips] == ["fd99:7::2"]
    hosts = (debian.daemon.layout.root / "sandboxes" / sandbox / "hosts").read_text()
    assert "10.99.7.2\tweb-0\nfd99:7::2\tweb-0\n" in hosts
    assert leases(debian) == {"10.99.7.2", "fd99:7::2"}
    with ExitStack() as stack:
        fd = netns_of(debian.daemon, sandbox)
        stack.callback(os.close, fd)
        stack.enter_context(Server(fd, 80))
        assert ask(None, "10.99.7.2", 80) == "10.99.7.1"
        assert ask(None, "10.99.7.1", 12090) == "10.99.7.1"
        assert ask(None, "127.0.0.1", 12090)
    assert f"pkt{debian.daemon.token}" not in netlink.links(), "the built-in bridge is not needed"
    text = error_of(lambda: client.run(pod("other", port_mappings=[mapping])), AlreadyExists)
    assert "tests/server" in text
    client.stop_pod(sandbox)
    assert client.address(sandbox) == ""
    assert (leases(debian), dnat_rules()) == (set(), [])
    client.remove(sandbox)
    assert debian.daemon.resources() == before


def test_debians_plugins_undo_what_a_dead_daemon_began(debian: Machine, client: Pods) -> None:
    mapping = api.PortMapping(protocol=api.TCP, container_port=80, host_port=12090)
    living = client.run(pod("living"))
    debian.daemon.kill()
    debian.daemon.environment = {"PODKEEP_FAILPOINTS": "sandbox.namespaces=kill"}
    debian.daemon.start()
    with anew(client) as again, pytest.raises(Unavailable):
        again.run(pod("killed", port_mappings=[mapping]))
    assert len(leases(debian)) == 4
    assert len(dnat_rules()) > 0
    assert debian.daemon.process is not None
    debian.daemon.process.wait(timeout=60)
    # The configuration is another one by now.
    machine_list = {"type": "first"}
    debian.write(machine_list, name="othernet")
    debian.daemon.environment = {}
    debian.daemon.start()
    with anew(client) as again:
        assert (len(leases(debian)), dnat_rules()) == (2, [])
        again.stop_pod(living)
    assert leases(debian) == set()
    assert debian.first.calls("ADD", "DEL") == []


# a plugin that does as it is told


def test_which_network_is_used_follows_the_directory(machine: Machine, client: Pods) -> None:
    machine.daemon.start()
    on_bridge = client.run(pod("bridged"))
    assert client.address(on_bridge).startswith("10.")
    machine.write()
    on_cni = client.run(pod("plugged"))
    assert client.address(on_cni) == "203.0.113.9"
    assert machine.second.attached() == {on_cni}
    (machine.conf / "10-test.conflist").unlink()
    client.run(pod("bridged-too"))
    # Each is undone by what made it.
    client.remove(on_bridge)
    assert machine.first.calls("DEL") == []
    client.remove(on_cni)
    assert len(machine.first.calls("DEL")) == 1, "once: what was undone is not undone again"
    info = json.loads(client.call("Status", api.StatusRequest(verbose=True)).info["network"])
    assert (info["mode"], info["chosen"]) == ("auto", "bridge")


def test_plugins_see_the_namespace_and_the_pod(machine: Machine, client: Pods) -> None:
    machine.write({"type": "first", "capabilities": {"bandwidth": True, "cgroupPath": True}})
    machine.daemon.start()
    sandbox = client.run(pod("web", annotations={"kubernetes.io/egress-bandwidth": "1M"}))
    (call,) = machine.first.calls("ADD")
    environment = call["environment"]
    assert environment["netns_is_there"] is True
    assert environment["CNI_NETNS"] == str(machine.daemon.layout.run / "sandboxes" / sandbox / "ns" / "net")
    assert environment["CNI_ARGS"] == (
        f"IgnoreUnknown=1;K8S_POD_NAMESPACE=tests;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={sandbox};K8S_POD_UID=uid-web"
    )
    assert call["stdin"]["runtimeConfig"] == {
        "bandwidth": {"egressRate": 1_000_000, "egressBurst": 0xFFFFFFFF},
        "cgroupPath": f"{machine.daemon.cgroup_parent}/pod-{sandbox}",
    }
    before = machine.daemon.resources()
    wrong = pod("wrong", annotations={"kubernetes.io/egress-bandwidth": "much"})
    assert "egress-bandwidth" in error_of(lambda: client.run(wrong), InvalidArgument)
    assert machine.daemon.resources() == before


@pytest.mark.parametrize(
    ("order", "kind", "text"),
    [
        ({"code": 7, "msg": "no address left"}, Internal, "CNI plugin second (ADD) failed: no address left (code 7)"),
        ({"code": 11, "msg": "busy"}, Unavailable, "busy"),
        ({"exit": 2}, Internal, "it broke"),
    ],
)
def test_a_failed_add_is_undone(
    machine: Machine, client: Pods, order: dict[str, Any], kind: type[Exception], text: str
) -> None:
    machine.write()
    machine.daemon.start()
    before = machine.daemon.resources()
    machine.second.order(ADD=order)
    with pytest.raises(kind) as caught:
        client.run(pod())
    assert text in str(caught.value)
    assert machine.first.attached() == machine.second.attached() == set()
    assert machine.daemon.resources() == before
    machine.second.order()
    client.run(pod())


def test_a_del_that_fails_is_tried_again(machine: Machine, client: Pods) -> None:
    machine.write()
    machine.daemon.start()
    before = machine.daemon.resources()
    sandbox = client.run()
    machine.second.order(DEL={"code": 100, "msg": "controller is down"})
    for _ in range(2):
        assert "controller is down" in error_of(lambda: client.stop_pod(sandbox), Internal)
    assert client.pod_status(sandbox).status.state == api.SANDBOX_NOTREADY
    machine.second.order()
    # The namespace went with the first try; the result of ADD is still known, also to the next daemon.
    assert machine.daemon.stop() == 0
    machine.daemon.start()
    with anew(client) as again:
        again.stop_pod(sandbox)
    last = machine.first.calls("DEL")[-1]
    assert last["environment"]["CNI_NETNS"] == ""
    assert last["stdin"]["prevResult"]["ips"][1]["address"] == "203.0.113.9/24"
    assert machine.first.attached() == machine.second.attached() == set()
    with anew(client) as final:
        final.remove(sandbox)
    assert len(machine.first.calls("DEL")) == 1
    assert machine.daemon.resources().records == before.records


@pytest.mark.parametrize("failpoint", ["network.cni.add", "sandbox.namespaces", "sandbox.cgroups"])
@pytest.mark.parametrize("action", ["kill", "error"])
def test_failures_and_kills_leave_no_attachment(machine: Machine, client: Pods, failpoint: str, action: str) -> None:
    machine.write()
    machine.daemon.environment = {"PODKEEP_FAILPOINTS": f"{failpoint}={action}"}
    machine.daemon.start()
    before = machine.daemon.resources()
    with pytest.raises((Internal, Unavailable)):
        client.run(pod())
    if action == "kill":
        assert machine.daemon.process is not None
        machine.daemon.process.wait(timeout=60)
        assert machine.first.attached() != set()
        machine.daemon.environment = {}
        machine.daemon.start()
    assert machine.first.attached() == machine.second.attached() == set()
    assert machine.daemon.resources() == before


@pytest.mark.parametrize("rpc", ["StopPodSandbox", "RemovePodSandbox"])
def test_a_pod_that_is_stopped_while_it_is_made(machine: Machine, client: Pods, rpc: str) -> None:
    """A plugin was told its ID. The stop waits, and nothing of the pod is left afterwards."""
    machine.write()
    machine.second.order(ADD={"sleep": 1})
    machine.daemon.start()
    before = machine.daemon.resources()

    async def stop() -> None:
        while not (calls := machine.second.calls("ADD")):  # noqa: ASYNC110 - nobody else knows of a plugin's call
            await asyncio.sleep(0.01)
        request = {"pod_sandbox_id": calls[0]["environment"]["CNI_CONTAINERID"]}
        kind = api.StopPodSandboxRequest if rpc == "StopPodSandbox" else api.RemovePodSandboxRequest
        await getattr(client._client.runtime, rpc)(kind(**request))

    async def both() -> str:
        running = client._client.runtime.RunPodSandbox(api.RunPodSandboxRequest(config=pod()))
        answer, _ = await asyncio.gather(running, stop())
        return str(answer.pod_sandbox_id)

    sandbox = client.wait(both())
    shown = [(item.id, item.state) for item in client.sandboxes()]
    assert shown == ([(sandbox, api.SANDBOX_NOTREADY)] if rpc == "StopPodSandbox" else [])
    assert machine.first.attached() == machine.second.attached() == set()
    client.remove(sandbox)
    assert machine.daemon.resources() == before


def test_what_belongs_to_nobody_is_collected_when_the_daemon_starts(machine: Machine, client: Pods) -> None:
    machine.write(cniVersion="1.1.0")
    machine.daemon.start()
    sandbox = client.run()
    machine.daemon.kill()
    (machine.first.directory / "attached" / "f00").touch()
    machine.daemon.start()
    assert machine.first.attached() == machine.second.attached() == {sandbox}
    with anew(client) as again:
        again.remove(sandbox)


def test_the_network_is_ready_when_plugins_say_so(machine: Machine, client: Pods) -> None:
    machine.daemon.network += '\nmode = "cni"'
    machine.daemon.write()
    machine.daemon.start()
    found = machine.network_ready(client)
    assert (found.status, found.reason) == (False, "NetworkPluginNotReady")
    assert f"no CNI configuration in {machine.conf}" in found.message
    before = machine.daemon.resources()
    assert "no CNI configuration" in error_of(lambda: client.run(pod()), Unavailable)
    assert machine.daemon.resources() == before
    client.run(pod("on-the-host", options=namespaces(network=api.NODE)))
    machine.conf.mkdir(exist_ok=True)
    (machine.conf / "10-test.conflist").write_text("{")
    assert "10-test.conflist: no JSON" in machine.network_ready(client).message
    machine.write(cniVersion="1.1.0")
    assert machine.network_ready(client).status
    machine.first.order(STATUS={"code": 50, "msg": "agent is starting"})
    found = machine.network_ready(client)
    assert (found.status, "agent is starting" in found.message) == (False, True)


def test_an_unreadable_configuration_is_no_reason_to_use_the_bridge(machine: Machine, client: Pods) -> None:
    machine.conf.mkdir()
    (machine.conf / "10-test.conflist").write_text("{")
    machine.daemon.start()
    assert not machine.network_ready(client).status
    assert "10-test.conflist" in error_of(lambda: client.run(pod()), Unavailable)


def test_a_changed_network_is_reported_when_the_daemon_starts(machine: Machine, client: Pods) -> None:
    machine.write()
    machine.daemon.start()
    sandbox = client.run()
    assert machine.daemon.stop() == 0
    machine.second.order(CHECK={"code": 101, "msg": "eth0 has lost its address"})
    machine.daemon.start()
    words = f"the network of sandbox {sandbox} is not as it was made: CNI plugin second (CHECK) failed: eth0 has lost"
    wait_for(lambda: words in machine.daemon.log.read_text(), "the warning")
    assert len(machine.first.calls("CHECK")) == 1
    with anew(client) as again:
        assert again.pod_status(sandbox).status.state == api.SANDBOX_READY
        again.remove(sandbox)


# what the kubelet says


def update(client: Pods, text: str) -> None:
    network = api.NetworkConfig(pod_cidr=text)
    client.call(
        "UpdateRuntimeConfig",
        api.UpdateRuntimeConfigRequest(runtime_config=api.RuntimeConfig(network_config=network)),
    )


def test_a_pod_cidr_of_one_family_leaves_the_other_one_as_configured(own_daemon: Daemon) -> None:
    own_daemon.config.write_text(
        own_daemon.config.read_text().replace("[network]\n", '[network]\nsubnet6 = "fd66::/64"\n')
    )
    own_daemon.start()

    def addresses(client: Pods, name: str) -> tuple[str, ...]:
        network = client.pod_status(client.run(pod(name))).status.network
        return network.ip, *(item.ip for item in network.additional_ips)

    with Pods(own_daemon.socket, "") as client:
        update(client, "10.77.1.0/24")
        four, six = addresses(client, "one")
        assert (four[:8], six[:6]) == ("10.77.1.", "fd66::")
        for bad in ("0.0.0.0/0", "0.0.0.0/8", "255.255.255.0/24", "::/0", "10.78.0.0/16,::/0"):
            assert "pod_cidr" in error_of(lambda bad=bad: update(client, bad), InvalidArgument)  # type: ignore[misc]
        four, six = addresses(client, "two")
        assert (four[:8], six[:6]) == ("10.77.1.", "fd66::")
        update(client, "fd77:1::/64")
        assert own_daemon.stop() == 0
        own_daemon.start()
        with anew(client) as again:
            six, four = addresses(again, "three")
            for item in again.sandboxes():
                again.remove(item.id)
        client._configs.clear()
        assert six.startswith("fd77:1::")
        assert not four.startswith("10.77.1.")


def test_a_pod_cidr_is_for_new_pods_and_outlives_the_daemon(own_daemon: Daemon) -> None:
    own_daemon.start()
    with Pods(own_daemon.socket, "") as client, ExitStack() as stack:
        old = client.run(pod("old"))
        address = client.address(old)
        update(client, "")
        update(client, "10.77.1.0/24,fd77:1::/64")
        update(client, "10.77.1.0/24,fd77:1::/64")
        new = client.run(pod("new"))
        network = client.pod_status(new).status.network
        assert network.ip.startswith("10.77.1.")
        assert network.additional_ips[0].ip.startswith("fd77:1::")
        assert client.address(old) == address
        for sandbox, target in ((old, network.ip), (new, address)):
            fd = netns_of(own_daemon, sandbox)
            stack.callback(os.close, fd)
            with Server(fd, 80):
                assert ask(None, client.address(sandbox), 80)
            other = new if sandbox == old else old
            with Server(netns_fd := netns_of(own_daemon, other), 80):
                stack.callback(os.close, netns_fd)
                assert ask(fd, target, 80)
        for bad in ("10.77.1.0", "x", "10.1.0.0/24,10.2.0.0/24", "10.77.1.1/24", "0.0.0.0/0", "::/0", ","):
            text = error_of(lambda bad=bad: update(client, bad), InvalidArgument)  # type: ignore[misc]
            assert "pod_cidr" in text
        assert own_daemon.stop() == 0
        own_daemon.start()
        with anew(client) as again:
            newest = again.run(pod("newest"))
            assert again.address(newest).startswith("10.77.1.")
            again.remove(newest)
            again.remove(old)
            again.remove(new)
        client._configs.clear()
