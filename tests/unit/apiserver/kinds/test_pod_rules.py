"""What pods may be and become: every rule from a table, over a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods.template import (
    default_pod_template,
    drop_pod_template,
    pod_template_warnings,
    validate_pod_template,
)
from podkeep.apiserver.kinds.pods.validation import projected as pod_projected
from podkeep.apiserver.kinds.pods.validation import volumes as pod_volumes
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.registry.registry import DeleteOptions, PatchType, Registry, Request
from podkeep.apiserver.schema.decode import decode
from podkeep.apiserver.storage.store import Store
from unit.apiserver.kinds import pod_steps
from unit.apiserver.kinds.pod_steps import POD, PODS, STRATEGY, at, changed, defaulted, pod, refusal, run, stored, tried

CREATIONS = pod_steps.cases("pod_creations")
UPDATES = pod_steps.cases("pod_updates")
ME = Request(field_manager="me")


@pytest.mark.slow
@pytest.mark.requirement("U10", "U11", "V2", "V3", "V5")
@pytest.mark.parametrize("part", range(4))
def test_creations(tmp_path: Path, part: int) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        found, expected = {}, {}
        for case in CREATIONS[part::4]:
            warnings: list[str] = []
            texts = await refusal(registry.create(at(), changed(POD, case["change"]), tried(warnings)))
            found[case["case"]] = sorted(set(texts)), warnings if not texts else None
            expected[case["case"]] = sorted(set(case["errors"])), case.get("warnings")
        assert found == expected

    run(tmp_path, steps)


@pytest.mark.slow
@pytest.mark.requirement("V4")
@pytest.mark.parametrize("case", [case for case in CREATIONS if "spec" in case], ids=lambda case: case["case"])
def test_what_is_filled_in(tmp_path: Path, case: dict[str, Any]) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        created = await registry.create(at(), changed(POD, case["change"]), tried())
        assert created["spec"] == case["spec"]
        assert created["status"] == {"phase": "Pending", "qosClass": case["qosClass"]}

    run(tmp_path, steps)


@pytest.mark.requirement("U9")
def test_updates(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        named = {f"web-{index}": case for index, case in enumerate(UPDATES)}
        olds = {name: stored(changed(POD, {"metadata.name": name, **case["old"]})) for name, case in named.items()}
        await asyncio.gather(*(store.put(at(name=name).key, old, None) for name, old in olds.items()))
        found, expected = {}, {}
        for name, case in named.items():
            part = "" if case["part"] == "update" else case["part"]
            new = changed(olds[name], case["new"])
            texts = await refusal(registry.update(at(part, name), new, tried()))
            found[case["part"], case["case"]] = sorted(set(texts))
            expected[case["part"], case["case"]] = sorted(set(case["errors"]))
        assert found == expected

    run(tmp_path, steps)


@pytest.mark.slow
@pytest.mark.requirement("V8")
@pytest.mark.parametrize("path", ["template", "spec.template"])
def test_templates(path: str) -> None:
    found, expected = {}, {}
    for case in CREATIONS:
        given = _template(changed(POD, case["change"]))
        errors = FieldErrors()
        validate_pod_template(given, path, errors)
        found[case["case"]] = {str(error) for error in errors.found}
        expected[case["case"]] = {_below(path, text) for text in case.get("template", case["errors"])}
    assert found == expected


def _template(given: dict[str, Any]) -> dict[str, Any]:
    template = decode(given, PODS.struct).value
    default_pod_template(template)
    drop_pod_template(template, None, FeatureGates())
    return template


def _below(path: str, text: str) -> str:
    """Return the text of an error of a pod as it is about a template; its metadata are shown as the template's own."""
    return f"{path}.{text.removeprefix('metadata.')}".replace(': "spec.volumes[', f': "{path}.spec.volumes[')


def test_what_a_client_should_know_of_a_template() -> None:
    template = {
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/web": "unconfined"}},
        "spec": {**POD["spec"], "terminationGracePeriodSeconds": -1},
    }
    assert pod_template_warnings(template, "spec.template") == [
        "spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/web]: deprecated since"
        ' v1.30; use the "appArmorProfile" field instead',
        "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be"
        " treated as 1",
    ]


@pytest.mark.parametrize(
    ("image", "policy"),
    [({}, "IfNotPresent"), ({"reference": "a"}, "Always"), ({"reference": "a:1", "pullPolicy": "Never"}, "Never")],
)
def test_every_image_volume_has_a_pull_policy(image: dict[str, str], policy: str) -> None:
    (volume,) = defaulted(pod(volumes=[{"name": "v", "image": image}]))["spec"]["volumes"]
    assert volume["image"] == {**image, "pullPolicy": policy}


def test_updates_have_no_warnings() -> None:
    deprecated = pod(nodeSelector={"beta.kubernetes.io/os": "linux"})
    assert STRATEGY.warnings(deprecated, None)
    assert STRATEGY.warnings(deprecated, deprecated) == []


# podkeep's own fields


@pytest.mark.requirement("U4")
@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"userHostNamespace": True}, []),
        ({"userHostNamespace": False, "hostUsers": False}, []),
        ({"userHostNamespace": True, "hostUsers": True}, []),
        (
            {"userHostNamespace": True, "hostUsers": False},
            [
                "spec.userHostNamespace: Invalid value: true: cannot be true when `hostUsers` is false: it is a"
                " deprecated name of `hostUsers: true`"
            ],
        ),
        (
            {"userHostNamespace": True, "os": {"name": "windows"}},
            ["spec.userHostNamespace: Forbidden: cannot be set for a windows pod"],
        ),
    ],
)
def test_the_old_name_of_host_users(tmp_path: Path, fields: dict[str, Any], errors: list[str]) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        warnings: list[str] = []
        request = Request(field_manager="me", warnings=warnings)
        assert await refusal(registry.create(at(), pod(**fields), request)) == errors
        if errors:
            return
        assert warnings == ["spec.userHostNamespace: deprecated; use hostUsers instead"]
        kept = msgspec.json.decode(registry.get(at()).value)["spec"]
        assert {name: kept[name] for name in fields} == fields
        assert kept.keys() & {"hostUsers"} == fields.keys() & {"hostUsers"}

    run(tmp_path, steps)


@pytest.mark.requirement("Q54", "Q55", "Q56", "Q58")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"spec.containers.0.resources": {"classes": {"rdt": "gold", "v.io/x": "a.b"}}}, ""),
        ({"spec.resources": {"classes": {"rdt": "gold"}}}, ""),
        (
            {"spec.containers.0.resources": {"classes": {"-a": "gold"}}},
            'spec.containers[0].resources.classes[-a]: Invalid value: "-a": name part must consist of',
        ),
        (
            {"spec.containers.0.resources": {"classes": {"rdt": "a/b"}}},
            'spec.containers[0].resources.classes[rdt]: Invalid value: "a/b": must be 1 to 63 letters',
        ),
        (
            {"spec.resources": {"classes": {"qos": "Guaranteed"}}},
            "spec.resources.classes[qos]: Forbidden: it follows from the limits and requests of the containers",
        ),
        (
            {"metadata.annotations": {"rdt.resources.alpha.kubernetes.io/container.x": "gold"}},
            'metadata.annotations[rdt.resources.alpha.kubernetes.io/container.x]: Not found: "x"',
        ),
        (
            {
                "metadata.annotations": {"rdt.resources.alpha.kubernetes.io/default": "gold"},
                "spec.containers.0.resources": {"classes": {"rdt": "silver"}},
            },
            'metadata.annotations[rdt.resources.alpha.kubernetes.io/default]: Invalid value: "gold": must be the same',
        ),
    ],
)
def test_classes(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        texts = await refusal(registry.create(at(), changed(POD, changes), tried()))
        assert len(texts) == bool(error)
        assert all(text.startswith(error) for text in texts)

    run(tmp_path, steps)


@pytest.mark.requirement("Q60")
def test_a_resize_may_change_classes(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        given = changed(POD, {"spec.containers.0.resources": {"requests": {"cpu": "1"}, "classes": {"rdt": "gold"}}})
        created = await registry.create(at(), given, ME)
        patch = [{"op": "replace", "path": "/spec/containers/0/resources/classes/rdt", "value": "silver"}]
        (text,) = await refusal(registry.patch(at(), patch, PatchType.JSON, ME))
        assert text.startswith("spec: Forbidden: pod updates may not change fields other than")
        assert text.endswith("; changed: spec.containers[0].resources.classes.rdt")
        resized = await registry.patch(at("resize"), patch, PatchType.JSON, ME)
        assert resized["spec"]["containers"][0]["resources"]["classes"] == {"rdt": "silver"}
        assert resized["metadata"]["generation"] == created["metadata"]["generation"] + 1

    run(tmp_path, steps)


# projections of features that are off by default


@pytest.mark.parametrize(
    ("source", "errors"),
    [
        ({"clusterTrustBundle": {"name": "a", "path": "p"}}, []),
        ({"clusterTrustBundle": {"signerName": "example.com/a", "path": "p"}}, []),
        (
            {"clusterTrustBundle": {}},
            [
                "v.sources[0].clusterTrustBundle: Required value: either name or signerName must be specified",
                "v.sources[0].clusterTrustBundle.path: Required value",
            ],
        ),
        (
            {"clusterTrustBundle": {"name": "a", "signerName": "example.com/a", "path": "p"}},
            [
                'v.sources[0].clusterTrustBundle: Invalid value: {"name":"a","signerName":"example.com/a","path":"p"}:'
                " only one of name and signerName may be used"
            ],
        ),
        (
            {"clusterTrustBundle": {"name": "a", "labelSelector": {}, "path": "p"}},
            [
                "v.sources[0].clusterTrustBundle.labelSelector: Invalid value: {}: labelSelector must be unset if name"
                " is specified"
            ],
        ),
        (
            {"clusterTrustBundle": {"signerName": "a", "path": "/p"}},
            [
                'v.sources[0].clusterTrustBundle.signerName: Invalid value: "a": must be a fully qualified domain and'
                " path of the form 'example.com/signer-name'",
                'v.sources[0].clusterTrustBundle.path: Invalid value: "/p": must be a relative path',
            ],
        ),
        (
            {"podCertificate": {"signerName": "com/a", "keyType": "RSA", "maxExpirationSeconds": 60}},
            [
                'v.sources[0].podCertificate.signerName: Invalid value: "com": should be a domain with at least two'
                " segments separated by dots",
                'v.sources[0].podCertificate.keyType: Unsupported value: "RSA": supported values: "RSA3072", "RSA4096",'
                ' "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"',
                "v.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 60: if provided, maxExpirationSeconds"
                " must be >= 3600",
                "v.sources[0].podCertificate: Required value: specify at least one of credentialBundlePath, keyPath,"
                " and certificateChainPath",
            ],
        ),
        (
            {
                "podCertificate": {
                    "signerName": "kubernetes.io/a",
                    "keyType": "ED25519",
                    "maxExpirationSeconds": 90_000,
                    "keyPath": "k",
                    "certificateChainPath": "k",
                    "userAnnotations": {"x": "y"},
                }
            },
            [
                'v.sources[0].podCertificate.userAnnotations: Invalid value: "x": must be a domain-prefixed key (such'
                ' as "acme.io/foo")',
                "v.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 90000: if provided,"
                " maxExpirationSeconds must be <= 86400",
                'v: Invalid value: "k": conflicting duplicate paths',
            ],
        ),
    ],
)
def test_projections(source: dict[str, Any], errors: list[str]) -> None:
    found = FieldErrors()
    pod_projected.validate_projected(
        {"sources": [source]},
        "v",
        found,
        item=pod_volumes.validate_item,
        downward_file=pod_volumes.validate_downward_file,
    )
    assert [str(error) for error in found.found] == errors


# the life of a pod


def test_a_new_pod_is_pending(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        given = {**pod(schedulingGates=[{"name": "wait"}]), "status": {"phase": "Running"}}
        created = await registry.create(at(), given, ME)
        assert created["metadata"]["generation"] == 1
        assert created["status"] == {
            "phase": "Pending",
            "qosClass": "BestEffort",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastTransitionTime": created["metadata"]["creationTimestamp"],
                }
            ],
        }

    run(tmp_path, steps)


def test_labels_of_a_new_pod_go_into_its_selectors(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        term = {
            "topologyKey": "zone",
            "labelSelector": {"matchLabels": {"x": "y"}},
            "matchLabelKeys": ["app", "none"],
            "mismatchLabelKeys": ["tier"],
        }
        spread = {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {},
            "matchLabelKeys": ["app"],
        }
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        given = pod(affinity={"podAntiAffinity": {required: [term]}}, topologySpreadConstraints=[spread])
        spec = (await registry.create(at(), given, ME))["spec"]
        assert spec["affinity"]["podAntiAffinity"][required][0]["labelSelector"]["matchExpressions"] == [
            {"key": "app", "operator": "In", "values": ["web"]},
            {"key": "tier", "operator": "NotIn", "values": ["front"]},
        ]
        assert spec["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"] == [
            {"key": "app", "operator": "In", "values": ["web"]}
        ]
        patch = {"metadata": {"labels": {"app": "other"}}}
        assert (await registry.patch(at(), patch, PatchType.MERGE, ME))["spec"] == spec

    run(tmp_path, steps)


@pytest.mark.parametrize(
    ("fields", "asked", "seconds"),
    [
        ({}, None, 0),
        ({"spec.nodeName": "n"}, None, 30),
        ({"spec.nodeName": "n"}, 5, 5),
        ({"spec.nodeName": "n"}, -1, 1),
        ({"spec.nodeName": "n", "spec.terminationGracePeriodSeconds": 7}, None, 7),
        ({"spec.nodeName": "n", "spec.terminationGracePeriodSeconds": 0}, None, 0),
        ({"spec.nodeName": "n", "status.phase": "Failed"}, 5, 0),
        ({"spec.nodeName": "n", "status.phase": "Succeeded"}, None, 0),
        ({"spec.nodeName": "n", "status.phase": "Running"}, None, 30),
    ],
)
def test_deletion_waits_for_the_agent(tmp_path: Path, fields: dict[str, Any], asked: int | None, seconds: int) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        await store.put(at().key, stored(changed(POD, fields)), None)
        answer, gone = await registry.delete(at(), DeleteOptions(grace_period=asked), ME)
        assert gone is (seconds == 0)
        if not gone:
            assert answer["metadata"]["deletionGracePeriodSeconds"] == seconds
        with pytest.raises(StatusError) if gone else pytest.MonkeyPatch.context():
            registry.get(at())

    run(tmp_path, steps)


def test_the_fields_that_selectors_may_ask_for() -> None:
    assert STRATEGY.selectable(pod()) == {
        "spec.nodeName": "",
        "spec.restartPolicy": "",
        "spec.schedulerName": "",
        "spec.serviceAccountName": "",
        "spec.hostNetwork": "false",
        "status.phase": "",
        "status.podIP": "",
        "status.nominatedNodeName": "",
    }
    given = defaulted(pod(nodeName="n", hostNetwork=True, serviceAccountName="s"))
    given["status"] = {"phase": "Running", "podIP": "1.2.3.4", "nominatedNodeName": "m"}
    assert STRATEGY.selectable(given) == {
        "spec.nodeName": "n",
        "spec.restartPolicy": "Always",
        "spec.schedulerName": "default-scheduler",
        "spec.serviceAccountName": "s",
        "spec.hostNetwork": "true",
        "status.phase": "Running",
        "status.podIP": "1.2.3.4",
        "status.nominatedNodeName": "m",
    }
