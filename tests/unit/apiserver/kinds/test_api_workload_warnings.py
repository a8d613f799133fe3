"""What clients are told of workloads and services that are taken."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.meta.objects import Object
from support.api_kinds import MANIFESTS, RESOURCES, UID, changed, creation, stored, update

Changes = dict[str, Any]
_DOTS = (
    "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is"
    " recommended: [must not contain dots]"
)
_CLAIM = {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
_MANY = {"spec.completionMode": "Indexed", "spec.completions": 100_001, "spec.parallelism": 10_001}
_HINTS = "service.kubernetes.io/topology-aware-hints"


@pytest.mark.parametrize("plural", MANIFESTS)
def test_there_is_nothing_to_say_of_what_is_usual(plural: str) -> None:
    resource = RESOURCES[plural]
    value = stored(resource, MANIFESTS[plural])
    assert resource.strategy.warnings(value, None) == []


@pytest.mark.parametrize(
    ("plural", "changes", "expected"),
    [
        *((plural, {"metadata.name": "a.b"}, [_DOTS]) for plural in ("deployments", "replicasets", "jobs", "cronjobs")),
        ("replicationcontrollers", {"metadata.name": "a.b"}, [_DOTS]),
        ("daemonsets", {"metadata.name": "a.b"}, []),
        (
            "statefulsets",
            {
                "spec.revisionHistoryLimit": -1,
                "spec.volumeClaimTemplates": [
                    changed(_CLAIM, {"spec.resources": {"requests": {"storage": "1500m"}, "limits": {"storage": "1m"}}})
                ],
            },
            [
                'spec.volumeClaimTemplates[0].resources.requests[storage]: fractional byte value "1500m" is invalid,'
                " must be an integer",
                'spec.volumeClaimTemplates[0].resources.limits[storage]: fractional byte value "1m" is invalid, must be'
                " an integer",
                "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is"
                " recommended",
            ],
        ),
        (
            "jobs",
            _MANY,
            [
                "spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than"
                " 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
            ],
        ),
        (
            "services",
            {
                "metadata|annotations": {_HINTS: "auto"},
                "spec.externalIPs": ["2001:DB8::1"],
                "spec.externalName": "a",
                "spec.loadBalancerIP": "FD00::1",
                "spec.trafficDistribution": "PreferClose",
            },
            [
                f"annotation {_HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead",
                'spec.externalIPs[0]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format'
                ' ("2001:db8::1")',
                "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
                'spec.loadBalancerIP: IPv6 address "FD00::1" should be in RFC 5952 canonical format ("fd00::1")',
                'spec.externalName is ignored when spec.type is not "ExternalName"',
                'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"',
            ],
        ),
        (
            "services",
            {
                "spec.clusterIP": "None",
                "spec.externalIPs": ["1.2.3.4"],
                "spec.loadBalancerIP": "1.2.3.4",
                "spec.sessionAffinity": "ClientIP",
            },
            [
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
            ],
        ),
        (
            "services",
            {"spec.type": "ExternalName", "spec.externalName": "a.b", "spec.externalIPs": ["1.2.3.4"]},
            ['spec.externalIPs is ignored when spec.type is "ExternalName"'],
        ),
        (
            "endpointslices",
            {"addressType": "FQDN", "endpoints.0.addresses": ["a.b"]},
            ["spec.addressType: FQDN endpoints are deprecated"],
        ),
    ],
)
def test_creations(plural: str, changes: Changes, expected: list[str]) -> None:
    resource = RESOURCES[plural]
    value = stored(resource, changed(MANIFESTS[plural], changes))
    assert resource.strategy.warnings(value, None) == expected


def _updated(plural: str, before: Changes, changes: Changes) -> list[str]:
    resource = RESOURCES[plural]
    old = stored(resource, changed(MANIFESTS[plural], before))
    value, problems = update(resource, old, changed(old, changes))
    assert problems == []
    return resource.strategy.warnings(value, old)


def test_a_warning_of_a_name_is_given_once() -> None:
    assert _updated("deployments", {"metadata.name": "a.b"}, {"spec.replicas": 2}) == []


def test_a_warning_of_a_specification_is_given_when_that_changes() -> None:
    assert _updated("jobs", _MANY, {"metadata.annotations": {"a": "b"}}) == []
    assert len(_updated("jobs", _MANY, {"spec.backoffLimit": 2})) == 1


def test_a_schedule_with_a_zone_may_stay_but_is_complained_about() -> None:
    resource = RESOURCES["cronjobs"]
    old: Object = stored(resource, MANIFESTS["cronjobs"])
    old["spec"]["schedule"] = "TZ=UTC 0 * * * *"
    value, problems = update(resource, old, changed(old, {"spec.schedule": "TZ=UTC 1 * * * *"}))
    assert problems == []
    assert resource.strategy.warnings(value, old) == [
        "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see"
        " https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
    ]
    _, problems = update(resource, old, changed(old, {"spec.timeZone": "UTC"}))
    assert problems == [
        'spec.schedule: Invalid value: "TZ=UTC 0 * * * *": cannot use both timeZone field and TZ or CRON_TZ in schedule'
    ]


def test_what_was_wrong_before_may_stay() -> None:
    resource = RESOURCES["services"]
    old = stored(resource, changed(MANIFESTS["services"], {"spec.externalIPs": ["1.2.3.4"]}))
    old["spec"]["externalIPs"] = ["01.2.3.4"]
    _, problems = update(resource, old, changed(old, {"spec.selector": {"b": "c"}}))
    assert problems == []
    for plural, place in (("endpoints", "subsets.0.addresses.0.ip"), ("endpointslices", "endpoints.0.nodeName")):
        old = changed(stored(RESOURCES[plural], MANIFESTS[plural]), {place: "A"})
        _, problems = update(RESOURCES[plural], old, changed(old, {"metadata.labels": {"a": "b"}}))
        assert problems == []
    old = stored(RESOURCES["statefulsets"], MANIFESTS["statefulsets"])
    old["spec"]["template"]["spec"]["containers"][0]["name"] = "A"
    _, problems = update(RESOURCES["statefulsets"], old, changed(old, {"spec.replicas": 2}))
    assert problems == []
    for plural in ("daemonsets", "poddisruptionbudgets"):
        wrong = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["-"]}]}
        old = changed(stored(RESOURCES[plural], MANIFESTS[plural]), {"spec.selector": wrong})
        _, problems = update(RESOURCES[plural], old, changed(old, {"metadata.labels": {"a": "b"}}))
        assert problems == []


def test_topology_of_endpoints_becomes_their_node() -> None:
    resource = RESOURCES["endpointslices"]
    old = stored(resource, MANIFESTS["endpointslices"])
    topology = {"kubernetes.io/hostname": "n1"}
    old["endpoints"] = [{"addresses": ["10.1.0.1"], "deprecatedTopology": topology}]
    more = {"addresses": ["10.1.0.2"], "deprecatedTopology": {"kubernetes.io/hostname": "n2"}}
    value, problems = update(resource, old, changed(old, {"endpoints.1": more}))
    assert problems == []
    assert value["endpoints"] == [{"addresses": ["10.1.0.1"], "nodeName": "n1"}, {"addresses": ["10.1.0.2"]}]
    value, _ = update(resource, old, changed(old, {"metadata.labels": {"a": "b"}}))
    assert value["endpoints"] == old["endpoints"]
    assert value["metadata"]["generation"] == 2


def test_max_unavailable_of_stateful_sets_stays_where_it_is_in_use() -> None:
    resource = RESOURCES["statefulsets"]
    rolling = {"spec.updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}
    old = stored(resource, changed(MANIFESTS["statefulsets"], rolling))
    assert old["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    path = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    value, _ = update(resource, old, changed(old, {path: 2}))
    assert "maxUnavailable" not in value["spec"]["updateStrategy"]["rollingUpdate"]
    for number, problem in (
        (2, []),
        (0, ["cannot be 0"]),
        (-1, ["must be greater than or equal to 0"]),
        ("101%", ["must not be greater than 100%"]),
    ):
        value, problems = update(resource, changed(old, {path: 1}), changed(old, {path: number}))
        assert [text.rpartition(": ")[2] for text in problems] == problem


def test_labels_that_the_api_generates_cannot_be_others() -> None:
    resource = RESOURCES["jobs"]
    labels = {"spec.template.metadata.labels": {"controller-uid": "other"}}
    _, problems = creation(resource, changed(MANIFESTS["jobs"], labels))
    assert len(problems) == 1
    assert problems[0].startswith("spec.template.metadata.labels[controller-uid]: Invalid value: {")
    assert problems[0].endswith(f"must be '{UID}'")


@pytest.mark.requirement("V8")
@pytest.mark.parametrize("plural", ["deployments", "statefulsets", "daemonsets", "jobs", "cronjobs"])
def test_templates_are_validated_as_pods_are_but_for_what_admission_fills_in(plural: str) -> None:
    manifest = MANIFESTS[plural]
    path = "spec.jobTemplate.spec.template.spec" if plural == "cronjobs" else "spec.template.spec"
    _, problems = creation(
        RESOURCES[plural], changed(manifest, {f"{path}.volumes": [{"name": "v", "image": {"pullPolicy": "Always"}}]})
    )
    assert problems == []
    both = [{"name": "v", "image": {"reference": "r:1"}, "emptyDir": {}}]
    _, problems = creation(RESOURCES[plural], changed(manifest, {f"{path}.volumes": both}))
    assert problems == [f"{path}.volumes[0].image: Forbidden: may not specify more than 1 volume type"]
