"""Log lines that carry the ID of the request they belong to.

Owns: the request ID of the running task or thread, and the form of a line. ``cri/server.py`` starts a request ID per
RPC; ``asyncio.to_thread`` and new tasks inherit it. The entry point of a process calls ``configure`` once.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Literal, TextIO

from podkeep.base.errors import InvalidArgument
from podkeep.base.text.printable import printable_lines
from podkeep.base.text.redaction import redacted

LEVELS = ("debug", "info", "warning", "error")

_request_id: ContextVar[str] = ContextVar("podkeep_request_id", default="")


def request_id() -> str:
    """Return the ID of the request that the caller works for; empty outside of a request."""
    return _request_id.get()


def begin_request() -> str:
    """Give the calling task, and what it starts from now on, a new request ID of eight hex digits and return it."""
    value = secrets.token_hex(4)
    _request_id.set(value)
    return value


class _Plain(logging.Formatter):
    """``TIME LEVEL LOGGER [REQUEST] MESSAGE``; only the first line of a record starts in the first column."""

    def format(self, record: logging.LogRecord) -> str:
        request = f" [{request}]" if (request := request_id()) else ""
        line = f"{_timestamp(record)} {record.levelname} {record.name}{request} {record.getMessage()}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        # A text of others with a newline in it must not look like a record of its own.
        return printable_lines(redacted(line)).replace("\n", "\n    ")


class _Json(logging.Formatter):
    """One JSON object per record and line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if request := request_id():
            entry["request_id"] = request
        if record.exc_info:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        # What is no Unicode text (a file's name may be none) would otherwise be lost with the whole line.
        return json.dumps(entry, ensure_ascii=False).encode(errors="backslashreplace").decode()


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def configure(level: str, stream: TextIO, *, style: Literal["plain", "json"] = "plain") -> None:
    """Send the log of the whole process to ``stream``; a later call replaces an earlier one.

    Nothing is buffered between threads: a record is formatted, with its request ID, where it is made. If it is the
    process's standard error, a crash of the interpreter says there where each thread was, in plain lines.

    :param level: one of ``LEVELS``; the lowest that is written.
    :raises InvalidArgument: if ``level`` is not one of them.
    """
    if level not in LEVELS:
        raise InvalidArgument(f"{level!r} is not a log level", hint=f"use one of {', '.join(LEVELS)}")
    if stream is sys.__stderr__:
        # Of a process that a signal such as SIGSEGV ends nothing else is left to tell why.
        faulthandler.enable(stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if style == "json" else _Plain())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # gRPC writes a debug line for every step of every call.
    logging.getLogger("grpc").setLevel(logging.INFO)
