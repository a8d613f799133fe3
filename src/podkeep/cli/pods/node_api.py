"""The API of this machine's node, for verbs that speak to the runtime otherwise: its pods are not to be removed there,
since their agent would make them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from podkeep.base.config import Config
from podkeep.base.errors import FailedPrecondition
from podkeep.cli.core import following, node_report
from podkeep.cli.pods.verdicts import is_mirror, verdict
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.resources import PODS
from podkeep.client.settings import Settings


class NodeApi:
    """Pods of the node that runs here, as its API has them; without a node there are none. A context manager.

    :param config: None: as if there were no node.
    """

    def __init__(self, config: Config | None) -> None:
        self._client: Client | None = None
        self._static_pods = "" if config is None else config.agent.static_pod_path
        told = None if config is None else node_report.of(config)
        if config is not None and told is not None and told.embedded and config.api.unix_socket:
            self._client = Client(Settings(server=f"unix://{config.api.unix_socket}"))

    async def objects(self) -> list[Mapping[str, Any]]:
        """Return each pod.

        :raises ApiError: if the API refuses.
        :raises Unavailable: if it does not answer.
        """
        if self._client is None:
            return []
        return list((await self._client.list(PODS)).get("items") or ())

    async def pods(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return namespace and name of each pod, the static ones apart."""
        found: tuple[list[tuple[str, str]], list[tuple[str, str]]] = [], []
        for item in await self.objects():
            found[is_mirror(item)].append((item["metadata"]["namespace"], item["metadata"]["name"]))
        return found

    async def why_not_here(self, name: str, namespace: str) -> str:
        """Return how a pod is that the runtime does not have, in one line; empty if the API does not know it, either.

        :raises ApiError: if the API refuses.
        :raises Unavailable: if it does not answer.
        """
        pod = await self._pod(name, namespace)
        if pod is None:
            return ""
        found = verdict(pod)
        phase = _phase(pod)
        if phase == "Running":
            return f'pod "{name}" does not run here: it is on node {pod["spec"].get("nodeName", "")}'
        does = "is waiting to start" if phase == "Pending" else "does not run"
        return f'pod "{name}" {does}: {found.why or found.state}'

    async def why_ended(self, name: str, namespace: str) -> str:
        """Return how a pod ended, in one line; empty if it has not, or the API does not know it.

        :raises ApiError: if the API refuses.
        :raises Unavailable: if it does not answer.
        """
        pod = await self._pod(name, namespace)
        if pod is None or _phase(pod) not in {"Failed", "Succeeded"}:
            return ""
        found = verdict(pod)
        return f'pod "{name}" does not run: {found.why or found.state}'

    async def named_ports(self, name: str, namespace: str) -> dict[str, int] | None:
        """Return the numbers of a pod's ports by their names; None if there is no such pod, or no node.

        :raises ApiError: if the API refuses.
        :raises Unavailable: if it does not answer.
        """
        pod = await self._pod(name, namespace)
        if pod is None:
            return None
        containers = (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ()))
        ports = [item for container in containers for item in container.get("ports", ())]
        return {item["name"]: int(item["containerPort"]) for item in ports if item.get("name")}

    async def _pod(self, name: str, namespace: str) -> Mapping[str, Any] | None:
        if self._client is None:
            return None
        try:
            return await self._client.get(PODS, name, namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def delete(self, name: str, namespace: str, grace: int | None) -> bool:
        """Delete a pod and wait until it is gone; return whether there was one.

        :raises FailedPrecondition: if it is a static pod: what the API has of it would be made anew.
        :raises ApiError: if the API refuses.
        :raises Unavailable: if it does not answer.
        """
        pod = await self._pod(name, namespace)
        if self._client is None or pod is None:
            return False
        if is_mirror(pod):
            raise FailedPrecondition(
                f"pod {namespace}/{name} is a static pod: it runs for as long as its file is there",
                hint=f"remove its file from {self._static_pods or 'agent.static_pod_path'}",
            )
        try:
            uid = (await self._client.delete(PODS, name, namespace, grace=grace))["metadata"].get("uid")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        if uid:
            await following.until_gone(self._client, PODS, name, namespace, str(uid))
        return True

    async def __aenter__(self) -> NodeApi:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def _phase(pod: Mapping[str, Any]) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"
