"""Pod Security admission: what is refused, warned of and audited, for whom and when."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api.feature_gates import KNOWN, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.admission.attributes import Attributes, Operation
from podkeep.apiserver.admission.pod_security import plugin as pod_security
from podkeep.apiserver.admission.pod_security.plugin import Configuration, PodSecurity, configuration
from podkeep.apiserver.admission.pod_security.policy import LABELS, Level, Policies, Policy, of_labels
from podkeep.apiserver.auth.user import User
from podkeep.apiserver.meta.status import StatusError
from podkeep.base.config import PodSecurityConfig
from podkeep.base.errors import InvalidArgument
from support.admission import Objects, admit, attributes

GATE_ON = FeatureGates(given={"UserNamespacesPodSecurityStandards": True})
HOST_NETWORK = "host namespaces (hostNetwork=true)"


def namespace(name: str = "default", **labels: str) -> dict[str, Any]:
    given = {f"{LABELS}{key.replace('_', '-')}": value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": given}}


def pod(name: str = "web", image: str = "x", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [_container(image)], **spec}}


def _container(image: str, name: str = "a") -> dict[str, Any]:
    return {"name": name, "image": image}


def in_namespace(labels: dict[str, str], told: Attributes, **more: Any) -> Attributes:
    return admit(PodSecurity(Objects(("namespaces", namespace(**labels))), **more), told)


def refused(labels: dict[str, str], told: Attributes, **more: Any) -> str:
    with pytest.raises(StatusError) as caught:
        in_namespace(labels, told, **more)
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
    assert told.warnings == []
    return caught.value.message


def audited(told: Attributes) -> dict[str, str]:
    assert all(key.startswith(LABELS) for key in told.annotations)
    return {key.removeprefix(LABELS): text for key, text in told.annotations.items()}


def test_what_is_enforced_is_refused() -> None:
    told = attributes("pods", pod(hostNetwork=True))
    assert refused({"enforce": "baseline"}, told) == (
        f'pods "web" is forbidden: violates PodSecurity "baseline:latest": {HOST_NETWORK}'
    )
    assert audited(told) == {"enforce-policy": "baseline:latest"}
    assert refused({"enforce": "restricted", "enforce_version": "v1.24"}, attributes("pods", pod())) == (
        'pods "web" is forbidden: violates PodSecurity "restricted:v1.24": allowPrivilegeEscalation != false (container'
        ' "a" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "a" must'
        ' set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "a" must set'
        ' securityContext.runAsNonRoot=true), seccompProfile (pod or container "a" must set'
        ' securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
    )


def test_what_is_warned_of_and_audited_is_admitted() -> None:
    told = in_namespace({"warn": "baseline", "audit": "baseline"}, attributes("pods", pod(hostNetwork=True)))
    shown = f'would violate PodSecurity "baseline:latest": {HOST_NETWORK}'
    assert told.warnings == [shown]
    assert audited(told) == {"enforce-policy": "privileged:latest", "audit-violations": shown}


def test_nothing_is_asked_for() -> None:
    told = in_namespace({}, attributes("pods", pod(hostNetwork=True)))
    assert (told.warnings, audited(told)) == ([], {"enforce-policy": "privileged:latest"})


def test_warnings_follow_what_is_enforced_unless_they_have_labels() -> None:
    told = attributes("deployments", {"metadata": {"name": "d"}, "spec": {"template": pod(hostNetwork=True)}})
    assert in_namespace({"enforce": "baseline", "enforce_version": "v1.30"}, told).warnings == [
        f'would violate PodSecurity "baseline:v1.30": {HOST_NETWORK}'
    ]
    told = attributes("deployments", {"metadata": {"name": "d"}, "spec": {"template": pod(hostNetwork=True)}})
    assert in_namespace({"enforce": "baseline", "warn": "privileged"}, told).warnings == []


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("podtemplates", ("template",)),
        ("replicationcontrollers", ("spec", "template")),
        ("deployments", ("spec", "template")),
        ("daemonsets", ("spec", "template")),
        ("statefulsets", ("spec", "template")),
        ("replicasets", ("spec", "template")),
        ("jobs", ("spec", "template")),
        ("cronjobs", ("spec", "jobTemplate", "spec", "template")),
    ],
)
def test_templates_are_only_warned_of(resource: str, path: tuple[str, ...]) -> None:
    value: dict[str, Any] = pod(hostNetwork=True)
    for name in reversed(path):
        value = {name: value}
    told = in_namespace({"enforce": "baseline", "audit": "baseline"}, attributes(resource, {"metadata": {}} | value))
    shown = f'would violate PodSecurity "baseline:latest": {HOST_NETWORK}'
    assert (told.warnings, audited(told)) == ([shown], {"audit-violations": shown})
    told = attributes(resource, {"metadata": {}} | value, subresource="status")
    assert in_namespace({"enforce": "baseline"}, told).warnings == []
    assert in_namespace({"enforce": "baseline"}, attributes(resource, {"metadata": {}})).warnings == []


@pytest.mark.parametrize(
    "subresource", ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"]
)
def test_some_subresources_are_not_looked_at(subresource: str) -> None:
    told = attributes("pods", pod(hostNetwork=True), subresource=subresource)
    assert audited(in_namespace({"enforce": "restricted"}, told)) == {}


def test_updates_matter_if_they_change_an_image_or_add_a_container() -> None:
    labels, old = {"enforce": "baseline"}, pod(hostNetwork=True)
    relabeled = pod(hostNetwork=True)
    relabeled["metadata"]["labels"] = {"a": "b"}
    assert in_namespace(labels, attributes("pods", relabeled, old)).warnings == []
    debugged = pod(hostNetwork=True, ephemeralContainers=[_container("y", "debug")])
    assert HOST_NETWORK in refused(labels, attributes("pods", debugged, old, subresource="ephemeralcontainers"))
    assert in_namespace(labels, attributes("pods", debugged, debugged)).warnings == []
    for changed in (
        pod(image="other", hostNetwork=True),
        pod(hostNetwork=True, initContainers=[_container("y", "init")]),
    ):
        assert HOST_NETWORK in refused(labels, attributes("pods", changed, old))
    renamed = pod(hostNetwork=True, ephemeralContainers=[_container("z", "debug")])
    assert HOST_NETWORK in refused(labels, attributes("pods", renamed, debugged))
    assert in_namespace(labels, attributes("pods", None, old, operation=Operation.DELETE)).warnings == []


@pytest.mark.parametrize(
    ("settings", "exempt"),
    [
        ({"namespaces": ["default"]}, "namespace"),
        ({"usernames": ["root"]}, "user"),
        ({"runtimeClasses": ["vm"]}, "runtimeClass"),
    ],
)
@pytest.mark.parametrize("resource", ["pods", "deployments"])
def test_exemptions(settings: dict[str, Any], exempt: str, resource: str) -> None:
    value = pod(hostNetwork=True, runtimeClassName="vm")
    if resource == "deployments":
        value = {"metadata": {"name": "d"}, "spec": {"template": value}}
    told = attributes(resource, value, user=User(name="root"))
    found = in_namespace({"enforce": "baseline"}, told, settings=configuration(PodSecurityConfig(exemptions=settings)))
    assert (found.warnings, audited(found)) == ([], {"exempt": exempt})


def test_defaults_count_without_labels() -> None:
    settings = configuration(PodSecurityConfig(defaults={"enforce": "baseline", "enforce-version": "v1.30"}))
    told = attributes("pods", pod(hostNetwork=True))
    assert 'violates PodSecurity "baseline:v1.30"' in refused({}, told, settings=settings)
    told = attributes("pods", pod(hostNetwork=True))
    assert in_namespace({"enforce": "privileged"}, told, settings=settings).warnings == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"defaults": {"warn": "Baseline", "audit-version": "1.30"}},
            'defaults.audit-version: Invalid value: "1.30": must be "latest" or "v1.x"; defaults.warn: Invalid value:'
            ' "Baseline": must be one of privileged, baseline, restricted',
        ),
        (
            {"exemptions": {"users": ["a"]}},
            'exemptions: Unsupported value: "users": supported values: "namespaces", "runtimeClasses", "usernames"',
        ),
        ({"exemptions": {"namespaces": ["a", "a"]}}, 'exemptions.namespaces[1]: Duplicate value: "a"'),
        (
            {"exemptions": {"usernames": [""]}},
            'exemptions.usernames[0]: Invalid value: "": username must not be empty',
        ),
        ({"exemptions": {"runtimeClasses": ["A"]}}, 'exemptions.runtimeClasses[0]: Invalid value: "A"'),
    ],
)
def test_a_wrong_configuration(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        configuration(PodSecurityConfig(**given))
    assert text in str(caught.value)


def test_the_namespace_must_be_there() -> None:
    with pytest.raises(StatusError) as caught:
        admit(PodSecurity(Objects()), attributes("pods", pod()))
    assert (caught.value.code, caught.value.message) == (
        500,
        'Internal error occurred: failed to lookup namespace "default"',
    )
    told = admit(PodSecurity(Objects()), attributes("jobs", {"metadata": {}, "spec": {"template": pod()}}))
    assert audited(told) == {"error": 'failed to lookup namespace "default"'}


# Labels


@pytest.mark.parametrize(
    ("labels", "policies", "wrong"),
    [
        ({}, "privileged:latest privileged:latest privileged:latest", []),
        ({"enforce": "baseline"}, "baseline:latest privileged:latest baseline:latest", []),
        (
            {"enforce": "restricted", "enforce_version": "v1.20", "warn_version": "v1.21"},
            "restricted:v1.20 privileged:latest restricted:v1.21",
            [],
        ),
        ({"enforce": "no"}, "restricted:latest privileged:latest privileged:latest", ["enforce"]),
        (
            {"audit": "no", "warn": "no", "enforce": "baseline"},
            "baseline:latest privileged:latest privileged:latest",
            ["audit", "warn"],
        ),
        (
            {"enforce": "baseline", "enforce_version": "v1.01"},
            "baseline:latest privileged:latest baseline:latest",
            ["enforce-version"],
        ),
    ],
)
def test_labels(labels: dict[str, str], policies: str, wrong: list[str]) -> None:
    errors = FieldErrors()
    found = of_labels(namespace(**labels)["metadata"]["labels"], Policies(), errors)
    assert " ".join(map(str, found)) == policies
    assert [error.path for error in errors.found] == [f"metadata.labels[{LABELS}{name}]" for name in wrong]


def test_wrong_labels_are_refused_and_those_that_are_there_stay() -> None:
    plugin = PodSecurity(Objects())
    with pytest.raises(StatusError) as caught:
        admit(plugin, attributes("namespaces", namespace(enforce="no", audit_version="v2")))
    assert (caught.value.code, caught.value.message) == (
        422,
        f'Namespace "default" is invalid: [metadata.labels[{LABELS}enforce]: Invalid value: "no": must be one of'
        f' privileged, baseline, restricted, metadata.labels[{LABELS}audit-version]: Invalid value: "v2": must be'
        ' "latest" or "v1.x"]',
    )
    wrong, other = namespace(enforce="no"), namespace(enforce="neither")
    admit(plugin, attributes("namespaces", wrong, wrong))
    with pytest.raises(StatusError):
        admit(plugin, attributes("namespaces", other, wrong))
    admit(plugin, attributes("namespaces", namespace(), wrong))
    admit(plugin, attributes("namespaces", other, wrong, subresource="status"))
    told = in_namespace({"audit": "no"}, attributes("pods", pod()))
    assert audited(told) == {
        "enforce-policy": "privileged:latest",
        "error": f'Failed to parse policy: metadata.labels[{LABELS}audit]: Invalid value: "no": must be one of'
        " privileged, baseline, restricted",
    }


# Namespaces whose policy changes


def owned(name: str, **spec: Any) -> dict[str, Any]:
    value = pod(name, **spec)
    value["metadata"]["ownerReferences"] = [{"uid": "r1", "controller": True}]
    return value


def test_a_stricter_policy_warns_of_the_pods_that_are_there() -> None:
    pods = [
        pod("a"),
        pod("b", hostNetwork=True),
        owned("c", hostNetwork=True),
        owned("d", hostNetwork=True),
        pod("e", hostPID=True, volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        pod("f", runtimeClassName="vm", hostPID=True),
    ]
    plugin = PodSecurity(
        Objects(*(("pods", value) for value in pods)),
        settings=configuration(PodSecurityConfig(exemptions={"runtimeClasses": ("vm",)})),
    )
    told = admit(plugin, attributes("namespaces", namespace(enforce="baseline"), namespace()))
    assert told.warnings == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "b (and 2 other pods): host namespaces",
        "e: host namespaces, hostPath volumes",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"enforce": "baseline"}, {"enforce": "baseline", "warn": "restricted"}),
        ({"enforce": "baseline"}, {"enforce": "privileged"}),
        ({"enforce": "restricted"}, {"enforce": "baseline"}),
        ({}, {"audit": "restricted"}),
    ],
)
def test_a_policy_that_is_no_stricter_warns_of_nothing(before: dict[str, str], after: dict[str, str]) -> None:
    plugin = PodSecurity(Objects(("pods", pod(hostNetwork=True))))
    assert admit(plugin, attributes("namespaces", namespace(**after), namespace(**before))).warnings == []


def test_another_version_is_checked() -> None:
    plugin = PodSecurity(Objects(("pods", pod("a", hostNetwork=True)), ("pods", pod("b", hostNetwork=True))))
    before, after = namespace(enforce="restricted"), namespace(enforce="baseline", enforce_version="v1.20")
    assert admit(plugin, attributes("namespaces", after, before)).warnings == [
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:v1.20"',
        "a (and 1 other pod): host namespaces",
    ]


def test_only_so_many_pods_are_checked_and_one_of_each_controller_first() -> None:
    most = pod_security.MAX_CHECKED_PODS
    pods = [owned(f"a{number:04}") for number in range(most)] + [pod("z", hostNetwork=True), owned("zz")]
    plugin = PodSecurity(Objects(*(("pods", value) for value in pods)))
    told = admit(plugin, attributes("namespaces", namespace(enforce="baseline"), namespace()))
    assert told.warnings == [
        f"new PodSecurity enforce level only checked against the first {most} of {most + 2} existing pods",
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "z: host namespaces",
    ]


def test_only_so_much_of_pods_is_read() -> None:
    """Who changed the labels of a namespace with hundreds of megabytes of them kept everybody waiting for seconds."""
    size = pod_security.MAX_CHECKED_BYTES // 3
    pods = [pod(name, hostNetwork=True, nodeSelector={"a": "x" * size}) for name in "abcd"]
    plugin = PodSecurity(Objects(*(("pods", value) for value in pods)))
    told = admit(plugin, attributes("namespaces", namespace(enforce="baseline"), namespace()))
    assert told.warnings == [
        "new PodSecurity enforce level only checked against the first 2 of 4 existing pods",
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "a (and 1 other pod): host namespaces",
    ]


def test_labels_of_an_exempt_namespace_do_nothing() -> None:
    settings = Configuration(defaults=Policies(warn=Policy(Level.BASELINE)), namespaces=frozenset({"default"}))
    plugin = PodSecurity(Objects(("pods", pod(hostNetwork=True))), settings=settings)
    shown = (
        'namespace "default" is exempt from Pod Security, and the policy (enforce=baseline:latest,'
        " warn=restricted:v1.30) will be ignored"
    )
    asked = namespace(enforce="baseline", warn="restricted", warn_version="v1.30")
    assert admit(plugin, attributes("namespaces", asked)).warnings == [shown]
    assert admit(plugin, attributes("namespaces", asked, namespace())).warnings == [shown]
    assert admit(plugin, attributes("namespaces", namespace())).warnings == []


# User namespaces (KEP-127)


def as_root(**spec: Any) -> dict[str, Any]:
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": False,
        "runAsUser": 0,
    }
    return pod(**spec) | {
        "spec": {"containers": [{"name": "a", "image": "x", "securityContext": context}], **spec},
    }


@pytest.mark.requirement("U17", "U18")
def test_the_relaxation_for_user_namespaces_has_a_gate_that_is_off() -> None:
    gate = next(gate for gate in KNOWN if gate.name == "UserNamespacesPodSecurityStandards")
    assert (gate.default, gate.components) == (False, ("api",))
    labels = {"enforce": "restricted"}
    why = (
        'runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false), runAsUser=0 (container'
        ' "a" must not set runAsUser=0)'
    )
    for gates, value in ((None, as_root(hostUsers=False)), (GATE_ON, as_root()), (GATE_ON, as_root(hostUsers=True))):
        assert refused(labels, attributes("pods", value), gates=gates).endswith(f'latest": {why}')
    assert in_namespace(labels, attributes("pods", as_root(hostUsers=False)), gates=GATE_ON).warnings == []
