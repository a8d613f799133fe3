"""Metrics as Prometheus reads them: parsed by its own library."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from podkeep.base.metrics import Family, Metrics, Sample, counter, gauge, histogram, text_of

PULLS = counter("pulls_total", "Pulls.", "result", aliases=("image_pulls_total",))
PODS = gauge("pods", "Pods.")
STATES = gauge("states", "Containers.", "state", "pod")
TIMES = histogram("times_seconds", "Times.", "kind", buckets=(0.1, 1.0))
PLAIN = histogram("plain_seconds", "Times.", buckets=(1.0,), aliases=("bare_seconds",))


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return name and labels of each line with its value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_gauges_and_histograms_are_written_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    metrics.add(PULLS, "success")
    metrics.add(PULLS, "success", amount=2)
    metrics.set(PODS, 7)
    for seconds in (0.05, 0.1, 0.5, 3):
        metrics.observe(TIMES, seconds, "pull")
    assert samples(metrics.text()) == {
        ("pulls_total", (("result", "success"),)): 3,
        ("image_pulls_total", (("result", "success"),)): 3,
        ("pods", ()): 7,
        ("times_seconds_bucket", (("kind", "pull"), ("le", "0.1"))): 2,
        ("times_seconds_bucket", (("kind", "pull"), ("le", "1"))): 3,
        ("times_seconds_bucket", (("kind", "pull"), ("le", "+Inf"))): 4,
        ("times_seconds_sum", (("kind", "pull"),)): pytest.approx(3.65),
        ("times_seconds_count", (("kind", "pull"),)): 4,
    }


def test_what_is_shown_from_the_start_is_zero_without_labels_and_absent_with_them() -> None:
    found = samples(Metrics((PULLS, PODS, TIMES, PLAIN)).text())
    assert found == {
        ("pods", ()): 0,
        **{
            (f"{name}_{part}", labels): 0
            for name in ("plain_seconds", "bare_seconds")
            for part, labels in (
                ("bucket", (("le", "1"),)),
                ("bucket", (("le", "+Inf"),)),
                ("sum", ()),
                ("count", ()),
            )
        },
    }


@pytest.mark.parametrize("label", ['a"b', "a\\b", "a\nb", "a\\nb", "ü{},=", ""])
def test_labels_come_back_as_they_were_written(label: str) -> None:
    metrics = Metrics()
    metrics.add(PULLS, label)
    assert ("pulls_total", (("result", label),)) in samples(metrics.text())


def test_a_pod_that_is_gone_has_no_series() -> None:
    metrics = Metrics()
    for pod in ("a", "b"):
        metrics.set(STATES, 1, "running", pod)
        metrics.set(STATES, 2, "exited", pod)
    metrics.forget(STATES, pod="a")
    assert set(samples(metrics.text())) == {
        ("states", (("pod", "b"), ("state", "running"))),
        ("states", (("pod", "b"), ("state", "exited"))),
    }


def test_gauges_are_asked_for_before_they_are_written() -> None:
    metrics = Metrics()
    metrics.before_scrape.append(lambda: metrics.replace(STATES, {("running", "a"): 1.0}))
    metrics.set(STATES, 5, "exited", "gone")
    assert samples(metrics.text()) == {("states", (("pod", "a"), ("state", "running"))): 1}


def test_families_of_others_carry_the_time_of_their_measurement() -> None:
    text = text_of([Family(PODS, [Sample((), 0.25, 1700000000123)]), Family(STATES, [])])
    assert text.splitlines()[-1] == "pods 0.25 1700000000123"
    assert samples(text) == {("pods", ()): 0.25}
