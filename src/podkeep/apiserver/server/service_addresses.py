"""Addresses and ports of services, given out as the last change of a write, before it is validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from podkeep.apiserver.admission.attributes import AdmitAll, Attributes, Operation
from podkeep.apiserver.kinds.services import service_allocation
from podkeep.apiserver.kinds.services.service_allocation import Ranges
from podkeep.apiserver.storage.store import Store

_SERVICES = "services"


class ServiceAddresses(AdmitAll):
    """The plugin, which comes last. Services that are on their way to the disk count: nothing is given out twice."""

    def __init__(self, store: Store, ranges: Ranges) -> None:
        self._store, self._ranges = store, ranges

    def mutate(self, attributes: Attributes) -> None:
        """Give a service what it lacks.

        :raises StatusError: 422, if what it asks for is taken; 500, if nothing is left.
        """
        target, value = attributes.target, attributes.value
        is_service = target.resource.storage_name == _SERVICES and not target.subresource
        if is_service and value is not None and attributes.operation is not Operation.DELETE:
            service_allocation.allocate(value, self._services(), self._ranges, attributes.old)

    def _services(self) -> Iterator[Mapping[str, Any]]:
        return (msgspec.json.decode(stored.value) for stored in self._store.newest_of(_SERVICES))
