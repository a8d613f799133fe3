"""Requests that somebody else answers: logs and streams by a pod's kubelet, proxies by a pod, a service or a node.

Owns: who may be asked, with which headers, and how what goes wrong is told. Where a kubelet is comes from its node's
status alone, where a pod is from its own; no redirect is followed. A client that leaves ends the connection to whoever
answers, and nothing is kept of either but what is on its way.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import structs

from podkeep.apiserver.auth.user import share_of
from podkeep.apiserver.discovery.catalog import Entry
from podkeep.apiserver.endpoints import kubelet_requests as asked
from podkeep.apiserver.endpoints.handler import Answer
from podkeep.apiserver.endpoints.kubelets import Kubelets, client_context
from podkeep.apiserver.kinds.cells import at
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError, bad_request, not_found, unavailable
from podkeep.apiserver.registry.lister import StoreLister
from podkeep.apiserver.requests.call import Call
from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import Unavailable
from podkeep.base.frozen import FrozenStruct
from podkeep.http.backend import Address, Backend
from podkeep.http.messages import Headers, Request, Response, Upgrade

IDLE_TIMEOUT_S = 4 * 3600.0
"""Of a stream (kubelet: ``streamingConnectionIdleTimeout``)."""
HEAD_TIMEOUT_S = 60.0
"""In which a kubelet begins to answer, unless it is asked to follow a log: that it answers with the first line."""
_MAX_REFUSAL = 50_000
"""Bytes of a refusal's body that are read."""
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    " upgrade".split()
)
_OURS = frozenset({"authorization", "content-length", "expect", "host", "x-forwarded-for"})
"""Headers of requests that are for this server, or that it writes itself."""
_CORS = "access-control-"
_TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
_SCHEMES = ("", "http", "https")
_PORT = re.compile(r"[0-9]{1,5}")


class Relay(FrozenStruct):
    """Answers requests for ``log``, ``exec``, ``attach``, ``portforward`` and ``proxy``."""

    lister: StoreLister
    kubelets: Kubelets

    def answers(self) -> dict[str, Answer]:
        """Return what answers, by name in discovery."""
        return {
            "pods/log": self.log,
            "pods/exec": self.exec,
            "pods/attach": self.attach,
            "pods/portforward": self.port_forward,
            "pods/proxy": self.pod,
            "services/proxy": self.service,
            "nodes/proxy": self.node,
        }

    # kubelets

    async def log(self, call: Call, entry: Entry) -> Response:
        query, name = call.query, call.info.name
        wanted = asked.log_query(query, name)
        pod = await self._pod(call, name)
        container = asked.container_of(pod, query.text("container"))
        if not at(pod, "spec", "nodeName"):
            return call.respond(b"", status=204, content_type="text/plain")
        verified = not query.boolean("insecureSkipTLSVerifyBackend")
        node = asked.node_of(pod)
        kubelet = self.kubelets.find(node, verified=verified)
        target = _target("containerLogs", call.info.namespace, name, container) + (f"?{wanted}" if wanted else "")
        try:
            with _looking_up(node):
                backend = await _connected(call.request, kubelet)
            # A kubelet answers a followed log with its first line, which may take any time.
            timeout = None if query.boolean("follow") else HEAD_TIMEOUT_S
            await _ask(call.request, backend, "GET", target, [("Host", str(kubelet))], timeout=timeout)
        except Unavailable as error:
            raise StatusError(500, "", f'Get "https://{kubelet}{target}": {error.message}') from error
        if 300 <= backend.status < 400:
            raise StatusError(500, "", f'Get "https://{kubelet}{target}": redirects forbidden')
        if not 200 <= backend.status <= 206:
            body = await call.request.while_there(backend.start_of_body(_MAX_REFUSAL))
            raise asked.log_refusal(backend.status, body, name)
        return call.respond(backend.body(), content_type="text/plain")

    async def exec(self, call: Call, entry: Entry) -> Response | Upgrade:
        return await self._container_stream(call, "exec", asked.stream_query(call.query, command=True))

    async def attach(self, call: Call, entry: Entry) -> Response | Upgrade:
        return await self._container_stream(call, "attach", asked.stream_query(call.query, command=False))

    async def _container_stream(self, call: Call, kind: str, query: str) -> Response | Upgrade:
        _require_create(call)
        pod = await self._pod(call, call.info.name)
        container = asked.container_of(pod, call.query.text("container"))
        place = _target(kind, call.info.namespace, call.info.name, container)
        return await self._stream(call, pod, place + (f"?{query}" if query else ""))

    async def port_forward(self, call: Call, entry: Entry) -> Response | Upgrade:
        _require_create(call)
        pod = await self._pod(call, call.info.name)
        query = asked.ports_query(call.query)
        target = _target("portForward", call.info.namespace, call.info.name) + (f"?{query}" if query else "")
        return await self._stream(call, pod, target)

    async def _stream(self, call: Call, pod: Mapping[str, Any], target: str) -> Response | Upgrade:
        node = asked.node_of(pod)
        kubelet = self.kubelets.find(node)
        if not call.request.upgrade:
            raise bad_request("Upgrade request required")
        with _looking_up(node):
            return await _upgraded(call, kubelet, target, timeout=HEAD_TIMEOUT_S)

    # proxies

    async def node(self, call: Call, entry: Entry) -> Response | Upgrade:
        """Pass a request on to a node: its kubelet, or another port.

        Who may only read gets no connection of another protocol: the kubelet sees this server's certificate, and runs
        commands for WebSockets, which ask with GET.
        """
        if call.request.upgrade:
            _require_create(call)
        scheme, name, port = _split(call.info.name, "node")
        kubelet = self.kubelets.find(name)
        with _looking_up(name):
            host = await _resolved(kubelet.host)
        if port in ("", str(kubelet.port)):
            return await _proxied(call, structs.replace(kubelet, host=host, name=kubelet.host))
        return await _proxied(call, _address(scheme, host, port, call.info.name, "node"))

    async def pod(self, call: Call, entry: Entry) -> Response | Upgrade:
        scheme, name, port = _split(call.info.name, "pod")
        pod = await self._pod(call, name)
        ports = (item for container in pod["spec"].get("containers", ()) for item in container.get("ports", ()))
        port = port or str(next((item["containerPort"] for item in ports), ""))
        address = _first(at(pod, "status", "podIPs", default=()), "ip")
        if not _is_allowed(address):
            raise bad_request("address not allowed")
        return await _proxied(call, _address(scheme, address, port, call.info.name, "pod"))

    async def service(self, call: Call, entry: Entry) -> Response | Upgrade:
        """Pass a request on to a pod of a service."""
        scheme, name, port = _split(call.info.name, "service")
        if _PORT.fullmatch(port):
            found = await self._object(call, "services", name)
            ports = {item["port"]: item.get("name", "") for item in at(found, "spec", "ports", default=())}
            if int(port) not in ports:
                raise unavailable(f'no service port {int(port)} found for service "{name}"')
            port = ports[int(port)]
        subsets = (await self._object(call, "endpoints", name)).get("subsets", ())
        if not subsets:
            raise unavailable(f'no endpoints available for service "{name}"')
        places = [
            (item["ip"], offered["port"])
            for subset in subsets
            for offered in subset.get("ports", ())
            if offered.get("name", "") == port
            for item in subset.get("addresses", ())
            if self._is_of_pod(item, call.info.namespace)
        ]
        if not places:
            raise unavailable(f'no endpoints available for service "{call.info.name}"')
        address, number = random.choice(places)
        return await _proxied(call, _address(scheme, address, str(number), call.info.name, "service"))

    def _is_of_pod(self, address: Mapping[str, Any], namespace: str) -> bool:
        """Tell whether an endpoint is the address of the pod of the namespace that it names.

        Anybody may write others (kube-apiserver: ``isValidAddress``).
        """
        reference = address.get("targetRef", {})
        if reference.get("kind") != "Pod" or reference.get("namespace") != namespace:
            return False
        pod = self.lister.get("pods", namespace, reference.get("name", ""))
        addresses = [item.get("ip") for item in at(pod or {}, "status", "podIPs", default=())]
        return address["ip"] in addresses and _is_allowed(address["ip"])

    async def _pod(self, call: Call, name: str) -> Mapping[str, Any]:
        return await self._object(call, "pods", name)

    async def _object(self, call: Call, plural: str, name: str) -> Object:
        key = plural, call.info.namespace, name
        await call.turn(self.lister.size(*key))
        found = self.lister.get(*key)
        if found is None:
            raise not_found(plural, "", name)
        return dict(found)


def _target(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _first(items: Any, name: str) -> str:
    return str(items[0].get(name, "")) if items else ""


def _split(text: str, kind: str) -> tuple[str, str, str]:
    """Return scheme, name and port of ``name``, ``name:port`` or ``scheme:name:port``.

    :raises StatusError: 400, if it is not one of these.
    """
    parts = text.split(":")
    scheme, name, port = parts if len(parts) == 3 else ("", *parts, "")[:3] if len(parts) < 3 else ("?", "", "")
    if not name or scheme not in _SCHEMES:
        raise bad_request(f'invalid {kind} request "{text[:300]}"')
    return scheme, name, port


def _address(scheme: str, host: str, port: str, text: str, kind: str) -> Address:
    number = int(port) if _PORT.fullmatch(port) else (443 if scheme == "https" else 80) if not port else 0
    if not 0 < number < 1 << 16:
        raise bad_request(f'invalid {kind} request "{text[:300]}"')
    return Address(host=host, port=number, tls=client_context() if scheme == "https" else None)


def _is_allowed(address: str) -> bool:
    """Tell whether somebody may be sent to an IP address: not to one of this machine's own (Go: IsGlobalUnicast)."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    # ::ffff:127.0.0.1 leads to the loopback address, too.
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    return not (
        mapped.is_unspecified
        or mapped.is_loopback
        or mapped.is_multicast
        or mapped.is_link_local
        or str(mapped) == "255.255.255.255"
    )


def _looking_up(node: str) -> AbstractContextManager[None]:
    """Have the lookup of a node's host take threads of no other node: a name may take a resolver long, cannot be given
    up, and is what a node says of itself.
    """
    return working_for(("the host of a node", node))


async def _resolved(host: str) -> str:
    """Return the address of a node's host, the same for the check and for the connection.

    :raises StatusError: 400, if there is none, or if it is a loopback or link-local address.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise bad_request(f"lookup {host}: no such host") from error
    addresses = [str(item[4][0]) for item in found]
    if not addresses or not all(map(_is_allowed, addresses)):
        raise bad_request("address not allowed")
    return addresses[0]


async def _connected(request: Request, address: Address) -> Backend:
    backend = await request.while_there(Backend.connect(address))
    request.at_end.callback(backend.abort)
    return backend


async def _ask(
    request: Request, backend: Backend, method: str, target: str, headers: Headers, *, timeout: float | None
) -> None:
    body = None if request.body.is_empty or request.upgrade else request.body
    try:
        async with asyncio.timeout(timeout):
            await request.while_there(backend.ask(method, target, headers, body))
    except TimeoutError as error:
        raise Unavailable("net/http: timeout awaiting response headers") from error


def _request_headers(request: Request, host: str) -> list[tuple[str, str]]:
    """Return the headers of a request that is passed on: without credentials, and what is for one connection only."""
    dropped = _HOP_BY_HOP | _OURS | {token.lower() for token in request.tokens("connection")}
    found = [("Host", host)]
    for name, values in request.headers.items():
        if name in dropped or name.startswith("impersonate-"):
            continue
        if name == "sec-websocket-protocol":
            # Clients that cannot set headers, as browsers, have their bearer token in here: it is for this server
            # alone.
            values = [", ".join(item for item in request.tokens(name) if not item.startswith(_TOKEN_PROTOCOL))]
        found += [(name, value) for value in values]
    passed = [*request.headers.get("x-forwarded-for", ()), *filter(None, [request.peer.address])]
    return found + ([("X-Forwarded-For", ", ".join(passed))] if passed else [])


def _answer_headers(headers: Headers) -> list[tuple[str, str]]:
    tokens = {token.strip().lower() for name, text in headers if name == "connection" for token in text.split(",")}
    dropped = _HOP_BY_HOP | tokens | {"content-length", "date"}
    return [(name, value) for name, value in headers if name not in dropped and not name.startswith(_CORS)]


def _require_create(call: Call) -> None:
    """Refuse who may not create a stream: WebSockets ask with GET, and reading a pod is not running commands in it.

    :raises StatusError: 403.
    """
    call.require(structs.replace(call.info, verb="create"))


async def _upgraded(call: Call, address: Address, target: str, *, timeout: float | None) -> Response | Upgrade:
    """Change the protocol of both connections; a refusal is passed on."""
    request = call.request
    headers = _request_headers(request, str(address))
    headers += [("Connection", "Upgrade"), ("Upgrade", request.upgrade)]
    if request.method == "POST":
        headers.append(("Content-Length", "0"))
    try:
        backend = await _connected(request, address)
        await _ask(request, backend, request.method, target, headers, timeout=timeout)
    except Unavailable as error:
        raise StatusError(500, "", f"error dialing backend: {error.message}") from error
    if backend.status == 101:
        found = [(name, value) for name, value in backend.headers if name not in ("connection", "upgrade")]
        changed = next((value for name, value in backend.headers if name == "upgrade"), request.upgrade)
        return Upgrade(
            headers=[("Connection", "Upgrade"), ("Upgrade", changed), *found],
            session=backend.splice,
            idle_timeout=IDLE_TIMEOUT_S,
            owner=share_of(call.user),
        )
    if backend.status < 400:
        raise StatusError(500, "", f"invalid upgrade response: status code {backend.status}")
    return Response(status=backend.status, headers=_answer_headers(backend.headers), body=backend.body())


async def _proxied(call: Call, address: Address) -> Response | Upgrade:
    """Pass a request on, and its answer back (apimachinery: ``UpgradeAwareHandler``)."""
    request, info = call.request, call.info
    path, mark, query = request.target.partition("?")
    if not info.rest and not path.endswith("/") and request.method in ("GET", "HEAD"):
        # Links of what is there are relative to it.
        return Response(status=301, headers=[("Location", f"{path}/{mark}{query}"), ("Audit-Id", call.audit_id)])
    inner = _target(*info.rest) + ("/" if info.rest and info.path.endswith("/") else "")
    if any(part in (".", "..") for part in info.rest):
        raise bad_request("the path has . or .. in it")
    target = f"{inner}{mark}{query}"
    if request.upgrade:
        return await _upgraded(call, address, target, timeout=None)
    headers = _request_headers(request, str(address))
    length = request.headers.get("content-length")
    if not request.body.is_empty:
        headers += [("Content-Length", length[0])] if length else [("Transfer-Encoding", "chunked")]
    elif request.method in ("POST", "PUT", "PATCH"):
        headers.append(("Content-Length", "0"))
    try:
        backend = await _connected(request, address)
        await _ask(request, backend, request.method, target, headers, timeout=None)
    except Unavailable as error:
        raise unavailable(f"error trying to reach service: {error.message}") from error
    outer = path.removesuffix("/") if not info.rest else path[: -len(inner)] if path.endswith(inner) else ""
    passed = [
        (name, _moved(value, outer, address) if name == "location" else value)
        for name, value in _answer_headers(backend.headers)
    ]
    return Response(status=backend.status, headers=passed, body=backend.body())


def _moved(location: str, outer: str, address: Address) -> str:
    """Return where a client finds what a redirect is to: behind the proxy, if it is at the same server."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if parts.netloc not in ("", str(address)) or not parts.path.startswith("/"):
        return location
    return outer + parts._replace(scheme="", netloc="").geturl()
