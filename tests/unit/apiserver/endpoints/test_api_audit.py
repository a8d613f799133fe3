"""The audit log."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kernel.isolation import in_child
from msgspec import structs

from podkeep.apiserver.endpoints.audit import AuditLog
from podkeep.apiserver.endpoints.handler import Handler
from podkeep.apiserver.requests import request_info
from podkeep.apiserver.requests.call import Call
from podkeep.apiserver.requests.limits import OWN_BYTES, InFlight, Slots
from podkeep.apiserver.requests.query import Query
from podkeep.http.budget import Account, Pool
from podkeep.http.messages import Body, Request
from support.api_calls import ROOT, Api


def test_each_request_is_a_line_without_its_body(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def test() -> None:
        async with Api(tmp_path) as api:
            audit = AuditLog(path)
            api.handler = Handler(structs.replace(api.handler._parts, audit=audit))
            secret = {"metadata": {"name": "s"}, "stringData": {"a": "hidden"}}
            await api.call("POST", "/api/v1/namespaces/default/secrets", secret)
            await api.call("GET", "/nix", headers={"impersonate-user": "ann"})
            audit.close()

    asyncio.run(test())
    text = path.read_text()
    assert "hidden" not in text
    first, second = map(json.loads, text.splitlines())
    assert (first["verb"], first["user"]["username"]) == ("create", "kubernetes-admin")
    assert first["objectRef"] == {"resource": "secrets", "namespace": "default", "apiVersion": "v1"}
    assert first["responseStatus"]["code"] == 201
    assert (second["user"]["username"], second["impersonatedUser"]["username"]) == ("kubernetes-admin", "ann")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_the_code_of_a_refusal_for_which_there_is_no_room_is_that_of_its_answer(tmp_path: Path) -> None:
    path, limits = tmp_path / "audit.log", InFlight()
    limits.kept = Slots(2 * OWN_BYTES)
    unknown = {"spec": {"resourceAttributes": {"verb": "get"}, "x" * (OWN_BYTES - 200): 1}}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?fieldValidation=Strict"

    async def test() -> None:
        async with Api(tmp_path, limits=limits) as api:
            audit = AuditLog(path)
            api.handler = Handler(structs.replace(api.handler._parts, audit=audit))
            await api.make_roles()
            ann = {"impersonate-user": "ann", "impersonate-group": "system:authenticated"}
            with limits.kept.taken("ann", OWN_BYTES):
                assert (await api.call("POST", reviews, unknown, headers=ann)).status == 429
            assert 'code="429"' in api.metrics.text().decode()
            audit.close()

    asyncio.run(test())
    assert json.loads(path.read_text())["responseStatus"]["code"] == 429


def test_a_long_log_goes_on_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def test() -> None:
        async with Api(tmp_path) as api:
            audit = AuditLog(path, limit=1500)
            api.handler = Handler(structs.replace(api.handler._parts, audit=audit))
            for _ in range(4):
                await api.call("GET", "/version")
            audit.close()

    asyncio.run(test())
    assert path.stat().st_size < 1500
    assert (tmp_path / "audit.log.1").stat().st_size < 1500


def test_a_disk_that_is_full_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can send requests filled the log of the server with what was to be said of each."""

    async def test() -> None:
        async with Api(tmp_path) as api:
            audit = AuditLog(Path("/dev/full"))
            api.handler = Handler(structs.replace(api.handler._parts, audit=audit))
            for _ in range(5):
                assert (await api.call("GET", "/version")).status == 200
            audit.close()

    asyncio.run(test())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "requests are not in the audit log: [Errno 28] No space left on device"
    ]


def test_a_disk_that_takes_every_other_line_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Short lines fit on a disk that is nearly full, long ones do not: who sends both in turn filled the log."""

    async def test() -> None:
        async with Api(tmp_path) as api:
            audits = [AuditLog(Path("/dev/full")), AuditLog(tmp_path / "audit.log")]
            api.handler = Handler(api.handler._parts)
            for audit in audits * 3:
                api.handler._parts = structs.replace(api.handler._parts, audit=audit)
                assert (await api.call("GET", "/version")).status == 200
            for audit in audits:
                audit.close()

    asyncio.run(test())
    assert len((tmp_path / "audit.log").read_text().splitlines()) == 3
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def asked(target: str) -> Call:
    async def receive() -> bytes:
        return b""

    request = Request(
        method="GET",
        target=target,
        headers={},
        body=Body(receive, 0, Account(Pool()), 5.0),
        peer=ROOT,
        stopping=asyncio.Event(),
        at_end=ExitStack(),
        admit=lambda owner="": None,
        write_now=lambda _: False,
    )
    query = Query("")
    return Call(request=request, query=query, info=request_info.parse("GET", target, query))


def test_a_line_that_the_disk_does_not_take_whole_is_not_begun(tmp_path: Path) -> None:
    """The line after it was one with its beginning, and neither could be read; that it was lost was not told."""
    path = tmp_path / "audit.log"

    def write() -> int:
        audit, now, error = AuditLog(path), datetime.now(UTC), 0
        audit.write(asked("/version"), 200, now)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
        try:
            audit.write(asked("/healthz"), 200, now)
        except OSError as refused:
            error = refused.errno or 0
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        audit.write(asked("/readyz"), 200, now)
        return error

    # The limit is of a whole process.
    assert in_child(write) == errno.EFBIG
    assert [json.loads(line)["requestURI"] for line in path.read_text().splitlines()] == ["/version", "/readyz"]


def test_a_log_that_cannot_be_renamed_never_writes_into_another_file(tmp_path: Path) -> None:
    path, other = tmp_path / "audit.log", tmp_path / "other"
    (tmp_path / "audit.log.1" / "full").mkdir(parents=True)

    async def test() -> None:
        async with Api(tmp_path) as api:
            audit = AuditLog(path, limit=900)
            api.handler = Handler(structs.replace(api.handler._parts, audit=audit))
            for _ in range(3):
                await api.call("GET", "/version")
            with other.open("wb") as file:  # it takes the lowest number that is free
                for _ in range(3):
                    await api.call("GET", "/version")
                file.flush()
            audit.close()

    asyncio.run(test())
    assert other.read_bytes() == b""
    assert path.stat().st_size
