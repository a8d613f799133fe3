"""The store's side of a worker process: start it, answer it, and see that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from podkeep.base import errors
from podkeep.base.errors import Internal, PodkeepError
from podkeep.images.layers import reports
from podkeep.images.layers.programs import command

_MAX_LINE = 64 << 20
"""Bytes of one line: one image's documents in base64, with room."""
_MAX_STDERR = 4096

Answer = Callable[[dict[str, Any]], Awaitable["dict[str, Any] | None"]]


async def run_worker(request: dict[str, Any], answer: Answer, *, lock: int) -> list[dict[str, Any]]:
    """Run one worker to its end and return the image records it sends.

    :param answer: awaited with each event; a value it returns is sent back.
    :param lock: descriptor the worker keeps open, so that the store's lock outlives a killed store while it works.
    :raises PodkeepError: what the worker reports, with its class; Internal if it ends without a word.
    """
    process = await asyncio.create_subprocess_exec(
        *command("podkeep.images.worker.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE,
        start_new_session=True,
        pass_fds=(lock,),
    )
    stderr = asyncio.ensure_future(_tail(process))
    images: list[dict[str, Any]] = []
    try:
        outcome = await _converse(process, request | {"lock": lock}, answer, images)
    finally:
        if process.returncode is None:  # the pid is still its own, and its group is all it started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
        said = await stderr
    if outcome is None:
        status = process.returncode if process.returncode is not None else 0
        # What is killed says nothing; what is there then is of the processes it had started.
        raise Internal(f"the image worker {reports.ended(status)}" + (f": {said}" if said and status >= 0 else ""))
    if outcome["event"] == "error":
        raise _error(outcome)
    return images


async def _converse(
    process: asyncio.subprocess.Process, request: dict[str, Any], answer: Answer, images: list[dict[str, Any]]
) -> dict[str, Any] | None:
    if process.stdin is None or process.stdout is None:
        raise Internal("the image worker was started without pipes")
    try:
        await _send(process.stdin, request)
        while line := await process.stdout.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] in ("result", "error"):
                return event
            if event["event"] == "image":
                images.append(event["image"])
                continue
            reply = await answer(event)
            if reply is not None:
                await _send(process.stdin, reply)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it died; what it said on standard error tells why
    return None


async def _send(pipe: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
    await pipe.drain()


async def _tail(process: asyncio.subprocess.Process) -> str:
    kept = b""
    if process.stderr is not None:
        while piece := await process.stderr.read(_MAX_STDERR):
            kept = (kept + piece)[-_MAX_STDERR:]
    lines = kept.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _error(event: dict[str, Any]) -> PodkeepError:
    kind = getattr(errors, event["class"], Internal)
    if not (isinstance(kind, type) and issubclass(kind, PodkeepError)) or kind in (
        errors.KernelCallError,
        errors.CommandFailed,
    ):
        kind = Internal
    return kind(event["message"], hint=event["hint"])
