"""A registry in this process that takes pushes, lists referrers (OCI distribution-spec 1.1), and fails when told to.

Debian's docker-registry knows nothing of referrers and never breaks a connection; for those tests there is this one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"
_PATH = re.compile(r"/v2/(.+)/(blobs/uploads|blobs|manifests|referrers)/([^/]*)$")


def digest_of(data: bytes) -> str:
    """Return the sha256 digest in OCI form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class OciRegistry:
    """Serves ``host``, ``127.0.0.1:port``, over plain HTTP until it is closed.

    :param referrers: whether it has the API for them.
    :param page: entries of one page of their list; 0: all.
    :param filters: whether it filters the list by artifact type itself.
    :param login: ``user:password``; tokens for the actions that were asked for are then needed.

    ``breaks`` is taken from its end: bytes of an upload that are read before the connection is closed. ``resumable``:
    whether it says how much of an upload arrived; ``claims``, taken from its end, are what it says instead of that.
    ``requests``: method and path of all there were.
    """

    def __init__(self, *, referrers: bool = True, page: int = 0, filters: bool = True, login: str = "") -> None:
        self.referrers, self.page, self.filters, self.login = referrers, page, filters, login
        self.breaks: list[int] = []
        self.claims: list[int] = []
        self.resumable = True
        self.location = "{path}"
        """How it says where an upload goes; ``{path}``, ``{id}`` and ``{host}`` are filled in."""
        self.storage: OciRegistry | None = None
        """Another one that takes the uploads, and knows the same blobs."""
        self.authorizations: list[str] = []
        """What each request was authorized with."""
        self.circular = False
        """Whether the last page of referrers says that the first one follows."""
        self.stored_digest = ""
        """What it claims to have stored, whatever it was."""
        self.rivals: list[Mapping[str, Any]] = []
        """Documents with which somebody else, each time, at once replaces what is stored under a tag for referrers."""
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        """Media type and document by repository, and tag or digest."""
        self.uploads: dict[str, bytearray] = {}
        self.received: list[int] = []
        """Bytes of each upload request."""
        self.requests: list[str] = []
        self.scopes: list[str] = []
        self._tokens: dict[str, str] = {}
        owner = self

        class Handler(_Handler):
            registry = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def put(self, repository: str, target: str, document: Mapping[str, Any]) -> str:
        """Store a manifest under a tag (or nothing but its digest) and return its digest."""
        data = json.dumps(document).encode()
        stored = str(document.get("mediaType", "")), data
        self.manifests[repository, digest_of(data)] = stored
        if target:
            self.manifests[repository, target] = stored
        return digest_of(data)

    def listed(self, repository: str, subject: str, artifact_type: str = "") -> list[dict[str, Any]]:
        """Return what refers to a subject, as entries of an index."""
        entries = []
        for (name, target), (media_type, data) in self.manifests.items():
            document = json.loads(data)
            if name != repository or ":" not in target or document.get("subject", {}).get("digest") != subject:
                continue
            entry = {"mediaType": media_type, "digest": target, "size": len(data)}
            entry["artifactType"] = document.get("artifactType") or document["config"]["mediaType"]
            if "annotations" in document:
                entry["annotations"] = document["annotations"]
            if not artifact_type or entry["artifactType"] == artifact_type:
                entries.append(entry)
        return entries

    def token(self, authorization: str, scope: str) -> str:
        """Return a token for a scope, or nothing if the credentials are wrong."""
        wanted = base64.b64encode(self.login.encode()).decode()
        if authorization != f"Basic {wanted}":
            return ""
        made = uuid.uuid4().hex
        self._tokens[made] = scope
        self.scopes.append(scope)
        return made

    def allows(self, authorization: str, repository: str, action: str) -> bool:
        """Return whether the token in a header is good for an action."""
        if not self.login:
            return True
        scope = self._tokens.get(authorization.removeprefix("Bearer "), "")
        _, _, rest = scope.partition(f"repository:{repository}:")
        return action in rest.split(",")

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> OciRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # what is written piece by piece need not wait for the reader's acknowledgement
    registry: OciRegistry

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def _serve(self) -> None:
        registry = self.registry
        registry.requests.append(f"{self.command} {self.path}")
        registry.authorizations.append(self.headers.get("Authorization", ""))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path == "/token":
            token = registry.token(self.headers.get("Authorization", ""), query.get("scope", ""))
            self._send(200 if token else 401, json.dumps({"token": token}).encode() if token else b"{}")
            return
        match = _PATH.match(url.path)
        if match is None:
            self._send(404)
            return
        repository, kind, target = match.groups()
        action = "pull" if self.command in ("GET", "HEAD") and kind != "blobs/uploads" else "push"
        if not registry.allows(self.headers.get("Authorization", ""), repository, action):
            self._body()
            scope = f"repository:{repository}:{'pull' if action == 'pull' else 'pull,push'}"
            challenge = f'Bearer realm="http://{registry.host}/token",service="test",scope="{scope}"'
            self._send(401, headers={"WWW-Authenticate": challenge})
            return
        {"blobs": self._blob, "manifests": self._manifest, "blobs/uploads": self._upload, "referrers": self._referrers}[
            kind
        ](repository, target, query)

    def _blob(self, _repository: str, target: str, _query: Mapping[str, str]) -> None:
        data = self.registry.blobs.get(target)
        self._send(404) if data is None else self._send(200, data)

    def _manifest(self, repository: str, target: str, _query: Mapping[str, str]) -> None:
        registry = self.registry
        if self.command == "PUT":
            data = self._body()
            document = json.loads(data)
            stored = self.headers["Content-Type"], data
            registry.manifests[repository, digest_of(data)] = stored
            registry.manifests[repository, target] = stored
            if target.startswith("sha256-") and registry.rivals:
                registry.put(repository, target, registry.rivals.pop())
            headers = {"Docker-Content-Digest": registry.stored_digest or digest_of(data)}
            if registry.referrers and "subject" in document:
                headers["OCI-Subject"] = document["subject"]["digest"]
            self._send(201, headers=headers)
            return
        found = registry.manifests.get((repository, target))
        if found is None:
            self._send(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"none"}]}')
        else:
            self._send(200, found[1], {"Content-Type": found[0]})

    def _upload(self, repository: str, target: str, query: Mapping[str, str]) -> None:
        registry = self.registry
        where = f"/v2/{repository}/blobs/uploads/"
        if self.command == "POST":
            self._body()
            made = uuid.uuid4().hex
            (registry.storage or registry).uploads[made] = bytearray()
            host = (registry.storage or registry).host
            self._send(202, headers={"Location": registry.location.format(path=where + made, id=made, host=host)})
            return
        held = registry.uploads.get(target)
        if held is None or (self.command == "GET" and not registry.resumable):
            self._body()
            self._send(404)
            return
        if self.command == "GET":
            last = registry.claims.pop() if registry.claims else max(0, len(held) - 1)
            self._send(204, headers={"Location": where + target, "Range": f"0-{last}"})
            return
        length = int(self.headers["Content-Length"])
        most = min(length, registry.breaks.pop()) if registry.breaks else length
        data = self.rfile.read(most)
        held += data
        registry.received.append(len(data))
        if most < length:
            self.close_connection = True
            if self.command == "PUT":  # as docker-registry does
                del registry.uploads[target]
            return
        if self.command == "PATCH":
            self._send(202, headers={"Location": where + target, "Range": f"0-{len(held) - 1}"})
            return
        del registry.uploads[target]
        if digest_of(bytes(held)) != query["digest"]:
            self._send(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"it differs"}]}')
            return
        registry.blobs[query["digest"]] = bytes(held)
        self._send(201, headers={"Docker-Content-Digest": registry.stored_digest or query["digest"]})

    def _referrers(self, repository: str, target: str, query: Mapping[str, str]) -> None:
        registry = self.registry
        if not registry.referrers:
            self._send(404)
            return
        wanted = query.get("artifactType", "") if registry.filters else ""
        entries = registry.listed(repository, target, wanted)
        start = int(query.get("from", "0"))
        headers = {"Content-Type": INDEX}
        if wanted:
            headers["OCI-Filters-Applied"] = "artifactType"
        if registry.page:
            if start + registry.page < len(entries) or registry.circular:
                rest = f"&artifactType={query['artifactType']}".replace("+", "%2B") if "artifactType" in query else ""
                following = (start + registry.page) % len(entries)
                link = f"http://inside.example/v2/{repository}/referrers/{target}?from={following}{rest}"
                headers["Link"] = f'<{link}>; rel="next"'
            entries = entries[start : start + registry.page]
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        self._send(200, json.dumps(document).encode(), headers)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
