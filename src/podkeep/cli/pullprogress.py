"""Showing a pull: bars for a person who looks, plain lines for a log.

Owns: following ``podkeep.v1.Node.WatchPulls`` while an operation runs. A runtime that is not podkeep's does not serve
that; then the pull is just not shown. Called by the verbs that pull images.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from podkeep.base.errors import PodkeepError, Unavailable, Unimplemented
from podkeep.cli import output
from podkeep.images.reference import parse

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import PullProgress

Result = TypeVar("Result")


class Display(Protocol):
    """Where progress goes. Entered before the first event and left after the last."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, event: PullProgress) -> None:
        """Show one event."""
        ...


async def shown(client: CriClient, image: str, operation: Awaitable[Result], stream: IO[str]) -> Result:
    """Return the result of ``operation``, and show on ``stream`` the pulls of ``image`` while it runs.

    :param image: reference as the runtime is asked for it, absolute path of an archive to load, or empty for all.
    :raises InvalidArgument: if ``image`` is no reference.
    """
    try:
        name = reported_name(image)
    except PodkeepError:
        if asyncio.iscoroutine(operation):
            operation.close()
        raise
    display: Display = Bars(stream) if stream.isatty() else Lines(stream)
    with display:
        watch = asyncio.ensure_future(_watch(client, name, display))
        try:
            return await operation
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


def reported_name(image: str) -> str:
    """Return the name under which the runtime reports progress: of an image the full one, of an archive its path."""
    return image if not image or image.startswith("/") else str(parse(image))


async def _watch(client: CriClient, image: str, display: Display) -> None:
    from podkeep.cri.v1 import podkeep_pb2

    try:
        async for event in client.node.WatchPulls(podkeep_pb2.WatchPullsRequest(image=image)):
            display.update(event)
    except (Unimplemented, Unavailable):
        return


def short(digest: str) -> str:
    """Return the twelve hex digits by which people know a digest."""
    return digest.partition(":")[2][:12] or digest[:12]


class Lines:
    """One line whenever a blob enters a phase."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._phases: dict[tuple[str, str], str] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def update(self, event: PullProgress) -> None:
        """Write a line if the event is news."""
        key = (event.image, event.digest)
        if self._phases.get(key) == event.phase:
            return
        self._phases[key] = event.phase
        total = f" ({output.size(event.total)})" if event.total else ""
        name = f" {short(event.digest)}" if event.digest else ""
        self._stream.write(f"{event.image}{name}: {event.phase}{total}\n")
        self._stream.flush()


class Bars:
    """One bar per blob, drawn by rich."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            console=Console(file=stream),
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, event: PullProgress) -> None:
        """Move the bar of the event's blob."""
        key = (event.image, event.digest)
        description = f"{short(event.digest)} {event.phase}" if event.digest else f"{event.image} {event.phase}"
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(description, total=None)
        self._progress.update(
            self._tasks[key], description=description, completed=event.done, total=event.total or None
        )
