"""Mirror pods: what the API shows of static pods (kubelet: pkg/kubelet/pod/mirror_client.go).

A mirror has the static pod's spec, its hash in an annotation, and the Node as its owner. One that is deleted, or is of
another hash, is made anew; one without a static pod is deleted. Owns the objects; their status is the status manager's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from podkeep.agent.manager.static_files import CONFIG_HASH
from podkeep.api.pod import Pod
from podkeep.base.backoff import Backoff
from podkeep.base.errors import DeadlineExceeded, FailedPrecondition, PodkeepError, Unavailable
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import NODES, PODS

log = logging.getLogger(__name__)

MIRROR = "kubernetes.io/config.mirror"
Name = tuple[str, str]


def is_mirror(item: Mapping[str, Any]) -> bool:
    return MIRROR in (item.get("metadata", {}).get("annotations") or {})


@dataclass(kw_only=True)
class _Failure:
    """Why a mirror cannot be made or deleted, and when that is tried again (``time.monotonic``).

    ``transient``: the API does not answer, or does not have the Node yet.
    """

    said: str = ""
    transient: bool = False
    again: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5))


class Mirrors:
    """Keeps one mirror for each static pod of the node.

    :param refused: gets why static pods have none, by namespace and name, whenever that is something else; not while
        the API is away.
    """

    def __init__(
        self, client: Client, node_name: str, refused: Callable[[Mapping[str, str]], None] = lambda _: None
    ) -> None:
        self._client = client
        self._refused = refused
        self._told: Mapping[str, str] = {}
        self._node_name = node_name
        self._wanted: dict[Name, Pod] = {}
        self._wanted_known = False
        self._there: dict[Name, Mapping[str, Any]] = {}
        self._listed = False
        self._failures: dict[Name, _Failure] = {}
        self._news = asyncio.Event()

    def want(self, pods: Sequence[Pod]) -> None:
        self._wanted = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
        self._wanted_known = True
        self._news.set()

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        self._there = {_name(item): item["metadata"] for item in items}
        self._listed = True
        self._news.set()

    def changed(self, item: Mapping[str, Any]) -> None:
        self._there[_name(item)] = item["metadata"]
        self._news.set()

    def deleted(self, item: Mapping[str, Any]) -> None:
        name = _name(item)
        # The name may be that of a mirror that was made anew already.
        if name in self._there and self._there[name].get("uid") == item["metadata"].get("uid"):
            del self._there[name]
        # The name is free: whoever had it may be what kept the mirror from being made.
        self._failures.pop(name, None)
        self._news.set()

    async def run(self) -> None:
        """Bring the API to what the node runs, until cancelled."""
        again: float | None = None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), again)
            self._news.clear()
            # Before the API has named its pods, each mirror would be taken for missing and be created once more; before
            # static pods are known, each would be deleted, and made anew with another UID.
            if self._listed and self._wanted_known:
                again = await self._reconcile()

    async def _reconcile(self) -> float | None:
        """Do what is missing, each mirror by itself; return after how many seconds to look again at those that failed.

        One that the API refuses holds up no other.
        """
        tried: set[Name] = set()
        for name, metadata in [*self._there.items()]:
            pod = self._wanted.get(name)
            hashed = (metadata.get("annotations") or {}).get(MIRROR)
            if pod is None or hashed != pod.metadata.annotations[CONFIG_HASH] or metadata.get("deletionTimestamp"):
                tried.add(name)
                await self._attempt(name, partial(self._delete, name, metadata["uid"]))
        for name, pod in [*self._wanted.items()]:
            if name not in self._there:
                tried.add(name)
                await self._attempt(name, partial(self._create, pod))
        # Of others the watch told that all is as it should be, as of one whose answer was lost.
        self._failures = {name: failure for name, failure in self._failures.items() if name in tried}
        problems = self._problems()
        if problems != self._told:
            self._told = problems
            self._refused(problems)
        if not self._failures:
            return None
        return max(min(item.again for item in self._failures.values()) - time.monotonic(), 0.0)

    def _problems(self) -> dict[str, str]:
        """Return why static pods have no mirror, by namespace and name."""
        missing = self._wanted.keys() - self._there.keys()
        return {
            "/".join(name): item.said for name, item in self._failures.items() if name in missing and not item.transient
        }

    async def _attempt(self, name: Name, step: Callable[[], Awaitable[None]]) -> None:
        failure = self._failures.get(name)
        if failure is not None and time.monotonic() < failure.again:
            return
        try:
            await step()
        except PodkeepError as error:
            failure = failure or _Failure()
            if failure.said != str(error):
                failure.said = str(error)
                log.warning("mirror pod %s/%s: %s; trying again", *name, error)
            failure.transient = isinstance(error, Unavailable | DeadlineExceeded)
            failure.again = time.monotonic() + failure.backoff.next()
            self._failures[name] = failure
        else:
            self._failures.pop(name, None)

    async def _delete(self, name: Name, uid: str) -> None:
        try:
            await self._client.delete(PODS, name[1], name[0], grace=0, uid=uid)
        except ApiError as error:
            # A conflict: the name is that of an object with another UID by now, which the watch tells of.
            if not error.not_found and not error.conflict:
                raise

    async def _create(self, pod: Pod) -> None:
        # Each time: a Node that was deleted and made again has another UID, and the API refuses mirrors of the old one.
        node = await self._node()
        try:
            made = await self._client.create(PODS, mirror(pod, node["metadata"]["uid"]), pod.metadata.namespace)
        except ApiError as error:
            if not error.already_exists:
                raise
            there = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
            if is_mirror(there) and there["spec"].get("nodeName") == self._node_name:
                return  # an answer was lost: the watch tells of it
            # The watch tells of the pods of this node alone, so that this is tried again.
            raise FailedPrecondition(
                "the API has another pod of that name", hint="delete it, or rename the static pod"
            ) from error
        # What the watch has told meanwhile is at least as new as this answer.
        self._there.setdefault(_name(made), made["metadata"])

    async def _node(self) -> Mapping[str, Any]:
        try:
            return await self._client.get(NODES, self._node_name)
        except ApiError as error:
            if error.not_found:
                raise Unavailable(f"the node {self._node_name} is not registered") from error
            raise


def mirror(pod: Pod, node_uid: str) -> dict[str, Any]:
    """Return the object that shows a static pod in the API."""
    value: dict[str, Any] = msgspec.to_builtins(pod)
    metadata = value["metadata"]
    # The API gives a mirror a UID of its own; whose mirror it is stands in the annotation.
    metadata.pop("uid", None)
    metadata["annotations"] = metadata["annotations"] | {MIRROR: metadata["annotations"][CONFIG_HASH]}
    owner = {"apiVersion": "v1", "kind": "Node", "name": pod.spec.node_name, "uid": node_uid, "controller": True}
    metadata["ownerReferences"] = [owner]
    value.pop("status", None)
    return {"apiVersion": "v1", "kind": "Pod", **value}


def _name(item: Mapping[str, Any]) -> Name:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]
