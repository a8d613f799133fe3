"""What a series of outcomes makes of a probe's result: thresholds, holding, what counts before the first run. Pure."""

from __future__ import annotations

from msgspec import structs

from podkeep.agent.probes.model import Kind, Verdict
from podkeep.api.containers import Probe
from podkeep.base.frozen import FrozenStruct

_INITIAL = {Kind.STARTUP: None, Kind.READINESS: False, Kind.LIVENESS: True}
"""What counts before a probe has said anything (kubelet, ``newWorker``)."""


class Progress(FrozenStruct, kw_only=True):
    """How far one probe of one attempt of a container is.

    ``result`` is what counts: whether it succeeds, ``None`` while that is not known. ``run`` is how often in a row it
    said ``last``. ``held``: it is not run any more for this attempt.
    """

    result: bool | None
    last: bool | None = None
    run: int = 0
    held: bool = False


def begin(kind: Kind, *, known: bool | None = None) -> Progress:
    """Return the progress of a probe of a new attempt.

    :param known: what its result was before the agent was restarted: it counts until the probe says otherwise, so that
        a restart of the agent changes nothing of a pod (Kubernetes 1.35, ``ChangeContainerStatusOnKubeletRestart``).
    """
    if known is None or (kind is not Kind.READINESS and not known):
        return Progress(result=_INITIAL[kind])
    return Progress(result=known, held=kind is Kind.STARTUP)


def after(progress: Progress, kind: Kind, probe: Probe, verdict: Verdict) -> Progress:
    """Return the progress after one run. A run that could not be carried out does not count."""
    if verdict is Verdict.UNKNOWN:
        return progress
    success = verdict is not Verdict.FAILURE
    run = progress.run + 1 if progress.last is success else 1
    threshold = probe.success_threshold if success else probe.failure_threshold
    if run < max(threshold, 1):
        return structs.replace(progress, last=success, run=run)
    # A container that is about to be killed is left alone, and startup is proven or refuted once.
    held = kind is Kind.STARTUP or (kind is Kind.LIVENESS and not success)
    return Progress(result=success, last=success, run=0 if held else run, held=held)
