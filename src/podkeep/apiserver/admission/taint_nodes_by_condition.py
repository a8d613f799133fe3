"""New nodes get no pods until somebody found them ready.

The plugin ``TaintNodesByCondition``, which upstream has on; the taint is removed by ``controllers/node_health.py``.
"""

from __future__ import annotations

from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.default_toleration_seconds import NOT_READY

NO_SCHEDULE = "NoSchedule"


class TaintNodesByCondition:
    """The plugin ``TaintNodesByCondition``."""

    def mutate(self, attributes: Attributes) -> None:
        """Add the taint ``node.kubernetes.io/not-ready`` to a node that is created."""
        target = attributes.target
        if attributes.value is None or attributes.operation is not Operation.CREATE:
            return
        if target.subresource or target.resource.storage_name != "nodes":
            return
        taints = attributes.value.setdefault("spec", {}).setdefault("taints", [])
        if not any((taint.get("key"), taint.get("effect")) == (NOT_READY, NO_SCHEDULE) for taint in taints):
            taints.append({"key": NOT_READY, "effect": NO_SCHEDULE})

    def validate(self, attributes: Attributes) -> None: ...
