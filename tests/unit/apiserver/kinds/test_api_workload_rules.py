"""What is wrong with workloads and disruption budgets: kube-apiserver 1.36 was asked the same."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_kinds import ABSENT, creation_problems, status_problems, update_problems

Changes = dict[str, Any]

CREATIONS: list[tuple[str, Changes, list[str]]] = [
    ("podtemplates", {}, []),
    ("podtemplates", {"template.spec.containers": []}, ["template.spec.containers: Required value"]),
    (
        "podtemplates",
        {"template.metadata.labels": {"a": "-"}},
        [
            (
                'template.labels: Invalid value: "-": a valid label must be an empty string or consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
                "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            )
        ],
    ),
    (
        "podtemplates",
        {"template.spec.restartPolicy": "x"},
        [('template.spec.restartPolicy: Unsupported value: "x": supported values: "Always", "OnFailure", "Never"')],
    ),
    (
        "podtemplates",
        {"metadata.name": "A_"},
        [
            (
                'metadata.name: Invalid value: "A_": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("controllerrevisions", {}, []),
    ("controllerrevisions", {"revision": -1}, ["revision: Invalid value: -1: must be greater than or equal to 0"]),
    ("controllerrevisions", {"data": ABSENT}, ["data: Required value: data is mandatory"]),
    ("controllerrevisions", {"data": [1]}, ["data: Required value: data must be a valid JSON object"]),
    ("controllerrevisions", {"data": "a"}, ["data: Required value: data must be a valid JSON object"]),
    ("controllerrevisions", {"data": 5}, ["data: Required value: data must be a valid JSON object"]),
    (
        "controllerrevisions",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("deployments", {}, []),
    (
        "deployments",
        {"spec.selector": ABSENT},
        [
            "spec.selector: Required value",
            ('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'),
        ],
    ),
    (
        "deployments",
        {"spec.selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    (
        "deployments",
        {"spec.selector": {"matchLabels": {"app": "b"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "deployments",
        {"spec.selector": {"matchLabels": {"-": "a"}}},
        [
            (
                'spec.selector.matchLabels: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
            'spec.selector: Invalid value: {"matchLabels":{"-":"a"}}: invalid label selector',
        ],
    ),
    (
        "deployments",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is "
                "'In' or 'NotIn'"
            ),
            (
                'spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"In"}]}: invalid '
                "label selector"
            ),
        ],
    ),
    (
        "deployments",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is "
                "'Exists' or 'DoesNotExist'"
            ),
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"Exists","values":["a"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "deployments",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}},
        [
            'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"Is","values":["a"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "deployments",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["-"]}]}},
        [
            (
                'spec.selector.matchExpressions[0].values[0]: Invalid value: "-": a valid label must be an empty '
                "string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
                "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ),
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"In","values":["-"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "deployments",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "deployments",
        {"spec.selector": {"matchLabels": {"b": "c", "app": "a"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "deployments",
        {"spec.template.metadata": ABSENT},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "deployments",
        {"spec.template": ABSENT},
        [
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            "spec.template.spec.containers: Required value",
        ],
    ),
    (
        "deployments",
        {"spec.template.spec.restartPolicy": "Never"},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "deployments",
        {"spec.template.spec.activeDeadlineSeconds": 5},
        [("spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported")],
    ),
    ("deployments", {"spec.template.spec.containers": []}, ["spec.template.spec.containers: Required value"]),
    ("deployments", {"spec.replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (
        "deployments",
        {"spec.minReadySeconds": -1},
        ["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("deployments", {"metadata.name": "a.b"}, []),
    (
        "deployments",
        {"spec.strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
    ),
    ("deployments", {"spec.strategy": {"type": "Recreate"}}, []),
    (
        "deployments",
        {"spec.strategy": {"type": "x"}},
        [
            (
                'spec.strategy: Unsupported value: {"Type":"x","RollingUpdate":null}: supported values: '
                '"Recreate", "RollingUpdate"'
            )
        ],
    ),
    (
        "deployments",
        {"spec.strategy": {"type": "x", "rollingUpdate": {"maxSurge": 1}}},
        [
            (
                "spec.strategy: Unsupported value: "
                '{"Type":"x","RollingUpdate":{"MaxUnavailable":0,"MaxSurge":1}}: supported values: "Recreate", '
                '"RollingUpdate"'
            )
        ],
    ),
    (
        "deployments",
        {"spec.strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
        ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    ),
    (
        "deployments",
        {"spec.strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}},
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "0%": may not be 0 when `maxSurge` is 0'],
    ),
    (
        "deployments",
        {"spec.strategy": {"rollingUpdate": {"maxSurge": -1, "maxUnavailable": "x"}}},
        [
            "spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0",
            (
                'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "x": a valid percent string must be '
                "a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
        ],
    ),
    (
        "deployments",
        {"spec.strategy": {"rollingUpdate": {"maxSurge": "150%", "maxUnavailable": "101%"}}},
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    (
        "deployments",
        {"spec.strategy": {"rollingUpdate": {"maxSurge": "", "maxUnavailable": "5"}}},
        [
            (
                'spec.strategy.rollingUpdate.maxSurge: Invalid value: "": a valid percent string must be a '
                "numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
            (
                'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "5": a valid percent string must be '
                "a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
        ],
    ),
    (
        "deployments",
        {"spec.revisionHistoryLimit": -1},
        ["spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {"spec.progressDeadlineSeconds": -1},
        [
            "spec.progressDeadlineSeconds: Invalid value: -1: must be greater than minReadySeconds",
            "spec.progressDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "deployments",
        {"spec.progressDeadlineSeconds": 5, "spec.minReadySeconds": 5},
        ["spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds"],
    ),
    ("replicasets", {}, []),
    (
        "replicasets",
        {"spec.selector": ABSENT},
        [
            "spec.selector: Required value",
            ('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'),
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchLabels": {"app": "b"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchLabels": {"-": "a"}}},
        [
            (
                'spec.selector.matchLabels: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
            'spec.selector: Invalid value: {"matchLabels":{"-":"a"}}: invalid label selector',
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is "
                "'In' or 'NotIn'"
            ),
            (
                'spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"In"}]}: invalid '
                "label selector"
            ),
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is "
                "'Exists' or 'DoesNotExist'"
            ),
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"Exists","values":["a"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}},
        [
            'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"Is","values":["a"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["-"]}]}},
        [
            (
                'spec.selector.matchExpressions[0].values[0]: Invalid value: "-": a valid label must be an empty '
                "string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
                "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ),
            (
                "spec.selector: Invalid value: "
                '{"matchExpressions":[{"key":"app","operator":"In","values":["-"]}]}: invalid label selector'
            ),
        ],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "replicasets",
        {"spec.selector": {"matchLabels": {"b": "c", "app": "a"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "replicasets",
        {"spec.template.metadata": ABSENT},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "replicasets",
        {"spec.template": ABSENT},
        [
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            "spec.template.spec.containers: Required value",
        ],
    ),
    (
        "replicasets",
        {"spec.template.spec.restartPolicy": "Never"},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "replicasets",
        {"spec.template.spec.activeDeadlineSeconds": 5},
        [("spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported")],
    ),
    ("replicasets", {"spec.template.spec.containers": []}, ["spec.template.spec.containers: Required value"]),
    ("replicasets", {"spec.replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (
        "replicasets",
        {"spec.minReadySeconds": -1},
        ["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicasets",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("replicasets", {"metadata.name": "a.b"}, []),
    ("replicationcontrollers", {}, []),
    (
        "replicationcontrollers",
        {"spec.selector": {"app": "b"}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "replicationcontrollers",
        {"spec.template": ABSENT},
        ["spec.selector: Required value", "spec.template: Required value"],
    ),
    (
        "replicationcontrollers",
        {"spec.replicas": -1},
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicationcontrollers",
        {"spec.minReadySeconds": -1},
        ["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    ("replicationcontrollers", {"spec.template.metadata": ABSENT}, ["spec.selector: Required value"]),
    (
        "replicationcontrollers",
        {"spec.template.spec.restartPolicy": "OnFailure"},
        ['spec.template.spec.restartPolicy: Unsupported value: "OnFailure": supported values: "Always"'],
    ),
    (
        "replicationcontrollers",
        {"spec.template.spec.activeDeadlineSeconds": 5},
        [
            (
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in "
                "ReplicationController is not Supported"
            )
        ],
    ),
    (
        "replicationcontrollers",
        {"spec.selector": {"app": "a"}, "spec.template.metadata": ABSENT},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "replicationcontrollers",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("replicationcontrollers", {"metadata.name": "a.b"}, []),
    ("statefulsets", {}, []),
    (
        "statefulsets",
        {"spec.selector": ABSENT},
        [
            "spec.selector: Required value",
            ('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'),
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for statefulset"],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchLabels": {"app": "b"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchLabels": {"-": "a"}}},
        [
            (
                'spec.selector.matchLabels: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
            'spec.selector: Invalid value: {"matchLabels":{"-":"a"}}',
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is "
                "'In' or 'NotIn'"
            ),
            'spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"In"}]}',
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is "
                "'Exists' or 'DoesNotExist'"
            ),
            ('spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"Exists","values":["a"]}]}'),
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}},
        [
            'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
            'spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"Is","values":["a"]}]}',
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["-"]}]}},
        [
            (
                'spec.selector.matchExpressions[0].values[0]: Invalid value: "-": a valid label must be an empty '
                "string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
                "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ),
            'spec.selector: Invalid value: {"matchExpressions":[{"key":"app","operator":"In","values":["-"]}]}',
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchLabels": {"b": "c", "app": "a"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "statefulsets",
        {"spec.template.metadata": ABSENT},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "statefulsets",
        {"spec.template": ABSENT},
        [
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            "spec.template.spec.containers: Required value",
        ],
    ),
    (
        "statefulsets",
        {"spec.template.spec.restartPolicy": "Never"},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "statefulsets",
        {"spec.template.spec.activeDeadlineSeconds": 5},
        [
            (
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in StatefulSet is "
                "not Supported"
            )
        ],
    ),
    ("statefulsets", {"spec.template.spec.containers": []}, ["spec.template.spec.containers: Required value"]),
    ("statefulsets", {"spec.replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (
        "statefulsets",
        {"spec.minReadySeconds": -1},
        ["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "statefulsets",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case '
                "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. "
                "'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    ("statefulsets", {"metadata.name": "a.b"}, ['metadata.name: Invalid value: "a.b": must not contain dots']),
    (
        "statefulsets",
        {"spec.podManagementPolicy": "x"},
        ["spec.podManagementPolicy: Invalid value: \"x\": must be 'OrderedReady' or 'Parallel'"],
    ),
    ("statefulsets", {"spec.podManagementPolicy": "Parallel"}, []),
    (
        "statefulsets",
        {"spec.updateStrategy": {"type": "OnDelete", "rollingUpdate": {"partition": 1}}},
        [
            (
                'spec.updateStrategy.rollingUpdate: Invalid value: {"Partition":1,"MaxUnavailable":null}: only '
                "allowed for updateStrategy 'RollingUpdate'"
            )
        ],
    ),
    ("statefulsets", {"spec.updateStrategy": {"type": "OnDelete"}}, []),
    (
        "statefulsets",
        {"spec.updateStrategy": {"type": "x"}},
        [
            (
                'spec.updateStrategy: Invalid value: {"Type":"x","RollingUpdate":null}: must be \'RollingUpdate\' '
                "or 'OnDelete'"
            )
        ],
    ),
    (
        "statefulsets",
        {"spec.updateStrategy": {"type": "x", "rollingUpdate": {"partition": 1}}},
        [
            (
                "spec.updateStrategy: Invalid value: "
                '{"Type":"x","RollingUpdate":{"Partition":1,"MaxUnavailable":null}}: must be \'RollingUpdate\' or '
                "'OnDelete'"
            )
        ],
    ),
    (
        "statefulsets",
        {"spec.updateStrategy": {"rollingUpdate": {"partition": -1}}},
        ["spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0"],
    ),
    ("statefulsets", {"spec.updateStrategy": {"type": "RollingUpdate"}}, []),
    ("statefulsets", {"spec.updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "x"}}}, []),
    (
        "statefulsets",
        {"spec.persistentVolumeClaimRetentionPolicy": {"whenDeleted": "x", "whenScaled": "Delete"}},
        [
            (
                'spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: "x": supported '
                'values: "Retain", "Delete"'
            )
        ],
    ),
    (
        "statefulsets",
        {"spec.ordinals": {"start": -1}},
        ["spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "statefulsets",
        {"spec.serviceName": "-"},
        [
            (
                'spec.serviceName: Invalid value: "-": a lowercase RFC 1123 label must consist of lower case '
                "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. "
                "'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    ("statefulsets", {"spec.revisionHistoryLimit": -1}, []),
    (
        "statefulsets",
        {"spec.volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]},
        [
            "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
            "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
        ],
    ),
    (
        "statefulsets",
        {
            "spec.volumeClaimTemplates": [
                {
                    "metadata": {"name": "v"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ],
            "spec.template.spec.containers.0.volumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        [],
    ),
    (
        "statefulsets",
        {
            "spec.volumeClaimTemplates": [
                {
                    "metadata": {"name": "v"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100m"}}},
                }
            ]
        },
        [],
    ),
    ("statefulsets", {"spec.template.spec.hostname": "X", "spec.template.spec.subdomain": "Y"}, []),
    (
        "statefulsets",
        {"spec.template.spec.containers.0.volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        ['spec.template.spec.containers[0].volumeMounts[0].name: Not found: "v"'],
    ),
    ("daemonsets", {}, []),
    (
        "daemonsets",
        {"spec.selector": ABSENT},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "daemonsets",
        {"spec.selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchLabels": {"app": "b"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchLabels": {"-": "a"}}},
        [
            (
                'spec.selector.matchLabels: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is "
                "'In' or 'NotIn'"
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is "
                "'Exists' or 'DoesNotExist'"
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}},
        ['spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator'],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["-"]}]}},
        [
            (
                'spec.selector.matchExpressions[0].values[0]: Invalid value: "-": a valid label must be an empty '
                "string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
                "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "daemonsets",
        {"spec.selector": {"matchLabels": {"b": "c", "app": "a"}}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "daemonsets",
        {"spec.template.metadata": ABSENT},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "daemonsets",
        {"spec.template": ABSENT},
        [
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
            "spec.template.spec.containers: Required value",
        ],
    ),
    (
        "daemonsets",
        {"spec.template.spec.restartPolicy": "Never"},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "daemonsets",
        {"spec.template.spec.activeDeadlineSeconds": 5},
        [("spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported")],
    ),
    ("daemonsets", {"spec.template.spec.containers": []}, ["spec.template.spec.containers: Required value"]),
    (
        "daemonsets",
        {"spec.minReadySeconds": -1},
        ["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "daemonsets",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    ("daemonsets", {"metadata.name": "a.b"}, []),
    ("daemonsets", {"spec.updateStrategy": {"type": "OnDelete"}}, []),
    (
        "daemonsets",
        {"spec.updateStrategy": {"type": "x"}},
        [
            (
                'spec.updateStrategy: Unsupported value: {"Type":"x","RollingUpdate":null}: supported values: '
                '"RollingUpdate", "OnDelete"'
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.updateStrategy": {"type": "x", "rollingUpdate": {"maxSurge": 1}}},
        [
            (
                "spec.updateStrategy: Unsupported value: "
                '{"Type":"x","RollingUpdate":{"MaxUnavailable":0,"MaxSurge":1}}: supported values: '
                '"RollingUpdate", "OnDelete"'
            )
        ],
    ),
    (
        "daemonsets",
        {"spec.updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        [
            (
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when "
                "maxUnavailable is non-zero"
            )
        ],
    ),
    ("daemonsets", {"spec.updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}, []),
    (
        "daemonsets",
        {"spec.updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
        ["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
    ),
    (
        "daemonsets",
        {"spec.updateStrategy": {"rollingUpdate": {"maxSurge": "x", "maxUnavailable": "200%"}}},
        [
            (
                'spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: "x": a valid percent string must be '
                "a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is "
                "'[0-9]+%')"
            ),
            ('spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: "200%": must not be greater than 100%'),
        ],
    ),
    (
        "daemonsets",
        {"spec.updateStrategy": {"rollingUpdate": {"maxSurge": -1}}},
        [
            (
                "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: -1: may not be set when "
                "maxUnavailable is non-zero"
            ),
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "daemonsets",
        {"spec.revisionHistoryLimit": -1},
        ["spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0"],
    ),
    ("poddisruptionbudgets", {}, []),
    (
        "poddisruptionbudgets",
        {"spec.maxUnavailable": "50%"},
        [
            (
                "spec: Invalid value: "
                '{"MinAvailable":1,"Selector":{"matchLabels":{"app":"a"}},"MaxUnavailable":"50%","UnhealthyPodEv'
                'ictionPolicy":null}: minAvailable and maxUnavailable cannot be both set'
            )
        ],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": -1},
        ["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": "x"},
        [
            (
                'spec.minAvailable: Invalid value: "x": a valid percent string must be a numeric string followed '
                "by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            )
        ],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": "101%"},
        ['spec.minAvailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": ABSENT, "spec.maxUnavailable": "101%"},
        ['spec.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    (
        "poddisruptionbudgets",
        {"spec.minAvailable": ABSENT, "spec.maxUnavailable": "5"},
        [
            (
                'spec.maxUnavailable: Invalid value: "5": a valid percent string must be a numeric string '
                "followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            )
        ],
    ),
    (
        "poddisruptionbudgets",
        {"spec.selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is "
                "'In' or 'NotIn'"
            )
        ],
    ),
    ("poddisruptionbudgets", {"spec.selector": ABSENT}, []),
    (
        "poddisruptionbudgets",
        {"spec.unhealthyPodEvictionPolicy": "x"},
        [
            (
                'spec.unhealthyPodEvictionPolicy: Unsupported value: "x": supported values: "AlwaysAllow", '
                '"IfHealthyBudget"'
            )
        ],
    ),
    ("poddisruptionbudgets", {"spec.unhealthyPodEvictionPolicy": "AlwaysAllow"}, []),
    ("poddisruptionbudgets", {"spec": ABSENT}, []),
    (
        "deployments",
        {"spec.strategy": {"type": "x", "rollingUpdate": {}}},
        [
            'spec.strategy: Unsupported value: {"Type":"x","RollingUpdate":{"MaxUnavailable":0,"MaxSurge":0}}:'
            ' supported values: "Recreate", "RollingUpdate"'
        ],
    ),
    (
        "daemonsets",
        {"spec.updateStrategy": {"type": "x", "rollingUpdate": {}}},
        [
            'spec.updateStrategy: Unsupported value: {"Type":"x","RollingUpdate":{"MaxUnavailable":0,"MaxSurge":0}}:'
            ' supported values: "RollingUpdate", "OnDelete"'
        ],
    ),
    (
        "statefulsets",
        {"spec.updateStrategy": {"type": "x", "rollingUpdate": {}}},
        [
            'spec.updateStrategy: Invalid value: {"Type":"x","RollingUpdate":{"Partition":0,"MaxUnavailable":null}}:'
            " must be 'RollingUpdate' or 'OnDelete'"
        ],
    ),
    (
        "statefulsets",
        {"spec.selector": {"matchExpressions": [{"key": "a"}]}},
        [
            'spec.selector.matchExpressions[0].operator: Invalid value: "": not a valid selector operator',
            'spec.selector: Invalid value: {"matchExpressions":[{"key":"a","operator":""}]}',
        ],
    ),
]
UPDATES: list[tuple[str, Changes, Changes, list[str]]] = [
    ("podtemplates", {}, {"template.spec.containers": []}, ["template.spec.containers: Required value"]),
    ("podtemplates", {}, {"template.spec.containers.0.image": "x:2"}, []),
    ("controllerrevisions", {}, {"data": {"a": 1}}, ['data: Invalid value: {"a":1}: field is immutable']),
    ("controllerrevisions", {}, {"revision": 2}, []),
    ("controllerrevisions", {}, {"revision": -1}, ["revision: Invalid value: -1: must be greater than or equal to 0"]),
    ("controllerrevisions", {}, {"data": ABSENT}, ["data: Invalid value: null: field is immutable"]),
    (
        "deployments",
        {},
        {"spec.selector": {"matchLabels": {"app": "b"}}},
        [
            'spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable',
            ('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'),
        ],
    ),
    (
        "deployments",
        {},
        {"spec.selector": {"matchLabels": {"app": "b"}}, "spec.template.metadata.labels": {"app": "b"}},
        ['spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable'],
    ),
    ("deployments", {}, {"spec.replicas": 3}, []),
    ("deployments", {}, {"metadata.annotations": {"a": "b"}}, []),
    ("deployments", {}, {"metadata.labels": {"a": "b"}}, []),
    ("deployments", {}, {"spec.template.spec.containers.0.image": "x:2"}, []),
    ("deployments", {}, {"spec.strategy": {"type": "Recreate"}}, []),
    ("deployments", {}, {"metadata.name": "a", "status": {"replicas": 7}}, []),
    (
        "replicasets",
        {},
        {"spec.selector": {"matchLabels": {"app": "b"}}, "spec.template.metadata.labels": {"app": "b"}},
        ['spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable'],
    ),
    (
        "replicasets",
        {},
        {"spec.replicas": -1},
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicationcontrollers",
        {},
        {"spec.selector": {"app": "b"}},
        [('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`')],
    ),
    (
        "replicationcontrollers",
        {},
        {"spec.replicas": -1},
        ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    ("replicationcontrollers", {}, {"spec.replicas": 2}, []),
    ("statefulsets", {"spec.serviceName": ""}, {"spec.serviceName": ABSENT}, []),
    ("statefulsets", {"spec.serviceName": ABSENT}, {"spec.serviceName": ""}, []),
    (
        "statefulsets",
        {},
        {"spec.serviceName": "x"},
        [
            (
                "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
                "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
                "and 'minReadySeconds' are forbidden"
            )
        ],
    ),
    ("statefulsets", {}, {"spec.replicas": 3, "spec.minReadySeconds": 2, "spec.revisionHistoryLimit": 4}, []),
    (
        "statefulsets",
        {},
        {"spec.podManagementPolicy": "Parallel"},
        [
            (
                "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
                "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
                "and 'minReadySeconds' are forbidden"
            )
        ],
    ),
    (
        "statefulsets",
        {},
        {"spec.selector": {"matchLabels": {"app": "a", "b": "c"}}},
        [
            ('spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'),
            (
                "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
                "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
                "and 'minReadySeconds' are forbidden"
            ),
        ],
    ),
    ("statefulsets", {}, {"spec.template.spec.containers": []}, ["spec.template.spec.containers: Required value"]),
    (
        "statefulsets",
        {},
        {
            "spec.volumeClaimTemplates": [
                {
                    "metadata": {"name": "v"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }
            ]
        },
        [
            (
                "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', "
                "'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' "
                "and 'minReadySeconds' are forbidden"
            )
        ],
    ),
    (
        "daemonsets",
        {},
        {"spec.selector": {"matchLabels": {"app": "b"}}, "spec.template.metadata.labels": {"app": "b"}},
        ['spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable'],
    ),
    ("daemonsets", {}, {"spec.template.spec.containers.0.image": "x:2"}, []),
    ("daemonsets", {}, {"spec.minReadySeconds": 3}, []),
    ("daemonsets", {}, {"metadata.annotations": {"deprecated.daemonset.template.generation": "9"}}, []),
    ("daemonsets", {}, {"metadata.annotations": ABSENT}, []),
    (
        "poddisruptionbudgets",
        {},
        {"spec.minAvailable": "x"},
        [
            (
                'spec.minAvailable: Invalid value: "x": a valid percent string must be a numeric string followed '
                "by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            )
        ],
    ),
    ("poddisruptionbudgets", {}, {"spec.minAvailable": 2}, []),
    ("poddisruptionbudgets", {}, {"spec.selector": {"matchLabels": {"app": "b"}}}, []),
]
STATUSES: list[tuple[str, Changes, Changes, Changes, list[str]]] = [
    (
        "deployments",
        {},
        {},
        {"replicas": -1},
        [
            "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.replicas: Invalid value: -1: must be greater than or equal to 0",
            "status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas",
        ],
    ),
    (
        "deployments",
        {},
        {},
        {"replicas": 1, "readyReplicas": 2},
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "deployments",
        {},
        {},
        {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
        ["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
    ),
    ("deployments", {}, {}, {"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1}, []),
    (
        "deployments",
        {},
        {},
        {"replicas": 1, "observedGeneration": -1},
        ["status.observedGeneration: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {},
        {},
        {"replicas": 1, "updatedReplicas": 2},
        ["status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "deployments",
        {},
        {},
        {"unavailableReplicas": -1},
        ["status.unavailableReplicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {},
        {},
        {"collisionCount": -1},
        ["status.collisionCount: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {},
        {},
        {"replicas": 1, "availableReplicas": 2},
        [
            "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
            "status.availableReplicas: Invalid value: 2: cannot be greater than status.replicas",
        ],
    ),
    (
        "deployments",
        {},
        {},
        {"terminatingReplicas": -1},
        ["status.terminatingReplicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "deployments",
        {},
        {"collisionCount": 2},
        {"collisionCount": 1},
        ["status.collisionCount: Invalid value: 1: cannot be decremented"],
    ),
    ("deployments", {}, {"collisionCount": 2}, {}, ["status.collisionCount: Invalid value: 0: cannot be decremented"]),
    ("deployments", {}, {"collisionCount": 2}, {"collisionCount": 3}, []),
    (
        "replicasets",
        {},
        {},
        {"replicas": -1},
        [
            "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.fullyLabeledReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.replicas: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "replicasets",
        {},
        {},
        {"replicas": 1, "readyReplicas": 2},
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "replicasets",
        {},
        {},
        {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
        ["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
    ),
    ("replicasets", {}, {}, {"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1}, []),
    (
        "replicasets",
        {},
        {},
        {"replicas": 1, "observedGeneration": -1},
        ["status.observedGeneration: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicasets",
        {},
        {},
        {"replicas": 1, "fullyLabeledReplicas": 2},
        ["status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "replicasets",
        {},
        {},
        {"replicas": 0, "terminatingReplicas": -1},
        ["status.terminatingReplicas: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": -1},
        [
            "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.fullyLabeledReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.replicas: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": 1, "readyReplicas": 2},
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
        ["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1},
        [],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": 1, "observedGeneration": -1},
        ["status.observedGeneration: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "replicationcontrollers",
        {},
        {},
        {"replicas": 1, "fullyLabeledReplicas": 2},
        ["status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": -1},
        [
            "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.currentReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
            "status.replicas: Invalid value: -1: must be greater than or equal to 0",
            "status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas",
        ],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 1, "readyReplicas": 2},
        ["status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 3, "readyReplicas": 1, "availableReplicas": 2},
        ["status.availableReplicas: Invalid value: 2: cannot be greater than status.readyReplicas"],
    ),
    ("statefulsets", {}, {}, {"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1}, []),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 1, "observedGeneration": -1},
        ["status.observedGeneration: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 1, "currentReplicas": 2},
        ["status.currentReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 1, "updatedReplicas": 2},
        ["status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas"],
    ),
    (
        "statefulsets",
        {},
        {},
        {"replicas": 1, "collisionCount": -1},
        ["status.collisionCount: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "statefulsets",
        {},
        {"replicas": 0, "collisionCount": 2},
        {"replicas": 0, "collisionCount": 1},
        ["status.collisionCount: Invalid value: 1: cannot be decremented"],
    ),
    (
        "daemonsets",
        {},
        {},
        {
            "currentNumberScheduled": -1,
            "numberMisscheduled": -1,
            "desiredNumberScheduled": -1,
            "numberReady": -1,
            "observedGeneration": -1,
            "updatedNumberScheduled": -1,
            "numberAvailable": -1,
            "numberUnavailable": -1,
            "collisionCount": -1,
        },
        [
            "status.collisionCount: Invalid value: -1: must be greater than or equal to 0",
            "status.currentNumberScheduled: Invalid value: -1: must be greater than or equal to 0",
            "status.desiredNumberScheduled: Invalid value: -1: must be greater than or equal to 0",
            "status.numberAvailable: Invalid value: -1: must be greater than or equal to 0",
            "status.numberMisscheduled: Invalid value: -1: must be greater than or equal to 0",
            "status.numberReady: Invalid value: -1: must be greater than or equal to 0",
            "status.numberUnavailable: Invalid value: -1: must be greater than or equal to 0",
            "status.observedGeneration: Invalid value: -1: must be greater than or equal to 0",
            "status.updatedNumberScheduled: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "daemonsets",
        {},
        {},
        {"currentNumberScheduled": 1, "numberMisscheduled": 0, "desiredNumberScheduled": 1, "numberReady": 1},
        [],
    ),
    ("daemonsets", {}, {"collisionCount": 2}, {}, ["status.collisionCount: Invalid value: 0: cannot be decremented"]),
    (
        "poddisruptionbudgets",
        {},
        {},
        {"disruptionsAllowed": -1, "currentHealthy": -1, "desiredHealthy": -1, "expectedPods": -1},
        [
            "status.currentHealthy: Invalid value: -1: must be greater than or equal to 0",
            "status.desiredHealthy: Invalid value: -1: must be greater than or equal to 0",
            "status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0",
            "status.expectedPods: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "poddisruptionbudgets",
        {},
        {},
        {
            "disruptionsAllowed": 0,
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
            "conditions": [
                {
                    "type": "A",
                    "status": "True",
                    "reason": "R",
                    "message": "",
                    "lastTransitionTime": "2026-11-23T06:00:00Z",
                },
                {
                    "type": "A",
                    "status": "x",
                    "reason": "-",
                    "message": "x" * 33000,
                    "lastTransitionTime": "2026-11-23T06:00:00Z",
                    "observedGeneration": -1,
                },
                {"type": "-", "status": "False", "reason": "", "message": "", "lastTransitionTime": None},
                {
                    "type": "B",
                    "status": "True",
                    "reason": "R" * 1025,
                    "message": "",
                    "lastTransitionTime": "2026-11-23T06:00:00Z",
                },
            ],
        },
        [
            "status.conditions[1].message: Too long: may not be more than 32768 bytes",
            "status.conditions[1].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            (
                'status.conditions[1].reason: Invalid value: "-": a condition reason must start with alphabetic '
                "character, optionally followed by a string of alphanumeric characters or '_,:', and must end "
                "with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or "
                "'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is "
                "'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
            ),
            'status.conditions[1].status: Unsupported value: "x": supported values: "False", "True", "Unknown"',
            'status.conditions[1].type: Duplicate value: "A"',
            "status.conditions[2].lastTransitionTime: Required value",
            "status.conditions[2].reason: Required value",
            (
                'status.conditions[2].type: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
            "status.conditions[3].reason: Too long: may not be more than 1024 bytes",
        ],
    ),
    (
        "poddisruptionbudgets",
        {},
        {},
        {"currentHealthy": 1, "disruptionsAllowed": 1, "desiredHealthy": 1, "expectedPods": 1},
        [],
    ),
]


@pytest.mark.parametrize(("plural", "changes", "expected"), CREATIONS)
def test_creations(plural: str, changes: Changes, expected: list[str]) -> None:
    assert creation_problems(plural, changes) == expected


@pytest.mark.parametrize(("plural", "before", "changes", "expected"), UPDATES)
def test_updates(plural: str, before: Changes, changes: Changes, expected: list[str]) -> None:
    assert update_problems(plural, before, changes) == expected


@pytest.mark.parametrize(("plural", "manifest", "before", "status", "expected"), STATUSES)
def test_statuses(plural: str, manifest: Changes, before: Changes, status: Changes, expected: list[str]) -> None:
    assert status_problems(plural, manifest, before, status) == expected
