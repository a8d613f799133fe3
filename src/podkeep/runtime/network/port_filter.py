"""The built-in bridge's filter of ports: a pod sends from its own addresses, and claims no others.

Owns: the nftables table of family bridge, and which addresses the port of each pod has in it. Does not own: the pods'
addresses (``networks.py``), the ports (``bridge.py``). Everything blocks: the table is written by nft, once; a pod
comes and goes by a netlink message of 0.1 ms (``kernel/network/nfnetlink.py``).

A container has CAP_NET_RAW by default, so it can send any frame. A bridge learns from frames where a hardware address
is, and hosts learn from ARP and ND which hardware address has a network address: who may claim another pod's receives
what is sent to it. Frames are dropped in the prerouting hook, before the bridge learns from them; from those that do
not come there it learns nothing (``netlink.ensure_bridge``).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from podkeep.base.errors import CommandFailed, KernelCallError, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import SandboxID
from podkeep.kernel.network import netlink, nfnetlink
from podkeep.kernel.network.nfnetlink import Element
from podkeep.runtime.model.layout import veth_name
from podkeep.runtime.network import nft

log = logging.getLogger(__name__)

_NAME_BYTES = 16
"""IFNAMSIZ."""


class Port(FrozenStruct, kw_only=True):
    """A port of the bridge; ``mac`` is the pod's hardware address, as six hex pairs with colons."""

    name: str
    mac: str
    addresses: tuple[IPv4Address | IPv6Address, ...]


class PortFilter:
    """The table of one bridge. Any thread may call anything."""

    def __init__(self, bridge: str) -> None:
        self.table = f"podkeep-{bridge}"
        self._ports: dict[SandboxID, Port] = {}
        self._lock = threading.Lock()
        self._installed = False
        self._sets: nfnetlink.Sets | None = None

    def install(self, pods: Mapping[SandboxID, Sequence[str]]) -> None:
        """Put the table in place, whatever was there; on a kernel that has no such tables, say so in the log.

        :param pods: the addresses of the pods that are there, of each at least one.
        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            self._ports = {sandbox: port(sandbox, addresses) for sandbox, addresses in pods.items()}
            try:
                self._install()
            except (CommandFailed, NotFound) as error:
                if not _is_unsupported(error):
                    raise
                # No error: nobody asked for the filter by name, and a node on such a kernel would have no pods.
                log.warning("a pod with CAP_NET_RAW can receive what is sent to others: %s", error)

    def add(self, sandbox: SandboxID, addresses: Sequence[str]) -> None:
        """Let a pod send from its addresses only; before its port is made, so that there is no time without.

        :raises KernelCallError: if the kernel refuses; nothing has changed then.
        :raises CommandFailed: if the table was gone, and nft refuses it.
        """
        with self._lock:
            mine = self._ports[sandbox] = port(sandbox, addresses)
            try:
                self._change(lambda sets: sets.add(elements(mine)))
            except BaseException:
                del self._ports[sandbox]
                raise

    def remove(self, sandbox: SandboxID) -> None:
        """Undo :meth:`add`, after the port is gone; what is not there is no error.

        :raises KernelCallError: if the kernel refuses.
        :raises CommandFailed: if the table was gone, and nft refuses it.
        """
        with self._lock:
            if mine := self._ports.pop(sandbox, None):
                try:
                    self._change(lambda sets: sets.remove(elements(mine)))
                except BaseException:
                    self._ports[sandbox] = mine  # for who tries again
                    raise

    def pods(self) -> frozenset[SandboxID]:
        """Return which sandboxes have a port, or are about to."""
        with self._lock:
            return frozenset(self._ports)

    def restore(self) -> bool:
        """Put the table back if somebody removed it, and return whether that was so.

        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            if not self._installed or nft.has_table("bridge", self.table):
                return False
            self._install()
            return True

    def drop(self) -> None:
        """Remove the table; a missing one is no error.

        :raises CommandFailed: if nft refuses.
        """
        with self._lock:
            self._close()
            try:  # also what a runtime left that was killed
                nft.remove_table("bridge", self.table)
            except (CommandFailed, NotFound) as error:
                if not _is_unsupported(error):
                    raise
            self._installed = False

    def close(self) -> None:
        """Give back the descriptor; the table stays."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._sets is not None:
            self._sets.close()
            self._sets = None

    def _change(self, change: Callable[[nfnetlink.Sets], None]) -> None:
        if not self._installed or self._sets is None:
            return
        try:
            change(self._sets)
        except KernelCallError as error:
            if error.errno != errno.ENOENT:
                raise
            # Somebody removed the table.
            self._install()

    def _install(self) -> None:
        nft.run(definition(self.table, self._ports.values()))
        self._installed = True
        if self._sets is None:
            # Kept open: closing such a socket waits for what nf_tables frees, 15 ms for each pod that went.
            self._sets = nfnetlink.Sets(nfnetlink.BRIDGE, self.table)


def _is_unsupported(error: Exception) -> bool:
    """Tell whether there is no nft, or the kernel has no tables of family bridge."""
    return isinstance(error, NotFound) or "not supported" in str(error)


def port(sandbox: SandboxID, addresses: Sequence[str]) -> Port:
    """Return the port of a pod with these addresses, and the link-local one that its kernel makes for IPv6; pure."""
    own = [ip_address(text) for text in addresses]
    mac = netlink.hardware_address(own[0])
    has_ipv6 = any(address.version == 6 for address in own)
    return Port(name=veth_name(sandbox), mac=mac, addresses=(*own, *([link_local(mac)] if has_ipv6 else [])))


def link_local(mac: str) -> IPv6Address:
    """Return the link-local address of an interface (RFC 4291, appendix A: modified EUI-64); pure."""
    octets = bytes.fromhex(mac.replace(":", ""))
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:])


def definition(table: str, ports: Iterable[Port]) -> str:
    """Return the nft commands that replace the table by one with these ports; pure.

    - ARP, IPv4 and IPv6 only, from the pod's hardware address and an address of its own. ARP says both once more.
    - IPv6 addresses are compared as bytes (``@nh,64,128``: the source), because nft 1.0 cannot name the address that a
      neighbour solicitation or advertisement is about (``@th,64,128``). Pods are no routers (RFC 4861: types 134, 137).
    - No source ``::``, with which an interface asks whether somebody has its address: nobody else may.
    """
    found = list(ports)
    names = ", ".join(f'"{item.name}"' for item in found)
    claims = [(item, address) for item in found for address in item.addresses]
    claims4 = ", ".join(f'"{item.name}" . {item.mac} . {ip}' for item, ip in claims if ip.version == 4)
    claims6 = ", ".join(f'"{item.name}" . {item.mac} . {int(ip):#034x}' for item, ip in claims if ip.version == 6)
    return f"""\
add table bridge {table}
delete table bridge {table}
table bridge {table} {{
  set ports {{ type ifname ; {_initial(names)} }}
  set claims4 {{ type ifname . ether_addr . ipv4_addr ; {_initial(claims4)} }}
  set claims6 {{ typeof iifname . ether saddr . @nh,64,128 ; {_initial(claims6)} }}
  chain pod {{
    ether type arp iifname . arp saddr ether . arp saddr ip != @claims4 drop
    ether type arp iifname . ether saddr . arp saddr ip @claims4 accept
    ether type ip iifname . ether saddr . ip saddr @claims4 accept
    ether type ip6 icmpv6 type {{ 134, 137 }} drop
    ether type ip6 icmpv6 type 136 iifname . ether saddr . @th,64,128 != @claims6 drop
    ether type ip6 iifname . ether saddr . @nh,64,128 @claims6 accept
    drop
  }}
  chain prerouting {{
    type filter hook prerouting priority -300 ;
    iifname @ports goto pod
  }}
}}
"""


def _initial(found: str) -> str:
    return f"elements = {{ {found} }} ;" if found else ""


def elements(item: Port) -> list[Element]:
    """Return the elements of a port as the kernel has them; pure."""
    name = item.name.encode().ljust(_NAME_BYTES, b"\0")
    mac = bytes.fromhex(item.mac.replace(":", "")).ljust(8, b"\0")
    claims = [Element(set_name=f"claims{ip.version}", key=name + mac + ip.packed) for ip in item.addresses]
    return [Element(set_name="ports", key=name), *claims]
