"""What pods share and what they do not: PID, IPC, network and host namespaces, names, DNS, sysctls, addresses."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from podkeep.base.errors import InvalidArgument, PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from support.cri import BLOCK, OTHER_BLOCK, Pods, error_of, namespaces, pod
from support.daemon import Daemon
from support.waiting import wait_for

KINDS = ("net", "ipc", "uts", "pid", "mnt", "cgroup", "user")


def of_process(pid: int | str) -> dict[str, str]:
    """Return the namespaces of a process of the machine."""
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS}


def test_containers_of_a_pod_share_what_pods_share(pods: Pods) -> None:
    sandbox = pods.run()
    one, two = (of_process(pods.host_pid(pods.launch(sandbox, name=name))) for name in ("one", "two"))
    host = of_process("self")
    shared = {kind for kind in KINDS if one[kind] == two[kind]}
    assert shared == {"net", "ipc", "uts", "user"}
    assert {kind for kind in KINDS if one[kind] == host[kind]} == {"user"}


def test_pods_share_nothing(pods: Pods) -> None:
    options = [namespaces(user=block) for block in (BLOCK, OTHER_BLOCK)]
    one, two = (
        of_process(pods.host_pid(pods.launch(pods.run(pod(f"pod{number}", options=item)))))
        for number, item in enumerate(options)
    )
    assert [kind for kind in KINDS if one[kind] == two[kind]] == []


def test_shared_pid_namespace(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    one, two = pods.launch(sandbox, "sleep", "1001", name="one"), pods.launch(sandbox, "sleep", "1002", name="two")
    assert pods.read(one, "cat /proc/1/comm") == "catatonit"
    assert pods.read(two, "ps -o args | grep '[s]leep 100'") == "sleep 1001\nsleep 1002"
    alone = pods.launch(sandbox, "sleep", "1003", name="alone", options=namespaces(pid=api.CONTAINER))
    assert pods.read(pods.executed(alone), "cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 1003 "


def test_shared_pid_namespace_reaps_orphans(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=api.POD)))
    container = pods.launch(sandbox)
    pods.read(container, "(sh -c 'exit 0' &) ; (sh -c 'exit 0' &)")
    script = "for n in 1 2 3 4 5 6 7 8 9; do ps -o stat | grep -q Z || exit 0; sleep 0.1; done; exit 1"
    assert pods.exec(container, "sh", "-c", script).exit_code == 0


@pytest.mark.parametrize("user", [None, BLOCK], ids=["host users", "own users"])
def test_target_pid_namespace(pods: Pods, user: tuple[int, int, int] | None) -> None:
    sandbox = pods.run(pod(options=namespaces(user=user)))
    target = pods.launch(sandbox, "sleep", "1001", name="target")
    options = namespaces(user=user, pid=api.TARGET, target_id=target)
    debugger = pods.launch(sandbox, "sleep", "1002", name="debugger", options=options)
    # A container that was started has its program a moment later.
    both = "sleep 1001\nsleep 1002"
    wait_for(lambda: pods.read(debugger, "ps -o args | grep '[s]leep 100'") == both, "both programs to be seen")
    pods.stop(debugger)
    assert pods.status(target).state == api.CONTAINER_RUNNING
    pods.stop(target)
    for wrong in (target, "0" * 64):
        options = namespaces(pid=api.TARGET, target_id=wrong)
        with pytest.raises(PodkeepError, match=wrong):
            pods.create(sandbox, name="late", options=options)


def test_target_of_another_pod_is_refused(pods: Pods) -> None:
    target = pods.launch(pods.run(pod("one")))
    options = namespaces(pid=api.TARGET, target_id=target)
    sandbox = pods.run(pod("two"))
    assert target in error_of(lambda: pods.create(sandbox, options=options), InvalidArgument)


def test_host_namespaces(pods: Pods) -> None:
    options = namespaces(network=api.NODE, pid=api.NODE, ipc=api.NODE)
    sandbox = pods.run(pod(options=options, hostname="ignored"))
    container = pods.launch(sandbox)
    inside, host = of_process(pods.host_pid(container)), of_process("self")
    assert {kind for kind in KINDS if inside[kind] == host[kind]} == {"net", "ipc", "uts", "pid", "user"}
    assert pods.address(sandbox) == ""
    assert pods.read(container, "hostname") == socket.gethostname()
    assert pods.read(container, "cat /etc/hosts").strip() == Path("/etc/hosts").read_text().strip()
    assert pods.read(container, "cat /etc/resolv.conf").strip() == Path("/etc/resolv.conf").read_text().strip()


def test_host_pid_ends_with_everything_it_started(pods: Pods) -> None:
    sandbox = pods.run(pod(options=namespaces(pid=api.NODE)))
    container = pods.launch(sandbox, "sh", "-c", "sleep 987654 & touch /ready; sleep 987654 & wait")
    pods.read(container, "while ! test -e /ready; do sleep 0.01; done")
    pods.stop(container)
    watcher = pods.launch(sandbox, name="watcher")
    assert pods.exec(watcher, "sh", "-c", "ps -o args | grep '[s]leep 987654'").exit_code == 1


@pytest.mark.parametrize("user", [None, BLOCK])
def test_hostname_hosts_and_dns(pods: Pods, user: tuple[int, int, int] | None) -> None:
    dns = api.DNSConfig(servers=["10.0.0.10", "10.0.0.11"], searches=["a.test", "b.test"], options=["ndots:5"])
    sandbox = pods.run(pod(hostname="web-0", dns_config=dns, options=namespaces(user=user)))
    container = pods.launch(sandbox)
    assert pods.read(container, "hostname; cat /etc/hostname") == "web-0\nweb-0"
    assert pods.read(container, "cat /etc/resolv.conf").splitlines() == [
        "search a.test b.test", "nameserver 10.0.0.10", "nameserver 10.0.0.11", "options ndots:5",
    ]  # fmt: skip
    hosts = pods.read(container, "cat /etc/hosts")
    assert f"{pods.address(sandbox)}\tweb-0" in hosts.splitlines()
    assert "127.0.0.1\tlocalhost" in hosts.splitlines()


def test_pod_files_are_shared_by_its_containers(pods: Pods) -> None:
    sandbox = pods.run(pod(hostname="web"))
    one, two = pods.launch(sandbox, name="one"), pods.launch(sandbox, name="two")
    pods.read(one, "echo '192.0.2.1 added' >> /etc/hosts; echo hello > /dev/shm/file")
    assert pods.read(two, "grep -c added /etc/hosts; cat /dev/shm/file") == "1\nhello"


def test_shared_memory_has_its_size_and_is_for_everybody(pods: Pods) -> None:
    container = pods.launch(pods.run(), security={"run_as_user": api.Int64Value(value=1000)})
    assert pods.read(container, "stat -c %a /dev/shm") == "1777"
    assert pods.read(container, "df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2") == "65536"
    assert pods.read(container, "echo hello > /dev/shm/file; stat -c %u /dev/shm/file") == "1000"


@pytest.mark.parametrize("user", [None, BLOCK])
def test_sysctls(pods: Pods, user: tuple[int, int, int] | None) -> None:
    values = {"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shm_rmid_forced": "1", "net.core.somaxconn": "99"}
    container = pods.launch(pods.run(pod(sysctls=values, options=namespaces(user=user))))
    paths = " ".join(f"/proc/sys/{name.replace('.', '/')}" for name in values)
    assert pods.read(container, f"cat {paths}").splitlines() == list(values.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [("kernel.panic", "1"), ("vm.swappiness", "1"), ("no.such.sysctl", "1"), ("net.ipv4.no_such", "1"), ("../x", "1")],
)
def test_sysctls_of_the_machine_are_refused(pods: Pods, name: str, value: str) -> None:
    with pytest.raises(PodkeepError, match=name.rpartition(".")[2] or name):
        pods.run(pod(sysctls={name: value}))
    assert pods.sandboxes() == []


def test_sysctls_of_the_network_need_one_of_the_pods_own(pods: Pods) -> None:
    options = namespaces(network=api.NODE)
    with pytest.raises(InvalidArgument, match="somaxconn"):
        pods.run(pod(sysctls={"net.core.somaxconn": "99"}, options=options))


def test_pods_reach_each_other_and_the_machine(pods: Pods) -> None:
    server_pod, client_pod = pods.run(pod("server")), pods.run(pod("client", options=namespaces(user=BLOCK)))
    server = pods.launch(server_pod, "nc", "-ll", "-p", "8080", "-e", "echo", "hello")
    client = pods.launch(client_pod)
    address = pods.address(server_pod)
    script = f"for n in 1 2 3 4 5 6 7 8 9; do nc -w 2 {address} 8080 && exit 0; sleep 0.1; done; exit 1"
    assert pods.read(client, script) == "hello"
    assert pods.status(server).state == api.CONTAINER_RUNNING
    gateway = "$(ip route | sed -n 's/default via \\([^ ]*\\).*/\\1/p')"
    assert "0% packet loss" in pods.read(client, f"ping -c 1 -W 2 {gateway}")


def test_address_is_the_pods_and_is_in_the_subnet(pods: Pods, daemon: Daemon) -> None:
    sandbox = pods.run()
    address = pods.address(sandbox)
    text = pods.read(pods.launch(sandbox), "ip -4 -o addr show dev eth0")
    assert f"inet {address}/24" in text
    assert address in [str(item) for item in IPv4Network(f"{address}/24", strict=False).hosts()][1:]
    pods.stop_pod(sandbox)
    assert pods.address(sandbox) == ""


def test_addresses_are_used_again_but_not_at_once(pods: Pods) -> None:
    """A fresh address for a new pod keeps what still talks to the old one from reaching it."""
    seen = []
    for number in range(3):
        sandbox = pods.run(pod(f"pod{number}"))
        seen.append(pods.address(sandbox))
        pods.remove(sandbox)
    assert len(set(seen)) == 3


def test_loopback_is_up(pods: Pods) -> None:
    container = pods.launch(pods.run(pod(options=namespaces(user=BLOCK))))
    assert "0% packet loss" in pods.read(container, "ping -c 1 -W 2 127.0.0.1")


def test_ipc_objects_stay_in_the_pod(pods: Pods) -> None:
    first, second = pods.run(pod("first")), pods.run(pod("second"))
    one, two = pods.launch(first, name="one"), pods.launch(first, name="two")
    other = pods.launch(second)
    assert pods.exec(one, "sh", "-c", "ipcs -q; mkdir -p /dev/mqueue && touch /dev/mqueue/queue").exit_code == 0
    assert pods.read(two, "ls /dev/mqueue") == "queue"
    assert pods.read(other, "ls /dev/mqueue") == ""
