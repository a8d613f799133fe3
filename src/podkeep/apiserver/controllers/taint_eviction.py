"""Deletes pods from nodes with a taint that they do not tolerate, or not for so long (effect ``NoExecute``).

After kube-controller-manager's taint-eviction-controller. Who taints a node is somebody else: an administrator, or a
node lifecycle controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Delete,
    Item,
    Patch,
    Plan,
    PodsOfNodes,
    Write,
    revised,
    service_account,
    with_condition,
)
from podkeep.apiserver.controllers.recorder import Told, event
from podkeep.apiserver.controllers.scheduling import NO_EXECUTE, Taint, is_toleration_of
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

PODS, NODES = "pods", "nodes"
NAME = "taint-eviction-controller"
_CONDITION = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}


class TaintEviction:
    """The controller. It remembers what pods nodes have, which nodes are tainted, and since when pods tolerate that."""

    name = NAME
    user = service_account("node-controller")
    resources = frozenset({PODS, NODES})

    def __init__(self) -> None:
        self._bound = PodsOfNodes()
        self._tainted: set[str] = set()
        self._since: dict[Key, datetime] = {}

    def observe(self, change: Change) -> Iterator[Item]:
        """Return pods that may have to go, or that may stay now."""
        key = change.key
        if key.resource == NODES:
            tainted = not change.is_deletion and bool(_taints(change.value))
            (self._tainted.add if tainted else self._tainted.discard)(key.name)
            yield from [pod for pod in self._bound.pods(key.name) if tainted or pod in self._since]
            return
        _, node = self._bound.note(change)
        if not node:
            self._since.pop(key, None)
        # Most pods are on a node that is not tainted: if it gets a taint, they are looked at then.
        elif node in self._tainted or key in self._since:
            yield key

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        assert isinstance(item, Key)
        node = lister.get(NODES, "", self._bound.node(item))
        taints = () if node is None else _taints(node)
        pod = lister.get(*item) if taints else None
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            self._since.pop(item, None)
            return NOTHING
        seconds = tolerated_seconds(pod.get("spec", {}).get("tolerations", ()), taints)
        if seconds is None:
            self._since.pop(item, None)
            return NOTHING
        left = (self._since.setdefault(item, now) + timedelta(seconds=seconds) - now).total_seconds()
        return Plan(after=left) if left > 0 else _eviction(pod, lister, now)


def tolerated_seconds(tolerations: Sequence[Mapping[str, Any]], taints: Sequence[Taint]) -> int | None:
    """Return for how many seconds a pod tolerates all of these taints; None: for ever. The shortest counts."""
    used = []
    for taint in taints:
        found = next((item for item in tolerations if is_toleration_of(item, taint)), None)
        if found is None:
            return 0
        used.append(found)
    limits = [item["tolerationSeconds"] for item in used if item.get("tolerationSeconds") is not None]
    # More than a century is for ever; more than that is no time difference at all.
    return min(max(min(limits), 0), 1 << 32) if limits else None


def _taints(node: Mapping[str, Any]) -> tuple[Taint, ...]:
    given = node.get("spec", {}).get("taints", ())
    return tuple(
        Taint(item.get("key", ""), item.get("value", ""), NO_EXECUTE)
        for item in given
        if item.get("effect") == NO_EXECUTE
    )


def _eviction(pod: Mapping[str, Any], lister: Lister, now: datetime) -> Plan:
    metadata = pod["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    message = f"Marking for deletion Pod {namespace}/{name}"
    told = Told(component=NAME, kind="Normal", reason="TaintManagerEviction", action="", message=message)
    writes: list[Write] = [event(pod, told, lister, now)]
    conditions = with_condition(pod.get("status", {}).get("conditions", []), _CONDITION, now)
    if conditions is not None:
        patch = revised(pod, {"status": {"conditions": conditions}})
        writes.append(Patch(resource=PODS, namespace=namespace, name=name, subresource="status", patch=patch))
    end = Delete(resource=PODS, namespace=namespace, name=name, uid=metadata["uid"], propagation="")
    return Plan(writes=writes, then=(end,))
