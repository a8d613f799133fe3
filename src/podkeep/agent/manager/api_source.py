"""The pods that the API gives this node, followed by a watch of them; a handler of ``client.Reflector``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.mirrors import Mirrors, is_mirror
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.api.decode import decode
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod

log = logging.getLogger(__name__)

SOURCE = "api"
CONFIG_SOURCE = "kubernetes.io/config.source"


class ApiSource:
    """Hands the API's pods to the manager, and their statuses to the status manager."""

    def __init__(self, manager: PodManager, statuses: StatusManager, mirrors: Mirrors) -> None:
        self._manager = manager
        self._statuses = statuses
        self._mirrors = mirrors
        self._there: set[str] = set()

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Take all pods of the node."""
        pods = [(item, self._known(item)) for item in items]
        uids = {pod.metadata.uid for _, pod in pods}
        for uid in self._there - uids:
            self._statuses.forget(uid)
        self._there = uids
        self._mirrors.replaced([item for item, _ in pods if is_mirror(item)])
        self._manager.replaced(SOURCE, [pod for item, pod in pods if not is_mirror(item)])

    def changed(self, item: Mapping[str, Any]) -> None:
        """Take a pod that is new or was changed."""
        pod = self._known(item)
        self._there.add(pod.metadata.uid)
        if is_mirror(item):
            self._mirrors.changed(item)
        else:
            self._manager.changed(SOURCE, pod)

    def deleted(self, item: Mapping[str, Any]) -> None:
        """Note that a pod's object is gone."""
        uid = item["metadata"]["uid"]
        self._there.discard(uid)
        self._statuses.forget(uid)
        if is_mirror(item):
            self._mirrors.deleted(item)
        else:
            self._manager.deleted(uid)

    def _known(self, item: Mapping[str, Any]) -> Pod:
        pod = read(item)
        self._statuses.known(pod, item.get("status") or {})
        return pod


def read(item: Mapping[str, Any]) -> Pod:
    """Return a pod of the API; fields that this agent does not know are passed over, as a kubelet's decoder does."""
    pod = decode(Pod, item, FieldErrors())
    metadata = msgspec.structs.replace(
        pod.metadata, managed_fields=(), annotations=pod.metadata.annotations | {CONFIG_SOURCE: SOURCE}
    )
    return msgspec.structs.replace(pod, metadata=metadata)
