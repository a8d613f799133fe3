"""``--class`` and ``--pod-class`` of ``podkeep run``: classes for pods whose manifest names none (KEP-3008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from podkeep.api import class_resources
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.fields import FieldErrors
from podkeep.api.manifest import Manifest
from podkeep.base.errors import InvalidArgument
from podkeep.cli import class_words


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
    wanted = WantedClasses(
        containers=class_words.read(containers, option="--class"), pods=class_words.read(pods, option="--pod-class")
    )
    if (wanted.containers or wanted.pods) and not gates.enabled(CLASS_RESOURCES):
        raise InvalidArgument(
            f"--class and --pod-class: the feature gate {CLASS_RESOURCES.name} is off",
            hint="switch it on in [agent] feature_gates",
        )
    return wanted
