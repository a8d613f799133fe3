"""What a CNI plugin's ADD returned (CNI specification, section "Success"; 0.2.0 and older had another form). Pure."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from podkeep.runtime.network.cni.conflist import Json


def addresses(result: Json, ifname: str) -> tuple[str, ...]:
    """Return the addresses that a result gives to the pod's interface ``ifname``, those of IPv4 first.

    :raises ValueError: saying what is wrong with the result.
    """
    found = [_interface(item) for item in _texts(result, ifname)]
    return tuple(str(item.ip) for item in sorted(found, key=lambda item: item.version))


def _interface(text: object) -> IPv4Interface | IPv6Interface:
    if not isinstance(text, str):
        raise ValueError(f"address {text!r} is no string")
    return ip_interface(text)


def _texts(result: Json, ifname: str) -> list[object]:
    if "ips" not in result:
        old = (result.get("ip4"), result.get("ip6"))
        return [item.get("ip") for item in old if isinstance(item, dict)]
    ips, interfaces = result["ips"] or [], result.get("interfaces") or []
    if not isinstance(ips, list) or not isinstance(interfaces, list):
        raise ValueError("ips and interfaces must be lists")
    chosen = []
    for item in ips:
        if not isinstance(item, dict):
            raise ValueError(f"ips: {item!r} is no object")
        if _is_the_pods(item.get("interface"), interfaces, ifname):
            chosen.append(item.get("address"))
    return chosen


def _is_the_pods(index: object, interfaces: list[object], ifname: str) -> bool:
    """Return whether an address belongs to the pod's interface: one without an index does."""
    if index is None:
        return True
    if not isinstance(index, int) or not 0 <= index < len(interfaces):
        raise ValueError(f"ips: there is no interface {index!r}")
    interface = interfaces[index]
    if not isinstance(interface, dict):
        raise ValueError(f"interfaces: {interface!r} is no object")
    return bool(interface.get("sandbox")) and interface.get("name") == ifname
