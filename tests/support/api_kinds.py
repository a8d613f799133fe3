"""Objects of the API through the steps of their kinds, as the registry takes them, and manifests to change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from podkeep.api.feature_gates import FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.resources import Resource
from podkeep.apiserver.kinds.services.service_allocation import Ranges, allocate
from podkeep.apiserver.kinds.workloads import workloads
from podkeep.apiserver.meta import objects
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.meta.status import StatusError
from podkeep.apiserver.patch.values import copy
from podkeep.apiserver.schema.decode import decode

UID = "11111111-2222-3333-4444-555555555555"
CREATED = "2026-11-23T06:00:00Z"
ABSENT: Any = ...
"""What a change takes away."""


def changed(manifest: Mapping[str, Any], changes: Mapping[str, Any]) -> Object:
    """Return a manifest with other values at some paths, such as ``spec.ports.0.port``."""
    value = copy(dict(manifest))
    for path, new in changes.items():
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split("|" if "|" in path else ".")]
        place: Any = value
        for part in parents:
            if isinstance(place, dict) and part not in place:
                place[part] = {}
            place = place[part]
        if new is ABSENT:
            place.pop(last, None)
        elif isinstance(place, list) and last == len(place):
            place.append(copy(new))
        else:
            place[last] = copy(new)
    return value


def creation(resource: Resource, manifest: Mapping[str, Any]) -> tuple[Object, list[str]]:
    """Return an object as it would be stored, and what is wrong with it. A Service gets the first free addresses."""
    strategy = resource.strategy
    value = _decoded(resource, manifest)
    strategy.default(value)
    if problems := _allocation(resource, value, None):
        return value, problems
    value["metadata"] |= {"uid": UID, "creationTimestamp": CREATED}
    if strategy.generation:
        value["metadata"]["generation"] = 1
    if strategy.status:
        value.pop("status", None)
    strategy.drop(value, None, FeatureGates())
    strategy.prepare_create(value)
    errors = FieldErrors()
    strategy.validate(value, errors)
    strategy.validate_create(value, errors)
    objects.validate(value, namespaced=resource.namespaced, name_rule=strategy.name_rule, errors=errors)
    return value, _texts(errors)


def stored(resource: Resource, manifest: Mapping[str, Any]) -> Object:
    """Return an object as it is stored; nothing may be wrong with it."""
    value, problems = creation(resource, manifest)
    assert problems == []
    return value


def update(resource: Resource, old: Object, manifest: Mapping[str, Any]) -> tuple[Object, list[str]]:
    """Return what an object would be replaced by, and what is wrong with that."""
    strategy = resource.strategy
    before = copy(old)
    value = _decoded(resource, manifest)
    strategy.default(value)
    objects.keep_identity(value, old)
    if problems := _allocation(resource, value, old):
        return value, problems
    value.pop("status", None)
    if "status" in old:
        value["status"] = copy(old["status"])
    strategy.drop(value, old, FeatureGates())
    strategy.prepare_update(value, old)
    errors = FieldErrors()
    strategy.validate(value, errors)
    strategy.validate_update(value, old, errors)
    assert old == before
    return value, _texts(errors)


def _allocation(resource: Resource, value: Object, old: Object | None, services: Iterable[Object] = ()) -> list[str]:
    if resource.plural != "services":
        return []
    try:
        allocate(value, services, Ranges(), old, pick=lambda _: 0)
    except StatusError as error:
        causes = error.details["causes"]
        found = [f"{item['field']}: {item['message']}" if "field" in item else item["message"] for item in causes]
        return list(dict.fromkeys(found))
    return []


def status_update(resource: Resource, old: Object, status: Mapping[str, Any]) -> tuple[Object, list[str]]:
    """Return an object with another status, and what is wrong with that."""
    before = copy(old)
    value = _decoded(resource, old | {"status": status})
    resource.strategy.default(value)
    resource.strategy.prepare_status(value, old)
    errors = FieldErrors()
    resource.strategy.validate_status(value, old, errors)
    assert old == before
    return value, _texts(errors)


def _decoded(resource: Resource, manifest: Mapping[str, Any]) -> Object:
    found = decode(manifest, resource.struct)
    assert found.unknown == []
    found.value.setdefault("metadata", {})
    found.value |= {"apiVersion": resource.kind.api_version, "kind": resource.kind.kind}
    if resource.namespaced:
        found.value["metadata"].setdefault("namespace", "default")
    return found.value


def _texts(errors: FieldErrors) -> list[str]:
    return list(dict.fromkeys(map(str, errors.found)))


def brief(problem: str) -> str:
    """Return a message without the value if that is long, or one that kube-apiserver shows in types of its own."""
    if len(problem) > 400 or ("immutable" in problem and ('"rules"' in problem or '"containers"' in problem)):
        return re.sub(r"(Invalid value: )[\[{].*[\]}](: )", r"\1{}\2", problem)
    return problem


TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
_WITH_SELECTOR = {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}
_JOB = {"template": {"spec": {"containers": [{"name": "c", "image": "i:1"}], "restartPolicy": "Never"}}}
MANIFESTS: Mapping[str, Mapping[str, Any]] = {
    "podtemplates": {"metadata": {"name": "a"}, "template": TEMPLATE},
    "controllerrevisions": {"metadata": {"name": "a"}, "revision": 1, "data": {"spec": {}}},
    "deployments": {"metadata": {"name": "a"}, "spec": _WITH_SELECTOR},
    "replicasets": {"metadata": {"name": "a"}, "spec": _WITH_SELECTOR},
    "replicationcontrollers": {"metadata": {"name": "a"}, "spec": {"template": TEMPLATE}},
    "statefulsets": {"metadata": {"name": "a"}, "spec": _WITH_SELECTOR},
    "daemonsets": {"metadata": {"name": "a"}, "spec": _WITH_SELECTOR},
    "jobs": {"metadata": {"name": "a"}, "spec": _JOB},
    "cronjobs": {"metadata": {"name": "a"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": _JOB}}},
    "poddisruptionbudgets": {
        "metadata": {"name": "a"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    },
    "services": {"metadata": {"name": "a"}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}},
    "endpoints": {
        "metadata": {"name": "a"},
        "subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}],
    },
    "endpointslices": {
        "metadata": {"name": "a"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"]}],
        "ports": [{"port": 80}],
    },
}
"""The least that each kind needs."""
RESOURCES = {resource.plural: resource for resource in workloads.RESOURCES}


def creation_problems(plural: str, changes: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with creating a changed manifest, as tables have it."""
    _, problems = creation(RESOURCES[plural], changed(MANIFESTS[plural], changes))
    return sorted(map(brief, problems))


def update_problems(plural: str, before: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with changes of what was created with the changes ``before``."""
    old = stored(RESOURCES[plural], changed(MANIFESTS[plural], before))
    _, problems = update(RESOURCES[plural], old, changed(old, changes))
    return sorted(map(brief, problems))


def status_problems(
    plural: str, changes: Mapping[str, Any], before: Mapping[str, Any], status: Mapping[str, Any]
) -> list[str]:
    """Return what is wrong with a status of a changed manifest; ``before`` is the status that it has until then."""
    old = stored(RESOURCES[plural], changed(MANIFESTS[plural], changes))
    if before:
        old, problems = status_update(RESOURCES[plural], old, before)
        assert problems == []
    _, problems = status_update(RESOURCES[plural], old, status)
    return sorted(map(brief, problems))
