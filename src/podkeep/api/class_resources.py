"""QoS-class resources in the Pod API (KEP-3008): ``resources.classes``, the alpha annotations, and what both may hold.

Owns: the names and rules of both ways to ask, and how they go together. Pure. Does not own: which types and classes
there are, which only the node knows (``agent/resources/class_resources.py``). No type has a meaning here but ``qos``,
the pod's own class, which follows from its limits and requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from podkeep.api import names
from podkeep.api.containers import Container, EphemeralContainer, ResourceRequirements
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.pod import Pod, PodSpec
from podkeep.base.frozen import FrozenStruct

ANNOTATED_TYPES = ("rdt", "blockio")
"""The types that annotations can name (KEP-3008, Pod annotations); the field can name any."""
DEFAULT_CLASS = "default"
"""Reserved: the class that the node chose for the type."""
QOS = "qos"

_DEFAULT = "default"
_CONTAINER = "container."
_DOMAINS = frozenset(f"{name}.resources.alpha.kubernetes.io" for name in ANNOTATED_TYPES)
_GATE_OFF = f"the feature gate {CLASS_RESOURCES.name} is off"
_NO_CLASS = "must be 1 to 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit"

AnyContainer = Container | EphemeralContainer


class Annotated(FrozenStruct, kw_only=True):
    """A class that an annotation gives to a container."""

    key: str
    class_name: str


def domain(type_name: str) -> str:
    """Return what the keys of a type's alpha annotations begin with, up to the slash."""
    return f"{type_name}.resources.alpha.kubernetes.io"


def type_problem(text: str) -> str:
    """Return why ``text`` cannot name a type, or nothing: like the key of a label (KEP-3008, Pod spec)."""
    return names.label_key(text)


def class_problem(text: str) -> str:
    """Return why ``text`` cannot name a class, or nothing: like the value of a label, and not empty."""
    return "" if text and not names.label_value(text) else _NO_CLASS


def annotated(annotations: Mapping[str, str], container: str) -> dict[str, Annotated]:
    """Return by type what the alpha annotations of a pod give to one of its containers.

    That of the container wins over that of all (KEP-3008, Pod annotations).
    """
    found = {}
    for type_name in ANNOTATED_TYPES:
        for rest in (f"{_CONTAINER}{container}", _DEFAULT):
            key = f"{domain(type_name)}/{rest}"
            if key in annotations:
                found[type_name] = Annotated(key=key, class_name=annotations[key])
                break
    return found


def containers(spec: PodSpec) -> Iterator[tuple[str, AnyContainer]]:
    """Yield every container of a pod with the path of its field: init containers and sidecars, and ephemeral ones."""
    groups: tuple[tuple[str, Sequence[AnyContainer]], ...] = (
        ("initContainers", spec.init_containers),
        ("containers", spec.containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    )
    for field, group in groups:
        for index, container in enumerate(group):
            yield f"spec.{field}[{index}]", container


def validate(pod: Pod, gates: FeatureGates, errors: FieldErrors, *, node: bool = False) -> None:
    """Note every rule about classes that ``pod`` breaks.

    :param node: a node agent takes care of the pod, and has its own rules for limits and requests of it as a whole.

    With the gate off fields are refused and annotations mean nothing (KEP-3008, Feature enablement and rollback).
    """
    enabled = gates.enabled(CLASS_RESOURCES)
    _pod_level(pod.spec.resources, enabled, errors, ("claims",) if node else ("limits", "requests", "claims"))
    for path, container in containers(pod.spec):
        _gated(container.resources.classes, f"{path}.resources.classes", enabled, errors)
    if enabled:
        named = [(path, container.name, container.resources.classes) for path, container in containers(pod.spec)]
        validate_annotations(pod.metadata.annotations, named, "metadata.annotations", errors)


def validate_classes(classes: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    """Note types and classes with wrong names, of ``resources.classes``."""
    for key, value in classes.items():
        if why := type_problem(key):
            errors.invalid(f"{path}[{key}]", key, why)
        if why := class_problem(value):
            errors.invalid(f"{path}[{key}]", value, why)


def validate_pod_classes(classes: Mapping[str, str], path: str, errors: FieldErrors) -> None:
    """Note wrong names, of ``resources.classes`` of a pod as a whole, and the type that it cannot choose."""
    validate_classes(classes, path, errors)
    if QOS in classes:
        errors.forbidden(f"{path}[{QOS}]", "it follows from the limits and requests of the containers")


def validate_annotations(
    annotations: Mapping[str, str],
    named: Sequence[tuple[str, str, Mapping[str, str]]],
    path: str,
    errors: FieldErrors,
) -> None:
    """Note what is wrong with the alpha annotations of a pod.

    :param named: the path, name and classes of each container.
    :param path: of the annotations.
    """
    known = {name for _, name, _ in named}
    for key, value in annotations.items():
        prefix, _, rest = key.partition("/")
        if prefix not in _DOMAINS:
            continue
        where = f"{path}[{key}]"
        name = rest.removeprefix(_CONTAINER)
        if rest != _DEFAULT and name == rest:
            errors.invalid(where, rest, f"must be '{_DEFAULT}' or '{_CONTAINER}' and the name of a container")
        elif rest != _DEFAULT and name not in known:
            # A class that silently goes to nobody would be worse.
            errors.not_found(where, name)
        if why := class_problem(value):
            errors.invalid(where, value, why)
    for container, name, classes in named:
        for type_name, given in annotated(annotations, name).items():
            class_name = classes.get(type_name)
            if class_name is not None and class_name != given.class_name:
                where = f"{container}.resources.classes[{type_name}]"
                why = f'must be the same as {where}, which is "{class_name}"'
                errors.invalid(f"{path}[{given.key}]", given.class_name, why)


def assign(pod: Pod, *, container_classes: Mapping[str, str], pod_classes: Mapping[str, str]) -> Pod:
    """Return ``pod`` with classes for what names none of their types.

    :param container_classes: by type, for every container whose field and annotations do not name the type.
    :param pod_classes: by type, for the pod as a whole.
    """
    spec = pod.spec
    resources = spec.resources or ResourceRequirements()
    changes: dict[str, object] = {
        "init_containers": tuple(_assigned(pod, container, container_classes) for container in spec.init_containers),
        "containers": tuple(_assigned(pod, container, container_classes) for container in spec.containers),
    }
    if pod_classes:
        changes["resources"] = msgspec.structs.replace(resources, classes={**pod_classes, **resources.classes})
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, **changes))


def _assigned(pod: Pod, container: Container, classes: Mapping[str, str]) -> Container:
    named = container.resources.classes.keys() | annotated(pod.metadata.annotations, container.name).keys()
    added = {name: value for name, value in classes.items() if name not in named}
    if not added:
        return container
    merged = msgspec.structs.replace(container.resources, classes=container.resources.classes | added)
    return msgspec.structs.replace(container, resources=merged)


def _pod_level(
    resources: ResourceRequirements | None, enabled: bool, errors: FieldErrors, refused: Sequence[str]
) -> None:
    """What a pod has as a whole is classes (KEP-3008, Pod spec), and of a node what KEP-2837 adds."""
    if resources is None:
        return
    for kind in refused:
        if getattr(resources, kind):
            errors.forbidden(f"spec.resources.{kind}", "may not be set for a pod as a whole, only for its containers")
    _gated(resources.classes, "spec.resources.classes", enabled, errors, validate_pod_classes)


def _gated(
    classes: Mapping[str, str],
    path: str,
    enabled: bool,
    errors: FieldErrors,
    validate: Callable[[Mapping[str, str], str, FieldErrors], None] = validate_classes,
) -> None:
    if enabled:
        validate(classes, path, errors)
    elif classes:
        errors.forbidden(path, _GATE_OFF)
