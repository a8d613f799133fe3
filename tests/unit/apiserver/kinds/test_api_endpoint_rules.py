"""What is wrong with Endpoints and EndpointSlices: kube-apiserver 1.36 was asked the same."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_kinds import ABSENT, creation_problems, update_problems

Changes = dict[str, Any]

CREATIONS: list[tuple[str, Changes, list[str]]] = [
    ("endpoints", {}, []),
    ("endpoints", {"subsets": [{}]}, ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]),
    (
        "endpoints",
        {"subsets": [{"ports": [{"port": 80}]}]},
        ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.ip": ""},
        [
            'subsets[0].addresses[0].ip: Invalid value: "": must be a valid IP address',
            (
                'subsets[0].addresses[0].ip: Invalid value: "": must be a valid IP address, (e.g. 10.9.8.7 or '
                "2001:db8::ffff)"
            ),
        ],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.ip": "x"},
        [
            'subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address',
            (
                'subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or '
                "2001:db8::ffff)"
            ),
        ],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.ip": "127.0.0.1"},
        [
            (
                'subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range '
                "(127.0.0.0/8, ::1/128)"
            )
        ],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.ip": "010.1.0.1"},
        ['subsets[0].addresses[0].ip: Invalid value: "010.1.0.1": must not have leading 0s'],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.hostname": "A"},
        [
            (
                'subsets[0].addresses[0].hostname: Invalid value: "A": a lowercase RFC 1123 label must consist '
                "of lower case alphanumeric characters or '-', and must start and end with an alphanumeric "
                "character (e.g. 'my-name',  or '123-abc', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    (
        "endpoints",
        {"subsets.0.addresses.0.nodeName": "A"},
        [
            (
                'subsets[0].addresses[0].nodeName: Invalid value: "A": a lowercase RFC 1123 subdomain must '
                "consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "endpoints",
        {"subsets.0.notReadyAddresses": [{"ip": "0.0.0.0"}]},
        ['subsets[0].notReadyAddresses[0].ip: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)'],
    ),
    (
        "endpoints",
        {"subsets.0.ports": [{"port": 1}, {"port": 2}]},
        ["subsets[0].ports[0].name: Required value", "subsets[0].ports[1].name: Required value"],
    ),
    (
        "endpoints",
        {"subsets.0.ports": [{"port": 0, "name": "A", "protocol": "x", "appProtocol": "-"}]},
        [
            (
                'subsets[0].ports[0].appProtocol: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
            (
                'subsets[0].ports[0].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower '
                "case alphanumeric characters or '-', and must start and end with an alphanumeric character "
                "(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ),
            "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            'subsets[0].ports[0].protocol: Unsupported value: "x": supported values: "SCTP", "TCP", "UDP"',
        ],
    ),
    ("endpoints", {"subsets": ABSENT}, []),
    ("endpoints", {"subsets.0.ports": ABSENT}, []),
    (
        "endpoints",
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
    ("endpointslices", {}, []),
    ("endpointslices", {"addressType": ""}, ["addressType: Required value"]),
    (
        "endpointslices",
        {"addressType": "x"},
        ['addressType: Unsupported value: "x": supported values: "FQDN", "IPv4", "IPv6"'],
    ),
    (
        "endpointslices",
        {"addressType": "IPv6"},
        ['endpoints[0].addresses: Invalid value: "10.1.0.1": must be an IPv6 address'],
    ),
    ("endpointslices", {"addressType": "FQDN"}, []),
    ("endpointslices", {"addressType": "FQDN", "endpoints.0.addresses": ["a.b."]}, []),
    (
        "endpointslices",
        {"addressType": "FQDN", "endpoints.0.addresses": ["a"]},
        [
            (
                'endpoints[0].addresses[0]: Invalid value: "a": should be a domain with at least two segments '
                "separated by dots"
            )
        ],
    ),
    (
        "endpointslices",
        {"addressType": "FQDN", "endpoints.0.addresses": [""]},
        ["endpoints[0].addresses[0]: Required value"],
    ),
    (
        "endpointslices",
        {"addressType": "FQDN", "endpoints.0.addresses": ["A.b"]},
        [
            (
                'endpoints[0].addresses[0]: Invalid value: "A.b": a lowercase RFC 1123 subdomain must consist of '
                "lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric "
                "character (e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "endpointslices",
        {
            "addressType": "FQDN",
            "endpoints.0.addresses": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.b"],
        },
        [
            (
                "endpoints[0].addresses[0]: Invalid value: "
                '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 63 '
                "characters"
            )
        ],
    ),
    (
        "endpointslices",
        {"addressType": "IPv6", "endpoints.0.addresses": ["FD00::1"]},
        ['endpoints[0].addresses[0]: Invalid value: "FD00::1": must be in canonical form ("fd00::1")'],
    ),
    (
        "endpointslices",
        {"addressType": "IPv6", "endpoints.0.addresses": ["fd00::1", "::1"]},
        [('endpoints[0].addresses[1]: Invalid value: "::1": may not be in the loopback range (127.0.0.0/8, ::1/128)')],
    ),
    (
        "endpointslices",
        {"endpoints.0.addresses": ["x"]},
        [
            (
                'endpoints[0].addresses[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or '
                "2001:db8::ffff)"
            )
        ],
    ),
    (
        "endpointslices",
        {"endpoints.0.addresses": ["fd00::1"]},
        ['endpoints[0].addresses: Invalid value: "fd00::1": must be an IPv4 address'],
    ),
    (
        "endpointslices",
        {"endpoints.0.addresses": ["127.0.0.1"]},
        [
            (
                'endpoints[0].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range '
                "(127.0.0.0/8, ::1/128)"
            )
        ],
    ),
    (
        "endpointslices",
        {"endpoints.0.addresses": []},
        ["endpoints[0].addresses: Required value: must contain at least 1 address"],
    ),
    (
        "endpointslices",
        {"endpoints.0.nodeName": "A"},
        [
            (
                'endpoints[0].nodeName: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower '
                "case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "endpointslices",
        {"endpoints.0.hostname": "A"},
        [
            (
                'endpoints[0].hostname: Invalid value: "A": a lowercase RFC 1123 label must consist of lower '
                "case alphanumeric characters or '-', and must start and end with an alphanumeric character "
                "(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    (
        "endpointslices",
        {"endpoints.0.hints": {"forZones": [{"name": "a"}, {"name": "a"}, {"name": "-"}]}},
        [
            'endpoints[0].hints.forZones[1].name: Duplicate value: "a"',
            (
                'endpoints[0].hints.forZones[2].name: Invalid value: "-": a valid label must be an empty string '
                "or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
                "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ),
        ],
    ),
    (
        "endpointslices",
        {"endpoints.0.hints": {"forNodes": [{"name": "a"}, {"name": "a"}, {"name": "-"}]}},
        [
            'endpoints[0].hints.forNodes[1].name: Duplicate value: "a"',
            (
                'endpoints[0].hints.forNodes[2].name: Invalid value: "-": a lowercase RFC 1123 subdomain must '
                "consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ),
        ],
    ),
    (
        "endpointslices",
        {
            "endpoints.0.hints": {
                "forZones": [
                    {"name": "a0"},
                    {"name": "a1"},
                    {"name": "a2"},
                    {"name": "a3"},
                    {"name": "a4"},
                    {"name": "a5"},
                    {"name": "a6"},
                    {"name": "a7"},
                    {"name": "a8"},
                ]
            }
        },
        ["endpoints[0].hints.forZones: Too many: 9: must have at most 8 items"],
    ),
    (
        "endpointslices",
        {
            "endpoints.0.hints": {
                "forNodes": [
                    {"name": "a0"},
                    {"name": "a1"},
                    {"name": "a2"},
                    {"name": "a3"},
                    {"name": "a4"},
                    {"name": "a5"},
                    {"name": "a6"},
                    {"name": "a7"},
                    {"name": "a8"},
                ]
            }
        },
        ["endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items"],
    ),
    ("endpointslices", {"endpoints.0.deprecatedTopology": {"a": "b"}}, []),
    (
        "endpointslices",
        {"ports": [{"name": "A"}]},
        [
            (
                'ports[0].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case '
                "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. "
                "'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    ("endpointslices", {"ports": [{"port": 1}, {"port": 2}]}, ['ports[1].name: Duplicate value: ""']),
    (
        "endpointslices",
        {"ports": [{"port": 1, "protocol": "x"}]},
        ['ports[0].protocol: Unsupported value: "x": supported values: "SCTP", "TCP", "UDP"'],
    ),
    (
        "endpointslices",
        {"ports": [{"port": 1, "protocol": ""}]},
        ['ports[0].protocol: Unsupported value: "": supported values: "SCTP", "TCP", "UDP"'],
    ),
    (
        "endpointslices",
        {"ports": [{"port": 1, "appProtocol": "-"}]},
        [
            (
                'ports[0].appProtocol: Invalid value: "-": name part must consist of alphanumeric characters, '
                "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or "
                "'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )
        ],
    ),
    ("endpointslices", {"ports": ABSENT}, []),
    (
        "endpointslices",
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
]
UPDATES: list[tuple[str, Changes, Changes, list[str]]] = [
    (
        "endpoints",
        {},
        {"subsets.0.addresses.0.ip": "x"},
        [
            'subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address',
            (
                'subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or '
                "2001:db8::ffff)"
            ),
        ],
    ),
    ("endpoints", {}, {"subsets": ABSENT}, []),
    (
        "endpoints",
        {},
        {"subsets.0.ports.0.port": 0},
        ["subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"],
    ),
    ("endpointslices", {}, {"addressType": "IPv6"}, ['addressType: Invalid value: "IPv6": field is immutable']),
    (
        "endpointslices",
        {},
        {"endpoints.0.addresses": ["x"]},
        [
            (
                'endpoints[0].addresses[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or '
                "2001:db8::ffff)"
            )
        ],
    ),
    ("endpointslices", {}, {"metadata.labels": {"a": "b"}}, []),
    ("endpointslices", {}, {"metadata.annotations": {"a": "b"}}, []),
    ("endpointslices", {}, {"ports": [{"port": 81}]}, []),
]


@pytest.mark.parametrize(("plural", "changes", "expected"), CREATIONS)
def test_creations(plural: str, changes: Changes, expected: list[str]) -> None:
    assert creation_problems(plural, changes) == expected


@pytest.mark.parametrize(("plural", "before", "changes", "expected"), UPDATES)
def test_updates(plural: str, before: Changes, changes: Changes, expected: list[str]) -> None:
    assert update_problems(plural, before, changes) == expected
