"""Deletes pods without a kubelet: of deleted nodes, of nodes that are out of service, and those that were never bound.
And the oldest of those that have ended, where there are many.

After kube-controller-manager's pod-garbage-collector; but its threshold for pods that have ended is for all namespaces
together, and who fills one would have the pods of others deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from podkeep.apiserver.auth.pod_references import is_mirror
from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Change,
    Delete,
    Item,
    Patch,
    Plan,
    PodsOfNodes,
    revised,
    service_account,
    with_condition,
)
from podkeep.apiserver.controllers.scheduling import is_terminal
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.meta.objects import has_condition
from podkeep.apiserver.storage.records import Key
from podkeep.base.frozen import FrozenStruct

PODS, NODES = "pods", "nodes"
QUARANTINE = timedelta(seconds=40)
"""How long a node has to be gone."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""The taint by which an administrator says that nothing of a node runs any more (KEP-2268)."""
_ORPHANED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class _Terminated(FrozenStruct):
    """An item: the pods of a namespace that have ended are more than stay."""

    namespace: str


class PodGarbage:
    """The controller. It remembers which pods each node has, which nodes are there, and since when others are gone.

    :param terminated: how many pods that have ended stay in a namespace, the youngest; 0: all of them.
    """

    name = "pod-garbage-collector"
    user = service_account(name)
    resources = frozenset({PODS, NODES})

    def __init__(self, terminated: int = 0) -> None:
        self._threshold = terminated
        self._terminated: defaultdict[str, dict[Key, tuple[bool, str, str, str]]] = defaultdict(dict)
        """Of each namespace, with what orders them: those that were evicted go first, then the oldest. With their UIDs,
        and without those that are being deleted: they wait for their finalizers, and may be all that a namespace
        holds. Nor those that stand for a static pod: its agent makes another one, and deletes what stands for none."""
        self._bound = PodsOfNodes()
        self._there: set[str] = set()
        self._gone: dict[str, datetime] = {}

    def observe(self, change: Change) -> Iterator[Item]:
        key = change.key
        if key.resource == NODES:
            if change.is_deletion:
                self._there.discard(key.name)
                self._gone[key.name] = change.at
                yield from self._bound.pods(key.name)
            else:
                self._there.add(key.name)
                self._gone.pop(key.name, None)
                if _is_out_of_service(change.value):
                    yield from self._bound.pods(key.name)
            return
        yield from self._note_terminated(change)
        before, node = self._bound.note(change)
        # Most pods are on a node that is there: if it goes, they are looked at then.
        is_lost = node != before and node not in self._there
        if not change.is_deletion and (is_lost or change.metadata.deletion_timestamp):
            yield key

    def _note_terminated(self, change: Change) -> Iterator[Item]:
        if not self._threshold:
            return
        key = change.key
        is_gone = change.is_deletion or change.metadata.deletion_timestamp
        if is_gone or not is_terminal(change.value) or is_mirror(change.value):
            if key.namespace in self._terminated:
                self._terminated[key.namespace].pop(key, None)
                if not self._terminated[key.namespace]:
                    del self._terminated[key.namespace]
            return
        pods = self._terminated[key.namespace]
        is_evicted = change.value["status"].get("reason") == "Evicted"
        created = change.value["metadata"].get("creationTimestamp", "")
        pods[key] = not is_evicted, created, key.name, change.metadata.uid
        if len(pods) > self._threshold:
            yield _Terminated(key.namespace)

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        if isinstance(item, _Terminated):
            return Plan(writes=self._beyond_threshold(item.namespace))
        assert isinstance(item, Key)
        node = lister.get(NODES, "", name) if (name := self._bound.node(item)) else None
        if node is not None and not _is_out_of_service(node):
            return NOTHING
        pod = lister.get(*item)
        if pod is None:
            return NOTHING
        is_deleted = "deletionTimestamp" in pod["metadata"]
        name = pod.get("spec", {}).get("nodeName", "")
        if not name:
            # No kubelet will end it (gcUnscheduledTerminating).
            return Plan(writes=[_end_of(pod)]) if is_deleted else NOTHING
        node = lister.get(NODES, "", name)
        if node is not None:
            ends = is_deleted and _is_out_of_service(node)
            return Plan(writes=_failed(pod), then=(_end_of(pod),)) if ends else NOTHING
        # A node that was gone before this controller began is given the whole time, too.
        left = (self._gone.setdefault(name, now) + QUARANTINE - now).total_seconds()
        if left > 0:
            return Plan(after=left)
        return Plan(writes=_failed(pod, _ORPHANED, now), then=(_end_of(pod),))

    def _beyond_threshold(self, namespace: str) -> Iterator[Delete]:
        pods = self._terminated.get(namespace, {})
        for _, _, name, uid in sorted(pods.values())[: max(len(pods) - self._threshold, 0)]:
            yield _end(namespace, name, uid)


def _is_out_of_service(node: Mapping[str, Any]) -> bool:
    """Return whether a node is not ready and somebody vouches for it that nothing runs there."""
    return not has_condition(node.get("status", {}), "Ready") and any(
        item.get("key") == OUT_OF_SERVICE for item in node.get("spec", {}).get("taints", ())
    )


def _failed(
    pod: Mapping[str, Any], condition: Mapping[str, Any] | None = None, now: datetime | None = None
) -> list[Patch]:
    """Tell of a pod that did not end by itself that it failed."""
    if is_terminal(pod):
        return []
    status: dict[str, Any] = {"phase": "Failed"}
    if condition is not None and now is not None:
        conditions = with_condition(pod.get("status", {}).get("conditions", []), condition, now)
        if conditions is not None:
            status["conditions"] = conditions
    patch = revised(pod, {"status": status})
    metadata = pod["metadata"]
    return [
        Patch(
            resource=PODS,
            namespace=metadata["namespace"],
            name=metadata["name"],
            subresource="status",
            patch=patch,
        )
    ]


def _end_of(pod: Mapping[str, Any]) -> Delete:
    metadata = pod["metadata"]
    return _end(metadata["namespace"], metadata["name"], metadata["uid"])


def _end(namespace: str, name: str, uid: str) -> Delete:
    return Delete(resource=PODS, namespace=namespace, name=name, uid=uid, propagation="", grace_period=0)
