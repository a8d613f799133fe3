"""What is stored of the smallest manifests, and what ``kubectl get`` shows: kube-apiserver 1.36 was asked the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from support.api_kinds import ABSENT, MANIFESTS, RESOURCES, UID, changed, creation, status_update, stored

Changes = dict[str, Any]
NOW = datetime(2026, 11, 23, 6, 0, 5, tzinfo=UTC)

STORED: dict[str, dict[str, Any]] = {
    "podtemplates": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i:1",
                        "resources": {},
                        "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File",
                        "imagePullPolicy": "IfNotPresent",
                    }
                ],
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 30,
                "dnsPolicy": "ClusterFirst",
                "securityContext": {},
                "schedulerName": "default-scheduler",
            },
        },
    },
    "controllerrevisions": {"metadata": {"name": "a", "namespace": "default"}, "data": {"spec": {}}, "revision": 1},
    "deployments": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
        },
        "status": {},
    },
    "replicasets": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
        },
        "status": {"replicas": 0},
    },
    "replicationcontrollers": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1, "labels": {"app": "a"}},
        "spec": {
            "replicas": 1,
            "selector": {"app": "a"},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
        },
        "status": {"replicas": 0},
    },
    "statefulsets": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "revisionHistoryLimit": 10,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        },
        "status": {"replicas": 0, "availableReplicas": 0},
    },
    "daemonsets": {
        "metadata": {
            "name": "a",
            "namespace": "default",
            "generation": 1,
            "annotations": {"deprecated.daemonset.template.generation": "1"},
        },
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Always",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "revisionHistoryLimit": 10,
        },
        "status": {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
    },
    "jobs": {
        "metadata": {
            "name": "a",
            "namespace": "default",
            "generation": 1,
            "labels": {
                "batch.kubernetes.io/controller-uid": "UID",
                "batch.kubernetes.io/job-name": "a",
                "controller-uid": "UID",
                "job-name": "a",
            },
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "UID"}},
            "manualSelector": False,
            "template": {
                "metadata": {
                    "labels": {
                        "batch.kubernetes.io/controller-uid": "UID",
                        "batch.kubernetes.io/job-name": "a",
                        "controller-uid": "UID",
                        "job-name": "a",
                    }
                },
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i:1",
                            "resources": {},
                            "terminationMessagePath": "/dev/termination-log",
                            "terminationMessagePolicy": "File",
                            "imagePullPolicy": "IfNotPresent",
                        }
                    ],
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "ClusterFirst",
                    "securityContext": {},
                    "schedulerName": "default-scheduler",
                },
            },
            "completionMode": "NonIndexed",
            "suspend": False,
            "podReplacementPolicy": "TerminatingOrFailed",
        },
        "status": {},
    },
    "cronjobs": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "spec": {
            "schedule": "* * * * *",
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "jobTemplate": {
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {
                                    "name": "c",
                                    "image": "i:1",
                                    "resources": {},
                                    "terminationMessagePath": "/dev/termination-log",
                                    "terminationMessagePolicy": "File",
                                    "imagePullPolicy": "IfNotPresent",
                                }
                            ],
                            "restartPolicy": "Never",
                            "terminationGracePeriodSeconds": 30,
                            "dnsPolicy": "ClusterFirst",
                            "securityContext": {},
                            "schedulerName": "default-scheduler",
                        }
                    }
                }
            },
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        },
        "status": {},
    },
    "poddisruptionbudgets": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    },
    "services": {
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "ports": [{"protocol": "TCP", "port": 80, "targetPort": 80, "nodePort": 30001}],
            "selector": {"app": "a"},
            "clusterIP": "10.0.0.5",
            "clusterIPs": ["10.0.0.5"],
            "type": "LoadBalancer",
            "sessionAffinity": "None",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30002,
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "allocateLoadBalancerNodePorts": True,
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    },
    "endpoints": {
        "metadata": {"name": "a", "namespace": "default"},
        "subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80, "protocol": "TCP"}]}],
    },
    "endpointslices": {
        "metadata": {"name": "a", "namespace": "default", "generation": 1},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"]}],
        "ports": [{"name": "", "protocol": "TCP", "port": 80}],
    },
}
HEADINGS: dict[str, list[tuple[str, str, int]]] = {
    "podtemplates": [
        ("Name", "string", 0),
        ("Containers", "string", 0),
        ("Images", "string", 0),
        ("Pod Labels", "string", 0),
    ],
    "controllerrevisions": [
        ("Name", "string", 0),
        ("Controller", "string", 0),
        ("Revision", "string", 0),
        ("Age", "string", 0),
    ],
    "deployments": [
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "replicasets": [
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "replicationcontrollers": [
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "statefulsets": [
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
    ],
    "daemonsets": [
        ("Name", "string", 0),
        ("Desired", "integer", 0),
        ("Current", "integer", 0),
        ("Ready", "integer", 0),
        ("Up-to-date", "integer", 0),
        ("Available", "integer", 0),
        ("Node Selector", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "jobs": [
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Completions", "string", 0),
        ("Duration", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "cronjobs": [
        ("Name", "string", 0),
        ("Schedule", "string", 0),
        ("Timezone", "string", 0),
        ("Suspend", "boolean", 0),
        ("Active", "integer", 0),
        ("Last Schedule", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    "poddisruptionbudgets": [
        ("Name", "string", 0),
        ("Min Available", "string", 0),
        ("Max Unavailable", "string", 0),
        ("Allowed Disruptions", "integer", 0),
        ("Age", "string", 0),
    ],
    "services": [
        ("Name", "string", 0),
        ("Type", "string", 0),
        ("Cluster-IP", "string", 0),
        ("External-IP", "string", 0),
        ("Port(s)", "string", 0),
        ("Age", "string", 0),
        ("Selector", "string", 1),
    ],
    "endpoints": [("Name", "string", 0), ("Endpoints", "string", 0), ("Age", "string", 0)],
    "endpointslices": [
        ("Name", "string", 0),
        ("AddressType", "string", 0),
        ("Ports", "string", 0),
        ("Endpoints", "string", 0),
        ("Age", "string", 0),
    ],
}
CELLS: list[tuple[str, Changes, Changes, list[Any]]] = [
    (
        "deployments",
        {},
        {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2},
        ["a", "2/1", 1, 2, "5s", "c", "i:1", "app=a"],
    ),
    (
        "replicasets",
        {
            "spec.selector": {
                "matchLabels": {"app": "a"},
                "matchExpressions": [
                    {"key": "b", "operator": "DoesNotExist"},
                    {"key": "app", "operator": "In", "values": ["b", "a"]},
                    {"key": "z", "operator": "NotIn", "values": ["q"]},
                    {"key": "app", "operator": "Exists"},
                ],
            }
        },
        {"replicas": 3, "readyReplicas": 2},
        ["a", 1, 3, 2, "5s", "c", "i:1", "app=a,app in (a,b),app,!b,z notin (q)"],
    ),
    ("replicationcontrollers", {}, {"replicas": 1}, ["a", 1, 1, 0, "5s", "c", "i:1", "app=a"]),
    (
        "statefulsets",
        {"spec.template.spec.containers.1": {"name": "d", "image": "j"}},
        {"replicas": 1},
        ["a", "0/1", "5s", "c,d", "i:1,j"],
    ),
    (
        "daemonsets",
        {"spec.template.spec.nodeSelector": {"a": "b", "c": "d"}},
        {
            "currentNumberScheduled": 1,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": 2,
            "numberReady": 1,
            "updatedNumberScheduled": 1,
            "numberAvailable": 1,
        },
        ["a", 2, 1, 1, 1, 1, "a=b,c=d", "5s", "c", "i:1", "app=a"],
    ),
    (
        "jobs",
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:05:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        [
            "a",
            "Complete",
            "1/1",
            "65m",
            "5s",
            "c",
            "i:1",
            "batch.kubernetes.io/controller-uid=11111111-2222-3333-4444-555555555555",
        ],
    ),
    (
        "jobs",
        {"spec.suspend": True, "spec.parallelism": 3},
        {},
        [
            "a",
            "Running",
            "0/1 of 3",
            "",
            "5s",
            "c",
            "i:1",
            "batch.kubernetes.io/controller-uid=11111111-2222-3333-4444-555555555555",
        ],
    ),
    (
        "jobs",
        {"spec.completions": 3},
        {"succeeded": 1, "startTime": "2020-11-23T06:00:00Z"},
        [
            "a",
            "Running",
            "1/3",
            "6y1d",
            "5s",
            "c",
            "i:1",
            "batch.kubernetes.io/controller-uid=11111111-2222-3333-4444-555555555555",
        ],
    ),
    (
        "jobs",
        {
            "spec.manualSelector": True,
            "spec.selector": {"matchLabels": {"a": "b"}},
            "spec.template.metadata.labels": {"a": "b"},
        },
        {"startTime": "2026-11-23T06:00:00Z", "failed": 1, "conditions": [{"type": "FailureTarget", "status": "True"}]},
        ["a", "FailureTarget", "0/1", "5s", "5s", "c", "i:1", "a=b"],
    ),
    (
        "cronjobs",
        {},
        {"lastScheduleTime": "2020-11-23T06:00:00Z", "active": [{"name": "x"}]},
        ["a", "* * * * *", "<none>", "False", 1, "6y1d", "5s", "c", "i:1", "<none>"],
    ),
    (
        "cronjobs",
        {"spec.timeZone": "Europe/Berlin", "spec.suspend": True},
        {},
        ["a", "* * * * *", "Europe/Berlin", "True", 0, "<none>", "5s", "c", "i:1", "<none>"],
    ),
    (
        "poddisruptionbudgets",
        {},
        {"disruptionsAllowed": 1, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
        ["a", "1", "N/A", 1, "5s"],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": ABSENT, "spec.maxUnavailable": "50%"},
        {},
        ["a", "N/A", "50%", 0, "5s"],
    ),
    ("podtemplates", {}, {}, ["a", "c", "i:1", "app=a"]),
    ("podtemplates", {"template.metadata": ABSENT}, {}, ["a", "c", "i:1", "<none>"]),
    ("controllerrevisions", {}, {}, ["a", "<none>", 1, "5s"]),
    (
        "controllerrevisions",
        {
            "metadata.ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "x", "uid": "u", "controller": True}
            ]
        },
        {},
        ["a", "daemonset.apps/x", 1, "5s"],
    ),
    ("services", {"spec.clusterIP": "10.0.0.5"}, {}, ["a", "ClusterIP", "10.0.0.5", "<none>", "80/TCP", "5s", "app=a"]),
    (
        "services",
        {"spec.clusterIP": "None", "spec.ports": []},
        {},
        ["a", "ClusterIP", "None", "<none>", "<none>", "5s", "app=a"],
    ),
    (
        "services",
        {
            "spec.clusterIP": "10.0.0.5",
            "spec.type": "NodePort",
            "spec.ports": [{"port": 80, "nodePort": 30005}],
            "spec.externalIPs": ["1.2.3.4", "1.2.3.5"],
        },
        {},
        ["a", "NodePort", "10.0.0.5", "1.2.3.4,1.2.3.5", "80:30005/TCP", "5s", "app=a"],
    ),
    (
        "services",
        {
            "spec.clusterIP": "10.0.0.5",
            "spec.type": "LoadBalancer",
            "spec.ports": [
                {"port": 80, "nodePort": 30005, "name": "a"},
                {"port": 80, "protocol": "UDP", "name": "b", "nodePort": 30005},
            ],
            "spec.externalIPs": ["1.2.3.4"],
        },
        {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "a-very-long-name.example.com"}]}},
        [
            "a",
            "LoadBalancer",
            "10.0.0.5",
            "9.9.9.9,a-very-long-name.example.com,1.2.3.4",
            "80:30005/TCP,80:30005/UDP",
            "5s",
            "app=a",
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.5", "spec.type": "LoadBalancer", "spec.ports.0.nodePort": 30005},
        {},
        ["a", "LoadBalancer", "10.0.0.5", "<pending>", "80:30005/TCP", "5s", "app=a"],
    ),
    (
        "services",
        {"spec.type": "ExternalName", "spec.externalName": "a.b", "spec.selector": ABSENT},
        {},
        ["a", "ExternalName", "<none>", "a.b", "80/TCP", "5s", "<none>"],
    ),
    ("endpoints", {}, {}, ["a", "10.1.0.1:80", "5s"]),
    (
        "endpoints",
        {
            "subsets": [
                {
                    "addresses": [{"ip": "10.1.0.1"}, {"ip": "fd00::1"}],
                    "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}],
                }
            ]
        },
        {},
        ["a", "10.1.0.1:80,[fd00::1]:80,10.1.0.1:81 + 1 more...", "5s"],
    ),
    ("endpoints", {"subsets": ABSENT}, {}, ["a", "<none>", "5s"]),
    ("endpoints", {"subsets": [{"addresses": [{"ip": "10.1.0.1"}]}]}, {}, ["a", "10.1.0.1", "5s"]),
    (
        "endpoints",
        {"subsets": [{"notReadyAddresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}]},
        {},
        ["a", "", "5s"],
    ),
    ("endpointslices", {}, {}, ["a", "IPv4", "80", "10.1.0.1", "5s"]),
    (
        "endpointslices",
        {
            "endpoints": [
                {"addresses": ["10.1.0.1"]},
                {"addresses": ["10.1.0.2"]},
                {"addresses": ["10.1.0.3"]},
                {"addresses": ["10.1.0.4"]},
                {"addresses": ["10.1.0.5"]},
            ],
            "ports": [{"port": 1, "name": "a"}, {"name": "b"}, {"port": 3, "name": "c"}, {"port": 4, "name": "d"}],
        },
        {},
        ["a", "IPv4", "1,b,3 + 1 more...", "10.1.0.1,10.1.0.2,10.1.0.3 + 2 more...", "5s"],
    ),
    ("endpointslices", {"endpoints": ABSENT, "ports": ABSENT}, {}, ["a", "IPv4", "<unset>", "<unset>", "5s"]),
]


@pytest.mark.parametrize("plural", STORED)
def test_what_is_stored(plural: str) -> None:
    changes: Changes = {}
    if plural == "services":
        changes = {"spec.clusterIP": "10.0.0.5", "spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"}
        changes |= {"spec.ports.0.nodePort": 30001, "spec.healthCheckNodePort": 30002}
    value, problems = creation(RESOURCES[plural], changed(MANIFESTS[plural], changes))
    assert problems == []
    fields = {name: item for name, item in value["metadata"].items() if name not in ("uid", "creationTimestamp")}
    expected = _with_uid(STORED[plural])
    assert value | {"metadata": fields} == expected | {"apiVersion": value["apiVersion"], "kind": value["kind"]}


def _with_uid(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_uid(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_uid(item) for item in value]
    return UID if value == "UID" else value


@pytest.mark.parametrize("plural", HEADINGS)
def test_headings(plural: str) -> None:
    columns = RESOURCES[plural].columns
    assert [(item.name, item.type, item.priority) for item in columns] == HEADINGS[plural]
    assert [item.name for item in columns if item.format == "name"] == ["Name"]


@pytest.mark.parametrize(("plural", "changes", "status", "expected"), CELLS)
def test_cells(plural: str, changes: Changes, status: Changes, expected: list[Any]) -> None:
    value = stored(RESOURCES[plural], changed(MANIFESTS[plural], changes))
    if status:
        value, problems = status_update(RESOURCES[plural], value, status)
        assert problems == []
    assert [item.cell(value, NOW) for item in RESOURCES[plural].columns] == expected
