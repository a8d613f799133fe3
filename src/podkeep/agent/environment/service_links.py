"""Environment variables that say where services are (Kubernetes: environment variables for services). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from podkeep.base.text import netloc

_API = ("default", "kubernetes")
"""Namespace and name of the service whose variables every pod gets."""


def variables(services: Iterable[Mapping[str, Any]], namespace: str, *, links: bool) -> dict[str, str]:
    """Return the variables of a pod in ``namespace``.

    :param services: v1.Service objects as JSON; those without an address of their own count for nothing.
    :param links: ``enableServiceLinks``: the services of the namespace, too, and not only that of the API.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    for service in services:
        metadata = service.get("metadata", {})
        key = (metadata.get("namespace", ""), metadata.get("name", ""))
        if service.get("spec", {}).get("clusterIP", "") in {"", "None"}:
            continue
        if key == _API:
            # A service of the namespace that is called kubernetes, too, wins whichever comes first (kubelet,
            # getServiceEnvVarMap).
            chosen.setdefault(key[1], service)
        elif key[0] == namespace and links:
            chosen[key[1]] = service
    return {name: value for _, service in sorted(chosen.items()) for name, value in _of(service)}


def _of(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec, prefix = service["spec"], _spelled(service["metadata"]["name"])
    address, ports = spec["clusterIP"], spec.get("ports") or []
    yield f"{prefix}_SERVICE_HOST", address
    if not ports:
        return
    yield f"{prefix}_SERVICE_PORT", str(ports[0].get("port", 0))
    for port in ports:
        if port.get("name"):
            yield f"{prefix}_SERVICE_PORT_{_spelled(port['name'])}", str(port.get("port", 0))
    host = netloc.bracketed(address)
    for index, port in enumerate(ports):
        number, protocol = port.get("port", 0), port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{host}:{number}"
        if index == 0:
            yield f"{prefix}_PORT", url
        link = f"{prefix}_PORT_{number}_{protocol.upper()}"
        yield link, url
        yield f"{link}_PROTO", protocol.lower()
        yield f"{link}_PORT", str(number)
        yield f"{link}_ADDR", address


def _spelled(name: str) -> str:
    return name.replace("-", "_").upper()
