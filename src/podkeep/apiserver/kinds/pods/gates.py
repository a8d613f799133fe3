"""Fields of pods whose feature gate is off: dropped from what is written, unless the stored object uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from podkeep.api.feature_gates import (
    CLASS_RESOURCES,
    CLUSTER_TRUST_BUNDLES,
    IMAGE_VOLUME,
    POD_CERTIFICATES,
    POD_GROUPS,
    STOP_SIGNALS,
    USER_NAMESPACES,
    FeatureGates,
    Gate,
)
from podkeep.apiserver.kinds.pods.defaults import containers

Spec = dict[str, Any]


class Fields(NamedTuple):
    """Fields of a gate: ``places`` yields the objects of a spec that may have them."""

    gate: Gate
    names: tuple[str, ...]
    places: Callable[[Spec], Iterator[dict[str, Any]]]


def _itself(spec: Spec) -> Iterator[dict[str, Any]]:
    yield spec


def _volumes(spec: Spec) -> Iterator[dict[str, Any]]:
    yield from spec.get("volumes", ())


def _projections(spec: Spec) -> Iterator[dict[str, Any]]:
    for volume in spec.get("volumes", ()):
        yield from volume.get("projected", {}).get("sources", ())


def _lifecycles(spec: Spec) -> Iterator[dict[str, Any]]:
    for container in containers(spec):
        if "lifecycle" in container:
            yield container["lifecycle"]


def _resources(spec: Spec) -> Iterator[dict[str, Any]]:
    for value in (spec, *containers(spec)):
        if "resources" in value:
            yield value["resources"]


GATED = (
    Fields(USER_NAMESPACES, ("hostUsers", "userHostNamespace"), _itself),
    # A volume without its type is refused by validation; it must not become a directory that is empty.
    Fields(IMAGE_VOLUME, ("image",), _volumes),
    Fields(CLASS_RESOURCES, ("classes",), _resources),
    Fields(STOP_SIGNALS, ("stopSignal",), _lifecycles),
    Fields(CLUSTER_TRUST_BUNDLES, ("clusterTrustBundle",), _projections),
    Fields(POD_CERTIFICATES, ("podCertificate",), _projections),
    Fields(POD_GROUPS, ("schedulingGroup",), _itself),
)


def drop(spec: Spec, old: Spec | None, gates: FeatureGates) -> None:
    """Remove from a spec the fields of gates that are off, unless ``old``, the stored one, uses them."""
    for fields in GATED:
        if gates.enabled(fields.gate) or (old is not None and _used(old, fields)):
            continue
        if fields.gate is STOP_SIGNALS:
            _drop_lifecycles(spec)
        for place in fields.places(spec):
            for name in fields.names:
                place.pop(name, None)


def _drop_lifecycles(spec: Spec) -> None:
    """Remove what would be empty without a stop signal."""
    for container in containers(spec):
        if "lifecycle" in container and container["lifecycle"].keys() == {"stopSignal"}:
            del container["lifecycle"]


def _used(spec: Spec, fields: Fields) -> bool:
    return any(place.keys() & fields.names for place in fields.places(spec))


def drop_pod(pod: Mapping[str, Any], old: Mapping[str, Any] | None, gates: FeatureGates) -> None:
    """Remove from a pod the fields of gates that are off, unless ``old``, the stored one, uses them."""
    drop(pod["spec"], None if old is None else old["spec"], gates)
