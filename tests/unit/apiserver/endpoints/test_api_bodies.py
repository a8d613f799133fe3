"""Reading bodies: JSON, YAML and protobuf, and what is said of what they should not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from podkeep.api.fields import MAX_CHARACTERS
from podkeep.apiserver.endpoints.resources import applied, patch_value
from podkeep.apiserver.kinds.cluster import configuration
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import PatchType
from podkeep.apiserver.requests import bodies
from podkeep.apiserver.requests.bodies import FieldValidation
from podkeep.apiserver.requests.media_types import JSON, PROTOBUF, YAML
from podkeep.apiserver.requests.options import write_options
from podkeep.apiserver.requests.query import Query
from podkeep.apiserver.schema import protobuf
from podkeep.apiserver.schema.table import Kind, kubernetes

CONFIG_MAP = Kind("", "v1", "ConfigMap")
DEPLOYMENT = Kind("apps", "v1", "Deployment")


def _read(text: bytes, validation: FieldValidation = FieldValidation.STRICT, media_type: str = JSON) -> Any:
    return bodies.decode_object(text, media_type, CONFIG_MAP, validation, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b'{"metadata": {"name": "a"},\n "data": }',
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse"
            ' error: line 2, column 10: JSON is malformed: invalid character ({"metadata": {"name": "a"},\n " ...)',
        ),
        (
            b"",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse"
            " error: line 1, column 1: Input data was truncated (<empty>)",
        ),
        (
            b'{"kind": "Pod", "apiVersion": "v1"}',
            'Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown'
            " conversion",
        ),
        (
            b'{"kind": "Nix", "apiVersion": "v1"}',
            'Nix in version "v1" cannot be handled as a ConfigMap: no kind "Nix" is registered for version "v1"',
        ),
        (
            b'{"data": {"a": 1}}',
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct'
            " field ConfigMap.data of type string",
        ),
        (b'{"kind": 1}', "apiVersion and kind must be strings"),
        (b'{"metadata":' + b'{"a":' * 70 + b"1" + b"}" * 71, "the body nests more than 64 levels deep"),
        (b"[" * 5000 + b"]" * 5000, "the body nests more than 64 levels deep"),
        (b'{"metadata": {"generation": ' + b"9" * 400 + b"}}", "a number is out of range"),
        (
            b'{"dato": {}, "metadata": {"name": "a", "name": "b", "labels": {"x": "1", "x": "2"}}}',
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dato",'
            ' duplicate field "metadata.name", duplicate field "metadata.labels.x"',
        ),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(text: bytes, expected: str) -> None:
    with pytest.raises(StatusError) as refused:
        _read(text)
    assert (refused.value.code, refused.value.message) == (400, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "media_type"),
    [
        (b'{"data": [' + b"{}," * 10_000 + b"{}]}", JSON),
        (b"data: [" + b"{}," * 10_000 + b"{}]", YAML),
        # Of JSON with many more no value is made: the end of this one is not even looked at.
        (b'{"data": [' + b'{"a\\",": "\\\\"},' * 200_000, JSON),
        (b'{"data": [' + b"{}," * 900_000 + b"{}]}", YAML),
        # Reading on to the end of these took 10 s and more, in which nothing else is answered.
        (b"- a\n" * (bodies.MAX_BYTES // 4), YAML),
        (b"{" + b"x: y, " * (bodies.MAX_BYTES // 6 - 1) + b"}", YAML),
        (b"---\n" * (bodies.MAX_BYTES // 4), YAML),
        (b"- &a [" + b"x," * 1000 + b"]\n" + b"- *a\n" * 101, YAML),
    ],
)
def test_a_body_of_very_many_values_is_refused(text: bytes, media_type: str) -> None:
    with pytest.raises(StatusError) as refused:
        bodies.parse(text, media_type, strict=False)
    assert (refused.value.code, refused.value.message) == (413, "Request entity too large: limit is 10000 values")


def test_managed_fields_count_apart() -> None:
    managed = b'{"metadata": {"managedFields": [{"fieldsV1": {%s}}]}}'
    fields = [b'"f:%d": {}' % number for number in range(20_000)]
    bodies.parse(managed % b",".join(fields[:19_000]), JSON, strict=False)
    with pytest.raises(StatusError, match="limit is 20000 values of managedFields"):
        bodies.parse(managed % b",".join(fields), JSON, strict=False)


@pytest.mark.slow
def test_a_json_patch_has_as_many_values_as_its_operations_need() -> None:
    operations = [{"op": "test", "path": "/data/a", "value": "b"}] * 10_000
    found = patch_value(json.dumps(operations).encode(), PatchType.JSON, FieldValidation.STRICT, [])
    assert found == operations
    merge = {"data": dict.fromkeys(map(str, range(10_000)), "")}
    with pytest.raises(StatusError, match="limit is 10000 values"):
        patch_value(json.dumps(merge).encode(), PatchType.MERGE, FieldValidation.STRICT, [])


def test_commas_in_texts_are_no_values() -> None:
    text = b'{"data": {"table.csv": "' + b"1,2\\n" * 100_000 + b'"}}'
    assert len(bodies.parse(text, JSON, strict=False).value["data"]["table.csv"]) == 400_000


_LONG = "x" * 100_000
_TWICE = ", ".join(f'"a{number}": 1, "a{number}": 1' for number in range(100))


@pytest.mark.parametrize(
    ("text", "media_type", "told"),
    [
        (f'{{"{_LONG}": {{{_TWICE}}}}}', JSON, f"{_LONG}.a10"),
        (f"? &k {_LONG}\n: 1\n" + "*k : 2\n" * 100, YAML, "  line 3: key"),
        (f'{{"{_LONG}": 1, "b": [{{"c": 1, "c": 2}}]}}', JSON, "b[0].c"),
    ],
)
def test_what_is_said_of_fields_that_are_given_twice_is_bounded(text: str, media_type: str, told: str) -> None:
    """A field of 1.5 MB with thousands of others in it, each given twice, was told with each of them: in 10 GB."""
    parsed = bodies.parse(text.encode(), media_type, strict=True)
    found = parsed.duplicates or parsed.repeated
    assert any(item.startswith(told) for item in found)
    assert sum(map(len, found)) <= MAX_CHARACTERS + 2 * len(_LONG)


def test_what_is_unknown_or_given_twice_is_told_as_warnings() -> None:
    warnings: list[str] = []
    text = b'{"dato": {}, "metadata": {"name": "a", "name": "b"}}'
    found = bodies.decode_object(text, JSON, CONFIG_MAP, FieldValidation.WARN, warnings)
    assert found == {"metadata": {"name": "b"}}
    assert warnings == ['unknown field "dato"', 'duplicate field "metadata.name"']


def test_nothing_is_said_if_the_client_does_not_want_it() -> None:
    warnings: list[str] = []
    bodies.decode_object(b'{"dato": 1, "data": {}, "data": {}}', JSON, CONFIG_MAP, FieldValidation.IGNORE, warnings)
    assert warnings == []


def test_many_keys_given_twice_are_told_without_comparing_each_with_each() -> None:
    names = [f"k{number}" for number in range(9_000)]
    data = ",".join(f'"{name}":"","{name}":""' for name in names)
    assert bodies.parse(f"{{{data}}}".encode(), JSON, strict=True).duplicates == names


def test_the_same_as_yaml() -> None:
    assert _read(b"metadata:\n  name: a\ndata:\n  x: '1'\n", media_type=YAML) == {
        "metadata": {"name": "a"},
        "data": {"x": "1"},
    }
    with pytest.raises(StatusError, match="line 2, column 4"):
        _read(b"a: b\n  c: d\n", media_type=YAML)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _message(*fields: tuple[int, int | bytes | str]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _unknown(version: str, kind: str, raw: bytes) -> bytes:
    return protobuf.MAGIC + _message((1, _message((1, version), (2, kind))), (2, raw), (3, ""), (4, ""))


def test_a_deployment_as_protobuf_is_what_the_same_client_sends_as_json() -> None:
    labels = _message((1, "app"), (2, "web"))
    resources = _message((2, _message((1, "cpu"), (2, _message((1, "100m"))))))
    port = _message((1, ""), (2, 0), (3, 80), (4, ""), (5, ""))
    probe = _message((1, _message((2, _message((1, "/"), (2, _message((1, 0), (2, 80), (3, ""))))))), (2, 5))
    container = _message((1, "nginx"), (2, "nginx"), (5, ""), (6, port), (8, resources), (10, probe), (14, ""))
    pod = _message((1, _message((1, ""), (11, labels))), (2, _message((2, container), (3, ""), (11, 0))))
    spec = _message((1, 0), (2, _message((1, labels))), (3, pod), (4, _message((1, ""))), (5, 0), (7, 0))
    meta = _message((1, "web"), (2, ""), (8, b""), (11, labels))
    raw = _message((1, meta), (2, spec), (3, _message((1, 0))))
    found = bodies.decode_object(
        _unknown("apps/v1", "Deployment", raw), PROTOBUF, DEPLOYMENT, FieldValidation.STRICT, []
    )
    assert found == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 0,  # a pointer: that it is zero was said
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "containers": [
                        {
                            "name": "nginx",
                            "image": "nginx",
                            "ports": [{"containerPort": 80}],
                            "resources": {"requests": {"cpu": "100m"}},
                            "livenessProbe": {"httpGet": {"path": "/", "port": 80}, "initialDelaySeconds": 5},
                        }
                    ]
                },
            },
        },
        "status": {},
    }


@pytest.mark.parametrize(
    ("version", "kind", "raw"),
    [
        (
            "authorization.k8s.io/v1",
            "SelfSubjectAccessReview",
            b"\x0a\x00" + _message((2, _message((1, _message((9, b"\x12\x00" * 60_000)))))),
        ),
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview", b"\x78\x00" * 60_000),
        ("apps/v1", "ControllerRevision", _message((2, _message((1, b"[" + b"{}," * 60_000 + b"1]"))))),
    ],
    ids=["messages", "unknown fields", "embedded JSON"],
)
def test_protobuf_of_very_many_values_is_refused(version: str, kind: str, raw: bytes) -> None:
    group, _, name = version.partition("/")
    with pytest.raises(StatusError) as refused:
        bodies.decode_object(
            _unknown(version, kind, raw), PROTOBUF, Kind(group, name, kind), FieldValidation.STRICT, []
        )
    assert (refused.value.code, refused.value.message) == (413, "Request entity too large: limit is 10000 values")


@pytest.mark.requirement("V1", "V2", "V3", "V6")
def test_image_volumes_as_protobuf() -> None:
    """Tag 30 of VolumeSource: ``reference`` is its first field, ``pullPolicy`` its second (k8s.io/api: core/v1)."""
    volume = _message((1, "data"), (2, _message((30, _message((1, "example.com/data:1"), (2, "Always"))))))
    raw = _message((1, _message((1, "web"))), (2, _message((1, volume), (2, _message((1, "main"))))))
    found = bodies.decode_object(
        _unknown("v1", "Pod", raw), PROTOBUF, Kind("", "v1", "Pod"), FieldValidation.STRICT, []
    )
    image = {"reference": "example.com/data:1", "pullPolicy": "Always"}
    assert found["spec"]["volumes"] == [{"name": "data", "image": image}]


MANY_FIELDS = b"\x7a\x00" * 100
FEW_FIELDS = "a message that is one value has more than 16 fields"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"),
        (protobuf.MAGIC + b"\x0a\xff", "unexpected EOF"),
        (protobuf.MAGIC + b"\x0a\x05abc", "unexpected EOF"),
        (protobuf.MAGIC + b"\x0b", "proto: illegal wireType 3"),
        (protobuf.MAGIC + b"\x0a" + b"\xff" * 20, "proto: integer overflow"),
        (_unknown("v1", "ConfigMap", _message((1, 7))), "a field has another type than its number says"),
        (_unknown("v1", "ConfigMap", _message((1, _message((1, b"\xff"))))), "a text is not UTF-8"),
        # None of them is an object, whose fields are counted: a million took two seconds, for which all others waited.
        (protobuf.MAGIC + MANY_FIELDS, FEW_FIELDS),
        (protobuf.MAGIC + _message((1, MANY_FIELDS)), FEW_FIELDS),
        (_unknown("v1", "ConfigMap", _message((2, MANY_FIELDS))), FEW_FIELDS),
        (_unknown("v1", "ConfigMap", _message((1, _message((8, MANY_FIELDS))))), FEW_FIELDS),
        (_unknown("v1", "ConfigMap", _message((1, _message((17, _message((7, MANY_FIELDS))))))), FEW_FIELDS),
    ],
)
def test_protobuf_that_is_broken_is_refused(data: bytes, expected: str) -> None:
    with pytest.raises(StatusError) as refused:
        _read(data, media_type=PROTOBUF)
    assert refused.value.code == 400
    assert expected in refused.value.message


def test_every_field_that_has_a_number_is_one_of_its_type() -> None:
    table = kubernetes()

    def names(numbers: dict[str, Any]) -> set[str]:
        found: set[str] = set()
        for item in numbers.values():
            found |= names(item) if isinstance(item, dict) else {item.removesuffix("?")}
        return found

    own = {"userHostNamespace", "classes", "podClassResources", "containerClassResources", "apiVersion", "kind"}
    for name, numbers in protobuf._numbers().items():
        assert names(dict(numbers)) - table.struct(name).fields.keys() == set()
        assert table.struct(name).fields.keys() - names(dict(numbers)) - own == set()


def test_options_of_a_deletion_may_be_protobuf() -> None:
    raw = _message((1, 5), (4, "Foreground"))
    struct = kubernetes().struct("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
    found = bodies.decode_as(_unknown("v1", "DeleteOptions", raw), PROTOBUF, struct)
    assert json.loads(json.dumps(found)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 5,
        "propagationPolicy": "Foreground",
    }


_TWICE = b"""dato: {}
metadata:
  name: a
  name: b
data:
  x: "1"
  x: "2"
"""
_COMPLAINTS = [
    'yaml: unmarshal errors:\n  line 4: key "name" already set in map\n  line 7: key "x" already set in map',
    'unknown field "dato"',
]


def test_a_key_that_yaml_has_twice_is_treated_as_validation_says() -> None:
    with pytest.raises(StatusError) as refused:
        _read(_TWICE, media_type=YAML)
    why = f"strict decoding error: {', '.join(_COMPLAINTS)}"
    assert (refused.value.code, refused.value.message) == (
        400,
        f'ConfigMap in version "v1" cannot be handled as a ConfigMap: {why}',
    )
    for validation, expected in ((FieldValidation.WARN, _COMPLAINTS), (FieldValidation.IGNORE, [])):
        warnings: list[str] = []
        found = bodies.decode_object(_TWICE, YAML, CONFIG_MAP, validation, warnings)
        assert found == {"metadata": {"name": "b"}, "data": {"x": "2"}}
        assert warnings == expected


def test_what_is_applied_may_have_a_key_twice_unless_validation_is_strict() -> None:
    resource = next(item for item in configuration.RESOURCES if item.plural == "configmaps")
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\n"
    complaint = 'yaml: unmarshal errors:\n  line 5: key "name" already set in map'
    with pytest.raises(StatusError) as refused:
        applied(text, resource, FieldValidation.STRICT, [])
    assert (refused.value.code, refused.value.message) == (400, f"error strict decoding YAML: {complaint}")
    warnings: list[str] = []
    assert applied(text, resource, FieldValidation.WARN, warnings)["metadata"] == {"name": "b"}
    assert warnings == [complaint]
    assert applied(text, resource, FieldValidation.IGNORE, warnings)["metadata"] == {"name": "b"}
    assert warnings == [complaint]


@pytest.mark.parametrize("metadata", ["text", "[]", "[1]", "1", "true", "{name: [], x: 1}"])
def test_what_is_applied_with_metadata_that_is_none_is_refused(metadata: str) -> None:
    resource = next(item for item in configuration.RESOURCES if item.plural == "configmaps")
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n".encode()
    with pytest.raises(StatusError) as refused:
        applied(text, resource, FieldValidation.IGNORE, [])
    assert refused.value.code == 400
    assert refused.value.message.startswith("failed to create typed patch object (/")


def test_a_long_field_manager_is_not_repeated_for_each_of_its_characters() -> None:
    with pytest.raises(StatusError) as caught:
        write_options(Query("fieldManager=" + "%01" * 1_000), "CreateOptions")
    assert caught.value.code == 422
    assert len(caught.value.message) < 100_000
