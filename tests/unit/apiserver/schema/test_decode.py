from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.schema.decode import WrongType, decode
from podkeep.apiserver.schema.table import Kind, kubernetes

POD = kubernetes().kind(Kind("", "v1", "Pod"))


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}


def test_unknown_fields_are_dropped_and_named() -> None:
    given = pod(containers=[{"name": "a", "image": "b", "imag": "c"}], restart="Never")
    given["metadata"]["lables"] = {}
    decoded = decode(given, POD)
    assert decoded.unknown == ["metadata.lables", "spec.containers[0].imag", "spec.restart"]
    assert decoded.value["spec"] == {"containers": [{"name": "a", "image": "b"}]}
    assert "restart" in given["spec"]


def test_null_and_empty_lists_and_maps_are_not_kept() -> None:
    given = pod(containers=[{"name": "a", "args": [], "env": None}], nodeSelector={}, hostUsers=False)
    given["metadata"] |= {"creationTimestamp": None, "labels": {}}
    decoded = decode(given, POD)
    assert decoded.value == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "a"}], "hostUsers": False},
    }


def test_what_go_leaves_out_when_it_is_zero_is_not_kept() -> None:
    container = {"name": "", "tty": False, "workingDir": "", "env": [{"name": "a", "value": ""}], "ports": [{}]}
    given = pod(containers=[container], priority=0, hostname="", hostNetwork=False)
    given["metadata"]["labels"] = {"tty": ""}
    decoded = decode(given, POD)
    kept = {"name": "", "env": [{"name": "a"}], "ports": [{}]}
    assert decoded.value["spec"] == {"containers": [kept], "priority": 0}
    assert decoded.value["metadata"]["labels"] == {"tty": ""}
    assert decode(given, POD, zeros=True).value == given


def test_an_empty_time_is_never_kept() -> None:
    given = pod(containers=[])
    given["metadata"]["deletionTimestamp"] = "0001-01-01T00:00:00Z"
    assert decode(given, POD, zeros=True).value["metadata"] == {"name": "web"}


def test_required_lists_and_empty_structs_are_kept() -> None:
    decoded = decode(pod(containers=[], volumes=[{"name": "a", "emptyDir": {}}], securityContext={}), POD)
    assert decoded.value["spec"] == {
        "containers": [],
        "volumes": [{"name": "a", "emptyDir": {}}],
        "securityContext": {},
    }


def test_null_in_a_map_is_the_zero_value() -> None:
    given = pod(containers=[])
    given["metadata"]["labels"] = {"a": None}
    assert decode(given, POD).value["metadata"]["labels"] == {"a": ""}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [("1000m", "1"), ("1.5Gi", "1536Mi"), (0.5, "500m"), (2, "2"), ("1024Mi", "1Gi"), ("512Ki", "512Ki")],
)
def test_quantities_are_canonical(given: object, canonical: str) -> None:
    decoded = decode(pod(containers=[{"name": "a", "resources": {"limits": {"cpu": given}}}]), POD)
    assert decoded.value["spec"]["containers"][0]["resources"]["limits"] == {"cpu": canonical}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("2026-11-23T06:00:00Z", "2026-11-23T06:00:00Z"),
        ("2026-11-23T06:00:00.25+02:00", "2026-11-23T04:00:00Z"),
        ("0999-11-23T06:00:00Z", "0999-11-23T06:00:00Z"),
    ],
)
def test_times_are_in_utc_with_whole_seconds(given: str, canonical: str) -> None:
    value = pod(containers=[])
    value["metadata"]["deletionTimestamp"] = given
    assert decode(value, POD).value["metadata"]["deletionTimestamp"] == canonical


def test_the_first_moment_of_all_is_a_time_that_is_not_set() -> None:
    value = pod(containers=[])
    value["metadata"] |= {
        "creationTimestamp": "0001-01-01T00:00:00Z",
        "deletionTimestamp": "0001-01-01T02:00:00.5+02:00",
    }
    assert decode(value, POD).value["metadata"] == {"name": "web"}
    lease = kubernetes().kind(Kind("coordination.k8s.io", "v1", "Lease"))
    times = {"renewTime": "0001-01-01T00:00:00Z", "acquireTime": "0001-01-01T00:00:00.000001Z"}
    assert decode({"spec": times}, lease).value == {"spec": {"acquireTime": "0001-01-01T00:00:00.000001Z"}}


def test_microtime_has_six_digits() -> None:
    lease = kubernetes().kind(Kind("coordination.k8s.io", "v1", "Lease"))
    decoded = decode({"spec": {"renewTime": "2026-11-23T06:00:00.1234567Z"}}, lease)
    assert decoded.value["spec"]["renewTime"] == "2026-11-23T06:00:00.123456Z"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"containers": "a"},
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"containers": [{"name": 1}]},
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            {"priority": 1 << 31},
            "cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
        ),
        ({"priority": 1.5}, "cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32"),
        ({"priority": True}, "cannot unmarshal bool into"),
        ({"hostUsers": "no"}, "cannot unmarshal string into Go struct field PodSpec.spec.hostUsers of type bool"),
        (
            {"nodeSelector": ["a"]},
            "cannot unmarshal array into Go struct field PodSpec.spec.nodeSelector of type map[string]string",
        ),
        (
            {"nodeSelector": {"disk": True}},
            "cannot unmarshal bool into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
        ({"overhead": {"cpu": "much"}}, "quantities must match the regular expression"),
        ({"overhead": {"cpu": True}}, "cannot unmarshal bool into"),
    ],
)
def test_a_wrong_type_is_told_as_the_decoder_in_go_does(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(WrongType) as caught:
        decode(pod(**spec), POD)
    assert text in str(caught.value)


def test_an_object_that_is_none() -> None:
    with pytest.raises(WrongType, match=r"cannot unmarshal array into Go value of type v1\.Pod"):
        decode([], POD)  # type: ignore[arg-type]


# As encoding/base64 counts: the group of four that ends too soon, or the first byte that cannot be there.
@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("a", 0),
        ("secret", 4),
        ("Y Q==", 1),
        ("s3cret!", 6),
        ("=", 0),
        ("Y===", 1),
        ("YQ=", 3),
        ("YQ=x", 2),
        ("YQ==YQ==", 4),
        ("YWJj=", 4),
        ("YW\nI=\nx", 6),
    ],
)
def test_wrong_base64(value: str, place: int) -> None:
    secret = kubernetes().kind(Kind("", "v1", "Secret"))
    with pytest.raises(WrongType, match=f"^illegal base64 data at input byte {place}$"):
        decode({"data": {"key": value}}, secret)


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01T00:00:00Z", "2026-11-23", "0001-01-01T00:00:00+23:59"])
def test_wrong_times(value: str) -> None:
    with pytest.raises(WrongType, match="parsing time"):
        decode({"metadata": {"creationTimestamp": value}}, POD)
