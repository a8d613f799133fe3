"""The built-in bridge's nftables table: masquerading and host ports.

Owns: the table's text and its changes. Does not own: which ports a pod has (``ports.py``), system settings
(``bridge.py``). Everything blocks: a change is one run of nft, which takes 3 ms to add and 20 ms to remove (the kernel
waits for its readers), and happens only for pods that have host ports.

A host port is an element of a map, so a packet costs one look-up however many there are, and adding or removing those
of a pod is one transaction that no other pod notices. Somebody may flush the machine's rules (``systemctl restart
nftables``): the kernel says so, and the table is put back as a whole (``networks.py``).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping, Sequence

from podkeep.base.errors import CommandFailed, KernelCallError
from podkeep.base.ids import SandboxID
from podkeep.kernel.network import nfnetlink
from podkeep.runtime.network import nft
from podkeep.runtime.network.ports import Forward
from podkeep.runtime.network.subnets import Subnet

log = logging.getLogger(__name__)


class Rules:
    """The table of one bridge. Any thread may call anything."""

    def __init__(self, bridge: str, *, masquerade: bool) -> None:
        self.table = f"podkeep-{bridge}"
        self._bridge = bridge
        self._masquerade = masquerade
        self._pods: tuple[Subnet, ...] = ()
        self._ports: dict[SandboxID, tuple[Forward, ...]] = {}
        self._lock = threading.Lock()
        self._installed = False

    def install(self, pods: Sequence[Subnet], ports: Mapping[SandboxID, tuple[Forward, ...]] | None = None) -> None:
        """Put the table in place, whatever was there.

        :param pods: where the addresses of pods are; they do not overlap.
        :param ports: the host ports of the sandboxes that are there; None: those that are known.
        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            self._pods = tuple(pods)
            if ports is not None:
                self._ports = dict(ports)
            # Without masquerading there is nothing in the table before a pod has host ports.
            if self._masquerade or self._ports:
                self._install()

    def add(self, sandbox: SandboxID, forwards: tuple[Forward, ...]) -> None:
        """Let packets to host ports reach a pod.

        :raises CommandFailed: if nft refuses; nothing has changed then.
        """
        with self._lock:
            # Before the change: where the table is gone, _install writes what is noted here.
            self._ports[sandbox] = forwards
            try:
                self._change([("add", forwards)])
                _forget_flows(forwards)
            except BaseException:
                del self._ports[sandbox]
                raise

    def remove(self, sandbox: SandboxID, forwards: tuple[Forward, ...]) -> None:
        """Undo :meth:`add`; what is not there is no error.

        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            self._ports.pop(sandbox, None)
            # Added first, so that removing one that is not there is no error: the key can be nobody else's.
            self._change([("add", forwards), ("delete", forwards)])
            _forget_flows(forwards)

    def ports(self) -> frozenset[SandboxID]:
        """Return which sandboxes have host ports."""
        with self._lock:
            return frozenset(sandbox for sandbox, forwards in self._ports.items() if forwards)

    def restore(self) -> bool:
        """Put the table back if somebody removed it, and return whether that was so.

        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            if not self._installed or nft.has_table("inet", self.table):
                return False
            self._install()
            return True

    def drop(self) -> None:
        """Remove the table; a missing one is no error.

        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            nft.remove_table("inet", self.table)
            self._installed = False

    def _change(self, changes: list[tuple[str, tuple[Forward, ...]]]) -> None:
        if self._installed:
            try:
                nft.run("".join(elements(self.table, verb, forwards) for verb, forwards in changes))
            except CommandFailed:
                # Somebody removed the table, or parts of it. If that was not it, this fails as well.
                self._install()
        elif self._ports:
            self._install()

    def _install(self) -> None:
        forwards = tuple(forward for mine in self._ports.values() for forward in mine)
        text = definition(self.table, self._bridge, self._pods, masquerade=self._masquerade)
        # In one transaction: no packet meets the table without what is in it.
        nft.run(text + elements(self.table, "add", forwards))
        self._installed = True


def _forget_flows(forwards: Sequence[Forward]) -> None:
    """Let the next packet of a UDP client go where the rules now say.

    Rules are asked for the first packet of a flow only, and a client that goes on sending (DNS, QUIC, syslog) keeps its
    flow alive: to the pod that was, or past the pod that is.
    """
    for family, port in sorted({(item.family, item.port) for item in forwards if item.protocol == "udp"}):
        try:
            nfnetlink.forget_flows(socket.AF_INET if family == 4 else socket.AF_INET6, socket.IPPROTO_UDP, port)
        except KernelCallError as error:
            log.warning("UDP clients of port %d that are sending now may not reach it: %s", port, error)


def definition(table: str, bridge: str, pods: Sequence[Subnet], *, masquerade: bool) -> str:
    """Return the nft commands that replace the table by one without host ports; pure.

    - Packets from a pod to another one's host port, or to its own, come from the bridge's address: the pod would
      answer a neighbour directly, past the translation, and itself not at all. Pods are known by their addresses, not
      by ``iifname``: with br_netfilter, packets leave in the postrouting hook that came in nowhere.
    - Packets from the machine's loopback address come from the bridge's address, too. The bridge accepts answers to
      such packets (``route_localnet``), so packets that a pod itself sends to 127.0.0.0/8 are dropped, before the
      connection tracking could turn an answer into one (CVE-2020-8558).
    - ``::1`` is left alone: the kernel routes no packet from it off the loopback device.
    """
    elements4, elements6 = (
        f"elements = {{ {', '.join(str(item) for item in pods if item.version == family)} }} ;"
        if any(item.version == family for item in pods)
        else ""
        for family in (4, 6)
    )
    to_outside = f'oifname != "{bridge}" masquerade' if masquerade else ""
    return f"""\
add table inet {table}
delete table inet {table}
table inet {table} {{
  map ports4 {{ type inet_proto . inet_service : ipv4_addr . inet_service ; }}
  map ports6 {{ type inet_proto . inet_service : ipv6_addr . inet_service ; }}
  map ports4_at {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; }}
  map ports6_at {{ type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service ; }}
  set pods4 {{ type ipv4_addr ; flags interval ; {elements4} }}
  set pods6 {{ type ipv6_addr ; flags interval ; {elements6} }}
  set targets4 {{ type ipv4_addr . inet_proto . inet_service ; }}
  set targets6 {{ type ipv6_addr . inet_proto . inet_service ; }}
  chain host_ports {{
    dnat ip to ip daddr . meta l4proto . th dport map @ports4_at
    meta nfproto ipv4 dnat ip to meta l4proto . th dport map @ports4
    dnat ip6 to ip6 daddr . meta l4proto . th dport map @ports6_at
    meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @ports6
  }}
  chain loopback {{
    type filter hook prerouting priority raw ;
    iifname "{bridge}" ip daddr 127.0.0.0/8 drop
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat ;
    fib daddr type local goto host_ports
  }}
  chain output {{
    type nat hook output priority -100 ;
    ip6 daddr ::1 return
    fib daddr type local goto host_ports
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat ;
    oifname "{bridge}" ip saddr 127.0.0.0/8 masquerade
    ip saddr @pods4 {to_outside}
    ip6 saddr @pods6 {to_outside}
    oifname "{bridge}" ct status dnat ip saddr @pods4 ip daddr . meta l4proto . th dport @targets4 masquerade
    oifname "{bridge}" ct status dnat ip6 saddr @pods6 ip6 daddr . meta l4proto . th dport @targets6 masquerade
  }}
}}
"""


def elements(table: str, verb: str, forwards: Sequence[Forward]) -> str:
    """Return the nft commands that add or delete (``verb``) the elements of host ports; pure."""
    lines = []
    for item in forwards:
        key = f"{item.protocol} . {item.port}"
        name = f"ports{item.family}"
        if item.address is not None:
            key, name = f"{item.address} . {key}", f"{name}_at"
        lines.append(f"{verb} element inet {table} {name} {{ {key} : {item.target} . {item.target_port} }}\n")
    targets = {(item.family, str(item.target), item.protocol, item.target_port) for item in forwards}
    for family, target, protocol, port in sorted(targets):
        lines.append(f"{verb} element inet {table} targets{family} {{ {target} . {protocol} . {port} }}\n")
    return "".join(lines)
