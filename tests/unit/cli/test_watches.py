"""``podkeep events -w`` and ``get -w`` where the API does not know any more what followed, and says so."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from podkeep.base.errors import PodkeepError
from podkeep.cli.core import following
from podkeep.cli.core.following import Pace
from podkeep.cli.core.invocation import Invocation
from podkeep.cli.objects import events, get

GONE = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
NO_MORE = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no more"}
KINDS = {
    "items": [
        {
            "metadata": {},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {"resource": "pods", "responseKind": {"kind": "Pod"}, "scope": "Namespaced", "verbs": ["list"]}
                    ],
                }
            ],
        }
    ]
}


class Scripted(ThreadingHTTPServer):
    """An API whose watches end as a script says: each has the lines of its events. The last one is refused."""

    def __init__(self, listed: dict[str, Any], *watches: list[dict[str, Any]]) -> None:
        self.listed, self.watches = listed, list(watches)
        self.versions: list[str] = []
        """From where the watches began."""
        super().__init__(("127.0.0.1", 0), _Answering)


class _Answering(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        query = parse_qs(path.query)
        status, body = 200, json.dumps(KINDS if path.path in ("/api", "/apis") else self.server.listed)
        if "watch" in query:
            self.server.versions += query.get("resourceVersion", [""])
            if self.server.watches:
                body = "".join(f"{json.dumps(event)}\n" for event in self.server.watches.pop(0))
            else:
                status, body = 403, json.dumps(NO_MORE)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Waiting(selectors.DefaultSelector):
    """Waits for nothing, and counts the seconds that it would have waited."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.seconds += timeout or 0.0
        return super().select(0)


def test_watches_that_end_at_once_are_kept_apart() -> None:
    selector = _Waiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.seconds  # type: ignore[method-assign]
    begun = []

    async def follow() -> None:
        pace = Pace()
        for lasts in (0.0, 0.25, 5.0, 0.0):
            await pace.begin()
            begun.append(round(loop.time(), 1))
            await asyncio.sleep(lasts)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(follow())
    assert begun == [0.0, 1.0, 2.0, 7.0]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(following, "APART_S", 0.0)
    servers = []

    def run(command: Any, arguments: list[str], *script: Any, ends: str = "no more") -> tuple[list[str], list[str]]:
        server = Scripted(*script)
        servers.append(server)
        threading.Thread(target=server.serve_forever).start()
        cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
        context = {"name": "a", "context": {"cluster": "a", "user": ""}}
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "a"}))
        invocation = Invocation(config_path=None, debug=False)
        done = CliRunner().invoke(command, [*arguments, "-w", "--kubeconfig", str(file)], obj=invocation)
        assert isinstance(done.exception, PodkeepError), done.output
        assert ends in str(done.exception)
        return done.output.splitlines(), server.versions

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def event(name: str, revision: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(revision)}
    about = {"kind": "Pod", "name": name}
    return {"metadata": metadata, "involvedObject": about, "type": "Normal", "reason": "Told", "message": f"{revision}"}


def told(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": value}


def test_events_go_on_and_none_is_shown_twice(runner: Any) -> None:
    listed = {"metadata": {"resourceVersion": "5"}, "items": [event("a", 4), event("b", 5)]}
    first = [told("MODIFIED", event("a", 6)), told("ERROR", GONE)]
    anew = [told("ADDED", event("a", 6)), told("ADDED", event("b", 7)), told("ADDED", event("c", 8))]
    lines, versions = runner(events.command, [], listed, first, anew, [told("BOOKMARK", event("", 9))])
    assert [line.split()[-1] for line in lines[1:]] == ["4", "5", "6", "7", "8"]
    assert versions == ["5", "", "8", "9"]


def table(name: str, revision: int) -> dict[str, Any]:
    columns = [{"name": "Name"}, {"name": "Revision"}]
    rows = [{"cells": [name, str(revision)], "object": {"metadata": event(name, revision)["metadata"]}}] if name else []
    return {"metadata": {"resourceVersion": str(revision)}, "columnDefinitions": columns, "rows": rows}


def test_objects_go_on_and_none_is_shown_twice(runner: Any) -> None:
    first = [told("MODIFIED", table("a", 6)), told("ERROR", GONE)]
    anew = [told("ADDED", table("a", 6)), told("DELETED", table("a", 7)), told("ADDED", table("b", 8))]
    lines, versions = runner(get.command, ["pods"], table("a", 5), first, anew, [told("BOOKMARK", table("", 9))])
    assert [line.split() for line in lines] == [["NAME", "REVISION"], ["a", "5"], ["a", "6"], ["a", "7"], ["b", "8"]]
    assert versions == ["5", "", "8", "9"]


def test_columns_that_come_with_a_bookmark_are_those_of_what_follows(runner: Any) -> None:
    """The API tells the columns once, with the first event of a watch: every object was an empty line."""
    later = {**table("a", 7), "columnDefinitions": None}
    lines, _ = runner(get.command, ["pods"], table("", 5), [told("BOOKMARK", table("", 6)), told("ADDED", later)])
    assert [line.split() for line in lines] == [["NAME", "REVISION"], ["a", "7"]]


def test_one_object_begins_with_what_it_is(runner: Any) -> None:
    lines, versions = runner(get.command, ["pod/a"], table("a", 5), [told("ADDED", table("a", 5))])
    assert [line.split() for line in lines] == [["NAME", "REVISION"], ["a", "5"]]
    assert versions == ["", "5"]


@pytest.mark.parametrize("arguments", [["pod/a", "pod/b"], ["pod", "a", "b"]])
def test_several_are_not_followed(arguments: list[str], runner: Any) -> None:
    runner(get.command, arguments, table("a", 5), ends="-w follows one kind of objects, or one object")
