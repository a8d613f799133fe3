"""The requests that the daemon serves: how many, since when there is none, and whose threads each of them uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from podkeep.base.concurrency.threads import working_for
from podkeep.cri.server import Handler, StreamHandler
from podkeep.cri.v1 import api_pb2 as api
from podkeep.runtime.model.counting import Counting
from podkeep.runtime.model.state import State


class Requests:
    """Counts them, for the idle clock and the metrics.

    :ivar running: how many are being served.
    """

    def __init__(self, state: State, counting: Counting) -> None:
        self._state, self._counting = state, counting
        self.running = 0
        self._last_end = time.monotonic()

    def idle_seconds(self) -> float:
        """Return for how long there has been none; 0 while there is one."""
        return 0.0 if self.running else time.monotonic() - self._last_end

    def counted(self, name: str, handler: Handler) -> Handler:
        """Return a handler that does the same, and is counted."""
        if asyncio.iscoroutinefunction(handler):

            async def unary(request: Any) -> Any:
                with self._serving(), self._counting.operation(name, streams=False), working_for(self._owner(request)):
                    return await handler(request)

            return unary

        async def stream(request: Any) -> Any:
            with self._serving(), self._counting.operation(name, streams=True), working_for(type(request).__name__):
                async for item in cast(StreamHandler, handler)(request):
                    yield item

        return stream

    def _owner(self, request: Any) -> Hashable:
        """Return whose threads a request uses: those of the pod that it is about, else those of its kind.

        What asks for all pods may take long, as the statistics of many do; Status is not to wait for that.
        """
        if text := getattr(request, "container_id", ""):
            container = self._state.find_container(text)
            return container.sandbox_id if container is not None else type(request).__name__
        if text := getattr(request, "pod_sandbox_id", ""):
            sandbox = self._state.find_sandbox(text)
            return sandbox.id if sandbox is not None else type(request).__name__
        if isinstance(request, api.RunPodSandboxRequest):
            return request.config.metadata.uid
        return type(request).__name__

    @contextmanager
    def _serving(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._last_end = time.monotonic()
