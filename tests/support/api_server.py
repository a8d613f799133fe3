"""As much of a Kubernetes API server as `kubectl get pods` needs, to run command lines of the documentation."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ApiServer(ThreadingHTTPServer):
    """Has these pods, in all namespaces; listens on loopback. Use it as a context manager."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        pods = {"name": "pods", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
        self.answers: dict[str, dict[str, Any]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]},
            "/api/v1/pods": {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items},
        }
        super().__init__(("127.0.0.1", 0), _Answering)
        self._thread = threading.Thread(target=self.serve_forever)

    def kubeconfig(self) -> dict[str, Any]:
        """Return how kubectl finds it."""
        cluster = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}],
            "current-context": "test",
        }

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answering(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path.partition("?")[0])
        body = json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
