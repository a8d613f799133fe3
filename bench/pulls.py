"""Pulls: both runtimes pull the same images from the same registry in turn; what that takes, and what is left of it.

Measures with connected daemons and returns a table's rows; starts nothing. What containerd 1.6 cannot do (image
volumes, artifacts) stands alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench import bulk, memory
from bench.daemons import REGISTRY, Daemon
from bench.pods import MOUNTED, PodOptions, Pods
from bench.report import Cell, Row
from bench.samples import Samples

_GIB = 1 << 30
SMALL_PULLS = 10
_VOLUME_ROUNDS = 3
"""So many times more pods, with and without a volume: a small difference of two medians is looked for."""
_TITLE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: ``rounds`` of pulls, ``pods`` with and without a volume, an artifact of so many GiB."""

    rounds: int
    pods: int
    artifact_gib: int
    files: int = bulk.FILES


@dataclass(kw_only=True)
class Puller:
    """One runtime, connected, with what was measured: seconds by image, peak memory and bytes on disk in KiB."""

    daemon: Daemon
    pods: Pods
    options: PodOptions
    times: Samples = field(default_factory=Samples)
    peak_kib: dict[str, int] = field(default_factory=dict)
    disk_kib: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str, image: str) -> None:
        """Pull ``image`` with nothing of it here; what the disk still has to write is written before."""
        self.pods.remove_image(image)
        os.sync()
        with self.times.timed(name):
            self.pods.pull(image)

    def again(self, name: str, image: str) -> None:
        """Pull ``image``, which is here and has not changed."""
        with self.times.timed(name):
            self.pods.pull(image)

    def weigh(self, name: str, image: str) -> None:
        """Pull once more, not timed, and note the most memory at one time and what it takes on disk."""
        self.pods.remove_image(image)
        before = self.disk()
        with memory.Peak(self.daemon.pid) as peak:
            self.pods.pull(image)
        self.peak_kib[name] = peak.kib
        self.disk_kib[name] = self.disk() - before

    def disk(self) -> int:
        """KiB that the daemon's directory takes on disk."""
        os.sync()
        command = ["du", "--summarize", "--block-size=1K", "--one-file-system", str(self.daemon.directory)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def measure(containerd: Puller, podkeep: Puller, busybox: str, plan: Plan) -> list[Row]:
    """Push what is to be pulled, and measure everything."""
    rows: list[Row] = []
    both = (containerd, podkeep)
    _progress("many files")
    many = bulk.push_image(bulk.many_files(plan.files), REGISTRY, "bench/many-files")
    rows += _large(both, f"{plan.files:,} files".replace(",", " "), many, plan)
    _progress("a model")
    model = bulk.push_image(bulk.model(_GIB), REGISTRY, "bench/model")
    rows += _large(both, "1 GiB in one file", model, plan)
    _progress("a small image")
    for number in range(SMALL_PULLS):
        for puller in _turns(both, number):
            puller.fresh("small", busybox)
            puller.again("again", busybox)
    rows += [_compared(title, key, both) for title, key in (("Pull, busybox", "small"), ("Pull, nothing new", "again"))]
    _progress("image volumes")
    rows += _volumes(podkeep, busybox, plan)
    if plan.artifact_gib:
        _progress(f"an artifact of {plan.artifact_gib} GiB")
        rows += _artifact(podkeep, plan)
    return rows


def _large(both: Sequence[Puller], title: str, image: str, plan: Plan) -> list[Row]:
    for number in range(plan.rounds):
        for puller in _turns(both, number):
            puller.fresh(title, image)
    for puller in both:
        puller.weigh(title, image)
    return [
        _compared(f"Pull, {title}", title, both),
        _weighed(f"Memory while pulling, {title} (PSS)", [puller.peak_kib[title] for puller in both]),
        _weighed(f"On disk, {title}", [puller.disk_kib[title] for puller in both]),
    ]


def _turns(both: Sequence[Puller], number: int) -> Sequence[Puller]:
    return both if number % 2 == 0 else both[::-1]


def _volumes(podkeep: Puller, busybox: str, plan: Plan) -> list[Row]:
    """Pods with and without an image volume, in an order without a period: what the volume adds.

    The kernel ends the network namespaces of earlier pods while later ones start; in turn, one kind of pods would
    pay for it.
    """
    plain = podkeep.options, Samples()
    mounted = replace(podkeep.options, volume=busybox), Samples()
    shuffled = random.Random(0)
    for number in range(_VOLUME_ROUNDS * plan.pods + 1):
        for options, counted in shuffled.sample((plain, mounted), 2):
            samples = counted if number else Samples()  # the first of each is not counted
            podkeep.pods.down(podkeep.pods.up(options, samples), samples)
    cells = []
    for call in ("pod up", "CreateContainer"):
        without, with_volume = (counted.summary(call).p50 for _, counted in (plain, mounted))
        cells.append((call, Cell(value=with_volume - without, text=f"{with_volume - without:+.1f} ms")))
    return [Row(title=f"An image volume adds to {call}", containerd=None, podkeep=cell) for call, cell in cells]


def _artifact(podkeep: Puller, plan: Plan) -> list[Row]:
    """A pod uses the artifact; what the next ones take that use it, too."""
    title = f"artifact of {plan.artifact_gib} GiB"
    content = bulk.noise(plan.artifact_gib * _GIB)
    artifact = bulk.push_artifact(content, REGISTRY, "bench/artifact", _TITLE)
    podkeep.fresh(title, artifact)
    podkeep.weigh(title, artifact)
    options = replace(podkeep.options, volume=artifact)
    first = podkeep.pods.up(options, Samples())
    podkeep.pods.output(first, ["sh", "-c", f"test -s {MOUNTED}/{_TITLE}"])
    before, samples = podkeep.disk(), Samples()
    for _ in range(plan.pods):
        pod = podkeep.pods.up(options, samples)
        podkeep.pods.down(pod, Samples())
    written = podkeep.disk() - before
    podkeep.pods.down(first, Samples())
    return [
        Row(title=f"Pull, {title}", containerd=None, podkeep=_time(podkeep.times, title)),
        Row(
            title=f"Memory while pulling, {title} (PSS)",
            containerd=None,
            podkeep=Cell.mebibytes(podkeep.peak_kib[title]),
        ),
        *(
            Row(title=f"{call}, a second pod with it", containerd=None, podkeep=_time(samples, call))
            for call in ("Pod up", "CreateContainer")
        ),
        Row(title=f"Written to the disk by {plan.pods} such pods", containerd=None, podkeep=Cell.mebibytes(written)),
    ]


def _compared(title: str, key: str, both: Sequence[Puller]) -> Row:
    containerd, podkeep = (_time(puller.times, key) for puller in both)
    return Row(title=title, containerd=containerd, podkeep=podkeep)


def _weighed(title: str, kib: Sequence[int]) -> Row:
    containerd, podkeep = (Cell.mebibytes(value) for value in kib)
    return Row(title=title, containerd=containerd, podkeep=podkeep)


def _time(samples: Samples, key: str) -> Cell:
    summary = samples.summary(key.replace("Pod up", "pod up"))
    return Cell.seconds(summary) if summary.p50 >= 1000 else Cell.milliseconds(summary)


def _progress(text: str) -> None:
    print(f"bench: pulls: {text}", file=sys.stderr, flush=True)
