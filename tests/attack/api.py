"""Requests to the API made by chance: sound ones of every kind, mutated, and broken off.

Making them is pure: the same source of chance makes the same case.
"""

from __future__ import annotations

import base64
import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from attack.calls import generator
from attack.report import Report
from podkeep.apiserver.kinds.served import RESOURCES
from support.api_client import ApiClient
from support.api_daemon import ApiDaemon
from support.api_kinds import MANIFESTS

NAME = "api"
READ_S = 30.0
_ENOUGH_BYTES = 256 << 10
"""A body of more is not changed once more, which may make it 200 times as long."""
_READ_AHEAD_BYTES = 64 << 10
"""Of a body that is not read: where there is more, the kernel resets a connection that ends."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_MEDIA = (
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "",
)
_QUERIES = (
    "",
    "limit=1",
    "continue=x",
    "fieldManager=x&force=true",
    "fieldValidation=Strict",
    "labelSelector=a%20in%20(b",
    "fieldSelector=metadata.name%3Da",
    "resourceVersion=1",
    "resourceVersion=99999999",
    "watch=1&timeoutSeconds=1",
    "dryRun=All",
    "propagationPolicy=Foreground",
    "gracePeriodSeconds=0",
    "%00=%FF",
)
_VALUES = (
    None,
    True,
    0,
    -1,
    1 << 63,
    1e300,
    "",
    "x" * 300,
    "\0",
    "é",
    [],
    {},
    [[]],
    [None],
    {"": None},
    "$patch",
    "0.5x",
)
_KEYS = (
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "",
    "kind",
    "metadata",
    "resourceVersion",
    "finalizers",
)

_NO_ADDRESS = b"no preferred addresses found; known addresses: []"
"""The proxy to a kubelet says so with code 500, as Kubernetes does: the node has told no address."""


@dataclass(frozen=True)
class Case:
    """The bytes of one request, and how many of them are sent."""

    words: str
    data: bytes

    @property
    def may_be_reset(self) -> bool:
        """Whether it is a watch with a body, which nobody reads: who has ended sending has left, as for Go."""
        return b"watch=1" in self.data.partition(b"\r\n")[0] and len(self.data) > _READ_AHEAD_BYTES

    def text(self, why: str) -> str:
        """Return it as a file."""
        return json.dumps({"why": why, "data": base64.b64encode(self.data).decode()}, indent=1) + "\n"


def make(rng: random.Random) -> Case:
    """Return a case."""
    resource = rng.choice(RESOURCES)
    root = f"/apis/{resource.group}" if resource.group else "/api"
    place = "/namespaces/default" if resource.namespaced else ""
    method = rng.choice(_METHODS)
    path = f"{root}/{resource.kind.version}{place}/{resource.plural}"
    if method != "POST" and rng.random() < 0.8:
        path += "/a"
    if rng.random() < 0.15:
        path += "/" + rng.choice([*sorted(resource.subresources), "bogus", "%2e%2e", "status"])
    query = rng.choice(_QUERIES)
    body: object = {"metadata": {"name": "a"}} | dict(MANIFESTS.get(resource.plural, {}))
    media = rng.choice(_MEDIA) if rng.random() < 0.3 else "application/json"
    if method == "PATCH":
        media = rng.choice(_MEDIA[2:6])
        if media == _MEDIA[2]:
            body = [
                {"op": rng.choice(("add", "remove", "copy", "test")), "path": "/metadata/name", "value": 1, "from": ""}
            ]
        elif media == _MEDIA[5]:
            body = {"apiVersion": resource.kind.api_version, "kind": resource.kind.kind, **dict(body)}  # type: ignore[call-overload]
    data = json.dumps(body).encode()
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        if len(data) > _ENOUGH_BYTES:
            break
        body = _mutated(rng, body)
        data = json.dumps(body).encode()
    if rng.random() < 0.2:
        data = _garbled(rng, data)
    head = f"{method} {path}?{query} HTTP/1.1\r\nHost: a\r\nContent-Type: {media}\r\nContent-Length: {len(data)}\r\n"
    if rng.random() < 0.1:
        head += rng.choice(("Authorization: Bearer x", "Impersonate-User: x", "Accept: */*;q=x", "Accept: a")) + "\r\n"
    whole = head.encode() + b"Connection: close\r\n\r\n" + data
    if rng.random() < 0.05:
        whole = whole[: rng.randrange(len(whole))]
    return Case(f"{method} {resource.plural}", whole)


def _mutated(rng: random.Random, value: object) -> object:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {**value, rng.choice(_KEYS): rng.choice(_VALUES)}
        return {**value, key: _mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        changed = [*value[:index], _mutated(rng, value[index]), *value[index + 1 :]]
        return changed * rng.choice((1, 1, 1, 2, 200))
    return rng.choice(_VALUES)


def _garbled(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(3) :]


def send(path: Path, case: Case) -> bytes:
    """Send a case, no more, and return what is answered."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(READ_S)
        client.connect(str(path))
        client.sendall(case.data)
        client.shutdown(socket.SHUT_WR)
        found = b""
        while more := client.recv(1 << 16):
            found += more
        return found


def judged(answer: bytes) -> Iterator[str]:
    """Yield what must not be in an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    code = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
    if (code == 500 and _NO_ADDRESS not in body) or code > 504:
        yield f"{code}: {body[:500].decode(errors='replace')}"
    if code >= 400 and re.search(rb"NoneType|Traceback|object at 0x|KeyError|TypeError", body):
        yield f"{code} as Python says it: {body[:500].decode(errors='replace')}"


def wrong(api: ApiDaemon, seen: int) -> Iterator[str]:
    """Yield what is wrong with the server; ``seen`` are the lines of its log that were looked at."""
    if api.process is None or api.process.poll() is not None:
        yield "the server has ended"
        return
    for line in api.log[seen:]:
        if "Traceback" in line or " ERROR " in line or "never retrieved" in line:
            yield f"the log says: {' '.join(api.log[seen:])[:2000]}"
            return


def run(api: ApiDaemon, seed: int, numbers: Iterable[int], keep: Path | None, say: Callable[[str], None]) -> Report:
    """Send the cases that have these numbers."""
    report = Report(NAME, seed)
    assert api.process is not None
    descriptors = Path(f"/proc/{api.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for number in numbers:
        case, seen = make(generator(seed, NAME, number)), len(api.log)
        try:
            answer = send(api.socket, case)
            problems = [*judged(answer), *wrong(api, seen)]
            report.answers.update([f"{case.words} {answer[9:12].decode() or 'nothing'}"])
        except OSError as error:
            problems = [*wrong(api, seen)]
            if not case.may_be_reset:
                problems.append(f"no answer: {error}")
            report.answers.update([f"{case.words} reset"])
        for said in problems:
            if report.find(f"{NAME}/{number}", case.words, said):
                say(f"{NAME}/{number}: {case.words}: {said[:600]}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{NAME}-{seed}-{number}.json").write_text(case.text(said))
        report.cases += 1
    deadline = time.monotonic() + READ_S
    while (left := len(list(descriptors.iterdir())) - before) > 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    if left > 2:
        report.find(f"{NAME}/0", "left behind", f"{left} descriptors")
    with closing(ApiClient(api.socket)) as client:
        if client.ask("GET", "/readyz").status != 200:
            report.find(f"{NAME}/0", "afterwards", "it is not ready")
    return report
