"""Netfilter's own messages: flows that are forgotten, tables whose removal is noticed."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest

from podkeep.kernel.namespace.namespaces import NamespaceHelper, NamespaceKind, NamespaceRequest, run_in_netns
from podkeep.kernel.network import nfnetlink

NETLINK_NETFILTER = 12
RULES = """
table ip t {
  chain output { type nat hook output priority -100 ; udp dport 53 dnat to 127.0.0.1:PORT ; }
}
"""


@pytest.fixture
def inside(helper: NamespaceHelper) -> Iterator[Callable[[Callable[[], None]], None]]:
    fd = helper.create(NamespaceRequest(kinds=frozenset({NamespaceKind.NET})))[NamespaceKind.NET]
    yield lambda body: run_in_netns(fd, body)
    os.close(fd)


def nft(commands: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=commands.encode(), check=True)


def test_a_forgotten_flow_is_judged_anew(inside: Callable[[Callable[[], None]], None]) -> None:
    def server() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind(("127.0.0.1", 0))
        made.settimeout(5)
        return made

    def body() -> None:
        with server() as first, server() as second, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", 53))
            nft(RULES.replace("PORT", str(first.getsockname()[1])))
            client.send(b"one")
            assert first.recv(16) == b"one"
            nft("delete table ip t\n" + RULES.replace("PORT", str(second.getsockname()[1])))
            client.send(b"two")
            assert first.recv(16) == b"two", "the kernel remembers"
            nfnetlink.forget_flows(socket.AF_INET, socket.IPPROTO_UDP, 54)
            nfnetlink.forget_flows(socket.AF_INET, socket.IPPROTO_TCP, 53)
            nfnetlink.forget_flows(socket.AF_INET6, socket.IPPROTO_UDP, 53)
            client.send(b"three")
            assert first.recv(16) == b"three", "another one's flow"
            nfnetlink.forget_flows(socket.AF_INET, socket.IPPROTO_UDP, 53)
            client.send(b"four")
            assert second.recv(16) == b"four"

    inside(body)


def test_a_removed_table_is_noticed(inside: Callable[[Callable[[], None]], None]) -> None:
    def body() -> None:
        nft("add table inet mine\nadd table inet other\nadd table ip mine\n")
        watch = nfnetlink.TableWatch()
        try:
            nft("delete table inet other\ndelete table ip mine\nadd chain inet mine c\n")
            assert select.select([watch], [], [], 5)[0] == [watch]
            assert not watch.was_removed((nfnetlink.INET, "mine"))
            nft("flush ruleset\n")
            assert select.select([watch], [], [], 5)[0] == [watch]
            assert watch.was_removed((nfnetlink.INET, "mine"))
            assert not watch.was_removed((nfnetlink.INET, "mine")), "told once"
        finally:
            watch.close()

    inside(body)


def test_a_table_that_is_made_anew_at_once_was_not_removed(inside: Callable[[Callable[[], None]], None]) -> None:
    """As the runtime does itself, in one transaction."""

    def body() -> None:
        nft("add table inet mine\n")
        watch = nfnetlink.TableWatch()
        try:
            nft("delete table inet mine\nadd table inet mine\n")
            assert select.select([watch], [], [], 5)[0] == [watch]
            assert not watch.was_removed((nfnetlink.INET, "mine"))
        finally:
            watch.close()

    inside(body)


def test_news_without_an_end_are_read_in_turns(inside: Callable[[Callable[[], None]], None]) -> None:
    """Who sends them as fast as they are read must not have the event loop for ever."""

    def body() -> None:
        nft("add table inet mine\n")
        watch = nfnetlink.TableWatch()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as other:
            try:
                port = os.dup(watch.fileno())
                with socket.socket(fileno=port) as same:
                    address = same.getsockname()
                    for _ in range(200):
                        other.sendto(bytes(16), address)
                nft("delete table inet mine\n")
                assert not watch.was_removed((nfnetlink.INET, "mine"))
                turns = 1
                while select.select([watch], [], [], 0)[0]:
                    turns += 1
                    if watch.was_removed((nfnetlink.INET, "mine")):
                        break
                assert 1 < turns < 200
            finally:
                watch.close()

    inside(body)
