"""Addresses and ports of services, given out as the last change of a write, before it is validated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from podkeep.apiserver.admission.attributes import Admission, Attributes, Operation
from podkeep.apiserver.kinds import service_allocation
from podkeep.apiserver.kinds.service_allocation import Ranges
from podkeep.apiserver.storage.store import Store

_SERVICES = "services"


class ServiceAddresses:
    """Admission of others, and then what services are given.

    Services that are on their way to the disk count, so that no address is given out twice.
    """

    def __init__(self, admission: Admission, store: Store, ranges: Ranges) -> None:
        self._admission, self._store, self._ranges = admission, store, ranges

    def mutate(self, attributes: Attributes) -> None:
        """Let the others change the object, and allocate.

        :raises StatusError: 422 if what a service asks for is taken; what the others raise.
        """
        self._admission.mutate(attributes)
        target, value = attributes.target, attributes.value
        is_service = target.resource.storage_name == _SERVICES and not target.subresource
        if is_service and value is not None and attributes.operation is not Operation.DELETE:
            service_allocation.allocate(value, self._services(), self._ranges, attributes.old)

    def validate(self, attributes: Attributes) -> None:
        """Ask the others."""
        self._admission.validate(attributes)

    def _services(self) -> Iterator[Mapping[str, Any]]:
        return (msgspec.json.decode(stored.value) for stored in self._store.newest_of(_SERVICES))
