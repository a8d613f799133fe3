"""What is wrong with Services: kube-apiserver 1.36 was asked the same."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_kinds import ABSENT, creation_problems, status_problems, update_problems

Changes = dict[str, Any]

CREATIONS: list[tuple[str, Changes, list[str]]] = [
    ("services", {}, []),
    ("services", {"spec.ports": []}, ["spec.ports: Required value"]),
    (
        "services",
        {"spec.type": "x"},
        [
            (
                'spec.type: Unsupported value: "x": supported values: "ClusterIP", "ExternalName", '
                '"LoadBalancer", "NodePort"'
            )
        ],
    ),
    ("services", {"spec.type": "NodePort"}, []),
    ("services", {"spec.type": "LoadBalancer"}, []),
    ("services", {"spec.clusterIP": "None"}, []),
    ("services", {"spec.clusterIP": "None", "spec.ports": []}, []),
    ("services", {"spec.clusterIP": "None", "spec.selector": ABSENT}, []),
    (
        "services",
        {"spec.clusterIP": "None", "spec.type": "NodePort"},
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"],
    ),
    (
        "services",
        {"spec.clusterIP": "None", "spec.type": "LoadBalancer"},
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services"],
    ),
    ("services", {"spec.type": "ExternalName"}, ["spec.externalName: Required value"]),
    ("services", {"spec.type": "ExternalName", "spec.externalName": "a.b."}, []),
    (
        "services",
        {"spec.type": "ExternalName", "spec.externalName": "A"},
        [
            (
                'spec.externalName: Invalid value: "A": a lowercase RFC 1123 subdomain must consist of lower '
                "case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "services",
        {
            "spec.type": "ExternalName",
            "spec.externalName": "a.b",
            "spec.clusterIP": "10.0.0.5",
            "spec.ipFamilies": ["IPv4"],
            "spec.ipFamilyPolicy": "SingleStack",
        },
        [
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
            "spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services",
        ],
    ),
    ("services", {"spec.externalName": "a"}, []),
    (
        "services",
        {"spec.ports": [{"port": 80}, {"port": 81}]},
        ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]},
        ['spec.ports[1].name: Duplicate value: "a"'],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "name": "A"}]},
        [
            (
                'spec.ports[0].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case '
                "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. "
                "'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    (
        "services",
        {"spec.ports": [{"port": 0}]},
        [
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "protocol": "x"}]},
        ['spec.ports[0].protocol: Unsupported value: "x": supported values: "SCTP", "TCP", "UDP"'],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "targetPort": "xxxxxxxxxxxxxxxx"}]},
        ['spec.ports[0].targetPort: Invalid value: "xxxxxxxxxxxxxxxx": must be no more than 15 characters'],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "targetPort": "12"}]},
        ['spec.ports[0].targetPort: Invalid value: "12": must contain at least one letter (a-z)'],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "targetPort": "A"}]},
        [
            'spec.ports[0].targetPort: Invalid value: "A": must contain at least one letter (a-z)',
            (
                'spec.ports[0].targetPort: Invalid value: "A": must contain only alpha-numeric characters (a-z, '
                "0-9), and hyphens (-)"
            ),
        ],
    ),
    (
        "services",
        {"spec.ports": [{"port": 80, "targetPort": 70000}]},
        ["spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive"],
    ),
    ("services", {"spec.ports": [{"port": 80, "targetPort": "web"}]}, []),
    (
        "services",
        {"spec.ports": [{"port": 80, "appProtocol": "-"}]},
        [
            (
                'spec.ports[0].appProtocol: Invalid value: "-": name part must consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. "
                "'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )
        ],
    ),
    ("services", {"spec.ports": [{"port": 80, "appProtocol": "a.b/c"}]}, []),
    (
        "services",
        {"spec.ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]},
        [
            (
                "spec.ports[1]: Duplicate value: "
                '{"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}'
            )
        ],
    ),
    ("services", {"spec.ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b", "protocol": "UDP"}]}, []),
    (
        "services",
        {"spec.ports": [{"port": 80, "nodePort": 30001}]},
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    ),
    (
        "services",
        {
            "spec.type": "NodePort",
            "spec.ports": [{"port": 80, "name": "a", "nodePort": 30001}, {"port": 81, "name": "b", "nodePort": 30001}],
        },
        ["spec.ports[1].nodePort: Invalid value: 30001: provided port is already allocated"],
    ),
    (
        "services",
        {"spec.type": "NodePort", "spec.ports": [{"port": 80, "nodePort": 80}]},
        [
            (
                "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range "
                "of valid ports is 30000-32767"
            )
        ],
    ),
    (
        "services",
        {
            "spec.type": "NodePort",
            "spec.ports": [{"port": 80, "name": "a", "nodePort": 30002}, {"port": 80, "name": "b", "protocol": "UDP"}],
        },
        [],
    ),
    (
        "services",
        {
            "spec.type": "NodePort",
            "spec.ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b", "protocol": "UDP", "nodePort": 30003}],
        },
        [],
    ),
    (
        "services",
        {"spec.selector": {"-": "-"}},
        [
            (
                'spec.selector: Invalid value: "-": a valid label must be an empty string or consist of '
                "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
                "(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
                "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ),
            (
                "spec.selector: Invalid value: \"-\": name part must consist of alphanumeric characters, '-', '_' "
                "or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  "
                "or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
        ],
    ),
    (
        "services",
        {"spec.sessionAffinity": "x"},
        ['spec.sessionAffinity: Unsupported value: "x": supported values: "ClientIP", "None"'],
    ),
    ("services", {"spec.sessionAffinity": "ClientIP"}, []),
    (
        "services",
        {"spec.sessionAffinity": "ClientIP", "spec.sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}},
        [
            (
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 "
                "and less than 86400"
            )
        ],
    ),
    (
        "services",
        {"spec.sessionAffinity": "ClientIP", "spec.sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}},
        [
            (
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than "
                "0 and less than 86400"
            )
        ],
    ),
    (
        "services",
        {"spec.sessionAffinity": "None", "spec.sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}},
        [],
    ),
    (
        "services",
        {"spec.externalIPs": ["x"]},
        [('spec.externalIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)')],
    ),
    (
        "services",
        {"spec.externalIPs": ["127.0.0.1"]},
        [('spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)')],
    ),
    (
        "services",
        {"spec.externalIPs": ["0.0.0.0", "169.254.0.1", "224.0.0.1", "::1", "fe80::1", "ff02::1"]},
        [
            'spec.externalIPs[0]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)',
            (
                'spec.externalIPs[1]: Invalid value: "169.254.0.1": may not be in the link-local range '
                "(169.254.0.0/16, fe80::/10)"
            ),
            (
                'spec.externalIPs[2]: Invalid value: "224.0.0.1": may not be in the link-local multicast range '
                "(224.0.0.0/24, ff02::/10)"
            ),
            'spec.externalIPs[3]: Invalid value: "::1": may not be in the loopback range (127.0.0.0/8, ::1/128)',
            (
                'spec.externalIPs[4]: Invalid value: "fe80::1": may not be in the link-local range '
                "(169.254.0.0/16, fe80::/10)"
            ),
            (
                'spec.externalIPs[5]: Invalid value: "ff02::1": may not be in the link-local multicast range '
                "(224.0.0.0/24, ff02::/10)"
            ),
        ],
    ),
    (
        "services",
        {"spec.externalIPs": ["010.0.0.1"]},
        ['spec.externalIPs[0]: Invalid value: "010.0.0.1": must not have leading 0s'],
    ),
    (
        "services",
        {"spec.externalIPs": ["::ffff:1.2.3.4"]},
        ['spec.externalIPs[0]: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address'],
    ),
    ("services", {"spec.externalIPs": ["1.2.3.4"]}, []),
    ("services", {"spec.externalIPs": ["2001:DB8::1"]}, []),
    (
        "services",
        {"spec.loadBalancerSourceRanges": ["10.0.0.0/8"]},
        ["spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    ),
    (
        "services",
        {
            "spec.type": "LoadBalancer",
            "spec.loadBalancerSourceRanges": [
                "x",
                "10.0.0.1/8",
                "010.0.0.0/8",
                "10.0.0.0/08",
                " 10.0.0.0/8 ",
                "::ffff:10.0.0.0/104",
                "10.0.0.0/33",
                "10.0.0.0",
            ],
        },
        [
            (
                'spec.LoadBalancerSourceRanges[0]: Invalid value: "x": must be a valid CIDR value, (e.g. '
                "10.9.8.0/24 or 2001:db8::/64)"
            ),
            (
                'spec.LoadBalancerSourceRanges[1]: Invalid value: "10.0.0.1/8": must not have bits set beyond '
                "the prefix length"
            ),
            (
                'spec.LoadBalancerSourceRanges[2]: Invalid value: "010.0.0.0/8": must not have leading 0s in IP '
                "or prefix length"
            ),
            (
                'spec.LoadBalancerSourceRanges[3]: Invalid value: "10.0.0.0/08": must not have leading 0s in IP '
                "or prefix length"
            ),
            (
                'spec.LoadBalancerSourceRanges[5]: Invalid value: "::ffff:10.0.0.0/104": must not have an '
                "IPv4-mapped IPv6 address"
            ),
            (
                'spec.LoadBalancerSourceRanges[6]: Invalid value: "10.0.0.0/33": must be a valid CIDR value, '
                "(e.g. 10.9.8.0/24 or 2001:db8::/64)"
            ),
            (
                'spec.LoadBalancerSourceRanges[7]: Invalid value: "10.0.0.0": must be a valid CIDR value, (e.g. '
                "10.9.8.0/24 or 2001:db8::/64)"
            ),
        ],
    ),
    (
        "services",
        {"metadata|annotations|service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"},
        [
            (
                "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Forbidden: may "
                "only be used when `type` is 'LoadBalancer'"
            )
        ],
    ),
    (
        "services",
        {
            "spec.type": "LoadBalancer",
            "metadata|annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8, x"},
        },
        [
            (
                "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: "
                '"x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'
            )
        ],
    ),
    (
        "services",
        {
            "metadata|annotations": {
                "service.kubernetes.io/topology-mode": "Auto",
                "service.kubernetes.io/topology-aware-hints": "auto",
            }
        },
        [
            (
                'metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "Auto": must match '
                "annotations[service.kubernetes.io/topology-aware-hints] when both are specified"
            )
        ],
    ),
    ("services", {"metadata|annotations": {"service.kubernetes.io/topology-aware-hints": "auto"}}, []),
    (
        "services",
        {"spec.allocateLoadBalancerNodePorts": True},
        ["spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    ),
    ("services", {"spec.type": "LoadBalancer", "spec.allocateLoadBalancerNodePorts": False}, []),
    (
        "services",
        {"spec.loadBalancerClass": "a/b"},
        ["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.loadBalancerClass": "-"},
        [
            (
                'spec.loadBalancerClass: Invalid value: "-": name part must consist of alphanumeric characters, '
                "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or "
                "'my.name',  or '123-abc', regex used for validation is "
                "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )
        ],
    ),
    (
        "services",
        {"spec.externalTrafficPolicy": "Local"},
        [('spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services')],
    ),
    (
        "services",
        {"spec.type": "NodePort", "spec.externalTrafficPolicy": "x"},
        ['spec.externalTrafficPolicy: Unsupported value: "x": supported values: "Cluster", "Local"'],
    ),
    ("services", {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"}, []),
    (
        "services",
        {"spec.healthCheckNodePort": 30010},
        [
            (
                "spec.healthCheckNodePort: Invalid value: 30010: may only be set when `type` is 'LoadBalancer' "
                "and `externalTrafficPolicy` is 'Local'"
            )
        ],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local", "spec.healthCheckNodePort": 30011},
        [],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local", "spec.healthCheckNodePort": 11},
        [
            (
                "failed to allocate requested HealthCheck NodePort 11: provided port is not in the valid range. "
                "The range of valid ports is 30000-32767"
            )
        ],
    ),
    (
        "services",
        {"spec.internalTrafficPolicy": "x"},
        ['spec.internalTrafficPolicy: Unsupported value: "x": supported values: "Cluster", "Local"'],
    ),
    (
        "services",
        {"spec.trafficDistribution": "x"},
        [
            (
                'spec.trafficDistribution: Unsupported value: "x": supported values: "PreferClose", '
                '"PreferSameZone", "PreferSameNode"'
            )
        ],
    ),
    ("services", {"spec.trafficDistribution": "PreferClose"}, []),
    ("services", {"spec.trafficDistribution": "PreferSameNode"}, []),
    ("services", {"spec.clusterIP": "10.0.0.77"}, []),
    (
        "services",
        {"spec.clusterIP": "x"},
        [('spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)')],
    ),
    (
        "services",
        {"spec.clusterIP": "10.9.9.9"},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.9.9.9"]: failed to allocate IP 10.9.9.9: the provided '
                "network does not match the current range"
            )
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.255"},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.0.0.255"]: failed to allocate IP 10.0.0.255: the provided '
                "network does not match the current range"
            )
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.0"},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.0.0.0"]: failed to allocate IP 10.0.0.0: the provided '
                "network does not match the current range"
            )
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "010.0.0.7"},
        ['spec.clusterIPs[0]: Invalid value: "010.0.0.7": must not have leading 0s'],
    ),
    (
        "services",
        {"spec.clusterIPs": ["10.0.0.78"]},
        ['spec.clusterIPs: Invalid value: ["10.0.0.78"]: must be empty when `clusterIP` is not specified'],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.78", "spec.clusterIPs": ["10.0.0.79"]},
        ['spec.clusterIPs: Invalid value: ["10.0.0.79"]: first value must match `clusterIP`'],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.78", "spec.clusterIPs": ["10.0.0.78", "10.0.0.79"]},
        [
            (
                'spec.clusterIPs: Invalid value: ["10.0.0.78","10.0.0.79"]: may specify no more than one IP for '
                "each IP family"
            )
        ],
    ),
    (
        "services",
        {
            "spec.clusterIP": "10.0.0.78",
            "spec.clusterIPs": ["10.0.0.78", "10.0.0.79"],
            "spec.ipFamilyPolicy": "PreferDualStack",
        },
        [
            (
                'spec.clusterIPs: Invalid value: ["10.0.0.78","10.0.0.79"]: may specify no more than one IP for '
                "each IP family"
            )
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "None", "spec.clusterIPs": ["None", "10.0.0.79"]},
        ['spec.clusterIPs: Invalid value: ["None","10.0.0.79"]: \'None\' must be the first and only value'],
    ),
    (
        "services",
        {"spec.clusterIP": "10.0.0.78", "spec.clusterIPs": ["10.0.0.78", "10.0.0.79", "10.0.0.80"]},
        [
            'spec.clusterIPs: Invalid value: ["10.0.0.78","10.0.0.79","10.0.0.80"]: may only hold up to 2 values',
            (
                'spec.clusterIPs: Invalid value: ["10.0.0.78","10.0.0.79","10.0.0.80"]: may specify no more than '
                "one IP for each IP family"
            ),
        ],
    ),
    (
        "services",
        {"spec.clusterIP": "fd00::1"},
        ['spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster'],
    ),
    (
        "services",
        {"spec.ipFamilies": ["IPv6"]},
        ['spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'],
    ),
    (
        "services",
        {"spec.ipFamilies": ["x"]},
        ['spec.ipFamilies[0]: Unsupported value: "x": supported values: "IPv4", "IPv6"'],
    ),
    ("services", {"spec.ipFamilies": ["IPv4", "IPv4"]}, ['spec.ipFamilies[1]: Duplicate value: "IPv4"']),
    (
        "services",
        {"spec.ipFamilies": ["IPv4", "IPv6"]},
        [
            (
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or "
                "'PreferDualStack' when multiple IP families are specified"
            )
        ],
    ),
    (
        "services",
        {"spec.ipFamilies": ["IPv4", "IPv6"], "spec.ipFamilyPolicy": "PreferDualStack"},
        ['spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster'],
    ),
    (
        "services",
        {"spec.ipFamilyPolicy": "x"},
        [
            (
                'spec.ipFamilyPolicy: Unsupported value: "x": supported values: "PreferDualStack", '
                '"RequireDualStack", "SingleStack"'
            )
        ],
    ),
    (
        "services",
        {"spec.ipFamilyPolicy": "RequireDualStack"},
        [
            (
                'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for '
                "dual-stack services"
            )
        ],
    ),
    ("services", {"spec.ipFamilyPolicy": "PreferDualStack"}, []),
    (
        "services",
        {"spec.clusterIP": "10.0.0.78", "spec.ipFamilies": ["IPv6"]},
        [('spec.clusterIPs[0]: Invalid value: "10.0.0.78": expected an IPv6 value as indicated by `ipFamilies[0]`')],
    ),
    (
        "services",
        {
            "spec.clusterIP": "10.0.0.78",
            "spec.clusterIPs": ["10.0.0.78", "fd00::1"],
            "spec.ipFamilyPolicy": "RequireDualStack",
        },
        ['spec.clusterIPs[1]: Invalid value: ["10.0.0.78","fd00::1"]: IPv6 is not configured on this cluster'],
    ),
    (
        "services",
        {"metadata.name": "A"},
        [
            (
                'metadata.name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case '
                "alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. "
                "'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            )
        ],
    ),
    ("services", {"metadata.name": "1a"}, []),
    ("services", {"metadata.name": "a.b"}, ['metadata.name: Invalid value: "a.b": must not contain dots']),
    (
        "services",
        {"metadata.name": "a" * 64},
        [
            (
                "metadata.name: Invalid value: "
                '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 63 '
                "characters"
            )
        ],
    ),
    ("services", {"spec.loadBalancerIP": "::1:0"}, []),
    (
        "services",
        {"spec.type": "ExternalName", "spec.externalName": "a.b", "spec.internalTrafficPolicy": "x"},
        ['spec.internalTrafficPolicy: Unsupported value: "x": supported values: "Cluster", "Local"'],
    ),
    ("services", {"spec.type": "ExternalName", "spec.externalName": "a.b", "spec.internalTrafficPolicy": "Local"}, []),
]
UPDATES: list[tuple[str, Changes, Changes, list[str]]] = [
    ("services", {}, {"spec.type": "NodePort"}, []),
    ("services", {}, {"spec.type": "LoadBalancer"}, []),
    ("services", {}, {"spec.type": "ExternalName", "spec.externalName": "a.b"}, []),
    ("services", {}, {"spec.type": "ExternalName"}, ["spec.externalName: Required value"]),
    (
        "services",
        {},
        {"spec.clusterIP": "10.0.0.200"},
        ['spec.clusterIPs[0]: Invalid value: ["10.0.0.200"]: may not change once set'],
    ),
    ("services", {}, {"spec.clusterIP": ABSENT}, []),
    ("services", {}, {"spec.clusterIP": ABSENT, "spec.clusterIPs": ABSENT}, []),
    ("services", {}, {"spec.clusterIP": ""}, []),
    (
        "services",
        {},
        {"spec.clusterIP": "None"},
        ['spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set'],
    ),
    (
        "services",
        {},
        {"spec.clusterIP": "None", "spec.clusterIPs": ["None"]},
        ['spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set'],
    ),
    ("services", {}, {"spec.clusterIPs": []}, []),
    ("services", {}, {"spec.clusterIP": "", "spec.clusterIPs": []}, []),
    (
        "services",
        {},
        {"spec.ipFamilies": ["IPv6"]},
        [('spec.clusterIPs[0]: Invalid value: "10.0.0.17": expected an IPv6 value as indicated by `ipFamilies[0]`')],
    ),
    ("services", {}, {"spec.ipFamilies": ABSENT}, []),
    ("services", {}, {"spec.ipFamilyPolicy": ABSENT}, []),
    ("services", {}, {"spec.ipFamilyPolicy": "PreferDualStack"}, []),
    (
        "services",
        {},
        {"spec.ipFamilyPolicy": "RequireDualStack"},
        [
            (
                'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for '
                "dual-stack services"
            )
        ],
    ),
    ("services", {"spec.type": "NodePort"}, {"spec.type": "ClusterIP"}, []),
    (
        "services",
        {"spec.type": "NodePort"},
        {"spec.type": "ClusterIP", "spec.externalTrafficPolicy": "Local"},
        [('spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services')],
    ),
    ("services", {"spec.type": "NodePort"}, {"spec.ports.0.nodePort": ABSENT}, []),
    ("services", {"spec.type": "NodePort"}, {"spec.ports.0.nodePort": 30300}, []),
    (
        "services",
        {"spec.type": "NodePort"},
        {"spec.ports.0.nodePort": 80},
        [
            (
                "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range "
                "of valid ports is 30000-32767"
            )
        ],
    ),
    ("services", {"spec.type": "NodePort"}, {"spec.ports.0.port": 81}, []),
    (
        "services",
        {"spec.type": "NodePort"},
        {"spec.type": "ClusterIP", "spec.ports.0.nodePort": 30301},
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    ),
    ("services", {"spec.type": "NodePort"}, {"spec.ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "y"}]}, []),
    ("services", {"spec.type": "NodePort"}, {"spec.type": "ExternalName", "spec.externalName": "a.b"}, []),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"},
        {"spec.healthCheckNodePort": 30302},
        ["spec.healthCheckNodePort: Forbidden: field is immutable"],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"},
        {"spec.healthCheckNodePort": ABSENT},
        [],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"},
        {"spec.externalTrafficPolicy": "Cluster"},
        [],
    ),
    ("services", {"spec.type": "LoadBalancer", "spec.externalTrafficPolicy": "Local"}, {"spec.type": "ClusterIP"}, []),
    ("services", {"spec.type": "LoadBalancer"}, {"spec.externalTrafficPolicy": "Local"}, []),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {"spec.loadBalancerClass": "a/b"},
        ['spec.loadBalancerClass: Invalid value: "a/b": may not change once set'],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.loadBalancerClass": "a/c"},
        {"spec.loadBalancerClass": "a/b"},
        ['spec.loadBalancerClass: Invalid value: "a/b": may not change once set'],
    ),
    ("services", {"spec.type": "LoadBalancer", "spec.loadBalancerClass": "a/c"}, {"spec.type": "NodePort"}, []),
    (
        "services",
        {"spec.type": "LoadBalancer", "spec.loadBalancerClass": "a/c"},
        {"spec.type": "NodePort", "spec.loadBalancerClass": "a/b"},
        ["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"],
    ),
    (
        "services",
        {"spec.type": "ExternalName", "spec.externalName": "a.b"},
        {"spec.type": "ClusterIP", "spec.externalName": ABSENT},
        [],
    ),
    ("services", {"spec.type": "ExternalName", "spec.externalName": "a.b"}, {"spec.type": "NodePort"}, []),
    ("services", {"spec.clusterIP": "None"}, {"spec.clusterIP": "", "spec.clusterIPs": []}, []),
    ("services", {"spec.clusterIP": "None"}, {"spec.clusterIP": ABSENT}, []),
    (
        "services",
        {"spec.clusterIP": "None"},
        {"spec.type": "NodePort"},
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"],
    ),
    ("services", {"spec.clusterIP": "None"}, {"spec.ports": []}, []),
    ("services", {"spec.externalIPs": ["1.2.3.4"]}, {"spec.externalIPs": ABSENT}, []),
    (
        "services",
        {"spec.externalIPs": ["1.2.3.4"]},
        {"spec.externalIPs": ["127.0.0.1"]},
        [('spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)')],
    ),
    ("services", {}, {"spec.ports": []}, ["spec.ports: Required value"]),
    ("services", {}, {"metadata.labels": {"a": "b"}}, []),
]
STATUSES: list[tuple[str, Changes, Changes, Changes, list[str]]] = [
    (
        "services",
        {},
        {},
        {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
        ["status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"],
    ),
    ("services", {"spec.type": "LoadBalancer"}, {}, {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}, []),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"ip": "x"}]}},
        [
            (
                'status.loadBalancer.ingress[0].ip: Invalid value: "x": must be a valid IP address, (e.g. '
                "10.9.8.7 or 2001:db8::ffff)"
            )
        ],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "x"}]}},
        ['status.loadBalancer.ingress[0].ipMode: Unsupported value: "x": supported values: "Proxy", "VIP"'],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"ipMode": "VIP"}]}},
        ["status.loadBalancer.ingress[0].ipMode: Forbidden: may not be specified when `ip` is not set"],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"hostname": "A"}]}},
        [
            (
                'status.loadBalancer.ingress[0].hostname: Invalid value: "A": a lowercase RFC 1123 subdomain '
                "must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'example.com', regex used for validation is "
                "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            )
        ],
    ),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"hostname": "1.2.3.4"}]}},
        [('status.loadBalancer.ingress[0].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address')],
    ),
    ("services", {"spec.type": "LoadBalancer"}, {}, {"loadBalancer": {"ingress": [{"hostname": "a.b"}]}}, []),
    ("services", {"spec.type": "LoadBalancer"}, {}, {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}, []),
    (
        "services",
        {"spec.type": "LoadBalancer"},
        {},
        {"loadBalancer": {"ingress": [{"ip": "01.2.3.4"}]}},
        ['status.loadBalancer.ingress[0].ip: Invalid value: "01.2.3.4": must not have leading 0s'],
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
