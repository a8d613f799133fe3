"""Metrics of a process: counters, gauges and histograms, kept in dictionaries and written as Prometheus reads them.

Owns: counting, and the text format 0.0.4. Does not own: which metrics there are, or who may read them. A metric is a
constant of the module that names it; a :class:`Metrics` has the numbers of one process. Used on one thread.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from podkeep.base.frozen import FrozenStruct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds (Prometheus clients' default)."""
Labels = tuple[str, ...]


class Kind(Enum):
    """The type of a metric, as the text format calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(FrozenStruct, kw_only=True, eq=False):
    """What is counted. ``name`` is whole, with ``_total`` for counters; ``aliases`` are other names of the same."""

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds without the infinite one, ascending; of histograms only."""
    aliases: tuple[str, ...] = ()


def counter(name: str, text: str, *labels: str, aliases: tuple[str, ...] = ()) -> Metric:
    return Metric(kind=Kind.COUNTER, name=name, text=text, labels=labels, aliases=aliases)


def gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(kind=Kind.GAUGE, name=name, text=text, labels=labels)


def histogram(
    name: str,
    text: str,
    *labels: str,
    buckets: Sequence[float] = DEFAULT_BUCKETS,
    aliases: tuple[str, ...] = (),
) -> Metric:
    return Metric(kind=Kind.HISTOGRAM, name=name, text=text, labels=labels, buckets=tuple(buckets), aliases=aliases)


@dataclass(slots=True)
class _Observed:
    counts: list[int]
    total: float = 0.0


class Sample(FrozenStruct):
    """One line. ``moment``: when it was measured, in milliseconds since 1970; None: now. ``suffix``: of its name."""

    labels: Labels
    value: float
    moment: int | None = None


class Family(FrozenStruct):
    """A counter or gauge with its samples, made by somebody else than a :class:`Metrics`."""

    metric: Metric
    samples: Sequence[Sample] = msgspec.field(default_factory=list)


class Metrics:
    """The numbers of one process.

    :param shown: metrics that are there from the start: those without labels as 0.
    """

    def __init__(self, shown: Iterable[Metric] = ()) -> None:
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._observed: dict[Metric, dict[Labels, _Observed]] = {}
        self.before_scrape: list[Callable[[], None]] = []
        """Called before the numbers are written, to set gauges that are known only then."""
        for metric in shown:
            self._show(metric)

    def _show(self, metric: Metric) -> None:
        if metric.kind is Kind.HISTOGRAM:
            observed = self._observed.setdefault(metric, {})
            if not metric.labels:
                observed[()] = _Observed([0] * (len(metric.buckets) + 1))
        else:
            self._values.setdefault(metric, {} if metric.labels else {(): 0.0})

    def add(self, metric: Metric, *labels: str, amount: float = 1.0) -> None:
        """Count ``amount`` more; gauges may count less, too."""
        values = self._values.setdefault(metric, {})
        values[labels] = values.get(labels, 0.0) + amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self._values.setdefault(metric, {})[labels] = value

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Set all of a gauge's values; those that are not named go."""
        self._values[metric] = dict(values)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        found = self._observed.setdefault(metric, {})
        observed = found.get(labels)
        if observed is None:
            observed = found[labels] = _Observed([0] * (len(metric.buckets) + 1))
        # `le` includes the bound itself.
        observed.counts[bisect.bisect_left(metric.buckets, value)] += 1
        observed.total += value

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop what has these labels: of a pod that is gone, say."""
        places = [(metric.labels.index(name), value) for name, value in labels.items()]
        for kept in (self._values.get(metric), self._observed.get(metric)):
            for key in [key for key in kept or () if all(key[place] == value for place, value in places)]:
                assert kept is not None
                del kept[key]

    def value(self, metric: Metric, *labels: str) -> float:
        """Return a counter's or a gauge's value; of a histogram how many values it has. 0 if there is none."""
        if metric.kind is Kind.HISTOGRAM:
            observed = self._observed.get(metric, {}).get(labels)
            return float(sum(observed.counts)) if observed else 0.0
        return self._values.get(metric, {}).get(labels, 0.0)

    def text(self, *, only: Collection[Metric] = (), without: Collection[Metric] = ()) -> str:
        """Return everything in the text format, or those metrics that are named."""
        for prepare in self.before_scrape:
            prepare()
        lines: list[str] = []
        for metric, values in self._values.items():
            if metric in without or (only and metric not in only):
                continue
            samples = [Sample(labels, value) for labels, value in values.items()]
            for name in (metric.name, *metric.aliases):
                lines += _lines(name, metric, samples)
        for metric, found in self._observed.items():
            if metric in without or (only and metric not in only):
                continue
            for name in (metric.name, *metric.aliases):
                lines += _histogram_lines(name, metric, found)
        return "".join(lines)


def text_of(families: Iterable[Family]) -> str:
    return "".join(line for item in families for line in _lines(item.metric.name, item.metric, item.samples))


def _lines(name: str, metric: Metric, samples: Sequence[Sample]) -> Iterator[str]:
    if not samples:
        return
    yield from _head(name, metric)
    for sample in samples:
        moment = "" if sample.moment is None else f" {sample.moment}"
        yield f"{name}{_labels(metric.labels, sample.labels)} {_number(sample.value)}{moment}\n"


def _histogram_lines(name: str, metric: Metric, found: Mapping[Labels, _Observed]) -> Iterator[str]:
    if not found:
        return
    yield from _head(name, metric)
    for labels, observed in found.items():
        below = 0
        for bound, count in zip((*metric.buckets, math.inf), observed.counts, strict=True):
            below += count
            yield f"{name}_bucket{_labels(metric.labels, labels, _number(bound))} {below}\n"
        yield f"{name}_sum{_labels(metric.labels, labels)} {_number(observed.total)}\n"
        yield f"{name}_count{_labels(metric.labels, labels)} {below}\n"


def _head(name: str, metric: Metric) -> Iterator[str]:
    text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {metric.kind.value}\n"


def _labels(names: tuple[str, ...], values: Labels, bound: str = "") -> str:
    """Return the labels by their names' order, as Go's library writes them, and a bucket's ``bound`` last."""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in sorted(zip(names, values, strict=True))]
    if bound:
        pairs.append(f'le="{bound}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    # From 2^53 on not every integer is a float.
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))
