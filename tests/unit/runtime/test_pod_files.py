"""The texts of resolv.conf and hosts."""

from __future__ import annotations

from runtime_values import sandbox_config

from podkeep.runtime.bundle import pod_files
from podkeep.runtime.model.records import Dns, NamespaceMode, NamespaceOptions

HOST = NamespaceOptions(network=NamespaceMode.NODE)
MACHINE = "nameserver 9.9.9.9\n"


def test_resolv_conf_in_full() -> None:
    dns = Dns(servers=("10.0.0.1", "fd00::1"), searches=("a.b", "c"), options=("ndots:5", "edns0"))
    assert pod_files.resolv_conf(dns, MACHINE) == (
        "search a.b c\nnameserver 10.0.0.1\nnameserver fd00::1\noptions ndots:5 edns0\n"
    )


def test_resolv_conf_of_the_machine() -> None:
    assert pod_files.resolv_conf(None, MACHINE) == MACHINE
    assert pod_files.resolv_conf(Dns(), MACHINE) == MACHINE


def test_resolv_conf_with_less() -> None:
    assert pod_files.resolv_conf(Dns(servers=("1.1.1.1",)), MACHINE) == "nameserver 1.1.1.1\n"
    assert pod_files.resolv_conf(Dns(options=("ndots:1",)), MACHINE) == "options ndots:1\n"


def test_hosts() -> None:
    text = pod_files.hosts(sandbox_config(hostname="web-0"), ("10.0.0.5", "fd00::5"), "1.2.3.4 machine\n")
    entries = {line.split("\t")[0]: line.split("\t")[1].split() for line in text.splitlines()}
    assert entries["127.0.0.1"] == ["localhost"]
    assert "localhost" in entries["::1"]
    assert entries["10.0.0.5"] == ["web-0"]
    assert entries["fd00::5"] == ["web-0"]
    assert "machine" not in text
    assert text.endswith("\n")


def test_hosts_without_a_name_or_on_the_hosts_network() -> None:
    assert "10.0.0.5" not in pod_files.hosts(sandbox_config(), ["10.0.0.5"], "")
    assert (
        pod_files.hosts(sandbox_config(hostname="x", namespaces=HOST), (), "1.2.3.4 machine\n") == "1.2.3.4 machine\n"
    )
