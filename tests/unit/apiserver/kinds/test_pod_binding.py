from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.kinds.pods.binding import bind
from podkeep.apiserver.meta.status import StatusError
from unit.apiserver.kinds.pod_steps import POD, changed, stored

NOW = "2026-11-23T07:00:00Z"
BINDING: dict[str, Any] = {"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "node-1"}}
PLACE = 'Operation cannot be fulfilled on pods/binding "web": '


def test_a_bound_pod_is_on_its_node() -> None:
    pod = stored(changed(POD, {"status.nominatedNodeName": "other"}))
    before = changed(pod, {})
    binding = changed(BINDING, {"metadata.annotations": {"a": "b"}, "metadata.labels": {"app": "x"}})
    bound = bind(pod, binding, NOW)
    assert pod == before
    assert bound == changed(
        pod,
        {
            "spec.nodeName": "node-1",
            "metadata.annotations": {"a": "b"},
            "metadata.labels": {"app": "x", "tier": "front"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": NOW}]},
        },
    )


@pytest.mark.parametrize(("status", "since"), [("True", "2026-01-01T00:00:00Z"), ("False", NOW)])
def test_the_condition_tells_when_it_changed(status: str, since: str) -> None:
    condition = {
        "type": "PodScheduled",
        "status": status,
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    pod = stored(changed(POD, {"status.conditions": [{"type": "Ready", "status": "False"}, condition]}))
    assert bind(pod, BINDING, NOW)["status"]["conditions"] == [
        {"type": "Ready", "status": "False"},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
    ]


@pytest.mark.parametrize(
    ("pod", "binding", "code", "message"),
    [
        ({}, {"metadata.name": "other"}, 400, "name in URL does not match name in Binding object"),
        ({}, {"metadata.name": None}, 400, "name in URL does not match name in Binding object"),
        ({}, {"target.name": ""}, 422, 'Binding "web" is invalid: target.name: Required value'),
        (
            {},
            {"target.kind": "Pod"},
            422,
            'Binding "web" is invalid: target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"',
        ),
        ({"spec.nodeName": "n"}, {}, 409, f'{PLACE}pod web is already assigned to node "n"'),
        (
            {"metadata.deletionTimestamp": NOW},
            {},
            409,
            f"{PLACE}pod web is being deleted, cannot be assigned to a host",
        ),
        (
            {"spec.schedulingGates": [{"name": "a"}]},
            {},
            409,
            f"{PLACE}pod web has non-empty .spec.schedulingGates",
        ),
        (
            {},
            {"metadata.uid": "v"},
            409,
            'Operation cannot be fulfilled on pods "web": Precondition failed: UID in precondition: v, UID in object'
            " meta: u",
        ),
        (
            {"metadata.resourceVersion": "3"},
            {"metadata.resourceVersion": "2"},
            409,
            'Operation cannot be fulfilled on pods "web": the object has been modified; please apply your changes to'
            " the latest version and try again",
        ),
    ],
)
def test_what_cannot_be_bound(pod: dict[str, Any], binding: dict[str, Any], code: int, message: str) -> None:
    value = changed(stored(POD), pod)
    with pytest.raises(StatusError) as caught:
        bind(value, changed(BINDING, binding), NOW)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_the_kind_of_a_target_may_be_left_out() -> None:
    assert bind(stored(POD), changed(BINDING, {"target.kind": None}), NOW)["spec"]["nodeName"] == "node-1"
