"""PersistentVolumes, claims and storage classes."""

from __future__ import annotations

from typing import Any

import pytest

from podkeep.api import names
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.storage import persistent_volume_claims, persistent_volumes, storage_classes
from support import kinds

(VOLUMES,) = persistent_volumes.RESOURCES
(CLAIMS,) = persistent_volume_claims.RESOURCES
(CLASSES,) = storage_classes.RESOURCES
UPPER = names.dns_subdomain("A")
AFFINITY = {
    "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}
}
IMMUTABLE_SPEC = (
    "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for"
    " bound claims"
)


def volume(**fields: Any) -> dict[str, Any]:
    """Return a volume that is right, or with changes in its spec; a source replaces its own."""
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    if "hostPath" not in fields and not fields.keys() & {"none", *SOURCES}:
        spec["hostPath"] = {"path": "/a"}
    fields.pop("none", None)
    return {"spec": {name: item for name, item in (spec | fields).items() if item is not None}}


SOURCES: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "hostPath": [
        ({}, ["spec.hostPath.path: Required value"]),
        ({"path": "/a/.."}, ["spec.hostPath.path: Invalid value: \"/a/..\": must not contain '..'"]),
        (
            {"path": "/a", "type": "Dir"},
            [
                'spec.hostPath.type: Unsupported value: "Dir": supported values: "", "BlockDevice", "CharDevice",'
                ' "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"'
            ],
        ),
    ],
    "gcePersistentDisk": [
        (
            {"partition": 256},
            [
                "spec.persistentDisk.pdName: Required value",
                "spec.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ],
        )
    ],
    "awsElasticBlockStore": [({}, ["spec.awsElasticBlockStore.volumeID: Required value"])],
    "glusterfs": [
        ({}, ["spec.glusterfs.endpoints: Required value", "spec.glusterfs.path: Required value"]),
        (
            {"endpoints": "a", "path": "b", "endpointsNamespace": ""},
            [
                'spec.glusterfs.endpointsNamespace: Invalid value: "": if the endpointnamespace is set, it must be a'
                " valid namespace name"
            ],
        ),
        (
            {"endpoints": "a", "path": "b", "endpointsNamespace": "A"},
            [f'spec.glusterfs.endpointsNamespace: Invalid value: "A": {names.dns_label("A")}'],
        ),
    ],
    "flocker": [({}, ["spec.flocker: Required value: one of datasetName and datasetUUID is required"])],
    "nfs": [
        (
            {"server": "a", "path": "b"},
            ['spec.nfs.path: Invalid value: "b": must be an absolute path'],
        )
    ],
    "rbd": [({}, ["spec.rbd.monitors: Required value", "spec.rbd.image: Required value"])],
    "quobyte": [
        (
            {"registry": "a", "volume": "b"},
            [
                'spec.quobyte.registry: Invalid value: "a": must be a host:port pair or multiple pairs separated by'
                " commas"
            ],
        )
    ],
    "cephfs": [({}, ["spec.cephfs.monitors: Required value"])],
    "iscsi": [
        (
            {"targetPortal": "a", "iqn": "iqn.2001-04.com.example:a", "lun": 256, "secretRef": {}},
            [
                "spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
                "spec.iscsi.secretRef.name: Required value",
            ],
        ),
        (
            {"targetPortal": "p" * 64, "iqn": "naa." + "a" * 32, "initiatorName": "iqn.2001-04.com.example:a"},
            [
                f'spec.iscsi.targetportal: Invalid value: "{"p" * 64}": Total length of <volume'
                " name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."
            ],
        ),
    ],
    "cinder": [
        ({}, ["spec.cinder.volumeID: Required value"]),
        (
            {"volumeID": "a", "secretRef": {}},
            ["spec.cinder.secretRef.name: Required value", "spec.cinder.secretRef.namespace: Required value"],
        ),
    ],
    "fc": [({}, ["spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"])],
    "flexVolume": [
        (
            {"options": {"a.kubernetes.io/b": "c"}},
            [
                "spec.flexVolume.driver: Required value",
                'spec.flexVolume.options[a.kubernetes.io/b]: Invalid value: "a.kubernetes.io/b": kubernetes.io and'
                " k8s.io namespaces are reserved",
            ],
        )
    ],
    "azureFile": [
        (
            {"secretNamespace": ""},
            [
                "spec.azureFile.secretName: Required value",
                "spec.azureFile.shareName: Required value",
                "spec.azureFile.secretNamespace: Required value",
            ],
        )
    ],
    "vsphereVolume": [({}, ["spec.vsphereVolume.volumePath: Required value"])],
    "photonPersistentDisk": [({}, ["spec.photonPersistentDisk.pdID: Required value"])],
    "portworxVolume": [({}, ["spec.portworxVolume.volumeID: Required value"])],
    "azureDisk": [
        (
            {"diskName": "a", "diskURI": "b"},
            [
                'spec.azureDisk.diskURI: Unsupported value: "b": supported values:'
                ' "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"'
            ],
        )
    ],
    "scaleIO": [
        (
            {},
            [
                "spec.scaleIO.gateway: Required value",
                "spec.scaleIO.system: Required value",
                "spec.scaleIO.volumeName: Required value",
            ],
        )
    ],
    "local": [
        (
            {"path": "a/../b"},
            [
                "spec.local.path: Invalid value: \"a/../b\": must not contain '..'",
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ],
        )
    ],
    "storageos": [
        ({}, ["spec.storageos.volumeName: Required value"]),
        (
            {"volumeName": "a", "secretRef": {"name": "b"}},
            ["spec.storageos.secretRef.namespace: Required value"],
        ),
    ],
    "csi": [
        (
            {"nodeStageSecretRef": {"name": "a", "namespace": "b"}, "nodeExpandSecretRef": {"name": "A"}},
            [
                "spec.csi.driver: Required value",
                "spec.csi.volumeHandle: Required value",
                f'spec.csi.nodeExpandSecretRef.name: Invalid value: "A": {UPPER}',
                "spec.csi.nodeExpandSecretRef.namespace: Required value",
            ],
        ),
        (
            {"driver": "a_b", "volumeHandle": "c"},
            [f'spec.csi.driver: Invalid value: "a_b": {names.dns_subdomain("a_b")}'],
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [(kind, source, expected) for kind, cases in SOURCES.items() for source, expected in cases],
)
def test_what_is_wrong_with_the_source_of_a_volume(kind: str, source: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(VOLUMES, volume(**{kind: source})) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (volume(), []),
        (volume(none=True), ["spec: Required value: must specify a volume type"]),
        (
            volume(hostPath={"path": "/a"}, cephfs={}),
            ["spec.cephFS: Forbidden: may not specify more than 1 volume type"],
        ),
        (volume(accessModes=None), ["spec.accessModes: Required value"]),
        (
            volume(accessModes=["Some"]),
            [
                'spec.accessModes: Unsupported value: "Some": supported values: "ReadOnlyMany", "ReadWriteMany",'
                ' "ReadWriteOnce", "ReadWriteOncePod"'
            ],
        ),
        (
            volume(accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
            ["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
        ),
        (
            volume(capacity=None),
            [
                "spec.capacity: Required value",
                'spec.capacity: Unsupported value: null: supported values: "storage"',
            ],
        ),
        (
            volume(capacity={"storage": "-1", "cpu": "1"}),
            [
                'spec.capacity: Unsupported value: {"storage":"-1","cpu":"1"}: supported values: "storage"',
                "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                'spec.capacity[storage]: Invalid value: "-1": must be greater than zero',
            ],
        ),
        (
            volume(persistentVolumeReclaimPolicy="Keep"),
            [
                'spec.persistentVolumeReclaimPolicy: Unsupported value: "Keep": supported values: "Delete", "Recycle",'
                ' "Retain"'
            ],
        ),
        (
            volume(hostPath={"path": "//"}, persistentVolumeReclaimPolicy="Recycle"),
            ["spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"],
        ),
        (
            volume(nodeAffinity={}),
            ["spec.nodeAffinity.required: Required value: must specify required node constraints"],
        ),
        (
            volume(nodeAffinity={"required": {"nodeSelectorTerms": []}}),
            ["spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term"],
        ),
        (volume(storageClassName="A"), [f'spec.storageClassName: Invalid value: "A": {UPPER}']),
        (
            volume(volumeMode="Tape"),
            ['spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem"'],
        ),
        (
            volume(volumeAttributesClassName=""),
            [
                "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
                "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
            ],
        ),
        (
            volume(csi={"driver": "a", "volumeHandle": "b"}, volumeAttributesClassName="A"),
            [f'spec.volumeAttributesClassName: Invalid value: "A": {UPPER}'],
        ),
        (
            volume() | {"metadata": {"annotations": {persistent_volumes.MOUNT_OPTIONS: "ro"}}},
            [
                "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options"
                " for this volume type"
            ],
        ),
        (
            volume(nfs={"server": "a", "path": "/"})
            | {"metadata": {"annotations": {persistent_volumes.MOUNT_OPTIONS: "ro"}}},
            [],
        ),
    ],
)
def test_what_is_wrong_with_a_volume(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(VOLUMES, value) == expected


CSI = {"driver": "a", "volumeHandle": "b"}


@pytest.mark.parametrize(
    ("old", "changes", "expected"),
    [
        (volume(), {"capacity": {"storage": "2Gi"}, "mountOptions": ["ro"]}, []),
        (
            volume(),
            {"hostPath": {"path": "/b"}},
            ["spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"],
        ),
        (volume(csi=CSI), {"csi": {"controllerExpandSecretRef": {"name": "a", "namespace": "b"}}}, []),
        (volume(), {"volumeMode": "Block"}, ['volumeMode: Invalid value: "Block": field is immutable']),
        (volume(), {"nodeAffinity": AFFINITY}, []),
        (
            volume(nodeAffinity=AFFINITY),
            {"nodeAffinity": None},
            ["nodeAffinity: Invalid value: null: field is immutable, except for updating from beta label to GA"],
        ),
        (
            volume(csi=CSI, volumeAttributesClassName="a"),
            {"volumeAttributesClassName": None},
            ["spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"],
        ),
    ],
)
def test_what_an_update_of_a_volume_may_change(
    old: dict[str, Any], changes: dict[str, Any], expected: list[str]
) -> None:
    assert kinds.update_problems(VOLUMES, old, {"spec": changes}) == expected


def test_an_affinity_may_change_to_the_new_names_of_labels() -> None:
    def affinity(key: str) -> dict[str, Any]:
        expressions = [{"key": key, "operator": "In", "values": ["linux"]}]
        return {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}

    old = volume(nodeAffinity=affinity("beta.kubernetes.io/os"))
    assert kinds.update_problems(VOLUMES, old, {"spec": {"nodeAffinity": affinity("kubernetes.io/os")}}) == []
    assert kinds.warnings(VOLUMES, old) == [
        "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated"
        ' since v1.14; use "kubernetes.io/os" instead'
    ]


def test_defaults_of_a_volume() -> None:
    new = kinds.created(VOLUMES, volume(capacity={"storage": "100u"}))
    assert new["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert new["spec"]["volumeMode"] == "Filesystem"
    assert new["spec"]["capacity"] == {"storage": "1m"}
    assert new["spec"]["hostPath"] == {"path": "/a", "type": ""}
    assert new["status"] == {"phase": "Pending", "lastPhaseTransitionTime": "2026-11-23T11:00:00Z"}


def test_when_the_phase_of_a_volume_changed_is_noted() -> None:
    old = kinds.created(VOLUMES, volume())
    prepare = VOLUMES.strategy.prepare_status
    same = {"status": {"phase": "Pending"}}
    prepare(same, old)
    assert same["status"]["lastPhaseTransitionTime"] == "2026-11-23T11:00:00Z"
    given = {"status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-11-23T10:00:00Z"}}
    prepare(given, old)
    assert given["status"]["lastPhaseTransitionTime"] == "2026-11-23T10:00:00Z"
    changed = {"status": {"phase": "Bound"}}
    prepare(changed, old)
    assert changed["status"]["lastPhaseTransitionTime"] != "2026-11-23T11:00:00Z"


def test_warnings_of_volumes() -> None:
    value = volume(persistentVolumeReclaimPolicy="Recycle", rbd={"monitors": ["a"], "image": "b"})
    value["metadata"] = {
        "annotations": {"volume.beta.kubernetes.io/storage-class": "a", persistent_volumes.MOUNT_OPTIONS: "ro"}
    }
    assert kinds.warnings(VOLUMES, value) == [
        "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use"
        ' "storageClassName" attribute instead',
        "metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use"
        ' "mountOptions" attribute instead',
        "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended"
        " approach is to use dynamic provisioning.",
        "spec.rbd: deprecated in v1.28, non-functional in v1.31+",
    ]


def test_the_row_of_a_volume() -> None:
    value = kinds.created(VOLUMES, volume(claimRef={"namespace": "b", "name": "c"}, storageClassName="slow"))
    assert kinds.table(VOLUMES, value) == {
        "Name": "a",
        "Capacity": "1Gi",
        "Access Modes": "RWO",
        "Reclaim Policy": "Retain",
        "Status": "Pending",
        "Claim": "b/c",
        "StorageClass": "slow",
        "VolumeAttributesClass": "<unset>",
        "Reason": "",
        "Age": "60m",
        "(VolumeMode)": "Filesystem",
    }


def claim(**fields: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"spec": {name: item for name, item in (spec | fields).items() if item is not None}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (claim(), []),
        (
            claim(accessModes=None, resources=None),
            [
                "spec.accessModes: Required value: at least 1 access mode is required",
                "spec.resources[storage]: Required value",
            ],
        ),
        (
            claim(resources={"requests": {"storage": "0"}}),
            ['spec.resources[storage]: Invalid value: "0": must be greater than zero'],
        ),
        (claim(storageClassName="A"), [f'spec.storageClassName: Invalid value: "A": {UPPER}']),
        (claim(storageClassName=""), []),
        (
            claim(dataSourceRef={"kind": "Other", "name": ""}),
            [
                "spec.dataSource.name: Required value",
                "spec.dataSource: Invalid value: \"Other\": must be 'PersistentVolumeClaim' when referencing the"
                " default apiGroup",
                "spec.dataSourceRef.name: Required value",
                "spec.dataSourceRef: Invalid value: \"Other\": must be 'PersistentVolumeClaim' when referencing the"
                " default apiGroup",
            ],
        ),
        (
            claim(
                dataSource={"kind": "PersistentVolumeClaim", "name": "b"},
                dataSourceRef={"kind": "PersistentVolumeClaim", "name": "c"},
            ),
            ['spec: Invalid value: "spec.dataSource": must match dataSourceRef'],
        ),
        (
            claim(selector={"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            ['spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator'],
        ),
    ],
)
def test_what_is_wrong_with_a_claim(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(CLAIMS, value) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dataSource": {"kind": "Other", "name": "b"}}, {}),
        (
            {"dataSource": {"kind": "PersistentVolumeClaim", "name": "b"}},
            {key: {"kind": "PersistentVolumeClaim", "name": "b"} for key in ("dataSource", "dataSourceRef")},
        ),
        (
            {"dataSourceRef": {"apiGroup": "a.b", "kind": "C", "name": "d"}},
            {key: {"apiGroup": "a.b", "kind": "C", "name": "d"} for key in ("dataSource", "dataSourceRef")},
        ),
        ({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b", "namespace": "c"}}, {}),
    ],
)
def test_two_names_of_the_source_of_a_claim(given: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = kinds.created(CLAIMS, claim(**given))["spec"]
    assert {name: item for name, item in spec.items() if name.startswith("data")} == expected


@pytest.mark.parametrize(
    ("old", "changes", "expected"),
    [
        (claim(), {"metadata": {"labels": {"a": "b"}}}, []),
        (claim(), {"spec": {"volumeName": "v"}}, []),
        (claim(volumeName="v"), {"spec": {"volumeName": "w"}}, [IMMUTABLE_SPEC]),
        (claim(), {"spec": {"storageClassName": "a"}}, []),
        (claim(storageClassName="a"), {"spec": {"storageClassName": "b"}}, [IMMUTABLE_SPEC]),
        (claim(), {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, [IMMUTABLE_SPEC]),
        (
            claim(),
            {"spec": {"volumeMode": "Block"}},
            [IMMUTABLE_SPEC, 'volumeMode: Invalid value: "Block": field is immutable'],
        ),
        (
            claim(),
            {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "a"}}},
            ['metadata.annotations.volume.beta.kubernetes.io/storage-class: Invalid value: "a": field is immutable'],
        ),
        (
            claim() | {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "a"}}},
            {"spec": {"storageClassName": "a"}},
            [],
        ),
        (
            claim() | {"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "a"}}},
            {"spec": {"storageClassName": "b"}},
            [IMMUTABLE_SPEC],
        ),
    ],
)
def test_what_an_update_of_a_claim_may_change(
    old: dict[str, Any], changes: dict[str, Any], expected: list[str]
) -> None:
    assert kinds.update_problems(CLAIMS, old, changes) == expected


@pytest.mark.parametrize(
    ("size", "attributes", "expected"),
    [
        ("3Gi", "b", []),
        ("1500Mi", "b", []),
        ("1Gi", "b", ["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"]),
        (
            "2Gi",
            None,
            [
                "spec.volumeAttributesClassName: Forbidden: update to nil is forbidden when"
                " status.currentVolumeAttributesClassName is not nil"
            ],
        ),
        (
            "2Gi",
            "",
            [
                "spec.volumeAttributesClassName: Forbidden: update to empty string is forbidden when"
                " status.currentVolumeAttributesClassName is not nil"
            ],
        ),
    ],
)
def test_a_bound_claim_may_grow_and_change_its_attributes(
    size: str, attributes: str | None, expected: list[str]
) -> None:
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "a"}
    old = kinds.created(CLAIMS, claim(volumeName="v", volumeAttributesClassName="a"))
    old["spec"]["resources"]["requests"]["storage"] = "2Gi"
    old["status"] = status
    changes = {"spec": {"resources": {"requests": {"storage": size}}, "volumeAttributesClassName": attributes}}
    new, errors = kinds.merged(old, changes), FieldErrors()
    CLAIMS.strategy.validate_update(new, old, errors)
    assert [str(error) for error in errors.found] == expected


def test_the_status_of_a_claim() -> None:
    given = {
        "capacity": {"storage": "-1"},
        "allocatedResourceStatuses": {"cpu": "Growing", "storage": "NodeResizePending"},
        "allocatedResources": {"cpu": "1", "storage": "-1"},
    }
    known = (
        '"ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible",'
        ' "NodeResizePending"'
    )
    assert kinds.status_problems(CLAIMS, claim(), given) == [
        "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
        'status.allocatedResourceStatuses: Unsupported value: "cpu": supported values: "storage"',
        f'status.allocatedResourceStatuses: Unsupported value: "cpu": supported values: {known}',
        'status.allocatedResources: Unsupported value: "cpu": supported values: "storage"',
        'status.allocatedResources[storage]: Invalid value: "-1": must be greater than or equal to 0',
    ]


def test_warnings_of_claims() -> None:
    value = claim(resources={"requests": {"storage": "1500m"}, "limits": {"storage": "1"}})
    value["metadata"] = {"annotations": {"volume.beta.kubernetes.io/storage-class": "a"}}
    assert kinds.warnings(CLAIMS, value) == [
        "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use"
        ' "storageClassName" attribute instead',
        'spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer',
    ]


def test_the_row_of_a_claim() -> None:
    value = kinds.created(CLAIMS, claim(volumeName="v", storageClassName="slow"))
    value["status"] = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"]}
    row = kinds.table(CLAIMS, value)
    assert row == {
        "Name": "a",
        "Status": "Bound",
        "Volume": "v",
        "Capacity": "1Gi",
        "Access Modes": "ROX",
        "StorageClass": "slow",
        "VolumeAttributesClass": "<unset>",
        "Age": "60m",
        "(VolumeMode)": "Filesystem",
    }
    value["metadata"]["deletionTimestamp"] = "2026-11-23T11:00:00Z"
    del value["spec"]["volumeName"]
    row = kinds.table(CLAIMS, value)
    assert (row["Status"], row["Capacity"], row["Access Modes"]) == ("Terminating", "", "")


def storage_class(**fields: Any) -> dict[str, Any]:
    return {"provisioner": "example.com/a"} | fields


def topology(*values: str, key: str = "a") -> dict[str, Any]:
    return {"matchLabelExpressions": [{"key": key, "values": list(values)}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (storage_class(), []),
        (storage_class(provisioner=""), ["provisioner: Required value"]),
        (storage_class(provisioner="-/A"), [f'provisioner: Invalid value: "-/a": {names.label_key("-/a")}']),
        (storage_class(parameters={"": "a"}), ['parameters: Invalid value: "": field can not be empty.']),
        (
            storage_class(parameters={str(number): "" for number in range(513)}),
            ["parameters: Too long: may not be more than 512 bytes"],
        ),
        (
            storage_class(parameters={"a": "b" * (256 << 10)}),
            ["parameters: Too long: may not be more than 262144 bytes"],
        ),
        (
            storage_class(reclaimPolicy="Recycle"),
            ['reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"'],
        ),
        (
            storage_class(volumeBindingMode="Never"),
            ['volumeBindingMode: Unsupported value: "Never": supported values: "Immediate", "WaitForFirstConsumer"'],
        ),
        (
            storage_class(allowedTopologies=[topology("b", "b"), topology("b"), topology(key="-")]),
            [
                'allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: "b"',
                'allowedTopologies[1].matchLabelExpressions: Duplicate value: ""',
                "allowedTopologies[2].matchLabelExpressions[0].values: Required value",
                'allowedTopologies[2].matchLabelExpressions[0].key: Invalid value: "-": ' + names.label_key("-"),
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_storage_class(value: dict[str, Any], expected: list[str]) -> None:
    assert kinds.problems(CLASSES, value) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"allowVolumeExpansion": True}, []),
        ({"parameters": {"a": "b"}}, ['parameters: Invalid value: {"a":"b"}: field is immutable']),
        ({"provisioner": "b.c/d"}, ['provisioner: Invalid value: "b.c/d": field is immutable']),
        ({"reclaimPolicy": "Retain"}, ['reclaimPolicy: Invalid value: "Retain": field is immutable']),
        (
            {"volumeBindingMode": "WaitForFirstConsumer"},
            ['volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable'],
        ),
    ],
)
def test_what_an_update_of_a_storage_class_may_change(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds.update_problems(CLASSES, storage_class(), changes) == expected


def test_the_row_of_a_storage_class() -> None:
    value = storage_class(metadata={"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}})
    assert kinds.table(CLASSES, kinds.created(CLASSES, value)) == {
        "Name": "a (default)",
        "Provisioner": "example.com/a",
        "ReclaimPolicy": "Delete",
        "VolumeBindingMode": "Immediate",
        "AllowVolumeExpansion": False,
        "Age": "60m",
    }
    assert kinds.warnings(CLASSES, storage_class(allowedTopologies=[topology("b", key="beta.kubernetes.io/os")])) == [
        'allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.14; use "kubernetes.io/os" instead'
    ]
