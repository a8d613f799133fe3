"""``--class`` and ``--pod-class`` of ``podkeep run``: classes for pods whose manifest names none (KEP-3008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podkeep.api import class_resources
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.manifest import Manifest
from podkeep.base.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class WantedClasses:
    """What the command line says, by type."""

    containers: Mapping[str, str]
    pods: Mapping[str, str]

    def given_to(self, manifest: Manifest, gates: FeatureGates) -> Manifest:
        """Return ``manifest`` with these classes for what names none of their types.

        :raises InvalidArgument: if a pod may not have one.
        """
        if not self.containers and not self.pods:
            return manifest
        pods = []
        for pod in manifest.pods:
            changed = class_resources.assign(pod, container_classes=self.containers, pod_classes=self.pods)
            errors = FieldErrors()
            class_resources.validate(changed, gates, errors)
            if errors.found:
                raise InvalidArgument(f"--class, --pod-class: pod {pod.metadata.name}: {errors.found[0]}")
            pods.append(changed)
        return Manifest(pods=tuple(pods), config_maps=manifest.config_maps, secrets=manifest.secrets)


def read(containers: Sequence[str], pods: Sequence[str], gates: FeatureGates) -> WantedClasses:
    """Return what ``TYPE=CLASS`` of both options ask for.

    :raises InvalidArgument: naming the option, if one cannot be understood, or the feature gate is off.
    """
    wanted = WantedClasses(containers=_read("--class", containers), pods=_read("--pod-class", pods))
    if (wanted.containers or wanted.pods) and not gates.enabled(CLASS_RESOURCES):
        raise InvalidArgument(
            f"--class and --pod-class: the feature gate {CLASS_RESOURCES.name} is off",
            hint="switch it on in [agent] feature_gates",
        )
    return wanted


def _read(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        type_name, equals, class_name = text.partition("=")
        if not equals:
            raise InvalidArgument(f"{option}: {text!r} is not TYPE=CLASS", hint="write it like rdt=gold")
        if why := class_resources.type_problem(type_name):
            raise InvalidArgument(f"{option}: type {type_name!r} {why}")
        if why := class_resources.class_problem(class_name):
            raise InvalidArgument(f"{option}: class {class_name!r} {why}")
        if found.setdefault(type_name, class_name) != class_name:
            raise InvalidArgument(f"{option}: {type_name} is given twice, as {found[type_name]} and {class_name}")
    return found
