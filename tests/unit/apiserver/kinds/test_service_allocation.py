"""Addresses and ports of services; kube-apiserver 1.36 with two families was asked the same."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

import pytest

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.services.service_allocation import Ranges, allocate
from podkeep.apiserver.kinds.services.services import SERVICES
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.patch.values import copy
from support.api_kinds import ABSENT, MANIFESTS, changed

Changes = dict[str, Any]
DUAL = Ranges((ipaddress.ip_network("10.0.0.0/24"), ipaddress.ip_network("fd00::/112")))
_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "type")

CREATIONS: list[tuple[Changes, list[str], Changes | None]] = [
    (
        {},
        [],
        {
            "clusterIP": "10.0.0.17",
            "clusterIPs": ["10.0.0.17"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.ipFamilyPolicy": "PreferDualStack"},
        [],
        {
            "clusterIP": "10.0.0.17",
            "clusterIPs": ["10.0.0.17", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.ipFamilyPolicy": "RequireDualStack"},
        [],
        {
            "clusterIP": "10.0.0.17",
            "clusterIPs": ["10.0.0.17", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.ipFamilyPolicy": "RequireDualStack", "spec.ipFamilies": ["IPv6"]},
        [],
        {
            "clusterIP": "fd00::101",
            "clusterIPs": ["fd00::101", "10.0.0.17"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.ipFamilies": ["IPv6"]},
        [],
        {
            "clusterIP": "fd00::101",
            "clusterIPs": ["fd00::101"],
            "ipFamilies": ["IPv6"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.ipFamilies": ["IPv6", "IPv4"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or "
                "'PreferDualStack' when multiple IP families are specified"
            )
        ],
        None,
    ),
    (
        {"spec.ipFamilies": ["IPv6", "IPv4"], "spec.ipFamilyPolicy": "PreferDualStack"},
        [],
        {
            "clusterIP": "fd00::101",
            "clusterIPs": ["fd00::101", "10.0.0.17"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "fd00::5"},
        [],
        {
            "clusterIP": "fd00::5",
            "clusterIPs": ["fd00::5"],
            "ipFamilies": ["IPv6"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "fd00::5", "spec.ipFamilyPolicy": "RequireDualStack"},
        [],
        {
            "clusterIP": "fd00::5",
            "clusterIPs": ["fd00::5", "10.0.0.17"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "fd00::5", "spec.clusterIPs": ["fd00::5", "10.0.0.9"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or "
                "'PreferDualStack' when multiple cluster IPs are specified"
            )
        ],
        None,
    ),
    (
        {
            "spec.clusterIP": "fd00::5",
            "spec.clusterIPs": ["fd00::5", "10.0.0.9"],
            "spec.ipFamilyPolicy": "PreferDualStack",
        },
        [],
        {
            "clusterIP": "fd00::5",
            "clusterIPs": ["fd00::5", "10.0.0.9"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.clusterIP": "fd00::5",
            "spec.clusterIPs": ["fd00::5", "fd00::6"],
            "spec.ipFamilyPolicy": "PreferDualStack",
        },
        [('spec.clusterIPs: Invalid value: ["fd00::5","fd00::6"]: may specify no more than one IP for each IP family')],
        None,
    ),
    (
        {"spec.clusterIP": "fd01::5"},
        [
            (
                'spec.clusterIPs: Invalid value: ["fd01::5"]: failed to allocate IP fd01::5: the provided '
                "network does not match the current range"
            )
        ],
        None,
    ),
    (
        {"spec.clusterIP": "10.0.0.9", "spec.ipFamilies": ["IPv6"]},
        [('spec.clusterIPs[0]: Invalid value: "10.0.0.9": expected an IPv6 value as indicated by `ipFamilies[0]`')],
        None,
    ),
    (
        {"spec.clusterIP": "None"},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.selector": ABSENT},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.selector": ABSENT, "spec.ipFamilies": ["IPv6"]},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv6", "IPv4"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.selector": ABSENT, "spec.ipFamilyPolicy": "SingleStack"},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.ipFamilyPolicy": "PreferDualStack"},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    ({"spec.type": "ExternalName", "spec.externalName": "a.b"}, [], {"type": "ExternalName"}),
    (
        {"spec.clusterIP": "fd00::"},
        [
            (
                'spec.clusterIPs: Invalid value: ["fd00::"]: failed to allocate IP fd00::: the provided network '
                "does not match the current range"
            )
        ],
        None,
    ),
    (
        {"spec.clusterIP": "fd00::ffff"},
        [],
        {
            "clusterIP": "fd00::ffff",
            "clusterIPs": ["fd00::ffff"],
            "ipFamilies": ["IPv6"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
]
UPDATES: list[tuple[Changes, Changes, list[str], Changes | None]] = [
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilyPolicy": "RequireDualStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilyPolicy": "PreferDualStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilyPolicy": "RequireDualStack", "spec.clusterIPs": ["10.0.0.9", "fd00::7"]},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.clusterIPs": ["10.0.0.9", "fd00::7"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or "
                "'PreferDualStack' when multiple cluster IPs are specified"
            )
        ],
        None,
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilies": ["IPv4", "IPv6"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or "
                "'PreferDualStack' when multiple IP families are specified"
            )
        ],
        None,
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilyPolicy": "RequireDualStack", "spec.ipFamilies": ["IPv4", "IPv6"]},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "10.0.0.9"},
        {"spec.ipFamilyPolicy": "RequireDualStack", "spec.ipFamilies": ["IPv6", "IPv4"]},
        [('spec.clusterIPs[0]: Invalid value: "10.0.0.9": expected an IPv6 value as indicated by `ipFamilies[0]`')],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ipFamilyPolicy": "SingleStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": ["10.0.0.9"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the "
                "secondary cluster IP"
            )
        ],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ipFamilies": ["IPv4"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the "
                "secondary IP family"
            )
        ],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": ["10.0.0.9"], "spec.ipFamilies": ["IPv4"], "spec.ipFamilyPolicy": "SingleStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": ["10.0.0.9"], "spec.ipFamilyPolicy": ABSENT},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the "
                "secondary cluster IP"
            )
        ],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {
            "spec.clusterIPs": ["fd00::9"],
            "spec.clusterIP": "fd00::9",
            "spec.ipFamilyPolicy": "SingleStack",
            "spec.ipFamilies": ["IPv6"],
        },
        [
            'spec.clusterIPs[0]: Invalid value: ["fd00::9"]: may not change once set',
            'spec.ipFamilies[0]: Invalid value: ["fd00::9"]: may not change once set',
        ],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ipFamilyPolicy": "PreferDualStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": ["10.0.0.9", "fd00::8"]},
        ['spec.clusterIPs[1]: Invalid value: ["10.0.0.9","fd00::8"]: may not change once set'],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.type": "ExternalName", "spec.externalName": "a.b"},
        [],
        {"type": "ExternalName"},
    ),
    (
        {
            "spec.ipFamilyPolicy": "RequireDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ipFamilyPolicy": ABSENT, "spec.ipFamilies": ABSENT, "spec.clusterIPs": ABSENT, "spec.clusterIP": ABSENT},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "PreferDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ports.0.port": 81},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "PreferDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.ipFamilyPolicy": "SingleStack"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "PreferDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": ["10.0.0.9"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the "
                "secondary cluster IP"
            )
        ],
        None,
    ),
    (
        {
            "spec.ipFamilyPolicy": "PreferDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.type": "NodePort"},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "NodePort",
        },
    ),
    (
        {
            "spec.ipFamilyPolicy": "PreferDualStack",
            "spec.clusterIP": "10.0.0.9",
            "spec.clusterIPs": ["10.0.0.9", "fd00::9"],
        },
        {"spec.clusterIPs": [], "spec.clusterIP": ""},
        [],
        {
            "clusterIP": "10.0.0.9",
            "clusterIPs": ["10.0.0.9", "fd00::9"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "PreferDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None"},
        {"spec.ipFamilyPolicy": "RequireDualStack"},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.selector": ABSENT},
        {"spec.ipFamilyPolicy": "SingleStack"},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.clusterIP": "None", "spec.selector": ABSENT},
        {"spec.selector": {"a": "b"}},
        [],
        {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
    (
        {"spec.type": "ExternalName", "spec.externalName": "a.b"},
        {"spec.type": "ClusterIP", "spec.ipFamilyPolicy": "RequireDualStack"},
        [],
        {
            "clusterIP": "10.0.0.17",
            "clusterIPs": ["10.0.0.17", "fd00::101"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "type": "ClusterIP",
        },
    ),
]


def _given(value: Object, old: Object | None, ranges: Ranges = DUAL, services: list[Object] | None = None) -> list[str]:
    """Allocate and validate; return what is wrong."""
    strategy, errors = SERVICES.strategy, FieldErrors()
    strategy.default(value)
    try:
        allocate(value, services or [], ranges, old, pick=lambda _: 0)
    except StatusError as error:
        return [f"{item.get('field', '')}: {item['message']}" for item in error.details["causes"]]
    if old is None:
        strategy.prepare_create(value)
        strategy.validate_create(value, errors)
    else:
        strategy.prepare_update(value, old)
        strategy.validate_update(value, old, errors)
    return sorted(dict.fromkeys(map(str, errors.found)))


def _shown(value: Object) -> Changes:
    return {name: value["spec"][name] for name in _FIELDS if value["spec"].get(name)}


@pytest.mark.parametrize(("changes", "expected", "spec"), CREATIONS)
def test_families_of_new_services(changes: Changes, expected: list[str], spec: Changes | None) -> None:
    value = changed(MANIFESTS["services"], changes)
    assert _given(value, None) == expected
    assert spec is None or _shown(value) == spec


@pytest.mark.parametrize(("before", "changes", "expected", "spec"), UPDATES)
def test_families_of_services_that_change(
    before: Changes, changes: Changes, expected: list[str], spec: Changes | None
) -> None:
    old = changed(MANIFESTS["services"], before)
    assert _given(old, None) == []
    kept, value = copy(old), changed(old, changes)
    assert _given(value, old) == expected
    assert spec is None or _shown(value) == spec
    assert old == kept


def _service(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "n"}, "spec": {"ports": [{"port": 80}], **spec}}


def test_addresses_of_the_lower_part_are_given_out_last() -> None:
    ranges = Ranges((ipaddress.ip_network("10.0.0.0/27"),))
    services: list[Object] = []
    for index in range(30):
        value = _service(f"a{index}")
        assert _given(value, None, ranges, services) == []
        services.append(value)
    assert [value["spec"]["clusterIP"] for value in services] == [
        *(f"10.0.0.{index}" for index in range(17, 31)),
        *(f"10.0.0.{index}" for index in range(1, 17)),
    ]
    assert _given(_service("b"), None, ranges, services) == [
        ': failed to allocate a serviceIP for Service "b": range is full'
    ]
    # What a service has itself is free for it.
    again = _service("a3", clusterIP="10.0.0.20")
    assert _given(again, None, ranges, services) == []


def test_addresses_are_told_apart_however_they_are_written() -> None:
    services = [_service("a", clusterIPs=["10.0.0.5"]), _service("b", clusterIPs=["FD00:0::7"])]
    assert _given(_service("c", clusterIP="fd00::7"), None, DUAL, services) == [
        'spec.clusterIPs: Invalid value: ["fd00::7"]: failed to allocate IP fd00::7: provided IP is already allocated'
    ]
    assert _given(_service("c", clusterIP="10.0.0.5"), None, DUAL, services) == [
        'spec.clusterIPs: Invalid value: ["10.0.0.5"]: failed to allocate IP 10.0.0.5: provided IP is already allocated'
    ]


def test_ports_of_the_lower_part_are_given_out_last() -> None:
    ranges = Ranges(node_ports=range(30_000, 30_020))
    services: list[Object] = []
    for index in range(20):
        value = _service(f"a{index}", type="NodePort")
        assert _given(value, None, ranges, services) == []
        services.append(value)
    ports = [value["spec"]["ports"][0]["nodePort"] for value in services]
    assert ports == [*range(30_016, 30_020), *range(30_000, 30_016)]
    assert _given(_service("b", type="NodePort"), None, ranges, services) == [
        ": failed to allocate a nodePort: range is full"
    ]


def test_a_health_check_has_a_port_of_its_own() -> None:
    ranges = Ranges(node_ports=range(30_000, 30_003))
    value = _service("a", type="LoadBalancer", externalTrafficPolicy="Local")
    assert _given(value, None, ranges) == []
    assert (value["spec"]["ports"][0]["nodePort"], value["spec"]["healthCheckNodePort"]) == (30_000, 30_001)
    other = _service("b", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=30_001)
    assert _given(other, None, ranges, [value]) == [
        ": failed to allocate requested HealthCheck NodePort 30001: provided port is already allocated"
    ]
    other = _service("b", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=1)
    assert _given(other, None, ranges, [value]) == [
        ": failed to allocate requested HealthCheck NodePort 1: provided port is not in the valid range. The range of"
        " valid ports is 30000-30002"
    ]


def test_what_was_sent_once_can_be_sent_again() -> None:
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81}, {"name": "c", "port": 80, "protocol": "UDP"}]
    sent = _service("a", type="NodePort", ports=ports)
    old = copy(sent)
    assert _given(old, None) == []
    again = copy(sent)
    assert _given(again, old, services=[old]) == []
    assert again["spec"] == old["spec"]
    numbers = [port["nodePort"] for port in old["spec"]["ports"]]
    assert numbers[0] == numbers[2] != numbers[1]


def test_other_services_are_looked_at_only_for_what_is_new() -> None:
    looked = []

    def services() -> Iterator[Object]:
        looked.append(True)
        yield from ()

    old = _service("a", type="NodePort")
    assert _given(old, None) == []
    value = changed(old, {"metadata.labels": {"a": "b"}})
    allocate(value, services(), DUAL, old)
    assert looked == []
    allocate(changed(old, {"spec.ports.0.nodePort": 30_700}), services(), DUAL, old)
    assert looked == [True]
