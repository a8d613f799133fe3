from __future__ import annotations

import asyncio
import inspect
import io

import pytest

from podkeep.base.errors import InvalidArgument
from podkeep.cli import image, pullprogress
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2, podkeep_pb2

IDENTITY = "sha256:" + "ab" * 32


def test_rows_of_an_image() -> None:
    tagged = api_pb2.Image(id=IDENTITY, size=2048, repo_tags=["docker.io/library/busybox:1", "localhost:5000/b:2"])
    assert image.image_rows(tagged) == [
        ("docker.io/library/busybox", "1", "abababababab", "2 KiB"),
        ("localhost:5000/b", "2", "abababababab", "2 KiB"),
    ]
    by_digest = api_pb2.Image(id=IDENTITY, repo_digests=[f"localhost:5000/b@{IDENTITY}"])
    assert image.image_rows(by_digest) == [("localhost:5000/b", "<none>", "abababababab", "0 B")]
    assert image.image_rows(api_pb2.Image(id=IDENTITY)) == [("<none>", "<none>", "abababababab", "0 B")]


def test_lines_tell_each_phase_of_a_blob_once() -> None:
    stream = io.StringIO()
    with pullprogress.Lines(stream) as lines:
        for phase, done in [("downloading", 1), ("downloading", 2), ("unpacking", 0), ("unpacking", 2)]:
            lines.update(podkeep_pb2.PullProgress(image="b", digest=IDENTITY, phase=phase, done=done, total=2048))
        lines.update(podkeep_pb2.PullProgress(image="b", phase="done"))
    assert stream.getvalue().splitlines() == [
        "b abababababab: downloading (2 KiB)",
        "b abababababab: unpacking (2 KiB)",
        "b: done",
    ]


def test_bars_are_drawn() -> None:
    stream = io.StringIO()
    with pullprogress.Bars(stream) as bars:
        bars.update(podkeep_pb2.PullProgress(image="b", digest=IDENTITY, phase="downloading", done=1024, total=2048))
        bars.update(podkeep_pb2.PullProgress(image="b", digest=IDENTITY, phase="done", done=2048, total=2048))
    assert "abababababab done" in stream.getvalue()


@pytest.mark.parametrize("image", ["a b", "localhost/busybox@sha256:12"])
@pytest.mark.filterwarnings("error")
def test_pull_of_what_is_no_reference_is_not_begun(image: str) -> None:
    begun: list[str] = []

    async def pull() -> None:
        begun.append(image)

    async def show() -> None:
        async with CriClient("/nonexistent.sock") as client:
            await pullprogress.shown(client, image, operation, io.StringIO())

    operation = pull()
    with pytest.raises(InvalidArgument):
        asyncio.run(show())
    assert inspect.getcoroutinestate(operation) == inspect.CORO_CLOSED
    assert begun == []


def test_progress_is_asked_for_under_the_name_the_runtime_reports() -> None:
    assert pullprogress.reported_name("busybox") == "docker.io/library/busybox:latest"
    assert pullprogress.reported_name("/tmp/busybox.tar") == "/tmp/busybox.tar"
    assert pullprogress.reported_name("") == ""
