"""A Node's status and what of it is to be written. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podkeep.agent.node_status.conditions import Conditions, conditions, differ
from podkeep.base.frozen import FrozenStruct

SPREAD = 0.5
"""Of the period between reports: how much earlier or later one is, so that not all nodes report at once."""
DECLARED_FEATURES = (
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
)
"""What pods of this node can do that not every kubelet has (KEP-5328), in the order of their names.

A scheduler leaves a pod waiting, and an API server refuses a resize, that needs one which the node does not declare.
Upstream's other one is not here: whether a WebSocket passes unchanged (ExtendWebSocketsToKubelet) is for the runtime to
say, which may be another one.
"""
_LISTS = ("addresses", "podClassResources", "containerClassResources")
"""Fields whose lists a strategic patch would merge."""


class Facts(FrozenStruct, kw_only=True):
    """What a Node's status is made of."""

    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    addresses: Sequence[Mapping[str, str]]
    node_info: Mapping[str, Any]
    port: int = 0
    """Of the kubelet's endpoint; 0: it has none."""
    images: Sequence[Mapping[str, Any]] = ()
    handlers: Sequence[Mapping[str, Any]] = ()
    features: Mapping[str, Any] | None = None
    classes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    """None: the feature is off, or the runtime knows no classes."""
    pressures: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()
    """Why the node is not ready."""


def fields(facts: Facts) -> dict[str, Any]:
    """Return the status without conditions; None for a field that the Node is not to have."""
    classes = facts.classes or {}
    return {
        "capacity": dict(facts.capacity),
        "allocatable": dict(facts.allocatable),
        "addresses": [dict(item) for item in facts.addresses],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": dict(facts.node_info),
        "images": [dict(item) for item in facts.images],
        "runtimeHandlers": [dict(item) for item in facts.handlers],
        "features": None if facts.features is None else dict(facts.features),
        "declaredFeatures": list(DECLARED_FEATURES),
        "podClassResources": list(classes.get("podClassResources", ())) or None,
        "containerClassResources": list(classes.get("containerClassResources", ())) or None,
    }


def with_missing(facts: Facts) -> tuple[str, ...]:
    """Return the errors of a node, and what its capacity lacks."""
    required = ("cpu", "memory", "pods", "ephemeral-storage")
    missing = [name for name in required if name not in facts.capacity]
    if not missing:
        return facts.errors
    return (*facts.errors, f"missing node capacity for resources: {', '.join(missing)}")


class Report(FrozenStruct, kw_only=True):
    """What is to be written. ``patch`` is a strategic one of the status; None: nothing."""

    patch: dict[str, Any] | None
    fields: Mapping[str, Any]
    """To be remembered as what was sent, if the patch is."""
    conditions: Conditions
    changed: bool = False


def report(facts: Facts, node: Mapping[str, Any], sent: Mapping[str, Any], *, now: str, due: bool) -> Report:
    """Return what to write of a Node's status.

    Conditions are compared with those of ``node``: others change them too. All else is compared with what was sent
    last, and with ``node`` when a report is due, since an API server may know fewer fields.

    :param node: the Node as the API has it.
    :param sent: the fields that were sent last.
    :param due: report also if nothing changed.
    """
    status = node.get("status") or {}
    wanted = fields(facts)
    decided = conditions(status.get("conditions") or (), facts.pressures, with_missing(facts), now)
    changed = {name: value for name, value in wanted.items() if name not in sent or sent[name] != value}
    turned = differ(decided.values, status.get("conditions") or ())
    if not changed and not turned and not due:
        return Report(patch=None, fields=wanted, conditions=decided)
    written = {name: value for name, value in wanted.items() if due or name in changed}
    # What the Node already has needs no writing.
    written = {name: value for name, value in written.items() if status.get(name) != value}
    patch = {name: _replaced(name, value, status.get(name)) for name, value in written.items()}
    patch["conditions"] = list(decided.values)
    return Report(patch={"status": patch}, fields=wanted, conditions=decided, changed=bool(changed) or turned)


def _replaced(name: str, value: Any, before: Any) -> Any:
    """Return a field's value as a strategic patch replaces it with."""
    if name in _LISTS and value is not None:
        return [*value, {"$patch": "replace"}]
    if isinstance(value, dict) and isinstance(before, Mapping):
        # What is no longer there, such as huge pages of a size, goes; other components' resources are kept.
        gone = {key: None for key in before if key not in value and _is_ours(name, key)}
        return {**value, **gone}
    return value


def _is_ours(name: str, key: str) -> bool:
    return name not in ("capacity", "allocatable") or key.startswith("hugepages-")
