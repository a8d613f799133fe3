"""Endpoints and EndpointSlice: where the pods of services are (``pkg/apis/core``, ``pkg/apis/discovery``). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.services import addresses
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind
from podkeep.base.text import netloc

ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
HOST_NAME = "kubernetes.io/hostname"
_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
_SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
_CONTROLLER = "endpoint-controller"
_SLICE_CONTROLLERS = ("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")
_MAX_ENDPOINTS = 1_000
_MAX_ADDRESSES = 100
_MAX_PORTS = 20_000
_MAX_TOPOLOGY = 16
_MAX_HINTS = 8


def _protocol(port: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    field_rules.one_of(f"{path}.protocol", port.get("protocol", ""), field_rules.PROTOCOLS, errors)
    if (application := port.get("appProtocol")) is not None:
        field_rules.named(f"{path}.appProtocol", application, names.label_key_problems(application), errors)


# Endpoints


def default_endpoints(value: Object) -> None:
    """Fill in the protocol of ports."""
    for subset in value.get("subsets", ()):
        for port in subset.get("ports", ()):
            port["protocol"] = port.get("protocol") or "TCP"


def validate_endpoints(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with new Endpoints after defaulting."""
    for index, subset in enumerate(value.get("subsets", ())):
        path = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            field_rules.required(path, "must specify `addresses` or `notReadyAddresses`", errors)
        for kind in ("addresses", "notReadyAddresses"):
            for number, address in enumerate(subset.get(kind, ())):
                _validate_address(address, f"{path}.{kind}[{number}]", errors)
        ports = subset.get("ports", ())
        for number, port in enumerate(ports):
            where = f"{path}.ports[{number}]"
            name = port.get("name", "")
            if name:
                field_rules.named(f"{where}.name", name, names.dns_label(name), errors)
            elif len(ports) > 1:
                errors.required(f"{where}.name", "")
            field_rules.port_number(f"{where}.port", port.get("port", 0), errors)
            _protocol(port, where, errors)


def _validate_address(address: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    ip = address.get("ip", "")
    addresses.validate(f"{path}.ip", ip, errors)
    if name := address.get("hostname", ""):
        field_rules.named(f"{path}.hostname", name, names.dns_label(name), errors)
    if (node := address.get("nodeName")) is not None:
        field_rules.named(f"{path}.nodeName", node, names.dns_subdomain(node), errors)
    addresses.validate_destination(f"{path}.ip", ip, errors)


def validate_endpoints_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong; what was wrong before may stay."""
    found = FieldErrors()
    validate_endpoints(new, found)
    if found.found and not equal(new.get("subsets"), old.get("subsets")):
        errors.found += found.found


def _endpoints_warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    if metadata(new).get("labels", {}).get(_MANAGED_BY) == _CONTROLLER:
        return []
    return [
        warning
        for index, subset in enumerate(new.get("subsets", ()))
        for kind in ("addresses", "notReadyAddresses")
        for number, address in enumerate(subset.get(kind, ()))
        for warning in addresses.warnings(f"subsets[{index}].{kind}[{number}].ip", address.get("ip", ""))
    ]


def _destinations(value: Mapping[str, Any]) -> Iterator[str]:
    for subset in value.get("subsets", ()):
        ports = [port["port"] for port in subset.get("ports", ())]
        for port in ports or [None]:
            for address in subset.get("addresses", ()):
                yield address["ip"] if port is None else netloc.join(address["ip"], port)


def _shown_destinations(value: Mapping[str, Any]) -> str:
    return cells.listed(_destinations(value), none="") if value.get("subsets") else cells.NONE


ENDPOINTS = Resource(
    kind=Kind("", "v1", "Endpoints"),
    plural="endpoints",
    short_names=("ep",),
    deprecated="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    strategy=Strategy(
        default=default_endpoints,
        warnings=_endpoints_warnings,
        validate_create=validate_endpoints,
        validate_update=validate_endpoints_update,
        create_on_update=True,
    ),
    columns=(cells.NAME, cells.column("Endpoints", _shown_destinations), cells.AGE),
)


# EndpointSlice


def default_slice(value: Object) -> None:
    """Fill in the name, which may be empty, and the protocol of ports."""
    for port in value.get("ports", ()):
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _topology_nodes(value: Mapping[str, Any]) -> set[str]:
    """Return the nodes that only the topology of endpoints names, as it was once done."""
    return {endpoint.get("deprecatedTopology", {}).get(HOST_NAME, "") for endpoint in value.get("endpoints", ())} - {""}


def _drop_topology(endpoints: Iterable[dict[str, Any]], nodes: set[str]) -> None:
    for endpoint in endpoints:
        node = endpoint.pop("deprecatedTopology", {}).get(HOST_NAME, "")
        if "nodeName" not in endpoint and node in nodes and not names.dns_subdomain(node):
            endpoint["nodeName"] = node


def _prepare_slice(value: Object) -> None:
    _drop_topology(value.get("endpoints", ()), set())


def _prepare_slice_update(new: Object, old: Object) -> None:
    # For this kind labels count, too (upstream: endpointSliceStrategy); they say whose slice it is.
    if not equal(metadata(new).get("labels"), metadata(old).get("labels")):
        new["metadata"]["generation"] = metadata(old).get("generation", 0) + 1
    if not equal(new.get("endpoints"), old.get("endpoints")):
        _drop_topology(new.get("endpoints", ()), _topology_nodes(old))


def validate_slice(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new slice after defaulting."""
    _validate_slice(value, errors)
    _validate_slice_endpoints(value, errors)


def validate_slice_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong; endpoints that were wrong before may stay."""
    _validate_slice(new, errors)
    found = FieldErrors()
    _validate_slice_endpoints(new, found)
    if found.found and not equal(new.get("endpoints"), old.get("endpoints")):
        errors.found += found.found
    field_rules.immutable(new.get("addressType", ""), old.get("addressType", ""), "addressType", errors)


def _validate_slice(value: Object, errors: FieldErrors) -> None:
    field_rules.one_of("addressType", value.get("addressType", ""), ADDRESS_TYPES, errors)
    ports = value.get("ports", ())
    field_rules.too_many("ports", len(ports), _MAX_PORTS, errors)
    seen: set[str] = set()
    for index, port in enumerate(ports if len(ports) <= _MAX_PORTS else ()):
        path, name = f"ports[{index}]", port["name"]
        if name:
            field_rules.named(f"{path}.name", name, names.dns_label(name), errors)
        if name in seen:
            errors.duplicate(f"{path}.name", name)
        seen.add(name)
        if port["protocol"] not in field_rules.PROTOCOLS:
            field_rules.not_supported(f"{path}.protocol", port["protocol"], field_rules.PROTOCOLS, errors)
        if (application := port.get("appProtocol")) is not None:
            field_rules.named(f"{path}.appProtocol", application, names.label_key_problems(application), errors)


def _validate_slice_endpoints(value: Object, errors: FieldErrors) -> None:
    endpoints, kind = value.get("endpoints", ()), value.get("addressType", "")
    field_rules.too_many("endpoints", len(endpoints), _MAX_ENDPOINTS, errors)
    if len(endpoints) > _MAX_ENDPOINTS:
        return
    for index, endpoint in enumerate(endpoints):
        path = f"endpoints[{index}]"
        given = endpoint.get("addresses", ())
        if not given:
            field_rules.required(f"{path}.addresses", "must contain at least 1 address", errors)
        field_rules.too_many(f"{path}.addresses", len(given), _MAX_ADDRESSES, errors)
        for number, address in enumerate(given):
            _validate_slice_address(address, kind, f"{path}.addresses", number, errors)
        if (node := endpoint.get("nodeName")) is not None:
            field_rules.named(f"{path}.nodeName", node, names.dns_subdomain(node), errors)
        topology = endpoint.get("deprecatedTopology", {})
        field_rules.too_many(f"{path}.deprecatedTopology", len(topology), _MAX_TOPOLOGY, errors)
        field_rules.labels(topology, f"{path}.deprecatedTopology", errors)
        if (name := endpoint.get("hostname")) is not None:
            field_rules.named(f"{path}.hostname", name, names.dns_label(name), errors)
        _validate_hints(endpoint.get("hints", {}), f"{path}.hints", errors)


def _validate_slice_address(address: str, kind: str, path: str, number: int, errors: FieldErrors) -> None:
    where = f"{path}[{number}]"
    if kind == "FQDN":
        _validate_domain(address, where, errors)
    elif kind in ADDRESS_TYPES and addresses.validate(where, address, errors, canonical=kind == "IPv6"):
        if addresses.family(address) != kind:
            errors.invalid(path, address, f"must be an {kind} address")
        addresses.validate_destination(where, address, errors)


def _validate_domain(name: str, path: str, errors: FieldErrors) -> None:
    """Note what is no fully qualified domain name; it may end with a dot."""
    if not errors.required(path, name):
        return
    name = name.removesuffix(".")
    if why := names.dns_subdomain(name):
        errors.invalid(path, name, why)
    elif "." not in name:
        errors.invalid(path, name, "should be a domain with at least two segments separated by dots")
    else:
        for label in name.split("."):
            if why := names.dns_label(label):
                errors.invalid(path, label, why)
                return


def _validate_hints(hints: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    for kind, rule in (("forZones", names.label_value), ("forNodes", names.dns_subdomain)):
        given = [item.get("name", "") for item in hints.get(kind, ())]
        field_rules.too_many(f"{path}.{kind}", len(given), _MAX_HINTS, errors)
        if len(given) > _MAX_HINTS:
            return
        for index, name in enumerate(given):
            where = f"{path}.{kind}[{index}].name"
            if name in given[:index]:
                errors.duplicate(where, name)
            field_rules.named(where, name, rule(name), errors)


def _slice_warnings(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> list[str]:
    found = []
    if old is None and new.get("addressType") == "FQDN":
        found.append("spec.addressType: FQDN endpoints are deprecated")
    if metadata(new).get("labels", {}).get(_SLICE_MANAGED_BY) not in _SLICE_CONTROLLERS:
        for index, endpoint in enumerate(new.get("endpoints", ())):
            for number, address in enumerate(endpoint.get("addresses", ())):
                found += addresses.warnings(f"endpoints[{index}].addresses[{number}]", address)
    return found


def _shown_ports(value: Mapping[str, Any]) -> str:
    ports = (str(port.get("port") or port.get("name", "*")) for port in value.get("ports", ()))
    return cells.listed(ports, none="<unset>")


def _shown_endpoints(value: Mapping[str, Any]) -> str:
    found = (address for endpoint in value.get("endpoints", ()) for address in endpoint.get("addresses", ()))
    return cells.listed(found, none="<unset>")


ENDPOINT_SLICES = Resource(
    kind=Kind("discovery.k8s.io", "v1", "EndpointSlice"),
    plural="endpointslices",
    strategy=Strategy(
        default=default_slice,
        prepare_create=_prepare_slice,
        prepare_update=_prepare_slice_update,
        warnings=_slice_warnings,
        validate_create=validate_slice,
        validate_update=validate_slice_update,
        generation=True,
    ),
    columns=(
        cells.NAME,
        cells.column("AddressType", lambda value: value.get("addressType", "")),
        cells.column("Ports", _shown_ports),
        cells.column("Endpoints", _shown_endpoints),
        cells.AGE,
    ),
)

RESOURCES = (ENDPOINTS, ENDPOINT_SLICES)
