"""The service ``kubernetes``, through which pods reach the API (kube-apiserver: ``kubernetesservice``).

A kubelet tells every pod its address. It has to be true: an API that listens on a unix socket or on loopback is
reached by no pod, and one that listens on IPv6 alone by none through an IPv4 service. Then there is no such service,
so that a pod is told nothing rather than an address where nobody answers.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import Any

from podkeep.apiserver.kinds.resources import Resource, Target
from podkeep.apiserver.kinds.services import endpoints, services
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, Registry, Request

log = logging.getLogger(__name__)

_NAME, _NAMESPACE = "kubernetes", "default"
_SERVICE = next(item for item in services.RESOURCES if item.plural == "services")
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): which of this machine's addresses leads there is that of its network."""


def reachable(address: str) -> tuple[str, int] | None:
    """Return the IPv4 address and port at which pods reach what listens at ``IP:PORT``; None: they do not."""
    host, _, port = address.rpartition(":")
    if not host:
        return None
    ip = ip_address(host.strip("[]"))
    if ip.version == 4 and ip.is_unspecified:
        ip = ip_address(_own_address())
    if ip.version != 4 or ip.is_loopback or ip.is_unspecified or ip.is_link_local:
        return None
    return str(ip), int(port)


def _own_address() -> str:
    """Return this machine's address on its network; ``0.0.0.0`` if it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(_ELSEWHERE)
        except OSError:
            return "0.0.0.0"
        return str(sock.getsockname()[0])


async def publish(registry: Registry, lister: Lister, request: Request, cluster_ip: str, address: str) -> None:
    """Make the service, its Endpoints and its EndpointSlice say where the API is, or remove them.

    What stands in the way, such as a service that has the address already, is logged: the API serves nonetheless.

    :param cluster_ip: of the service; the API's certificate has it.
    :param address: ``IP:PORT`` where the API listens; empty: nowhere but on a unix socket.
    """
    place = reachable(address)
    wanted = _objects(cluster_ip, *place) if place is not None else {}
    for resource in (_SERVICE, endpoints.ENDPOINTS, endpoints.ENDPOINT_SLICES):
        target = Target(resource, _NAMESPACE, _NAME)
        try:
            await _write(registry, target, lister, request, wanted.get(resource.kind.kind))
        except StatusError as error:
            log.warning("%s %s/%s cannot be reconciled: %s", resource.plural, _NAMESPACE, _NAME, error.message)


async def _write(registry: Registry, target: Target, lister: Lister, request: Request, wanted: Object | None) -> None:
    old = lister.get(*target.key)
    if wanted is None:
        if old is not None:
            await registry.delete(target, DeleteOptions(), request)
    elif old is None:
        await registry.create(target._replace(name=""), wanted, request)
    else:
        await registry.update(target, _brought_up(dict(old), wanted, target.resource), request)


def _brought_up(old: Object, wanted: Object, resource: Resource) -> Object:
    """Return what is there with what has to be true of it; what an administrator added to a service stays."""
    fields = old["metadata"] | {"labels": old["metadata"].get("labels", {}) | wanted["metadata"]["labels"]}
    if resource is not _SERVICE:
        return old | wanted | {"metadata": fields}
    spec = {name: item for name, item in old["spec"].items() if name != "selector"}
    return old | {"metadata": fields, "spec": spec | {name: wanted["spec"][name] for name in ("type", "ports")}}


def _objects(cluster_ip: str, ip: str, port: int) -> dict[str, Object]:
    def named(labels: dict[str, str]) -> dict[str, Any]:
        return {"name": _NAME, "namespace": _NAMESPACE, "labels": labels}

    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    return {
        "Service": {
            "metadata": named({"component": "apiserver", "provider": "kubernetes"}),
            "spec": {
                "clusterIP": cluster_ip,
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
                "sessionAffinity": "None",
                "type": "ClusterIP",
            },
        },
        "Endpoints": {
            # No controller makes a second slice of them.
            "metadata": named({"endpointslice.kubernetes.io/skip-mirror": "true"}),
            "subsets": [{"addresses": [{"ip": ip}], "ports": ports}],
        },
        "EndpointSlice": {
            "metadata": named({"kubernetes.io/service-name": _NAME}),
            "addressType": "IPv4",
            "endpoints": [{"addresses": [ip], "conditions": {"ready": True}}],
            "ports": ports,
        },
    }
