"""Clients that break off or make no sense, at any stage: nothing fails in the background, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podkeep.base.config import StreamingConfig
from podkeep.runtime.oci.exec import ExecCommand, ExecStdio
from podkeep.runtime.oci.exec import start as start_command
from podkeep.runtime.oci.null_device import open_null
from podkeep.runtime.streaming import exec as exec_session
from podkeep.runtime.streaming.command_streams import CommandStreams, Size
from podkeep.runtime.streaming.port_forward import ForwardRequest
from podkeep.runtime.streaming.remote_command import CommandRequest
from podkeep.runtime.streaming.server import StreamingServer
from support.descriptors import open_descriptors
from support.stream_attack import attack, carry_out

CLIENTS = 250
AT_A_TIME = 20
RUNTIMES = ("exec cat", "head -c 100000 /dev/zero; cat >&2", "exit 3", "echo refused >&2; exit 1", "exec sleep 1000")
"""What stands for an OCI runtime and its command. It leaves no file with a process ID: it never says it has started."""


def _command(directory: Path, script: str, rng: random.Random) -> CommandRequest:
    runtime = directory / f"runtime-{RUNTIMES.index(script)}"
    if not runtime.exists():
        runtime.write_text(f"#!/bin/sh\n{script}\n")
        runtime.chmod(0o700)
    stdin, stdout, stderr = rng.random() < 0.7, True, rng.random() < 0.7

    def start(_size: Size | None) -> Any:
        command = ExecCommand(
            runtime=[str(runtime)],
            container="c",
            process={},
            files=directory,
            sockets=directory,
            environment={"PATH": os.environ["PATH"]},
            said=lambda words: words.decode(errors="replace"),
        )
        return start_command(command, ExecStdio(stdin=stdin, stdout=stdout, stderr=stderr))

    async def session(streams: CommandStreams) -> bytes:
        return await exec_session.run(streams, start)

    return CommandRequest(session=session, pod="pod", stdin=stdin, stdout=stdout, stderr=stderr, tty=False)


async def _connect(echo: int, port: int) -> socket.socket:
    if port == 81:
        await asyncio.sleep(1000)
    sock = socket.socket()
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", echo))
    except BaseException:
        sock.close()
        raise
    return sock


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_no_client_makes_anything_fail_in_the_background(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[tuple[str, dict[str, Any]]] = []
    os.close(open_null())  # the first one makes what the others use
    descriptors = len(open_descriptors())

    async def client(server: StreamingServer, echo: int, number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        forward = rng.random() < 0.4
        if forward:
            connect = partial(_connect, echo if rng.random() < 0.8 else 1)
            url = server.url("portforward", ForwardRequest(pod="pod", connect=connect, ports=(80, 81)))
        else:
            url = server.url("exec", _command(tmp_path, rng.choice(RUNTIMES), rng))
        planned = attack(url, rng, forward=forward)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append((f"{number} {planned.name}", context)))
        await carry_out(url, planned)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server, echo = StreamingServer(StreamingConfig()), await asyncio.start_server(_echo, "127.0.0.1", 0)
        await server.start()
        waiting = iter(range(CLIENTS))

        async def work() -> None:
            for number in waiting:
                await client(server, echo.sockets[0].getsockname()[1], number)

        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))
        await server.close()
        echo.close()
        assert server.pool.used == 0
        assert not server._running
        assert len(server._server) == 0
        # Exceptions without a taker are told when their tasks are collected.
        gc.collect()
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
        for task in left:
            if "_echo" in repr(task):
                task.cancel()
        assert [task for task in left if "_echo" not in repr(task)] == []

    asyncio.run(scenario())
    gc.collect()
    assert failures == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert len(open_descriptors()) <= descriptors
