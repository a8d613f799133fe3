"""Counters of network interfaces, in namespaces of the test's own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from podkeep.base.errors import Internal
from podkeep.kernel.network import netdev
from podkeep.kernel.network.netdev import Interface

TEXT = """Inter-|   Receive                                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 451324985  40138    0    0    0     0          0         0 451324985   40138    0    0    0     0       0      0
  eth0:    1000      10    1    2    0     0          0         0     2000      20    3    4    0     0       0      0
net1.100:       1       2    3    4    0     0          0         0        5       6    7    8    0     0       0      0
"""


def test_names_that_end_lines_elsewhere_and_interfaces_without_number() -> None:
    """A pod with CAP_NET_ADMIN took the statistics of all pods with one name."""
    row = ": 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"
    names = ["x\x1cy", "\x85", "\udcff", *(f"b{number}" for number in range(netdev.MAX_INTERFACES)), "eth0"]
    found = netdev.parse("\n".join(["head", "head", *(name + row for name in names)]) + "\n")
    assert [item.name for item in found] == ["eth0", *(f"b{number}" for number in range(netdev.MAX_INTERFACES - 1))]


def test_the_table() -> None:
    assert netdev.parse(TEXT) == (
        Interface(
            name="eth0",
            rx_bytes=1000,
            rx_packets=10,
            rx_errors=1,
            rx_dropped=2,
            tx_bytes=2000,
            tx_packets=20,
            tx_errors=3,
            tx_dropped=4,
        ),
        Interface(
            name="net1.100",
            rx_bytes=1,
            rx_packets=2,
            rx_errors=3,
            rx_dropped=4,
            tx_bytes=5,
            tx_packets=6,
            tx_errors=7,
            tx_dropped=8,
        ),
    )
    assert netdev.parse("\n\n") == ()


@pytest.mark.parametrize("line", ["eth0 1 2 3", "eth0: 1 2 3", "eth0: a b c"])
def test_an_unknown_line_is_an_error(line: str) -> None:
    with pytest.raises(Internal):
        netdev.parse(f"\n\n{line}\n")


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces with an interface named after each, held by processes."""
    processes = []
    try:
        for name in ("one", "two"):
            script = f"ip link add {name} type bridge && echo ready && exec sleep 300"
            process = subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdout=subprocess.PIPE)
            processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield [f"/proc/{process.pid}/ns/net" for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_many_namespaces_are_read_and_none_is_kept(namespaces: list[str], tmp_path: Path) -> None:
    own, threads = os.readlink("/proc/self/ns/net"), threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    no_namespace = tmp_path / "file"
    no_namespace.touch()
    one, two = namespaces
    found = netdev.read_all([one, str(tmp_path / "missing"), two, str(no_namespace), one])
    assert [item and [interface.name for interface in item] for item in found] == [
        ["one"],
        None,
        ["two"],
        None,
        ["one"],
    ]
    assert netdev.read_all([]) == []
    assert os.readlink("/proc/thread-self/ns/net") == own
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
