"""Addresses and ports of services, given out as the last change of a write, before it is validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from podkeep.apiserver.admission.attributes import AdmitAll, Attributes, Operation
from podkeep.apiserver.kinds.services import service_allocation
from podkeep.apiserver.kinds.services.service_allocation import Ranges
from podkeep.apiserver.kinds.services.services import node_ports
from podkeep.apiserver.storage.records import Key, Stored
from podkeep.apiserver.storage.store import Store

_SERVICES = "services"


class ServiceAddresses(AdmitAll):
    """The plugin, which comes last. Services that are on their way to the disk count: nothing is given out twice."""

    def __init__(self, store: Store, ranges: Ranges) -> None:
        self._store, self._ranges = store, ranges
        self._read: dict[Key, tuple[Stored, Mapping[str, Any]]] = {}
        """What is taken by each service as it is stored: anybody's may be large, and all are asked for each time."""

    def mutate(self, attributes: Attributes) -> None:
        """Give a service what it lacks.

        :raises StatusError: 422, if what it asks for is taken; 500, if nothing is left.
        """
        target, value = attributes.target, attributes.value
        is_service = target.resource.storage_name == _SERVICES and not target.subresource
        if is_service and value is not None and attributes.operation is not Operation.DELETE:
            service_allocation.allocate(value, self.services(), self._ranges, attributes.old)

    def services(self) -> Iterator[Mapping[str, Any]]:
        """Yield what each service takes, as the next write finds it."""
        read = {}
        for stored in self._store.newest_of(_SERVICES):
            known = self._read.get(stored.key)
            # The store has one object for each revision as long as it is the newest.
            if known is None or known[0] is not stored:
                known = stored, _taking(msgspec.json.decode(stored.value))
            read[stored.key] = known
            yield known[1]
        self._read = read


def _taking(service: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return of a service what tells which addresses and ports it has."""
    fields, spec = service["metadata"], service["spec"]
    taken = {name: spec[name] for name in ("clusterIPs", "healthCheckNodePort") if name in spec}
    ports = [{"nodePort": port} for port in node_ports(spec)]
    return {
        "metadata": {"namespace": fields.get("namespace", ""), "name": fields["name"]},
        "spec": {**taken, "ports": ports},
    }
