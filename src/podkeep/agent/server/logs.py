"""Logs of containers for ``kubectl logs``: what of them is asked for, which file it is in, and how it is shown.

Options, texts of refusals and the choice of the attempt are kubelet's (``getContainerLogs``,
``validateContainerLogStatus``); as there, a log that was rotated is shown from its newest file on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

from podkeep.agent.logs.reader import LogReader, Record
from podkeep.api.status import ContainerStatus, PodStatus
from podkeep.base.concurrency.tasks import on_thread
from podkeep.base.concurrency.threads import working_for
from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound, PodkeepError
from podkeep.base.frozen import FrozenStruct
from podkeep.cri import RUNTIME_NAME
from podkeep.cri.client import CriClient
from podkeep.cri.v1 import api_pb2
from podkeep.http.messages import Refused

log = logging.getLogger(__name__)

_POLL_S = 0.1
_STATUS_S = 1.0
"""How often the runtime is asked whether a container that writes nothing still runs (kubelet: logForceCheckPeriod)."""
_LOOKS_A_S, _STATUSES_A_S = 500.0, 50.0
"""How often each is done at most for all logs of a namespace that are followed at a time."""
_ANSWER_S = 2.0
"""How long what is written meanwhile waits for the answer."""
_STEP = 64 * 1024
"""Bytes of a log that are read at a time, on a thread."""
_STREAMS = {"Stdout": b"stdout", "Stderr": b"stderr", "All": b""}
_TRUE = frozenset({"true", "1", "t", "T", "TRUE", "True"})
_FALSE = frozenset({"", "false", "0", "f", "F", "FALSE", "False"})


class LogOptions(FrozenStruct, kw_only=True):
    """What of a log is asked for (``v1.PodLogOptions``)."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: int = 0
    """Nanoseconds since 1970; records before are left out."""
    tail: int | None = None
    """Lines."""
    limit: int | None = None
    """Bytes of the answer."""
    stream: bytes = b""
    """``stdout`` or ``stderr``; empty: both."""


def log_options(query: Mapping[str, Sequence[str]], now: float) -> LogOptions:
    """Return what a query asks for.

    :raises Refused: 400 or 422, if it makes no sense.
    """
    first = {key: values[0] for key, values in query.items() if values}
    tail = first.get("tail") or first.get("tailLines", "")
    try:
        flags = {name: _flag(first.get(name, "")) for name in ("follow", "previous", "timestamps")}
        since_seconds, limit = _number(first.get("sinceSeconds", "")), _number(first.get("limitBytes", ""))
        lines = None if tail == "all" else _number(tail)
        since = _moment(first["sinceTime"]) if first.get("sinceTime") else None
    except ValueError as error:
        raise Refused(400, '{"message": "Unable to decode query."}') from error
    stream = first.get("stream") or "All"
    if (
        (lines is not None and lines < 0)
        or (limit is not None and limit < 1)
        or (since_seconds is not None and (since_seconds < 1 or since is not None))
        or stream not in _STREAMS
        or (lines is not None and stream != "All")
    ):
        raise Refused(422, '{"message": "Invalid request."}')
    if since_seconds is not None:
        since = int((now - since_seconds) * 1e9)
    return LogOptions(**flags, since=since or 0, tail=lines, limit=limit, stream=_STREAMS[stream])


def _flag(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError(text)
    return text in _TRUE


def _number(text: str) -> int | None:
    if not text:
        return None
    if len(text) > 19:
        raise ValueError(text[:40])
    return int(text)


def _moment(text: str) -> int:
    """Return nanoseconds since 1970 of a time as RFC 3339 writes it."""
    moment = nanoseconds(text.encode())
    if moment is None:
        raise ValueError(text[:80])
    return moment


@lru_cache(maxsize=64)
def _seconds(text: bytes) -> int | None:
    try:
        moment = datetime.fromisoformat(text.decode())
        return None if moment.tzinfo is None else int(moment.timestamp())
    except (ValueError, OverflowError):
        return None


def nanoseconds(text: bytes) -> int | None:
    """Return nanoseconds since 1970 of a record's time; None if it is not one."""
    # The second is the same for many records in sequence.
    head, dot, rest = text.partition(b".")
    if not dot:
        second = _seconds(text)
        return None if second is None else second * 10**9
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    if not 1 <= len(digits) <= 9 or len(text) > 40:
        return None
    second = _seconds(head + rest[len(digits) :])
    return None if second is None else second * 10**9 + int(digits.ljust(9, b"0"))


def full_time(text: bytes) -> bytes:
    """Return a record's time with all nine digits of its fraction, and Z for UTC (kubelet: RFC3339NanoFixed)."""
    text = text.removesuffix(b"+00:00") + b"Z" if text.endswith(b"+00:00") else text
    head, dot, rest = text.partition(b".")
    if not dot:
        return text[:19] + b".000000000" + text[19:]
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))]
    return head + b"." + digits.ljust(9, b"0") + rest[len(digits) :]


def container_of(status: PodStatus, pod: str, container: str, *, previous: bool) -> str:
    """Return the ID of the container whose log is meant, from the pod's status (kubelet: validateContainerLogStatus).

    :raises Refused: 400, if there is none yet, or no more.
    """
    found = _status_of(status, container)
    if found is None:
        raise Refused(400, f'container "{container}" in pod "{pod}" is not available')
    what = f'container "{container}" in pod "{pod}"'
    last, now = found.last_state.terminated, found.state
    if previous:
        if last is None or not last.container_id:
            raise Refused(400, f"previous terminated {what} not found")
        return _bare(last.container_id)
    if now.running is not None:
        return _bare(found.container_id)
    ended = now.terminated if now.terminated is not None and now.terminated.container_id else last
    if now.terminated is not None or last is not None:
        if ended is None or not ended.container_id:
            raise Refused(400, f"{what} is terminated")
        return _bare(ended.container_id)
    if now.waiting is None:
        raise Refused(400, f"{what} is waiting to start - no logs yet")
    words = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }
    raise Refused(400, f"{what} is waiting to start: {words.get(now.waiting.reason, now.waiting.reason)}")


def _status_of(status: PodStatus, container: str) -> ContainerStatus | None:
    for statuses in (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses):
        for item in statuses:
            if item.name == container:
                return item
    return None


def _bare(identity: str) -> str:
    return identity.rpartition("://")[2]


class Readers:
    """The logs that are being read, by namespace: those of one keep nothing else of the node waiting.

    A log is read on a thread. In turn with all other steps of the agent, a hundred clients that asked one log for its
    last lines had statistics, which evictions need, wait for half a minute. A thousand that followed one, each looking
    ten times a second, took a processor.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def one_more(self, namespace: str) -> Iterator[Share]:
        """Count a log while it is read."""
        self._counts[namespace] += 1
        try:
            yield Share(counts=self._counts, namespace=namespace)
        finally:
            self._counts[namespace] -= 1
            if not self._counts[namespace]:
                del self._counts[namespace]


class Share(FrozenStruct, kw_only=True):
    """What one log may take that is being read. Times are in seconds."""

    counts: Mapping[str, int]
    namespace: str

    @property
    def look(self) -> float:
        """Between two looks whether there is more."""
        return max(_POLL_S, self.counts[self.namespace] / _LOOKS_A_S)

    @property
    def status(self) -> float:
        """Between two questions whether the container still runs."""
        return max(_STATUS_S, self.counts[self.namespace] / _STATUSES_A_S)

    @property
    def owner(self) -> tuple[str, str]:
        """Whose threads it is read on."""
        return "logs", self.namespace


class Writer:
    """Makes what is sent of the records of a log. Pure."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._left = options.limit
        self._within_line: dict[bytes, bool] = {}

    @property
    def is_full(self) -> bool:
        """Whether as much was sent as was asked for."""
        return self._left == 0

    def of(self, records: Iterable[Record]) -> bytes:
        """Return what is to be sent of records."""
        options, pieces = self._options, []
        for record in records:
            if options.since and (nanoseconds(record.time) or 0) < options.since:
                continue
            if options.stream and record.stream != options.stream:
                continue
            piece = record.text
            if options.timestamps and not self._within_line.get(record.stream):
                piece = full_time(record.time) + b" " + piece
            self._within_line[record.stream] = record.partial
            if self._left is not None:
                piece = piece[: self._left]
                self._left -= len(piece)
            pieces.append(piece)
            if self.is_full:
                break
        return b"".join(pieces)


async def open_log(client: CriClient, identity: str, options: LogOptions, *, share: Share) -> LogReader:
    """Return the log of a container.

    :raises Refused: if there is none.
    """
    try:
        answer = await client.runtime.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=identity))
    except PodkeepError as error:
        raise Refused(400, f"unable to retrieve container logs for {RUNTIME_NAME}://{identity}") from error
    path = Path(answer.status.log_path)
    if not answer.status.log_path:
        raise Refused(400, f"container {identity} was made without a log")
    try:
        # Not to its end: who has left before their turn came takes none.
        with working_for(share.owner):
            return await asyncio.to_thread(LogReader, path, tail=options.tail)
    except DataLoss as error:
        raise Refused(400, f'failed to tail {options.tail} lines of log file "{path}": {error.message}') from error
    except FailedPrecondition as error:
        raise Refused(400, f'failed to open log file "{path}": {error}') from error
    except (NotFound, OSError) as error:
        raise Refused(400, f'failed to open log file "{path}"') from error


async def read_log(
    client: CriClient,
    identity: str,
    reader: LogReader,
    options: LogOptions,
    stopping: asyncio.Event,
    *,
    share: Share,
) -> AsyncGenerator[bytes, None]:
    """Yield a log in pieces, to its end, or with ``follow`` until the container has ended. Closes ``reader``."""
    writer = Writer(options)
    try:
        if not options.follow:
            # What is there at the start: a container that writes faster than the client reads would never let it end.
            left = reader.to_read()
            while left > 0 and not writer.is_full:
                step = min(_STEP, left)
                left -= step
                if piece := await on_thread(partial(_some, reader, writer, step), owner=share.owner):
                    yield piece
                if not reader.behind:
                    return
            return
        ended, asked = False, 0.0
        while not writer.is_full and not stopping.is_set():
            # Asked before reading: once the container has ended, reading on to the end gets all of its log.
            if not ended and time.monotonic() - asked >= share.status:
                ended, asked = await _has_ended(client, identity), time.monotonic()
            if piece := await on_thread(partial(_some, reader, writer, _STEP), owner=share.owner):
                yield piece
            elif not reader.behind:
                if ended:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(share.look):
                        await stopping.wait()
    except FailedPrecondition as error:
        # The answer has begun: its client sees it end, and not why.
        log.warning("the log of container %s is not followed any more: %s", identity, error)
        raise
    finally:
        reader.close()


def _some(reader: LogReader, writer: Writer, step: int) -> bytes:
    return writer.of(reader.read(step))


async def _has_ended(client: CriClient, identity: str) -> bool:
    request = api_pb2.ContainerStatusRequest(container_id=identity)
    try:
        answer = await client.runtime.ContainerStatus(request, timeout=_ANSWER_S)
    except NotFound:
        return True
    except PodkeepError:
        # A runtime that ends, is started anew or hangs leaves its containers running, and they write on.
        return False
    return answer.status.state not in (api_pb2.CONTAINER_CREATED, api_pb2.CONTAINER_RUNNING)
