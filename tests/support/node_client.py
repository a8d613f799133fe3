"""A node, wherever it runs, as its API shows it: what tests ask it for, and what they wait for.

Owns: requests and waiting. How the API is reached and how daemons are killed is each subclass's: the processes of
support/running_node.py and support/supervised_node.py, and the machine of support/nested/node.py.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

from support.api_client import ApiClient
from support.waiting import TIMEOUT_S, wait_for


class NodeClient(ABC):
    """The API of one node, and the pods on it.

    :ivar name: of the Node.
    """

    name: str
    timeout_s = TIMEOUT_S
    """How long what must happen may take."""
    poll_s = 0.02
    """Between two looks, at least."""

    @abstractmethod
    def connection(self) -> ApiClient:
        """Return a new connection to the API."""

    @abstractmethod
    def said(self) -> str:
        """Return what its daemons wrote last, for the message of a failure."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """Kill ``agent``, ``runtime``, ``api``, or all of them with ``node``; return once the API serves again."""

    @abstractmethod
    def pod_directories(self) -> Collection[str]:
        """Return the UIDs of the pods that have a directory on the node."""

    @abstractmethod
    def pods_with_processes(self) -> Collection[str]:
        """Return the UIDs of the pods that have processes on the node."""

    # -- the API

    def ask(self, method: str, path: str, body: Any = None, *, media: str = "application/json") -> Any:
        """Return the JSON that the API answers.

        :raises AssertionError: if it refuses.
        """
        client = self.connection()
        try:
            answer = client.ask(method, path, body, media=media)
        finally:
            client.close()
        assert answer.status < 300, answer.said
        return answer.value

    def apply(self, *documents: dict[str, Any], namespace: str = "default") -> list[dict[str, Any]]:
        """Create objects, and return them as they are then.

        A pod is bound to the node and gets no token, if it says nothing of that.
        """
        created = []
        for document in documents:
            plural = f"{document['kind'].lower()}s"
            if document["kind"] == "Pod":
                document["spec"] = {"automountServiceAccountToken": False, "nodeName": self.name} | document["spec"]
            created.append(self.ask("POST", f"/api/v1/namespaces/{namespace}/{plural}", document))
        return created

    def get(self, name: str, namespace: str = "default", resource: str = "pods") -> dict[str, Any] | None:
        """Return an object; ``None`` if there is none of that name."""
        client = self.connection()
        try:
            answer = client.ask("GET", f"/api/v1/namespaces/{namespace}/{resource}/{name}")
        finally:
            client.close()
        if answer.status == 404:
            return None
        assert answer.status == 200, answer.said
        value: dict[str, Any] = answer.value
        return value

    def patch(self, name: str, change: dict[str, Any], namespace: str = "default", subresource: str = "") -> None:
        """Change a pod by a strategic merge patch."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}{subresource and '/'}{subresource}"
        self.ask("PATCH", path, change, media="application/strategic-merge-patch+json")

    def delete(self, name: str, namespace: str = "default", **options: Any) -> None:
        """Ask for a pod's deletion.

        :param options: fields of DeleteOptions.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods that the API has."""
        items: list[dict[str, Any]] = self.ask("GET", "/api/v1/pods")["items"]
        return items

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """Return the events of a pod, oldest first."""
        items: list[dict[str, Any]] = self.ask("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [item for item in items if item["involvedObject"]["name"] == name]

    # -- waiting

    def until(self, condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
        """Return the first true value of ``condition``."""
        return wait_for(
            condition,
            lambda: f"{what() if callable(what) else what}\n{self.said()}",
            self.timeout_s,
            least=self.poll_s,
        )

    def pod(self, name: str, condition: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Return the pod once ``condition`` holds for it."""

        def look() -> dict[str, Any] | None:
            found = self.get(name)
            return found if found is not None and condition(found) else None

        value: dict[str, Any] = self.until(look, lambda: f"pod {name}: {what}: {json.dumps(self.get(name))}")
        return value

    def running(self, name: str) -> dict[str, Any]:
        """Return the pod once it is Running and all its containers are ready."""
        return self.pod(name, is_ready, "ready")

    def phase(self, name: str, phase: str) -> dict[str, Any]:
        """Return the pod once it is in that phase."""
        return self.pod(name, lambda pod: pod["status"].get("phase") == phase, phase)

    def gone(self, name: str) -> None:
        """Return once the pod is gone from the API."""
        self.until(lambda: self.get(name) is None, f"pod {name} gone: {json.dumps(self.get(name))}")

    def delete_all_pods(self) -> None:
        """Delete all pods, and return once the API has none."""
        # As collections: a pod that goes by itself meanwhile is no error.
        for namespace in {item["metadata"]["namespace"] for item in self.pods()}:
            self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods")
        self.until(lambda: not self.pods(), "all pods gone")


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether a pod is Running and ready."""
    status = pod["status"]
    ready = [item for item in status.get("conditions", ()) if item["type"] == "Ready"]
    return status.get("phase") == "Running" and bool(ready) and ready[0]["status"] == "True"
