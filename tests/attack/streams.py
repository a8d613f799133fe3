"""Byte streams for the streaming server made by chance: sound ones of SPDY and WebSocket, mutated, and broken off.

Making them is pure: the same source of chance makes the same case. :func:`play` sends one.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from attack.calls import RPCS, Call
from podkeep.cri.v1 import api_pb2 as api
from podkeep.http import spdy

PORT = 8080
"""On which a container of the node under attack listens and sends back what it gets."""
READ_S = 0.5
"""How long an answer is waited for: a case may be one that is never answered."""
_COMMANDS = (
    ["cat"],
    ["true"],
    ["sh", "-c", "echo out; echo err >&2"],
    ["sh", "-c", "cat; exit 3"],
    ["/no/such"],
    ["sh", "-c", "yes | head -c 3000000"],
    ["sh", "-c", "read x; echo $x"],
)
_PROTOCOLS = {
    "spdy": (
        "v4.channel.k8s.io",
        "v3.channel.k8s.io",
        "v2.channel.k8s.io",
        "channel.k8s.io",
        "v5.channel.k8s.io",
        "x",
        "",
    ),
    "websocket": (
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
        "base64.channel.k8s.io",
        "v4.base64.channel.k8s.io",
        "",
        "x",
        "SPDY/3.1+portforward.k8s.io",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a client: ``send`` bytes, ``read`` what comes, or an end: ``half``, ``close``, ``reset``."""

    do: str
    data: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A request for a stream, and what its client does; ``@path`` in what is sent is the path of the URL."""

    call: Call
    steps: Sequence[Step]


def make(rng: random.Random) -> Stream:
    """Return a case."""
    rpc = rng.choices(("Exec", "Attach", "PortForward"), (5, 2, 3))[0]
    call = Call(rpc=rpc, request=_request(rng, rpc))
    spoken = "spdy" if rng.random() < 0.6 else "websocket"
    tunnelled = rpc == "PortForward" and spoken == "websocket"
    head = _head(rng, spoken, rpc)
    frames = _spdy(rng, rpc) if spoken == "spdy" else _websocket(rng, rpc)
    if tunnelled and rng.random() < 0.7:
        frames = [_frame(rng, 2, frame) for frame in _spdy(rng, rpc)]
    parts = [head, *frames]
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(parts)) if rng.random() < 0.4 else max(rng.randrange(len(parts)), 1)
            place = min(place, len(parts) - 1)
            parts[place] = _mutated(rng, parts[place])
    if rng.random() < 0.15:
        rng.shuffle(parts)
    if rng.random() < 0.3:
        parts = parts[: rng.randint(0, len(parts))]
    steps = []
    for number, part in enumerate(parts):
        if rng.random() < 0.1 and len(part) > 1:
            cut = rng.randrange(1, len(part))
            steps += [Step(do="send", data=part[:cut]), Step(do="read"), Step(do="send", data=part[cut:])]
        else:
            steps.append(Step(do="send", data=part))
        if number == 0 and rng.random() < 0.8:
            steps.append(Step(do="read"))
    if rng.random() < 0.5:
        steps.append(Step(do="read"))
    return Stream(call=call, steps=(*steps, Step(do=rng.choice(("half", "close", "reset", "reset")))))


def _request(rng: random.Random, rpc: str) -> Message:
    if rpc == "PortForward":
        ports = rng.choice(([PORT], [PORT, 81], [], [1], [65535]))
        return api.PortForwardRequest(pod_sandbox_id="@sandbox", port=ports)
    tty = rng.random() < 0.3
    wanted = {"stdin": rng.random() < 0.6, "stdout": True, "stderr": not tty, "tty": tty}
    if rpc == "Attach":
        return api.AttachRequest(container_id="@container", **wanted)
    return api.ExecRequest(container_id="@container", cmd=rng.choice(_COMMANDS), **wanted)


def _head(rng: random.Random, spoken: str, rpc: str) -> bytes:
    protocol = rng.choice(_PROTOCOLS[spoken]) if rng.random() < 0.3 else _PROTOCOLS[spoken][0]
    if rpc == "PortForward":
        protocol = "portforward.k8s.io" if spoken == "spdy" else "SPDY/3.1+portforward.k8s.io"
    lines = ["Host: localhost", "Connection: Upgrade"]
    if spoken == "spdy":
        lines += ["Upgrade: SPDY/3.1", f"X-Stream-Protocol-Version: {protocol}", "Content-Length: 0"]
    else:
        lines += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
        lines.append(f"Sec-WebSocket-Protocol: {protocol}")
    if rng.random() < 0.15:
        lines.insert(
            rng.randrange(len(lines)),
            rng.choice(
                (
                    "X: " + "x" * 70000,
                    "Transfer-Encoding: chunked",
                    ":",
                    "X",
                    "Content-Length: 99999999999999999999",
                    "Upgrade: h2c",
                    "Sec-WebSocket-Version: 8",
                    "Sec-WebSocket-Key: x",
                    "Sec-WebSocket-Extensions: permessage-deflate",
                    "Expect: 100-continue",
                )
            ),
        )
    if rng.random() < 0.1:
        lines.remove(rng.choice(lines))
    verb = "POST" if spoken == "spdy" else "GET"
    return "\r\n".join([f"{verb} @path HTTP/1.1", *lines, "", ""]).encode()


def _spdy(rng: random.Random, rpc: str) -> list[bytes]:
    encoder = spdy.Encoder()
    numbers = [1, 3, 5, 7]
    if rng.random() < 0.2:
        numbers = [rng.choice((0, 1, 2, 3, 5, 2**31 - 1)) for _ in numbers]
    if rpc == "PortForward":
        pair = {"port": rng.choice((str(PORT), str(PORT), "81", "x", "-1", "99999", "")), "requestid": "0"}
        opened = [{"streamtype": "error", **pair}, {"streamtype": "data", **pair}]
    else:
        opened = [{"streamtype": name} for name in ("error", "stdin", "stdout", rng.choice(("stderr", "resize")))]
    if rng.random() < 0.2:
        opened.append(
            rng.choice(({}, {"streamtype": "x"}, {"streamtype": "stdin"}, {"streamtype": ""}, {"a": "b" * 5000}))
        )
    if rng.random() < 0.1:
        opened.pop(0)
    frames: list[spdy.Frame] = [
        spdy.SynStream(stream_id=rng.choice(numbers) if number >= len(numbers) else numbers[number], headers=headers)
        for number, headers in enumerate(opened)
    ]
    for _ in range(rng.randint(0, 6)):
        target = rng.choice((*numbers, *numbers, 99))
        data = rng.choice(
            (b"", b"hello\n", b"x" * 40000, b'{"Width":80,"Height":24}\n', b'{"Width":-1}', rng.randbytes(9))
        )
        frames.append(
            rng.choice(
                (
                    spdy.Data(stream_id=target, data=data),
                    spdy.Data(stream_id=target, data=data, fin=True),
                    spdy.RstStream(stream_id=target, status=rng.choice((1, 5, 99))),
                    spdy.Ping(ping_id=rng.choice((1, 2, 0, 2**32 - 1))),
                    spdy.GoAway(last_stream_id=0),
                    spdy.Settings(entries=((0, 4, 100),)),
                    spdy.Headers(stream_id=target, headers={"streamtype": "stdin"}),
                    spdy.WindowUpdate(stream_id=target, delta=rng.choice((0, 1, 2**31 - 1))),
                    spdy.SynReply(stream_id=target),
                )
            )
        )
    if rng.random() < 0.2:
        rng.shuffle(frames)
    return [encoder.encode(frame) for frame in frames]


def _websocket(rng: random.Random, rpc: str) -> list[bytes]:
    frames = []
    for _ in range(rng.randint(1, 7)):
        opcode = rng.choices((2, 1, 8, 9, 10, 0, 3, 11), (50, 10, 8, 8, 4, 6, 3, 2))[0]
        channel = bytes([rng.choice((0, 0, 0, 4, 1, 3, 255, 9))])
        payload = rng.choice(
            (b"", b"hello\n", b"x" * 70000, b"\0", b"\xff", b'{"Width":80,"Height":24}', rng.randbytes(9), b"aGVsbG8=")
        )
        content = b"0" + payload if opcode == 1 and rng.random() < 0.5 else channel + payload
        if opcode >= 8:
            content = rng.choice((b"", b"\x03\xe8", b"\x03", b"\x03\xe8bye", b"\xff\xff", b"\x03\xe8\xff", b"x" * 126))
        frames.append(_frame(rng, opcode, content))
    return frames


def _frame(rng: random.Random, opcode: int, payload: bytes) -> bytes:
    first = opcode | (0 if rng.random() < 0.07 else 0x80) | (0x40 if rng.random() < 0.03 else 0)
    masked = rng.random() > 0.05
    length = len(payload)
    if rng.random() < 0.03:
        length = rng.choice((0, 125, 126, 65535, 2**31, 2**63 - 1, 2**64 - 1))
    if length < 126:
        size = bytes([length | (0x80 if masked else 0)])
    elif length < 65536:
        size = bytes([126 | (0x80 if masked else 0)]) + struct.pack(">H", length)
    else:
        size = bytes([127 | (0x80 if masked else 0)]) + struct.pack(">Q", length)
    key = rng.randbytes(4)
    body = bytes(byte ^ key[index % 4] for index, byte in enumerate(payload)) if masked else payload
    return bytes([first]) + size + (key if masked else b"") + body


def _mutated(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return rng.randbytes(4)
    at = rng.randrange(min(len(data), 64) if rng.random() < 0.7 else len(data))
    match rng.randrange(7):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes([rng.choice((0, 0xFF, 0x80, 0x7F))]) + data[at + 1 :]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + rng.randbytes(rng.randint(1, 12)) + data[at:]
        case 4:
            return data[:at] + data[at + rng.randint(1, 8) :]
        case 5:
            return data + data
        case _:
            return data[:4] + rng.choice((b"\xff\xff\xff", b"\0\0\0", b"\0\xff\xff")) + data[7:]


def stream_text(case: Stream, found: str) -> str:
    """Return a case as the text of a file of the corpus."""
    steps = [{**asdict(step), "data": step.data.decode("latin-1")} for step in case.steps]
    return json.dumps({"found": found, "open": case.call.as_json(), "steps": steps}, indent=1) + "\n"


def read_stream(path: Path) -> Stream:
    """Return a case of the corpus."""
    document: dict[str, Any] = json.loads(path.read_text())
    opened = document["open"]
    request = message_factory.GetMessageClass(RPCS[opened["rpc"]].input_type)()
    json_format.ParseDict(opened["request"], request)
    steps = [Step(do=item["do"], data=item["data"].encode("latin-1")) for item in document["steps"]]
    return Stream(call=Call(rpc=opened["rpc"], request=request), steps=steps)


def play(case: Stream, url: str) -> str:
    """Do what a case's client does; return in a word how it ended."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=READ_S) as client:
        answer = b""
        try:
            for step in case.steps:
                match step.do:
                    case "send":
                        client.sendall(step.data.replace(b"@path", parts.path.encode()))
                    case "half":
                        client.shutdown(socket.SHUT_WR)
                        while data := client.recv(65536):
                            answer += data[: 65536 - len(answer)]
                    case "reset":
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return _word(answer) + "reset"
                    case "read":
                        with suppress(TimeoutError):
                            answer += client.recv(65536)
        except TimeoutError:
            return _word(answer) + "waits"
        except OSError:
            return _word(answer) + "broken"
    return _word(answer) + "closed"


def _word(answer: bytes) -> str:
    status = answer.partition(b" ")[2][:3].decode("latin-1")
    return f"{status}-" if status.isdigit() else ""
