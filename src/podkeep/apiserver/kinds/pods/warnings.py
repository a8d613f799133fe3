"""What a client should know of a pod or template that is taken (pkg/api/pod/warnings.go)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from podkeep.api import names
from podkeep.apiserver.kinds.pods.validation.fields import containers
from podkeep.apiserver.kinds.pods.validation.scheduling import POD_AFFINITIES, PREFERRED, REQUIRED
from podkeep.apiserver.kinds.pods.validation.spec import (
    APPARMOR_CONTAINER,
    SECCOMP_CONTAINER,
    SECCOMP_POD,
    apparmor_profile,
)
from podkeep.apiserver.kinds.services import addresses
from podkeep.base.text import quantity

DEPRECATED_NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": ('deprecated since v1.17; use "topology.kubernetes.io/region" instead'),
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
    "security.alpha.kubernetes.io/unsafe-sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
}
_VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_MAX_WARNINGS = 100
_MAX_COMPARED = 100
"""Files of a volume, or ports of one number, that each other one is compared with."""
_SHOWN_VOLUMES = {"storageos": "storageOS"}
_NO_SELECTOR = "a null labelSelector results in matching no pod"

Values = Mapping[str, Any]


def pod_warnings(pod: Values, old: Values | None) -> list[str]:
    """Return what a client should know of a new pod. Updates have none: they are many, and rarely people's."""
    if old is not None:
        return []
    found = warnings(pod, "")
    name = pod.get("metadata", {}).get("name", "")
    if why := names.dns_label(name):
        about = (
            "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended"
        )
        found.insert(0, f"metadata.name: {about}: [{why}]")
    return found


def warnings(value: Values, prefix: str) -> list[str]:
    """Return what a client should know.

    :param value: a pod or a template.
    :param prefix: of the paths: empty for a pod, ``spec.template.`` for a template.
    """
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    path = f"{prefix}spec"
    found = chain(
        _user_namespace(spec, path),
        _labels(spec, path),
        _annotations(metadata.get("annotations", {}), spec, prefix),
        _volumes(spec, path),
        _duplicates(spec, path),
        _quantities(spec, path),
        _env(spec, path),
        _ports(spec, path),
        _grace_period(spec, path),
        _selectors(spec, path),
        _addresses(spec, path),
    )
    return list(islice(found, _MAX_WARNINGS))


def _user_namespace(spec: Values, path: str) -> Iterator[str]:
    if "userHostNamespace" in spec:
        yield f"{path}.userHostNamespace: deprecated; use hostUsers instead"


def _labels(spec: Values, path: str) -> Iterator[str]:
    for key in spec.get("nodeSelector", ()):
        if why := DEPRECATED_NODE_LABELS.get(key):
            yield f"{path}.nodeSelector[{key}]: {why}"
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    where = f"{path}.affinity.nodeAffinity"
    for index, term in enumerate(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ())):
        yield from _term(term, f"{where}.{REQUIRED}.nodeSelectorTerms[{index}]", check_values=False)
    for index, term in enumerate(affinity.get(PREFERRED, ())):
        yield from _term(term.get("preference", {}), f"{where}.{PREFERRED}[{index}].preference", check_values=True)
    for index, constraint in enumerate(spec.get("topologySpreadConstraints", ())):
        key = constraint.get("topologyKey", "")
        if why := DEPRECATED_NODE_LABELS.get(key):
            yield f"{path}.topologySpreadConstraints[{index}].topologyKey: {key} is {why}"
        if "labelSelector" not in constraint:
            yield f"{path}.topologySpreadConstraints[{index}].labelSelector: {_NO_SELECTOR}"


def _term(term: Values, path: str, *, check_values: bool) -> Iterator[str]:
    for index, expression in enumerate(term.get("matchExpressions", ())):
        where, key = f"{path}.matchExpressions[{index}]", expression.get("key", "")
        if why := DEPRECATED_NODE_LABELS.get(key):
            yield f"{where}.key: {key} is {why}"
        if check_values:
            for number, value in enumerate(expression.get("values", ())):
                if why := names.label_value(value):
                    yield f"{where}.values[{number}]: {value} is invalid, {why}"


def _annotations(annotations: Mapping[str, str], spec: Values, prefix: str) -> Iterator[str]:
    if not annotations:
        return
    where = f"{prefix}metadata.annotations"
    for key, why in _ANNOTATIONS.items():
        if key in annotations:
            yield f"{where}[{key}]: {why}"
    security = spec.get("securityContext", {})
    seccomp = 'non-functional in v1.27+; use the "seccompProfile" field instead'
    if SECCOMP_POD in annotations and "seccompProfile" not in security:
        yield f"{where}[{SECCOMP_POD}]: {seccomp}"
    for _, container in containers(spec, ""):
        own, name = container.get("securityContext", {}), container.get("name", "")
        if SECCOMP_CONTAINER + name in annotations and "seccompProfile" not in own:
            yield f"{where}[{SECCOMP_CONTAINER}{name}]: {seccomp}"
        key = APPARMOR_CONTAINER + name
        if prefix and key in annotations and "appArmorProfile" not in own:
            meant = apparmor_profile(annotations[key])
            if meant is None or meant != security.get("appArmorProfile"):
                yield f'{where}[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead'


def _volumes(spec: Values, path: str) -> Iterator[str]:
    for index, volume in enumerate(spec.get("volumes", ())):
        for kind, why in _VOLUMES.items():
            if kind in volume:
                yield f"{path}.volumes[{index}].{_SHOWN_VOLUMES.get(kind, kind)}: {why}"
        name = volume.get("name", "")
        for source in volume.get("projected", {}).get("sources", ()):
            if not source:
                yield f'volume "{name}" (Projected) has no sources provided'
        for shown, files in _files(volume):
            for left, right in _overlaps(files):
                yield f'volume "{name}" ({shown}): overlapping paths: {left} with {right}'


def _files(volume: Values) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield what a volume makes files of: what it is called, and each file's path and source."""
    for kind, shown, field in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
        if kind in volume:
            source = volume[kind]
            yield f'{shown} "{source.get(field, "")}"', [(item.get("path", ""), "") for item in source.get("items", ())]
    if "downwardAPI" in volume:
        yield "DownwardAPI", [(item.get("path", ""), "") for item in volume["downwardAPI"].get("items", ())]
    if "projected" in volume:
        yield "Projected", [file for source in volume["projected"].get("sources", ()) for file in _projected(source)]


def _projected(source: Values) -> Iterator[tuple[str, str]]:
    for kind, shown in (("configMap", "ConfigMap"), ("secret", "Secret")):
        for item in source.get(kind, {}).get("items", ()):
            yield item.get("path", ""), f'{shown} "{source[kind].get("name", "")}"'
    for item in source.get("downwardAPI", {}).get("items", ()):
        yield item.get("path", ""), "DownwardAPI"
    if "serviceAccountToken" in source:
        yield source["serviceAccountToken"].get("path", ""), "ServiceAccountToken"
    if "clusterTrustBundle" in source:
        bundle = source["clusterTrustBundle"]
        yield bundle.get("path", ""), f'ClusterTrustBundle "{bundle.get("name", bundle.get("signerName", ""))}"'
    for field, shown in (
        ("certificateChainPath", "chain"),
        ("keyPath", "key"),
        ("credentialBundlePath", "credential bundle"),
    ):
        if target := source.get("podCertificate", {}).get(field):
            yield target, f"PodCertificate {shown}"


def _overlaps(files: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    before: list[tuple[str, str]] = []
    for path, source in files:
        target = path.rstrip("/")
        for other, other_source in before if target else ():
            if other and (f"{other}/".startswith(f"{target}/") or f"{target}/".startswith(f"{other}/")):
                yield _file(target, source), _file(other, other_source)
        if len(before) < _MAX_COMPARED:
            before.append((target, source))


def _file(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'


def _duplicates(spec: Values, path: str) -> Iterator[str]:
    for group, field, shown in (("hostAliases", "ip", "ip"), ("imagePullSecrets", "name", "name")):
        seen: set[str] = set()
        for index, item in enumerate(spec.get(group, ())):
            value = item.get(field, "")
            if value in seen:
                yield f'{path}.{group}[{index}].{field}: duplicate {shown} "{value}"'
            seen.add(value)
    for index, item in enumerate(spec.get("imagePullSecrets", ())):
        if not item.get("name"):
            yield f'{path}.imagePullSecrets[{index}].name: invalid empty name ""'


def _quantities(spec: Values, path: str) -> Iterator[str]:
    groups = [(f"{path}.overhead", spec.get("overhead", {}))]
    for where, container in containers(spec, path):
        resources = container.get("resources", {})
        groups += [(f"{where}.resources.{kind}", resources.get(kind, {})) for kind in ("limits", "requests")]
    for index, volume in enumerate(spec.get("volumes", ())):
        claim = volume.get("ephemeral", {}).get("volumeClaimTemplate", {}).get("spec", {}).get("resources", {})
        where = f"{path}.volumes[{index}].ephemeral.volumeClaimTemplate.spec.resources"
        groups += [(f"{where}.{kind}", claim.get(kind, {})) for kind in ("limits", "requests")]
    for where, given in groups:
        for name in ("memory", "ephemeral-storage", "storage"):
            if name in given and quantity.parse(given[name]) % 1:
                yield f'{where}[{name}]: fractional byte value "{given[name]}" is invalid, must be an integer'


def _env(spec: Values, path: str) -> Iterator[str]:
    for where, container in containers(spec, path):
        seen: set[str] = set()
        for index, variable in enumerate(container.get("env", ())):
            name, value = variable.get("name", ""), variable.get("value", "")
            # A value that goes on from the one before, as `$(PATH):/opt` does for PATH, is no mistake.
            reference = f"$({name})"
            hides = "valueFrom" in variable or value == reference or reference not in value
            if name in seen and hides:
                why = f'hides previous definition of "{name}", which may be dropped when using apply'
                yield f"{where}.env[{index}]: {why}"
            seen.add(name)


def _ports(spec: Values, path: str) -> Iterator[str]:
    ports = [
        (f"{where}.ports[{index}]", port)
        for where, container in containers(spec, path)
        for index, port in enumerate(container.get("ports", ()))
    ]
    by_number: dict[tuple[int, str], list[tuple[str, Values]]] = {}
    for where, port in ports:
        if port.get("hostIP") and not port.get("hostPort"):
            number, protocol = port.get("containerPort", 0), port.get("protocol", "")
            shown = f"Name:{port.get('name', '')} HostPort:0 ContainerPort:{number} Protocol:{protocol}"
            yield f"{where}: hostIP set without hostPort: {{{shown} HostIP:{port['hostIP']}}}"
        others = by_number.setdefault((port.get("containerPort", 0), port.get("protocol", "")), [])
        for other_path, other in others:
            if why := _conflict(port, other):
                yield f"{where}: {why} port definition with {other_path}"
        if len(others) < _MAX_COMPARED:
            others.append((where, port))
    named: dict[str, str] = {}
    for where, port in ports:
        name = port.get("name", "")
        if name and name in named:
            other_path = named[name]
            why = f'duplicate port name "{name}" with {other_path}, services and probes that select ports by name'
            yield f"{where}: {why} will use {other_path}"
        elif name:
            named[name] = where


def _conflict(port: Values, other: Values) -> str:
    mine, theirs = port.get("hostPort", 0), other.get("hostPort", 0)
    address, other_address = port.get("hostIP", ""), other.get("hostIP", "")
    if (address, mine) == (other_address, theirs):
        return "duplicate"
    if not mine or not theirs:
        return "overlapping"
    return "dangerously ambiguous" if mine == theirs and bool(address) is not bool(other_address) else ""


def _selectors(spec: Values, path: str) -> Iterator[str]:
    for kind in POD_AFFINITIES:
        given = spec.get("affinity", {}).get(kind, {})
        for index, term in enumerate(given.get(REQUIRED, ())):
            if "labelSelector" not in term:
                yield f"{path}.affinity.{kind}.{REQUIRED}[{index}].labelSelector: {_NO_SELECTOR}"
        for index, term in enumerate(given.get(PREFERRED, ())):
            if "labelSelector" not in term.get("podAffinityTerm", {}):
                yield f"{path}.affinity.{kind}.{PREFERRED}[{index}].podAffinityTerm.labelSelector: {_NO_SELECTOR}"


def _grace_period(spec: Values, path: str) -> Iterator[str]:
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        why = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{path}.terminationGracePeriodSeconds: {why}"


def _addresses(spec: Values, path: str) -> Iterator[str]:
    for index, server in enumerate(spec.get("dnsConfig", {}).get("nameservers", ())):
        yield from addresses.warnings(f"{path}.dnsConfig.nameservers[{index}]", server)
    for index, alias in enumerate(spec.get("hostAliases", ())):
        yield from addresses.warnings(f"{path}.hostAliases[{index}].ip", alias.get("ip", ""))
