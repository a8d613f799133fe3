"""Defaults of pods and of pod templates (Kubernetes: pkg/apis/core/v1/defaults.go); pure, objects change in place.

``hostUsers`` is never given a value (KEP-127, Pod.spec changes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from podkeep.api.names import has_floating_tag
from podkeep.apiserver.kinds.pods import resources as pod_resources
from podkeep.apiserver.meta.objects import Object

GRACE_PERIOD = 30
"""Seconds between the stop signal and the kill."""
TOKEN_SECONDS = 3600
_FILE_MODE = 0o644
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_SPEC: dict[str, Any] = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_SOURCES: dict[str, dict[str, Any]] = {
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": False, "kind": "Shared"},
    "configMap": {"defaultMode": _FILE_MODE},
    "downwardAPI": {"defaultMode": _FILE_MODE},
    "hostPath": {"type": ""},
    "projected": {"defaultMode": _FILE_MODE},
    "secret": {"defaultMode": _FILE_MODE},
}
"""What a volume's source has if nothing is given."""
_NOT_EMPTY: dict[str, dict[str, str]] = {
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}
"""What a volume's source has if nothing or an empty text is given."""


def default_pod(pod: Object) -> None:
    """Fill in what a pod leaves out."""
    spec = pod.setdefault("spec", {})
    for container in containers(spec, "initContainers", "containers"):
        resources = container.get("resources", {})
        # Of pods and not of templates, which stay as they were written (SetDefaults_Pod).
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
    # After the containers' requests, which it sums up.
    pod_resources.default_pod_level(spec)
    spec.setdefault("enableServiceLinks", True)
    if spec.get("hostNetwork"):
        for container in containers(spec, "initContainers", "containers"):
            for port in container.get("ports", ()):
                port["hostPort"] = port.get("hostPort") or port.get("containerPort", 0)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1  # older releases took it
    default_pod_spec(spec)
    _status(pod.get("status", {}))


def default_pod_spec(spec: dict[str, Any]) -> None:
    """Fill in what the spec of a pod or of a template leaves out."""
    for name, value in _SPEC.items():
        spec[name] = spec.get(name) or value
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", GRACE_PERIOD)
    # Two names of one field; the newer one wins.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    for name in ("serviceAccountName", "serviceAccount"):
        if account:
            spec[name] = account
        else:
            spec.pop(name, None)
    for volume in spec.get("volumes", ()):
        _volume(volume)
    for container in containers(spec):
        _container(container)
    pod_resources.round_up(spec.get("overhead", {}))
    pod_resources.round_requirements(spec.get("resources", {}))


def containers(spec: dict[str, Any], *groups: str) -> Iterator[dict[str, Any]]:
    """Yield the containers of a pod: of the named lists of its spec, or all."""
    for group in groups or ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(group, ())


def _container(container: dict[str, Any]) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    container["terminationMessagePath"] = container.get("terminationMessagePath") or "/dev/termination-log"
    container["terminationMessagePolicy"] = container.get("terminationMessagePolicy") or "File"
    for port in container.get("ports", ()):
        port["protocol"] = port.get("protocol") or "TCP"
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        _field(source)
        if "fileKeyRef" in source:
            source["fileKeyRef"].setdefault("optional", False)
    pod_resources.round_requirements(container.setdefault("resources", {}))
    for name in _PROBES:
        if name in container:
            _probe(container[name])
    for handler in container.get("lifecycle", {}).values():
        if isinstance(handler, dict) and "httpGet" in handler:
            _http_get(handler["httpGet"])


def _pull_policy(image: str) -> str:
    named = image and image == image.strip()
    return "Always" if named and has_floating_tag(image) else "IfNotPresent"


def _field(source: dict[str, Any]) -> None:
    if "fieldRef" in source:
        source["fieldRef"]["apiVersion"] = source["fieldRef"].get("apiVersion") or "v1"
    if "resourceFieldRef" in source:
        source["resourceFieldRef"].setdefault("divisor", "0")


def _probe(probe: dict[str, Any]) -> None:
    for name, value in _PROBE.items():
        probe[name] = probe.get(name) or value
    if "httpGet" in probe:
        _http_get(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _http_get(action: dict[str, Any]) -> None:
    action["path"] = action.get("path") or "/"
    action["scheme"] = action.get("scheme") or "HTTP"


def _volume(volume: dict[str, Any]) -> None:
    # A volume of no type is an emptyDir (SetDefaults_Volume).
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
        return
    default_sources(volume)
    if "image" in volume:
        image = volume["image"]
        image["pullPolicy"] = image.get("pullPolicy") or _pull_policy(image.get("reference", ""))
    for item in volume.get("downwardAPI", {}).get("items", ()):
        _field(item)
    for source in volume.get("projected", {}).get("sources", ()):
        for item in source.get("downwardAPI", {}).get("items", ()):
            _field(item)
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", TOKEN_SECONDS)
    claim = volume.get("ephemeral", {}).get("volumeClaimTemplate", {}).get("spec")
    if claim is not None:
        claim.setdefault("volumeMode", "Filesystem")
        pod_resources.round_requirements(claim.get("resources", {}))


def default_sources(volume: dict[str, Any]) -> None:
    """Fill in what the sources of a volume leave out, of a pod's one or of the spec of a PersistentVolume."""
    for kind, source in volume.items():
        for name, value in _SOURCES.get(kind, {}).items():
            source.setdefault(name, value)
        for name, value in _NOT_EMPTY.get(kind, {}).items():
            source[name] = source.get(name) or value


def _status(status: dict[str, Any]) -> None:
    """Make the two names of a pod's address agree: ``podIP`` is the first of ``podIPs``, and wins."""
    address, addresses = status.get("podIP", ""), status.get("podIPs", [])
    if address and (not addresses or addresses[0].get("ip") != address):
        status["podIPs"] = [{"ip": address}]
    elif addresses:
        status["podIP"] = addresses[0].get("ip", "")
    for group in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for container in status.get(group, ()):
            pod_resources.round_up(container.get("allocatedResources", {}))
            pod_resources.round_requirements(container.get("resources", {}))
    pod_resources.round_up(status.get("allocatedResources", {}))
    pod_resources.round_requirements(status.get("resources", {}))
