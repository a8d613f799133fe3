"""Requests and answers: verbs, errors, discovery, who may; over a real store."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from podkeep.apiserver.kinds.policy import priority_classes
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.list_watch import lists
from podkeep.apiserver.requests import output
from podkeep.apiserver.requests.limits import OWN_BYTES, SEAT_CHARACTERS, InFlight, Slots
from podkeep.apiserver.requests.media_types import YAML, Form
from podkeep.apiserver.requests.output import PIECE_BYTES
from podkeep.apiserver.server import backup
from podkeep.apiserver.storage import database, store
from podkeep.apiserver.storage.records import Key, Stored
from podkeep.apiserver.storage.store import Compacted
from podkeep.base.text.yaml_text import to_yaml
from support.api_calls import APPLY, MERGE, STRANGER, Answer, Api, run

JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
CMS = "/api/v1/namespaces/default/configmaps"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def _cm(name: str, **fields: Any) -> dict[str, Any]:
    labels = fields.pop("labels", None)
    return {"metadata": {"name": name} | ({"labels": labels} if labels else {}), **fields}


def test_an_object_lives_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        created = await api.call("POST", CMS, _cm("a", data={"x": "1"}))
        assert created.status == 201
        assert created.value["metadata"]["managedFields"][0]["manager"] == "test"
        assert (await api.call("POST", CMS, _cm("a"))).message == 'configmaps "a" already exists'
        found = await api.call("GET", f"{CMS}/a")
        assert found.value == created.value
        assert found.headers["Content-Type"] == ["application/json"]
        changed = {**found.value, "data": {"x": "2"}}
        updated = await api.call("PUT", f"{CMS}/a", changed)
        assert (updated.status, updated.value["data"]) == (200, {"x": "2"})
        again = await api.call("PUT", f"{CMS}/a", changed)
        assert (again.status, again.value["reason"]) == (409, "Conflict")
        patched = await api.call("PATCH", f"{CMS}/a", {"data": {"y": "3"}}, content_type=MERGE)
        assert patched.value["data"] == {"x": "2", "y": "3"}
        config = {"apiVersion": "v1", "kind": "ConfigMap", **_cm("b", data={"x": "1"})}
        applied = await api.call("PATCH", f"{CMS}/b?fieldManager=me", config, content_type=APPLY)
        assert applied.status == 201
        gone = await api.call("DELETE", f"{CMS}/a")
        assert (gone.status, gone.value["status"], gone.value["details"]["name"]) == (200, "Success", "a")
        missing = await api.call("GET", f"{CMS}/a")
        assert (missing.status, missing.message) == (404, 'configmaps "a" not found')

    run(tmp_path, test)


def test_every_answer_about_endpoints_says_what_replaces_them(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        path = "/api/v1/namespaces/default/endpoints"
        said = ["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"]
        body = {"metadata": {"name": "a"}}
        for method, place in (("POST", ""), ("GET", ""), ("GET", "/a"), ("PUT", "/a"), ("GET", "/b"), ("DELETE", "/a")):
            answer = await api.call(method, f"{path}{place}", body if method in ("POST", "PUT") else None)
            assert answer.warnings == said, (method, place)
        assert (await api.call("GET", CMS)).warnings == []

    run(tmp_path, test)


def test_a_dry_run_stores_nothing(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.call("POST", f"{CMS}?dryRun=All", _cm("a"))
        assert answer.status == 201
        assert "uid" in answer.value["metadata"]
        assert (await api.call("GET", f"{CMS}/a")).status == 404

    run(tmp_path, test)


def test_unknown_fields_are_refused_or_told(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        refused = await api.call("POST", f"{CMS}?fieldValidation=Strict", _cm("a", dato={}))
        assert refused.status == 400
        assert refused.message.endswith('strict decoding error: unknown field "dato"')
        warned = await api.call("POST", CMS, _cm("a", dato={}))
        assert (warned.status, warned.warnings) == (201, ['unknown field \\"dato\\"'])
        patch = {"dato": {"x": "1"}}
        answer = await api.call("PATCH", f"{CMS}/a?fieldValidation=Strict", patch, content_type=MERGE)
        assert answer.status == 422
        assert 'strict decoding error: unknown field "dato"' in answer.message
        config = {"apiVersion": "v1", "kind": "ConfigMap", **_cm("a", dato={})}
        answer = await api.call("PATCH", f"{CMS}/a?fieldManager=me", config, content_type=APPLY)
        assert answer.message == (
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .dato: field not declared in schema"
        )
        answer = await api.call("PATCH", f"{CMS}/a?fieldManager=me", {**config, "more": 1}, content_type=APPLY)
        assert answer.message == (
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): errors:\n"
            "  .dato: field not declared in schema\n  .more: field not declared in schema"
        )

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("media_type", "patch", "status", "message"),
    [
        (JSON_PATCH, {"a": 1}, 400, "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        (MERGE, "text", 400, "json: cannot unmarshal string into Go value of type map[string]interface {}"),
        (MERGE, [1], 400, "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (APPLY, 5, 400, "json: cannot unmarshal number into Go value of type map[string]interface {}"),
        (
            JSON_PATCH,
            [{"op": "test", "path": "/data/a", "value": "2"}],
            422,
            "in our request: testing value /data/a failed: test failed",
        ),
    ],
)
def test_a_patch_that_does_not_fit_says_why(
    tmp_path: Path, media_type: str, patch: object, status: int, message: str
) -> None:
    """In the message: of causes without a field kubectl shows two colons, and other clients show none."""

    async def test(api: Api) -> None:
        await api.call("POST", CMS, _cm("a", data={"a": "1"}))
        answer = await api.call("PATCH", f"{CMS}/a?fieldManager=me", patch, content_type=media_type)
        assert answer.status == status
        assert answer.message.endswith(message)
        assert not answer.value.get("details", {}).get("causes")

    run(tmp_path, test)


@pytest.mark.parametrize("media_type", [JSON_PATCH, STRATEGIC])
def test_a_patch_of_null_changes_nothing(tmp_path: Path, media_type: str) -> None:
    async def test(api: Api) -> None:
        created = await api.call("POST", CMS, _cm("a", data={"a": "1"}))
        answer = await api.call("PATCH", f"{CMS}/a", b"null", content_type=media_type)
        assert (answer.status, answer.value) == (200, created.value)

    run(tmp_path, test)


def test_a_merge_patch_of_null_is_none(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.call("POST", CMS, _cm("a", data={"a": "1"}))
        answer = await api.call("PATCH", f"{CMS}/a", b"null", content_type=MERGE)
        assert (answer.status, answer.message) == (400, "Invalid JSON Patch")

    run(tmp_path, test)


def test_the_systems_priority_classes_cannot_be_deleted(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for value in priority_classes.system_classes():
            one = f"{PRIORITIES}/{value['metadata']['name']}"
            created = await api.call("POST", PRIORITIES, value)
            assert created.status == 201
            answer = await api.call("DELETE", one)
            assert (answer.status, answer.value["reason"]) == (403, "Forbidden")
            assert answer.message.endswith("is forbidden: this is a system priority class and cannot be deleted")
            assert (await api.call("GET", one)).value == created.value
        await api.call("POST", PRIORITIES, {"metadata": {"name": "mine"}, "value": 7})
        assert (await api.call("DELETE", PRIORITIES)).status == 403
        assert (await api.call("GET", f"{PRIORITIES}/mine")).status == 404
        assert len((await api.call("GET", PRIORITIES)).value["items"]) == 2

    run(tmp_path, test)


def test_there_are_no_custom_resources(tmp_path: Path) -> None:
    """kubectl lists them before it says that it does not know a kind, and says something else where it cannot."""

    async def test(api: Api) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        listed = await api.call("GET", path)
        assert (listed.status, listed.value["kind"], listed.value["items"]) == (200, "CustomResourceDefinitionList", [])
        assert (await api.call("GET", f"{path}?watch=true")).status == 404
        assert (await api.call("GET", f"{path}/a")).status == 404
        assert (await api.call("POST", path, {})).status == 404
        assert (await api.call("GET", "/apis/apiextensions.k8s.io")).status == 404

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nix", 404, "the server could not find the requested resource"),
        ("GET", "/api/v1/nixes", 404, "the server could not find the requested resource"),
        (
            "POST",
            "/apis/networking.k8s.io/v1/namespaces/x/ingresses",
            404,
            "the server could not find the requested resource: podkeep has no ingresses.networking.k8s.io, "
            "since nothing would act on them",
        ),
        ("GET", "/apis/networking.k8s.io/v1/nixes", 404, "the server could not find the requested resource"),
        ("GET", f"{CMS}/a/status", 404, "the server could not find the requested resource"),
        ("GET", f"{CMS}/a/b/c", 404, "the server could not find the requested resource"),
        ("POST", f"{CMS}/a", 405, "the server does not allow this method on the requested resource"),
        ("PUT", CMS, 405, "the server does not allow this method on the requested resource"),
        ("POST", "/api/v1/configmaps", 405, "the server does not allow this method on the requested resource"),
        ("OPTIONS", CMS, 405, "the server does not allow this method on the requested resource"),
        ("GET", "/api/v1/namespaces/x/nodes/n", 404, "the server could not find the requested resource"),
        ("GET", "/api/v1/namespaces/x/namespaces/n", 404, "the server could not find the requested resource"),
        ("GET", "/api/v1/namespaces/n/namespaces/n", 404, "the server could not find the requested resource"),
        ("GET", "/api/v1/namespaces/x/namespaces", 404, "the server could not find the requested resource"),
        ("GET", "/api/v1/configmaps/a", 404, "the server could not find the requested resource"),
        ("PUT", "/api/v1/configmaps/a", 404, "the server could not find the requested resource"),
        ("POST", "/version", 405, "the server does not allow this method on the requested resource"),
        ("GET", f"{CMS}/..", 400, "invalid resource name \"..\": [may not be '..']"),
        (
            "GET",
            f"{CMS}?labelSelector=a+b",
            400,
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("GET", f"{CMS}?continue=nonsense", 400, "continue key is not valid: incorrect encoding"),
        (
            "GET",
            f"{CMS}?resourceVersion=99",
            504,
            "Too large resource version: 99, current: 0",
        ),
        (
            "GET",
            f"{CMS}?" + "&".join(f"a{n}=1" for n in range(1001)),
            400,
            "the query cannot be read: Max number of fields exceeded",
        ),
    ],
)
def test_what_makes_no_sense_is_a_status(tmp_path: Path, method: str, path: str, status: int, message: str) -> None:
    async def test(api: Api) -> None:
        answer = await api.call(method, path)
        assert (answer.status, answer.message) == (status, message)
        assert answer.value["kind"] == "Status"
        assert answer.value["code"] == status

    run(tmp_path, test)


def test_a_body_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.call("POST", CMS, b" " * (3 << 20) + b"{}")
        assert (answer.status, answer.message) == (413, "Request entity too large: limit is 3145728")

    run(tmp_path, test)


def test_a_list_in_pages_is_of_one_revision(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for name in "abcde":
            await api.call("POST", CMS, _cm(name))
        first = (await api.call("GET", f"{CMS}?limit=2")).value
        assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
        assert first["metadata"]["remainingItemCount"] == 3
        await api.call("DELETE", f"{CMS}/d")
        await api.call("POST", CMS, _cm("cc"))
        second = (await api.call("GET", f"{CMS}?limit=9&continue={first['metadata']['continue']}")).value
        assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d", "e"]
        assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
        exact = f"{CMS}?resourceVersion=3&resourceVersionMatch=Exact"
        found = (await api.call("GET", exact)).value
        assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b", "c"]
        await api.store.compact(api.store.revision)
        old = await api.call("GET", f"{CMS}?limit=9&continue={first['metadata']['continue']}")
        assert (old.status, old.value["reason"]) == (410, "Expired")
        newer = old.value["metadata"]["continue"]
        rest = (await api.call("GET", f"{CMS}?limit=9&continue={newer}")).value
        assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "cc", "e"]
        assert (await api.call("GET", exact)).message == "The resourceVersion for the provided list is too old."

    run(tmp_path, test)


def test_selectors_choose_what_is_listed_and_deleted(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for name in "abcd":
            await api.call("POST", CMS, _cm(name, labels={"even": "yes" if name in "bd" else "no"}))
        page = (await api.call("GET", f"{CMS}?labelSelector=even%3Dyes&limit=1")).value
        assert [item["metadata"]["name"] for item in page["items"]] == ["b"]
        token = page["metadata"]["continue"]
        page = (await api.call("GET", f"{CMS}?labelSelector=even%3Dyes&limit=1&continue={token}")).value
        assert [item["metadata"]["name"] for item in page["items"]] == ["d"]
        assert "continue" not in page["metadata"]
        named = (await api.call("GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Da")).value
        assert [item["metadata"]["name"] for item in named["items"]] == ["a"]
        gone = (await api.call("DELETE", f"{CMS}?labelSelector=even")).value
        assert [item["metadata"]["name"] for item in gone["items"]] == ["a", "b", "c", "d"]
        assert (await api.call("GET", CMS)).value["items"] == []

    run(tmp_path, test)


def test_a_long_list_is_sent_in_pieces(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await asyncio.gather(*(api.call("POST", CMS, _cm(f"c{n}", data={"x": "y" * 9000})) for n in range(30)))
        answer = await api.call("GET", CMS)
        assert answer.lines is not None
        pieces = [piece async for piece in answer.lines]
        assert len(pieces) > 3
        assert max(map(len, pieces)) < 2 * PIECE_BYTES
        assert b"".join(pieces).count(b'"name":"c') == 30

    run(tmp_path, test)


def test_a_table_and_metadata_alone(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.call("POST", CMS, _cm("a", data={"x": "1"}))
        table = (await api.call("GET", CMS, accept=TABLE)).value
        assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        (row,) = table["rows"]
        assert row["cells"][:2] == ["a", 1]
        assert row["object"].keys() == {"kind", "apiVersion", "metadata"}
        whole = (await api.call("GET", f"{CMS}?includeObject=Object", accept=TABLE)).value
        assert whole["rows"][0]["object"]["data"] == {"x": "1"}
        bare = (await api.call("GET", f"{CMS}/a?includeObject=None", accept=TABLE)).value
        assert "object" not in bare["rows"][0]
        partial = (await api.call("GET", CMS, accept=PARTIAL)).value
        assert partial["kind"] == "PartialObjectMetadataList"
        assert partial["items"][0].keys() == {"kind", "apiVersion", "metadata"}
        wrong = await api.call("GET", f"{CMS}?includeObject=All", accept=TABLE)
        assert (wrong.status, "must be 'Metadata', 'Object', 'None', or empty" in wrong.message) == (400, True)
        yaml = await api.call("GET", f"{CMS}/a", accept="application/yaml")
        assert b"data:\n  x: '1'\n" in yaml.body
        refused = await api.call("GET", f"{CMS}/a", accept="application/vnd.kubernetes.protobuf")
        assert refused.status == 406

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [{}, {"metadata": {"name": "a"}}, {"spec": {}}, {"metadata": {"name": "a"}, "spec": {}}]
)
def test_no_kind_fails_on_an_object_with_nothing_in_it(tmp_path: Path, body: dict[str, Any]) -> None:
    async def test(api: Api) -> None:
        for resource in Served().resources:
            group = f"apis/{resource.group}" if resource.group else "api"
            inside = "namespaces/default/" if resource.namespaced else ""
            path = f"/{group}/{resource.kind.version}/{inside}{resource.plural}"
            answer = await api.call("POST", path, body)
            assert answer.status in (201, 400, 409, 422), (path, answer.body)

    run(tmp_path, test)


@pytest.mark.slow
def test_only_those_who_may_are_answered(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.make_roles()
        refused = await api.call("GET", CMS, peer=STRANGER)
        assert (refused.status, refused.message) == (
            403,
            'configmaps is forbidden: User "system:anonymous" cannot list resource "configmaps" in API group "" in the'
            ' namespace "default"',
        )
        assert (await api.call("GET", "/healthz", peer=STRANGER)).body == b"ok"
        assert (await api.call("GET", "/metrics", peer=STRANGER)).status == 403
        wrong = await api.call("GET", CMS, peer=STRANGER, headers={"authorization": "Bearer x"})
        assert (wrong.status, wrong.message) == (401, "Unauthorized")
        as_ann = {"impersonate-user": "ann"}
        assert (await api.call("GET", CMS, headers=as_ann)).status == 403
        binding = {
            "metadata": {"name": "ann"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
        }
        made = await api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        assert made.status == 201
        assert (await api.call("GET", CMS, headers=as_ann)).status == 200
        question = {"spec": {"resourceAttributes": {"verb": "create", "resource": "configmaps", "namespace": "a"}}}
        answer = await api.call(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question, headers=as_ann
        )
        assert (answer.status, answer.value["status"]["allowed"]) == (201, False)

    run(tmp_path, test)


@pytest.mark.slow
def test_a_copy_of_all_is_for_those_alone_who_may_do_everything(tmp_path: Path) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    urls = {"verbs": ["get", "head"], "nonResourceURLs": ["*"]}
    readable = {"verbs": ["get", "list", "watch"], "apiGroups": ["*"], "resources": ["*"]}

    async def test(api: Api) -> None:
        await api.make_roles()
        users = {"ann": [urls], "bob": [urls, readable], "cat": [everything], "dan": [urls, everything]}
        for name, rules in users.items():
            role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]
            role = {"metadata": {"name": name}, "rules": rules}
            assert (await api.call("POST", f"{rbac}/clusterroles", role)).status == 201
            binding = {"metadata": {"name": name}, "roleRef": role_ref, "subjects": subjects}
            assert (await api.call("POST", f"{rbac}/clusterrolebindings", binding)).status == 201

        async def asked(name: str, path: str = backup.PATH) -> Answer:
            return await api.call("GET", path, headers={"impersonate-user": name})

        for name in ("ann", "bob"):
            assert (await asked(name, "/metrics")).status == 200
            refused = await asked(name)
            assert refused.status == 403
            assert f'User "{name}" cannot * resource "*" in API group "*" at the cluster scope' in refused.message
        assert (await asked("cat")).status == 403
        for answer in (await asked("dan"), await api.call("GET", backup.PATH)):
            assert (await answer.rest()).startswith(b"SQLite format 3")
            await answer.leave()

    run(tmp_path, test)


@pytest.mark.slow
def test_an_update_or_apply_creates_for_those_alone_who_may_create(tmp_path: Path) -> None:
    rules = [{"verbs": ["update", "patch"], "apiGroups": ["", "coordination.k8s.io"], "resources": ["*"]}]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "change"}
    lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}

    async def test(api: Api) -> None:
        await api.make_roles()
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        assert (await api.call("POST", f"{rbac}/roles", {"metadata": {"name": "change"}, "rules": rules})).status == 201
        binding = {"metadata": {"name": "change"}, "roleRef": role_ref, "subjects": [subject]}
        assert (await api.call("POST", f"{rbac}/rolebindings", binding)).status == 201

        async def apply(headers: dict[str, str]) -> Answer:
            target = f"{CMS}/a?fieldManager=m"
            return await api.call("PATCH", target, config, content_type=APPLY, headers=headers)

        async def put(headers: dict[str, str]) -> Answer:
            return await api.call("PUT", lease, {"metadata": {"name": "l"}}, headers=headers)

        ann = {"impersonate-user": "ann"}
        refused = await apply(ann)
        assert (refused.status, refused.message) == (
            403,
            'configmaps "a" is forbidden: User "ann" cannot create resource "configmaps" in API group "" in the'
            ' namespace "default"',
        )
        assert (await put(ann)).status == 403
        assert [(await apply({})).status, (await put({})).status] == [201, 201]
        assert (await apply(ann)).status == 200  # it is there now

    run(tmp_path, test)


@pytest.mark.slow
def test_too_many_requests_at_a_time_are_told_to_come_later(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.make_roles()
        refused = await api.call("GET", "/healthz", peer=STRANGER)
        assert (refused.status, refused.headers["Retry-After"]) == (429, ["1"])
        assert refused.message.startswith("Too many requests, please try again later. One user has")
        assert (await api.call("GET", "/healthz")).status == 200  # the administrator's do not count

    run(tmp_path, test, InFlight(reads=0, writes=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "as_", ["", ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"]
)
@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_a_list_in_yaml_and_pretty_has_what_the_list_in_json_has(
    tmp_path: Path, as_: str, names: tuple[str, ...]
) -> None:
    async def test(api: Api) -> None:
        for name in names:
            await api.call("POST", CMS, _cm(name, data={"x": "1\n- y", "z": "" if name == "b" else "é"}))
        plain = again = b""
        # The ages in a table may be a second more from one answer to the next.
        while not plain or again != plain:
            plain = await _rest(await api.call("GET", CMS, accept=f"application/json{as_}"))
            in_yaml = await _rest(await api.call("GET", CMS, accept=f"application/yaml{as_}"))
            pretty = await _rest(await api.call("GET", f"{CMS}?pretty=true", accept=f"application/json{as_}"))
            again = await _rest(await api.call("GET", CMS, accept=f"application/json{as_}"))
        expected = json.loads(plain)
        assert len(expected.get("rows", expected.get("items"))) == len(names)
        assert in_yaml == to_yaml(expected, sort_keys=True).encode()
        assert pretty == msgspec.json.format(plain, indent=2) + b"\n"

    run(tmp_path, test)


@pytest.mark.slow
def test_a_large_object_in_yaml_is_made_as_fast_as_in_json(tmp_path: Path) -> None:
    """One with many fields kept the API from answering anybody for half a second, each time it was asked for."""

    async def test(api: Api) -> None:
        data = {f"k{number}": "" for number in range(9_000)} | {"z": '\x7f\x85\u2028\ufeff\uffff é\U0001f600\n\t\\"'}
        created = await api.call("POST", CMS, _cm("a", data=data))
        assert created.status == 201, created.body[:300]
        await api.call("POST", CMS, _cm("b", data={"x": "1"}))
        one = await api.call("GET", f"{CMS}/a", accept="application/yaml")
        assert json.loads(one.body)["data"] == data
        assert yaml.load(one.body, yaml.CSafeLoader)["data"] == data
        listed = await _rest(await api.call("GET", CMS, accept="application/yaml"))
        plain = await _rest(await api.call("GET", CMS))
        assert yaml.load(listed, yaml.CSafeLoader) == json.loads(plain)
        assert b"- apiVersion: v1\n  data:\n    x: '1'\n" in listed  # what is short is as always

    run(tmp_path, test)


def test_a_large_object_with_a_long_key_is_yaml() -> None:
    """YAML takes a key of more than 1,024 characters only with an indicator before it; managedFields may have such."""
    key = 'v:"' + "é\\" * 700 + '":'
    value = {"data": {"k": "x" * 40_000, "like": '{"' + "y" * 1_100 + '": 1}'}, "fields": [{"f:a": {key: {}, "b": 1}}]}
    form = Form(media_type=YAML)
    for written in (output.written(value, form), output.written(output.encode(value), form)):
        assert yaml.load(written, yaml.CSafeLoader) == value
        assert yaml.load(written, yaml.SafeLoader) == value


_LARGE = "x" * 500_000
WATCH_OF_ALL = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"


@pytest.mark.slow
@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("DELETE", "dryRun=All&")])
@pytest.mark.parametrize("form", ["application/json", "application/json;pretty=1", "application/yaml"])
def test_a_large_list_is_made_while_it_is_sent(tmp_path: Path, method: str, query: str, form: str) -> None:
    async def test(api: Api) -> None:
        for name in "abcdef":
            await api.call("POST", CMS, _cm(name, data={"x": _LARGE}))
        answer = await api.call(method, f"{CMS}?{query}", accept=form)
        assert answer.lines is not None
        pieces = [piece async for piece in answer.lines]
        assert len(pieces) >= 6
        assert max(map(len, pieces)) < 2 * len(_LARGE)
        found = yaml.load(b"".join(pieces), yaml.CSafeLoader)
        assert [item["metadata"]["name"] for item in found["items"]] == list("abcdef")

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "resourceVersionMatch=Exact&resourceVersion={revision}", WATCH_OF_ALL])
def test_what_a_slow_client_gets_is_not_kept_for_it(
    tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HISTORY_EVENTS", 0)
    names = "abcdefgh"

    async def test(api: Api) -> None:
        made = [await api.call("POST", CMS, _cm(name, data={"x": name + _LARGE})) for name in names]
        if "Exact" in query:
            await api.call("PUT", f"{CMS}/h", _cm("h", data={"x": "new"}))
        revision = made[-1].value["metadata"]["resourceVersion"]
        answer = await api.call("GET", f"{CMS}?{query.format(revision=revision)}")
        assert answer.lines is not None
        pieces = [await anext(answer.lines)]
        for name in "bcdefg":
            await api.call("PUT", f"{CMS}/{name}", _cm(name, data={"x": "new"}))
        await api.call("DELETE", f"{CMS}/h")
        await api.call("POST", CMS, _cm("z"))
        gc.collect()
        kept = [item for item in gc.get_objects() if isinstance(item, Stored) and _LARGE.encode() in item.value]
        # The newest of its name, and what is sent next; a watch has what it still has to tell, which is bounded, too.
        assert {item.key.name for item in kept} <= {*(names if query == WATCH_OF_ALL else "abc")}
        while sum(map(len, pieces)) < len(names) * len(_LARGE):
            pieces.append(await anext(answer.lines))
        if query == WATCH_OF_ALL:
            while b"BOOKMARK" not in pieces[-1]:
                pieces.append(await anext(answer.lines))
            await api.call("POST", CMS, _cm("y"))
            await anext(answer.lines)
            gc.collect()
            assert not [item for item in gc.get_objects() if isinstance(item, lists.Objects)]
        await answer.leave()
        text = b"".join(pieces)
        assert [text.count(f'"{name}xxx'.encode()) for name in names] == [1] * len(names)
        assert b'"new"' not in text

    run(tmp_path, test)


@pytest.mark.parametrize("query", ["", WATCH_OF_ALL])
def test_clients_who_are_sent_a_large_object_have_no_copies(tmp_path: Path, query: str) -> None:
    async def test(api: Api) -> None:
        for name in "abc":
            await api.call("POST", CMS, _cm(name, data={"x": _LARGE if name == "b" else name}))
        stored = api.store.get(Key("configmaps", "default", "b"))
        assert stored is not None
        answer = await api.call("GET", f"{CMS}?{query}")
        assert answer.lines is not None
        pieces = [await anext(answer.lines)]
        async with asyncio.timeout(20):
            while pieces[-1] is not stored.value:
                pieces.append(await anext(answer.lines))
        assert b'"name":"a"' in b"".join(pieces[:-1])
        assert len(b"".join(pieces[:-1])) < PIECE_BYTES
        await answer.leave()

    run(tmp_path, test)


@pytest.mark.parametrize("accept", ["application/json", TABLE])
def test_watchers_who_are_told_of_a_large_object_have_no_copies(tmp_path: Path, accept: str) -> None:
    async def test(api: Api) -> None:
        revision = (await api.call("POST", CMS, _cm("a"))).value["metadata"]["resourceVersion"]
        query = f"watch=true&includeObject=Object&resourceVersion={revision}"
        watches = [await api.call("GET", f"{CMS}?{query}", accept=accept) for _ in range(2)]
        await api.call("POST", CMS, _cm("b"))
        await api.call("POST", CMS, _cm("c", data={"x": _LARGE}))
        told = []
        for watch in watches:
            assert watch.lines is not None
            pieces: list[bytes] = []
            async with asyncio.timeout(20):
                while len(pieces) < 2:
                    pieces += filter(None, [await anext(watch.lines)])
            assert json.loads(pieces[0])["type"] == json.loads(pieces[1])["type"] == "ADDED"
            assert len(pieces[0]) < PIECE_BYTES < len(pieces[1])
            told.append(pieces[1])
            await watch.leave()
        assert told[0] is told[1]

    run(tmp_path, test)


async def _allow(api: Api, *users: str) -> None:
    """Allow them everything; they are no administrators."""
    role = {"metadata": {"name": "all"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"}
    subjects = [{"apiGroup": ref["apiGroup"], "kind": "User", "name": name} for name in users]
    assert (await api.call("POST", f"{RBAC}/clusterroles", role)).status == 201
    binding = {"metadata": {"name": "all"}, "roleRef": ref, "subjects": subjects}
    assert (await api.call("POST", f"{RBAC}/clusterrolebindings", binding)).status == 201


PAST = "resourceVersion={past}"
IN_FULL = "application/json;as=Table;v=v1;g=meta.k8s.io"
WATCH_OF_ALL_IN_FULL = f"{WATCH_OF_ALL}&includeObject=Object"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "accept"),
    [
        (CMS, "application/json;pretty=1"),
        (CMS, "application/yaml"),
        (f"{CMS}?includeObject=Object", IN_FULL),
        (f"{CMS}?{WATCH_OF_ALL_IN_FULL}", IN_FULL),
        (f"{CMS}?resourceVersionMatch=Exact&{PAST}", "application/json"),
        (f"{CMS}?watch=true&{PAST}", "application/json"),
    ],
)
def test_what_is_kept_of_large_objects_for_slow_clients_is_bounded(
    tmp_path: Path, path: str, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HISTORY_EVENTS", 0)
    limits = InFlight()
    limits.kept = Slots(4 * len(_LARGE))

    async def test(api: Api) -> None:
        await _allow(api, "ann", "bob")
        await api.call("POST", CMS, _cm("a", data={"x": "first"}))
        past = api.store.revision
        if PAST in path:
            await api.call("PUT", f"{CMS}/a", _cm("a", data={"x": _LARGE}))
            past += "watch" not in path
            await api.call("PUT", f"{CMS}/a", _cm("a", data={"x": "last"}))
        else:
            await api.call("PUT", f"{CMS}/a", _cm("a", data={"x": _LARGE}))

        async def begun(user: str) -> tuple[bool, Answer]:
            """Take the answer up to the large object, if it is there."""
            answer = await api.call("GET", path.format(past=past), accept=accept, headers={"impersonate-user": user})
            if answer.lines is None:
                assert answer.status == 429
                return False, answer
            async with asyncio.timeout(20):
                async for piece in answer.lines:
                    if len(piece) > len(_LARGE):
                        return True, answer
                    if b"TooManyRequests" in piece:
                        return False, answer
            raise AssertionError("it ended")

        answers = [await begun("ann") for _ in range(3)]
        assert [there for there, _ in answers].count(True) in (1, 2)
        assert not answers[2][0]
        assert (await begun("bob"))[0]
        for _, answer in answers:
            await answer.leave()
        assert (await begun("ann"))[0]

    run(tmp_path, test, limits)


def test_an_object_that_is_made_for_its_client_is_kept_within_bounds(tmp_path: Path) -> None:
    limits = InFlight()
    limits.kept = Slots(PIECE_BYTES)

    async def test(api: Api) -> None:
        await api.call("POST", CMS, _cm("a", data={"x": _LARGE}))
        path = f"{CMS}/a?pretty=true"
        assert (await api.call("GET", path)).status == 200
        assert limits.kept.users == {}
        with limits.kept.taken("ann", 1):
            assert (await api.call("GET", path)).status == 200  # administrators are not counted
        await _allow(api, "ann")
        ann = {"impersonate-user": "ann"}
        assert (await api.call("GET", path, headers=ann)).status == 200
        with limits.kept.taken("ann", 1):
            refused = await api.call("GET", path, headers=ann)
            assert (refused.status, refused.headers["Retry-After"]) == (429, ["1"])
            assert (await api.call("GET", f"{CMS}/a", headers=ann)).status == 200  # as it is stored
        assert limits.kept.users == {}

    run(tmp_path, test, limits)


def test_large_requests_and_what_answers_them_are_kept_within_bounds(tmp_path: Path) -> None:
    """A refusal shows what was sent, several times, and was kept whole for each client that did not take it."""
    limits = InFlight()
    limits.kept = Slots(2 * len(_LARGE))
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    unknown = {"spec": {"resourceAttributes": {"verb": "get"}, "x" * OWN_BYTES: 1}}
    large = _cm("a", data={"x": _LARGE})
    node = {"metadata": {"name": "n", "annotations": {"x": "x" * OWN_BYTES}}}

    async def test(api: Api) -> None:
        await _allow(api, "ann")
        ann = {"impersonate-user": "ann"}
        assert (await api.call("POST", CMS, large, headers=ann)).status == 201
        assert (await api.call("POST", "/api/v1/nodes", node, headers=ann)).status == 201
        assert (await api.call("POST", f"{reviews}?fieldValidation=Strict", unknown, headers=ann)).status == 400
        assert limits.kept.users == {}
        with limits.kept.taken("ann", len(_LARGE)):
            for method, path, body, media in (
                ("POST", CMS, _cm("b", data={"x": _LARGE}), "application/json"),
                ("PUT", f"{CMS}/a", large, "application/json"),
                ("PATCH", f"{CMS}/a", {"data": {"y": "1"}}, MERGE),
                ("PUT", "/api/v1/nodes/n/status", {"metadata": {"name": "n"}}, "application/json"),
                ("DELETE", f"{CMS}/a", None, "application/json"),
                ("POST", f"{reviews}?fieldValidation=Strict", unknown, "application/json"),
            ):
                refused = await api.call(method, path, body, content_type=media, headers=ann)
                assert (method, refused.status, refused.headers["Retry-After"]) == (method, 429, ["1"])
            assert (await api.call("PUT", f"{CMS}/a", large)).status == 200  # administrators are not counted
            assert (await api.call("POST", CMS, _cm("c"), headers=ann)).status == 201
        assert (await api.call("DELETE", f"{CMS}/a", headers=ann)).status == 200
        assert limits.kept.users == {}

    run(tmp_path, test, limits)


@pytest.mark.slow
def test_a_list_whose_revision_is_compacted_while_it_is_sent_ends(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for name in "abcdef":
            await api.call("POST", CMS, _cm(name, data={"x": _LARGE}))
        answer = await api.call("GET", CMS)
        assert answer.lines is not None
        await anext(answer.lines)
        for name in "abcdef":
            await api.call("PUT", f"{CMS}/{name}", _cm(name, data={"x": "new"}))
        await api.store.compact(api.store.revision)
        with pytest.raises(Compacted):
            await answer.rest()

    run(tmp_path, test)


def test_a_list_of_then_whose_revision_is_compacted_before_it_is_read_is_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(api: Api) -> None:
        for name in "abc":
            await api.call("POST", CMS, _cm(name, data={"x": _LARGE}))
        revision = api.store.revision
        first = json.loads(await _rest(await api.call("GET", f"{CMS}?limit=1")))["metadata"]["continue"]
        for name in "abc":
            await api.call("PUT", f"{CMS}/{name}", _cm(name, data={"x": "new"}))
        values = api.store.values

        async def compacted(*arguments: Any) -> list[bytes]:
            await api.store.compact(api.store.revision)
            return await values(*arguments)

        monkeypatch.setattr(lists, "KEPT_BYTES", 1)
        monkeypatch.setattr(api.store, "values", compacted)
        exact = await api.call("GET", f"{CMS}?resourceVersionMatch=Exact&resourceVersion={revision}")
        assert (exact.status, exact.value["reason"]) == (410, "Expired")
        rest = await api.call("GET", f"{CMS}?continue={first}")
        assert (rest.status, rest.value["reason"]) == (410, "Expired")

    run(tmp_path, test)


def test_pages_of_then_go_on_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PAST_BYTES", 1)

    async def test(api: Api) -> None:
        for name in "abcdefg":
            await api.call("POST", CMS, _cm(name, labels={"is": "odd" if name in "bdf" else "even"}))
        first = await api.call("GET", f"{CMS}?limit=2&labelSelector=is=even")
        await api.call("POST", CMS, _cm("h", labels={"is": "even"}))
        found, page = [], first.value
        while True:
            found += [item["metadata"]["name"] for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                break
            assert len(page["items"]) == 2
            page = (await api.call("GET", f"{CMS}?limit=2&labelSelector=is=even&continue={token}")).value
        assert found == list("aceg")
        at = first.value["metadata"]["resourceVersion"]
        whole = await api.call("GET", f"{CMS}?resourceVersionMatch=Exact&resourceVersion={at}")
        assert [item["metadata"]["name"] for item in whole.value["items"]] == list("abcdefg")

    run(tmp_path, test)


def test_a_watch_as_a_table_has_its_columns_with_the_first_object(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.call("POST", CMS, _cm("a"))
        watch = await api.call("GET", f"{CMS}?watch=true&fieldSelector=metadata.name=b", accept=TABLE)
        await api.call("POST", CMS, _cm("b"))
        (event,) = await watch.events(1)
        assert event["object"]["columnDefinitions"][0]["name"] == "Name"
        await watch.leave()

    run(tmp_path, test)


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", f"&{WATCH_OF_ALL}"])
def test_while_a_selector_reads_large_objects_others_have_their_turn(
    tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "TURN_BYTES", len(_LARGE))
    monkeypatch.setattr(lists, "KEPT_BYTES", len(_LARGE))

    async def test(api: Api) -> None:
        for name in "abcdef":
            await api.call("POST", CMS, _cm(name, data={"x": _LARGE}))
        others = _Others()
        answer = await api.call("GET", f"{CMS}?labelSelector=a{query}")
        if answer.lines is None:
            assert answer.value["items"] == []
        else:
            while await anext(answer.lines) == b"":  # the bookmark is not
                pass
        assert others.end() >= 6
        await answer.leave()

    run(tmp_path, test)


def test_while_many_objects_are_listed_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "ADDED_AT_ONCE", 1)

    async def test(api: Api) -> None:
        for number in range(20):
            await api.call("POST", CMS, _cm(f"c{number}"))
        others = _Others()
        answer = await api.call("GET", CMS)
        assert others.end() >= 19
        assert len(answer.value["items"]) == 20

    run(tmp_path, test)


class _Others:
    """Somebody else, who is content with one turn of the event loop after the other, and counts them."""

    def __init__(self) -> None:
        self._turns = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._turns += 1
            await asyncio.sleep(0)

    def end(self) -> int:
        self._task.cancel()
        return self._turns


async def _rest(answer: Answer) -> bytes:
    assert answer.status == 200
    return answer.body if answer.lines is None else await answer.rest()


@pytest.mark.slow
def test_a_watch_is_one_of_its_users_streams_until_it_ends(tmp_path: Path) -> None:
    limits = InFlight(streams=8, watches=1)

    async def test(api: Api) -> None:
        await api.make_roles()
        as_ann = {"impersonate-user": "ann", "impersonate-group": "dev"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        binding = {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}
        assert (await api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)).status == 201
        watch = await api.call("GET", f"{CMS}?watch=true", headers=as_ann)
        assert (watch.status, limits.streams.used) == (200, 1)
        assert (await api.call("GET", f"{CMS}?watch=true", headers=as_ann)).status == 429
        await watch.leave()
        assert limits.streams.used == 0

    run(tmp_path, test, limits)


@pytest.mark.slow
def test_a_watch_with_a_long_selector_takes_more_seats(tmp_path: Path) -> None:
    limits = InFlight()

    async def test(api: Api) -> None:
        await api.make_roles()
        as_ann = {"impersonate-user": "ann", "impersonate-group": "dev"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        binding = {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}
        assert (await api.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)).status == 201
        for path in (f"{CMS}?watch=true", CMS.replace("/api/v1/", "/api/v1/watch/") + "?"):
            values = ",".join(f"v{number}" for number in range(1_000))
            watch = await api.call("GET", f"{path}&labelSelector=a%20in%20({values})", headers=as_ann)
            assert (watch.status, limits.streams.used) == (200, 1 + len(f"a in ({values})") // SEAT_CHARACTERS)
            await watch.leave()
        assert limits.streams.used == 0

    run(tmp_path, test, limits)


def test_health_version_and_metrics(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        verbose = await api.call("GET", "/readyz?verbose")
        assert verbose.body == b"[+]ping ok\nreadyz check passed\n"
        assert (await api.call("GET", "/livez/ping")).body == b"ok"
        assert (await api.call("GET", "/livez/nix")).status == 404
        assert (await api.call("GET", "/version")).value["major"] == "1"
        await api.call("GET", CMS)
        text = (await api.call("GET", "/metrics")).body.decode()
        assert 'apiserver_request_total{code="200",dry_run="",group="",resource="configmaps"' in text

    run(tmp_path, test)


def test_discovery_says_the_same_in_both_forms(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        plain = {}
        for group in (await api.call("GET", "/apis")).value["groups"]:
            version = group["preferredVersion"]["groupVersion"]
            plain |= {(group["name"], item["name"]): item for item in await _resources(api, f"/apis/{version}")}
        plain |= {("", item["name"]): item for item in await _resources(api, "/api/v1")}
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        aggregated = {}
        for path in ("/api", "/apis"):
            answer = await api.call("GET", path, accept=accept)
            assert answer.headers["Content-Type"] == [
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            ]
            again = await api.call("GET", path, accept=accept, headers={"if-none-match": answer.headers["ETag"][0]})
            assert again.status == 304
            for group in answer.value["items"]:
                for version in group["versions"]:
                    for item in version["resources"]:
                        key = group["metadata"].get("name", "")
                        aggregated[key, item["resource"]] = item
                        for part in item.get("subresources", ()):
                            aggregated[key, f"{item['resource']}/{part['subresource']}"] = part
        assert aggregated.keys() == plain.keys()
        assert all(aggregated[key]["verbs"] == plain[key]["verbs"] for key in plain)
        assert plain["apps", "deployments/scale"]["kind"] == "Scale"
        assert plain["", "pods"]["shortNames"] == ["po"]

    async def _resources(api: Api, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await api.call("GET", path)).value["resources"]
        return found

    run(tmp_path, test)
