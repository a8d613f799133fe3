"""Classes of a pod and its containers (KEP-3008): what is asked for, and whether the node offers it. Pure.

Owns: annotations and fields to what the runtime is told, the pod's QoS class among it, and the words of a refusal. Does
not own: asking the runtime (``class_offers.py``), the CRI messages (``class_messages.py``), or what a class
means: the agent knows names alone. Called by ``admission`` before anything of a pod is made, and by ``starter`` for
every sandbox and container anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from podkeep.agent.resources.qos import qos_class
from podkeep.api import class_resources as api
from podkeep.api.feature_gates import CLASS_RESOURCES, FeatureGates
from podkeep.api.pod import Pod
from podkeep.base.errors import FailedPrecondition
from podkeep.base.frozen import FrozenStruct
from podkeep.base.text.printable import listed

UNAVAILABLE = "ClassResourceUnavailable"
"""The reason of a pod that asks for what the node does not offer."""

_SHOWN = 10
"""Classes, or containers, that a message names at most."""


class Offer(FrozenStruct, kw_only=True):
    """What the node offers of one type at one level (CRI: ClassResourceInfo)."""

    classes: tuple[str, ...]
    default: str = ""
    """The class that a request for ``default`` gets; empty: there is none."""
    immutable: bool = False
    """Whether the class of what exists cannot be changed."""


class Offers(FrozenStruct, kw_only=True):
    """What the runtime reports (CRI: ResourcesInfo), by type, for pods and for containers."""

    reported: bool = False
    """False: an older or another runtime, which would pass over what it is asked for."""
    pod: Mapping[str, Offer] = msgspec.field(default_factory=dict)
    container: Mapping[str, Offer] = msgspec.field(default_factory=dict)


class Refusal(FrozenStruct, kw_only=True):
    """Why the node cannot take a pod on, and what to do about it."""

    message: str
    hint: str


def problem(type_name: str, text: str) -> str:
    """Return the text of a failure; its beginning can be searched for (KEP-3008, Monitoring)."""
    return f"class resource {type_name}: {text}"


def of_container(pod: Pod, container: api.AnyContainer, gates: FeatureGates) -> dict[str, str]:
    """Return the classes of ``container`` by type: those of its annotations and of its field.

    With the gate off annotations mean nothing; a pod with fields was taken on before, and must not run without.

    :raises FailedPrecondition: if the field names classes and the gate is off.
    """
    if not gates.enabled(CLASS_RESOURCES):
        _require_none(container.resources.classes)
        return {}
    given = api.annotated(pod.metadata.annotations, container.name)
    return {name: item.class_name for name, item in given.items()} | container.resources.classes


def of_pod_field(pod: Pod) -> dict[str, str]:
    """Return the classes that the field of ``pod`` names for it as a whole, by type."""
    return {} if pod.spec.resources is None else dict(pod.spec.resources.classes)


def of_pod(pod: Pod, gates: FeatureGates, offers: Offers) -> dict[str, str]:
    """Return the classes of ``pod`` as a whole by type: those of its field, and ``qos`` where the runtime knows it.

    :raises FailedPrecondition: if the field names classes and the gate is off.
    """
    asked = of_pod_field(pod)
    if not gates.enabled(CLASS_RESOURCES):
        _require_none(asked)
        return {}
    kind, known = qos_class(pod), offers.pod.get(api.QOS)
    return asked | ({api.QOS: kind} if known is not None and kind in known.classes else {})


def asks(pod: Pod, gates: FeatureGates) -> bool:
    """Return whether ``pod``, or a container of it, asks for a class.

    :raises FailedPrecondition: if a field does and the gate is off.
    """
    asked = of_pod_field(pod)
    if not gates.enabled(CLASS_RESOURCES):
        _require_none(asked)
    return bool(asked) or any(of_container(pod, container, gates) for _, container in api.containers(pod.spec))


def refusal(pod: Pod, gates: FeatureGates, offers: Offers) -> Refusal | None:
    """Return why the node does not offer what ``pod`` asks for, or nothing.

    Pod and containers are looked up in sets of their own (KEP-3008, Proposal); init and ephemeral containers count.

    :raises FailedPrecondition: as :func:`asks`.
    """
    if not asks(pod, gates):
        return None
    wanted: dict[tuple[str, str], list[str]] = {}
    for _, container in api.containers(pod.spec):
        for item in of_container(pod, container, gates).items():
            wanted.setdefault(item, []).append(container.name)
    pod_level = of_pod_field(pod)
    if not offers.reported:
        return _nothing_reported(sorted({*pod_level, *(name for name, _ in wanted)}))
    found = [
        problem(name, f"{why} (for the pod as a whole)")
        for name, class_name in pod_level.items()
        if (why := _why_not(name, class_name, offers.pod, "pods", offers.container))
    ]
    found += [
        problem(name, f"{why} ({_listed('container', askers)})")
        for (name, class_name), askers in wanted.items()
        if (why := _why_not(name, class_name, offers.container, "containers", offers.pod))
    ]
    if not found:
        return None
    return Refusal(message="; ".join(found), hint="`podkeep classes` shows what this node offers")


def require_reported(classes: Mapping[str, str], offers: Offers) -> None:
    """Check that the runtime knows what classes are, before it is sent any.

    :raises FailedPrecondition: if it does not: it would start what was to be in a class without one.
    """
    unreported = _nothing_reported(sorted(classes)) if not offers.reported else None
    if unreported is not None:
        raise FailedPrecondition(unreported.message, hint=unreported.hint)


def _require_none(classes: Mapping[str, str]) -> None:
    for name, class_name in classes.items():
        text = f"class {class_name} is asked for, and the feature gate {CLASS_RESOURCES.name} is off"
        raise FailedPrecondition(problem(name, text), hint="switch it on in [agent] feature_gates, or name no class")


def _nothing_reported(types: Sequence[str]) -> Refusal | None:
    if not types:
        return None
    return Refusal(
        message="; ".join(problem(name, "the runtime reports no class resources at all") for name in types),
        hint="it would run the pod without its classes: use podkeep's runtime, or name no class",
    )


def _why_not(
    type_name: str, class_name: str, offered: Mapping[str, Offer], level: str, elsewhere: Mapping[str, Offer]
) -> str:
    """Return why a class is not to be had, or nothing.

    :param level: who asks, ``pods`` or ``containers``.
    :param elsewhere: what is offered at the other level.
    """
    offer = offered.get(type_name)
    if offer is None:
        other = "containers" if level == "pods" else "pods as a whole"
        alone = f", only to {other}" if type_name in elsewhere else ""
        return f"this node does not offer it to {level}{alone}"
    if class_name == api.DEFAULT_CLASS:
        return "" if offer.default else f"this node has no default class for {level}"
    if class_name in offer.classes:
        return ""
    return f'this node has no class "{class_name}" for {level}, it has {listed(offer.classes, _SHOWN)}'


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what} {names[0]}" if len(names) == 1 else f"{what}s {listed(names, _SHOWN)}"
