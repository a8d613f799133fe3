"""CNI: configuration files, what plugins are told, and what comes of their answers. The plugins are real programs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_values import sandbox_config

from podkeep.base.errors import DeadlineExceeded, InvalidArgument, PodkeepError, Unavailable
from podkeep.base.ids import SandboxID
from podkeep.runtime.model.records import Dns, HostPort
from podkeep.runtime.network.cni import capabilities, result
from podkeep.runtime.network.cni.conflist import ConfDirectory, parse, read
from podkeep.runtime.network.cni.network import CniNetwork, Pod
from podkeep.runtime.network.cni.plugin import PluginFailed
from support.cniplugin import Plugin, write_list
from support.processes import write_script
from support.waiting import wait_for

ID = SandboxID("a" * 64)
ARGS = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={ID};K8S_POD_UID=uid-1"


class Net:
    """A configuration directory and two plugins."""

    def __init__(self, base: Path, timeout: float = 20.0) -> None:
        self.conf, self.bin = base / "net.d", base / "bin"
        self.first, self.second = (Plugin.make(self.bin, name) for name in ("first", "second"))
        self.cni = CniNetwork(self.conf, (base / "nowhere", self.bin), timeout)
        self.pod = Pod(id=ID, config=sandbox_config(), netns="/proc/self/ns/net", cgroup="/podkeep/pod-a")

    def write(self, *plugins: dict[str, Any], **fields: Any) -> None:
        write_list(self.conf, *(plugins or ({"type": "first"}, {"type": "second"})), **fields)


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


# configuration


def test_the_first_valid_file_in_the_order_of_names_is_used(tmp_path: Path) -> None:
    directory = ConfDirectory(tmp_path)
    assert directory.load().network is None
    (tmp_path / "00-notes.txt").write_text("not one")
    (tmp_path / "10-broken.conflist").write_text("{")
    (tmp_path / "20-single.conf").write_text(json.dumps({"cniVersion": "0.3.1", "name": "single", "type": "bridge"}))
    write_list(tmp_path, {"type": "ptp"}, file="30-list.json")
    loaded = directory.load()
    assert loaded.network is not None
    assert (loaded.network.name, loaded.network.versions) == ("single", ("0.3.1",))
    assert [plugin["type"] for plugin in loaded.network.plugins] == ["bridge"]
    assert loaded.path == tmp_path / "20-single.conf"
    (problem,) = loaded.problems
    assert "10-broken.conflist" in problem
    # Changes are seen without being told.
    (tmp_path / "20-single.conf").unlink()
    found = directory.load().network
    assert found is not None
    assert found.name == "testnet"
    write_list(tmp_path, {"type": "ptp"}, {"type": "portmap"}, file="30-list.json")
    found = directory.load().network
    assert found is not None
    assert len(found.plugins) == 2


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "name"),
        ({"name": "a b", "plugins": [{"type": "x"}]}, "name"),
        ({"name": "n"}, "plugins"),
        ({"name": "n", "plugins": []}, "plugins"),
        ({"name": "n", "plugins": [{}]}, r"plugins\[0\].type"),
        ({"name": "n", "plugins": [{"type": "../sh"}]}, r"plugins\[0\].type"),
        ({"name": "n", "plugins": ["x"]}, r"plugins\[0\].type"),
        ({"name": "n", "plugins": [{"type": "x", "capabilities": []}]}, "capabilities"),
        ({"name": "n", "plugins": [{"type": "x"}], "cniVersion": "9.9.9"}, "9.9.9"),
        ({"name": "n", "plugins": [{"type": "x"}], "cniVersion": 1}, "cniVersion"),
        ({"name": "n", "plugins": [{"type": "x"}], "disableCheck": "maybe"}, "disableCheck"),
    ],
)
def test_lists_that_are_none(data: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        parse(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(("1.0.0", "true")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("name", "plugins", "cniVersion", "cniVersions", "disableCheck", "disableGC", "type")


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
@pytest.mark.slow
def test_any_json_is_a_list_or_an_error(data: dict[str, Any]) -> None:
    try:
        network = parse(data)
    except InvalidArgument:
        return
    assert parse(json.loads(network.text())) == network


@given(st.dictionaries(st.sampled_from(("ips", "interfaces", "ip4", "ip6")), json_values))
@pytest.mark.slow
def test_any_result_has_addresses_or_an_error(data: dict[str, Any]) -> None:
    try:
        found = result.addresses(data, "eth0")
    except ValueError:
        return
    assert isinstance(found, tuple)


def test_a_list_may_keep_plugins_in_files_beside_it(tmp_path: Path) -> None:
    write_list(tmp_path, {"type": "one"}, file="n.conflist", loadOnlyInlinedPlugins=False)
    (tmp_path / "testnet").mkdir()
    (tmp_path / "testnet" / "20-two.conf").write_text('{"type": "two"}')
    assert [item["type"] for item in read(tmp_path / "n.conflist").plugins] == ["one", "two"]
    write_list(tmp_path, {"type": "one"}, file="n.conflist", loadOnlyInlinedPlugins=True)
    assert [item["type"] for item in read(tmp_path / "n.conflist").plugins] == ["one"]


# results


def test_addresses_are_the_interfaces_in_the_pod() -> None:
    given = {
        "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/ns"}, {"name": "eth1", "sandbox": "/ns"}],
        "ips": [
            {"address": "fd00::2/64", "interface": 1},
            {"address": "10.0.0.1/24", "interface": 0},
            {"address": "10.0.0.2/24", "interface": 1},
            {"address": "10.1.0.2/24", "interface": 2},
            {"address": "10.0.0.3/24"},
        ],
    }
    assert result.addresses(given, "eth0") == ("10.0.0.2", "10.0.0.3", "fd00::2")
    assert result.addresses({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}}, "eth0") == (
        "10.0.0.2",
        "fd00::2",
    )
    assert result.addresses({}, "eth0") == ()
    for bad in ([{"address": "x"}], [{"address": 1}], [{"interface": 3}], {"a": 1}, ["10.0.0.1/8"]):
        with pytest.raises(ValueError, match=r"."):
            result.addresses({"ips": bad}, "eth0")


# what plugins are told


def test_capabilities() -> None:
    port = HostPort(protocol="udp", host_port=53, container_port=5353, host_ip="127.0.0.1")
    annotations = {capabilities.INGRESS: "10M", capabilities.EGRESS: "1Gi", "other": "x"}
    dns = Dns(servers=("10.0.0.1",), searches=("a",), options=("ndots:1",))
    config = sandbox_config(host_ports=(port,), annotations=annotations, dns=dns)
    assert capabilities.capabilities(config, "/cg") == {
        "cgroupPath": "/cg",
        "portMappings": [{"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "127.0.0.1"}],
        "bandwidth": {
            "ingressRate": 10_000_000,
            "ingressBurst": 0xFFFFFFFF,
            "egressRate": 1 << 30,
            "egressBurst": 0xFFFFFFFF,
        },
        "dns": {"servers": ["10.0.0.1"], "searches": ["a"], "options": ["ndots:1"]},
        "io.kubernetes.cri.pod-annotations": annotations,
    }


@pytest.mark.parametrize(("text", "bits"), [("1k", 1000), ("1.5M", 1_500_000), ("2e6", 2_000_000), ("1P", 10**15)])
def test_rates(text: str, bits: int) -> None:
    assert capabilities.rate("a", text) == bits


@pytest.mark.parametrize(
    "text",
    ["", "x", "999", "1Ei", "-1M", "1M ", "1e99", "1m", "M", "1kk", "9" * 2_000_000, f".{'0' * 2_000_000}1P", "9" * 50],
)
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match="annotation a") as caught:
        capabilities.rate("a", text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
def test_a_name_cannot_smuggle_in_an_argument(net: Net, field: str) -> None:
    net.write()
    with pytest.raises(InvalidArgument, match=field):
        net.cni.plan(sandbox_config(**{field: "a;K8S_POD_NAMESPACE=kube-system"}))


# the protocol


@pytest.mark.slow
def test_add_check_and_del_of_a_chain(net: Net) -> None:
    port = HostPort(protocol="tcp", host_port=80, container_port=8080)
    pod = Pod(id=ID, config=sandbox_config(host_ports=(port,)), netns=net.pod.netns, cgroup="/cg")
    net.write({"type": "first", "mtu": 1400}, {"type": "second", "capabilities": {"portMappings": True, "dns": True}})
    planned = net.cni.plan(pod.config)
    assert net.first.calls() == [], "planning runs nothing"
    last, addresses = net.cni.attach(planned, pod)
    assert addresses == ("203.0.113.9", "2001:db8:7::9")
    net.cni.check(planned, last, pod)
    net.cni.detach(planned, last, pod)
    calls = net.first.calls() + net.second.calls()
    assert [call["environment"].pop("CNI_COMMAND") for call in calls] == ["ADD", "CHECK", "DEL"] * 2
    environment = {
        "CNI_CONTAINERID": ID,
        "CNI_NETNS": "/proc/self/ns/net",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": ARGS,
        "CNI_PATH": f"{net.conf.parent / 'nowhere'}:{net.bin}",
        "netns_is_there": True,
    }
    assert all(call["environment"] == environment for call in calls)
    base = {"type": "first", "mtu": 1400, "name": "testnet", "cniVersion": "1.0.0"}
    assert calls[0]["stdin"] == base
    result_of_add = json.loads(last)
    assert calls[1]["stdin"] == calls[2]["stdin"] == {**base, "prevResult": result_of_add}
    given = {"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}]}
    assert [call["stdin"]["runtimeConfig"] for call in calls[3:]] == [given] * 3, "no dns: there is none"
    assert calls[3]["stdin"]["prevResult"] == result_of_add
    assert net.first.attached() == net.second.attached() == set()


@pytest.mark.slow
def test_del_is_in_reverse_and_uses_what_add_used(net: Net) -> None:
    net.write()
    planned = net.cni.plan(net.pod.config)
    last, _ = net.cni.attach(planned, net.pod)
    net.write({"type": "other"}, name="othernet")
    net.second.order(DEL={"code": 100, "msg": "not yet"})
    with pytest.raises(PluginFailed, match="second"):
        net.cni.detach(planned, last, net.pod)
    assert net.first.calls("DEL") == [], "halted, as the specification says"
    net.second.order()
    net.cni.detach(planned, last, net.pod)
    net.cni.detach(planned, "", Pod(id=ID, config=net.pod.config, netns="", cgroup=""))
    repeated = net.first.calls("DEL")[-1]
    assert repeated["environment"]["CNI_NETNS"] == ""
    assert "prevResult" not in repeated["stdin"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "kind", "text"),
    [
        ({"code": 7, "msg": "bad conf", "details": "line\nthree"}, PluginFailed, "bad conf; line three (code 7)"),
        ({"code": 11, "msg": "busy"}, Unavailable, "busy"),
        ({"exit": 3}, PluginFailed, "it broke (exit status 3)"),
        ({"print": "no json"}, PluginFailed, "printed no JSON: no json"),
        ({"print": "[]"}, PluginFailed, "no JSON object"),
        ({"print": ""}, PluginFailed, "printed no result"),
        ({"print": '{"ips": [{"address": "x"}]}'}, PluginFailed, "not valid"),
        ({"print": "[" * 100_000}, PluginFailed, "printed no JSON"),
        ({"print": '{"code": 1e400, "msg": "x"}'}, PluginFailed, '"msg": "x"'),
        ({"print": '{"code": 11, "msg": "busy"}'}, Unavailable, "busy (code 11)"),
        ({"print": '{"cniVersion": "1.0.0"}'}, PluginFailed, "no address of eth0"),
        ({"print": "x" * (5 << 20)}, PluginFailed, "more than 4194304 bytes"),
    ],
)
def test_plugins_that_fail(net: Net, order: dict[str, Any], kind: type[PodkeepError], text: str) -> None:
    net.write({"type": "first"})
    net.first.order(ADD=order)
    with pytest.raises(kind) as caught:
        net.cni.attach(net.cni.plan(net.pod.config), net.pod)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_plugin_that_hangs_is_killed(tmp_path: Path) -> None:
    net = Net(tmp_path, timeout=0.5)
    net.write({"type": "first"})
    net.first.order(ADD={"sleep": 60})
    with pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        net.cni.attach(net.cni.plan(net.pod.config), net.pod)


SHELL_PLUGIN = """#!/bin/sh
sleep 300 &
echo $! >"$0.child"
{rest}
"""


@pytest.mark.parametrize("hangs", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_a_plugin_starts_is_killed_with_it_and_not_waited_for(tmp_path: Path, hangs: bool) -> None:
    """The child keeps the plugin's output open."""
    net = Net(tmp_path, timeout=1 if hangs else 60)
    result = '{"ips": [{"address": "203.0.113.9/24"}]}'
    program = write_script(net.bin / "shell", SHELL_PLUGIN.format(rest="wait" if hangs else f"echo '{result}'"))
    net.write({"type": "shell"})
    planned = net.cni.plan(net.pod.config)
    if hangs:
        with pytest.raises(DeadlineExceeded, match=r"within 1 s"):
            net.cni.attach(planned, net.pod)
    else:
        assert net.cni.attach(planned, net.pod)[1] == ("203.0.113.9",)
    child = int(Path(f"{program}.child").read_text())
    if hangs:
        wait_for(lambda: not Path(f"/proc/{child}").exists() or _state(child) == "Z", "the child ends")
    else:
        os.kill(child, signal.SIGKILL)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_without_its_interpreter_is_no_answer_that_something_is_not_found(net: Net) -> None:
    write_script(net.bin / "script", "#!/nowhere/python\n")
    net.write({"type": "script"})
    with pytest.raises(PluginFailed, match="cannot be run"):
        net.cni.attach(net.cni.plan(net.pod.config), net.pod)


def test_a_large_input_is_taken_by_a_plugin_that_reads_nothing(net: Net) -> None:
    write_script(net.bin / "deaf", """#!/bin/sh\necho '{"ips": [{"address": "203.0.113.9/24"}]}'\n""")
    net.write({"type": "deaf", "ballast": "x" * 500_000})
    assert net.cni.attach(net.cni.plan(net.pod.config), net.pod)[1] == ("203.0.113.9",)


def test_a_plugin_that_is_not_there_or_no_program(net: Net) -> None:
    net.write({"type": "missing"})
    with pytest.raises(Unavailable, match="'missing' is in none of"):
        net.cni.attach(net.cni.plan(net.pod.config), net.pod)
    (net.bin / "text").write_text("no program")
    (net.bin / "text").chmod(0o755)
    net.write({"type": "text"})
    with pytest.raises(PluginFailed, match="cannot be run"):
        net.cni.attach(net.cni.plan(net.pod.config), net.pod)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "commands", "with_previous"),
    [("0.2.0", ["ADD", "DEL"], []), ("0.3.1", ["ADD", "DEL"], ["ADD"]), ("0.4.0", ["ADD", "CHECK", "DEL"], None)],
)
def test_old_versions_get_what_they_know(
    net: Net, version: str, commands: list[str], with_previous: list[str] | None
) -> None:
    net.write(cniVersion=version)
    planned = net.cni.plan(net.pod.config)
    last, _ = net.cni.attach(planned, net.pod)
    net.cni.check(planned, last, net.pod)
    net.cni.detach(planned, last, net.pod)
    net.cni.require_ready()
    net.cni.collect_garbage([])
    calls = net.second.calls()
    assert [call["environment"]["CNI_COMMAND"] for call in calls] == commands
    given = [call["environment"]["CNI_COMMAND"] for call in calls if "prevResult" in call["stdin"]]
    assert given == (commands if with_previous is None else with_previous)


@pytest.mark.slow
def test_the_newest_version_that_all_plugins_speak_is_used(net: Net) -> None:
    Plugin.make(net.bin, "old", versions=("0.4.0", "1.0.0"))
    net.write({"type": "first"}, {"type": "old"}, cniVersion="0.4.0", cniVersions=["0.4.0", "1.0.0", "1.1.0", "2.0.0"])
    last, _ = net.cni.attach(net.cni.plan(net.pod.config), net.pod)
    assert json.loads(last)["cniVersion"] == "1.0.0"
    assert [call["stdin"]["cniVersion"] for call in net.first.calls("ADD")] == ["1.0.0"]
    net.cni.require_ready()
    assert len(net.first.calls("VERSION")) == 1, "asked once per program"
    net.write({"type": "old"}, cniVersion="1.1.0", cniVersions=["0.3.1", "1.1.0"])
    with pytest.raises(PluginFailed, match="speak none"):
        net.cni.require_ready()


@pytest.mark.slow
def test_status_and_check_can_be_switched_off_or_fail(net: Net) -> None:
    with pytest.raises(Unavailable, match="no CNI configuration"):
        net.cni.require_ready()
    net.write(cniVersion="1.1.0", disableCheck=True)
    net.cni.require_ready()
    assert len(net.second.calls("STATUS")) == 1
    assert "CNI_CONTAINERID" not in net.second.calls("STATUS")[0]["environment"]
    net.second.order(STATUS={"code": 50, "msg": "no route to the controller"})
    with pytest.raises(Unavailable, match="no route to the controller"):
        net.cni.require_ready()
    net.cni.check(net.cni.plan(net.pod.config), "{}", net.pod)
    assert net.first.calls("CHECK") == []


@pytest.mark.slow
def test_garbage_is_what_no_sandbox_has(net: Net) -> None:
    net.write(cniVersion="1.1.0")
    planned = net.cni.plan(net.pod.config)
    for letter in "ab":
        pod = Pod(id=SandboxID(letter * 64), config=net.pod.config, netns=net.pod.netns, cgroup="")
        net.cni.attach(planned, pod)
    net.cni.collect_garbage([(ID, planned)])
    assert net.first.attached() == net.second.attached() == {ID}
    (call,) = net.first.calls("GC")
    assert call["stdin"]["cni.dev/valid-attachments"] == [{"containerID": ID, "ifname": "eth0"}]
    net.first.order(GC={"exit": 1})
    net.cni.collect_garbage([])
    assert net.second.attached() == set(), "one that fails does not keep the others from it"
    net.write(cniVersion="1.1.0", disableGC=True)
    net.first.forget()
    net.cni.collect_garbage([])
    assert net.first.calls() == []
