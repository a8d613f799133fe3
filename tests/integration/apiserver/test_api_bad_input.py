"""What no client should send, over the unix socket: a Status with the right code, and nothing in the log."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from support.api_client import ApiClient
from support.api_daemon import ApiDaemon

MAPS = "/api/v1/namespaces/default/configmaps"
ONE = f"{MAPS}/one"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
YAML, APPLY = "application/yaml", "application/apply-patch+yaml"
JSON_PATCH, MERGE, STRATEGIC = (
    f"application/{kind}+json" for kind in ("json-patch", "merge-patch", "strategic-merge-patch")
)
TWICE = '{"metadata":{"name":"two","name":"two"},"bogus":1,"data":{"x":"1","x":"2"}}'
BOMB = "\n".join(
    [
        "a: &a [x, x, x, x, x, x, x, x]",
        *(f"{n}: &{n} [{', '.join([f'*{o}'] * 8)}]" for o, n in zip("abcdefg", "bcdefgh", strict=True)),
    ]
)
COPIES = [{"op": "add", "path": "/data/y", "value": "x" * 100_000}]
COPIES += [{"op": "copy", "from": "/data", "path": f"/data/{number}"} for number in range(40)]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, scratch_machine: None) -> Iterator[ApiDaemon]:
    with ApiDaemon(tmp_path_factory.mktemp("api")) as daemon:
        client = ApiClient(daemon.socket)
        assert client.ask("POST", MAPS, {"metadata": {"name": "one"}, "data": {"x": "1"}}).status == 201
        yield daemon
        assert client.ask("GET", ONE).value["data"] == {"x": "1"}
    assert [line for line in daemon.log if "Traceback" in line or " ERROR " in line] == []


def _map(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "two", **metadata}}


BODIES: list[tuple[str, Any, int, str]] = [
    ("application/json", '{"a":\n  {"b": }', 400, "line 2, column 9"),
    ("application/json", "", 400, "<empty>"),
    ("application/json", "[]", 400, "cannot unmarshal array"),
    ("application/json", "null", 400, "cannot unmarshal null"),
    ("application/json", '"x"', 400, "cannot unmarshal string"),
    ("application/json", "5", 400, "cannot unmarshal number"),
    ("application/json", "true", 400, "cannot unmarshal bool"),
    ("application/json", b'{"metadata":{"name":"\xff"}}', 400, "not UTF-8"),
    ("application/json", '{"metadata":{"name":"\\ud800"}}', 400, "line 1, column"),
    ("application/json", '{"metadata":{"generation":NaN}}', 400, "line 1, column 27"),
    ("application/json", '{"metadata":{"generation":1e400}}', 400, "out of range"),
    ("application/json", "[" * 100_000, 400, "more than 64 levels deep"),
    ("application/json", '{"a":' * 100_000, 400, "more than 64 levels deep"),
    ("application/json", '{"metadata":{"name":"two"},"x":' + "[" * 70 + "]" * 70 + "}", 400, "64 levels deep"),
    ("application/json", {"kind": "Secret", **_map()}, 400, "Secret"),
    ("application/json", {"kind": "Bogus", **_map()}, 400, 'no kind "Bogus" is registered for version "v1"'),
    ("application/json", {"kind": 5, **_map()}, 400, "must be strings"),
    ("application/json", {"metadata": {"name": 5}}, 400, "cannot unmarshal number into Go struct field"),
    ("application/json", {"metadata": []}, 400, "ObjectMeta.metadata of type v1.ObjectMeta"),
    ("application/json", _map(creationTimestamp="yesterday"), 400, 'parsing time "yesterday"'),
    ("application/json", _map(generation=10**30), 400, "of type int64"),
    ("application/json", _map(namespace="other"), 400, "does not match the namespace sent on the request"),
    ("application/json", _map(resourceVersion="1"), 400, "should not be set on objects to be created"),
    ("application/json", {}, 422, "name or generateName is required"),
    ("application/json", {"metadata": {"name": "a" * 300}}, 422, "metadata.name"),
    ("application/json", _map() | {"data": {"a": "x" * (3 << 20)}}, 413, "limit is 3145728"),
    ("application/json", _map() | {"data": {"a": "x" * (2 << 20)}}, 422, "Too long"),
    ("application/json", _map(annotations={"a": "x" * (1 << 19)}), 422, "Too long"),
    ("application/json", _map(labels={f"a{number}": "" for number in range(150_000)}), 413, "limit is 10000 values"),
    (YAML, "a: b\n  c: [", 400, "line 2, column 4"),
    (YAML, "a: b\na: c\n", 422, "name or generateName is required"),
    (YAML, "&a [*a]", 400, "line 1, column"),
    (YAML, BOMB, 400, "once its aliases are expanded"),
    (YAML, "- " * 3000, 400, "levels deep"),
    (YAML, "{a: " * 3000, 400, "levels deep"),
    (YAML, "metadata: {name: !!python/object:os.system x}", 400, "line 1, column 18"),
    (YAML, "metadata: {generation: .nan}", 400, "out of range"),
    (YAML, "? [a]\n: b\n", 400, "a key must be a text"),
    ("text/plain", _map(), 415, "accepted media types include"),
    ("application/xml", _map(), 415, "accepted media types include"),
    ('a/b; charset="', _map(), 415, "accepted media types include"),
    ("application/vnd.kubernetes.protobuf", _map(), 400, "does not appear to be a protobuf message"),
]


@pytest.mark.parametrize(("media", "body", "code", "said"), BODIES, ids=range(len(BODIES)))
def test_bodies(api: ApiDaemon, media: str, body: Any, code: int, said: str) -> None:
    _refused(api, "POST", MAPS, body, code, said, media=media)


@pytest.mark.parametrize(
    ("mode", "code", "warnings"),
    [("Strict", 400, 0), ("Warn", 201, 3), ("", 201, 3), ("Ignore", 201, 0), ("x", 422, 0)],
)
def test_unknown_and_duplicate_fields(api: ApiDaemon, mode: str, code: int, warnings: int) -> None:
    client = ApiClient(api.socket)
    client.request("POST", f"{MAPS}?dryRun=All&fieldValidation={mode}", TWICE, {"Content-Type": "application/json"})
    with client.getresponse() as response:
        said = json.loads(response.read())
        assert response.status == code
        given = response.headers.get_all("Warning", [])
    assert len(given) == warnings
    fields = ('unknown field "bogus"', 'duplicate field "metadata.name"', 'duplicate field "data.x"')
    if mode == "Strict":
        assert all(field in said["message"] for field in fields)
    for field, warning in zip(fields, given, strict=False):
        assert warning == "299 - " + json.dumps(field)


@pytest.mark.requirement("U4")
@pytest.mark.parametrize("verb", ["POST", "PATCH"])
def test_the_old_name_of_host_users(api: ApiDaemon, verb: str) -> None:
    """Who uses it is warned in a header; together with its opposite it is invalid, and both fields are named."""
    pods = "/api/v1/namespaces/default/pods"
    client = ApiClient(api.socket)

    def ask(**fields: bool) -> tuple[int, list[str], str]:
        spec = {"containers": [{"name": "c", "image": "example.com/x:1"}], **fields}
        body = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old"}, "spec": spec})
        path, media = (f"{pods}/old?fieldManager=me&", APPLY) if verb == "PATCH" else (f"{pods}?", "application/json")
        client.request(verb, f"{path}dryRun=All", body, {"Content-Type": media})
        with client.getresponse() as response:
            return response.status, response.headers.get_all("Warning", []), response.read().decode()

    status, warnings, said = ask(userHostNamespace=True)
    assert status == 201, said
    assert warnings == ['299 - "spec.userHostNamespace: deprecated; use hostUsers instead"']
    status, warnings, said = ask(userHostNamespace=True, hostUsers=False)
    assert (status, warnings) == (422, []), said
    assert "spec.userHostNamespace: Invalid value: true: cannot be true when `hostUsers` is false" in said


PATCHES: list[tuple[str, Any, int, str]] = [
    *((media, "{", 400, "") for media in (JSON_PATCH, MERGE, STRATEGIC)),
    *((media, "5", 400, "") for media in (JSON_PATCH, MERGE, STRATEGIC)),
    (JSON_PATCH, [{"op": "bogus", "path": "/a"}], 422, "bogus"),
    (JSON_PATCH, [{"op": "test", "path": "/data/x", "value": "2"}], 422, "/data/x"),
    (JSON_PATCH, [{"op": "replace", "path": "/nope/x", "value": 1}], 422, "missing path: /nope/x"),
    (JSON_PATCH, [{"op": "remove", "path": ""}], 422, ""),
    (JSON_PATCH, [{"op": "add", "path": "/metadata/name", "value": "b"}], 400, "does not match the name on the URL"),
    (JSON_PATCH, COPIES, 413, ""),
    (JSON_PATCH, [{"op": "test", "path": "/data/x", "value": "1"}] * 10_001, 413, "10000"),
    (MERGE, {"data": {"x": 5}}, 422, "cannot unmarshal number"),
    (MERGE, {"metadata": {"resourceVersion": "1"}}, 409, "the object has been modified"),
    (MERGE, {"metadata": {"resourceVersion": "99999999"}}, 409, "the object has been modified"),
    (MERGE, {"metadata": {"uid": "x"}}, 409, ""),
    (MERGE, {"data": {"$patch": "bogus"}}, 422, "a valid config key"),
    (STRATEGIC, {"data": {"x": 5}}, 422, "patch: Invalid value"),
    (STRATEGIC, {"$patch": "bogus"}, 400, ""),
    (STRATEGIC, {"data": {"$patch": "bogus"}}, 400, ""),
    (STRATEGIC, {"$retainKeys": 5}, 400, ""),
    (STRATEGIC, {"$setElementOrder/x": 5}, 400, ""),
    (APPLY, "kind: ConfigMap\napiVersion: v1", 422, "is required for apply patch"),
    ("application/json", "{}", 415, "application/merge-patch+json"),
]


@pytest.mark.parametrize(("media", "body", "code", "said"), PATCHES, ids=range(len(PATCHES)))
def test_patches(api: ApiDaemon, media: str, body: Any, code: int, said: str) -> None:
    _refused(api, "PATCH", ONE, body, code, said, media=media)


QUERIES: list[tuple[str, int, str]] = [
    ("labelSelector=a%20b", 400, "unable to parse requirement"),
    ("labelSelector=in%20(", 400, ""),
    ("fieldSelector=a%3Db", 400, '"a" is not a known field selector'),
    ("fieldSelector=metadata.name", 400, "invalid selector"),
    ("limit=x", 400, 'parsing "x": invalid syntax'),
    ("continue=bogus", 400, "continue key is not valid"),
    ("continue=%FF", 400, "continue key is not valid"),
    ("continue=W10", 400, "continue key is not valid"),
    ("continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJ4In0", 400, "continue key is not valid"),
    (
        "limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTk5OTk5OTk5LCJzdGFydCI6Ii4uLy4uIn0",
        504,
        "Too large resource version",
    ),
    ("resourceVersion=x", 422, "resourceVersion: Invalid value"),
    ("resourceVersion=999999999", 504, "Too large resource version"),
    ("resourceVersionMatch=Exact", 422, "resourceVersionMatch is forbidden unless resourceVersion is provided"),
    ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
    ("watch=1&resourceVersion=999999999", 504, "Too large resource version"),
    ("watch=1&resourceVersion=x", 422, "resourceVersion: Invalid value"),
    ("watch=1&labelSelector=%28", 400, "found '(', expected: !, identifier, or 'end of string'"),
]


@pytest.mark.parametrize(("query", "code", "said"), QUERIES)
def test_queries(api: ApiDaemon, query: str, code: int, said: str) -> None:
    _refused(api, "GET", f"{MAPS}?{query}", None, code, said)


WRITES: list[tuple[str, str, Any, int, str]] = [
    (
        "PUT",
        ONE,
        {"metadata": {"name": "b"}},
        400,
        "the name of the object (b) does not match the name on the URL (one)",
    ),
    ("PUT", ONE, {"metadata": {"name": "one", "resourceVersion": "1"}}, 409, "the object has been modified"),
    ("PUT", ONE, {"metadata": {"name": "one", "resourceVersion": "99999999"}}, 409, "the object has been modified"),
    ("PUT", ONE, {"metadata": {"name": "one", "uid": "x"}}, 409, "Precondition failed: UID in precondition: x"),
    ("PUT", f"{MAPS}/nope", {"metadata": {"name": "nope"}}, 404, 'configmaps "nope" not found'),
    ("DELETE", ONE, "{", 400, ""),
    ("DELETE", ONE, {"preconditions": {"uid": "x"}}, 409, "the UID in the precondition (x) does not match"),
    ("DELETE", ONE, {"propagationPolicy": "bogus"}, 422, "propagationPolicy: Unsupported value"),
    ("DELETE", ONE, {"gracePeriodSeconds": "x"}, 400, "gracePeriodSeconds"),
    ("GET", "/api/v2", None, 404, "could not find the requested resource"),
    ("GET", "/api/v1/%FF", None, 404, ""),
    ("GET", f"{ONE}/a/b/c", None, 404, ""),
    ("TRACE", ONE, None, 405, ""),
    ("POST", "/api/v1/namespaces/nope/configmaps", {"metadata": {"name": "a"}}, 404, 'namespaces "nope" not found'),
]


@pytest.mark.parametrize(("method", "path", "body", "code", "said"), WRITES, ids=range(len(WRITES)))
def test_other_requests(api: ApiDaemon, method: str, path: str, body: Any, code: int, said: str) -> None:
    _refused(api, method, path, body, code, said)


def _refused(
    api: ApiDaemon, method: str, path: str, body: Any, code: int, said: str, media: str = "application/json"
) -> None:
    with closing(ApiClient(api.socket)) as client:
        answer = client.ask(method, path, body, media=media)
    value = answer.value
    assert (answer.status, value["kind"], value["status"], value["code"]) == (code, "Status", "Failure", code), value
    assert value["reason"]
    assert said in answer.said
    assert "NoneType" not in answer.said
    assert "object at 0x" not in answer.said


def test_requests_that_are_cut_off(api: ApiDaemon) -> None:
    head = f"POST {MAPS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n".encode()
    for data in (
        b"",
        b"GE",
        head[:30],
        head,
        head + b'{"metadata":',
        b"\x16\x03\x01",
        b"\0" * 100,
        b"GET / HTTP/9\r\n\r\n",
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(api.socket))
            client.sendall(data)
    assert ApiClient(api.socket).ask("GET", "/readyz").status == 200


def test_watchers_that_vanish_take_nobody_with_them(api: ApiDaemon) -> None:
    for _ in range(50):
        client = ApiClient(api.socket)
        client.request("GET", f"{MAPS}?watch=1")
        client.close()
    staying = ApiClient(api.socket).watch(f"{MAPS}?watch=1&fieldSelector=metadata.name=seen")
    writer = ApiClient(api.socket)
    for number in range(3):
        assert writer.ask("POST", MAPS, {"metadata": {"name": "seen"}}).status == 201
        assert next(staying)["type"] == "ADDED", number
        assert writer.ask("DELETE", f"{MAPS}/seen").status == 200
        assert next(staying)["type"] == "DELETED", number


def test_a_watcher_that_reads_nothing_is_cut_off_and_the_others_see_everything(api: ApiDaemon) -> None:
    slow = ApiClient(api.socket)
    slow.request("GET", f"{MAPS}?watch=1")
    reading = ApiClient(api.socket).watch(f"{MAPS}?watch=1&labelSelector=slow")
    writer = ApiClient(api.socket)
    body = {"metadata": {"name": "large", "labels": {"slow": ""}}, "data": {"x": "x" * 1_000_000}}
    assert writer.ask("POST", MAPS, body).status == 201
    for number in range(40):
        assert writer.ask("PUT", f"{MAPS}/large", body | {"data": {"x": f"{number}" * 500_000}}).status == 200
        next(reading)
    assert writer.ask("DELETE", f"{MAPS}/large").status == 200
    with slow.getresponse() as stream:
        try:
            size = len(stream.read())
        except http.client.IncompleteRead as error:
            size = len(error.partial)
    assert size < 40 * 500_000
