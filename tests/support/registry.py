"""Registries for tests: Debian's docker-registry on a free loopback port, and a hostile one made to lie."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from support.images import Layout

_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {storage}}}
  delete: {{enabled: true}}
http:
  addr: 127.0.0.1:{port}
{extra}"""


def free_port() -> int:
    """Return a loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Registry:
    """A running docker-registry; ``host`` is ``127.0.0.1:port``. Close it, or use it as a context manager.

    :param htpasswd: ``user:bcrypt`` lines; the registry then asks for basic credentials.
    :param tls: (certificate, key) files; the registry then speaks HTTPS.
    :param port: where to listen, as a registry does that comes back; 0 for any free one.
    """

    def __init__(
        self, directory: Path, *, htpasswd: str = "", tls: tuple[Path, Path] | None = None, port: int = 0
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.host = f"127.0.0.1:{self.port}"
        self._scheme = "https" if tls else "http"
        self._directory = directory
        extra = f"  tls: {{certificate: {tls[0]}, key: {tls[1]}}}\n" if tls else ""
        if htpasswd:
            (directory / "htpasswd").write_text(htpasswd)
            extra += f"auth:\n  htpasswd: {{realm: test, path: {directory / 'htpasswd'}}}\n"
        config = directory / "config.yml"
        config.write_text(_CONFIG.format(storage=directory / "storage", port=self.port, extra=extra))
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.request("GET", "/v2/", accept=(200, 401))
                return
            except (OSError, urllib.error.URLError) as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self._directory / "log").read_text(errors="replace")
                    self.close()
                    raise AssertionError(f"docker-registry did not start: {error}: {said}") from error
            time.sleep(0.02)

    def request(
        self,
        method: str,
        path: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200, 201, 202),
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request, without checking certificates; return status, headers and body."""
        url = path if "://" in path else f"{self._scheme}://{self.host}{path}"
        request = urllib.request.Request(url, data=data, method=method, headers=dict(headers or {}))
        context = ssl._create_unverified_context() if self._scheme == "https" else None
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as response:
                answer = response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                answer = error.code, error.headers, error.read()
        if answer[0] not in accept:
            raise AssertionError(f"{method} {url}: {answer[0]} {answer[2]!r}")
        return answer

    def push(self, layout: Layout, name: str, *, headers: Mapping[str, str] | None = None) -> str:
        """Push what the layout's index leads to as ``repository:tag``; return ``host/repository:tag``."""
        repository, _, tag = name.partition(":")
        self._push_document(layout, layout.top(), repository, tag or "latest", headers or {})
        return f"{self.host}/{repository}:{tag or 'latest'}"

    def _push_document(
        self, layout: Layout, top: Mapping[str, Any], repository: str, target: str, headers: Mapping[str, str]
    ) -> None:
        data = layout.blob(top["digest"])
        document = json.loads(data)
        for entry in document.get("manifests", ()):
            self._push_document(layout, entry, repository, entry["digest"], headers)
        for entry in [*document.get("layers", ()), *([document["config"]] if "config" in document else [])]:
            self._push_blob(layout, entry["digest"], repository, headers)
        content = {"Content-Type": top["mediaType"]}
        self.request("PUT", f"/v2/{repository}/manifests/{target}", data=data, headers={**headers, **content})

    def _push_blob(self, layout: Layout, digest: str, repository: str, headers: Mapping[str, str]) -> None:
        path = f"/v2/{repository}/blobs/{digest}"
        if self.request("HEAD", path, headers=headers, accept=(200, 404))[0] == 200:
            return
        _, answer, _ = self.request("POST", f"/v2/{repository}/blobs/uploads/", data=b"", headers=headers)
        location = answer["Location"]
        where = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        content = {"Content-Type": "application/octet-stream"}
        self.request("PUT", where, data=layout.blob(digest), headers={**headers, **content})

    def close(self) -> None:
        """Stop the registry and wait for its end."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(kw_only=True)
class Answer:
    """How the hostile registry answers one request.

    ``declared``: Content-Length to claim instead of the true one, -1 for none. ``cut``: bytes after which the
    connection is closed. ``gate``: waited for in the middle of the body, so that a test can hold a transfer there.
    ``raw``: sent instead of everything, before the connection is closed. ``drip``: seconds between two bytes of the
    body. ``part``: whether a range that is asked for is served, as it should be.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    declared: int | None = None
    cut: int | None = None
    gate: threading.Event | None = None
    raw: bytes | None = None
    drip: float = 0.0
    part: bool = True


Decide = Callable[[str, Mapping[str, str]], "Answer | None"]


class HostileRegistry:
    """Serves a layout over plain HTTP as a registry would, save where ``decide(path, headers)`` returns another answer.

    ``requests`` lists (path, headers) in order, ``X-Method`` and ``X-Body`` among the headers; ``paused`` is set when
    an answer with a gate waits.

    :param tls: (certificate, key, authority of clients or nothing) files; it then speaks HTTPS.
    """

    def __init__(
        self, layout: Layout | None, decide: Decide | None = None, *, tls: tuple[Path, Path, Path | None] | None = None
    ) -> None:
        self._closing = threading.Event()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.paused = threading.Event()
        self._layout = layout
        self._decide = decide or (lambda _path, _headers: None)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body need not wait for the reader's acknowledgement

            def handle(self) -> None:
                with suppress(ConnectionError):  # as in _answer
                    super().handle()

            def do_GET(self) -> None:
                owner._answer(self)

            def do_HEAD(self) -> None:
                owner._answer(self)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self.headers["X-Body"] = self.rfile.read(length).decode()
                owner._answer(self)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls[0], tls[1])
            if tls[2]:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(tls[2])
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def _honest(self, path: str) -> Answer:
        layout = self._layout
        if layout is None:
            return Answer(status=404)
        _, _, rest = path.partition("?")[0].partition("/v2/")
        kind, _, target = rest.rpartition("/")
        wanted = layout.manifest_digest if kind.endswith("/manifests") and ":" not in target else target
        try:
            data = layout.blob(wanted)
        except OSError:
            return Answer(status=404)
        headers = {}
        if kind.endswith("/manifests"):
            headers["Content-Type"] = json.loads(data).get("mediaType", "application/json")
            headers["Docker-Content-Digest"] = wanted
        return Answer(body=data, headers=headers)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = dict(handler.headers.items()) | {"X-Method": handler.command}
        self.requests.append((handler.path, headers))
        answer = self._decide(handler.path, headers) or self._honest(handler.path)
        try:
            if answer.raw is not None:
                handler.wfile.write(answer.raw)
                handler.close_connection = True
            else:
                self._send(handler, answer, headers)
        except OSError:
            handler.close_connection = True  # the client is gone, as some tests want

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer, headers: Mapping[str, str]) -> None:
        body, status = answer.body, answer.status
        sent = dict(answer.headers)
        start = int(headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if start and answer.part and status == 200:
            status, sent["Content-Range"] = 206, f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        handler.send_response(status)
        for name, value in sent.items():
            handler.send_header(name, value)
        if answer.declared != -1:
            handler.send_header("Content-Length", str(len(body) if answer.declared is None else answer.declared))
        else:
            handler.close_connection = True
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if answer.drip:
            for index in range(len(body)):
                handler.wfile.write(body[index : index + 1])
                if self._closing.wait(answer.drip):
                    return
        cut = len(body) // 2 if answer.gate and answer.cut is None else answer.cut
        handler.wfile.write(body[:cut])
        handler.wfile.flush()
        if answer.gate:
            self.paused.set()
            answer.gate.wait(60)
            handler.wfile.write(body[cut:])
        elif cut is not None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop serving."""
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> HostileRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def held(layout: Layout, gate: threading.Event) -> HostileRegistry:
    """A registry that stops in the middle of the base layer until ``gate`` is set."""
    layer = layout.layer_digests[0]

    def decide(path: str, _headers: object) -> Answer | None:
        return Answer(body=layout.blob(layer), gate=gate) if path.endswith(layer) else None

    return HostileRegistry(layout, decide)
