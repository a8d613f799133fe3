"""The built-in network: one bridge per machine, a cable and an IPv4 address per pod.

Owns: the bridge, its address, masquerading, and a pod's cable. Does not own: which address a pod gets (``state.py``) or
the namespace (``sandbox_executor.py``). Everything blocks; the server calls it on threads.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from podkeep.base import spawn
from podkeep.base.config import NetworkConfig
from podkeep.base.errors import InvalidArgument
from podkeep.base.ids import SandboxID
from podkeep.kernel import netlink
from podkeep.runtime.layout import veth_name

INNER_NAME = "eth0"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_MAX_PREFIX = 29
"""Smallest subnet that makes sense: a gateway and a few pods."""
_MAX_ALIAS = 255
"""IFALIASZ without the closing NUL."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
"""Names that the kernel takes (15 bytes) and that are words of nft's language."""


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """The bridge network of one runtime."""

    name: str
    subnet: IPv4Network
    masquerade: bool
    owner: str
    """The mark (alias) of a bridge that this runtime made. Another one of the same name is neither used nor removed."""

    @classmethod
    def from_config(cls, config: NetworkConfig, run: Path) -> Bridge:
        """Return the network that ``[network]`` describes, of the runtime whose run directory is ``run``.

        :raises InvalidArgument: if the subnet is none, or too small, or the bridge's name is none.
        """
        if not _NAME.fullmatch(config.bridge):
            raise InvalidArgument(
                f"network.bridge: {config.bridge!r} is no name of an interface",
                hint="use at most 15 letters, digits, '_', '.' and '-'",
            )
        try:
            subnet = IPv4Network(config.subnet)
        except ValueError as error:
            raise InvalidArgument(f"network.subnet: {error}", hint="write it as 10.183.0.0/16") from error
        if subnet.prefixlen > _MAX_PREFIX:
            raise InvalidArgument(f"network.subnet: {subnet} is too small", hint=f"use /{_MAX_PREFIX} or larger")
        owner = f"podkeep:{run}"
        if len(owner.encode(errors="surrogateescape")) > _MAX_ALIAS:
            owner = f"podkeep:{hashlib.sha256(bytes(run)).hexdigest()}"
        return cls(name=config.bridge, subnet=subnet, masquerade=config.masquerade, owner=owner)

    @property
    def gateway(self) -> IPv4Address:
        """The bridge's own address: the first of the subnet."""
        return self.subnet.network_address + 1

    def start(self) -> None:
        """Make the bridge and the masquerading rule, or take those it made before, and let the machine forward.

        :raises AlreadyExists: if the name is that of a link which this runtime did not make.
        :raises KernelCallError: if the kernel refuses the bridge.
        :raises CommandFailed: if nft refuses the rule.
        """
        netlink.ensure_bridge(self.name, IPv4Interface((self.gateway, self.subnet.prefixlen)), self.owner)
        if _FORWARDING.read_text().strip() == "0":
            _FORWARDING.write_text("1")
        if self.masquerade:
            spawn.run(["nft", "-f", "-"], stdin=self.rules().encode()).check()

    def stop(self) -> None:
        """Remove the bridge and the rule if this runtime made them; missing ones are no error."""
        if not netlink.delete_bridge(self.name, self.owner):
            return
        if self.masquerade:
            # "add" first, so that deleting a table that is not there is no error.
            commands = f"add table ip {self._table}\ndelete table ip {self._table}\n"
            spawn.run(["nft", "-f", "-"], stdin=commands.encode()).check()

    def attach(self, sandbox: SandboxID, netns: int, address: str) -> None:
        """Connect a network namespace and give it its address and default route.

        :raises KernelCallError: if the kernel refuses; the cable is then to be removed by :meth:`detach`.
        """
        parsed = IPv4Address(address)
        netlink.create_veth(
            host_name=veth_name(sandbox),
            bridge=self.name,
            netns_fd=netns,
            inner_name=INNER_NAME,
            mac=netlink.hardware_address(parsed),
        )
        netlink.configure_inside(netns, INNER_NAME, IPv4Interface((parsed, self.subnet.prefixlen)), self.gateway)

    def detach(self, sandbox: SandboxID) -> None:
        """Remove a pod's cable; a missing one is no error."""
        netlink.delete_link(veth_name(sandbox))

    @property
    def _table(self) -> str:
        return f"podkeep-{self.name}"

    def rules(self) -> str:
        """Return the nft commands that put the masquerading rule in place, whatever was there."""
        return (
            f"add table ip {self._table}\n"
            f"flush table ip {self._table}\n"
            f"add chain ip {self._table} postrouting {{ type nat hook postrouting priority srcnat ; }}\n"
            f"add rule ip {self._table} postrouting "
            f'ip saddr {self.subnet} oifname != "{self.name}" masquerade\n'
        )
