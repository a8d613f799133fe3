"""What probes are, what one run of a probe yields, and what the probes of a container say together. Pure."""

from __future__ import annotations

from enum import Enum

from podkeep.api.containers import Container, EphemeralContainer, Probe
from podkeep.base.frozen import FrozenStruct

VERSION = "1.36"
"""The Kubernetes version that requests tell."""


class Kind(Enum):
    """What a probe is for; the value is how events and metrics call it (kubelet, prober)."""

    STARTUP = "Startup"
    READINESS = "Readiness"
    LIVENESS = "Liveness"


class Verdict(Enum):
    """What one run of a probe yields; the value is how events call it (k8s.io/kubernetes/pkg/probe)."""

    SUCCESS = "success"
    WARNING = "warning"
    """Success, with something to say about it."""
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """The probe could not be carried out, which says nothing about the container."""


class Outcome(FrozenStruct, kw_only=True):
    """One run of a probe; ``text``: what it says for the event."""

    verdict: Verdict
    text: str = ""


class ProbeResult(FrozenStruct, kw_only=True):
    """What the probes of one attempt of a container found, after their thresholds.

    Each is ``None`` until its probe has an answer, and where there is no such probe: that is in the specification.
    """

    started: bool | None = None
    """Of the startup probe; ``False`` when it failed as often as it may: the container is killed."""
    ready: bool | None = None
    """Of the readiness probe, ``False`` from the beginning on."""
    live: bool | None = None
    """Of the liveness probe; ``False`` when it failed as often as it may: the container is killed."""


NO_PROBES = ProbeResult()


class Target(FrozenStruct, kw_only=True):
    """One attempt of a container that is probed, or for which a hook runs."""

    container: Container | EphemeralContainer
    id: str
    """As the runtime calls it."""
    pod: str
    """The pod as messages call it: ``name_namespace(uid)`` (kubelet, format.Pod)."""
    host: str
    """Address of the pod; empty if it has none."""


def spec_of(container: Container | EphemeralContainer, kind: Kind) -> Probe | None:
    if kind is Kind.STARTUP:
        return container.startup_probe
    return container.readiness_probe if kind is Kind.READINESS else container.liveness_probe
