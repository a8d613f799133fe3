"""Showing a pull, a load or a save: bars for a person who looks, plain lines for a log.

Owns: following ``podkeep.v1.Node.WatchPulls`` while an operation runs. A runtime that is not podkeep's does not serve
that; then the operation is just not shown. Called by the verbs that pull, load and save images. Drawing is
``progressbars``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from podkeep.base.errors import PodkeepError, Unavailable, Unimplemented
from podkeep.base.registries.reference import parse
from podkeep.base.text.printable import printable
from podkeep.cli.core import output

if TYPE_CHECKING:
    from podkeep.cri.client import CriClient
    from podkeep.cri.v1.podkeep_pb2 import PullProgress

Result = TypeVar("Result")
Show = Callable[[str, Awaitable[Result]], Awaitable[Result]]
"""Returns the result of an operation on an image, and shows it while it runs."""


class Display(Protocol):
    """Where progress goes. Entered before the first event and left after the last."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, event: PullProgress) -> None: ...


def each_once(show: Show[Result]) -> Show[Result]:
    """Return what shows an image by ``show``, but for those that wait for one that is being shown: pods share pulls."""
    showing: set[str] = set()

    async def show_or_wait(image: str, operation: Awaitable[Result]) -> Result:
        if image in showing:
            return await operation
        showing.add(image)
        try:
            return await show(image, operation)
        finally:
            showing.remove(image)

    return show_or_wait


async def shown(client: CriClient, image: str, operation: Awaitable[Result], stream: IO[str]) -> Result:
    """Return the result of ``operation``, and show on ``stream`` the pulls of ``image`` while it runs.

    :param image: reference as the runtime is asked for it, or empty for all.
    :raises InvalidArgument: if ``image`` is no reference.
    """
    try:
        names = {reported_name(image)} if image else ()
    except PodkeepError:
        if asyncio.iscoroutine(operation):
            operation.close()
        raise
    return await followed(client, names, operation, display_for(stream))


async def followed(client: CriClient, names: Collection[str], operation: Awaitable[Result], display: Display) -> Result:
    """Return the result of ``operation``, and show on ``display`` what is told under ``names`` while it runs.

    :param names: as the runtime reports them; none: everything.
    """
    with display:
        watch = asyncio.ensure_future(_watch(client, frozenset(names), display))
        try:
            return await operation
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


def display_for(stream: IO[str]) -> Display:
    """Return bars for a terminal, and lines for anything else."""
    if not stream.isatty():
        return Lines(stream)
    from podkeep.cli.images.progressbars import Bars

    return Bars(stream)


def on_stderr(quiet: bool) -> Display:
    """Return where a verb shows progress; nowhere if it was told to be ``quiet``."""
    return Silence() if quiet else display_for(sys.stderr)


def reported_name(image: str) -> str:
    """Return the full name of an image, under which the runtime reports its pull."""
    return str(parse(image))


async def _watch(client: CriClient, names: frozenset[str], display: Display) -> None:
    from podkeep.cri.v1 import podkeep_pb2

    request = podkeep_pb2.WatchPullsRequest(image=next(iter(names)) if len(names) == 1 else "")
    try:
        async for event in client.node.WatchPulls(request):
            if not names or event.image in names:
                display.update(event)
    except (Unimplemented, Unavailable):
        return


class Silence:
    """Shows nothing."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def update(self, event: PullProgress) -> None:
        """Show nothing."""


class Lines:
    """One line whenever a blob enters a phase; the last one of an image says how fast it came.

    :param clock: seconds.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began: dict[str, float] = {}
        self._phases: dict[tuple[str, str], str] = {}
        self._fetched: dict[str, dict[str, int]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def update(self, event: PullProgress) -> None:
        """Write a line if the event is news."""
        self._began.setdefault(event.image, self._clock())
        if event.phase == "downloading":
            self._fetched.setdefault(event.image, {})[event.digest] = event.done
        key = (event.image, event.digest)
        if event.phase == "waiting" or self._phases.get(key) == event.phase:
            return
        self._phases[key] = event.phase
        name = f" {output.short(event.digest)}" if event.digest else ""
        self._stream.write(printable(f"{event.image}{name}: {event.phase}{self._note(event)}") + "\n")
        self._stream.flush()

    def _note(self, event: PullProgress) -> str:
        if event.digest or event.phase != "done":
            return f" ({output.size(event.total)})" if event.total else ""
        fetched = sum(self._fetched.get(event.image, {}).values())
        if not fetched:
            return ""
        took = max(self._clock() - self._began[event.image], 0.001)
        return f" ({output.size(fetched)} in {took:.1f} s, {output.size(int(fetched / took))}/s)"
