"""The annotations by which containers ask for classes on nodes without CRI's field. Pure.

Owns: their keys and which of several counts. Does not own: whether a class exists (``registry.py``), or which classes
may not be asked for in this way, which is in the types' files. Called where a CreateContainer request is converted.

The keys are goresctrl's, as containerd and CRI-O know them. The alpha annotations of KEP-3008 are not among them: the
agent turns those into CRI's field.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from podkeep.runtime.class_resources.model import BLOCKIO, RDT

TYPES = (RDT, BLOCKIO)


class Origin(enum.StrEnum):
    """Who wrote an annotation: whoever drives the runtime, or the author of the pod."""

    CONTAINER = "container"
    POD = "pod"


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What one annotation asks for."""

    key: str
    class_name: str
    origin: Origin


@runtime_checkable
class AnnotationPolicy(Protocol):
    """A type whose configuration says which classes annotations may ask for (goresctrl: kubernetes.deny*Annotation)."""

    def check_annotation(self, class_name: str, annotation: Annotation) -> None:
        """Check that an annotation may ask for a class; one that does not exist is no error here.

        :raises PermissionDenied: if it may not.
        """


def find(
    container_name: str, container_annotations: Mapping[str, str], pod_annotations: Mapping[str, str]
) -> dict[str, Annotation]:
    """Return by type the annotation that counts for a container.

    The container's own comes before the pod's for this container, which comes before the pod's for all. An empty value
    asks for no class and still counts: so one container can be left out of what its pod asks for.
    """
    found = {}
    for name in TYPES:
        candidates = (
            (Origin.CONTAINER, f"io.kubernetes.cri.{name}-class", container_annotations),
            (Origin.POD, f"{name}.resources.beta.kubernetes.io/container.{container_name}", pod_annotations),
            (Origin.POD, f"{name}.resources.beta.kubernetes.io/pod", pod_annotations),
        )
        for origin, key, annotations in candidates:
            if key in annotations:
                if annotations[key]:
                    found[name] = Annotation(key=key, class_name=annotations[key], origin=origin)
                break
    return found


def merge(asked: Mapping[str, str], found: Mapping[str, Annotation]) -> dict[str, str]:
    """Return types to classes: those that the request's field asks for, and those of annotations where it is silent."""
    return {name: annotation.class_name for name, annotation in found.items()} | dict(asked)
