"""What an update of a pod and of its parts may change (core/validation: ``ValidatePodUpdate``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from podkeep.api.fields import FieldErrors
from podkeep.apiserver.kinds.pods.resources import qos_class
from podkeep.apiserver.kinds.pods.validation import fields as pod_fields
from podkeep.apiserver.kinds.pods.validation.containers import is_sidecar
from podkeep.apiserver.kinds.pods.validation.fields import MAX_INT32, MIRROR
from podkeep.apiserver.kinds.pods.validation.scheduling import REQUIRED
from podkeep.apiserver.kinds.pods.validation.spec import APPARMOR_CONTAINER
from podkeep.apiserver.meta.objects import Object
from podkeep.apiserver.patch.values import copy, equal
from podkeep.apiserver.schema.table import kubernetes
from podkeep.apiserver.schema.types import List, Map, Struct, Type

MUTABLE = ",".join(
    (
        "`spec.containers[*].image`",
        "`spec.initContainers[*].image`",
        "`spec.activeDeadlineSeconds`",
        "`spec.tolerations` (only additions to existing tolerations)",
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    )
)
_MAX_SHOWN = 10
_RESIZABLE = ("cpu", "memory")

Values = Mapping[str, Any]


def _plain(value: Any, kind: Type) -> Any:
    """Return a value without the fields that mean the same if they are empty, 0 or false as if they were not there.

    These are the fields that Go's type has by value, and not by a pointer.
    """
    if isinstance(value, dict) and isinstance(kind, Struct):
        by_value = kind.omitted | kind.required
        return {
            name: _plain(item, kind.fields[name].type) for name, item in value.items() if item or name not in by_value
        }
    if isinstance(value, dict) and isinstance(kind, Map):
        return {key: _plain(item, kind.values) for key, item in value.items()}
    if isinstance(value, list) and isinstance(kind, List):
        return [_plain(item, kind.items) for item in value]
    return value


def same(left: Any, right: Any, name: str) -> bool:
    """Tell whether two values of the core type of that name mean the same."""
    kind = _type(name)
    return equal(left, right) or equal(_plain(left, kind), _plain(right, kind))


def _type(name: str) -> Struct:
    return kubernetes().struct(f"io.k8s.api.core.v1.{name}")


def _differing(new: Any, old: Any, path: str) -> Iterator[str]:
    """Yield the paths of the fields that two values have differently."""
    if isinstance(new, dict) and isinstance(old, dict):
        for name in sorted(new.keys() | old.keys()):
            if not equal(new.get(name), old.get(name)):
                yield from _differing(new.get(name), old.get(name), f"{path}.{name}")
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for index, (left, right) in enumerate(zip(new, old, strict=True)):
            if not equal(left, right):
                yield from _differing(left, right, f"{path}[{index}]")
    else:
        yield path


def _shown(new: Any, old: Any, name: str, path: str) -> str:
    kind = _type(name)
    paths = list(_differing(_plain(new, kind), _plain(old, kind), path))
    more = ["..."] if len(paths) > _MAX_SHOWN else []
    return ", ".join(paths[:_MAX_SHOWN] + more)


# the whole pod


def validate_update(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note what an update changes that it may not."""
    validate_annotations(new, old, errors)
    after, before = new["spec"], old["spec"]
    if equal(after, before):
        return
    if not _containers(after, before, errors) or not _deadline(after, before, errors):
        return
    _tolerations(after.get("tolerations", ()), before.get("tolerations", ()), "spec.tolerations", errors)
    known = {gate["name"] for gate in before.get("schedulingGates", ())}
    for index, gate in enumerate(after.get("schedulingGates", ())):
        if gate.get("name", "") not in known:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            errors.forbidden(f"spec.schedulingGates[{index}].name", why)
    masked = _masked(after, before)
    if known:
        _gated(masked, before, errors)
    if not same(masked, before, "PodSpec"):
        changed = _shown(masked, before, "PodSpec", "spec")
        errors.forbidden("spec", f"pod updates may not change fields other than {MUTABLE}; changed: {changed}")


def validate_annotations(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note changes of annotations that must stay as they are."""
    after = new["metadata"].get("annotations", {})
    before = old["metadata"].get("annotations", {})
    for key in sorted(after.keys() | before.keys()):
        if after.get(key) == before.get(key):
            continue
        verb = "add" if key not in before else "remove or update"
        if key.startswith(APPARMOR_CONTAINER):
            errors.forbidden(f"metadata.annotations[{key}]", f"may not {verb} AppArmor annotations")
        if key == MIRROR:
            errors.forbidden(f"metadata.annotations[{key}]", f"may not {verb} mirror pod annotation")


def _containers(after: Values, before: Values, errors: FieldErrors) -> bool:
    for group in ("containers", "initContainers"):
        if len(after.get(group, ())) != len(before.get(group, ())):
            errors.forbidden(f"spec.{group}", "pod updates may not add or remove containers")
            return False
    return True


def _deadline(after: Values, before: Values, errors: FieldErrors) -> bool:
    path = "spec.activeDeadlineSeconds"
    new, old = after.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if new is None:
        if old is not None:
            errors.invalid(path, None, "must not update from a positive integer to nil value")
        return True
    if not 0 <= new <= MAX_INT32:
        pod_fields.in_range(path, new, 0, MAX_INT32, errors)
        return False
    if old is not None and old < new:
        errors.invalid(path, new, "must be less than or equal to previous value")
        return False
    return True


def _tolerations(after: Sequence[Values], before: Sequence[Values], path: str, errors: FieldErrors) -> None:
    def timeless(toleration: Values) -> frozenset[tuple[str, Any]]:
        return frozenset(pair for pair in toleration.items() if pair[0] != "tolerationSeconds" and pair[1])

    if {timeless(toleration) for toleration in before} - {timeless(toleration) for toleration in after}:
        errors.forbidden(path, "existing toleration can not be modified except its tolerationSeconds")


def _masked(after: Values, before: Values) -> dict[str, Any]:
    """Return a spec with what may be changed as it was."""
    masked = dict(after)
    for name in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        masked.pop(name, None)
        if name in before:
            masked[name] = before[name]
    for group in ("containers", "initContainers"):
        if group in after:
            masked[group] = [
                {**container, "image": was.get("image", "")}
                for container, was in zip(after[group], before.get(group, ()), strict=True)
            ]
    return masked


def _gated(masked: dict[str, Any], before: Values, errors: FieldErrors) -> None:
    """Take back what a pod that must not be scheduled yet may narrow: where it may run (KEP-3838)."""
    new, old = masked.pop("nodeSelector", {}), before.get("nodeSelector", {})
    if any(new.get(key) != value for key, value in old.items()):
        why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        errors.invalid("spec.nodeSelector", new, why)
    if old:
        masked["nodeSelector"] = old
    affinity = dict(masked.get("affinity", {}))
    now, was = affinity.pop("nodeAffinity", None), before.get("affinity", {}).get("nodeAffinity")
    if equal(now, was):
        return
    _narrowed(now or {}, was or {}, errors)
    if was is not None:
        affinity["nodeAffinity"] = was
    masked.pop("affinity", None)
    if affinity or "affinity" in before:
        masked["affinity"] = affinity


def _narrowed(now: Values, was: Values, errors: FieldErrors) -> None:
    path = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    new = now.get(REQUIRED, {}).get("nodeSelectorTerms", [])
    old = was.get(REQUIRED, {}).get("nodeSelectorTerms", [])
    if not old:
        return
    if len(old) != len(new):
        errors.invalid(path, new, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for index, (term, before) in enumerate(zip(new, old, strict=True)):
        if not _only_added(term, before):
            why = "only additions are allowed (no mutations or deletions)"
            errors.invalid(f"{path}[{index}]", term, why)


def _only_added(term: Values, before: Values) -> bool:
    names = ("matchExpressions", "matchFields")
    if not any(before.get(name) for name in names):
        return not any(term.get(name) for name in names)  # an empty term matches nothing
    return all(equal(term.get(name, [])[: len(before.get(name, []))], before.get(name, [])) for name in names)


# parts


def _keep(new: Object, old: Object) -> None:
    """Take back what a subresource changes of the metadata and of the status."""
    after, before = new["metadata"], old["metadata"]
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "generation"):
        after.pop(name, None)
        if name in before:
            after[name] = copy(before[name])
    new.pop("status", None)
    if "status" in old:
        new["status"] = copy(old["status"])


def prepare_ephemeral(new: Object, old: Object) -> None:
    """Take back every change but those of the ephemeral containers."""
    _keep(new, old)
    ephemeral = new.get("spec", {}).get("ephemeralContainers")
    new["spec"] = copy(old["spec"])
    new["spec"].pop("ephemeralContainers", None)
    if ephemeral:
        new["spec"]["ephemeralContainers"] = ephemeral


def validate_ephemeral(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note changes of ephemeral containers other than new ones."""
    if MIRROR in old["metadata"].get("annotations", {}):
        errors.forbidden("[]", "static pods do not support ephemeral containers")
        return
    path = "spec.ephemeralContainers"
    kept = {container.get("name", ""): container for container in new["spec"].get("ephemeralContainers", ())}
    for container in old["spec"].get("ephemeralContainers", ()):
        name = container["name"]
        if name not in kept:
            errors.forbidden(path, f'existing ephemeral containers "{name}" may not be removed')
        elif not same(container, kept[name], "EphemeralContainer"):
            changed = _shown(kept[name], container, "EphemeralContainer", f"{path}[{name}]")
            errors.forbidden(path, f'existing ephemeral containers "{name}" may not be changed; changed: {changed}')


def prepare_resize(new: Object, old: Object) -> None:
    """Take back every change but those of resources and of what a change of them does.

    Containers that are added, removed, renamed or moved stay so, for validation to refuse.
    """
    after, before = new.get("spec", {}), old["spec"]
    if any(_names(after, group) != _names(before, group) for group in ("containers", "initContainers")):
        return
    _keep(new, old)
    spec = copy(before)
    for group in ("containers", "initContainers"):
        for container, given in zip(spec.get(group, ()), after.get(group, ()), strict=True):
            for name in ("resources", "resizePolicy"):
                container.pop(name, None)
                if name in given:
                    container[name] = given[name]
    spec.pop("resources", None)
    if "resources" in after:
        spec["resources"] = after["resources"]
    new["spec"] = spec


def _names(spec: Values, group: str) -> list[str]:
    return [container.get("name", "") for container in spec.get(group, ())]


def validate_resize(new: Object, old: Object, errors: FieldErrors) -> None:
    """Note changes of resources that a pod cannot have while it runs."""
    after, before = new["spec"], old["spec"]
    if MIRROR in old["metadata"].get("annotations", {}):
        errors.forbidden("[]", "static pods cannot be resized")
        return
    if before.get("os", {}).get("name") == "windows":
        errors.forbidden("[]", "windows pods cannot be resized")
        return
    qos = old.get("status", {}).get("qosClass") or qos_class(before)
    if qos != qos_class(after):
        errors.invalid("spec", qos, "Pod QOS Class may not change as a result of resizing")
    if not _resizable(old.get("status", {})):
        errors.forbidden("spec", "Pod running on node without support for resize")
    if old.get("status", {}).get("nodeAllocatableResourceClaimStatuses"):
        errors.forbidden("spec", "pods with node allocatable resource claims cannot be resized")
    if not _same_order(after, before, errors):
        return
    _resize_pod_level(after, before, errors)
    for group in ("containers", "initContainers"):
        for index, (container, was) in enumerate(zip(after.get(group, ()), before.get(group, ()), strict=True)):
            _resize_container(container, was, group, index, errors)


def _resizable(status: Values) -> bool:
    """Return whether the pod's node reports resources of containers, so that it can change them."""
    for container in status.get("containerStatuses", ()):
        if "running" in container.get("state", {}):
            return "resources" in container
    return True


def _same_order(after: Values, before: Values, errors: FieldErrors) -> bool:
    count = len(errors.found)
    for group in ("containers", "initContainers"):
        new, old = _names(after, group), _names(before, group)
        if len(new) != len(old):
            errors.forbidden(f"spec.{group}", f"{group} may not be added or removed on resize")
            continue
        for index, name in enumerate(old):
            if new[index] != name:
                why = f"{group} may not be renamed or reordered on resize"
                errors.forbidden(f"spec.{group}[{index}].name", why)
    return len(errors.found) == count


def _resize_pod_level(after: Values, before: Values, errors: FieldErrors) -> None:
    new, old = after.get("resources"), before.get("resources")
    if not any((given or {}).get(kind) for given in (new, old) for kind in ("limits", "requests")):
        return
    if old is not None and new is None:
        errors.forbidden("spec.resources", "pod-level resources cannot be removed")
    if new is None:
        return
    for kind, shown in (("requests", "resource requests"), ("limits", "resource limits")):
        if (old or {}).get(kind, {}).keys() - new.get(kind, {}).keys():
            errors.forbidden(f"spec.resources.{kind}", f"pod-level {shown} cannot be removed")
    if not same(_fixed(new), _fixed(old or {}), "ResourceRequirements"):
        errors.forbidden("spec", "only cpu and memory resources are mutable at pod-level")


def _fixed(resources: Values) -> dict[str, Any]:
    """Return what a resize cannot change of ``resources``: all but CPU, memory and classes."""
    kept: dict[str, Any] = {
        name: value for name, value in resources.items() if name not in ("classes", "limits", "requests")
    }
    for kind in ("limits", "requests"):
        others = {name: value for name, value in resources.get(kind, {}).items() if name not in _RESIZABLE}
        if others:
            kept[kind] = others
    return kept


def _resize_container(container: Values, was: Values, group: str, index: int, errors: FieldErrors) -> None:
    path = f"spec.{group}[{index}]"
    new, old = container.get("resources", {}), was.get("resources", {})
    for kind in ("requests", "limits"):
        if old.get(kind, {}).keys() - new.get(kind, {}).keys():
            errors.forbidden(f"{path}.resources.{kind}", f"resource {kind} cannot be removed")
    others = {name: value for name, value in container.items() if name != "resources"}
    before = {name: value for name, value in was.items() if name != "resources"}
    if not same(others, before, "Container") or not same(_fixed(new), _fixed(old), "ResourceRequirements"):
        if group == "containers":
            errors.forbidden("spec", "only cpu and memory resources are mutable")
        else:
            errors.forbidden(path, "only cpu and memory resources for init or sidecar containers are mutable")
    policies = [policy.get("restartPolicy") for policy in container.get("resizePolicy", ())]
    restarts = group == "initContainers" and not is_sidecar(container) and "RestartContainer" in policies
    if restarts and not same(new, old, "ResourceRequirements"):
        why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        errors.forbidden(path, why)
