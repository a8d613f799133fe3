"""Sysctls of a sandbox: what is refused, and what it gets beside what was asked for."""

from __future__ import annotations

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.kernel.namespace.idmap import IdMap, IdMapping, block
from podkeep.runtime.oci import sysctls
from podkeep.runtime.oci.sysctls import PING_GROUPS, PORT_START, DefaultSysctls

ALL = {"NET", "IPC", "UTS"}
NONE = DefaultSysctls(unprivileged_ports=False, unprivileged_icmp=False)


def mapping(container_id: int, host_id: int, length: int) -> IdMapping:
    return IdMapping(container_id=container_id, host_id=host_id, length=length)


@pytest.mark.parametrize(
    "name",
    [
        "net.ipv4.ip_forward", "net/ipv4/ip_forward", "net.ipv4.conf.eth0/100.forwarding", "kernel.shmmax",
        "kernel.shm_rmid_forced", "kernel.msgmnb", "kernel.sem", "fs.mqueue.msg_max",
    ],
)  # fmt: skip
def test_what_belongs_to_a_pod(name: str) -> None:
    sysctls.check({name: "1 2\t3"}, ALL)
    assert sysctls.effective({name: "1"}, NONE, ALL, None) == {name: "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "1") for name in (
            "kernel.panic", "kernel.hostname", "kernel.domainname", "kernel.semx", "vm.swappiness", "fs.file-max",
            "net", "net.", ".net", "net..x", "net/../vm/x", "", "user.max_user_namespaces", "x" * 2000, "net.\0",
        )),
        *(("net.ipv4.ip_forward", value) for value in ("", "1\n0", "1\0", "é", "1" * 2000, "\x7f")),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"config\.linux\.sysctls") as caught:
        sysctls.check({name: value}, ALL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "kinds"), [("net.ipv4.ip_forward", {"IPC"}), ("kernel.sem", {"NET", "UTS"})])
def test_of_a_namespace_that_is_the_hosts(name: str, kinds: set[str]) -> None:
    with pytest.raises(InvalidArgument, match="shares the host's"):
        sysctls.check({name: "1"}, kinds)


def test_too_many_and_twice() -> None:
    with pytest.raises(InvalidArgument, match="256"):
        sysctls.check({f"net.x{number}": "1" for number in range(257)}, ALL)
    with pytest.raises(InvalidArgument, match="are the same"):
        sysctls.check({"net.ipv4.ip_forward": "1", "net/ipv4/ip_forward": "1"}, ALL)


def test_defaults() -> None:
    assert sysctls.effective({}, DefaultSysctls(), ALL, None) == {PORT_START: "0", PING_GROUPS: "0 2147483647"}
    assert sysctls.effective({}, DefaultSysctls(), {"IPC"}, None) == {}
    others = {"kernel.shmmni": "5", PORT_START: "80"}
    found = sysctls.effective({}, DefaultSysctls(others=others), ALL, None)
    assert found == {"kernel.shmmni": "5", PORT_START: "80", PING_GROUPS: "0 2147483647"}
    assert sysctls.effective({}, DefaultSysctls(others=others), {"IPC"}, None) == {"kernel.shmmni": "5"}
    asked = {"net/ipv4/ip_unprivileged_port_start": "7"}
    assert sysctls.effective(asked, DefaultSysctls(others=others, unprivileged_icmp=False), {"NET"}, None) == asked


@pytest.mark.parametrize(
    ("userns", "expected"),
    [
        (block(65536, 65536), "0 65535"),
        (IdMap(uids=(mapping(0, 5, 1),), gids=(mapping(1, 8, 5), mapping(0, 5, 1))), "0 5"),
        (IdMap(uids=(mapping(0, 5, 1),), gids=(mapping(0, 5, 1), mapping(5, 8, 5))), "0 0"),
        (IdMap(uids=(mapping(0, 5, 1),), gids=(mapping(0, 0, 2**32 - 1),)), "0 2147483647"),
    ],
)
def test_groups_that_may_ping_exist(userns: IdMap, expected: str) -> None:
    assert sysctls.effective({}, DefaultSysctls(), {"NET"}, userns)[PING_GROUPS] == expected


def test_those_of_an_interface_come_later() -> None:
    later = {
        "net.ipv4.conf.eth0.forwarding": "1",
        "net/ipv6/neigh/eth0.7/retrans_time_ms": "2",
        "net.ipv6.conf.eth0/7.accept_ra": "3",
    }
    first = {
        "net.ipv4.conf.all.forwarding": "1",
        "net.ipv6.conf.default.accept_ra": "2",
        "net/ipv4/neigh/lo/mcast_solicit": "3",
        "net.ipv4.conf": "4",
        "net.ipv4.conf.eth0": "5",
        "net.core.conf.eth0.x": "6",
        "kernel.sem": "7",
    }
    assert sysctls.split({**first, **later}, ALL) == (first, later)


def test_defaults_that_no_pod_could_have() -> None:
    sysctls.check_defaults({"net.ipv4.ip_forward": "1"})
    with pytest.raises(InvalidArgument, match=r"runtime\.default_sysctls.*vm\.swappiness"):
        sysctls.check_defaults({"vm.swappiness": "1"})
