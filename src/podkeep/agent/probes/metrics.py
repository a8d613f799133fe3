"""Counts and durations of probes, as ``/metrics/probes`` of a kubelet has them. Values only; others format them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds (Prometheus, DefBuckets)."""
TOTAL_LABELS = ("probe_type", "result", "container", "pod", "namespace", "pod_uid")
DURATION_LABELS = ("probe_type", "container", "pod", "namespace")


@dataclass
class Histogram:
    """Durations. ``counts`` is one for each of :data:`BUCKETS`, not added up, and one for what is longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    @property
    def count(self) -> int:
        """Return how many durations there are."""
        return sum(self.counts)

    def observe(self, seconds: float) -> None:
        """Note a duration."""
        index = next((index for index, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))
        self.counts[index] += 1
        self.sum += seconds


@dataclass
class ProbeMetrics:
    """``prober_probe_total`` and ``prober_probe_duration_seconds``.

    Keys are the values of :data:`TOTAL_LABELS` and :data:`DURATION_LABELS`. Durations are those of successes.
    """

    total: Counter[tuple[str, ...]] = field(default_factory=Counter)
    durations: dict[tuple[str, ...], Histogram] = field(default_factory=dict)

    def note(self, labels: tuple[str, str, str, str, str], *, success: bool, seconds: float) -> None:
        """Note one run; ``labels``: type of the probe, container, pod, namespace, UID of the pod."""
        kind, container, pod, namespace, uid = labels
        self.total[kind, "successful" if success else "failed", container, pod, namespace, uid] += 1
        if success:
            self.durations.setdefault((kind, container, pod, namespace), Histogram()).observe(seconds)

    def forget(self, pod: str, namespace: str, uid: str) -> None:
        """Drop what is known of a pod that is gone."""
        for key in [key for key in self.total if key[5] == uid]:
            del self.total[key]
        for key in [key for key in self.durations if key[2:] == (pod, namespace)]:
            del self.durations[key]
