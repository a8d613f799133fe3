"""``TYPE=CLASS`` as people type it, in ``podkeep classes set`` and in two options of ``podkeep run`` (KEP-3008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from podkeep.api import class_resources
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.manifest import Manifest
from podkeep.base.errors import InvalidArgument


def parse(texts: Sequence[str], *, option: str = "") -> dict[str, str]:
    """Return types to classes.

    :param option: what the words were given to, for messages; empty: they stand for themselves.
    :raises InvalidArgument: if one cannot be understood, or a type has two classes.
    """
    where = f"{option}: " if option else ""
    found: dict[str, str] = {}
    for text in texts:
        type_name, separator, class_name = text.partition("=")
        if not separator:
            raise InvalidArgument(f"{where}{text!r} is not TYPE=CLASS", hint="write it like rdt=gold")
        if why := class_resources.type_problem(type_name):
            raise InvalidArgument(f"{where}type {type_name!r} {why}")
        if why := class_resources.class_problem(class_name):
            raise InvalidArgument(f"{where}class {class_name!r} {why}")
        if found.setdefault(type_name, class_name) != class_name:
            raise InvalidArgument(f"{where}{type_name} is given twice, as {found[type_name]} and {class_name}")
    return found


def of_run(
    containers: Sequence[str], pods: Sequence[str], gates: FeatureGates
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what ``--class`` and ``--pod-class`` ask for, types to classes.

    :raises InvalidArgument: naming the option, if one cannot be understood, or the feature gate is off.
    """
    wanted = parse(containers, option="--class"), parse(pods, option="--pod-class")
    if any(wanted) and not gates.enabled(CLASS_RESOURCES):
        raise InvalidArgument(
            f"--class and --pod-class: the feature gate {CLASS_RESOURCES.name} is off",
            hint="switch it on in [agent] feature_gates",
        )
    return wanted


def assigned(
    manifest: Manifest, containers: Mapping[str, str], pods: Mapping[str, str], gates: FeatureGates
) -> Manifest:
    """Return ``manifest`` with these classes for what names none of their types.

    :raises InvalidArgument: if a pod may not have one.
    """
    if not containers and not pods:
        return manifest
    changed = [class_resources.assign(pod, container_classes=containers, pod_classes=pods) for pod in manifest.pods]
    for pod in changed:
        errors = FieldErrors()
        class_resources.validate(pod, gates, errors)
        if errors.found:
            raise InvalidArgument(f"--class, --pod-class: pod {pod.metadata.name}: {errors.found[0]}")
    return structs.replace(manifest, pods=tuple(changed))
