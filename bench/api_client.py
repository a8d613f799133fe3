"""A client of an API server as a program: load over TLS with keep-alive, and what it saw as JSON on standard output.

``python -m bench.api_client PORT PKI TASK NAME=NUMBER…``; PKI has ``ca.crt``, ``admin.crt`` and ``admin.key``. It is a
process of its own, so that its CPU time is never the server's.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

NAMESPACE = "bench"
NODE = "elsewhere"
"""Pods of a node that is not there would be garbage."""
BASE = f"/api/v1/namespaces/{NAMESPACE}"
_JSON = {"Content-Type": "application/json", "Accept": "application/json"}
_KIND = "v=v2;as=APIGroupDiscoveryList"
DISCOVERY = (
    ("/api", f"application/json;g=apidiscovery.k8s.io;{_KIND},application/json"),
    ("/apis", f"application/json;g=apidiscovery.k8s.io;{_KIND},application/json"),
    ("/openapi/v3", "application/json"),
    ("/openapi/v3/api/v1", "application/json"),
    ("/openapi/v3/apis/apps/v1", "application/json"),
)
"""What kubectl asks first, with how: what there is, and the schemas of the groups that most objects are in."""
_SENT = re.compile(rb'"sent":"(\d+)"')
_LIST_EVERY_S = 2.0
_LIST_NICE = 10
_QUIET_S = 10.0
"""No event for so long: those that are missing are lost."""
_WATCH_TIMEOUT_S = 600
_RECORD_BYTES = 1 << 14
"""That a record of TLS has at most (RFC 8446, section 5.1): nothing of it is left after it was read."""


class Failed(Exception):
    """The server answered a request otherwise than it should."""


class Client:
    """Connections to one server, as its administrator."""

    def __init__(self, port: int, pki: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def connect(self) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=300)
        connection.connect()
        return connection

    def each(self, count: int, connections: int, make: Callable[[int], tuple[str, str, bytes | None]]) -> list[float]:
        """Make ``count`` requests, each connection one after the other: how long each took, in milliseconds."""
        numbers, lock = iter(range(count)), threading.Lock()

        def work(_: int) -> list[float]:
            times, connection = [], self.connect()
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    connection.close()
                    return times
                request = make(number)
                start = time.perf_counter()
                call(connection, *request)
                times.append((time.perf_counter() - start) * 1e3)

        with ThreadPoolExecutor(connections) as executor:
            return [one for times in executor.map(work, range(connections)) for one in times]


def call(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    accept: dict[str, str] | None = None,
    also: int = 200,
) -> bytes:
    """One request on a connection that stays: the body of the answer.

    :param also: one more status that is good.
    :raises Failed: if the answer is an error.
    """
    connection.request(method, path, body, accept or _JSON)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status not in (200, 201, also):
        raise Failed(f"{method} {path}: {answer.status} {data[:300].decode(errors='replace')}")
    return data


def config_map(name: str, sent: int = 0) -> bytes:
    """A ConfigMap of half a kilobyte.

    :param sent: nanoseconds of the monotonic clock, which all processes of a machine share.
    """
    return _encoded("ConfigMap", name, data={"sent": str(sent), "value": "v" * 400})


def pod(name: str) -> bytes:
    """A pod with two containers, on the node that :func:`fill` makes."""
    containers = [
        {
            "name": name,
            "image": "registry.k8s.io/pause:3.10",
            "env": [{"name": "PLACE", "value": "here"}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        }
        for name in ("main", "side")
    ]
    spec = {"nodeName": NODE, "automountServiceAccountToken": False, "containers": containers}
    return _encoded("Pod", name, spec=spec)


def _encoded(kind: str, name: str, **fields: object) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}).encode()


def fill(client: Client, *, pods: int, connections: int) -> object:
    """A namespace, its service account (kube-apiserver itself makes none), a node, a ConfigMap and so many pods."""
    connection = client.connect()
    call(connection, "POST", "/api/v1/nodes", _encoded("Node", NODE))
    call(connection, "POST", "/api/v1/namespaces", _encoded("Namespace", NAMESPACE))
    call(connection, "POST", f"{BASE}/serviceaccounts", _encoded("ServiceAccount", "default"), also=409)
    call(connection, "POST", f"{BASE}/configmaps", config_map("one"))
    return len(client.each(pods, connections, lambda n: ("POST", f"{BASE}/pods", pod(f"pod-{n}"))))


def reads(client: Client, *, count: int, connections: int) -> object:
    """One ConfigMap, read over and over."""
    return _timed(lambda: client.each(count, connections, lambda _: ("GET", f"{BASE}/configmaps/one", None)))


def writes(client: Client, *, count: int, connections: int, run: int) -> object:
    """A new ConfigMap each time."""

    def make(number: int) -> tuple[str, str, bytes]:
        return "POST", f"{BASE}/configmaps", config_map(f"run-{run}-{number}")

    return _timed(lambda: client.each(count, connections, make))


def _timed(make: Callable[[], list[float]]) -> object:
    start = time.perf_counter()
    times = make()
    return {"times": times, "per_s": len(times) / (time.perf_counter() - start)}


def lists(client: Client, *, count: int, pods: int) -> object:
    """Every pod in one answer.

    :raises Failed: if they are not ``pods``.
    """
    connection = client.connect()
    times, data = [], b""
    for _ in range(count):
        start = time.perf_counter()
        data = call(connection, "GET", f"{BASE}/pods")
        times.append((time.perf_counter() - start) * 1e3)
    if (found := len(json.loads(data)["items"])) != pods:
        raise Failed(f"{found} of {pods} pods are there")
    return {"times": times, "bytes": len(data)}


def discover(client: Client) -> object:
    """What a kubectl asks that has nothing in its cache; bytes as they come, compressed where the server does."""
    connection = client.connect()
    start = time.perf_counter()
    size = 0
    for path, kind in DISCOVERY:
        size += len(call(connection, "GET", path, accept={"Accept": kind, "Accept-Encoding": "gzip"}))
    return {"ms": (time.perf_counter() - start) * 1e3, "bytes": size}


def paced(client: Client, *, rate: int, seconds: int, run: int) -> object:
    """New ConfigMaps at a rate; tells how late the last one was."""
    late, connection = 0.0, client.connect()
    begin = time.monotonic()
    for number in range(rate * seconds):
        late = time.monotonic() - begin - number / rate
        if late < 0:
            time.sleep(-late)
        body = config_map(f"paced-{run}-{number}", time.monotonic_ns())
        call(connection, "POST", f"{BASE}/configmaps", body)
    return {"sent": rate * seconds, "late_s": max(late, 0.0)}


def lists_often(client: Client) -> NoReturn:
    """List all pods every other second, until terminated; what else the clients do comes first on their core."""
    os.nice(_LIST_NICE)
    connection = client.connect()
    while True:
        call(connection, "GET", f"{BASE}/pods")
        time.sleep(_LIST_EVERY_S)


def watch(client: Client, *, watchers: int, events: int) -> object:
    """Watch ConfigMaps so many times until each watch has seen ``events``; says "ready" when all of them watch."""
    connection = client.connect()
    version = json.loads(call(connection, "GET", f"{BASE}/configmaps?limit=1"))["metadata"]["resourceVersion"]
    path = f"{BASE}/configmaps?watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_TIMEOUT_S}"
    times: list[float] = []
    with selectors.DefaultSelector() as selector:
        kept = []
        for _ in range(watchers):
            connection = client.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            connection.sock.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n".encode()
            )
            if not (head := connection.sock.recv(1 << 16)).startswith(b"HTTP/1.1 200"):
                raise Failed(f"GET {path}: {head[:300].decode(errors='replace')}")
            connection.sock.setblocking(False)
            selector.register(connection.sock, selectors.EVENT_READ, Latencies())
            kept.append(connection)
        print("ready", flush=True)
        while len(times) < watchers * events and (ready := selector.select(_QUIET_S)):
            for key, _ in ready:
                assert isinstance(key.fileobj, ssl.SSLSocket)
                # Once each time: to be told that there is no more costs as much as the event, on all clients' core.
                try:
                    data = key.fileobj.recv(_RECORD_BYTES)
                except ssl.SSLWantReadError:  # a part of a record
                    continue
                times += key.data.of(data, time.monotonic_ns())
                if not data:
                    selector.unregister(key.fileobj)  # cut off by the server: what it misses is counted as lost
    return {"times": times, "lost": watchers * events - len(times)}


class Latencies:
    """Finds in a stream, however it is cut, when what arrives was sent."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, data: bytes, now: int) -> list[float]:
        """Return how long ago each was sent that ``data`` completes, in milliseconds; ``now`` is in nanoseconds."""
        text = self._rest + data
        found, end = [], 0
        for match in _SENT.finditer(text):
            found.append((now - int(match[1])) / 1e6)
            end = match.end()
        self._rest = text[max(end, len(text) - 64) :]
        return found


TASKS: dict[str, Callable[..., object]] = {
    task.__name__: task for task in (fill, reads, writes, lists, lists_often, discover, paced, watch)
}


def main(arguments: Sequence[str]) -> int:
    port, pki, task, *numbers = arguments
    values = {name: int(number) for name, _, number in (item.partition("=") for item in numbers)}
    try:
        result = TASKS[task](Client(int(port), Path(pki)), **values)
    except (Failed, OSError, http.client.HTTPException) as error:
        print(f"{task}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
