"""HTTP to the API's unix socket, as bare as clients can be."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import TIMEOUT_S


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was answered."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def value(self) -> Any:
        """The JSON that it has."""
        return json.loads(self.data)

    @property
    def said(self) -> str:
        """A Status' message and the messages of its causes."""
        value = self.value
        causes = value.get("details", {}).get("causes", [])
        return "; ".join([value.get("message", ""), *(item.get("message", "") for item in causes)])


class ApiClient(http.client.HTTPConnection):
    """One connection, which is kept."""

    def __init__(self, path: Path | str, timeout: float = TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def ask(
        self, method: str, path: str, body: Any = None, *, media: str = "application/json", **headers: str
    ) -> Answer:
        """Send a request and return what is answered.

        :param body: bytes and text as they are; all else as JSON.
        :param headers: with underscores for hyphens.
        """
        data = body.encode() if isinstance(body, str) else body
        if data is not None and not isinstance(data, bytes):
            data = json.dumps(data).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if media and data is not None:
            sent["Content-Type"] = media
        self.request(method, path, data, sent)
        with self.getresponse() as response:
            return Answer(status=response.status, headers=dict(response.headers), data=response.read())

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the stream ends.

        :raises OSError: if the connection does.
        """
        self.request("GET", path)
        with self.getresponse() as response:
            while line := response.readline():
                yield json.loads(line)
