"""A client of a kubelet's endpoints, which asks the kubelet itself and not the API."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from podkeep.apiserver.server import certificates
from podkeep.apiserver.server.certificates import Files
from support.running_node import RunningNode
from support.waiting import TIMEOUT_S


class Kubelet:
    """A client of a node's kubelet: the API's own certificate, one of ``user``, or a token."""

    def __init__(self, node: RunningNode, directory: Path, *, user: str = "", groups: tuple[str, ...] = ()) -> None:
        files = Files(node.api.root)
        status = node.ask("GET", f"/api/v1/nodes/{node.name}")["status"]
        self.port: int = status["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        self._context = ssl.create_default_context(cafile=str(files.certificate("ca")))
        if user:
            wanted = certificates.client("user", user, groups)
            pair = certificates.issue(files, wanted, int(time.time()))
            (directory / "user.pem").write_text(pair.certificate + pair.key)
            self._context.load_cert_chain(directory / "user.pem")

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPSConnection]:
        """A connection whose server has proved that it is the node's kubelet."""
        with closing(
            http.client.HTTPSConnection("127.0.0.1", self.port, context=self._context, timeout=TIMEOUT_S)
        ) as connection:
            yield connection

    def ask(self, path: str, method: str = "GET", token: str = "") -> tuple[int, str]:
        """Return status and text of an answer."""
        with self.connection() as connection:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def json(self, path: str) -> Any:
        """Return the JSON of an answer."""
        status, text = self.ask(path)
        assert status == 200, text
        return json.loads(text)

    def samples(self, path: str) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return metrics, by name of the sample."""
        status, text = self.ask(path)
        assert status == 200, text
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found
