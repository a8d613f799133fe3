"""What is wrong with Jobs and CronJobs: kube-apiserver 1.36 was asked the same."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_kinds import ABSENT, creation_problems, status_problems, update_problems

Changes = dict[str, Any]

CREATIONS: list[tuple[str, Changes, list[str]]] = [
    ("jobs", {}, []),
    (
        "jobs",
        {
            "spec.parallelism": -1,
            "spec.completions": -1,
            "spec.activeDeadlineSeconds": -1,
            "spec.backoffLimit": -1,
            "spec.ttlSecondsAfterFinished": -1,
        },
        [
            "spec.activeDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0",
            "spec.completions: Invalid value: -1: must be greater than or equal to 0",
            "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
            "spec.ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    ("jobs", {"spec.parallelism": 3}, []),
    ("jobs", {"spec.completions": 3}, []),
    ("jobs", {"spec.template.metadata.labels": {"x": "y"}}, []),
    ("jobs", {"metadata.labels": {"z": "y"}}, []),
    (
        "jobs",
        {"spec.backoffLimitPerIndex": -1, "spec.maxFailedIndexes": -1},
        [
            "spec.backoffLimitPerIndex: Invalid value: -1: must be greater than or equal to 0",
            "spec.backoffLimitPerIndex: Invalid value: -1: requires indexed completion mode",
            "spec.maxFailedIndexes: Invalid value: -1: must be greater than or equal to 0",
            "spec.maxFailedIndexes: Invalid value: -1: requires indexed completion mode",
        ],
    ),
    (
        "jobs",
        {"spec.maxFailedIndexes": 1},
        [
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
            "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode",
        ],
    ),
    ("jobs", {"spec.backoffLimitPerIndex": 1, "spec.completionMode": "Indexed", "spec.completions": 3}, []),
    ("jobs", {"spec.managedBy": ""}, ["spec.managedBy: Required value"]),
    (
        "jobs",
        {"spec.managedBy": "a"},
        ['spec.managedBy: Invalid value: "a": must be a domain-prefixed path (such as "acme.io/foo")'],
    ),
    (
        "jobs",
        {"spec.managedBy": "A/b"},
        [
            (
                'spec.managedBy: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower case '
                "alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "jobs",
        {"spec.managedBy": "a.b/é"},
        [
            (
                'spec.managedBy: Invalid value: "é": Invalid path (regex used for validation is '
                "'[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')"
            )
        ],
    ),
    (
        "jobs",
        {"spec.managedBy": "a.b/ccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"},
        ["spec.managedBy: Too long: may not be more than 63 bytes"],
    ),
    ("jobs", {"spec.managedBy": "a.b/c"}, []),
    (
        "jobs",
        {"spec.managedBy": "/c"},
        ['spec.managedBy: Invalid value: "/c": must be a domain-prefixed path (such as "acme.io/foo")'],
    ),
    (
        "jobs",
        {"spec.completionMode": "x"},
        ['spec.completionMode: Unsupported value: "x": supported values: "NonIndexed", "Indexed"'],
    ),
    ("jobs", {"spec.completionMode": "Indexed"}, []),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 100001},
        [
            (
                "spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion "
                "mode is Indexed"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.maxFailedIndexes": 6,
            "spec.backoffLimitPerIndex": 1,
        },
        ["spec.maxFailedIndexes: Invalid value: 6: must be less than or equal to completions"],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 200000,
            "spec.maxFailedIndexes": 100001,
            "spec.backoffLimitPerIndex": 1,
            "spec.parallelism": 10001,
        },
        [
            (
                "spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 10000 when "
                "completions are above 100000 and used with backoff limit per index"
            ),
            "spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 100000",
            (
                "spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions "
                "are above 100000 and used with backoff limit per index"
            ),
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 200000, "spec.backoffLimitPerIndex": 1},
        ["spec.maxFailedIndexes: Required value: must be specified when completions is above 100000"],
    ),
    ("jobs", {"spec.completionMode": "Indexed", "spec.completions": 200000, "spec.parallelism": 10001}, []),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "metadata.name": "a" * 62},
        [
            (
                'metadata.name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": '
                "will not able to create pod with invalid DNS label: "
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-4"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "metadata.name": "a.b"},
        ['metadata.name: Invalid value: "a.b": will not able to create pod with invalid DNS label: a.b-4'],
    ),
    ("jobs", {"spec.podFailurePolicy": {"rules": []}}, []),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "", "onPodConditions": [{"type": "X"}]}]}},
        [
            (
                'spec.podFailurePolicy.rules[0].action: Required value: valid values: ["Count" "FailIndex" '
                '"FailJob" "Ignore"]'
            )
        ],
    ),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "x", "onPodConditions": [{"type": "X"}]}]}},
        [
            (
                'spec.podFailurePolicy.rules[0].action: Unsupported value: "x": supported values: "Count", '
                '"FailIndex", "FailJob", "Ignore"'
            )
        ],
    ),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "FailIndex", "onPodConditions": [{"type": "X"}]}]}},
        [
            (
                'spec.podFailurePolicy.rules[0].action: Invalid value: "FailIndex": requires the '
                "backoffLimitPerIndex to be set"
            )
        ],
    ),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "Count"}]}},
        [
            (
                "spec.podFailurePolicy.rules[0]: Invalid value: specifying one of OnExitCodes and "
                "OnPodConditions is required"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [
                    {
                        "action": "Count",
                        "onPodConditions": [{"type": "X"}],
                        "onExitCodes": {"operator": "In", "values": [1]},
                    }
                ]
            }
        },
        [
            (
                "spec.podFailurePolicy.rules[0]: Invalid value: specifying both OnExitCodes and OnPodConditions "
                "is not supported"
            )
        ],
    ),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "-", "status": "x"}]}]}},
        [
            (
                'spec.podFailurePolicy.rules[0].onPodConditions[0].status: Unsupported value: "x": supported '
                'values: "False", "True", "Unknown"'
            ),
            (
                'spec.podFailurePolicy.rules[0].onPodConditions[0].type: Invalid value: "-": name part must '
                "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation "
                "is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
        ],
    ),
    (
        "jobs",
        {"spec.podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "", "values": []}}]}},
        [
            'spec.podFailurePolicy.rules[0].onExitCodes.operator: Required value: valid values: ["In" "NotIn"]',
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: []: at least one value is required",
        ],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "x", "containerName": "y", "values": [3, 2, 2]}}
                ]
            }
        },
        [
            (
                'spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: "y": must be one of '
                "the container or initContainer names in the pod template"
            ),
            (
                'spec.podFailurePolicy.rules[0].onExitCodes.operator: Unsupported value: "x": supported values: '
                '"In", "NotIn"'
            ),
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [3,2,2]: must be ordered",
            "spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 2",
        ],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "containerName": "c", "values": [0, 1]}}
                ]
            }
        },
        [("spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator")],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "containerName": "c", "values": [0, 1]}}
                ]
            }
        },
        [],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [
                            {"type": "X0"},
                            {"type": "X1"},
                            {"type": "X2"},
                            {"type": "X3"},
                            {"type": "X4"},
                            {"type": "X5"},
                            {"type": "X6"},
                            {"type": "X7"},
                            {"type": "X8"},
                            {"type": "X9"},
                            {"type": "X10"},
                            {"type": "X11"},
                            {"type": "X12"},
                            {"type": "X13"},
                            {"type": "X14"},
                            {"type": "X15"},
                            {"type": "X16"},
                            {"type": "X17"},
                            {"type": "X18"},
                            {"type": "X19"},
                            {"type": "X20"},
                        ],
                    }
                ]
            }
        },
        ["spec.podFailurePolicy.rules[0].onPodConditions: Too many: 21: must have at most 20 items"],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]
            },
            "spec.template.spec.restartPolicy": "OnFailure",
        },
        [
            (
                'spec.template.spec.restartPolicy: Invalid value: "OnFailure": only "Never" is supported when '
                "podFailurePolicy is specified"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.podFailurePolicy": {
                "rules": [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]
            },
            "spec.podReplacementPolicy": "TerminatingOrFailed",
        },
        ['spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"'],
    ),
    (
        "jobs",
        {"spec.podReplacementPolicy": "x"},
        ['spec.podReplacementPolicy: Unsupported value: "x": supported values: "Failed", "TerminatingOrFailed"'],
    ),
    ("jobs", {"spec.podReplacementPolicy": "Failed"}, []),
    (
        "jobs",
        {"spec.successPolicy": {"rules": [{"succeededCount": 1}]}},
        [
            (
                'spec.successPolicy: Invalid value: {"Rules":[{"SucceededIndexes":null,"SucceededCount":1}]}: '
                "requires indexed completion mode"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.successPolicy": {"rules": []}},
        [
            (
                "spec.successPolicy.rules: Required value: at least one rules must be specified when the "
                "successPolicy is specified"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.successPolicy": {"rules": [{}]}},
        [
            (
                "spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes "
                "must be specified"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "0-2", "succeededCount": 2}]},
        },
        [],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "0-2", "succeededCount": 4}]},
        },
        [
            (
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 4: must be less than or equal to 3 "
                "(the number of indexes in the specified succeededIndexes field)"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededCount": 6}, {"succeededCount": -1}]},
        },
        [
            (
                "spec.successPolicy.rules[0].succeededCount: Invalid value: 6: must be less than or equal to 5 "
                "(the number of specified completions)"
            ),
            "spec.successPolicy.rules[1].succeededCount: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "x"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "x": error parsing '
                'succeededIndexes: cannot convert string to integer for index: "x"'
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "1-2-3"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "1-2-3": error parsing '
                'succeededIndexes: the fragment "1-2-3" violates the requirement that an index interval can have '
                "at most two parts separated by '-'"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "5"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "5": error parsing '
                'succeededIndexes: too large index: "5"'
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "0-5"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "0-5": error parsing '
                'succeededIndexes: too large index: "5"'
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "2-1"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "2-1": error parsing '
                "succeededIndexes: non-increasing order, previous: 2, current: 1"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "3,2"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "3,2": error parsing '
                "succeededIndexes: non-increasing order, previous: 3, current: 2"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "1,1"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "1,1": error parsing '
                "succeededIndexes: non-increasing order, previous: 1, current: 1"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "0-"}]},
        },
        [
            (
                'spec.successPolicy.rules[0].succeededIndexes: Invalid value: "0-": error parsing '
                'succeededIndexes: cannot convert string to integer for index: ""'
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": ""}]},
        },
        [],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {"rules": [{"succeededIndexes": "0,2-4"}]},
        },
        [],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.successPolicy": {
                "rules": [
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                    {"succeededCount": 1},
                ]
            },
        },
        ["spec.successPolicy.rules: Too many: 21: must have at most 20 items"],
    ),
    (
        "jobs",
        {"spec.template.spec.restartPolicy": ABSENT},
        ['spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'],
    ),
    (
        "jobs",
        {"spec.template.spec.restartPolicy": "Always"},
        ['spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'],
    ),
    (
        "jobs",
        {"spec.template.spec.restartPolicy": "x"},
        [
            (
                'spec.template.spec.restartPolicy: Unsupported value: "x": supported values: "Always", '
                '"OnFailure", "Never"'
            ),
            'spec.template.spec.restartPolicy: Unsupported value: "x": supported values: "OnFailure", "Never"',
        ],
    ),
    (
        "jobs",
        {"spec.selector": {"matchLabels": {"a": "b"}}},
        [
            (
                "spec.selector: Invalid value: "
                '{"matchLabels":{"a":"b","batch.kubernetes.io/controller-uid":"11111111-2222-3333-4444-555555555'
                '555"}}: `selector` not auto-generated'
            ),
            (
                "spec.template.metadata.labels: Invalid value: "
                '{"batch.kubernetes.io/controller-uid":"11111111-2222-3333-4444-555555555555","batch.kubernetes.'
                'io/job-name":"a","controller-uid":"11111111-2222-3333-4444-555555555555","job-name":"a"}: '
                "`selector` does not match template `labels`"
            ),
        ],
    ),
    (
        "jobs",
        {"spec.manualSelector": True},
        [
            "spec.selector: Required value",
            "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`",
        ],
    ),
    (
        "jobs",
        {
            "spec.manualSelector": True,
            "spec.selector": {"matchLabels": {"a": "b"}},
            "spec.template.metadata.labels": {"a": "b"},
        },
        [],
    ),
    (
        "jobs",
        {"spec.manualSelector": True, "spec.selector": {"matchLabels": {"a": "b"}}},
        ["spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"],
    ),
    (
        "jobs",
        {"spec.template.metadata.labels": {"job-name": "x"}},
        [
            (
                "spec.template.metadata.labels[job-name]: Invalid value: "
                '{"batch.kubernetes.io/controller-uid":"11111111-2222-3333-4444-555555555555","batch.kubernetes.'
                'io/job-name":"a","controller-uid":"11111111-2222-3333-4444-555555555555","job-name":"x"}: must '
                "be 'a'"
            )
        ],
    ),
    (
        "jobs",
        {"spec.template": ABSENT},
        [
            "spec.template.spec.containers: Required value",
            'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ],
    ),
    (
        "jobs",
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
    ("jobs", {"metadata.name": "a.b"}, []),
    ("cronjobs", {}, []),
    ("cronjobs", {"spec.schedule": ""}, ["spec.schedule: Required value"]),
    (
        "cronjobs",
        {"spec.schedule": "x"},
        ['spec.schedule: Invalid value: "x": expected exactly 5 fields, found 1: [x]'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* * * *"},
        ['spec.schedule: Invalid value: "* * * *": expected exactly 5 fields, found 4: [* * * *]'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "60 * * * *"},
        ['spec.schedule: Invalid value: "60 * * * *": end of range (60) above maximum (59): 60'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* 24 * * *"},
        ['spec.schedule: Invalid value: "* 24 * * *": end of range (24) above maximum (23): 24'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* * 0 * *"},
        ['spec.schedule: Invalid value: "* * 0 * *": beginning of range (0) below minimum (1): 0'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* * * 13 *"},
        ['spec.schedule: Invalid value: "* * * 13 *": end of range (13) above maximum (12): 13'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* * * * 7"},
        ['spec.schedule: Invalid value: "* * * * 7": end of range (7) above maximum (6): 7'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "5-1 * * * *"},
        ['spec.schedule: Invalid value: "5-1 * * * *": beginning of range (5) beyond end of range (1): 5-1'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "1-2-3 * * * *"},
        ['spec.schedule: Invalid value: "1-2-3 * * * *": too many hyphens: 1-2-3'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "*/0 * * * *"},
        ['spec.schedule: Invalid value: "*/0 * * * *": step of range should be a positive number: */0'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "1/2/3 * * * *"},
        ['spec.schedule: Invalid value: "1/2/3 * * * *": too many slashes: 1/2/3'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "-1 * * * *"},
        [
            (
                'spec.schedule: Invalid value: "-1 * * * *": failed to parse int from : strconv.Atoi: parsing '
                '"": invalid syntax'
            )
        ],
    ),
    ("cronjobs", {"spec.schedule": "@x"}, ['spec.schedule: Invalid value: "@x": unrecognized descriptor: @x']),
    ("cronjobs", {"spec.schedule": "@daily"}, []),
    ("cronjobs", {"spec.schedule": "@every 1h30m"}, []),
    (
        "cronjobs",
        {"spec.schedule": "@every x"},
        [('spec.schedule: Invalid value: "@every x": failed to parse duration @every x: time: invalid duration "x"')],
    ),
    (
        "cronjobs",
        {"spec.schedule": "@every 5"},
        [
            (
                'spec.schedule: Invalid value: "@every 5": failed to parse duration @every 5: time: missing unit '
                'in duration "5"'
            )
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "@every"},
        ['spec.schedule: Invalid value: "@every": unrecognized descriptor: @every'],
    ),
    ("cronjobs", {"spec.schedule": "? * * jan-mar MON"}, []),
    (
        "cronjobs",
        {"spec.schedule": "TZ=UTC * * * * *"},
        [
            (
                'spec.schedule: Invalid value: "TZ=UTC * * * * *": cannot use TZ or CRON_TZ in schedule, use '
                "timeZone field instead"
            )
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "CRON_TZ=Nowhere/X * * * * *"},
        [
            (
                'spec.schedule: Invalid value: "CRON_TZ=Nowhere/X * * * * *": cannot use TZ or CRON_TZ in '
                "schedule, use timeZone field instead"
            ),
            (
                'spec.schedule: Invalid value: "CRON_TZ=Nowhere/X * * * * *": provided bad location Nowhere/X: '
                "unknown time zone Nowhere/X"
            ),
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "TZ=UTC"},
        [
            (
                'spec.schedule: Invalid value: "TZ=UTC": cannot use TZ or CRON_TZ in schedule, use timeZone '
                "field instead"
            ),
            (
                'spec.schedule: Invalid value: "TZ=UTC": invalid schedule format: runtime error: slice bounds '
                "out of range [:-1]"
            ),
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "L * * * *"},
        [
            (
                'spec.schedule: Invalid value: "L * * * *": failed to parse int from L: strconv.Atoi: parsing '
                '"L": invalid syntax'
            )
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "* * * * mon#1"},
        [
            (
                'spec.schedule: Invalid value: "* * * * mon#1": failed to parse int from mon#1: strconv.Atoi: '
                'parsing "mon#1": invalid syntax'
            )
        ],
    ),
    ("cronjobs", {"spec.schedule": "1,2,,3 * * * *"}, []),
    ("cronjobs", {"spec.schedule": "+5 * * * *"}, []),
    (
        "cronjobs",
        {"spec.schedule": "99999999999999999999 * * * *"},
        [
            (
                'spec.schedule: Invalid value: "99999999999999999999 * * * *": failed to parse int from '
                '99999999999999999999: strconv.Atoi: parsing "99999999999999999999": value out of range'
            )
        ],
    ),
    (
        "cronjobs",
        {"spec.schedule": "*/-1 * * * *"},
        ['spec.schedule: Invalid value: "*/-1 * * * *": negative number (-1) not allowed: -1'],
    ),
    (
        "cronjobs",
        {"spec.schedule": "@every 1.5d"},
        [
            (
                'spec.schedule: Invalid value: "@every 1.5d": failed to parse duration @every 1.5d: time: '
                'unknown unit "d" in duration "1.5d"'
            )
        ],
    ),
    ("cronjobs", {"spec.schedule": "@every -5s"}, []),
    ("cronjobs", {"spec.timeZone": ""}, ['spec.timeZone: Invalid value: "": timeZone must be nil or non-empty string']),
    (
        "cronjobs",
        {"spec.timeZone": "Local"},
        [
            (
                'spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in '
                "https://www.iana.org/time-zones"
            )
        ],
    ),
    ("cronjobs", {"spec.timeZone": "../x"}, ['spec.timeZone: Invalid value: "../x": unknown time zone ../x']),
    (
        "cronjobs",
        {"spec.timeZone": "Nowhere/Town"},
        ['spec.timeZone: Invalid value: "Nowhere/Town": unknown time zone Nowhere/Town'],
    ),
    ("cronjobs", {"spec.timeZone": "Europe/Berlin"}, []),
    (
        "cronjobs",
        {"spec.timeZone": "AAAAAAAAAAAAAAA"},
        ['spec.timeZone: Invalid value: "AAAAAAAAAAAAAAA": unknown time zone AAAAAAAAAAAAAAA'],
    ),
    ("cronjobs", {"spec.timeZone": "-a"}, ['spec.timeZone: Invalid value: "-a": unknown time zone -a']),
    ("cronjobs", {"spec.timeZone": "Etc/GMT+1"}, []),
    (
        "cronjobs",
        {"spec.concurrencyPolicy": "x"},
        ['spec.concurrencyPolicy: Unsupported value: "x": supported values: "Allow", "Forbid", "Replace"'],
    ),
    (
        "cronjobs",
        {"spec.startingDeadlineSeconds": -1},
        ["spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "cronjobs",
        {"spec.successfulJobsHistoryLimit": -1, "spec.failedJobsHistoryLimit": -1},
        [
            "spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
            "spec.successfulJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "cronjobs",
        {"metadata.name": "a" * 53},
        [
            (
                'metadata.name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be '
                "no more than 52 characters"
            )
        ],
    ),
    ("cronjobs", {"metadata.name": "a.b"}, []),
    (
        "cronjobs",
        {"spec.jobTemplate.spec.selector": {"matchLabels": {"a": "b"}}},
        [
            (
                'spec.jobTemplate.spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: `selector` will be '
                "auto-generated"
            )
        ],
    ),
    (
        "cronjobs",
        {"spec.jobTemplate.spec.manualSelector": True},
        ['spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"'],
    ),
    (
        "cronjobs",
        {"spec.jobTemplate.spec.backoffLimit": -1},
        ["spec.jobTemplate.spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "cronjobs",
        {"spec.jobTemplate.spec.template.spec.restartPolicy": ABSENT},
        [('spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"')],
    ),
    (
        "cronjobs",
        {"spec.jobTemplate": ABSENT},
        [
            "spec.jobTemplate.spec.template.spec.containers: Required value",
            ('spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
        ],
    ),
]
UPDATES: list[tuple[str, Changes, Changes, list[str]]] = [
    ("jobs", {}, {"spec.completions": 2}, ["spec.completions: Invalid value: 2: field is immutable"]),
    ("jobs", {}, {"spec.completions": ABSENT}, ["spec.completions: Invalid value: null: field is immutable"]),
    ("jobs", {}, {"spec.parallelism": 3}, []),
    (
        "jobs",
        {},
        {"spec.template.spec.containers.0.image": "x:2"},
        ["spec.template: Invalid value: {}: field is immutable"],
    ),
    (
        "jobs",
        {},
        {"spec.completionMode": "Indexed"},
        ['spec.completionMode: Invalid value: "Indexed": field is immutable'],
    ),
    ("jobs", {}, {"spec.backoffLimit": 3}, []),
    ("jobs", {}, {"spec.managedBy": "a.b/c"}, ['spec.managedBy: Invalid value: "a.b/c": field is immutable']),
    (
        "jobs",
        {},
        {"spec.podFailurePolicy": {"rules": [{"action": "Count", "onPodConditions": [{"type": "X"}]}]}},
        [
            "spec.podFailurePolicy: Invalid value: {}: field is immutable",
            'spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"',
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 3, "spec.parallelism": 3},
        {"spec.completions": 4},
        ["spec.completions: Invalid value: 4: can only be modified in tandem with spec.parallelism"],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 3, "spec.parallelism": 3},
        {"spec.completions": 4, "spec.parallelism": 4},
        [],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 3},
        {"spec.backoffLimitPerIndex": 4},
        ["spec.backoffLimitPerIndex: Invalid value: 4: field is immutable"],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 3},
        {"spec.successPolicy": {"rules": [{"succeededCount": 1}]}},
        ["spec.successPolicy: Invalid value: {}: field is immutable"],
    ),
    (
        "jobs",
        {},
        {"spec.selector": {"matchLabels": {"a": "b"}}},
        [
            'spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: `selector` not auto-generated',
            'spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: field is immutable',
            (
                "spec.template.metadata.labels: Invalid value: "
                '{"batch.kubernetes.io/controller-uid":"11111111-2222-3333-4444-555555555555","batch.kubernetes.'
                'io/job-name":"a","controller-uid":"11111111-2222-3333-4444-555555555555","job-name":"a"}: '
                "`selector` does not match template `labels`"
            ),
        ],
    ),
    (
        "jobs",
        {},
        {"spec.template.spec.nodeSelector": {"a": "b"}},
        ["spec.template: Invalid value: {}: field is immutable"],
    ),
    (
        "jobs",
        {"spec.template.spec.hostNetwork": False, "spec.template.spec.containers.0.tty": False},
        {"spec.template.spec.hostNetwork": ABSENT, "spec.template.spec.containers.0.tty": ABSENT},
        [],
    ),
    ("jobs", {}, {"spec.suspend": True}, []),
    (
        "jobs",
        {"spec.suspend": True},
        {
            "spec.template.spec.nodeSelector": {"a": "b"},
            "spec.template.spec.tolerations": [{"key": "a", "operator": "Exists"}],
            "spec.template.metadata.annotations": {"a": "b"},
        },
        [],
    ),
    (
        "jobs",
        {"spec.suspend": True},
        {
            "spec.template.spec.affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                    }
                }
            }
        },
        [],
    ),
    ("jobs", {"spec.suspend": True}, {"spec.template.spec.containers.0.resources": {"requests": {"cpu": "1"}}}, []),
    (
        "jobs",
        {"spec.suspend": True},
        {"spec.template.spec.containers.0.image": "x:2"},
        ["spec.template.spec: Invalid value: {}: field is immutable"],
    ),
    (
        "jobs",
        {"spec.suspend": True},
        {
            "spec.template.spec.affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a", "labelSelector": {}}]
                }
            }
        },
        ["spec.template.spec: Invalid value: {}: field is immutable"],
    ),
    ("jobs", {"spec.suspend": True}, {"spec.suspend": False}, []),
    ("jobs", {}, {"metadata.labels": ABSENT}, []),
    (
        "cronjobs",
        {},
        {"spec.schedule": "x"},
        ['spec.schedule: Invalid value: "x": expected exactly 5 fields, found 1: [x]'],
    ),
    (
        "cronjobs",
        {},
        {"spec.schedule": "TZ=UTC * * * * *"},
        [
            (
                'spec.schedule: Invalid value: "TZ=UTC * * * * *": cannot use TZ or CRON_TZ in schedule, use '
                "timeZone field instead"
            )
        ],
    ),
    (
        "cronjobs",
        {},
        {"spec.timeZone": "Nowhere/X"},
        ['spec.timeZone: Invalid value: "Nowhere/X": unknown time zone Nowhere/X'],
    ),
    ("cronjobs", {}, {"spec.suspend": True}, []),
    ("cronjobs", {}, {"spec.jobTemplate.spec.template.spec.containers.0.image": "x:2"}, []),
    (
        "cronjobs",
        {},
        {"spec.concurrencyPolicy": "x"},
        ['spec.concurrencyPolicy: Unsupported value: "x": supported values: "Allow", "Forbid", "Replace"'],
    ),
]
STATUSES: list[tuple[str, Changes, Changes, Changes, list[str]]] = [
    (
        "jobs",
        {},
        {},
        {"active": -1, "succeeded": -1, "failed": -1, "ready": -1, "terminating": -1},
        [
            "status.active: Invalid value: -1: must be greater than or equal to 0",
            "status.failed: Invalid value: -1: cannot decrease the failed counter",
            "status.failed: Invalid value: -1: must be greater than or equal to 0",
            "status.ready: Invalid value: -1: must be greater than or equal to 0",
            "status.succeeded: Invalid value: -1: cannot decrease the succeeded counter",
            "status.succeeded: Invalid value: -1: must be greater than or equal to 0",
            "status.terminating: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    (
        "jobs",
        {},
        {},
        {"uncountedTerminatedPods": {"succeeded": ["a", "", "a"], "failed": ["a", "b"]}},
        [
            'status.uncountedTerminatedPods.failed[0]: Duplicate value: "a"',
            'status.uncountedTerminatedPods.succeeded[1]: Invalid value: "": must not be empty',
            'status.uncountedTerminatedPods.succeeded[2]: Duplicate value: "a"',
        ],
    ),
    ("jobs", {}, {}, {"startTime": "2026-11-23T06:00:00Z", "active": 1}, []),
    (
        "jobs",
        {},
        {},
        {"startTime": "2026-11-23T06:00:00Z", "active": 1, "ready": 2},
        ["status.ready: Invalid value: 2: cannot set more ready pods than active"],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        [],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": None,
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        ["status.completionTime: Required value: completionTime is required for Complete jobs"],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [],
        },
        [
            (
                'status.completionTime: Invalid value: "2026-11-23T07:00:00Z": cannot set completionTime when '
                "there is no Complete=True condition"
            )
        ],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "Complete", "status": "True"}],
        },
        [
            (
                "status.conditions: Invalid value: cannot set Complete=True condition without the "
                "SuccessCriteriaMet=true condition"
            )
        ],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [
                {"type": "SuccessCriteriaMet", "status": "True"},
                {"type": "Complete", "status": "True"},
                {"type": "Failed", "status": "True"},
                {"type": "FailureTarget", "status": "True"},
            ],
        },
        [
            "status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
            "status.conditions: Invalid value: cannot set Complete=True and FailureTarget=true conditions",
            "status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and Failed=true conditions",
            ("status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
        ],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
            "active": 1,
            "terminating": 1,
            "uncountedTerminatedPods": {"succeeded": ["a"]},
        },
        [
            "status.active: Invalid value: 1: active>0 is invalid for finished job",
            "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job",
            (
                'status.uncountedTerminatedPods: Invalid value: {"Succeeded":["a"],"Failed":null}: must be empty '
                "for finished job"
            ),
        ],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": None,
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        ["status.startTime: Required value: startTime is required for finished job"],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T07:00:00Z",
            "completionTime": "2026-11-23T06:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        ['status.completionTime: Invalid value: "2026-11-23T06:00:00Z": must be equal to or after `startTime`'],
    ),
    (
        "jobs",
        {},
        {},
        {"startTime": "2026-11-23T06:00:00Z", "failed": 1, "conditions": [{"type": "Failed", "status": "True"}]},
        [
            (
                "status.conditions: Invalid value: cannot set Failed=True condition without the "
                "FailureTarget=true condition"
            )
        ],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "failed": 1,
            "conditions": [{"type": "Failed", "status": "True"}, {"type": "FailureTarget", "status": "True"}],
        },
        [],
    ),
    (
        "jobs",
        {},
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "conditions": [
                {"type": "SuccessCriteriaMet", "status": "True"},
                {"type": "FailureTarget", "status": "True"},
            ],
        },
        [("status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")],
    ),
    (
        "jobs",
        {},
        {"startTime": "2026-11-23T06:00:00Z", "failed": 1, "conditions": [{"type": "FailureTarget", "status": "True"}]},
        {"startTime": "2026-11-23T06:00:00Z", "failed": 1},
        ["status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition"],
    ),
    (
        "jobs",
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "failed": 1,
            "conditions": [{"type": "Failed", "status": "True"}, {"type": "FailureTarget", "status": "True"}],
        },
        {"startTime": "2026-11-23T06:00:00Z", "failed": 0},
        [
            "status.conditions: Invalid value: cannot disable the terminal Failed=True condition",
            "status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition",
            "status.failed: Invalid value: 0: cannot decrease the failed counter",
        ],
    ),
    (
        "jobs",
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        {"startTime": "2026-11-23T06:00:00Z", "succeeded": 1},
        [
            "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
            "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
        ],
    ),
    (
        "jobs",
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T06:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        ['status.completionTime: Invalid value: "2026-11-23T06:00:00Z": field is immutable'],
    ),
    (
        "jobs",
        {},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "succeeded": 0,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        ["status.succeeded: Invalid value: 0: cannot decrease the succeeded counter"],
    ),
    (
        "jobs",
        {},
        {"startTime": "2026-11-23T06:00:00Z", "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]},
        {"startTime": "2026-11-23T06:00:00Z"},
        ["status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition"],
    ),
    (
        "jobs",
        {},
        {"startTime": "2026-11-23T06:00:00Z"},
        {"startTime": "2026-11-23T07:00:00Z"},
        [('status.startTime: Invalid value: "2026-11-23T07:00:00Z": field is immutable for unsuspended job once set')],
    ),
    (
        "jobs",
        {},
        {"startTime": "2026-11-23T06:00:00Z"},
        {},
        ["status.startTime: Invalid value: null: field is immutable for unsuspended job once set"],
    ),
    ("jobs", {"spec.suspend": True}, {"startTime": "2026-11-23T06:00:00Z"}, {}, []),
    (
        "jobs",
        {},
        {"startTime": "2026-11-23T06:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]},
        {"startTime": "2026-11-23T07:00:00Z", "conditions": [{"type": "Suspended", "status": "False"}]},
        [],
    ),
    (
        "jobs",
        {},
        {},
        {"completedIndexes": "0"},
        [
            (
                'status.completedIndexes: Invalid value: "0": cannot set non-empty completedIndexes when '
                "non-indexed completion mode"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {},
        {"completedIndexes": "0-2,4"},
        [],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {},
        {"completedIndexes": "x"},
        [
            (
                'status.completedIndexes: Invalid value: "x": error parsing completedIndexes: cannot convert '
                'string to integer for index: "x"'
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {},
        {"completedIndexes": "5"},
        ['status.completedIndexes: Invalid value: "5": error parsing completedIndexes: too large index: "5"'],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {},
        {"completedIndexes": "3,1"},
        [
            (
                'status.completedIndexes: Invalid value: "3,1": error parsing completedIndexes: non-increasing '
                "order, previous: 3, current: 1"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {},
        {"failedIndexes": "1"},
        [
            (
                'status.failedIndexes: Invalid value: "1": cannot set non-null failedIndexes when '
                "backoffLimitPerIndex is null"
            )
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.parallelism": 5,
            "spec.backoffLimitPerIndex": 1,
        },
        {},
        {"completedIndexes": "0-2,4", "failedIndexes": "3"},
        [],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.parallelism": 5,
            "spec.backoffLimitPerIndex": 1,
        },
        {},
        {"completedIndexes": "0-2,4", "failedIndexes": "2-3"},
        ['status.failedIndexes: Invalid value: "2-3": failedIndexes and completedIndexes overlap at index: 2'],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.parallelism": 5,
            "spec.backoffLimitPerIndex": 1,
        },
        {},
        {"completedIndexes": "0-2,4", "failedIndexes": "y,4"},
        [
            (
                'status.failedIndexes: Invalid value: "y,4": error parsing failedIndexes: cannot convert string '
                'to integer for index: "y"'
            ),
            'status.failedIndexes: Invalid value: "y,4": failedIndexes and completedIndexes overlap at index: 4',
        ],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.parallelism": 5,
            "spec.backoffLimitPerIndex": 1,
        },
        {},
        {"failedIndexes": ""},
        [],
    ),
    (
        "jobs",
        {},
        {},
        {"failedIndexes": ""},
        [
            (
                'status.failedIndexes: Invalid value: "": cannot set non-null failedIndexes when '
                "backoffLimitPerIndex is null"
            )
        ],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 5},
        {"succeeded": 3},
        {"succeeded": 2},
        [],
    ),
    (
        "jobs",
        {"spec.completionMode": "Indexed", "spec.completions": 5, "spec.parallelism": 1},
        {"succeeded": 3},
        {"succeeded": 2},
        ["status.succeeded: Invalid value: 2: cannot decrease the succeeded counter"],
    ),
    (
        "jobs",
        {
            "spec.completionMode": "Indexed",
            "spec.completions": 5,
            "spec.parallelism": 5,
            "spec.successPolicy": {"rules": [{"succeededCount": 1}]},
        },
        {"startTime": "2026-11-23T06:00:00Z"},
        {
            "startTime": "2026-11-23T06:00:00Z",
            "completionTime": "2026-11-23T07:00:00Z",
            "conditions": [{"type": "Complete", "status": "True"}],
        },
        [
            (
                "status.conditions: Invalid value: cannot set Complete=True condition without the "
                "SuccessCriteriaMet=true condition"
            ),
            (
                "status.conditions: Invalid value: cannot set Complete=True for Job with SuccessPolicy unless "
                "SuccessCriteriaMet=True"
            ),
        ],
    ),
    (
        "jobs",
        {"spec.suspend": True, "spec.completions": 0},
        {},
        {
            "completionTime": "2026-11-23T07:00:00Z",
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}],
        },
        [],
    ),
    ("cronjobs", {}, {}, {"lastScheduleTime": "2026-11-23T06:00:00Z"}, []),
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
