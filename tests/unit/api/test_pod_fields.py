"""docs/pod-fields.md says of every field of a Pod what is so: each is tried."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import msgspec
import pytest

from podkeep.api import manifest
from podkeep.api.containers import Container, ContainerPort, EnvVarSource, ResourceRequirements, SecurityContext
from podkeep.api.containers import VolumeMount as Mount
from podkeep.api.pod import PodSecurityContext, PodSpec
from podkeep.api.scheduling import Affinity
from podkeep.api.support import REFUSED
from podkeep.api.volumes import (
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    KeyToPath,
    SecretVolumeSource,
    Volume,
)
from podkeep.base.errors import InvalidArgument
from support.documents import ROOT

PAGE = ROOT / "docs" / "pod-fields.md"
STATES = {"works", "refused", "ignored"}
_ROW = re.compile(r"\| `([^`]+)` \| (\w+) \| ([\w.]+) \| (.*) \|")
C, V, M = "spec.containers[0].", "spec.volumes[0].", "spec.containers[0].volumeMounts[0]."
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TYPES: dict[str, type[msgspec.Struct]] = {
    "spec.": PodSpec,
    "spec.affinity.": Affinity,
    "spec.resources.": ResourceRequirements,
    "spec.securityContext.": PodSecurityContext,
    C: Container,
    f"{C}securityContext.": SecurityContext,
    f"{C}resources.": ResourceRequirements,
    f"{C}ports[0].": ContainerPort,
    f"{C}env[0].valueFrom.": EnvVarSource,
    M: Mount,
    V: Volume,
    f"{V}configMap.": ConfigMapVolumeSource,
    f"{V}configMap.items[0].": KeyToPath,
    f"{V}emptyDir.": EmptyDirVolumeSource,
    f"{V}hostPath.": HostPathVolumeSource,
    f"{V}image.": ImageVolumeSource,
    f"{V}secret.": SecretVolumeSource,
}
"""Where every field is in the page. What is below a field that is refused as a whole is not."""
PROBE = {"exec": {"command": ["true"]}}
SAMPLES: dict[str, Any] = {
    "spec.volumes": [{"name": "v"}],
    "spec.initContainers": [{"name": "i", "image": "i"}],
    "spec.containers": [{"name": "c", "image": "i"}],
    "spec.ephemeralContainers": [{"name": "e", "image": "i"}],
    "spec.serviceAccountName": "other",
    "spec.serviceAccount": "other",
    "spec.serviceAccountName: default": "default",
    "spec.automountServiceAccountToken: false": False,
    "spec.hostUsers": False,
    "spec.setHostnameAsFQDN": True,
    "spec.imagePullSecrets": [{"name": "s"}],
    "spec.hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "spec.dnsConfig": {"searches": ["a"]},
    "spec.os": {"name": "linux"},
    "spec.os.name: windows": "windows",
    "spec.overhead": {"cpu": "1"},
    "spec.resources": {"limits": {}},
    "spec.resources.limits": {"cpu": "1"},
    "spec.resources.requests": {"cpu": "1"},
    "spec.resources.classes": {},
    "spec.resources.claims": [{"name": "a"}],
    "spec.securityContext": {"runAsUser": 1},
    "spec.tolerations": [{"key": "a", "operator": "Exists"}],
    "spec.readinessGates": [{"conditionType": "a"}],
    "spec.affinity": {},
    f"spec.affinity.nodeAffinity.{REQUIRED}": {"nodeSelectorTerms": []},
    f"spec.affinity.podAffinity.{REQUIRED}": [{"topologyKey": "a"}],
    f"spec.affinity.podAntiAffinity.{REQUIRED}": [{"topologyKey": "a"}],
    f"spec.affinity.nodeAffinity.{PREFERRED}": [{"weight": 1}],
    f"spec.affinity.podAffinity.{PREFERRED}": [{"weight": 1}],
    f"spec.affinity.podAntiAffinity.{PREFERRED}": [{"weight": 1}],
    "spec.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway"}],
    "spec.topologySpreadConstraints[0].whenUnsatisfiable: DoNotSchedule": "DoNotSchedule",
    "spec.securityContext.sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
    "spec.securityContext.seccompProfile": {"type": "RuntimeDefault"},
    "spec.securityContext.appArmorProfile": {"type": "Unconfined"},
    "spec.securityContext.seLinuxOptions": {"level": "s0"},
    "spec.securityContext.windowsOptions": {"hostProcess": False},
    f"{C}envFrom": [{"configMapRef": {"name": "m"}}],
    f"{C}env": [{"name": "A", "value": "b"}],
    f"{C}terminationMessagePath": "/x",
    f"{C}ports": [{"containerPort": 80}],
    f"{C}ports[0].hostPort": 80,
    f"{C}ports[0].containerPort": 80,
    f"{C}livenessProbe": PROBE,
    f"{C}readinessProbe": PROBE,
    f"{C}startupProbe": PROBE,
    f"{C}lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    f"{C}resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    f"{C}restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
    f"{C}ports[0].hostIP": "10.0.0.1",
    f"{V}downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]},
    f"{V}projected": {"sources": [{"configMap": {"name": "m"}}]},
    f"{V}persistentVolumeClaim": {"claimName": "c"},
    f"{C}volumeMounts": [{"name": "v", "mountPath": "/v"}],
    f"{C}volumeDevices": [{"name": "v", "devicePath": "/dev/v"}],
    f"{C}securityContext.seccompProfile": {"type": "RuntimeDefault"},
    f"{C}securityContext.appArmorProfile": {"type": "Unconfined"},
    f"{C}securityContext.seLinuxOptions": {"level": "s0"},
    f"{C}securityContext.windowsOptions": {"hostProcess": False},
    f"{C}securityContext.procMount": "Default",
    f"{C}resources.limits": {"cpu": "1", "memory": "1Gi"},
    f"{C}resources.requests": {"cpu": "1", "memory": "1Gi"},
    f"{C}resources.classes": {},
    f"{C}resources.claims": [{"name": "a"}],
    f"{C}resources.limits[ephemeral-storage]": "1Gi",
    f"{C}resources.requests[ephemeral-storage]": "1Gi",
    f"{C}env[0].valueFrom.fieldRef": {"fieldPath": "metadata.name"},
    f"{C}env[0].valueFrom.configMapKeyRef": {"name": "m", "key": "k"},
    f"{C}env[0].valueFrom.secretKeyRef": {"name": "m", "key": "k"},
    f"{C}env[0].valueFrom.resourceFieldRef": {"resource": "limits.cpu"},
    f"{C}env[0].valueFrom.fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"},
    f"{M}name": "v",
    f"{M}mountPath": "/v",
    f"{M}mountPropagation": "HostToContainer",
    f"{M}recursiveReadOnly": "Disabled",
    f"{V}image": {"reference": "i"},
    f"{V}configMap": {"name": "m"},
    f"{V}secret": {"secretName": "s"},
    f"{V}hostPath": {"path": "/x"},
    f"{V}emptyDir.medium": "Memory",
    f"{V}emptyDir.sizeLimit": "1Mi",
    f"{V}emptyDir.medium: HugePages": "HugePages",
    f"{V}configMap.items": [{"key": "k", "path": "p"}],
    f"{V}secret.items": [{"key": "k", "path": "p"}],
    f"{V}configMap.defaultMode": 0o600,
    f"{V}secret.defaultMode": 0o600,
    f"{V}configMap.items[0].mode": 0o600,
    f"{V}image.pullPolicy": "Never",
    f"{V}hostPath.type": "Directory",
}
CHOICES = ("Never", "Default", "TCP", "File", "Merge", "Always", "Recursive", "OnRootMismatch", "PreemptLowerPriority")


def rows() -> dict[str, tuple[str, str, str]]:
    """Return status, since and explanation of each field in the page."""
    found: dict[str, tuple[str, str, str]] = {}
    for line in PAGE.read_text().splitlines():
        if match := _ROW.fullmatch(line):
            assert match[1] not in found, match[1]
            found[match[1]] = match[2], match[3], match[4]
    return found


def indexed(path: str) -> str:
    """Return a path of the page as it is in an error."""
    return path.replace("[]", "[0]")


def sample(path: str, kind: Any) -> Any:
    """Return a value that is not the default of a field."""
    if path in SAMPLES:
        return SAMPLES[path]
    text = str(kind)
    if "Literal" in text:
        return next(choice for choice in CHOICES if f"'{choice}'" in text)
    if "tuple" in text:
        return [{"name": "a"}] if "podkeep" in text else [1] if "int" in text else ["a"]
    if "dict" in text:
        return {"a": "b"}
    for name, value in (("bool", True), ("int", 1), ("str", "a")):
        if name in text:
            return value
    return {}


def document(path: str, value: Any) -> dict[str, Any]:
    """Return a Pod with one field."""
    container: dict[str, Any] = {"name": "c", "image": "i"}
    spec: dict[str, Any] = {"containers": [container]}
    if path == f"{C}restartPolicyRules":
        container["restartPolicy"] = "Never"
    if path.startswith((M, V, f"{C}volume", f"{C}env[0].valueFrom.file")):
        spec["volumes"] = [{"name": "v"}]
    if path.startswith(M):
        container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    if path.startswith(f"{C}ports[0]"):
        container["ports"] = [{"containerPort": 80}]
    if path.startswith(f"{C}env[0]"):
        container["env"] = [{"name": "A"}]
    for source in ("configMap", "secret", "image"):
        if path.startswith(f"{V}{source}."):
            spec["volumes"][0][source] = dict(SAMPLES[f"{V}{source}"])
    if path.startswith(f"{V}hostPath."):
        spec["volumes"][0]["hostPath"] = {"path": "/x"}
    if path.startswith(f"{V}configMap.items[0]"):
        spec["volumes"][0]["configMap"]["items"] = [{"key": "k", "path": "p"}]
    if path.startswith("spec.topologySpreadConstraints[0]"):
        spec["topologySpreadConstraints"] = [{"maxSkew": 1, "topologyKey": "a"}]
    at: Any = {"spec": spec}
    *parts, last = re.findall(r"\w+(?:-\w+)?", path.partition(": ")[0])
    for part in parts:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def problems(path: str, value: Any) -> list[str]:
    try:
        manifest.parse(json.dumps(document(path, value)), source="f")
    except InvalidArgument as error:
        return [line.partition("): ")[2] for line in error.message.split("\n")]
    return []


@cache
def fields() -> dict[str, Any]:
    """Return every field that the page must have, with its type."""
    return {
        f"{path}{field.encode_name}": field.type
        for path, kind in TYPES.items()
        for field in msgspec.structs.fields(kind)
    }


def test_page_has_every_field() -> None:
    listed = {indexed(path) for path in rows()}
    assert fields().keys() - listed == set()
    known = {*fields(), *SAMPLES}
    assert listed - known == set()


@pytest.mark.parametrize("shown", rows())
def test_field_is_as_the_page_says(shown: str) -> None:
    state, since, explanation = rows()[shown]
    path = indexed(shown)
    assert state in STATES
    assert re.fullmatch(r"\d+\.\d+\.\d+", since)
    found = problems(path, sample(path, fields().get(path)))
    if state != "refused":
        assert found == []
        assert state == "works" or explanation
        return
    (problem,) = found
    where, _, why = problem.partition(": ")
    assert where == path.partition(": ")[0]
    assert REFUSED in why or why.startswith("Forbidden: ")
    # What to do instead is in the page, too.
    assert re.split(r"[;:] ", why, maxsplit=1)[1] in explanation
