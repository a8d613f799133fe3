"""Binds pods to nodes, as kube-scheduler does for one profile, ``default-scheduler``.

What fits where is decided in ``scheduling``; here is what is remembered of pods and nodes, and what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from sys import intern
from typing import Any

from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.apiserver.auth import pod_references
from podkeep.apiserver.auth.user import AUTHENTICATED, User
from podkeep.apiserver.controllers.controller import (
    NOTHING,
    Bind,
    Change,
    Item,
    Patch,
    Plan,
    Write,
    revised,
    with_condition,
)
from podkeep.apiserver.controllers.recorder import REPEATED, Told, event, is_due
from podkeep.apiserver.controllers.scheduling import (
    Decision,
    NodeState,
    Place,
    PodNeeds,
    Usage,
    decide,
    is_terminal,
    needs,
    node_state,
    running,
)
from podkeep.apiserver.meta.lister import Lister
from podkeep.apiserver.storage.records import Key

PODS, NODES, CLAIMS = "pods", "nodes", "persistentvolumeclaims"
NAME = "default-scheduler"


class Scheduler:
    """The controller. It remembers what nodes have, what runs on them, and which pods wait."""

    name = "kube-scheduler"
    user = User(name="system:kube-scheduler", groups=(AUTHENTICATED,))
    resources = frozenset({PODS, NODES, CLAIMS})

    def __init__(self, gates: FeatureGates | None = None) -> None:
        self._with_classes = (gates or FeatureGates()).enabled(CLASS_RESOURCES)
        self._nodes: dict[str, NodeState] = {}
        self._usage: dict[str, Usage] = {}
        """By node; of nodes that are not there too, since they may come back."""
        self._bound: dict[Key, str] = {}
        self._waiting: dict[Key, bool] = {}
        """Pods that are to be bound, and whether they want to be near others."""

    # What to look at

    def observe(self, change: Change) -> Iterator[Item]:
        """Return the pods that may be bound because of a change."""
        key = change.key
        if key.resource == PODS:
            yield from self._pod(change)
        elif key.resource == CLAIMS or self._node(change):
            yield from list(self._waiting)

    def _pod(self, change: Change) -> Iterator[Item]:
        key, pod = change.key, change.value
        node = pod.get("spec", {}).get("nodeName", "")
        uses = node and not change.is_deletion and not is_terminal(pod)
        freed = key in self._bound and not uses
        came = uses and key in self._waiting
        if uses:
            taken = running(pod)
            # A resize to less is made, or one to more is infeasible.
            freed = node in self._usage and self._usage[node].has_more(key, taken)
            self._bind(key, node, taken)
        else:
            self._release(key)
        if not change.is_deletion and is_ours(pod):
            self._waiting[key] = "podAffinity" in pod.get("spec", {}).get("affinity", {})
            yield key
        else:
            self._waiting.pop(key, None)
        if freed or came:
            yield from [one for one, wants_others in self._waiting.items() if freed or wants_others]

    def _node(self, change: Change) -> bool:
        """Remember a node; return whether anything has changed that matters."""
        name = change.key.name
        if change.is_deletion:
            return self._nodes.pop(name, None) is not None
        state = node_state(change.value)
        changed = self._nodes.get(name) != state
        self._nodes[name] = state
        return changed

    def _bind(self, key: Key, node: str, pod: PodNeeds) -> None:
        if self._bound.get(key, node) != node:
            self._release(key)
        self._bound[key] = intern(node)
        self._usage.setdefault(node, Usage()).add(key, pod)

    def _release(self, key: Key) -> None:
        if (node := self._bound.pop(key, "")) and (usage := self._usage.get(node)):
            usage.remove(key)
            if not usage.pods:
                del self._usage[node]

    # What to do

    def reconcile(self, item: Item, lister: Lister, now: datetime) -> Plan:
        """Bind a pod, or say why it cannot be."""
        assert isinstance(item, Key)
        pod = lister.get(*item)
        if pod is None or not is_ours(pod):
            return NOTHING
        # If it was about to be bound, that has failed.
        self._release(item)
        wanted = needs(pod, classes=self._with_classes)
        places = [Place(node, self._usage.get(name) or Usage()) for name, node in sorted(self._nodes.items())]
        decision = decide(wanted, places, claims_problem(pod, lister))
        if not decision.node:
            return refusal(pod, decision, lister, now)
        # Seen as bound from now on: the next pod must not get the same room before the store tells of it.
        self._bind(item, decision.node, running(pod))
        return binding(pod, decision, lister, now)


def is_ours(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec", {})
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and spec.get("schedulerName", NAME) == NAME
        and "deletionTimestamp" not in pod["metadata"]
        and not is_terminal(pod)
    )


def claims_problem(pod: Mapping[str, Any], lister: Lister) -> str:
    """Return why a pod's volume claims keep it from running anywhere, or nothing."""
    for name in pod_references.claims(pod):
        claim = lister.get(CLAIMS, pod["metadata"]["namespace"], name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if "deletionTimestamp" in claim["metadata"]:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if not claim.get("spec", {}).get("volumeName"):
            return "pod has unbound immediate PersistentVolumeClaims"
    return ""


def binding(pod: Mapping[str, Any], decision: Decision, lister: Lister, now: datetime) -> Plan:
    metadata = pod["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    told = Told(
        component=NAME,
        kind="Normal",
        reason="Scheduled",
        action="Binding",
        message=f"Successfully assigned {namespace}/{name} to {decision.node}",
    )
    bind = Bind(namespace=namespace, name=name, uid=metadata["uid"], node=decision.node)
    return Plan(writes=[bind], then=(event(pod, told, lister, now),))


def refusal(pod: Mapping[str, Any], decision: Decision, lister: Lister, now: datetime) -> Plan:
    """Return the writes that tell why a pod is not bound: its condition, and an event now and then."""
    metadata = pod["metadata"]
    writes: list[Write] = []
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": decision.message,
    }
    conditions = with_condition(pod.get("status", {}).get("conditions", ()), condition, now)
    if conditions is not None:
        patch = revised(pod, {"status": {"conditions": conditions}})
        place = {"resource": PODS, "namespace": metadata["namespace"], "name": metadata["name"]}
        writes.append(Patch(**place, subresource="status", patch=patch))
    told = Told(
        component=NAME,
        kind="Warning",
        reason="FailedScheduling",
        action="Scheduling",
        message=decision.message,
    )
    if conditions is not None or is_due(pod, told, lister, now):
        writes.append(event(pod, told, lister, now))
    return Plan(writes=writes, after=REPEATED.total_seconds())
