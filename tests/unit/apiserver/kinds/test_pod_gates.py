"""Fields whose feature gate is off: dropped from new pods, kept where the stored pod has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podkeep.api import feature_gates
from podkeep.api.feature_gates import FeatureGates
from podkeep.apiserver.kinds.pods.gates import GATED
from podkeep.apiserver.kinds.pods.template import drop_pod_template
from podkeep.apiserver.registry.registry import PatchType, Registry, Request
from podkeep.apiserver.storage.store import Store
from unit.apiserver.kinds.pod_steps import POD, at, changed, pod, refusal, run, stored

ME = Request(field_manager="me")
LABEL = {"metadata": {"labels": {"new": "label"}}}
IMAGE = {"name": "v", "image": {"reference": "r"}}
DROPPED = {
    "UserNamespacesSupport": {"spec.hostUsers": False},
    "ClassResources": {"spec.containers.0.resources": {"classes": {"rdt": "gold"}}},
    "ContainerStopSignals": {
        "spec.os": {"name": "linux"},
        "spec.containers.0.lifecycle": {"stopSignal": "SIGINT", "preStop": {"sleep": {"seconds": 1}}},
    },
    "ClusterTrustBundleProjection": {
        "spec.volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "p"}}]}}]
    },
    "PodCertificateRequest": {
        "spec.volumes": [
            {
                "name": "v",
                "projected": {
                    "sources": [
                        {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k"}}
                    ]
                },
            }
        ]
    },
    "GenericWorkload": {"spec.schedulingGroup": {"podGroupName": "g"}},
}
"""By gate: fields that a pod is good without."""


def _has(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return name in value or any(_has(item, name) for item in value.values())
    return isinstance(value, list) and any(_has(item, name) for item in value)


def _field(gate: str) -> str:
    return next(fields.names[0] for fields in GATED if fields.gate.name == gate)


@pytest.mark.slow
@pytest.mark.requirement("Q61", "U5")
@pytest.mark.parametrize("gate", sorted(DROPPED))
@pytest.mark.parametrize("enabled", [True, False])
def test_new_pods(tmp_path: Path, gate: str, enabled: bool) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        created = await registry.create(at(), changed(POD, DROPPED[gate]), ME)
        assert _has(created["spec"], _field(gate)) is enabled

    run(tmp_path, steps, {gate: enabled})


@pytest.mark.requirement("U104")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("given", [{}, {"hostUsers": True}, {"hostUsers": False}])
def test_host_users_of_new_pods(tmp_path: Path, given: dict[str, bool], enabled: bool) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        created = await registry.create(at(), pod(**given), ME)
        wanted = given if enabled else {}
        assert {name: value for name, value in created["spec"].items() if name == "hostUsers"} == wanted

    run(tmp_path, steps, {"UserNamespacesSupport": enabled})


@pytest.mark.requirement("Q61", "U104", "U6", "V13", "V93")
@pytest.mark.parametrize("gate", sorted(fields.gate.name for fields in GATED))
def test_stored_pods_keep_what_they_have(tmp_path: Path, gate: str) -> None:
    changes = DROPPED.get(gate, {"spec.volumes": [IMAGE]})
    old = stored(changed(POD, changes))
    assert _has(old["spec"], _field(gate))

    async def steps(registry: Registry, store: Store) -> None:
        await store.put(at().key, old, None)
        updated = await registry.patch(at(), LABEL, PatchType.MERGE, ME)
        assert updated["metadata"]["labels"]["new"] == "label"
        assert updated["spec"] == old["spec"]
        status = {"status": {"phase": "Running"}}
        assert (await registry.patch(at("status"), status, PatchType.MERGE, ME))["spec"] == old["spec"]

    run(tmp_path, steps, {gate: False})


@pytest.mark.parametrize("gate", sorted(DROPPED))
def test_a_gate_that_is_off_does_not_let_a_field_in(tmp_path: Path, gate: str) -> None:
    """What is dropped from an update is no change, so that the update is taken without it."""

    async def steps(registry: Registry, store: Store) -> None:
        await store.put(at().key, stored(POD), None)
        new = changed(stored(POD), {name: item for name, item in DROPPED[gate].items() if name != "spec.os"})
        if gate == "ContainerStopSignals":
            del new["spec"]["containers"][0]["lifecycle"]["preStop"]
        elif "spec.volumes" in DROPPED[gate]:
            return  # the volume itself would be a change
        updated, _ = await registry.update(at(), new, ME)
        assert updated["spec"] == stored(POD)["spec"]

    run(tmp_path, steps, {gate: False})


@pytest.mark.requirement("V12", "V93")
def test_an_image_volume_does_not_become_an_empty_directory(tmp_path: Path) -> None:
    async def steps(registry: Registry, store: Store) -> None:
        given = pod(volumes=[IMAGE])
        assert await refusal(registry.create(at(), given, ME)) == [
            "spec.volumes[0]: Required value: must specify a volume type"
        ]

    run(tmp_path, steps, {"ImageVolume": False})


@pytest.mark.requirement("V11")
def test_image_volumes_have_sub_paths(tmp_path: Path) -> None:
    """The agent expands ``subPathExpr`` and sends the runtime what comes of it, so that both are taken."""

    async def steps(registry: Registry, store: Store) -> None:
        mounts = [
            {"name": "v", "mountPath": "/a", "subPath": "dir"},
            {"name": "v", "mountPath": "/b", "subPathExpr": "$(DIR)"},
        ]
        given = changed(pod(volumes=[IMAGE]), {"spec.containers.0.volumeMounts": mounts})
        assert (await registry.create(at(), given, ME))["spec"]["containers"][0]["volumeMounts"] == mounts

    run(tmp_path, steps)


def test_templates_lose_the_same_fields() -> None:
    off = FeatureGates(given={"ClassResources": False})
    spec = changed(POD, DROPPED["ClassResources"])["spec"]
    template, old = {"spec": changed({"spec": spec}, {})["spec"]}, {"spec": spec}
    drop_pod_template(template, old, off)
    assert template["spec"] == spec
    drop_pod_template(template, {"spec": POD["spec"]}, off)
    assert template["spec"]["containers"][0]["resources"] == {}


def test_defaults_are_those_of_kubernetes() -> None:
    on = {gate.name for gate in feature_gates.KNOWN if gate.default}
    assert on == {"ClassResources", "ImageVolume", "ImageVolumeSubPaths", "UserNamespacesSupport"}
