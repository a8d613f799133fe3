"""Every check of the Pod Security Standards, by version, in upstream's words."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.apiserver.admission.pod_security.checks import NEWEST, violations
from podkeep.apiserver.admission.pod_security.policy import Level, Policy

BASELINE, RESTRICTED = Level.BASELINE, Level.RESTRICTED


def container(name: str = "a", /, **context: Any) -> dict[str, Any]:
    return {"name": name, "image": "x"} | ({"securityContext": context} if context else {})


def good(name: str = "a", **context: Any) -> dict[str, Any]:
    """A container that every version of ``restricted`` allows."""
    return container(
        name,
        **{
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **context,
        },
    )


def spec(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"containers": list(containers) or [good()], **fields}


def told(
    policy: Policy, value: dict[str, Any], annotations: dict[str, str] | None = None, *, userns_passes: bool = False
) -> list[str]:
    metadata = {"annotations": annotations} if annotations else {}
    return [str(found) for found in violations(policy, metadata, value, userns_passes=userns_passes)]


BASELINE_CASES: list[tuple[dict[str, Any], str]] = [
    (
        spec(good("a", appArmorProfile={"type": "Unconfined"}), securityContext={"appArmorProfile": {"type": "X"}}),
        'forbidden AppArmor profiles (pod and container "a" must not set AppArmor profile type to "Unconfined", "X")',
    ),
    (
        spec(good("a", appArmorProfile={"type": "Unconfined"})),
        'forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")',
    ),
    (
        spec(
            good("a", capabilities={"add": ["SYS_ADMIN", "NET_RAW", "CHOWN"], "drop": ["ALL"]}),
            initContainers=[good("b", capabilities={"add": ["NET_RAW"], "drop": ["ALL"]})],
        ),
        'non-default capabilities (containers "b", "a" must not include "NET_RAW", "SYS_ADMIN" in'
        " securityContext.capabilities.add)",
    ),
    (spec(hostNetwork=True, hostIPC=True, hostPID=False), "host namespaces (hostNetwork=true, hostIPC=true)"),
    (
        spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]),
        'hostPath volumes (volumes "v", "w")',
    ),
    (
        spec(good() | {"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 10}]}),
        'hostPort (container "a" uses hostPorts 10, 9)',
    ),
    (
        spec(*({**good(name), "ports": [{"containerPort": 1, "hostPort": 9}]} for name in "ab")),
        'hostPort (containers "a", "b" use hostPort 9)',
    ),
    (
        spec(
            good("b") | {"livenessProbe": {"httpGet": {"host": "h"}}},
            good("a") | {"lifecycle": {"preStop": {"tcpSocket": {"host": "g"}}}},
        ),
        'probe or lifecycle host (containers "a", "b" use probe or lifecycle hosts "g", "h")',
    ),
    (
        spec(good() | {"startupProbe": {"tcpSocket": {"host": "h"}}}),
        'probe or lifecycle host (container "a" uses probe or lifecycle host "h")',
    ),
    (spec(good(privileged=True)), 'privileged (container "a" must not set securityContext.privileged=true)'),
    (
        spec(good(procMount="Unmasked")),
        'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
    ),
    (
        spec(
            good(seLinuxOptions={"type": "spc_t", "role": "r"}),
            securityContext={"seLinuxOptions": {"type": "y", "user": "u"}},
        ),
        'seLinuxOptions (pod and container "a" set forbidden securityContext.seLinuxOptions: types "spc_t", "y"; user'
        " may not be set; role may not be set)",
    ),
    (
        spec(
            good("a", seccompProfile={"type": "Unconfined"}), securityContext={"seccompProfile": {"type": "Unconfined"}}
        ),
        'seccompProfile (pod and container "a" must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    (
        spec(securityContext={"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}, {"name": "x"}]}),
        "forbidden sysctls (kernel.msgmax, x)",
    ),
    (
        spec(good(windowsOptions={"hostProcess": True}), securityContext={"windowsOptions": {"hostProcess": True}}),
        'hostProcess (pod and container "a" must not set securityContext.windowsOptions.hostProcess=true)',
    ),
]

RESTRICTED_CASES: list[tuple[dict[str, Any], str]] = [
    (
        spec(good("a", allowPrivilegeEscalation=True), good("b", allowPrivilegeEscalation=True)),
        'allowPrivilegeEscalation != false (containers "a", "b" must set'
        " securityContext.allowPrivilegeEscalation=false)",
    ),
    (
        spec(good("a", capabilities={"add": ["SYS_TIME", "NET_BIND_SERVICE"]})),
        'unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]; container "a"'
        ' must not include "SYS_TIME" in securityContext.capabilities.add)',
    ),
    (
        spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {"path": "/", "server": "s"}}]),
        'restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")',
    ),
    (
        spec(volumes=[{"name": "v", "new": {}}, {"name": "w", "image": {"reference": "r"}}]),
        'restricted volume types (volume "v" uses restricted volume type "unknown")',
    ),
    (
        spec(good("a", runAsNonRoot=False), securityContext={"runAsNonRoot": False}),
        'runAsNonRoot != true (pod and container "a" must not set securityContext.runAsNonRoot=false)',
    ),
    (
        spec(good("a", runAsNonRoot=None)),
        'runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)',
    ),
    (
        spec(good("a", runAsUser=0), securityContext={"runAsUser": 0}),
        'runAsUser=0 (pod and container "a" must not set runAsUser=0)',
    ),
    (
        spec({**good(), "securityContext": {n: v for n, v in good()["securityContext"].items() if n[0] != "s"}}),
        'seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or'
        ' "Localhost")',
    ),
    (
        spec(good(procMount="Unmasked")),
        'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
    ),
]


@pytest.mark.parametrize(("value", "text"), BASELINE_CASES, ids=lambda value: str(value)[:30])
def test_baseline(value: dict[str, Any], text: str) -> None:
    assert told(Policy(BASELINE), value) == [text]
    assert told(Policy(BASELINE, 99), value) == [text]
    assert told(Policy(Level.PRIVILEGED), value) == []
    assert told(Policy(RESTRICTED), value)


@pytest.mark.parametrize(("value", "text"), RESTRICTED_CASES, ids=lambda value: str(value)[:30])
def test_restricted(value: dict[str, Any], text: str) -> None:
    assert told(Policy(RESTRICTED), value) == [text]


@pytest.mark.parametrize("minor", [None, *range(NEWEST + 2)])
@pytest.mark.parametrize("level", [BASELINE, RESTRICTED])
def test_a_careful_pod_is_allowed_by_every_version(level: Level, minor: int | None) -> None:
    volumes = [{"name": name, name: {}} for name in ("emptyDir", "configMap", "projected", "image", "csi", "ephemeral")]
    assert told(Policy(level, minor), spec(good(), volumes=volumes)) == []
    of_pod = {"runAsNonRoot": True, "seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}
    rest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}
    assert told(Policy(level, minor), spec(container("a", **rest), securityContext=of_pod)) == []


def test_violations_come_in_the_order_of_the_checks_those_of_baseline_first() -> None:
    found = told(Policy(RESTRICTED), spec(container("a", privileged=True, procMount="Unmasked"), hostNetwork=True))
    assert [text.partition(" (")[0] for text in found] == [
        "host namespaces",
        "privileged",
        "allowPrivilegeEscalation != false",
        "unrestricted capabilities",
        "procMount",
        "runAsNonRoot != true",
        "seccompProfile",
    ]


@pytest.mark.parametrize(
    ("level", "value", "last_allowed", "first_refused"),
    [
        (BASELINE, spec(good() | {"livenessProbe": {"httpGet": {"host": "h"}}}), 33, 34),
        (BASELINE, spec(good(seccompProfile={"type": "Unconfined"})), 18, 19),
        (RESTRICTED, spec(good(allowPrivilegeEscalation=True)), 7, 8),
        (RESTRICTED, spec(good(capabilities={})), 21, 22),
        (RESTRICTED, spec(good(runAsUser=0)), 22, 23),
        (RESTRICTED, spec(container("a", runAsNonRoot=True, allowPrivilegeEscalation=False)), 18, 19),
    ],
)
def test_checks_count_from_a_version_on(
    level: Level, value: dict[str, Any], last_allowed: int, first_refused: int
) -> None:
    assert told(Policy(level, last_allowed), value) == []
    assert told(Policy(level, first_refused), value) != []


@pytest.mark.parametrize(
    ("name", "first_allowed"),
    [
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_wmem", 32),
    ],
)
def test_sysctls_became_safe(name: str, first_allowed: int) -> None:
    value = spec(securityContext={"sysctls": [{"name": name, "value": "1"}]})
    refused = [minor for minor in range(NEWEST + 1) if told(Policy(BASELINE, minor), value)]
    assert refused == list(range(first_allowed))


def test_container_engines_may_have_their_selinux_type() -> None:
    value = spec(good(seLinuxOptions={"type": "container_engine_t"}))
    assert told(Policy(BASELINE, 30), value) == [
        'seLinuxOptions (container "a" set forbidden securityContext.seLinuxOptions: type "container_engine_t")'
    ]
    assert told(Policy(BASELINE, 31), value) == []


@pytest.mark.parametrize("name", ["allowPrivilegeEscalation", "capabilities", "seccompProfile"])
def test_windows_has_no_such_fields(name: str) -> None:
    context = {key: value for key, value in good()["securityContext"].items() if key != name}
    value = spec(container("a", **context), os={"name": "windows"})
    assert told(Policy(RESTRICTED, 24), value) != []
    assert told(Policy(RESTRICTED, 25), value) == []


def test_annotations() -> None:
    app_armor = {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}
    assert told(Policy(BASELINE), spec(), app_armor) == [
        "forbidden AppArmor profile (annotation must not set AppArmor profile type to"
        ' "container.apparmor.security.beta.kubernetes.io/a="unconfined"")'
    ]
    assert told(Policy(BASELINE), spec(), dict.fromkeys(app_armor, "localhost/x")) == []
    seccomp = {
        "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/a": "x",
        "container.seccomp.security.alpha.kubernetes.io/other": "x",
    }
    assert told(Policy(BASELINE, 18), spec(), seccomp) == [
        'seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/a="x",'
        ' seccomp.security.alpha.kubernetes.io/pod="unconfined")'
    ]
    assert told(Policy(BASELINE, 18), spec(), dict.fromkeys(seccomp, "docker/default")) == []
    assert told(Policy(BASELINE, 19), spec(), seccomp) == []


CONTEXTS = ("pod", "containers", "initContainers", "ephemeralContainers")


def root_in(place: str, **context: Any) -> dict[str, Any]:
    value = spec(hostUsers=False)
    if place == "pod":
        return value | {"securityContext": context}
    return value | {place: [good("r", **context)]}


@pytest.mark.parametrize("minor", [23, 34, 35, None])
@pytest.mark.parametrize("place", CONTEXTS)
@pytest.mark.requirement("U14", "U15")
def test_a_pod_with_a_user_namespace_may_run_as_root(place: str, minor: int | None) -> None:
    value = root_in(place, runAsNonRoot=False, runAsUser=0, runAsGroup=0)
    for level in (BASELINE, RESTRICTED):
        assert told(Policy(level, minor), value, userns_passes=True) == []
    for shared in (value | {"hostUsers": True}, {name: item for name, item in value.items() if name != "hostUsers"}):
        assert [text.partition(" (")[0] for text in told(Policy(RESTRICTED, minor), shared, userns_passes=True)] == [
            "runAsNonRoot != true",
            "runAsUser=0",
        ]


@pytest.mark.requirement("U16")
def test_a_pod_with_a_user_namespace_may_add_capabilities_at_baseline() -> None:
    value = spec(good(capabilities={"add": ["SYS_ADMIN"], "drop": ["ALL"]}), hostUsers=False)
    assert told(Policy(BASELINE), value, userns_passes=True) == []
    for minor in (0, 21, 22, None):
        assert told(Policy(RESTRICTED, minor), value, userns_passes=True) != []
    assert told(Policy(BASELINE), value | {"hostUsers": True}, userns_passes=True) != []


def test_a_pod_with_a_user_namespace_may_see_all_of_proc_at_baseline_since_1_35() -> None:
    value = spec(good(procMount="Unmasked"), hostUsers=False)
    assert told(Policy(BASELINE, 34), value, userns_passes=True) != []
    assert told(Policy(BASELINE, 35), value, userns_passes=True) == []
    assert told(Policy(RESTRICTED, 35), value, userns_passes=True) != []


def test_nothing_else_is_relaxed() -> None:
    for value, text in BASELINE_CASES:
        if text.partition(" (")[0] not in ("non-default capabilities", "procMount"):
            assert told(Policy(BASELINE), value | {"hostUsers": False}, userns_passes=True) == [text]


@pytest.mark.requirement("U17")
@pytest.mark.parametrize("level", [BASELINE, RESTRICTED])
def test_with_the_gate_off_a_user_namespace_changes_nothing(level: Level) -> None:
    for value, _ in (*BASELINE_CASES, *RESTRICTED_CASES):
        for minor in (None, 22, 34):
            policy = Policy(level, minor)
            assert told(policy, value | {"hostUsers": False}) == told(policy, value)
