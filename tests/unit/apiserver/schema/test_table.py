from __future__ import annotations

import pytest

from podkeep.apiserver.schema.table import Kind, Table, kubernetes
from podkeep.apiserver.schema.types import Format, List, ListType, Map, Scalar, Struct


def struct(kind: Kind, *path: str) -> Struct:
    found = kubernetes().kind(kind)
    for name in path:
        inner = found.fields[name].type
        assert isinstance(inner, Struct)
        found = inner
    return found


def test_every_kind_has_type_and_metadata() -> None:
    for kind in kubernetes().kinds:
        fields = kubernetes().kind(kind).fields
        assert {"apiVersion", "kind"} <= fields.keys(), kind


def test_lists_have_their_types_keys_and_strategies() -> None:
    spec = struct(Kind("", "v1", "Pod"), "spec")
    volumes = spec.fields["volumes"]
    assert isinstance(volumes.type, List)
    assert (volumes.type.list_type, volumes.type.keys) == (ListType.MAP, ("name",))
    assert (volumes.patch_strategy, volumes.patch_merge_key) == ({"merge", "retainKeys"}, "name")
    containers = spec.fields["containers"].type
    assert isinstance(containers, List)
    assert isinstance(containers.items, Struct)
    ports = containers.items.fields["ports"].type
    assert isinstance(ports, List)
    assert (ports.keys, ports.key_defaults) == (("containerPort", "protocol"), {"protocol": "TCP"})
    assert spec.fields["nodeSelector"].type == Map(Scalar(Format.STRING), atomic=True)


def test_a_field_may_overrule_whether_its_type_is_atomic() -> None:
    spec = struct(Kind("", "v1", "PersistentVolume"), "spec")
    assert not struct(Kind("", "v1", "PersistentVolume"), "spec", "claimRef").atomic
    assert isinstance(spec.fields["nodeAffinity"].type, Struct)
    reference = kubernetes().struct("io.k8s.api.core.v1.ObjectReference")
    assert reference.atomic
    claim = struct(Kind("", "v1", "PersistentVolume"), "spec", "claimRef")
    assert (claim.fields, claim.omitted) == (reference.fields, reference.omitted)


def test_lists_maps_and_times_are_left_out_unless_they_are_required() -> None:
    fields = {
        "b": "string",
        "c": "string",
        "d": "[]string",
        "e": "[]string",
        "f": "map[]string",
        "g": "time",
        "h": "int32",
    }
    table = Table({"io.Node": {"required": ["e"], "omitted": ["b"], "fields": fields}})
    assert table.struct("io.Node").omitted == {"b", "d", "f", "g"}


@pytest.mark.parametrize("name", ["NodeStatus", "ResourceQuotaSpec", "ResourceQuotaStatus"])
def test_fields_of_podkeep_name_their_gate(name: str) -> None:
    fields = kubernetes().struct(f"io.k8s.api.core.v1.{name}").fields
    for field in ("podClassResources", "containerClassResources"):
        assert fields[field].feature_gate == "ClassResources"


def test_a_type_may_contain_itself() -> None:
    table = Table({"io.Node": {"fields": {"children": "[]io.Node", "name": "string"}}})
    children = table.struct("io.Node").fields["children"].type
    assert isinstance(children, List)
    assert children.items is table.struct("io.Node")
    assert "io.Node" in repr(children)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        kubernetes().kind(Kind("", "v1", "Ingress"))


@pytest.mark.parametrize(
    ("other", "into"),
    [
        (Kind("", "v1", "ConfigMap"), "core.ConfigMap"),
        (Kind("apps", "v1", "Deployment"), "apps.Deployment"),
        (Kind("rbac.authorization.k8s.io", "v1", "Role"), "rbac.Role"),
        (Kind("events.k8s.io", "v1", "Event"), "core.Event"),
    ],
)
def test_what_is_another_kind_is_told_in_upstreams_words(other: Kind, into: str) -> None:
    assert Kind("", "v1", "Pod").no_conversion_to(other) == f"converting (v1.Pod) to ({into}): unknown conversion"
