"""The controllers that the API runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.controllers.controller import Controller
from podkeep.apiserver.controllers.event_expiry import EventExpiry
from podkeep.apiserver.controllers.namespace_contents import NamespaceContents
from podkeep.apiserver.controllers.namespaces import NamespaceDeletion
from podkeep.apiserver.controllers.node_health import NodeHealth
from podkeep.apiserver.controllers.owners import GarbageCollector
from podkeep.apiserver.controllers.pod_garbage import PodGarbage
from podkeep.apiserver.controllers.scheduler import Scheduler
from podkeep.apiserver.kinds.resources import Resource


def built_in(resources: Iterable[Resource], gates: FeatureGates, root_ca: str) -> Callable[[], tuple[Controller, ...]]:
    """Return what makes them.

    :param resources: all that are served.
    :param root_ca: PEM of the certificate authority that pods verify the API with.
    """
    served = tuple(resources)

    def make() -> tuple[Controller, ...]:
        return (
            NamespaceDeletion(served),
            NamespaceContents(root_ca),
            GarbageCollector(served),
            EventExpiry(),
            NodeHealth(),
            PodGarbage(),
            Scheduler(gates),
        )

    return make
