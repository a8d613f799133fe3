from __future__ import annotations

import asyncio
import os
from pathlib import Path

from podkeep.cli.run_output import RunOutput

TIME = b"2026-01-02T03:04:05.000000006Z"


def test_line_without_an_end_is_printed_in_pieces_with_its_container(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes((TIME + b" stdout P " + b"x" * 8000 + b"\n") * 40)
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        output = RunOutput(stdout=file.fileno(), stderr=None, prefixed=True)
        pod = output.pod("")
        pod.add("main", log)
        pod.finish()
        asyncio.run(output.follow())
    lines = shown.read_bytes().splitlines()
    assert len(lines) > 4
    assert b"".join(line.removeprefix(b"[main] ") for line in lines) == b"x" * 320_000


def test_streams_go_where_they_belong(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_bytes(TIME + b" stdout F one\n" + TIME + b" stderr F two\n" + TIME + b" stdout F three\n")
    read, write = os.pipe()
    other, error = os.pipe()
    output = RunOutput(stdout=write, stderr=error, prefixed=False)
    pod = output.pod("")
    pod.add("main", log)
    pod.finish()
    asyncio.run(output.follow())
    assert (os.read(read, 100), os.read(other, 100)) == (b"one\nthree\n", b"two\n")
    for descriptor in (read, write, other, error):
        os.close(descriptor)
