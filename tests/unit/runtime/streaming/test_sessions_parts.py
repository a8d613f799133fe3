"""What sessions stand on: queues, sizes, statuses, tokens, handshakes, channels."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import resource
import socket
import subprocess
import termios
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podkeep.base.concurrency.tasks import Tasks
from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.http import handshake, websocket
from podkeep.http.budget import Account, ClientGone
from podkeep.http.messages import Head, Refused
from podkeep.http.streams import QUEUE_BYTES, Inbox
from podkeep.http.websocket import ChannelConnection, Part, Protocol
from podkeep.runtime.oci.exec import ExecCommand, ExecProcess
from podkeep.runtime.streaming import attach, pending, port_forward, status
from podkeep.runtime.streaming import exec as exec_session
from podkeep.runtime.streaming.command_streams import CommandStreams, ResizeDecoder, Size, parse_size
from podkeep.runtime.streaming.descriptor import READ_BYTES, Descriptor
from podkeep.runtime.streaming.pending import PendingRequests
from podkeep.runtime.streaming.port_forward import parse_port
from podkeep.runtime.streaming.remote_command import WEBSOCKET_PROTOCOLS


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(20):
            return await coroutine

    return asyncio.run(limited())


# queues


@pytest.mark.slow
@given(st.lists(st.binary(min_size=1, max_size=QUEUE_BYTES // 2), max_size=12))
def test_a_queue_passes_everything_on_in_order_and_is_bounded(parts: list[bytes]) -> None:
    async def go() -> tuple[bytes, int]:
        inbox, most = Inbox(Account()), 0

        async def fill() -> None:
            for part in parts:
                await inbox.put(part)
            inbox.finish()

        filling = asyncio.ensure_future(fill())
        taken = b""
        while data := await inbox.receive():
            taken += data
            most = max(most, inbox._waiting)
            await asyncio.sleep(0)
        await filling
        return taken, most

    taken, most = run(go())
    assert taken == b"".join(parts)
    assert most <= 2 * QUEUE_BYTES


def test_a_full_queue_is_emptied_before_its_filler_waits() -> None:
    """A taker that is faster than the filler's next step must not leave it asleep."""

    async def go() -> int:
        inbox = Inbox(Account())

        async def fill() -> None:
            for _ in range(200):
                await inbox.put(bytes(QUEUE_BYTES + 1))
            inbox.finish()

        filling = asyncio.ensure_future(fill())
        total = 0
        while data := await inbox.receive():
            total += len(data)
        await filling
        return total

    assert run(go()) == 200 * (QUEUE_BYTES + 1)


def test_a_queue_nobody_takes_from_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podkeep.http.budget.HANGUP_TIMEOUT_S", 0.05)

    async def go() -> None:
        account = Account()
        inbox = Inbox(account)
        filling = asyncio.ensure_future(inbox.put(bytes(QUEUE_BYTES + 1)))
        await asyncio.sleep(0)
        assert not filling.done()
        account.hang_up()
        await filling

    with pytest.raises(ClientGone):
        run(go())


def test_a_queue_whose_taker_lost_interest_takes_everything() -> None:
    async def go() -> None:
        inbox = Inbox(Account())
        inbox.discard()
        for _ in range(10):
            await inbox.put(bytes(QUEUE_BYTES))
        inbox.finish()
        assert await inbox.receive() == b""

    run(go())


def test_a_client_that_ended_its_input_and_left_was_not_cut_off() -> None:
    async def go() -> None:
        ended, cut_off = Inbox(Account()), Inbox(Account())
        ended.finish()
        ended.fail()
        assert await ended.receive() == b""
        await cut_off.put(b"x")
        cut_off.fail()
        assert await cut_off.receive() == b"x"
        with pytest.raises(ClientGone):
            await cut_off.receive()

    run(go())


# sizes


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (b'{"Width":80,"Height":24}', Size(width=80, height=24)),
        (b'{"Height":24,"Width":80,"x":1}', Size(width=80, height=24)),
        (b'{"Width":0,"Height":24}', None),
        (b'{"Width":70000,"Height":24}', None),
        (b'{"Width":true,"Height":24}', None),
        (b'{"Width":"80","Height":24}', None),
        (b"[80,24]", None),
        (b"[" * 100_000, None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_sizes(line: bytes, size: Size | None) -> None:
    assert parse_size(line) == size


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 65535), st.integers(1, 65535)), max_size=5), st.integers(1, 40), st.booleans())
def test_sizes_are_found_however_they_are_cut(sizes: list[tuple[int, int]], step: int, ended: bool) -> None:
    lines = [json.dumps({"Width": width, "Height": height}).encode() for width, height in sizes]
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    decoder = ResizeDecoder()
    found = [size for start in range(0, len(data), step) for size in decoder.feed(data[start : start + step])]
    assert found == [Size(width=width, height=height) for width, height in sizes]


def _session(
    directory: Path, streams: CommandStreams, terminal: int = -1, resizing: asyncio.Lock | None = None
) -> exec_session._Session:
    command = ExecCommand(
        runtime=(), container="", process={}, files=directory, sockets=directory, environment={}, said=bytes.decode
    )
    with subprocess.Popen(["true"]) as runtime:
        process = ExecProcess(runtime=runtime, command=command, token="", terminal=terminal)
    return exec_session._Session(process, streams, ResizeDecoder(), resizing or asyncio.Lock())


def _resizers() -> int:
    """Return how many children of this process set the size of a terminal."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            with suppress(OSError):
                found += b"TIOCSWINSZ" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


@pytest.mark.slow
def test_terminals_of_one_pod_are_told_their_sizes_one_after_the_other(tmp_path: Path) -> None:
    """Each size takes a process: clients that send them without an end took all processors."""
    terminals, resizes = 6, 8
    most = 0

    async def send(inbox: Inbox) -> None:
        width = 1
        while True:
            width = width % 999 + 1
            await inbox.put(b'{"Width": %d, "Height": 2}\n' % width)
            await asyncio.sleep(0.001)

    async def go() -> None:
        nonlocal most
        resizing, ends, inboxes = asyncio.Lock(), [pty.openpty() for _ in range(terminals)], []
        async with Tasks("terminals") as tasks:
            for master, _ in ends:
                inboxes.append(Inbox(Account()))
                streams = CommandStreams(status=exec_session._Nowhere(), gone=asyncio.Event(), resize=inboxes[-1])
                session = _session(tmp_path, streams, master, resizing)
                tasks.start(send(inboxes[-1]))
                tasks.start(session._pass_resizes(inboxes[-1]))
                tasks.start(session._set_sizes())
            seen: set[tuple[int, ...]] = set()
            while len(seen) < resizes:
                seen.add(tuple(termios.tcgetwinsize(end)[1] for _, end in ends))
                most = max(most, _resizers())
                await asyncio.sleep(0.001)
        for both in ends:
            for end in both:
                with suppress(OSError):
                    os.close(end)

    run(go())
    assert most == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exec", "attach", "port-forward"])
def test_everybody_else_has_a_turn_after_each_portion_of_output(kind: str, tmp_path: Path) -> None:
    """Output that was there whenever it was read, and taken whenever it was sent, held the event loop."""
    portions = 500
    (tmp_path / "output").touch()
    os.truncate(tmp_path / "output", portions * READ_BYTES)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def go() -> None:
        output, nowhere = Descriptor(os.open(tmp_path / "output", os.O_RDONLY)), exec_session._Nowhere()
        streams = CommandStreams(status=nowhere, gone=asyncio.Event())
        reading: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "exec": lambda: _session(tmp_path, streams)._pass_output(output, nowhere),
            "attach": lambda: attach._pass_output(output, streams),
            "port-forward": lambda: port_forward._from_pod(output, pair),
        }
        pair = port_forward.Pair(
            data_in=Inbox(Account()),
            data_out=nowhere,
            errors=nowhere,
            given_up=asyncio.Event(),
            outputs=Account().outputs,
        )
        running = asyncio.ensure_future(others())
        await reading[kind]()
        running.cancel()
        output.close()

    run(go())
    assert turns >= portions


class _Told:
    """A Sink that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""

    async def send(self, data: bytes) -> None:
        self.data += data

    async def end(self) -> None:
        return


def test_without_descriptors_a_forwarded_connection_ends_and_its_client_is_told_in_the_systems_words() -> None:
    ours, theirs = socket.socketpair()
    told = _Told()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def connect(port: int) -> socket.socket:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        return ours

    async def go() -> None:
        pair = port_forward.Pair(
            data_in=Inbox(Account()),
            data_out=exec_session._Nowhere(),
            errors=told,
            given_up=asyncio.Event(),
            outputs=Account().outputs,
        )
        try:
            await port_forward._forward(port_forward.ForwardRequest(pod="p", connect=connect), 80, pair)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with ours, theirs:
        run(go())
        assert ours.fileno() == -1
    assert told.data == b"error forwarding port 80 to pod p: Too many open files"


def test_a_size_that_is_there_is_known_before_the_command_starts() -> None:
    async def main() -> Size | None:
        inbox = Inbox(Account())
        await inbox.put(b'{"Width": 111, "Height": 44}\n')
        return await exec_session._first_size(inbox, ResizeDecoder())

    assert asyncio.run(main()) == Size(width=111, height=44)


def test_a_client_that_says_that_its_terminal_has_no_size_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_session, "FIRST_SIZE_S", 1000)

    async def main() -> Size | None:
        inbox = Inbox(Account())
        await inbox.put(b'{"Width": 0, "Height": 0}\n')
        return await exec_session._first_size(inbox, ResizeDecoder())

    assert run(main()) is None


@pytest.mark.slow
def test_what_waits_for_the_sizes_of_an_attached_terminal_does_not_wait_for_all_that_come(tmp_path: Path) -> None:
    """A conmon that does not read, and a client that sends another size before each is given up."""
    os.mkfifo(tmp_path / "ctl")
    conmon = os.open(tmp_path / "ctl", os.O_RDONLY | os.O_NONBLOCK)

    async def main() -> None:
        sizes = attach._Sizes(tmp_path)

        async def resize() -> None:
            while True:
                sizes.add([Size(width=100, height=40)])
                await asyncio.sleep(attach.RESIZE_TIMEOUT_S / 10)

        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(sizes.set_all()), group.create_task(resize())]
            await asyncio.sleep(0)
            await sizes.settled()
            for helper in helpers:
                helper.cancel()

    try:
        run(main())
    finally:
        os.close(conmon)


@pytest.mark.slow
def test_a_conmon_that_is_late_is_told_one_size_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lines that come together it takes the first: the terminal would keep a size that is no longer right."""
    monkeypatch.setattr(attach, "RESIZE_TIMEOUT_S", 0.05)
    pipes = [os.open(_fifo(tmp_path / name), os.O_RDONLY | os.O_NONBLOCK) for name in ("ctl", "winsz")]

    async def main() -> list[bytes]:
        sizes = attach._Sizes(tmp_path)
        setting = asyncio.create_task(sizes.set_all())
        for width in range(100, 105):
            sizes.add([Size(width=width, height=40)])
            await sizes.settled()
        told = []
        while not told or told[-1] != b"1 40 104\n":
            with suppress(BlockingIOError):
                told += filter(None, [os.read(pipes[0], 4096)])
            await asyncio.sleep(0.01)
        await sizes.settled()
        setting.cancel()
        return told

    try:
        assert run(main()) == [b"1 40 100\n", b"1 40 103\n", b"1 40 104\n"]
    finally:
        for pipe in pipes:
            os.close(pipe)


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_a_line_without_end_is_not_kept() -> None:
    decoder = ResizeDecoder()
    for _ in range(100):
        assert decoder.feed(b"x" * 1000) == []
    assert len(decoder._rest) <= 4096


# statuses


def test_statuses() -> None:
    assert json.loads(status.exit_code(0))["status"] == "Success"
    failed = json.loads(status.exit_code(3))
    assert (failed["status"], failed["reason"]) == ("Failure", "NonZeroExitCode")
    assert failed["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert json.loads(status.failure("broken"))["message"] == "Internal error occurred: broken"
    assert status.plain(status.success()) == b""
    assert status.plain(status.exit_code(3)).startswith(b"command terminated with non-zero exit code")


# tokens


@dataclass(frozen=True)
class _Kept:
    pod: str = "pod"
    size: int = 0


def test_a_token_works_once_and_for_a_minute() -> None:
    now = [0.0]
    requests: PendingRequests[_Kept] = PendingRequests(lambda: now[0])
    kept = _Kept()
    first, second = requests.add(kept), requests.add(_Kept())
    assert len(base64.urlsafe_b64decode(first + "==")) * 8 >= 256
    assert requests.take(first) is kept
    assert requests.take(first) is None
    now[0] = pending.LIFETIME_S
    assert requests.take(second) is None


def test_tokens_are_bounded_and_old_ones_make_room() -> None:
    now = [0.0]
    requests: PendingRequests[_Kept] = PendingRequests(lambda: now[0])
    limit = pending.MAX_PENDING + pending.OWN_PENDING
    tokens = {requests.add(_Kept()) for _ in range(limit)}
    assert len(tokens) == limit == requests.numbers["pod"]
    with pytest.raises(ResourceExhausted):
        requests.add(_Kept())
    now[0] = pending.LIFETIME_S
    assert requests.take(requests.add(_Kept())) == _Kept()
    assert (len(requests), requests.numbers["pod"]) == (0, 0)


def test_what_the_waiting_requests_of_a_pod_keep_is_bounded_and_others_have_room() -> None:
    requests: PendingRequests[_Kept] = PendingRequests(lambda: 0.0)
    large = pending.MAX_BYTES_OF_POD // 4
    token, *_ = (requests.add(_Kept("one", large)) for _ in range(4))
    with pytest.raises(ResourceExhausted, match="pod sandbox one"):
        requests.add(_Kept("one", 1))
    requests.add(_Kept("other", large))
    assert requests.take(token) is not None
    requests.add(_Kept("one", large))


def test_a_pod_has_room_for_its_own_requests_whatever_others_have() -> None:
    requests: PendingRequests[_Kept] = PendingRequests(lambda: 0.0)
    pods = pending.MAX_BYTES // (pending.MAX_BYTES_OF_POD - pending.OWN_BYTES) + 1
    for number in range(pods - 1):
        requests.add(_Kept(str(number), pending.MAX_BYTES_OF_POD))
    with pytest.raises(ResourceExhausted):
        requests.add(_Kept("last", pending.MAX_BYTES_OF_POD))
    for _ in range(pending.MAX_PENDING + pending.OWN_PENDING):
        requests.add(_Kept("many"))
    for _ in range(pending.OWN_PENDING):
        requests.add(_Kept("other", pending.OWN_BYTES // pending.OWN_PENDING))
    with pytest.raises(ResourceExhausted):
        requests.add(_Kept("other", 1))


# handshakes


def ask(**headers: str) -> Head:
    fields = {name.replace("_", "-"): [value] for name, value in headers.items()}
    return Head(method="GET", target="/exec/x", headers=fields)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("v4.channel.k8s.io, v3.channel.k8s.io", "v4.channel.k8s.io"),
        ("v9.channel.k8s.io,v2.channel.k8s.io", "v2.channel.k8s.io"),
    ],
)
def test_the_first_protocol_of_the_client_that_is_known_is_spoken(asked: str, chosen: str) -> None:
    supported = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io")
    protocol, headers = handshake.spdy_answer(ask(x_stream_protocol_version=asked), supported)
    assert protocol == chosen
    assert ("x-stream-protocol-version", chosen) in headers


def test_protocols_that_nobody_knows_are_refused_with_those_that_are() -> None:
    with pytest.raises(Refused) as caught:
        handshake.spdy_answer(ask(x_stream_protocol_version="v9"), ("v4", "v3"))
    assert caught.value.status == 403
    assert [value for _, value in caught.value.headers] == ["v4", "v3"]
    assert handshake.spdy_answer(ask(), ("v4",))[0] == ""


def test_websocket_handshake() -> None:
    request = ask(
        sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",  # the example of RFC 6455, section 1.3
        sec_websocket_version="13",
        sec_websocket_protocol="v5.channel.k8s.io",
    )
    protocol, headers = handshake.websocket_answer(request, list(WEBSOCKET_PROTOCOLS))
    assert protocol == "v5.channel.k8s.io"
    assert ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") in headers
    for broken in (ask(), ask(sec_websocket_key="x", sec_websocket_version="8")):
        with pytest.raises(Refused):
            handshake.websocket_answer(broken, [""])


def test_an_upgrade_needs_both_headers() -> None:
    assert ask(connection="keep-alive, Upgrade", upgrade="SPDY/3.1").upgrade == "spdy/3.1"
    assert ask(connection="keep-alive", upgrade="SPDY/3.1").upgrade == ""
    assert ask(connection="upgrade").upgrade == ""


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "+1", "8o", "1" * 100, "٣"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_port(text)


# channels


class _Wire:
    """A Transport that gives what a test has put into it."""

    def __init__(self) -> None:
        self.account = Account()

    async def receive(self) -> bytes:
        return b""

    async def send(self, data: bytes) -> None:
        raise AssertionError(data)

    async def close(self) -> None:
        return


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=20), st.integers(1, 20))
def test_channels_are_told_apart_however_messages_are_cut(messages: list[tuple[int, bytes]], step: int) -> None:
    async def go() -> None:
        connection = ChannelConnection(websocket.WebSocket(_Wire()), Protocol("v4.channel.k8s.io"), (0, 4))
        for number, payload in messages:
            message = bytes((number,)) + payload
            starts = range(0, len(message), step)
            for start in starts:
                part = Part(message[start : start + step], first=start == 0, last=start == starts[-1])
                await connection._take(part)
        for number in (0, 4):
            connection.inboxes[number].finish()
            taken = b""
            while data := await connection.inboxes[number].receive():
                taken += data
            assert taken == b"".join(payload for channel, payload in messages if channel == number)

    run(go())


def test_the_close_signal_ends_a_channel_in_version_5_only() -> None:
    async def go(protocol: Protocol) -> bool:
        connection = ChannelConnection(websocket.WebSocket(_Wire()), protocol, (0,))
        await connection._take(Part(b"\xff\x00", first=True, last=True))
        return connection.inboxes[0]._ended

    assert run(go(WEBSOCKET_PROTOCOLS["v5.channel.k8s.io"]))
    assert not run(go(WEBSOCKET_PROTOCOLS["v4.channel.k8s.io"]))


def test_base64_channels() -> None:
    async def go(message: bytes) -> bytes:
        protocol = WEBSOCKET_PROTOCOLS["v4.base64.channel.k8s.io"]
        connection = ChannelConnection(websocket.WebSocket(_Wire()), protocol, (0,))
        for start in range(0, len(message), 3):
            await connection._take_text(
                Part(message[start : start + 3], first=start == 0, last=start + 3 >= len(message))
            )
        connection.inboxes[0].finish()
        taken = b""
        while data := await connection.inboxes[0].receive():
            taken += data
        return taken

    for length in range(12):
        data = bytes(range(length))
        assert run(go(b"0" + base64.b64encode(data))) == data
    for wrong in (b"0*****", b"0aGk=aGk=", b"0aG", b"0aGk=aGkk"):
        with pytest.raises(InvalidArgument):
            run(go(wrong))


def test_a_message_in_base64_is_decoded_as_it_comes() -> None:
    async def go() -> None:
        protocol = WEBSOCKET_PROTOCOLS["v4.base64.channel.k8s.io"]
        connection = ChannelConnection(websocket.WebSocket(_Wire()), protocol, (0,))
        connection.inboxes[0].discard()
        await connection._take_text(Part(b"0", first=True, last=False))
        for _ in range(1000):
            await connection._take_text(Part(base64.b64encode(bytes(3000)), first=False, last=False))
            assert len(connection._text) <= 4

    run(go())
