"""OpenAPI in both versions, and the same as protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from podkeep.apiserver.discovery import openapi_schemas
from podkeep.apiserver.discovery.catalog import Catalog
from podkeep.apiserver.discovery.openapi import OpenApi
from podkeep.apiserver.kinds.served import Served
from podkeep.apiserver.schema import protobuf
from podkeep.apiserver.schema.table import kubernetes


@cache
def _documents() -> OpenApi:
    return OpenApi(Catalog(Served()))


def _v3(place: str) -> dict[str, Any]:
    body = _documents().v3(place)
    assert body is not None
    found: dict[str, Any] = json.loads(body)
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "$ref":
                yield item.rpartition("/")[2]
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


@pytest.mark.slow
def test_every_document_has_what_it_refers_to() -> None:
    root = _documents().root()["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/authorization.k8s.io/v1"} <= root.keys()
    for place, where in root.items():
        assert where["serverRelativeURL"].startswith(f"/openapi/v3/{place}?hash=")
        document = _v3(place)
        assert set(_references(document)) <= document["components"]["schemas"].keys()
    swagger = json.loads(_documents().v2_json)
    assert set(_references(swagger)) <= swagger["definitions"].keys()


def test_patches_say_that_they_validate_fields() -> None:
    patch = _v3("apis/apps/v1")["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert {"fieldValidation", "dryRun", "fieldManager"} <= {item["name"] for item in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}


def test_fields_say_how_they_are_merged() -> None:
    spec = _v3("api/v1")["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
    containers = spec["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert (containers["x-kubernetes-list-type"], containers["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert spec["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"


def test_a_hash_changes_with_what_is_served() -> None:
    fewer = OpenApi(Catalog(Served([item for item in Served().resources if item.plural != "pods"])))
    assert fewer.hash("api/v1") != _documents().hash("api/v1")
    assert fewer.hash("apis/apps/v1") == _documents().hash("apis/apps/v1")


def test_descriptions_are_of_fields_that_there_are() -> None:
    table = kubernetes()
    structs = {}
    for kind in table.kinds:
        todo = [table.kind(kind)]
        while todo:
            struct = todo.pop()
            if struct.name not in structs:
                structs[struct.name] = struct
                for field in struct.fields.values():
                    kinds = [field.type, getattr(field.type, "items", None), getattr(field.type, "values", None)]
                    todo += [item for item in kinds if type(item) is type(struct)]
    known = {struct.short_name: struct for struct in structs.values()}
    for name in openapi_schemas.descriptions():
        owner, _, field_name = name.partition(".")
        if owner != "*":
            assert owner in known, name
            assert not field_name or field_name in known[owner].fields, name


_ASKED = (
    "Affinity ConfigMapVolumeSource Container DaemonSetSpec Deployment DeploymentSpec DownwardAPIVolumeSource "
    "EmptyDirVolumeSource EnvVar EnvVarSource ExecAction HTTPGetAction HostPathVolumeSource ImageVolumeSource "
    "Lifecycle LimitRangeItem LimitRangeSpec Namespace PersistentVolumeClaimSpec "
    "PersistentVolumeClaimVolumeSource Pod PodDisruptionBudgetSpec PodSecurityContext PodSpec Probe "
    "ProjectedVolumeSource ResourceQuotaSpec ResourceRequirements Role RoleBinding SecretVolumeSource "
    "SecurityContext ServiceAccount ServicePort StatefulSetSpec Taint Toleration VolumeMount"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("name", _ASKED)
def test_what_people_ask_about_is_described(name: str) -> None:
    schemas = json.loads(_documents().v2_json)["definitions"]
    (schema,) = [item for full, item in schemas.items() if full.rpartition(".")[2] == name]
    assert [field for field, item in schema["properties"].items() if not item.get("description")] == []


def _named(data: bytes, number: int) -> dict[str, bytes]:
    """Return the entries of a message that are pairs of name and value."""
    found = {}
    for at, value in protobuf._fields(data):
        if at == number:
            assert isinstance(value, bytes)
            pair = dict(protobuf._fields(value))
            name, content = pair[1], pair.get(2, b"")
            assert isinstance(name, bytes)
            assert isinstance(content, bytes)
            found[name.decode()] = content
    return found


def test_the_protobuf_says_what_the_json_says() -> None:
    swagger = json.loads(_documents().v2_json)
    document = dict(protobuf._fields(_documents().v2_protobuf))
    assert document[1] == b"2.0"
    paths, definitions = document[8], document[9]
    assert isinstance(paths, bytes)
    assert isinstance(definitions, bytes)
    assert _named(paths, 2).keys() == swagger["paths"].keys()
    types = _named(definitions, 1)
    assert types.keys() == swagger["definitions"].keys()
    for name, data in types.items():
        expected = swagger["definitions"][name]
        schema = dict(protobuf._fields(data))
        properties = schema.get(25, b"")
        assert isinstance(properties, bytes)
        assert _named(properties, 1).keys() == expected.get("properties", {}).keys()
        extensions = {key: json.loads(dict(protobuf._fields(value))[2]) for key, value in _named(data, 31).items()}  # type: ignore[arg-type]
        assert extensions == {key: value for key, value in expected.items() if key.startswith("x-")}
