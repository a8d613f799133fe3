"""The campaigns: cases without end, each sent to a node, and everything noted that must not be."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attack import archives, requests, streams
from attack.calls import Call, Case, case_text, generator, read_case
from attack.node import ALSO, PYTHON, REFUSALS, Answer, Code, Held, Node
from attack.report import Report
from attack.requests import STAY
from podkeep.base.errors import PodkeepError
from podkeep.cri.v1 import api_pb2 as api
from podkeep.cri.v1 import podkeep_pb2 as node_pb2

CLEAR_EVERY = 100
"""Cases after which everything is removed and counted."""
POOLS = 40
"""Threads that pools of the daemon may add, each up to a bound of its own."""

Count = Callable[[str], None]
Problem = tuple[str, str]
"""Where, and what."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """How cases of one kind are made, sent, written to a file of the corpus and read from one."""

    make: Callable[[random.Random], Any]
    send: Callable[[Node, Any, Count], Iterator[Problem]]
    text: Callable[[Any, str], str]
    read: Callable[[Path], Any]
    settings: tuple[str, ...] = ()
    """What its daemon is told."""


def send_requests(node: Node, case: Case, count: Count) -> Iterator[Problem]:
    """Send the calls of a case and yield what must not be."""
    for call in case:
        yield from _judged(call, node.call(call), count)


def _judged(call: Call, answer: Answer, count: Count) -> Iterator[Problem]:
    count(f"{call.rpc} {answer.code.name}")
    allowed = REFUSALS | ALSO.get(call.rpc, frozenset())
    nameless = answer.code is Code.UNKNOWN and not answer.said.startswith("RegistryUnavailable: ")
    if answer.code not in allowed or nameless:
        yield f"{call.rpc} {answer.code.name}", answer.said
    elif PYTHON.search(answer.said):
        yield f"{call.rpc} {answer.code.name} as Python says it", answer.said


def send_stream(node: Node, case: streams.Stream, count: Count) -> Iterator[Problem]:
    """Ask for a stream and do what its client does."""
    url = node.url(case.call)
    if url:
        count(f"{case.call.rpc} {streams.play(case, url)}")
    else:
        yield f"{case.call.rpc} was refused", str(case.call.request)


_LOOK = """cd /image && find . | head -200
find . -type f | head -30 | while read -r file; do head -c 9000 "$file"; done
ls -l . a d
"""


def send_archive(node: Node, case: archives.Archive, count: Count) -> Iterator[Problem]:
    """Load or pull an image; if that is done, list it, read it as a volume, run it, and remove it."""
    name = node.offer(case)
    got = Call(rpc="PullImage", request=api.PullImageRequest(image=api.ImageSpec(image=name)))
    if not case.pulled:
        got = Call(rpc="LoadImage", request=node_pb2.LoadImageRequest(path=name))
    answer = node.call(got)
    yield from _judged(got, answer, count)
    if answer.code is not Code.OK:
        return
    loaded = node_pb2.LoadImageResponse.FromString(answer.data).image_refs
    spec = api.ImageSpec(image=name if case.pulled else loaded[0] if loaded else "none")
    volume = api.Mount(container_path="/image", readonly=True, image=spec)
    config = api.ContainerConfig(metadata=api.ContainerMetadata(name="@new"), mounts=[volume])
    config.image.image, config.command[:] = "@image", STAY
    reading = api.ExecSyncRequest(container_id="@newest", cmd=["sh", "-c", _LOOK], timeout=20)
    running = api.ContainerConfig(metadata=api.ContainerMetadata(name="@new"), image=spec)
    for rpc, request in (
        ("ListImages", api.ListImagesRequest()),
        ("ImageStatus", api.ImageStatusRequest(image=spec, verbose=True)),
        ("DescribeImages", node_pb2.DescribeImagesRequest(documents=True)),
        ("CreateContainer", api.CreateContainerRequest(pod_sandbox_id="@sandbox", config=config)),
        ("StartContainer", api.StartContainerRequest(container_id="@newest")),
        ("ExecSync", reading),
        ("RemoveContainer", api.RemoveContainerRequest(container_id="@newest")),
        ("CreateContainer", api.CreateContainerRequest(pod_sandbox_id="@sandbox", config=running)),
        ("RemoveContainer", api.RemoveContainerRequest(container_id="@newest")),
        ("RemoveImage", api.RemoveImageRequest(image=spec)),
    ):
        call = Call(rpc=rpc, request=request)
        answer = node.call(call)
        yield from _judged(call, answer, count)
        if rpc in {"ListImages", "DescribeImages", "RemoveImage"} and answer.code is not Code.OK:
            yield f"{rpc} {answer.code.name} with such an image", answer.said


CAMPAIGNS = {
    "archives": Campaign(make=archives.make, send=send_archive, text=archives.archive_text, read=archives.read_archive),
    "directories": Campaign(
        make=archives.make,
        send=send_archive,
        text=archives.archive_text,
        read=archives.read_archive,
        settings=("images.snapshot_driver=directories",),
    ),
    "requests": Campaign(make=requests.make, send=send_requests, text=case_text, read=read_case),
    "streams": Campaign(make=streams.make, send=send_stream, text=streams.stream_text, read=streams.read_stream),
}


def problems(node: Node, campaign: Campaign, case: Any, count: Count = lambda _: None) -> Iterator[Problem]:
    """Send a case and yield what must not be, in its answers or of the node afterwards."""
    try:
        yield from campaign.send(node, case, count)
    except PodkeepError as error:
        yield "there was no pod for it", str(error)
    for said in node.wrong():
        yield "afterwards", said


def run(node: Node, name: str, seed: int, numbers: Iterable[int], keep: Path | None = None) -> Report:
    """Run the cases of a campaign that have these numbers."""
    campaign, report = CAMPAIGNS[name], Report(name, seed)
    before, number = node.held(), 0
    for number in numbers:
        case = campaign.make(generator(seed, name, number))
        for where, said in problems(node, campaign, case, lambda word: report.answers.update([word])):
            if report.find(f"{name}/{number}", where, said):
                print(f"{name}/{number}: {where}: {said[:600]}", flush=True)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{name}-{seed}-{number}.json").write_text(campaign.text(case, f"{where}: {said}"[:2000]))
        report.cases += 1
        if not node.alive:
            return report
        if report.cases % CLEAR_EVERY == 0:
            _count(node, before, report, number)
    _count(node, before, report, number)
    return report


def during(seconds: float) -> Iterator[int]:
    """Yield numbers of cases, the first one anyway, until that time is over."""
    deadline = time.monotonic() + seconds
    return itertools.takewhile(lambda number: not number or time.monotonic() < deadline, itertools.count())


def _count(node: Node, before: Held, report: Report, number: int) -> None:
    try:
        node.clear()
    except PodkeepError as error:
        report.find(f"{report.name}/{number}", "removing all pods", str(error))
        if not node.alive:
            return
    report.memory.append(node.resident() >> 20)
    report.threads = node.held().threads
    for said in node.left(before, threads=POOLS):
        report.find(f"{report.name}/{number}", f"left behind up to here ({CLEAR_EVERY} cases)", said)
