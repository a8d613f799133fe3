"""All volumes of a pod: which are made, what a failure says, and that nothing is touched where nothing changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from podkeep.agent.objects.sources import Claim, Sources, failure_key
from podkeep.agent.poddirs import PodDir
from podkeep.agent.volumes import claims
from podkeep.agent.volumes.pod_volumes import MountFailed, PodVolumes
from podkeep.agent.volumes.setup import Surroundings
from podkeep.base.errors import InvalidArgument
from support.volumes import SECRET_TEXT, claim, persistent_volume, pod_with, sources_of
from unit.kernel.isolation import in_new_namespaces

NODE = Surroundings(
    node_name="n1",
    labels={"kubernetes.io/hostname": "n1"},
    allocatable={"cpu": "3500m", "memory": "2Gi", "ephemeral-storage": "10Gi"},
)
MAP = {"configMap": {"name": "m"}}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def volumes(tmp_path: Path, clock: Clock | None = None) -> PodVolumes:
    return PodVolumes(PodDir(path=tmp_path / "pods" / "u1"), clock or Clock())


def read(root: Path) -> dict[str, str]:
    names = [name for name in os.listdir(root) if not name.startswith("..")]
    return {name: (root / name).read_text() for name in names}


def seen(path: Path) -> tuple[int, int, int]:
    info = path.stat()
    return info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)


def state(root: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of the last change of everything below a directory, and of itself."""
    found = [root, *root.rglob("*")]
    return {str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in found}


def texts(failed: pytest.ExceptionInfo[MountFailed]) -> list[str]:
    return [event.message for event in failed.value.events()]


DOWNWARD = {
    "downwardAPI": {
        "items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "one", "fieldRef": {"fieldPath": "metadata.labels['app']"}, "mode": 0o400},
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
            {
                "path": "mem",
                "resourceFieldRef": {"containerName": "c", "resource": "requests.memory", "divisor": "1Mi"},
            },
            {"path": "node", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory"}},
        ]
    }
}


@in_new_namespaces()
def test_downward_api_has_fields_and_resources(tmp_path: Path) -> None:
    """Labels are quoted as Go quotes; a limit that a container does not have is what the node has."""
    pod = pod_with([{"name": "v"} | DOWNWARD], labels={"app": "web", "b": 'a"\n\x01é'})
    root = volumes(tmp_path).set_up(pod, Sources(), NODE)["v"].path
    assert read(root) == {
        "labels": 'app="web"\nb="a\\"\\n\\x01é"',
        "one": "web",
        "name": "web",
        "uid": "u1",
        "cpu": "3500",
        "mem": "100",
        "node": str(2 << 30),
    }
    assert stat.S_IMODE((root / "one").stat().st_mode) == 0o400


@in_new_namespaces()
def test_labels_are_kept_up_to_date_and_nothing_is_touched_otherwise(tmp_path: Path) -> None:
    """A refresh changes files exactly when their content is another one."""
    all_volumes = [{"name": "v"} | DOWNWARD, {"name": "m"} | MAP]
    pod = pod_with(all_volumes, labels={"app": "web"})
    made = volumes(tmp_path)
    ready = made.set_up(pod, sources_of(), NODE)
    before = state(ready["v"].path), state(ready["m"].path)
    assert made.refresh(pod, sources_of(), NODE) == []
    assert (state(ready["v"].path), state(ready["m"].path)) == before
    changed = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels={"app": "db"}))
    assert made.refresh(changed, sources_of(), NODE) == ["v"]
    assert (ready["v"].path / "one").read_text() == "db"
    assert state(ready["m"].path) == before[1]
    assert made.refresh(changed, sources_of(a="new"), NODE) == ["m"]
    assert (ready["m"].path / "a").read_text() == "new"


@in_new_namespaces()
def test_a_refresh_after_a_restart_of_the_agent_touches_nothing_either(tmp_path: Path) -> None:
    """What is not known to have been written is compared with what is there."""
    pod = pod_with([{"name": "m"} | MAP])
    root = volumes(tmp_path).set_up(pod, sources_of(), NODE)["m"].path
    before = state(root)
    volumes(tmp_path).refresh(pod, sources_of(), NODE)
    assert state(root) == before


@in_new_namespaces()
def test_a_source_that_disappears_leaves_the_files(tmp_path: Path) -> None:
    """A refresh that fails says so, and the volume keeps what it has."""
    pod = pod_with([{"name": "m"} | MAP])
    made = volumes(tmp_path)
    root = made.set_up(pod, sources_of(), NODE)["m"].path
    with pytest.raises(MountFailed) as failed:
        made.refresh(pod, Sources(), NODE)
    assert texts(failed) == ['MountVolume.SetUp failed for volume "m" : configmap "m" not found']
    assert (root / "a").read_text() == "1"


PROJECTED = {
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"serviceAccountToken": {"path": "vault/token", "audience": "vault"}},
            {"configMap": {"name": "m", "items": [{"key": "a", "path": "a"}]}},
            {"secret": {"name": "s"}},
            {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    }
}
TOKENS = {("", 3607): "t1", ("vault", 3600): "t2"}


@in_new_namespaces()
def test_projected_has_all_sources_in_one_directory(tmp_path: Path) -> None:
    """Tokens by audience, a ConfigMap's and a Secret's keys, a field of the pod; not on a disk."""
    pod = pod_with([{"name": "v"} | PROJECTED])
    root = volumes(tmp_path).set_up(pod, sources_of(tokens=TOKENS), NODE)["v"].path
    assert (root / "vault" / "token").read_text() == "t2"
    found = {name: (root / name).read_text() for name in ("token", "a", "key", "ns")}
    assert found == {"token": "t1", "a": "1", "key": SECRET_TEXT, "ns": "default"}
    assert sorted(name for name in os.listdir(root) if not name.startswith("..")) == [*sorted(found), "vault"]
    assert os.statvfs(root).f_fsid != os.statvfs(tmp_path).f_fsid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("security", "users", "expected"),
    [
        ({}, [None], (0, 0, 0o644)),
        ({"runAsUser": 1000}, [None], (1000, 0, 0o600)),
        ({}, [1000, 1000], (1000, 0, 0o600)),
        ({}, [1000, 2000], (0, 0, 0o644)),
        ({}, [1000, None], (0, 0, 0o644)),
        ({"fsGroup": 200}, [None], (0, 200, 0o640)),
        ({"fsGroup": 200, "runAsUser": 1000}, [None], (1000, 200, 0o640)),
    ],
)
@in_new_namespaces()
def test_tokens_belong_to_who_runs_the_containers(
    tmp_path: Path, security: dict[str, Any], users: list[int | None], expected: tuple[int, int, int]
) -> None:
    """One user for all containers owns the token; otherwise everybody may read it, or the pod's group (kubelet)."""
    pod = pod_with([{"name": "v"} | PROJECTED], security=security, users=users)
    root = volumes(tmp_path).set_up(pod, sources_of(tokens=TOKENS), NODE)["v"].path
    assert seen(root / "token") == expected


@in_new_namespaces()
def test_a_rotated_token_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    """Programs that watch see the new token by a changed ..data."""
    pod = pod_with([{"name": "v"} | PROJECTED])
    made = volumes(tmp_path)
    root = made.set_up(pod, sources_of(tokens=TOKENS), NODE)["v"].path
    before = os.readlink(root / "..data")
    assert made.refresh(pod, sources_of(tokens=TOKENS | {("", 3607): "t3"}), NODE) == ["v"]
    assert (root / "token").read_text() == "t3"
    assert os.readlink(root / "..data") != before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("volume", "sources", "message"),
    [
        (PROJECTED, {"tokens": {}}, "failed to fetch token: there is no API server that issues tokens"),
        (
            {"projected": {"sources": [{"configMap": {"name": "x"}}, {"secret": {"name": "y"}}]}},
            {},
            '[configmap "x" not found, secret "y" not found]',
        ),
        (
            {"projected": {"sources": [{"clusterTrustBundle": {"path": "ca", "name": "a"}}]}},
            {},
            "clusterTrustBundle projection is not supported by this node",
        ),
        (
            {"downwardAPI": {"items": [{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]}},
            {},
            "unsupported fieldPath: status.podIP",
        ),
        (
            {
                "downwardAPI": {
                    "items": [{"path": "x", "resourceFieldRef": {"containerName": "z", "resource": "limits.cpu"}}]
                }
            },
            {},
            "container z not found",
        ),
        (
            MAP,
            {"failures": {failure_key("configmap", "m"): "failed to sync configmap cache"}},
            "failed to sync configmap cache",
        ),
    ],
)
@in_new_namespaces()
def test_failures_are_in_a_kubelets_words(
    tmp_path: Path, volume: dict[str, Any], sources: dict[str, Any], message: str
) -> None:
    pod = pod_with([{"name": "v"} | volume])
    given = Sources(**sources) if "failures" in sources else sources_of(**sources)
    with pytest.raises(MountFailed) as failed:
        volumes(tmp_path).set_up(pod, given, NODE)
    assert texts(failed) == [f'MountVolume.SetUp failed for volume "v" : {message}']
    assert failed.value.reason == "FailedMount"


@in_new_namespaces()
def test_every_volume_has_its_event_and_the_others_are_made(tmp_path: Path) -> None:
    """One failure hides no other, and claims that are not ready are told together."""
    pod = pod_with(
        [
            {"name": "a", "configMap": {"name": "x"}},
            {"name": "b", "secret": {"secretName": "y"}},
            {"name": "c", "emptyDir": {}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "e", "nfs": {"server": "s", "path": "/"}},
        ]
    )
    with pytest.raises(MountFailed) as failed:
        volumes(tmp_path).set_up(pod, Sources(), NODE)
    assert texts(failed) == [
        'MountVolume.SetUp failed for volume "a" : configmap "x" not found',
        'MountVolume.SetUp failed for volume "b" : secret "y" not found',
        "Unable to attach or mount volumes: unmounted volumes=[a b d e], unattached volumes=[], "
        "failed to process volumes=[d e]: error processing PVC default/data: failed to fetch PVC from API server: "
        'persistentvolumeclaims "data" not found; failed to get Plugin from volumeSpec for volume "e" '
        "err=no volume plugin matched",
    ]
    assert (tmp_path / "pods/u1/volumes/kubernetes.io~empty-dir/c").is_dir()


@pytest.mark.slow
@in_new_namespaces()
def test_volumes_multiply_no_secret_without_end(tmp_path: Path) -> None:
    """Their files are in the node's memory: each may name one key again and again, and so may thousands of volumes."""
    items = [{"key": "a", "path": str(number)} for number in range(16)]
    names = [f"v{number}" for number in range(6)]
    given = sources_of("x" * (1 << 20))
    pod = pod_with([{"name": name, "configMap": {"name": "m", "items": items}} for name in names])
    made = volumes(tmp_path)
    with pytest.raises(MountFailed) as failed:
        made.set_up(pod, given, NODE)
    why = "the files of all volumes of the pod have more than 67108864 bytes"
    told = [f'MountVolume.SetUp failed for volume "{name}" : {why}' for name in names[4:]]
    assert texts(failed) == told
    assert sorted(path.name for path in (tmp_path / "pods/u1/volumes/kubernetes.io~configmap").iterdir()) == names[:4]
    with pytest.raises(MountFailed) as failed:
        made.refresh(pod, given, NODE)
    assert texts(failed) == told


@in_new_namespaces()
def test_a_volume_that_no_container_uses_is_left_alone(tmp_path: Path) -> None:
    """It does not matter that it cannot be made (kubelet: desired state of world)."""
    pod = pod_with([{"name": "a", "configMap": {"name": "x"}}], mounted=False)
    assert volumes(tmp_path).set_up(pod, Sources(), NODE) == {}


@pytest.mark.requirement("V88", "V93")
@in_new_namespaces()
def test_an_image_volume_of_an_agent_that_does_not_know_them_has_no_plugin(tmp_path: Path) -> None:
    """Container creation fails; never an empty directory in its place."""
    pod = pod_with([{"name": "i", "image": {"reference": "r.example/i:1"}}])
    node = Surroundings(images=False)
    with pytest.raises(MountFailed, match='for volume "i" err=no volume plugin matched'):
        volumes(tmp_path).set_up(pod, Sources(), node)
    assert volumes(tmp_path).set_up(pod, Sources(), Surroundings()) == {}


@in_new_namespaces()
def test_pauses_between_attempts_grow(tmp_path: Path) -> None:
    """Half a second, doubled to two minutes; asking earlier does not make them longer; success forgets."""
    clock = Clock()
    pod = pod_with([{"name": "m"} | MAP])
    made = volumes(tmp_path, clock)

    def pause() -> float:
        with pytest.raises(MountFailed) as failed:
            made.set_up(pod, Sources(), NODE)
        assert failed.value.again is not None
        return failed.value.again

    pauses = []
    for _ in range(10):
        pauses.append(pause())
        assert pause() == pauses[-1]
        clock.now += pauses[-1]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122]
    made.set_up(pod, sources_of(), NODE)
    assert pause() == 0.5


LOCAL = {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}


def claimed(path: Path | str = "", **changes: Any) -> Sources:
    parts = {"claim": claim(), "volume": persistent_volume(local={"path": str(path)})}
    return Sources(claims={("default", "data"): Claim(**(parts | changes))})


@in_new_namespaces()
def test_a_group_of_thousands_of_digits() -> None:
    """An annotation of a volume that is no group ID is told, however long it is."""
    volume = persistent_volume(local={"path": "/data"})
    volume["metadata"]["annotations"] = {"pv.beta.kubernetes.io/gid": "9" * 5000}
    pod = pod_with([LOCAL])
    with pytest.raises(InvalidArgument, match="is not a group ID"):
        claims.PodClaims(pod, claimed(volume=volume)).bound(pod.spec.volumes[0])


class _Counted(tuple[Any, ...]):
    """What counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Any:
        _Counted.walks += 1
        return super().__iter__()


def test_very_many_volumes_of_claims_look_at_mounts_once() -> None:
    """Each looked through all mounts of the pod: of thousands of both, for minutes."""
    pod = pod_with([{**LOCAL, "name": f"d{number}"} for number in range(30)])
    (container,) = pod.spec.containers
    container = structs.replace(container, volume_mounts=_Counted(container.volume_mounts))
    pod = structs.replace(pod, spec=structs.replace(pod.spec, containers=(container,)))
    _Counted.walks = 0
    found = claims.PodClaims(pod, claimed("/data"))
    assert {found.bound(volume).local for volume in pod.spec.volumes} == {"/data"}
    assert _Counted.walks == 1


def test_a_claim_on_a_local_volume(tmp_path: Path) -> None:
    """The pod has the directory, given to its group once; what it or others do to owners later stays."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "old").write_text("x")
    pod = pod_with([LOCAL], security={"fsGroup": 300})
    made = volumes(tmp_path)
    ready = made.set_up(pod, claimed(data), NODE)["d"]
    assert (ready.path, ready.read_only, ready.device) == (data, False, False)
    assert seen(data / "old") == (0, 300, 0o664)
    os.chown(data / "old", 0, 7)
    volumes(tmp_path).set_up(pod, claimed(data), NODE)
    assert seen(data / "old")[1] == 7


@in_new_namespaces()
def test_on_root_mismatch_looks_at_the_root_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 0, 300)
    data.chmod(0o2775)
    (data / "old").write_text("x")
    pod = pod_with([LOCAL], security={"fsGroup": 300, "fsGroupChangePolicy": "OnRootMismatch"})
    volumes(tmp_path).set_up(pod, claimed(data), NODE)
    assert seen(data / "old")[2] == 0o644
    other = pod_with([LOCAL], security={"fsGroup": 301, "fsGroupChangePolicy": "OnRootMismatch"})
    PodVolumes(PodDir(path=tmp_path / "pods" / "u2")).set_up(other, claimed(data), NODE)
    assert seen(data / "old")[1] == 301


PVC = "error processing PVC default/data: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claim": None}, PVC + 'failed to fetch PVC from API server: persistentvolumeclaims "data" not found'),
        ({"claim": claim(phase="Pending")}, PVC + "PVC is not bound"),
        ({"claim": claim(deleted=True)}, PVC + "PVC is being deleted"),
        ({"claim": claim(volume="")}, PVC + "PVC has empty pvc.Spec.VolumeName"),
        ({"volume": None}, PVC + 'failed to fetch PV pv1 from API server: persistentvolumes "pv1" not found'),
        (
            {"volume": persistent_volume(claimRef=None)},
            PVC + "found PV object pv1 but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            {"volume": persistent_volume(claimRef={"uid": "other"})},
            PVC + "found PV object pv1 but its pv.Spec.ClaimRef.UID other does not point to claim.UID c1",
        ),
        (
            {"volume": persistent_volume(volumeMode="Block", local={"path": "/x"})},
            "volume d has volumeMode Block, but is specified in volumeMounts",
        ),
        (
            {"volume": persistent_volume(nfs={"server": "s"})},
            'failed to get Plugin from volumeSpec for volume "pv1" err=no volume plugin matched',
        ),
    ],
)
@in_new_namespaces()
def test_claims_that_are_not_ready(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MountFailed) as failed:
        volumes(tmp_path).set_up(pod_with([LOCAL]), claimed("/", **changes), NODE)
    assert texts(failed) == [
        "Unable to attach or mount volumes: unmounted volumes=[d], unattached volumes=[], "
        f"failed to process volumes=[d]: {message}"
    ]


AFFINITY = {
    "required": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
        ]
    }
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("volume", "message"),
    [
        (
            persistent_volume(local={"path": "/x"}, nodeAffinity=AFFINITY),
            'MountVolume.NodeAffinity check failed for volume "pv1" : no matching NodeSelectorTerms',
        ),
        (
            persistent_volume(hostPath={"path": "/x"}, mountOptions=["ro"]),
            'MountVolume.MountOptionSupport check failed for volume "pv1" : '
            "mount options are not supported for this volume type",
        ),
        (
            persistent_volume(hostPath={"path": "/dev/null", "type": "Directory"}),
            'MountVolume.SetUp failed for volume "pv1" : hostPath type check failed: /dev/null is not a directory',
        ),
        (
            persistent_volume(local={"path": "/dev/no/such"}),
            'MountVolume.NewMounter initialization failed for volume "pv1" : path "/dev/no/such" does not exist',
        ),
        (
            persistent_volume(local={"path": "/dev/null/x"}),
            'MountVolume.SetUp failed for volume "pv1" : /dev/null/x: Not a directory',
        ),
        (
            persistent_volume(local={"path": "/dev/null"}),
            'MountVolume.SetUp failed for volume "pv1" : only directory and block device are supported',
        ),
    ],
)
@in_new_namespaces()
def test_volumes_that_must_not_be_mounted_here(tmp_path: Path, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(MountFailed) as failed:
        volumes(tmp_path).set_up(pod_with([LOCAL]), claimed(volume=volume), NODE)
    assert texts(failed) == [message]


@in_new_namespaces()
def test_one_pod_at_a_time_has_a_read_write_once_pod_volume(tmp_path: Path) -> None:
    """Another one gets it when the directory of the first is gone; others may share one that is not exclusive."""
    data = tmp_path / "data"
    data.mkdir()
    alone = claimed(volume=persistent_volume(local={"path": str(data)}, accessModes=["ReadWriteOncePod"]))
    first, second = (PodVolumes(PodDir(path=tmp_path / "pods" / uid)) for uid in ("u1", "u2"))
    (tmp_path / "pods/u2").mkdir(parents=True)
    first.set_up(pod_with([LOCAL]), alone, NODE)
    with pytest.raises(MountFailed) as failed:
        second.set_up(pod_with([LOCAL]), alone, NODE)
    assert texts(failed) == [
        'MountVolume.SetUp failed for volume "pv1" : volume uses the ReadWriteOncePod access mode and is already in '
        "use by another pod"
    ]
    os.rename(tmp_path / "pods/u1", tmp_path / "gone")
    assert second.set_up(pod_with([LOCAL]), alone, NODE)["d"].path == data


@in_new_namespaces()
def test_an_ephemeral_claim_must_be_the_pods_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    volume = {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}
    pv = persistent_volume(local={"path": str(data)})

    def sources(owner: str) -> Sources:
        return Sources(claims={("default", "web-e"): Claim(claim=claim(name="web-e", owner=owner), volume=pv)})

    assert volumes(tmp_path).set_up(pod_with([volume]), sources("u1"), NODE)["e"].path == data
    with pytest.raises(MountFailed, match="PVC default/web-e was not created for pod default/web"):
        volumes(tmp_path).set_up(pod_with([volume]), sources("u9"), NODE)
