"""Which other objects a pod or a volume names (kubernetes: ``pkg/api/pod``, ``pkg/api/v1/persistentvolume``). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that stands for a static one of a node."""
_POD_SECRET_REFS = {
    "cephfs": "secretRef",
    "cinder": "secretRef",
    "flexVolume": "secretRef",
    "rbd": "secretRef",
    "scaleIO": "secretRef",
    "iscsi": "secretRef",
    "storageos": "secretRef",
    "csi": "nodePublishSecretRef",
}
_CLAIMED_SECRET_REFS = ("cephfs", "flexVolume", "rbd", "scaleIO", "iscsi")
"""Volumes whose secret is in the namespace of the claim if they name none."""
_OWN_SECRET_REFS = ("cinder", "storageos")
_CSI_SECRET_REFS = ("nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef")
_LOCAL_VOLUMES = frozenset(
    "awsElasticBlockStore azureDisk cephfs cinder downwardAPI emptyDir fc flexVolume flocker gcePersistentDisk gitRepo"
    " hostPath image iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos vsphereVolume".split()
)
_API_VOLUMES = {
    "configMap": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
}
_API_SOURCES = {
    "configMap": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


def is_mirror(pod: Mapping[str, Any]) -> bool:
    return MIRROR in pod.get("metadata", {}).get("annotations", {})


def containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every container of a pod: init, main, then ephemeral ones."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind, ())


def _environment(spec: Mapping[str, Any], whole: str, key: str) -> Iterator[str]:
    for container in containers(spec):
        for source in container.get("envFrom", ()):
            yield source.get(whole, {}).get("name", "")
        for variable in container.get("env", ()):
            yield variable.get("valueFrom", {}).get(key, {}).get("name", "")


def _projected(volume: Mapping[str, Any], kind: str) -> Iterator[str]:
    for source in volume.get("projected", {}).get("sources", ()):
        yield source.get(kind, {}).get("name", "")


def secrets(pod: Mapping[str, Any]) -> Iterator[str]:
    spec = pod.get("spec", {})
    yield from filter(None, (item.get("name") for item in spec.get("imagePullSecrets", ())))
    yield from filter(None, _environment(spec, "secretRef", "secretKeyRef"))
    for volume in spec.get("volumes", ()):
        yield from filter(None, _projected(volume, "secret"))
        for field in ("secret", "azureFile"):
            yield from filter(None, [volume.get(field, {}).get("secretName")])
        for field, ref in _POD_SECRET_REFS.items():
            if field in volume:
                yield from filter(None, [volume[field].get(ref, {}).get("name")])


def config_maps(pod: Mapping[str, Any]) -> Iterator[str]:
    spec = pod.get("spec", {})
    yield from filter(None, _environment(spec, "configMapRef", "configMapKeyRef"))
    for volume in spec.get("volumes", ()):
        yield from filter(None, _projected(volume, "configMap"))
        yield from filter(None, [volume.get("configMap", {}).get("name")])


def claims(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of every claim that a pod names; that of an ephemeral volume follows from the pod's."""
    for volume in pod.get("spec", {}).get("volumes", ()):
        if name := volume.get("persistentVolumeClaim", {}).get("claimName"):
            yield name
        elif "ephemeral" in volume:
            yield f"{pod['metadata']['name']}-{volume['name']}"


def volume_secrets(volume: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of every secret that a node needs for a PersistentVolume."""
    spec = volume.get("spec", {})
    own = spec.get("claimRef", {}).get("namespace", "")
    found: list[tuple[str, str]] = []
    azure = spec.get("azureFile", {})
    found.append((azure.get("secretNamespace") or own, azure.get("secretName", "")))
    for field in (*_CLAIMED_SECRET_REFS, *_OWN_SECRET_REFS):
        ref = spec.get(field, {}).get("secretRef", {})
        default = own if field in _CLAIMED_SECRET_REFS else ""
        found.append((ref.get("namespace") or default, ref.get("name", "")))
    for field in _CSI_SECRET_REFS:
        ref = spec.get("csi", {}).get(field, {})
        found.append((ref.get("namespace", ""), ref.get("name", "")))
    yield from ((namespace, name) for namespace, name in found if name)


def api_reference(pod: Mapping[str, Any]) -> str:
    """Return what a pod names that the API has, as messages call it; empty: nothing.

    A volume of a type that is not known counts as such.
    """
    spec = pod.get("spec", {})
    if spec.get("serviceAccountName"):
        return "serviceaccounts"
    for resource, names in (("secrets", secrets(pod)), ("configmaps", config_maps(pod))):
        if next(names, None) is not None:
            return resource
    if spec.get("resourceClaims"):
        return "resourceclaims"
    return next(filter(None, map(_volume_reference, spec.get("volumes", ()))), "")


def _volume_reference(volume: Mapping[str, Any]) -> str:
    for field in volume.keys() - {"name"} - _LOCAL_VOLUMES:
        if field != "projected":
            return _API_VOLUMES.get(field, f"unknown volume type for volume {volume.get('name')}")
        for source in volume["projected"].get("sources", ()):
            for kind in source.keys() - {"downwardAPI"}:
                return _API_SOURCES.get(kind, f"unknown source for projected volume {volume.get('name')}")
    return ""
