"""Registering a Node, and making the labels of one that is there a kubelet's (kubelet_node_status.go). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podkeep.api import names
from podkeep.api.validation import node_labels
from podkeep.base.errors import InvalidArgument

ATTACH_DETACH = "volumes.kubernetes.io/controller-managed-attach-detach"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def taint(text: str) -> dict[str, str]:
    """Return ``KEY[=VALUE]:EFFECT`` as v1.Taint.

    :raises InvalidArgument: if it is not one.
    """
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    if not key or effect not in _EFFECTS:
        raise InvalidArgument(
            f"agent.register_with_taints: {text!r} is not KEY[=VALUE]:EFFECT",
            hint=f"the effect is one of {', '.join(_EFFECTS)}",
        )
    if why := names.label_key(key) or names.label_value(value):
        raise InvalidArgument(f"agent.register_with_taints: {text!r}: {why}")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def taints(texts: Iterable[str]) -> list[dict[str, str]]:
    """Return what is registered of ``KEY[=VALUE]:EFFECT`` each.

    :raises InvalidArgument: if one is not that, or two have the same key and effect.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for text in texts:
        new = taint(text)
        if found.setdefault((new["key"], new["effect"]), new) is not new:
            raise InvalidArgument(
                f"agent.register_with_taints: {text!r} is the second one of its key and effect",
                hint="leave one of them out",
            )
    return list(found.values())


def require_name(name: str) -> None:
    """Check that a Node can have this name.

    :raises InvalidArgument: if it cannot: no API would ever register it.
    """
    if why := names.dns_subdomain(name):
        raise InvalidArgument(
            f"agent.node_name: {name!r} is no name of a Node: {why}",
            hint="set agent.node_name; without it the machine's host name is taken",
        )


def require_label(key: str, value: str) -> None:
    """Check that a Node can have this label.

    :raises InvalidArgument: if it cannot: no API would ever register a Node with it.
    """
    if why := names.label_key(key):
        raise InvalidArgument(f"agent.node_labels: {key!r} is no key of a label: {why}")
    if why := names.label_value(value):
        raise InvalidArgument(f"agent.node_labels.{key}: {value!r} is no value of a label: {why}")
    if node_labels.is_forbidden(key):
        raise InvalidArgument(
            f"agent.node_labels: {key!r} is not a node's to say, and the API would refuse it",
            hint=f"a node may set {node_labels.words()}; label it with others by `kubectl label node`",
        )


def default_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return what every Node is labelled with, under the old names as well."""
    found = dict(labels)
    for name in ("os", "arch"):
        if f"kubernetes.io/{name}" in found:
            found[f"beta.kubernetes.io/{name}"] = found[f"kubernetes.io/{name}"]
    return found


def new_node(
    name: str, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]], status: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Node to create.

    :param labels: the default ones, with those of the configuration, which win.
    """
    spec: dict[str, Any] = {"taints": [dict(item) for item in taints]} if taints else {}
    metadata = {"name": name, "labels": dict(labels), "annotations": {ATTACH_DETACH: "true"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": dict(status)}


def reconciled(node: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the patch that gives a Node what it must have; None: it has it.

    :param labels: as for a new one.
    """
    metadata = node.get("metadata") or {}
    known = metadata.get("labels") or {}
    # Others are its administrator's once the Node is there.
    own = {key: value for key, value in labels.items() if key in node_labels.KUBELET_LABELS}
    wrong = {key: value for key, value in own.items() if known.get(key) != value}
    patch: dict[str, Any] = {}
    if wrong:
        patch["labels"] = wrong
    if (metadata.get("annotations") or {}).get(ATTACH_DETACH) != "true":
        patch["annotations"] = {ATTACH_DETACH: "true"}
    return {"metadata": patch} if patch else None
