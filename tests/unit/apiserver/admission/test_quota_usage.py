"""How much of a quota objects use."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from podkeep.apiserver.admission.quota import usage as quota_usage

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def amounts(used: dict[str, Decimal]) -> dict[str, str]:
    return {name: f"{amount.normalize():f}" for name, amount in sorted(used.items()) if amount}


def container(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def pod(*containers: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}, "status": status or {}}


ONE = {"count/pods": "1", "pods": "1"}
DELETED = {"deletionTimestamp": "2026-11-23T11:59:00Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pod(container()), ONE),
        (
            pod(container({"cpu": "1", "memory": "1Ki", "ephemeral-storage": "5"}, {"cpu": "2", "memory": "2Ki"})),
            ONE
            | {
                "cpu": "1",
                "requests.cpu": "1",
                "limits.cpu": "2",
                "memory": "1024",
                "requests.memory": "1024",
                "limits.memory": "2048",
                "ephemeral-storage": "5",
                "requests.ephemeral-storage": "5",
            },
        ),
        (
            pod(container({"hugepages-2Mi": "2Mi", "example.com/gpu": "2"})),
            ONE
            | {
                "hugepages-2Mi": "2097152",
                "requests.hugepages-2Mi": "2097152",
                "requests.example.com/gpu": "2",
            },
        ),
        (
            pod(
                container({"cpu": "1"}),
                container({"cpu": "500m"}),
                initContainers=[container({"cpu": "1"}, restartPolicy="Always"), container({"cpu": "3"})],
            ),
            ONE | {"cpu": "4", "requests.cpu": "4"},
        ),
        (
            pod(container({"cpu": "1"}), resources={"requests": {"cpu": "3"}}),
            ONE | {"cpu": "3", "requests.cpu": "3"},
        ),
        (
            pod(container({"cpu": "1"}, {"cpu": "1"}), overhead={"cpu": "250m", "memory": "1"}),
            ONE | {"cpu": "1.25", "requests.cpu": "1.25", "limits.cpu": "1.25", "memory": "1", "requests.memory": "1"},
        ),
        (
            pod(
                container({"cpu": "1"}),
                status={"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
            ),
            ONE | {"cpu": "2", "requests.cpu": "2"},
        ),
        (
            pod(
                container({"cpu": "4"}),
                status={
                    "containerStatuses": [
                        {"name": "c", "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "2"}}}
                    ],
                    "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
                },
            ),
            ONE | {"cpu": "3", "requests.cpu": "3"},
        ),
        (pod(container({"cpu": "1"}), status={"phase": "Succeeded"}), {"count/pods": "1"}),
        (pod(container({"cpu": "1"}), status={"phase": "Failed"}), {"count/pods": "1"}),
        ({**pod(container()), "metadata": {**DELETED, "deletionGracePeriodSeconds": 60}}, ONE),
        ({**pod(container()), "metadata": DELETED}, {"count/pods": "1"}),
    ],
)
def test_what_pods_use(value: dict[str, Any], expected: dict[str, str]) -> None:
    assert amounts(quota_usage.usage("pods", value, NOW)) == expected


PORTS = [{"port": 80}, {"port": 443, "nodePort": 30443}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"type": "ClusterIP", "ports": PORTS}, {}),
        ({"type": "NodePort", "ports": PORTS}, {"services.nodeports": "2"}),
        ({"type": "LoadBalancer", "ports": PORTS}, {"services.nodeports": "2", "services.loadbalancers": "1"}),
        (
            {"type": "LoadBalancer", "ports": PORTS, "allocateLoadBalancerNodePorts": False},
            {"services.nodeports": "1", "services.loadbalancers": "1"},
        ),
    ],
)
def test_what_services_use(spec: dict[str, Any], expected: dict[str, str]) -> None:
    used = amounts(quota_usage.usage("services", {"spec": spec}, NOW))
    assert used == {"count/services": "1", "services": "1"} | expected


def claim(storage: str | None, **more: Any) -> dict[str, Any]:
    requests = {"storage": storage} if storage else {}
    return {"spec": {"resources": {"requests": requests}, **more}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (claim(None), {}),
        (claim("1500m"), {"requests.storage": "2"}),
        (
            claim("1Ki", storageClassName="gold"),
            {
                "requests.storage": "1024",
                "gold.storageclass.storage.k8s.io/requests.storage": "1024",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            },
        ),
        (
            {**claim("1"), "status": {"allocatedResources": {"storage": "5"}}},
            {"requests.storage": "5"},
        ),
    ],
)
def test_what_claims_use(value: dict[str, Any], expected: dict[str, str]) -> None:
    used = amounts(quota_usage.usage("persistentvolumeclaims", value, NOW))
    assert used == {"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1"} | expected


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("secrets", {"count/secrets": "1", "secrets": "1"}),
        ("resourcequotas", {"count/resourcequotas": "1", "resourcequotas": "1"}),
        ("apps/deployments", {"count/deployments.apps": "1"}),
        ("events", {}),
    ],
)
def test_objects_are_counted(resource: str, expected: dict[str, str]) -> None:
    assert amounts(quota_usage.usage(resource, {}, NOW)) == expected


NAMES = (
    "pods",
    "cpu",
    "limits.memory",
    "requests.hugepages-2Mi",
    "requests.example.com/gpu",
    "count/pods",
    "requests.storage",
    "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
    "services.nodeports",
    "secrets",
    "count/deployments.apps",
    "count/events",
)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("pods", set(NAMES[:6])),
        ("persistentvolumeclaims", set(NAMES[6:8])),
        ("services", {"services.nodeports"}),
        ("secrets", {"secrets"}),
        ("apps/deployments", {"count/deployments.apps"}),
        ("configmaps", set()),
    ],
)
def test_what_of_a_quota_concerns_a_resource(resource: str, expected: set[str]) -> None:
    assert set(quota_usage.concerned(resource, NAMES)) == expected


def test_which_resources_a_quota_concerns() -> None:
    assert quota_usage.counted_resources(NAMES) == {
        "pods",
        "persistentvolumeclaims",
        "services",
        "secrets",
        "apps/deployments",
    }


def scoped(*names: str, **item: Any) -> dict[str, Any]:
    selector = {"scopeSelector": {"matchExpressions": [item]}} if item else {}
    return {"spec": {"scopes": list(names), **selector}}


BURSTABLE = pod(container({"cpu": "1"}))
ENDING = pod(container(), activeDeadlineSeconds=0)
NAMED = pod(container(), priorityClassName="high")
FAR = pod(
    container(),
    affinity={
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["b"]}}]
        }
    },
)
NEAR = pod(
    container(),
    affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]}},
)


@pytest.mark.parametrize(
    ("quota", "value", "expected"),
    [
        (scoped(), BURSTABLE, True),
        (scoped("BestEffort"), BURSTABLE, False),
        (scoped("BestEffort"), ENDING, True),
        (scoped("NotBestEffort"), BURSTABLE, True),
        (scoped("Terminating"), ENDING, True),
        (scoped("NotTerminating"), ENDING, False),
        (scoped("NotTerminating", "BestEffort"), NAMED, True),
        (scoped("NotTerminating", "BestEffort"), BURSTABLE, False),
        (scoped("PriorityClass"), NAMED, True),
        (scoped("PriorityClass"), ENDING, False),
        (scoped(scopeName="PriorityClass", operator="In", values=["high", "low"]), NAMED, True),
        (scoped(scopeName="PriorityClass", operator="In", values=["low"]), NAMED, False),
        (scoped(scopeName="PriorityClass", operator="NotIn", values=["low"]), NAMED, True),
        (scoped(scopeName="PriorityClass", operator="NotIn", values=["high"]), NAMED, False),
        (scoped(scopeName="PriorityClass", operator="NotIn", values=["high"]), ENDING, True),
        (scoped(scopeName="PriorityClass", operator="DoesNotExist"), ENDING, True),
        (scoped("CrossNamespacePodAffinity"), FAR, True),
        (scoped("CrossNamespacePodAffinity"), NEAR, False),
        (scoped("CrossNamespacePodAffinity"), NAMED, False),
        (scoped("VolumeAttributesClass"), NAMED, False),
    ],
)
def test_scopes_of_pods(quota: dict[str, Any], value: dict[str, Any], expected: bool) -> None:
    assert quota_usage.in_scope(quota, "pods", value) == expected


def test_scopes_of_other_objects() -> None:
    fast = {"spec": {"volumeAttributesClassName": "fast"}}
    quota = scoped(scopeName="VolumeAttributesClass", operator="In", values=["fast"])
    assert quota_usage.in_scope(quota, "persistentvolumeclaims", fast)
    assert not quota_usage.in_scope(quota, "persistentvolumeclaims", {})
    assert not quota_usage.in_scope(scoped("BestEffort"), "persistentvolumeclaims", fast)
    assert not quota_usage.in_scope(scoped("BestEffort"), "services", {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pod(container({"cpu": "1", "memory": "1"}, {"memory": "1"})), ""),
        (
            pod(container({"cpu": "1"}), {**container(), "name": "b"}, initContainers=[{"name": "i"}]),
            "must specify cpu for: b,i; limits.memory for: b,c,i; requests.memory for: b,c,i",
        ),
        (pod(container(), resources={"limits": {"cpu": "1"}}), ""),
    ],
)
def test_what_pods_have_to_ask_for(value: dict[str, Any], expected: str) -> None:
    assert quota_usage.missing(value, ("cpu", "pods", "limits.memory", "requests.memory")) == expected


@pytest.mark.parametrize(
    ("amount", "like", "expected"),
    [
        ("1536", "1Gi", "1536"),
        ("1572864", "1Gi", "1536Ki"),
        ("2.5", "1", "2500m"),
        ("1000000", "1M", "1M"),
        ("0", "1Gi", "0"),
    ],
)
def test_amounts_are_written_like_others(amount: str, like: str, expected: str) -> None:
    assert quota_usage.text(Decimal(amount), like) == expected


@pytest.mark.requirement("Q71")
def test_the_status_of_a_quota() -> None:
    gold = [{"name": "rdt", "classes": ["gold"]}]
    quota = {"spec": {"hard": {"pods": "2", "memory": "1Gi"}, "podClassResources": gold}}
    assert quota_usage.status(quota, {"pods": Decimal(1), "memory": Decimal(512 << 20)}) == {
        "hard": {"pods": "2", "memory": "1Gi"},
        "used": {"pods": "1", "memory": "512Mi"},
        "podClassResources": gold,
    }
    assert quota_usage.status({"spec": {"containerClassResources": gold}}, {}) == {"containerClassResources": gold}
