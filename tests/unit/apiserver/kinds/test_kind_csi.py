"""CSIDrivers and CSINodes."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.storage import csi
from support import kinds

DRIVERS, NODES = csi.RESOURCES


def driver(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def node(*drivers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"drivers": list(drivers)}}


def test_a_driver_is_filled_in() -> None:
    assert kinds.created(DRIVERS, driver())["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "requiresRepublish": False,
        "seLinuxMount": False,
        "volumeLifecycleModes": ["Persistent"],
    }


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, []),
        (
            {"fsGroupPolicy": "x"},
            ['spec.fsGroupPolicy: Unsupported value: "x": supported values: "File", "None", "ReadWriteOnceWithFSType"'],
        ),
        (
            {"volumeLifecycleModes": ["x"]},
            ['spec.volumeLifecycleModes: Unsupported value: "x": supported values: "Persistent", "Ephemeral"'],
        ),
        (
            {"nodeAllocatableUpdatePeriodSeconds": 9},
            ["spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds"],
        ),
        (
            {"serviceAccountTokenInSecrets": True},
            [
                "spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no"
                " tokenRequests are specified"
            ],
        ),
        (
            {"tokenRequests": [{"audience": "a"}, {"audience": "a"}]},
            ['spec.tokenRequests[1].audience: Duplicate value: "a"'],
        ),
        (
            {"tokenRequests": [{"audience": "a", "expirationSeconds": 599}]},
            [
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10"
                " minutes"
            ],
        ),
        (
            {"tokenRequests": [{"audience": "a", "expirationSeconds": 1 << 33}]},
            [
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 8589934592: may not specify a duration larger"
                " than 2^32 seconds"
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_driver(spec: dict[str, Any], found: list[str]) -> None:
    assert kinds.problems(DRIVERS, driver(**spec)) == found


GOOD = {"name": "csi.example", "nodeID": "n"}


@pytest.mark.parametrize(
    ("drivers", "found"),
    [
        ([], []),
        ([GOOD | {"allocatable": {"count": 3}, "topologyKeys": ["a/b"]}], []),
        ([GOOD | {"name": ""}], ["spec.drivers[0].name: Required value"]),
        ([GOOD | {"nodeID": ""}], ["spec.drivers[0].nodeID: Required value"]),
        (
            [GOOD | {"nodeID": "n" * 193}],
            [f'spec.drivers[0].nodeID: Invalid value: "{"n" * 193}": must be 192 characters or less'],
        ),
        (
            [GOOD | {"allocatable": {"count": -1}}],
            ["spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0"],
        ),
        ([GOOD, GOOD], ['spec.drivers[1].name: Duplicate value: "csi.example"']),
        ([GOOD | {"topologyKeys": ["a", "a"]}], ['spec.drivers[0]: Duplicate value: "a"']),
        ([GOOD | {"topologyKeys": ["_"]}], [f'spec.drivers[0]: Invalid value: "_": {names.label_key("_")}']),
    ],
)
def test_what_is_wrong_with_a_node(drivers: list[dict[str, Any]], found: list[str]) -> None:
    assert kinds.problems(NODES, node(*drivers)) == found


def test_what_does_not_change() -> None:
    errors = FieldErrors()
    changed = kinds.created(DRIVERS, driver(attachRequired=False, storageCapacity=True))
    DRIVERS.strategy.validate_update(changed, kinds.created(DRIVERS, driver()), errors)
    more = node(GOOD | {"allocatable": {"count": 3}}, {"name": "new.example", "nodeID": "n"})
    NODES.strategy.validate_update(more, node(GOOD), errors)
    NODES.strategy.validate_update(node(GOOD | {"nodeID": "m"}), node(GOOD), errors)
    assert [error.path for error in errors.found] == ["spec.attachedRequired", "spec.drivers"]


def test_tokens_that_may_be_logged_are_warned_of() -> None:
    requests = [{"audience": "a"}]
    logged = kinds.created(DRIVERS, driver(tokenRequests=requests))
    assert len(DRIVERS.strategy.warnings(logged, None)) == 1
    kept = kinds.created(DRIVERS, driver(tokenRequests=requests, serviceAccountTokenInSecrets=True))
    assert DRIVERS.strategy.warnings(kept, None) == []
