"""Standard error that is not read keeps no event loop."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
import pytest

from podkeep.cli.core import unhindered

PIPE = 1 << 16


@contextmanager
def standard_error(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have standard error be a pipe, and give its end to read from. pytest would undo that of a fixture."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield reader.fileno()


def read_all(pipe: int, into: list[bytes]) -> threading.Thread:
    """Read until a line says ``end``."""

    def work() -> None:
        while not into or not into[-1].endswith(b"end\n"):
            into.append(os.read(pipe, PIPE))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_is_said_while_nothing_is_read_comes_later_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch) as pipe:
        said = [f"{number} {'x' * 1000}" for number in range(150)]
        came: list[bytes] = []
        before = sys.stderr
        with unhindered.standard_error():
            for text in said:
                click.echo(text, err=True)
            click.echo("end", err=True)
            reading = read_all(pipe, came)
        reading.join()
        assert b"".join(came).decode().splitlines() == [*said, "end"]
        assert sys.stderr is before


def test_more_than_can_wait_is_left_out_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch) as pipe:
        came: list[bytes] = []
        with unhindered.standard_error():
            for _ in range(1000):
                click.echo("x" * 1000, err=True)
            reading = read_all(pipe, came)
            reading_some = b"left out, as"
            while reading_some not in b"".join(came):
                reading.join(0.01)
            click.echo("end", err=True)
        reading.join()
        lines = b"".join(came).decode().splitlines()
        shown = lines.count("x" * 1000)
        assert 0 < shown < 1000
        assert lines[shown:] == [f"podkeep: left out, as nothing was read: {1000 - shown} messages", "end"]


def test_one_message_is_written_however_long_and_one_that_is_left_out_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch) as pipe:
        came: list[bytes] = []
        with unhindered.standard_error():
            click.echo("x" * 4 * PIPE, err=True)  # more than may wait, and nothing waits
            click.echo("lost", err=True)
            reading = read_all(pipe, came)
            reading_some = b"message\n"
            while reading_some not in b"".join(came):
                reading.join(0.01)
            click.echo("end", err=True)
        reading.join()
        said = ["x" * 4 * PIPE, "podkeep: left out, as nothing was read: 1 message", "end"]
        assert b"".join(came).decode().splitlines() == said


@pytest.mark.slow
def test_an_end_that_is_hurried_waits_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch) as pipe:
        with unhindered.standard_error() as errors:
            click.echo("x" * 2 * PIPE, err=True)
            errors.hurry()
        left = 2 * PIPE + 1
        while left:
            left -= len(os.read(pipe, left))


@pytest.mark.slow
def test_an_end_by_ctrl_c_waits_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes before or after the verb looks at signals itself."""
    with standard_error(monkeypatch) as pipe:
        with suppress(KeyboardInterrupt), unhindered.standard_error() as errors:
            click.echo("x" * 2 * PIPE, err=True)
            raise KeyboardInterrupt
        assert not errors.failure.done()
        left = 2 * PIPE + 1
        while left:
            left -= len(os.read(pipe, left))


def test_a_pipe_whose_reader_is_gone_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        errors = unhindered.Unhindered(stream)
        errors.write("lost")
        assert isinstance(errors.failure.exception(), BrokenPipeError)
        with pytest.raises(BrokenPipeError):
            errors.finish()
        with unhindered.standard_error() as errors:
            errors.hurry()
            click.echo("lost", err=True)
        assert not errors.failure.done()


def test_what_is_logged_takes_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_error(monkeypatch) as pipe:
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(handler)
        try:
            before = handler.stream
            with unhindered.standard_error():
                logging.getLogger("podkeep.test").warning("x" * 2 * PIPE)
                came: list[bytes] = []
                click.echo("end", err=True)
                reading = read_all(pipe, came)
            reading.join()
            assert handler.stream is before
        finally:
            logging.getLogger().removeHandler(handler)
        assert b"".join(came).endswith(b"x\nend\n")
