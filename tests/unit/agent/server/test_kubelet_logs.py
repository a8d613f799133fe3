"""What of a log is asked for, which attempt is meant, and what is sent of its records."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from podkeep.agent.logs.reader import LogReader, Record
from podkeep.agent.server.logs import (
    LogOptions,
    Readers,
    Share,
    Writer,
    container_of,
    full_time,
    log_options,
    nanoseconds,
    read_log,
)
from podkeep.api.status import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from podkeep.base.concurrency.threads import SharedThreads, working_for
from podkeep.base.errors import Cancelled, Internal
from podkeep.cri.client import CriClient
from podkeep.http.messages import Refused
from support.stub_runtime import StubRuntime
from support.waiting import TIMEOUT_S

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, LogOptions()),
        ({"follow": ["true"], "previous": ["1"], "timestamps": ["True"]}, {"follow", "previous", "timestamps"}),
        ({"follow": ["false"]}, LogOptions()),
        ({"tailLines": ["0"]}, LogOptions(tail=0)),
        ({"tail": ["7"]}, LogOptions(tail=7)),
        ({"tail": ["all"], "tailLines": ["3"]}, LogOptions()),
        ({"limitBytes": ["5"]}, LogOptions(limit=5)),
        ({"sinceSeconds": ["60"]}, LogOptions(since=int((NOW - 60) * 1e9))),
        ({"sinceTime": ["2026-01-31T10:00:00Z"]}, LogOptions(since=1_769_853_600 * 10**9)),
        ({"sinceTime": ["2026-01-31T11:00:00.5+01:00"]}, LogOptions(since=1_769_853_600_500_000_000)),
        ({"stream": ["Stderr"]}, LogOptions(stream=b"stderr")),
        ({"stream": ["All"], "tailLines": ["1"]}, LogOptions(tail=1)),
    ],
)
def test_options_are_read(query: dict[str, list[str]], expected: LogOptions | set[str]) -> None:
    wanted = expected if isinstance(expected, LogOptions) else LogOptions(**dict.fromkeys(expected, True))
    assert log_options(query, NOW) == wanted


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"follow": ["maybe"]}, 400),
        ({"tailLines": ["many"]}, 400),
        ({"tailLines": ["1" * 20]}, 400),
        ({"sinceTime": ["yesterday"]}, 400),
        ({"sinceTime": ["2026-01-31T10:00:00"]}, 400),
        ({"tailLines": ["-1"]}, 422),
        ({"limitBytes": ["0"]}, 422),
        ({"sinceSeconds": ["0"]}, 422),
        ({"sinceSeconds": ["1"], "sinceTime": ["2026-01-31T10:00:00Z"]}, 422),
        ({"stream": ["stderr"]}, 422),
        ({"stream": ["Stderr"], "tailLines": ["1"]}, 422),
    ],
)
def test_options_without_sense_are_refused(query: dict[str, list[str]], status: int) -> None:
    with pytest.raises(Refused) as refused:
        log_options(query, NOW)
    assert refused.value.status == status


def terminated(identity: str) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=1, container_id=identity))


def status(state: ContainerState, last: ContainerState, identity: str = "podkeep://new") -> PodStatus:
    container = ContainerStatus(
        name="main",
        state=state,
        last_state=last,
        ready=False,
        restart_count=0,
        image="i",
        image_id="",
        container_id=identity,
    )
    return PodStatus(container_statuses=(container,))


NOTHING = ContainerState()
RUNNING = ContainerState(running=ContainerStateRunning())
OLD = terminated("podkeep://old")


def waiting(reason: str) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason))


@pytest.mark.parametrize(
    ("state", "last", "previous", "expected"),
    [
        (RUNNING, NOTHING, False, "new"),
        (RUNNING, OLD, True, "old"),
        (terminated("podkeep://done"), OLD, False, "done"),
        (terminated(""), OLD, False, "old"),
        (waiting("CrashLoopBackOff"), OLD, False, "old"),
    ],
)
def test_the_attempt_that_is_meant(state: ContainerState, last: ContainerState, previous: bool, expected: str) -> None:
    assert container_of(status(state, last), "web", "main", previous=previous) == expected


@pytest.mark.parametrize(
    ("state", "last", "previous", "words"),
    [
        (RUNNING, NOTHING, True, 'previous terminated container "main" in pod "web" not found'),
        (terminated(""), NOTHING, False, 'container "main" in pod "web" is terminated'),
        (waiting("ErrImagePull"), NOTHING, False, "is waiting to start: image can't be pulled"),
        (waiting("ImagePullBackOff"), NOTHING, False, "is waiting to start: trying and failing to pull image"),
        (waiting("ContainerCreating"), NOTHING, False, "is waiting to start: ContainerCreating"),
        (NOTHING, NOTHING, False, "is waiting to start - no logs yet"),
    ],
)
def test_why_there_is_no_log(state: ContainerState, last: ContainerState, previous: bool, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        container_of(status(state, last), "web", "main", previous=previous)
    assert refused.value.status == 400


def test_a_container_without_a_status_has_no_log() -> None:
    with pytest.raises(Refused, match='container "other" in pod "web" is not available'):
        container_of(status(RUNNING, NOTHING), "web", "other", previous=False)


def record(text: str, *, second: int = 0, stream: str = "stdout", partial: bool = False) -> Record:
    time = f"2026-01-31T10:00:{second:02}.5Z".encode()
    return Record(time=time, stream=stream.encode(), partial=partial, text=text.encode())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), b"one\ntwo\nthree\n"),
        (LogOptions(limit=5), b"one\nt"),
        (LogOptions(stream=b"stderr"), b"two\n"),
        (LogOptions(since=1_769_853_602 * 10**9), b"three\n"),
        (
            LogOptions(timestamps=True, stream=b"stdout"),
            b"2026-01-31T10:00:00.500000000Z one\n2026-01-31T10:00:02.500000000Z three\n",
        ),
    ],
)
def test_what_is_sent_of_records(options: LogOptions, expected: bytes) -> None:
    records = [
        record("on", partial=True),
        record("e\n"),
        record("two\n", second=1, stream="stderr"),
        record("three\n", second=2),
    ]
    assert Writer(options).of(records) == expected


def test_a_line_in_parts_has_one_time_also_across_reads() -> None:
    writer = Writer(LogOptions(timestamps=True))
    first = writer.of([record("a", partial=True), record("x\n", stream="stderr")])
    assert first + writer.of([record("b\n")]) == (
        b"2026-01-31T10:00:00.500000000Z a2026-01-31T10:00:00.500000000Z x\nb\n"
    )


def test_nothing_is_sent_beyond_the_limit() -> None:
    writer = Writer(LogOptions(limit=4))
    assert (writer.of([record("one\n")]), writer.is_full, writer.of([record("two\n")])) == (b"one\n", True, b"")


@pytest.mark.parametrize(
    ("text", "moment", "full"),
    [
        (b"2026-01-31T10:00:00Z", 0, b"2026-01-31T10:00:00.000000000Z"),
        (b"2026-01-31T10:00:00.25Z", 250_000_000, b"2026-01-31T10:00:00.250000000Z"),
        (b"2026-01-31T10:00:00.25+00:00", 250_000_000, b"2026-01-31T10:00:00.250000000Z"),
        (b"2026-01-31T11:00:00.000000001+01:00", 1, b"2026-01-31T11:00:00.000000001+01:00"),
    ],
)
def test_times_of_records(text: bytes, moment: int, full: bytes) -> None:
    assert (nanoseconds(text), full_time(text)) == (1_769_853_600 * 10**9 + moment, full)


@pytest.mark.parametrize("text", [b"", b"now", b"2026-01-31", b"2026-01-31T10:00:00", b"2026-01-31T10:00:00.Z"])
def test_what_is_no_time(text: bytes) -> None:
    assert nanoseconds(text) is None


def test_a_log_is_read_on_threads_of_its_namespace(tmp_path: Path) -> None:
    """What is read of one namespace's, or hangs there, keeps no other log waiting, and no step of the agent's own."""
    (tmp_path / "0.log").write_bytes(b"2026-01-31T10:00:00Z stdout F one\n")

    async def read(namespace: str) -> bytes:
        with readers.one_more(namespace) as share:
            reader = LogReader(tmp_path / "0.log")
            body = read_log(CriClient(str(tmp_path)), "x", reader, LogOptions(), asyncio.Event(), share=share)
            return b"".join([piece async for piece in body])

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(SharedThreads(4, share=1, name="test"))
        go_on = threading.Event()
        try:
            with working_for(("logs", "full")):
                held = asyncio.ensure_future(asyncio.to_thread(go_on.wait))
            own = asyncio.ensure_future(asyncio.to_thread(go_on.wait))
            waiting = asyncio.ensure_future(read("full"))
            async with asyncio.timeout(TIMEOUT_S):
                assert await read("other") == b"one\n"
            assert not waiting.done()
        finally:
            go_on.set()
        assert await waiting == b"one\n"
        await asyncio.gather(held, own)

    readers = Readers()
    asyncio.run(scenario())


def test_the_more_logs_of_a_namespace_are_followed_the_less_often_each_is_looked_at() -> None:
    """One of another namespace is looked at as often as alone."""
    readers = Readers()
    with readers.one_more("one") as alone:
        assert (alone.look, alone.status) == (0.1, 1.0)
        with ExitStack() as held:
            many = [held.enter_context(readers.one_more("many")) for _ in range(1000)]
            assert {(share.look, share.status) for share in many} == {(2.0, 20.0)}
            assert (alone.look, alone.status) == (0.1, 1.0)
        with readers.one_more("many") as again:
            assert (again.look, again.status) == (0.1, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [Internal("stopping"), Cancelled("stopping"), None])
def test_a_runtime_in_trouble_does_not_end_a_log_that_is_followed(
    tmp_path: Path, trouble: Internal | Cancelled | None
) -> None:
    """None: it does not answer. The container runs on, and ends when the runtime answers again."""
    log = tmp_path / "0.log"
    line = "2026-01-31T10:00:00Z stdout F {}\n".format
    log.write_text(line("first"))

    async def follow(stub: StubRuntime, container: str) -> list[bytes]:
        pieces = []
        async with CriClient(str(stub.socket)) as client:
            with Readers().one_more("default") as share:
                reader, options = LogReader(log), LogOptions(follow=True)
                async for piece in read_log(client, container, reader, options, asyncio.Event(), share=share):
                    pieces.append(piece)
                    if len(pieces) == 1:  # the runtime was asked before
                        stub.bends.clear()
                        stub.hanging.clear()
                        with log.open("a") as file:
                            file.write(line("second"))
                    else:
                        stub.exit("main")
        return pieces

    with StubRuntime(tmp_path / "stub.sock") as stub:
        container = stub.add_running("main")
        if trouble is None:
            stub.hanging.add("ContainerStatus")
        else:
            stub.bends["ContainerStatus"] = trouble
        pieces = asyncio.run(asyncio.wait_for(follow(stub, container), TIMEOUT_S))
        assert stub.calls["ContainerStatus"] >= 2
    assert pieces == [b"first\n", b"second\n"]


def test_logs_that_are_seldom_looked_at_end_with_the_server(tmp_path: Path) -> None:
    """It waits a second for that: what goes on for longer is broken off, and the client is told of an error."""
    log = tmp_path / "0.log"
    log.write_text("2026-01-31T10:00:00Z stdout F first\n")
    waiting = asyncio.Event()

    class Watched(Share):
        @property
        def look(self) -> float:
            waiting.set()
            return TIMEOUT_S * 2

    async def scenario(stub: StubRuntime) -> None:
        stopping, share = asyncio.Event(), Watched(counts={"default": 1}, namespace="default")
        async with CriClient(str(stub.socket)) as client:
            container, options = stub.add_running("main"), LogOptions(follow=True)
            body = read_log(client, container, LogReader(log), options, stopping, share=share)
            assert await anext(body) == b"first\n"
            rest = asyncio.ensure_future(anext(body, b""))
            await waiting.wait()
            stopping.set()
            assert await rest == b""

    with StubRuntime(tmp_path / "stub.sock") as stub:
        asyncio.run(asyncio.wait_for(scenario(stub), TIMEOUT_S))
