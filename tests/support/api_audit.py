"""What a running API was asked for: its audit log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.running_node import RunningNode

Request = tuple[str, ...]
"""Verb, group, version, resource and subresource."""


class Audit:
    """The requests of a node's API, which is not started yet."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._file: Path = node.daemon.base / "audit.log"
        node.api.options += ("--set", f"api.audit_log={self._file}")

    def of_a_pods_life(self, document: dict[str, Any], settled: Callable[[str], Any]) -> set[Request]:
        """Return what is asked for while a pod is made, runs and is removed.

        :param settled: is true of the pod's name once nothing follows.
        """
        node, name, before = self._node, document["metadata"]["name"], len(self._lines())
        node.apply(document)
        node.running(name)
        node.until(lambda: settled(name), "the last event")
        node.delete(name)
        node.gone(name)
        found = [json.loads(line) for line in self._lines()[before:]]
        kinds = ("apiGroup", "apiVersion", "resource", "subresource")
        return {
            (item["verb"], *(item.get("objectRef", {}).get(kind, "") for kind in kinds))
            for item in found
            if item.get("objectRef", {}).get("resource") not in {"leases", "nodes"}  # which are written by the clock
        }

    def _lines(self) -> list[bytes]:
        """Return the lines of the log that are whole: the API writes on meanwhile."""
        return self._file.read_bytes().split(b"\n")[:-1]
