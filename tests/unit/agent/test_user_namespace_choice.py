"""Which user namespace a pod gets: a table of pods on a node with one mapping, and on one without."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from podkeep.agent.user_namespaces.choice import BoundSource, Outcome, choose, needs_claims
from podkeep.api import manifest, received
from podkeep.api.feature_gates import FeatureGates
from podkeep.api.pod import Pod
from podkeep.base.errors import InvalidArgument

ON = FeatureGates()
NO_DEFAULTING = FeatureGates(given={"DisableHostUserNamespaceDefaulting": True})
CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}


def document(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "c", "image": "i"} | (container or {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [main]} | spec,
    }


def make(container: dict[str, Any] | None = None, **spec: Any) -> Pod:
    """Return a pod as the API has it."""
    found = received.pod(document(container, **spec))
    assert not found.problems
    return found.pod


def security(**fields: Any) -> dict[str, Any]:
    return {"securityContext": fields}


def adds(*capabilities: str) -> dict[str, Any]:
    return security(capabilities={"add": list(capabilities)})


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


TRIGGERS = [
    (make(hostNetwork=True), "hostNetwork"),
    (make(hostPID=True), "hostPID"),
    (make(hostIPC=True), "hostIPC"),
    (make(security(privileged=True)), 'container "c" is privileged'),
    (make(adds("SYS_TIME")), 'container "c" adds capability SYS_TIME'),
    (make(adds("CAP_SYS_MODULE")), 'container "c" adds capability SYS_MODULE'),
    (make(adds("NET_ADMIN", "mknod")), 'container "c" adds capability MKNOD'),
    (make(adds("ALL")), 'container "c" adds capability ALL'),
    (make(initContainers=[{"name": "i", "image": "i"} | adds("SYS_TIME")]), 'container "i" adds capability SYS_TIME'),
    (make(initContainers=[{"name": "i", "image": "i"} | security(privileged=True)]), 'container "i" is privileged'),
    (make(ephemeralContainers=[{"name": "e", "image": "i"} | adds("MKNOD")]), 'container "e" adds capability MKNOD'),
    (make({"volumeDevices": [{"name": "v", "devicePath": "/d"}]}), 'container "c" has block devices'),
    (make(**volume(hostPath={"path": "/x"})), 'volume "v" (hostPath), whose owner cannot be changed'),
    (make(**volume(nfs={"server": "s", "path": "/"})), 'volume "v" (nfs), whose owner cannot be changed'),
    (make(**volume(csi={"driver": "d"})), 'volume "v" (csi), whose owner cannot be changed'),
    (make(**volume(cephfs={"monitors": ["m"]})), 'volume "v" (cephfs), whose owner cannot be changed'),
    (
        make(**volume(iscsi={"targetPortal": "p", "iqn": "q"})),
        'volume "v" (iscsi), whose owner cannot be changed',
    ),
]


@pytest.mark.requirement("U53", "U54", "U59")
@pytest.mark.parametrize(("pod", "trigger"), TRIGGERS, ids=[trigger for _, trigger in TRIGGERS])
def test_each_trigger_and_how_it_is_overruled(pod: Pod, trigger: str) -> None:
    found = choose(pod, one_mapping=True, gates=ON)
    assert (found.outcome, found.triggers, found.own) == (Outcome.HOST, (trigger,), False)
    assert choose(pod, one_mapping=True, gates=NO_DEFAULTING).outcome is Outcome.NODE_MAPPING
    without = choose(pod, one_mapping=False, gates=ON)
    assert (without.outcome, without.triggers) == (Outcome.HOST, ())


HARMLESS = [
    make(),
    make(adds("SYS_ADMIN", "NET_ADMIN", "SYS_CHROOT", "SETUID")),
    make(security(privileged=False, runAsUser=0, capabilities={"drop": ["MKNOD", "ALL"]})),
    make(hostNetwork=False, shareProcessNamespace=True),
    make(**volume()),
    make(**volume(emptyDir={"medium": "Memory"})),
    make(**volume(configMap={"name": "m"})),
    make(**volume(secret={"secretName": "s"})),
    make(**volume(downwardAPI={"items": []})),
    make(**volume(projected={"sources": []})),
    make(**volume(image={"reference": "i"})),
    make(hostUsers=None, userHostNamespace=False),
]


@pytest.mark.requirement("U53")
@pytest.mark.parametrize("pod", HARMLESS)
def test_a_pod_without_a_trigger_gets_the_nodes_mapping(pod: Pod) -> None:
    assert choose(pod, one_mapping=True, gates=ON).outcome is Outcome.NODE_MAPPING
    assert choose(pod, one_mapping=False, gates=ON).outcome is Outcome.HOST


@pytest.mark.requirement("U3")
@pytest.mark.parametrize("gates", [ON, NO_DEFAULTING])
@pytest.mark.parametrize("asked", [{"hostUsers": True}, {"userHostNamespace": True}])
def test_who_asks_for_the_nodes_gets_it_without_a_word(asked: dict[str, Any], gates: FeatureGates) -> None:
    pod = make(security(privileged=True), **asked)
    for one_mapping in (True, False):
        found = choose(pod, one_mapping=one_mapping, gates=gates)
        assert (found.outcome, found.triggers) == (Outcome.HOST, ())


@pytest.mark.parametrize("gates", [ON, NO_DEFAULTING])
@pytest.mark.parametrize("pod", [pod for pod, _ in TRIGGERS])
def test_who_asks_for_one_of_its_own_is_never_defaulted(pod: Pod, gates: FeatureGates) -> None:
    asking = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, host_users=False))
    assert choose(asking, one_mapping=True, gates=gates).outcome is Outcome.NODE_MAPPING
    assert choose(asking, one_mapping=False, gates=gates).outcome is Outcome.BLOCK


def test_every_trigger_is_named() -> None:
    both = security(privileged=True, capabilities={"add": ["MKNOD"]})
    pod = make(both, hostPID=True, **volume(hostPath={"path": "/"}))
    assert choose(pod, one_mapping=True, gates=ON).triggers == (
        "hostPID",
        'container "c" is privileged',
        'container "c" adds capability MKNOD',
        'volume "v" (hostPath), whose owner cannot be changed',
    )


@pytest.mark.requirement("U59")
@pytest.mark.parametrize("source", [CLAIM, {"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}])
def test_what_is_behind_a_claim_decides(source: dict[str, Any]) -> None:
    pod = make(volumes=[source])
    assert needs_claims(pod, one_mapping=True, gates=ON)
    for kind in ("nfs", "hostPath", "csi", "rbd"):
        found = choose(pod, one_mapping=True, gates=ON, claims={"v": BoundSource(kind=kind)})
        assert (found.outcome, found.triggers) == (
            Outcome.HOST,
            (f'volume "v" (a claim for {kind}), whose owner cannot be changed',),
        )
    local = {"v": BoundSource(kind="local")}
    assert choose(pod, one_mapping=True, gates=ON, claims=local).outcome is Outcome.NODE_MAPPING


def test_claims_are_only_looked_at_when_they_decide() -> None:
    pod = make(volumes=[CLAIM])
    assert not needs_claims(pod, one_mapping=False, gates=ON)
    assert not needs_claims(pod, one_mapping=True, gates=NO_DEFAULTING)
    assert not needs_claims(make(), one_mapping=True, gates=ON)
    for spec in ({"hostUsers": True}, {"hostUsers": False}, {"userHostNamespace": True}, {"hostNetwork": True}):
        assert not needs_claims(make(volumes=[CLAIM], **spec), one_mapping=True, gates=ON)


@pytest.mark.requirement("U3")
def test_the_alias_in_a_manifest() -> None:
    def parse(**spec: Any) -> Pod:
        return manifest.parse(yaml.safe_dump(document(None, **spec)), source="f").pods[0]

    assert parse(userHostNamespace=True).spec.user_host_namespace
    assert parse(userHostNamespace=True, hostUsers=True).spec.host_users
    for spec, message in (
        ({"userHostNamespace": True, "hostUsers": False}, "spec.userHostNamespace: Invalid value"),
        ({"userHostNamespace": True, "os": {"name": "windows"}}, "spec.userHostNamespace: Forbidden"),
        ({"userHostNamespace": "yes"}, "spec.userHostNamespace"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            parse(**spec)
    assert not parse(userHostNamespace=False, hostUsers=False).spec.user_host_namespace
