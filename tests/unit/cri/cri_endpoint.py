"""A real server on a unix socket for the tests of this directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from podkeep.cri import server as cri_server
from podkeep.cri.client import CriClient

Result = TypeVar("Result")


@asynccontextmanager
async def serving(
    socket: Path,
    runtime: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
    node: Mapping[str, Any] | None = None,
    *,
    grace: float | None = None,
) -> AsyncIterator[None]:
    """Serve the given handlers on ``socket``; a service given as None is not there.

    :param grace: seconds for which calls may go on at the end.
    """
    server = cri_server.create_server()
    services = (
        (cri_server.RUNTIME_SERVICE, runtime),
        (cri_server.IMAGE_SERVICE, images),
        (cri_server.NODE_SERVICE, node),
    )
    for service, handlers in services:
        if handlers is not None:
            cri_server.bind(server, service, handlers)
    cri_server.listen(server, str(socket))
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace)


@asynccontextmanager
async def talking(socket: Path, **handlers: Any) -> AsyncIterator[CriClient]:
    """Serve the given handlers and yield a client of them."""
    async with serving(socket, **handlers), CriClient(str(socket)) as client:
        yield client


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` on an event loop of its own; a test that hangs fails after a minute."""
    return asyncio.run(asyncio.wait_for(work, 60))
