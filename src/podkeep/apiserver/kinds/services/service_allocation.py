"""Giving addresses and node ports to services (``pkg/registry/core/service/storage/alloc.go``).

What is free follows from the services that there are; nothing else is kept. So whoever calls this must see every
service that is stored or about to be, and let no other write come between this and its own.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.services import addresses, service_families
from podkeep.apiserver.kinds.services.addresses import Network
from podkeep.apiserver.kinds.services.service_families import is_headless
from podkeep.apiserver.kinds.services.services import needs_health_check, needs_node_ports, node_ports
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.meta.status import internal, invalid
from podkeep.apiserver.patch.values import equal
from podkeep.base.frozen import FrozenStruct

Pick = Callable[[int], int]
"""Returns a number from 0 up to one below its argument."""
_OTHER = {"IPv4": "IPv6", "IPv6": "IPv4"}
_FULL = "range is full"


class Ranges(FrozenStruct):
    """What is given out: addresses of one network, or of one of each family; ports of nodes.

    The family of the first network is what a service gets that asks for none. As in Kubernetes, the lower part of each
    range is given out last, so that clients who ask for a certain address or port find it free (KEP-3070, KEP-3668).
    """

    networks: tuple[Network, ...] = (ipaddress.ip_network("10.0.0.0/24"),)
    node_ports: range = range(30_000, 32_768)

    def network(self, family: str) -> Network | None:
        return next((network for network in self.networks if f"IPv{network.version}" == family), None)

    @property
    def families(self) -> list[str]:
        """The families that services may have, the default one first."""
        return [f"IPv{network.version}" for network in self.networks]


class _Taken:
    """What cannot be given out any more. Services are looked at when it is first asked for: most writes need nothing.

    :param own: the namespace and name of the service that is written, which does not count.
    :param ports: those of nodes that it has already.
    """

    def __init__(self, services: Iterable[Mapping[str, Any]], own: tuple[str, str], ports: Iterable[int]) -> None:
        self._services = services
        self._own = own
        self._ports = ports

    @cached_property
    def _found(self) -> tuple[set[int], set[int]]:
        ips: set[int] = set()
        ports = set(self._ports)
        for service in self._services:
            fields, spec = service["metadata"], service["spec"]
            if (fields.get("namespace", ""), fields["name"]) != self._own:
                ips.update(int(ip) for ip in map(addresses.parse, spec.get("clusterIPs", ())) if ip is not None)
                ports.update(node_ports(spec))
                if port := spec.get("healthCheckNodePort"):
                    ports.add(port)
        return ips, ports

    @property
    def ips(self) -> set[int]:
        """Addresses as numbers: those of the two families are far apart."""
        return self._found[0]

    @property
    def ports(self) -> set[int]:
        """Ports of nodes, for whatever protocol."""
        return self._found[1]


def allocate(
    service: Object,
    services: Iterable[Mapping[str, Any]],
    ranges: Ranges,
    old: Mapping[str, Any] | None = None,
    pick: Pick = secrets.randbelow,
) -> None:
    """Give a defaulted Service its addresses and ports, and fill in what follows from them.

    Called after everything that changes the service otherwise, and before it is validated.

    :param services: all services; that of the same name does not count.
    :param old: what it was; None for a new one. What it has already stays, also if it was left out.
    :param pick: chooses among what is free.
    :raises StatusError: 422, if what is asked for cannot be had; 500, if nothing is left.
    """
    spec, name = service["spec"], metadata(service).get("name", "")
    before: Mapping[str, Any] = {} if old is None else old["spec"]
    if old is not None:
        _keep_allocated(spec, before)
    _join_singular(spec, before, is_new=old is None)
    errors = FieldErrors()
    _families(spec, before, ranges, errors)
    if not errors.found:
        taken = _Taken(services, (metadata(service).get("namespace", ""), name), node_ports(before))
        _addresses(spec, before, ranges, taken, name, pick, errors)
        _ports(spec, before, ranges.node_ports, taken, pick, errors)
    if errors.found:
        raise invalid("Service", "", name, errors.found)


# what clients leave out


def _keep_allocated(spec: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Fill in what was allocated before and the client left out, so that what was sent to create can be sent again."""
    if "ExternalName" not in (spec.get("type"), before.get("type")):
        if not spec.get("clusterIP") and before.get("clusterIP"):
            spec["clusterIP"] = before["clusterIP"]
        if not spec.get("clusterIPs") and before.get("clusterIPs"):
            spec["clusterIPs"] = list(before["clusterIPs"])
    if _allocates_ports(spec) and _allocates_ports(before):
        both = set(node_ports(spec)) & set(node_ports(before))
        known = {port.get("name", ""): port.get("nodePort", 0) for port in before.get("ports", ())}
        for port in spec.get("ports", ()):
            known_port = known.get(port.get("name", ""), 0)
            if not port.get("nodePort") and known_port and known_port not in both:
                port["nodePort"] = known_port
    if needs_health_check(spec) and needs_health_check(before) and not spec.get("healthCheckNodePort"):
        spec["healthCheckNodePort"] = before.get("healthCheckNodePort", 0)


def _allocates_ports(spec: Mapping[str, Any]) -> bool:
    return needs_node_ports(spec) and (
        spec.get("type") == "NodePort" or spec.get("allocateLoadBalancerNodePorts", True) is True
    )


def _join_singular(spec: dict[str, Any], before: Mapping[str, Any], *, is_new: bool) -> None:
    """Make ``clusterIPs`` say what ``clusterIP`` says where a client knows only the latter."""
    ip, ips = spec.get("clusterIP", ""), spec.get("clusterIPs", [])
    if is_new:
        if ip and not ips:
            spec["clusterIPs"] = [ip]
        return
    old_ip, old_ips = before.get("clusterIP", ""), before.get("clusterIPs", [])
    if old_ips and not ips and ip == old_ip:
        spec["clusterIPs"] = list(old_ips)
    elif ip != old_ip and ips == old_ips:
        if ip:
            spec["clusterIPs"] = [ip]
        else:
            spec.pop("clusterIPs", None)


# families


def _families(spec: dict[str, Any], before: Mapping[str, Any], ranges: Ranges, errors: FieldErrors) -> None:
    """Fill in ``ipFamilyPolicy`` and ``ipFamilies``, and note what cannot be had."""
    if spec.get("type") == "ExternalName" or _prefers_as_before(spec, before):
        return
    selectorless = spec.get("clusterIP") == "None" and not spec.get("selector")
    if "ipFamilyPolicy" not in spec:
        default = "RequireDualStack" if selectorless else "SingleStack"
        spec["ipFamilyPolicy"] = before.get("ipFamilyPolicy", default)
    service_families.validate(spec, before, errors)
    if errors.found:
        return
    _change_stack(spec, before, errors)
    families = spec["ipFamilies"] = list(spec.get("ipFamilies", ()))
    _infer(spec, families, ranges, errors)
    if errors.found:
        return
    policy = spec["ipFamilyPolicy"]
    if selectorless:
        # Its endpoints are somebody else's, who may have families that this cluster has not.
        families += ranges.families[:1] if not families else []
        families += [_OTHER[families[0]]] if len(families) == 1 and policy != "SingleStack" else []
        return
    if policy == "RequireDualStack" and len(ranges.networks) < 2:
        errors.invalid("spec.ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services")
    for index, family in enumerate(families):
        if ranges.network(family) is None:
            errors.invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")
    if not errors.found:
        families += ranges.families[:1] if not families else []
        dual = policy != "SingleStack" and len(ranges.networks) == 2
        families += [_OTHER[families[0]]] if len(families) == 1 and dual else []


def _prefers_as_before(spec: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Tell whether a service that takes what there is asks for no more and no less than it has.

    It gets no second address because the cluster has a second network by now.
    """
    return (
        bool(before)
        and spec.get("type") == before.get("type")
        and spec.get("ipFamilyPolicy") == "PreferDualStack" == before.get("ipFamilyPolicy", "PreferDualStack")
        and all(equal(spec.get(name), before.get(name)) for name in ("clusterIPs", "ipFamilies"))
    )


def _change_stack(spec: dict[str, Any], before: Mapping[str, Any], errors: FieldErrors) -> None:
    """Take the second address from a service that is to have one only; note where that is not what was asked for."""
    policy = spec["ipFamilyPolicy"]
    for name, one, many in (
        ("clusterIPs", "cluster IP", "cluster IPs"),
        ("ipFamilies", "IP family", "IP families"),
    ):
        now, then = spec.get(name, []), before.get(name, [])
        if policy != "SingleStack":
            if now and len(now) < len(then):
                errors.invalid("spec.ipFamilyPolicy", policy, f"must be 'SingleStack' to release the secondary {one}")
        elif len(now) == 2 and before and now == then:
            spec[name] = now[:1]
        elif len(now) == 2:
            why = f"must be 'RequireDualStack' or 'PreferDualStack' when multiple {many} are specified"
            errors.invalid("spec.ipFamilyPolicy", policy, why)


def _infer(spec: Mapping[str, Any], families: list[str], ranges: Ranges, errors: FieldErrors) -> None:
    """Add the families of addresses that a client asks for."""
    ips = spec.get("clusterIPs", [])
    for index, ip in enumerate(ips):
        if ip == "None":
            return
        family = addresses.family(ip)
        if index < len(families):
            continue
        if ranges.network(family) is None:
            errors.invalid(f"spec.clusterIPs[{index}]", ips, f"{family} is not configured on this cluster")
        else:
            families.append(family)


# addresses


def _addresses(
    spec: dict[str, Any],
    before: Mapping[str, Any],
    ranges: Ranges,
    taken: _Taken,
    name: str,
    pick: Pick,
    errors: FieldErrors,
) -> None:
    had = before.get("clusterIPs", []) if before.get("type") != "ExternalName" else []
    if spec.get("type") == "ExternalName" or is_headless(spec) or had == ["None"]:
        return
    ips = list(spec.get("clusterIPs", ()))
    for index, family in enumerate(spec.get("ipFamilies", ())):
        network = ranges.network(family)
        if index < len(had) or network is None:
            continue
        if index == len(ips):
            ip = _next_address(network, taken.ips, pick)
            if ip is None:
                raise internal(f'failed to allocate a serviceIP for Service "{name}": {_FULL}')
            ips.append(ip)
        else:
            why = _refusal(network, ips[index], taken.ips)
            if why:
                errors.invalid("spec.clusterIPs", ips, f"failed to allocate IP {ips[index]}: {why}")
    if ips:
        spec["clusterIPs"], spec["clusterIP"] = ips, ips[0]


def _usable(network: Network) -> tuple[int, int]:
    """Return the first address of a network that is given out, and how many there are."""
    return int(network.network_address) + 1, max(0, network.num_addresses - (2 if network.version == 4 else 1))


def _refusal(network: Network, text: str, taken: set[int]) -> str:
    ip = addresses.parse(text)
    first, size = _usable(network)
    if ip is None or ip.version != network.version or not first <= int(ip) < first + size:
        return "the provided network does not match the current range"
    return "provided IP is already allocated" if int(ip) in taken else ""


def _next_address(network: Network, taken: set[int], pick: Pick) -> str | None:
    first, size = _usable(network)
    # A part of sixteen, but no less than 16 and no more than 256, is for those who ask for a certain address.
    kept = 0 if network.num_addresses <= 16 else min(max(16, network.num_addresses // 16), 256)
    found = _next(first, size, kept, taken, pick)
    return None if found is None else str(type(network.network_address)(found))


def _next(first: int, size: int, kept: int, taken: set[int], pick: Pick) -> int | None:
    """Return a free number of a range, one of the first ``kept`` only if all others are taken."""
    for start, count in ((first + kept, size - kept), (first, kept)):
        offset = pick(count) if count > 0 else 0
        for index in range(count):
            number = start + (offset + index) % count
            if number not in taken:
                return number
    return None


# ports


def _ports(
    spec: dict[str, Any],
    before: Mapping[str, Any],
    ports: range,
    taken: _Taken,
    pick: Pick,
    errors: FieldErrors,
) -> None:
    if needs_node_ports(spec):
        _node_ports(spec, set(node_ports(before)), ports, taken, pick, errors)
    if needs_health_check(spec) and not needs_health_check(before) and not errors.found:
        given = spec.get("healthCheckNodePort", 0)
        if not given:
            spec["healthCheckNodePort"] = _next_port(
                ports, taken.ports, pick, "failed to allocate a HealthCheck NodePort 0"
            )
        elif why := _port_refusal(ports, given, taken.ports):
            raise internal(f"failed to allocate requested HealthCheck NodePort {given}: {why}")


def _node_ports(
    spec: dict[str, Any], own: set[int], ports: range, taken: _Taken, pick: Pick, errors: FieldErrors
) -> None:
    """Give each port one of the nodes. Ports of the same number, for other protocols, share it on a new service.

    :param own: those that the service has already.
    """
    given = spec.get("ports", ())
    wishes: dict[int, int] = {}
    for port in given:
        if port.get("nodePort"):
            wishes.setdefault(port.get("port", 0), port["nodePort"])
    shared: dict[int, int] = {}
    for index, port in enumerate(given):
        number, wanted = port.get("port", 0), port.get("nodePort", 0)
        if not wanted and not _allocates_ports(spec):
            continue
        if not own:
            wanted = wanted or shared.get(number, 0) or wishes.get(number, 0)
        if not wanted:
            wanted = _next_port(ports, taken.ports, pick, "failed to allocate a nodePort")
        elif wanted not in own and shared.get(number) != wanted:
            if why := _port_refusal(ports, wanted, taken.ports):
                errors.invalid(f"spec.ports[{index}].nodePort", wanted, why)
            taken.ports.add(wanted)
        port["nodePort"] = wanted
        shared.setdefault(number, wanted)


def _port_refusal(ports: range, port: int, taken: set[int]) -> str:
    if port not in ports:
        return f"provided port is not in the valid range. The range of valid ports is {ports.start}-{ports.stop - 1}"
    return "provided port is already allocated" if port in taken else ""


def _next_port(ports: range, taken: set[int], pick: Pick, what: str) -> int:
    size = len(ports)
    # For those who ask for a certain port (KEP-3668).
    kept = 0 if size <= 16 else min(max(16, size // 32), 128)
    found = _next(ports.start, size, kept, taken, pick)
    if found is None:
        raise internal(f"{what}: {_FULL}")
    taken.add(found)
    return found
