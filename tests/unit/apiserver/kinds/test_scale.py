"""The subresource ``scale``."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.workloads.scale import from_scale, to_scale
from podkeep.apiserver.schema.decode import decode
from podkeep.apiserver.schema.table import kubernetes
from support.api_kinds import CREATED, MANIFESTS, RESOURCES, UID, changed, stored

SCALED = [plural for plural, resource in RESOURCES.items() if "scale" in resource.subresources]
_EXPRESSIONS = {
    "matchLabels": {"app": "a"},
    "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}, {"key": "app", "operator": "In", "values": ["a"]}],
}


def _object(plural: str, changes: dict[str, Any]) -> dict[str, Any]:
    value = stored(RESOURCES[plural], changed(MANIFESTS[plural], changes))
    value["metadata"]["resourceVersion"] = "7"
    return value


def test_what_has_replicas_has_a_scale() -> None:
    assert sorted(SCALED) == ["deployments", "replicasets", "replicationcontrollers", "statefulsets"]


@pytest.mark.parametrize("plural", SCALED)
def test_to_scale(plural: str) -> None:
    value = _object(plural, {"spec.replicas": 3}) | {"status": {"replicas": 2}}
    scale = to_scale(value)
    assert scale == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": UID,
            "resourceVersion": "7",
            "creationTimestamp": CREATED,
        },
        "spec": {"replicas": 3},
        "status": {"replicas": 2, "selector": "app=a"},
    }
    struct = kubernetes().struct("io.k8s.api.autoscaling.v1.Scale")
    assert decode(scale, struct).unknown == []


def test_the_selector_of_a_scale_is_one_of_query_parameters() -> None:
    assert to_scale(_object("deployments", {"spec.selector": _EXPRESSIONS}))["status"]["selector"] == (
        "app=a,app in (a),!b"
    )


@pytest.mark.parametrize("plural", SCALED)
def test_from_scale(plural: str) -> None:
    value, errors = _object(plural, {}), FieldErrors()
    scale = {"metadata": {"name": "a", "resourceVersion": "5"}, "spec": {"replicas": 4}}
    found = from_scale(value, scale, errors)
    assert errors.found == []
    assert found["spec"] == value["spec"] | {"replicas": 4}
    assert "uid" not in found["metadata"]
    assert found["metadata"]["resourceVersion"] == "5"
    assert value["spec"]["replicas"] == 1
    assert from_scale(value, {"metadata": {}}, errors)["spec"]["replicas"] == 0


def test_less_than_none() -> None:
    errors = FieldErrors()
    from_scale(_object("deployments", {}), {"metadata": {}, "spec": {"replicas": -1}}, errors)
    assert list(map(str, errors.found)) == ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
