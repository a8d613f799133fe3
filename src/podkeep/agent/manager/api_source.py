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
from podkeep.api.pod import Pod, PodSpec
from podkeep.base.frozen import FrozenStruct

log = logging.getLogger(__name__)

SOURCE = "api"
CONFIG_SOURCE = "kubernetes.io/config.source"
UNSUPPORTED = "PodFeatureUnsupported"
"""A kubelet's reason for a pod that asks for what it does not know."""


class _Spec(FrozenStruct, kw_only=True):
    """The specification of a pod as it came and decoded, and what of it this agent cannot take."""

    raw: Mapping[str, Any]
    spec: PodSpec
    problems: tuple[str, ...]


class ApiSource:
    """Hands the API's pods to the manager, and their statuses to the status manager."""

    def __init__(self, manager: PodManager, statuses: StatusManager, mirrors: Mirrors) -> None:
        self._manager = manager
        self._statuses = statuses
        self._mirrors = mirrors
        self._there: set[str] = set()
        self._specs: dict[str, _Spec] = {}

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        pods = [(item, self._known(item)) for item in items]
        uids = {pod.metadata.uid for _, pod in pods}
        for uid in self._there - uids:
            self._statuses.forget(uid)
            self._specs.pop(uid, None)
        self._there = uids
        self._mirrors.replaced([item for item, _ in pods if is_mirror(item)])
        self._manager.replaced(SOURCE, [pod for item, pod in pods if not is_mirror(item)])

    def changed(self, item: Mapping[str, Any]) -> None:
        pod = self._known(item)
        self._there.add(pod.metadata.uid)
        if is_mirror(item):
            self._mirrors.changed(item)
        else:
            self._manager.changed(SOURCE, pod)

    def deleted(self, item: Mapping[str, Any]) -> None:
        uid = item["metadata"]["uid"]
        self._there.discard(uid)
        self._specs.pop(uid, None)
        self._statuses.forget(uid)
        # Also another pod: it may have had the name of a mirror.
        self._mirrors.deleted(item)
        if not is_mirror(item):
            self._manager.deleted(uid)

    def refusal(self, pod: Pod) -> Rejection | None:
        """Return why a pod must not run: a field of it has a value that this agent does not know."""
        known = self._specs.get(pod.metadata.uid)
        if known is None or not known.problems:
            return None
        return Rejection(reason=UNSUPPORTED, message="; ".join(known.problems))

    def _known(self, item: Mapping[str, Any]) -> Pod:
        uid = item["metadata"]["uid"]
        raw, metadata = item.get("spec") or {}, {**item["metadata"]}
        metadata.pop("managedFields", None)
        known = self._specs.get(uid)
        # Decoding a specification is most of the work of a change.
        if known is None or known.raw != raw:
            found = received.pod({**item, "metadata": metadata})
            self._specs[uid] = _Spec(raw=raw, spec=found.pod.spec, problems=found.problems)
            pod = found.pod
        else:
            # Most changes are statuses, the agent's own among them.
            rest = {key: value for key, value in item.items() if key != "spec"}
            pod = msgspec.structs.replace(received.pod({**rest, "metadata": metadata}).pod, spec=known.spec)
        self._statuses.known(pod, item.get("status") or {})
        return _from_api(pod)


def _from_api(pod: Pod) -> Pod:
    """Return a pod with where it comes from, as a kubelet marks it."""
    annotations = pod.metadata.annotations | {CONFIG_SOURCE: SOURCE}
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(pod, metadata=metadata)
