"""Service: defaults, validation, columns (``pkg/apis/core``, ``pkg/registry/core/service``).

Addresses and node ports are given by ``service_allocation``, before any of this is validated. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds import cells, field_rules
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.kinds.resources import Resource, Strategy
from podkeep.apiserver.kinds.services import addresses, service_families
from podkeep.apiserver.kinds.services.service_families import is_headless
from podkeep.apiserver.meta.objects import Object, metadata
from podkeep.apiserver.patch.values import equal
from podkeep.apiserver.schema.table import Kind

AFFINITY_SECONDS = 10_800
MAX_AFFINITY_SECONDS = 86_400
_AFFINITIES = ("ClientIP", "None")
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_POLICIES = ("Cluster", "Local")
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_IP_MODES = ("Proxy", "VIP")
_HINTS = "service.kubernetes.io/topology-aware-hints"
_MODE = "service.kubernetes.io/topology-mode"
_SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
_ONLY_BALANCED = "may only be used when `type` is 'LoadBalancer'"

Spec = Mapping[str, Any]


def is_reachable(spec: Spec) -> bool:
    """Tell whether a service can be reached from outside."""
    kind = spec.get("type")
    return kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def needs_node_ports(spec: Spec) -> bool:
    """Tell whether ports of a service have a port of each node."""
    return spec.get("type") in ("NodePort", "LoadBalancer")


def needs_health_check(spec: Spec) -> bool:
    """Tell whether load balancers ask nodes whether they have pods of a service."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def node_ports(spec: Spec) -> list[int]:
    return [port["nodePort"] for port in spec.get("ports", ()) if port.get("nodePort")]


# defaults, and what a client may not set


def default(value: Object) -> None:
    """Fill in the type, the policies, and protocol and target of ports."""
    spec = value.setdefault("spec", {})
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif (
        spec["sessionAffinity"] == "ClientIP"
        and at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds") is None
    ):
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}
    spec["type"] = spec.get("type") or "ClusterIP"
    for port in spec.get("ports", ()):
        port["protocol"] = port.get("protocol") or "TCP"
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    if is_reachable(spec) and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if spec["type"] in ("ClusterIP", "LoadBalancer", "NodePort"):
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
        for ingress in at(value, "status", "loadBalancer", "ingress", default=()):
            if ingress.get("ip"):
                ingress.setdefault("ipMode", "VIP")


def _prepare_create(value: Object) -> None:
    value["status"] = {"loadBalancer": {}}
    _drop_internal_policy(value["spec"])


def _prepare_update(new: Object, old: Object) -> None:
    drop_unused(new, old)
    _drop_internal_policy(new["spec"])


def _drop_internal_policy(spec: dict[str, Any]) -> None:
    """Take away what an ExternalName has no use for; what is wrong is refused all the same."""
    if spec.get("type") == "ExternalName" and spec.get("internalTrafficPolicy") in _POLICIES:
        del spec["internalTrafficPolicy"]


def drop_unused(new: Object, old: Object) -> None:
    """Take away what the old type of a service needed and the new one does not, unless the client has changed it."""
    spec, before = new["spec"], old["spec"]
    if before.get("type") != "ExternalName" and spec.get("type") == "ExternalName":
        if all(_same(spec, before, name) for name in ("clusterIP", "clusterIPs")):
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
        for name in ("ipFamilies", "ipFamilyPolicy"):
            _drop_same(spec, before, name)
    if needs_node_ports(before) and not needs_node_ports(spec) and set(node_ports(spec)) <= set(node_ports(before)):
        for port in spec.get("ports", ()):
            port.pop("nodePort", None)
    if needs_health_check(before) and not needs_health_check(spec):
        _drop_same(spec, before, "healthCheckNodePort")
    if before.get("type") == "LoadBalancer" and spec.get("type") != "LoadBalancer":
        _drop_same(spec, before, "allocateLoadBalancerNodePorts")
        _drop_same(spec, before, "loadBalancerClass")
    if is_reachable(before) and not is_reachable(spec):
        _drop_same(spec, before, "externalTrafficPolicy")
    if spec.get("type") != "LoadBalancer":
        new.setdefault("status", {})["loadBalancer"] = {}


def _same(spec: Spec, before: Spec, name: str) -> bool:
    return equal(spec.get(name) or None, before.get(name) or None)


def _drop_same(spec: dict[str, Any], before: Spec, name: str) -> None:
    if equal(spec.get(name), before.get(name)):
        spec.pop(name, None)


# validation


def validate_create(value: Object, errors: FieldErrors) -> None:
    """Note what is wrong with a new Service that has its addresses."""
    _validate(value, None, errors)


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update makes wrong; addresses that were wrong before may stay."""
    service_families.validate_change(new["spec"], old["spec"], errors)
    spec, before = new["spec"], old["spec"]
    if spec.get("type") == before.get("type") == "LoadBalancer":
        now = spec.get("loadBalancerClass")
        if now != before.get("loadBalancerClass"):
            errors.invalid("spec.loadBalancerClass", now, "may not change once set")
    kept = needs_health_check(spec) and needs_health_check(before)
    if kept and spec.get("healthCheckNodePort", 0) != before.get("healthCheckNodePort", 0):
        errors.forbidden("spec.healthCheckNodePort", field_rules.IMMUTABLE)
    _validate(new, old, errors)


def _validate(new: Object, old: Object | None, errors: FieldErrors) -> None:
    spec: Spec = new["spec"]
    before: Spec = {} if old is None else old["spec"]
    annotations = metadata(new).get("annotations", {})
    if _MODE in annotations and annotations.get(_HINTS, annotations[_MODE]) != annotations[_MODE]:
        why = f"must match annotations[{_HINTS}] when both are specified"
        errors.invalid(f"metadata.annotations[{_MODE}]", annotations[_MODE], why)
    _validate_type(spec, errors)
    _validate_ports(spec, errors)
    field_rules.labels(spec.get("selector", {}), "spec.selector", errors)
    _validate_affinity(spec, errors)
    service_families.validate(spec, before, errors)
    known = frozenset(before.get("externalIPs", ()))
    for index, ip in enumerate(spec.get("externalIPs", ())):
        path = f"spec.externalIPs[{index}]"
        if addresses.validate(path, ip, errors, old=known):
            addresses.validate_destination(path, ip, errors)
    field_rules.one_of("spec.type", spec.get("type", ""), _TYPES, errors)
    _validate_node_ports(spec, errors)
    _validate_source_ranges(spec, before, annotations, metadata(old or {}).get("annotations", {}), errors)
    _validate_balancer(spec, errors)
    _validate_policies(spec, errors)


def _validate_type(spec: Spec, errors: FieldErrors) -> None:
    kind, headless = spec.get("type"), is_headless(spec)
    if not spec.get("ports") and not headless and kind != "ExternalName":
        errors.required("spec.ports", "")
    if kind in ("LoadBalancer", "NodePort") and headless:
        errors.invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    if kind != "ExternalName":
        return
    for name in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(name):
            errors.forbidden(f"spec.{name}", "may not be set for ExternalName services")
    name = spec.get("externalName", "").removesuffix(".")
    if errors.required("spec.externalName", name):
        field_rules.named("spec.externalName", name, names.dns_subdomain(name), errors)


def _validate_ports(spec: Spec, errors: FieldErrors) -> None:
    ports = spec.get("ports", ())
    seen: set[str] = set()
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", port.get("name", "")
        if name:
            field_rules.named(f"{path}.name", name, names.dns_label(name), errors)
            if name in seen:
                errors.duplicate(f"{path}.name", name)
            seen.add(name)
        elif len(ports) > 1:
            errors.required(f"{path}.name", "")
        field_rules.port_number(f"{path}.port", port.get("port", 0), errors)
        field_rules.one_of(f"{path}.protocol", port.get("protocol", ""), field_rules.PROTOCOLS, errors)
        field_rules.port(f"{path}.targetPort", port["targetPort"], errors)
        if (application := port.get("appProtocol")) is not None:
            field_rules.named(f"{path}.appProtocol", application, names.label_key_problems(application), errors)


def _validate_node_ports(spec: Spec, errors: FieldErrors) -> None:
    """Note ports that are there twice, or on nodes where they cannot be."""
    on_nodes: set[tuple[str, int]] = set()
    inside: set[tuple[str, int]] = set()
    for index, port in enumerate(spec.get("ports", ())):
        path, protocol = f"spec.ports[{index}]", port.get("protocol", "")
        if node_port := port.get("nodePort", 0):
            if spec.get("type") == "ClusterIP":
                errors.forbidden(f"{path}.nodePort", "may not be used when `type` is 'ClusterIP'")
            if (protocol, node_port) in on_nodes:
                errors.duplicate(f"{path}.nodePort", node_port)
            on_nodes.add((protocol, node_port))
        key = protocol, port.get("port", 0)
        if key in inside:
            errors.duplicate(path, _shown_port(*key))
        inside.add(key)


def _shown_port(protocol: str, port: int) -> dict[str, Any]:
    return {"Name": "", "Protocol": protocol, "AppProtocol": None, "Port": port, "TargetPort": 0, "NodePort": 0}


def _validate_affinity(spec: Spec, errors: FieldErrors) -> None:
    affinity, path = spec.get("sessionAffinity", ""), "spec.sessionAffinityConfig"
    field_rules.one_of("spec.sessionAffinity", affinity, _AFFINITIES, errors)
    if affinity == "None" and "sessionAffinityConfig" in spec:
        errors.forbidden(path, "must not be set when session affinity is None")
    if affinity == "ClientIP":
        seconds = at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds", default=0)
        if not 0 < seconds <= MAX_AFFINITY_SECONDS:
            why = f"must be greater than 0 and less than {MAX_AFFINITY_SECONDS}"
            errors.invalid(f"{path}.clientIP.timeoutSeconds", seconds, why)


def _validate_source_ranges(
    spec: Spec, before: Spec, annotations: Mapping[str, str], old: Mapping[str, str], errors: FieldErrors
) -> None:
    ranges, given = spec.get("loadBalancerSourceRanges", ()), annotations.get(_SOURCE_RANGES)
    if ranges:
        path = "spec.LoadBalancerSourceRanges"  # as kube-apiserver writes it
        known = {item.strip() for item in before.get("loadBalancerSourceRanges", ())}
        networks = [(f"{path}[{index}]", item) for index, item in enumerate(ranges)]
    elif given is not None:
        path, known = f"metadata.annotations[{_SOURCE_RANGES}]", set()
        changed = given.strip() and old.get(_SOURCE_RANGES) != given
        networks = [(path, item) for item in given.strip().split(",")] if changed else []
    else:
        return
    if spec.get("type") != "LoadBalancer":
        errors.forbidden(path, _ONLY_BALANCED)
    for where, network in networks:
        addresses.validate_network(where, network.strip(), errors, old=known)


def _validate_balancer(spec: Spec, errors: FieldErrors) -> None:
    balanced = spec.get("type") == "LoadBalancer"
    if "allocateLoadBalancerNodePorts" in spec and not balanced:
        errors.forbidden("spec.allocateLoadBalancerNodePorts", _ONLY_BALANCED)
    elif balanced and "allocateLoadBalancerNodePorts" not in spec:
        errors.required("allocateLoadBalancerNodePorts", "")
    name = spec.get("loadBalancerClass")
    if name is not None and balanced:
        field_rules.named("spec.loadBalancerClass", name, names.label_key_problems(name), errors)
    elif name is not None:
        errors.forbidden("spec.loadBalancerClass", _ONLY_BALANCED)


def _validate_policies(spec: Spec, errors: FieldErrors) -> None:
    external, path = spec.get("externalTrafficPolicy", ""), "spec.externalTrafficPolicy"
    if is_reachable(spec):
        field_rules.one_of(path, external, _POLICIES, errors)
    elif external:
        errors.invalid(path, external, "may only be set for externally-accessible services")
    port, path = spec.get("healthCheckNodePort", 0), "spec.healthCheckNodePort"
    if needs_health_check(spec):
        if errors.required(path, port):
            field_rules.port_number(path, port, errors)
    elif port:
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        errors.invalid(path, port, why)
    internal = spec.get("internalTrafficPolicy")
    if internal is not None and internal not in _POLICIES:
        field_rules.not_supported("spec.internalTrafficPolicy", internal, _POLICIES, errors)
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        field_rules.not_supported("spec.trafficDistribution", distribution, _DISTRIBUTIONS, errors)


def validate_status(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what is wrong with what a load balancer tells."""
    path = "status.loadBalancer.ingress"
    found = at(new, "status", "loadBalancer", "ingress", default=())
    if found and new["spec"].get("type") != "LoadBalancer":
        errors.forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")
        return
    known = {item.get("ip", "") for item in at(old, "status", "loadBalancer", "ingress", default=())}
    for index, ingress in enumerate(found):
        where, ip, mode = f"{path}[{index}]", ingress.get("ip", ""), ingress.get("ipMode")
        if ip:
            addresses.validate(f"{where}.ip", ip, errors, old=known)
        if mode is None and ip:
            field_rules.required(f"{where}.ipMode", "must be specified when `ip` is set", errors)
        elif mode is not None and not ip:
            errors.forbidden(f"{where}.ipMode", "may not be specified when `ip` is not set")
        elif mode is not None and mode not in _IP_MODES:
            field_rules.not_supported(f"{where}.ipMode", mode, _IP_MODES, errors)
        if name := ingress.get("hostname", ""):
            field_rules.named(f"{where}.hostname", name, names.dns_subdomain(name), errors)
            if addresses.parse(name) is not None:
                errors.invalid(f"{where}.hostname", name, "must be a DNS name, not an IP address")


# warnings, columns


def warnings(new: Mapping[str, Any], _: Mapping[str, Any] | None) -> list[str]:
    return list(_warnings(new))


def _warnings(value: Mapping[str, Any]) -> Iterator[str]:
    spec = value["spec"]
    kind, headless = spec["type"], spec["type"] == "ClusterIP" and spec.get("clusterIP") == "None"
    external, distribution = spec.get("externalIPs", ()), spec.get("trafficDistribution")
    if _HINTS in metadata(value).get("annotations", {}):
        yield f"annotation {_HINTS} is deprecated, please use {_MODE} instead"
    if spec.get("clusterIP", "") not in ("", "None"):
        yield from _address_warnings("spec.clusterIPs", spec.get("clusterIPs", ()))
    if headless:
        if spec.get("loadBalancerIP"):
            yield "spec.loadBalancerIP is ignored for headless services"
        if external:
            yield "spec.externalIPs is ignored for headless services"
        if spec["sessionAffinity"] != "None":
            yield "spec.SessionAffinity is ignored for headless services"
    yield from _address_warnings("spec.externalIPs", external)
    if external and not headless and kind != "ExternalName":
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if ip := spec.get("loadBalancerIP"):
        yield from addresses.warnings("spec.loadBalancerIP", ip)
    for index, network in enumerate(spec.get("loadBalancerSourceRanges", ())):
        yield from addresses.network_warnings(f"spec.loadBalancerSourceRanges[{index}]", network)
    if external and kind == "ExternalName":
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if spec.get("externalName") and kind != "ExternalName":
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    if distribution == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def _address_warnings(path: str, given: list[str]) -> Iterator[str]:
    for index, address in enumerate(given):
        yield from addresses.warnings(f"{path}[{index}]", address)


def _external(value: Mapping[str, Any]) -> str:
    spec = value["spec"]
    external = spec.get("externalIPs", [])
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") != "LoadBalancer":
        return ",".join(external) or cells.NONE
    ingress = at(value, "status", "loadBalancer", "ingress", default=())
    balanced = sorted({item.get("ip") or item.get("hostname", "") for item in ingress} - {""})
    return ",".join([*balanced, *external]) or "<pending>"


def _shown_ports(value: Mapping[str, Any]) -> str:
    shown = []
    for port in value["spec"].get("ports", ()):
        node_port = f":{port['nodePort']}" if port.get("nodePort", 0) > 0 else ""
        shown.append(f"{port['port']}{node_port}/{port.get('protocol', '')}")
    return ",".join(shown) or cells.NONE


def _cluster_ip(value: Mapping[str, Any]) -> str:
    return next(iter(value["spec"].get("clusterIPs", ())), cells.NONE)


def _text(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda value: str(value["spec"].get(name, ""))


def _selectable(value: Mapping[str, Any]) -> dict[str, str]:
    return {f"spec.{name}": at(value, "spec", name, default="") for name in ("clusterIP", "type")}


SERVICES = Resource(
    kind=Kind("", "v1", "Service"),
    plural="services",
    unserved="nothing leads to its pods unless kube-controller-manager and kube-proxy run beside podkeep",
    short_names=("svc",),
    categories=("all",),
    subresources=frozenset({"proxy", "status"}),
    strategy=Strategy(
        default=default,
        prepare_create=_prepare_create,
        prepare_update=_prepare_update,
        warnings=warnings,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=validate_status,
        name_rule=names.dns_label,
        status=True,
        create_on_update=True,
        returns_deleted=True,
        selectable=_selectable,
    ),
    columns=(
        cells.NAME,
        cells.column("Type", _text("type")),
        cells.column("Cluster-IP", _cluster_ip),
        cells.column("External-IP", _external),
        cells.column("Port(s)", _shown_ports),
        cells.AGE,
        cells.label_selector("spec", "selector"),
    ),
)

RESOURCES = (SERVICES,)
