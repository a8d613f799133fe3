"""Which pods each node has, as the changes of pods tell it: for controllers that look at pods when a node changes."""

from __future__ import annotations

from sys import intern

from podkeep.apiserver.controllers.controller import Change
from podkeep.apiserver.storage.records import Key


class PodsOfNodes:
    """Pods by the name of the node that they are bound to. Each controller has its own: it sees changes at its time."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[Key, None]] = {}
        self._nodes: dict[Key, str] = {}

    def note(self, change: Change) -> tuple[str, str]:
        """Take in the change of a pod, and return the node that it was bound to and the one that it is; empty: none."""
        key = change.key
        node = "" if change.is_deletion else change.value.get("spec", {}).get("nodeName", "")
        before = self._nodes.pop(key, "")
        if before and before != node:
            self._pods[before].pop(key, None)
            if not self._pods[before]:
                del self._pods[before]
        if node:
            self._nodes[key] = intern(node)
            self._pods.setdefault(node, {})[key] = None
        return before, node

    def pods(self, node: str) -> list[Key]:
        return list(self._pods.get(node, ()))

    def node(self, pod: Key) -> str:
        """Return the node of a pod; empty if it has none, or is gone."""
        return self._nodes.get(pod, "")
