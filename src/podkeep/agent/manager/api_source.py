"""The pods that the API gives this node, followed by a watch of them; a handler of ``client.Reflector``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from podkeep.agent.manager.manager import PodManager
from podkeep.agent.manager.mirrors import Mirrors, is_mirror
from podkeep.agent.manager.status_manager import StatusManager
from podkeep.agent.resources.predicates import Rejection
from podkeep.api import received
from podkeep.api.pod import Pod

log = logging.getLogger(__name__)

SOURCE = "api"
CONFIG_SOURCE = "kubernetes.io/config.source"
UNSUPPORTED = "PodFeatureUnsupported"
"""A kubelet's reason for a pod that asks for what it does not know."""


class ApiSource:
    """Hands the API's pods to the manager, and their statuses to the status manager."""

    def __init__(self, manager: PodManager, statuses: StatusManager, mirrors: Mirrors) -> None:
        self._manager = manager
        self._statuses = statuses
        self._mirrors = mirrors
        self._there: set[str] = set()
        self._problems: dict[str, tuple[str, ...]] = {}
        """By UID: what of a pod's specification this agent cannot take."""

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Take all pods of the node."""
        pods = [(item, self._known(item)) for item in items]
        uids = {pod.metadata.uid for _, pod in pods}
        for uid in self._there - uids:
            self._statuses.forget(uid)
            self._problems.pop(uid, None)
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
        self._problems.pop(uid, None)
        self._statuses.forget(uid)
        if is_mirror(item):
            self._mirrors.deleted(item)
        else:
            self._manager.deleted(uid)

    def refusal(self, pod: Pod) -> Rejection | None:
        """Return why a pod must not run: a field of it has a value that this agent does not know."""
        problems = self._problems.get(pod.metadata.uid)
        return None if problems is None else Rejection(reason=UNSUPPORTED, message="; ".join(problems))

    def _known(self, item: Mapping[str, Any]) -> Pod:
        found = received.pod(item)
        pod = _from_api(found.pod)
        if found.problems:
            self._problems[pod.metadata.uid] = found.problems
        self._statuses.known(pod, item.get("status") or {})
        return pod


def _from_api(pod: Pod) -> Pod:
    """Return a pod with where it comes from, as a kubelet marks it."""
    metadata = msgspec.structs.replace(
        pod.metadata, managed_fields=(), annotations=pod.metadata.annotations | {CONFIG_SOURCE: SOURCE}
    )
    return msgspec.structs.replace(pod, metadata=metadata)
