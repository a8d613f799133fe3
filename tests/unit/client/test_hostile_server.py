"""Servers that refuse, break off, send nonsense or too much, or say nothing: what the client makes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from podkeep.client import client as client_module
from podkeep.client import reflector as reflector_module
from podkeep.client.client import Client
from podkeep.client.errors import ApiError
from podkeep.client.reflector import Reflector
from podkeep.client.resources import PODS
from podkeep.client.settings import Settings

LIST = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "10"}, "items": []}).encode()
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (2)"}
AHEAD = {
    "kind": "Status",
    "code": 504,
    "reason": "Timeout",
    "message": "Too large resource version: 10, current: 4",
    "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
}
TIMEOUT_S = 60.0


def answer(body: bytes, *, status: str = "200 OK", headers: str = "", close: bool = False) -> bytes:
    """Return an answer as bytes."""
    end = "connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}{end}\r\n".encode() + body


def stream(*events: Mapping[str, Any], whole: bool = True) -> bytes:
    """Return the answer to a watch; one that is not whole breaks off."""
    lines = [json.dumps(event).encode() + b"\n" for event in events]
    chunks = b"".join(f"{len(line):x}\r\n".encode() + line + b"\r\n" for line in lines)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + (b"0\r\n\r\n" if whole else b"")


def event(kind: str, version: str, name: str = "p") -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


class Script:
    """A server that gives one answer after the other, whatever is asked; None: it says nothing."""

    def __init__(self, *answers: bytes | None, drop: bool = False) -> None:
        self._answers, self._drop = list(answers), drop
        self.asked: list[str] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.asked.append(head.decode().partition(" HTTP")[0])
                given = self._answers.pop(0)
                if given is None:
                    await reader.read()
                    break
                writer.write(given)
                await writer.drain()
                if self._drop or b"transfer-encoding" in given:
                    break
        writer.close()


@asynccontextmanager
async def served(script: Script, path: Path, **options: Any) -> AsyncIterator[Client]:
    """Yield a client of a script."""
    server = await asyncio.start_unix_server(script.serve, path / "s")
    client = Client(Settings(server=f"unix://{path}/s"), **options)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield client
    finally:
        await client.close()
        server.close()


def asked(script: Script, path: Path, body: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with served(script, path, **options) as client:
            return await body(client)

    return asyncio.run(main())


@pytest.mark.slow
def test_a_silent_server(tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match=r"did not answer GET /api/v1/pods within 0\.2 s"):
        asked(Script(None), tmp_path, lambda client: client.list(PODS), timeout=0.2)


def test_an_answer_that_is_too_large(tmp_path: Path) -> None:
    script = Script(answer(b"x" * 5000))
    with pytest.raises(ResourceExhausted, match="more than 1000 bytes"):
        asked(script, tmp_path, lambda client: client.request("GET", "/", limit=1000))


def page(*names: str, token: str = "next") -> bytes:
    """Return one page of a list, with another one after it."""
    items = [{"metadata": {"name": name}} for name in names]
    return answer(json.dumps({"kind": "PodList", "metadata": {"continue": token}, "items": items}).encode())


def test_a_list_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podkeep.client.client.MAX_LISTED", 3)
    monkeypatch.setattr("podkeep.client.client.MAX_PAGES", 4)
    for script in (Script(*(page() for _ in range(9))), Script(page("a"), page("b", "c"), page("d"))):
        with pytest.raises(ResourceExhausted, match="without an end"):
            asked(script, tmp_path, lambda client: client.list(PODS, limit=2))
    whole = asked(Script(page("a"), page("b", token="")), tmp_path, lambda client: client.list(PODS, limit=1))
    assert [item["metadata"]["name"] for item in whole["items"]] == ["a", "b"]


def large(*names: str) -> bytes:
    """Return a list with more bytes than the test lets an answer have."""
    items = [{"metadata": {"name": name, "annotations": {"a": "x" * 1000}}} for name in names]
    return answer(json.dumps({"kind": "PodList", "metadata": {}, "items": items}).encode())


LIST_PAGE = page("a")


def test_fewer_large_objects_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BODY_BYTES", 2000)
    script = Script(large("a", "b"), large("a", "b"), page("a"), page("b", token=""))
    # A connection ends with an answer that is not read to its end.
    whole = asked(script, tmp_path, lambda client: client.list(PODS, limit=100))
    assert [item["metadata"]["name"] for item in whole["items"]] == ["a", "b"]
    assert [line.partition("limit=")[2].partition("&")[0] for line in script.asked] == ["100", "12", "1", "1"]
    with pytest.raises(ResourceExhausted):
        asked(Script(large("a", "b")), tmp_path, lambda client: client.list(PODS, limit=1))


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """A server could lead the agent's credentials anywhere."""
    found = answer(b"", status="302 Found", headers="location: http://169.254.169.254/latest\r\n")
    script = Script(found, answer(LIST))
    with pytest.raises(Unavailable, match="something else than an object"):
        asked(script, tmp_path, lambda client: client.list(PODS))
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "given",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", answer(b"<html>"), b""],
)
def test_what_is_no_answer(tmp_path: Path, given: bytes) -> None:
    script = Script(given, drop=True)
    with pytest.raises(Unavailable):
        asked(script, tmp_path, lambda client: client.create(PODS, {}, "default"))


@pytest.mark.slow
def test_who_is_told_to_come_again_does(tmp_path: Path) -> None:
    busy = answer(b"", status="429 Too Many Requests", headers="retry-after: 1\r\n")
    script = Script(busy, answer(LIST))
    assert asked(script, tmp_path, lambda client: client.list(PODS))["kind"] == "PodList"
    assert len(script.asked) == 2


def test_who_is_refused_is_not(tmp_path: Path) -> None:
    script = Script(answer(b"", status="503 Service Unavailable"), answer(LIST))
    with pytest.raises(ApiError) as refused:
        asked(script, tmp_path, lambda client: client.list(PODS))
    assert refused.value.code == 503


def test_a_connection_that_ended_meanwhile_is_not_used(tmp_path: Path) -> None:
    script = Script(answer(LIST), answer(LIST), drop=True)

    async def body(client: Client) -> None:
        await client.list(PODS)
        await client.list(PODS)

    asked(script, tmp_path, body)
    assert script.connections == 2


@pytest.mark.slow
def test_a_write_is_never_sent_twice(tmp_path: Path) -> None:
    script = Script(answer(LIST), b"", answer(LIST), drop=False)

    async def body(client: Client) -> None:
        await client.list(PODS)
        await client.create(PODS, {}, "default")

    with pytest.raises((Unavailable, DeadlineExceeded)):
        asked(script, tmp_path, body, timeout=0.5)
    assert [line.split()[0] for line in script.asked] == ["GET", "POST"]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"type":"NEW","object":{}}', b"[" * 100_000])
def test_what_is_no_event(tmp_path: Path, line: bytes) -> None:
    async def body(client: Client) -> None:
        async for _ in client.watch(PODS):
            pass

    given = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(line), line)
    with pytest.raises(Unavailable, match="something else than an event"):
        asked(Script(given, drop=True), tmp_path, body)


def test_an_event_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_EVENT_BYTES", 1000)

    async def body(client: Client) -> None:
        async for _ in client.watch(PODS):
            pass

    given = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 5000
    with pytest.raises(Unavailable, match="more than 1000 bytes"):
        asked(Script(given), tmp_path, body)


class Told:
    """What a reflector tells, until enough was told."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self.told: list[str] = []
        self.done = asyncio.Event()

    def replaced(self, items: Sequence[Mapping[str, Any]]) -> None:
        self._tell(f"replaced {len(items)}")

    def changed(self, item: Mapping[str, Any]) -> None:
        self._tell(f"changed {item['metadata']['name']}")

    def deleted(self, item: Mapping[str, Any]) -> None:
        self._tell(f"deleted {item['metadata']['name']}")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if len(self.told) == self._enough:
            self.done.set()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failures be waited for as short as can be."""
    monkeypatch.setattr(reflector_module.random, "random", lambda: 0.0)
    monkeypatch.setattr(reflector_module.Backoff, "next", lambda self: 0.001)


def followed(script: Script, path: Path, enough: int) -> list[str]:
    async def body(client: Client) -> list[str]:
        told = Told(enough)
        task = asyncio.ensure_future(Reflector(client, PODS).run(told))
        await told.done.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return told.told

    found: list[str] = asked(script, path, body)
    return found


def versions(script: Script) -> list[str]:
    """Return the resourceVersion of each request; ``-`` for none."""
    return [line.partition("resourceVersion=")[2].partition("&")[0] or "-" for line in script.asked]


def test_a_watch_goes_on_where_it_broke_off(tmp_path: Path, quick_retries: None) -> None:
    script = Script(
        answer(LIST),
        stream(event("ADDED", "11"), event("BOOKMARK", "15"), whole=False),
        stream(event("DELETED", "16")),
        stream(event("ADDED", "17", "q")),
    )
    assert followed(script, tmp_path, 4) == ["replaced 0", "changed p", "deleted p", "changed q"]
    assert versions(script) == ["0", "10", "15", "16"]


def test_what_is_too_large_at_once_is_followed_all_the_same(
    tmp_path: Path, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BODY_BYTES", 2000)
    script = Script(large("a", "b"), LIST_PAGE, answer(LIST), stream(event("ADDED", "11")))
    assert followed(script, tmp_path, 2) == ["replaced 1", "changed p"]
    assert versions(script) == ["0", "-", "-", "10"]


@pytest.mark.parametrize(
    "gone",
    [
        stream({"type": "ERROR", "object": GONE}),
        answer(json.dumps(GONE).encode(), status="410 Gone"),
        answer(json.dumps(AHEAD).encode(), status="504 Gateway Timeout"),
    ],
    ids=["ends", "refused", "restored"],
)
def test_a_version_that_the_server_does_not_have_is_listed_again(
    tmp_path: Path, quick_retries: None, gone: bytes
) -> None:
    newer = LIST.replace(b'"10"', b'"20"')
    script = Script(answer(LIST), gone, answer(newer), stream(event("ADDED", "21")))
    assert followed(script, tmp_path, 3) == ["replaced 0", "replaced 0", "changed p"]
    assert versions(script) == ["0", "10", "-", "20"]


def test_who_may_not_watch_asks_for_the_list_again(tmp_path: Path, quick_retries: None) -> None:
    forbidden = answer(b"", status="403 Forbidden")
    script = Script(answer(LIST), forbidden, answer(LIST), stream(event("ADDED", "11")))
    assert followed(script, tmp_path, 3) == ["replaced 0", "replaced 0", "changed p"]
