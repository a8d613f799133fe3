"""Addresses and ports of services, given out as the last change of a write, before it is validated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    """The plugin, which comes last. Services that are on their way to the disk count: nothing is given out twice.

    Kept is what each service takes that takes anything: there are no more of these than addresses and ports, while
    anybody may have a hundred thousand that have none (``ExternalName``, headless).
    """

    def __init__(self, store: Store, ranges: Ranges) -> None:
        self._store, self._ranges = store, ranges
        self._taking: dict[Key, Mapping[str, Any]] = {}
        self._pending: dict[Key, tuple[Stored, Mapping[str, Any]]] = {}
        """Of those on their way, as they were read last: they may be large, and are asked for with each write."""
        self._seen = 0
        self._note(stored.key for stored in store.snapshot(_SERVICES).items)
        store.followers.add(self)

    def catch_up(self) -> None:
        """Look at what was written."""
        changes = self._store.changes(self._seen)
        if changes is None:
            self._taking.clear()
            changes = [stored.key for stored in self._store.snapshot(_SERVICES).items]
        self._note(key for key in dict.fromkeys(changes) if key.resource == _SERVICES)

    def _note(self, keys: Iterable[Key]) -> None:
        for key in keys:
            stored = self._store.get(key)
            taking = None if stored is None else _taking(msgspec.json.decode(stored.value))
            if taking is None:
                self._taking.pop(key, None)
            else:
                self._taking[key] = taking
        self._seen = self._store.revision

    def mutate(self, attributes: Attributes) -> None:
        """Give a service what it lacks.

        :raises StatusError: 422, if what it asks for is taken; 500, if nothing is left.
        """
        target, value = attributes.target, attributes.value
        is_service = target.resource.storage_name == _SERVICES and not target.subresource
        if is_service and value is not None and attributes.operation is not Operation.DELETE:
            service_allocation.allocate(value, self.services(), self._ranges, attributes.old)

    def services(self) -> Iterator[Mapping[str, Any]]:
        """Yield what each service takes that takes anything, as the next write finds it."""
        self.catch_up()
        read: dict[Key, tuple[Stored, Mapping[str, Any]]] = {}
        pending = {key for key in self._store.pending() if key.resource == _SERVICES}
        for key in pending:
            if (stored := self._store.newest(key)) is None:
                continue
            known = self._pending.get(key)
            if known is None or known[0] is not stored:
                known = stored, _taking(msgspec.json.decode(stored.value)) or {}
            read[key] = known
        self._pending = read
        yield from (taking for _, taking in read.values() if taking)
        yield from (taking for key, taking in self._taking.items() if key not in pending)


def _taking(service: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return of a service what tells which addresses and ports it has; None: it has none."""
    fields, spec = service["metadata"], service["spec"]
    taken = {name: spec[name] for name in ("clusterIPs", "healthCheckNodePort") if spec.get(name)}
    ports = [{"nodePort": port} for port in node_ports(spec)]
    if not ports and taken in ({}, {"clusterIPs": ["None"]}):
        return None
    return {
        "metadata": {"namespace": fields.get("namespace", ""), "name": fields["name"]},
        "spec": {**taken, "ports": ports},
    }
