"""The annotations by which containers ask for classes on nodes without CRI's field. Pure.

Owns: their keys and which of several counts. Does not own: whether a class exists (``registry.py``), or which classes
may not be asked for in this way, which is in the types' files. Called where a CreateContainer request is converted.

The keys are goresctrl's, as containerd and CRI-O know them. The alpha annotations of KEP-3008 are not among them: the
agent turns those into CRI's field.
"""

from __future__ import annotations

from collections.abc import Mapping

from podkeep.base.frozen import FrozenStruct
from podkeep.runtime.class_resources.model import BLOCKIO, RDT, Origin

TYPES = (RDT, BLOCKIO)


class Annotation(FrozenStruct, kw_only=True):
    """What one annotation asks for."""

    key: str
    class_name: str
    origin: Origin


def find(
    asked: Mapping[str, str],
    container_name: str,
    container_annotations: Mapping[str, str],
    pod_annotations: Mapping[str, str],
) -> dict[str, Annotation]:
    """Return by type the annotation that counts for a container; not of types that ``asked``, CRI's field, names.

    The container's own comes before the pod's for this container, which comes before the pod's for all. An empty value
    asks for no class and still counts: so one container can be left out of what its pod asks for.
    """
    found = {}
    for name in (item for item in TYPES if item not in asked):
        candidates = (
            (Origin.CONTAINER, f"io.kubernetes.cri.{name}-class", container_annotations),
            (Origin.POD, f"{name}.resources.beta.kubernetes.io/container.{container_name}", pod_annotations),
            (Origin.POD, f"{name}.resources.beta.kubernetes.io/pod", pod_annotations),
        )
        for origin, key, given in candidates:
            if key in given:
                if given[key]:
                    found[name] = Annotation(key=key, class_name=given[key], origin=origin)
                break
    return found
