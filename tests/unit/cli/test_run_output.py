from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from podkeep.agent.events import Event
from podkeep.cli.run_output import REMEMBERED, RunOutput

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


def shown(logs: Iterable[Path], tmp_path: Path, meanwhile: Callable[[], object] = lambda: None) -> tuple[bytes, bytes]:
    """Return what is printed of logs, each of a pod of its own, if something happens after they were opened."""
    with (tmp_path / "out").open("w+b") as out, (tmp_path / "err").open("w+b") as err:
        output = RunOutput(stdout=out.fileno(), stderr=err.fileno(), prefixed=True)
        for number, log in enumerate(logs):
            pod = output.pod(f"pod{number}")
            pod.started("main", 0, log)
            pod.finish()
        meanwhile()
        asyncio.run(output.follow())
        return (tmp_path / "out").read_bytes(), (tmp_path / "err").read_bytes()


def test_a_damaged_line_keeps_no_other_from_being_shown(tmp_path: Path) -> None:
    damaged, sound = tmp_path / "0.log", tmp_path / "1.log"
    damaged.write_bytes(TIME + b" std" + TIME + b" stdout F lost\n" + TIME + b" stdout F one\n")
    sound.write_bytes(TIME + b" stdout F two\n")
    out, err = shown([damaged, sound], tmp_path)
    assert out == b"[pod0/main] one\n[pod1/main] two\n"
    assert err == f"podkeep: pod0/main: output is left out: the log {damaged} is damaged\n".encode()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after it was opened"])
def test_a_log_that_cannot_be_read_keeps_no_other_from_being_shown(
    tmp_path: Path, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bad, sound = tmp_path / "logs" / "0.log", tmp_path / "1.log"
    bad.parent.mkdir()
    bad.write_bytes(TIME + b" stdout F one\n")
    sound.write_bytes(TIME + b" stdout F two\n")

    def exchange() -> None:
        bad.parent.rename(tmp_path / "moved")
        bad.parent.touch()

    if when == "before":
        exchange()
        out, err = shown([bad, sound], tmp_path)
        told = capfd.readouterr().err
        assert err == b""
    else:
        out, err = shown([bad, sound], tmp_path, exchange)
        told = err.decode()
    assert out == b"[pod1/main] two\n"
    assert told.startswith("podkeep: pod0/main: its output is not shown: ")
    assert told.count("\n") == 1


def test_of_warnings_the_last_ones_are_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A probe that writes something else each time takes no memory without end."""
    pod = RunOutput(stdout=None, stderr=None, prefixed=False).pod("web")

    def failed(output: str) -> None:
        pod.event(Event(type="Warning", reason="Unhealthy", message=f"Readiness probe failed: {output}"))

    for _ in range(3):
        failed("the same")
    for number in range(REMEMBERED):
        failed(f"at {number}")
        failed("the same")
    failed("at 0")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 + REMEMBERED + 1
    assert lines[0] == "podkeep: web: Readiness probe failed: the same"
    assert lines[-1] == "podkeep: web: Readiness probe failed: at 0"
