"""The image worker: one process per pull or load, the only one that talks to registries and reads archives.

It also reads back what the store has (``saving``, ``stored``). A copy of the fork server (``forkserver``), never
imported by the store.
Standard input: one line with the request, then answers. Standard output: lines with events (``images.messages``).
"""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from podkeep.base.errors import FailedPrecondition, NotFound, PermissionDenied, PodkeepError, ResourceExhausted
from podkeep.base.text.redaction import redacted
from podkeep.images.layers.messages import legible
from podkeep.images.messages import Done, Failed, FetchedImage, Pull, Request, Save, Unchanged, Verify
from podkeep.images.registry.fallback import first
from podkeep.images.registry.registry import Registry
from podkeep.images.worker import archive, pull
from podkeep.images.worker.assembly import Assembly
from podkeep.images.worker.channel import Channel
from podkeep.kernel.process import allocator

_MAX_MEMORY = 2 << 30
"""Bytes of memory that it can write to. A pull takes some 60 MB, stacks and buffers of many parallel layers more; this
is behind the limits of documents, archives and lists."""
_MOST_TOLD = 16 << 10
"""Characters of an error: several sources may each have failed in their own way."""


def main() -> None:
    """Serve the one request and end, with everything that was started for it."""
    allocator.keep_buffers()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it holds credentials
    # Not of the address space: allocators reserve much more for a thread than is ever used.
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
    channel = Channel()
    request = channel.start()
    try:
        for event in _serve(request, channel):
            channel.emit(event)
        channel.emit(Done())
    except Exception as error:  # noqa: BLE001 - the end of this process: the store raises it again
        channel.emit(_described(error))
    # Threads may still wait for a slow registry, and unpack processes for them: nothing here is worth waiting for.
    os.killpg(0, signal.SIGKILL)


def _described(error: Exception) -> Failed:
    if isinstance(error, MemoryError):
        error = ResourceExhausted(f"the image worker needs more than {_MAX_MEMORY >> 20} MiB of memory")
    if isinstance(error, PodkeepError):
        return Failed(error=type(error).__name__, message=_told(error.message), hint=_told(error.hint))
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"image worker: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return Failed(error="Internal", message=_told(text), hint="")


def _told(text: str) -> str:
    """Return a text that others had a part in as the store is told it: no longer than needed, without secrets."""
    return redacted(
        legible(text if len(text) <= _MOST_TOLD else f"{text[: _MOST_TOLD // 2]} [...] {text[-_MOST_TOLD // 2 :]}")
    )


def _serve(request: Request, channel: Channel) -> Sequence[FetchedImage | Unchanged]:
    match request:
        # What is seldom asked for is imported then: the fork server stays small.
        case Save():
            from podkeep.images.worker import saving

            saving.save(request, channel)
            return ()
        case Verify():
            from podkeep.images.worker import stored

            stored.verify(request, channel)
            return ()
        case Pull() if request.known:
            if same := _unchanged(request, channel):
                return (same,)
    os.umask(0)  # files of layers have the modes that they are given
    assembly = Assembly(request.settings, channel)
    if isinstance(request, Pull):
        return (pull.pull(request, assembly, channel),)
    return archive.load(request, assembly, channel)


def _unchanged(request: Pull, channel: Channel) -> Unchanged | None:
    """Ask whether an image that is here is still what its name stands for: one question, and no manifest sent.

    What was pulled before was verified then, so its digest is all there is to know. Registries that count pulls do not
    count this question.

    :returns: the answer to the pull if the registry has nothing new; None if the image must be pulled.
    :raises RegistryUnavailable: if no server answers.
    """
    name = request.source.name
    registries = (Registry(item, name.repository, on_wait=channel.retrying) for item in request.source.endpoints)
    what = f"{name.name}: {name.target}"
    try:
        digest = first(registries, lambda registry: registry.manifest_digest(name.target), what)
    except (FailedPrecondition, NotFound, PermissionDenied):
        return None  # some cannot answer this question: the pull will tell
    return Unchanged(name=f"{name.name}@{digest}") if digest in request.known else None
