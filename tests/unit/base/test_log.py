"""Log lines: form, request IDs, and where they follow the work."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from podkeep.base import log
from podkeep.base.errors import InvalidArgument


@contextmanager
def logging_to(stream: io.StringIO, level: str = "info", style: Literal["plain", "json"] = "plain") -> Iterator[None]:
    """Configure the log and put the root logger back as it was."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log.configure(level, stream, style=style)
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


def in_request(action: object) -> None:
    assert callable(action)
    contextvars.copy_context().run(action)


def test_a_plain_line_carries_time_level_logger_and_message() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        logging.getLogger("podkeep.test").info("pulled %d layers", 3)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO podkeep\.test pulled 3 layers\n", stream.getvalue()
    )


def test_only_the_first_line_of_a_record_starts_in_the_first_column() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            logging.getLogger("podkeep.test").exception("a program said:\n2026-01-01 forged")
    lines = stream.getvalue().splitlines()
    assert len(lines) > 3
    assert [line for line in lines[1:] if not line.startswith("    ")] == []


def test_what_others_wrote_gives_a_terminal_no_orders() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        logging.getLogger("podkeep.test").warning("the registry said %s", "\x1b[2J\x9b1m\rno\u202e")
    assert stream.getvalue().endswith(r"the registry said \x1b[2J\x9b1m\rno\u202e" + "\n")


def test_a_line_carries_its_request() -> None:
    stream = io.StringIO()

    def work() -> None:
        request = log.begin_request()
        assert log.request_id() == request
        logging.getLogger("podkeep.test").info("in %s", request)

    with logging_to(stream):
        in_request(work)
        logging.getLogger("podkeep.test").info("outside")
    inside, outside = stream.getvalue().splitlines()
    assert re.search(r" podkeep\.test \[([0-9a-f]{8})\] in \1$", inside)
    assert outside.endswith(" podkeep.test outside")


def test_a_request_follows_into_threads_and_tasks() -> None:
    async def request() -> tuple[str, list[str]]:
        mine = log.begin_request()
        task = asyncio.create_task(asyncio.to_thread(log.request_id))
        return mine, [await asyncio.to_thread(log.request_id), await task]

    async def main() -> list[tuple[str, list[str]]]:
        return list(await asyncio.gather(asyncio.create_task(request()), asyncio.create_task(request())))

    results = asyncio.run(main())
    assert len({mine for mine, _ in results}) == 2
    for mine, seen in results:
        assert seen == [mine, mine]


def test_json_lines() -> None:
    stream = io.StringIO()

    def work() -> None:
        log.begin_request()
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("podkeep.test").exception("two\nlines é")

    with logging_to(stream, style="json"):
        in_request(work)
        logging.getLogger("podkeep.test").warning("plain")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["level"] == "error"
    assert first["message"] == "two\nlines é"
    assert re.fullmatch("[0-9a-f]{8}", first["request_id"])
    assert first["exception"].endswith("ValueError: no")
    assert set(second) == {"time", "level", "logger", "message"}


def test_the_level_decides_and_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    with logging_to(first, level="debug"):
        logging.getLogger("podkeep.test").debug("fine")
        log.configure("warning", second)
        logging.getLogger("podkeep.test").info("too fine")
        logging.getLogger("podkeep.test").warning("shown")
    assert first.getvalue().count("\n") == 1
    assert second.getvalue().endswith("shown\n")
    assert second.getvalue().count("\n") == 1


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'loud' is not a log level"):
        log.configure("loud", io.StringIO())
