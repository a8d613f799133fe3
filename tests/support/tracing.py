"""What one request of the daemon did: every function of podkeep it called, the programs it started, with times.

Owns: the recorder (:class:`Recorder`), which runs in the daemon, and the text that is made of a record (:func:`lines`).
The daemon has no part in it: ``support.traced`` starts one with a recorder, and no other daemon knows of this module.

A profile function is called for every call and return on every thread. Which request a call belongs to, and which
function caused it, is in a context variable: ``asyncio.to_thread`` and new tasks inherit it, so a step that runs on
a thread stands below the function that asked for it.
"""

from __future__ import annotations

import opcode
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

import podkeep
from podkeep.base.text.redaction import redacted

PACKAGE = f"{Path(podkeep.__file__).parent}/"
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
_YIELD = opcode.opmap["YIELD_VALUE"]
_FAILPOINT, _LOG_LINES = " reach", (" _Plain.format", " _Json.format")
"""The functions by which a failpoint is reached, and a record becomes a line of the log."""
_SIGNS = {"program": "$", "point": "*", "log": "#"}
_ID = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_LINE = 240
"""How much of a command line or a message is shown."""


class Span(msgspec.Struct, kw_only=True):
    """A call, or something that happened in one moment: then ``end`` is ``start``. Times: ``time.monotonic_ns``."""

    kind: str
    """``call``, ``program``, ``point`` (a failpoint) or ``log``."""
    what: str
    """``file:line function``, a command line, a failpoint's name, or a log message."""
    start: int
    end: int = 0
    """0: it had not returned when the request was answered."""
    thread: str = ""
    """Name of the thread, if it is not that of the event loop."""
    inner: list[Span] = msgspec.field(default_factory=list)


@dataclass(eq=False)
class _Request:
    top: Span
    open: dict[int, tuple[FrameType, Span, Span]] = field(default_factory=dict)
    """By the frame's identity: the frame, which is kept so that no other gets it, its span, and the one above."""
    is_over: bool = False


@dataclass(frozen=True)
class _Place:
    request: _Request
    span: Span


_place: ContextVar[_Place | None] = ContextVar("traced_place", default=None)


class Recorder:
    """Records each request of one kind, from its bytes to its answer. There is one recorder in a process.

    :param rpc: name of the RPC, without that of its service.
    :param answered: called with the record when a request was answered, on the thread of the event loop.
    """

    def __init__(self, rpc: str, answered: Callable[[Span], None]) -> None:
        self._rpc, self._answered = rpc, answered
        self._names: dict[CodeType, str] = {}
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Look at every call of this thread, and of threads that are started from now on, until the process ends."""
        # The namespace helper is forked, and no request is in it.
        os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
        sys.addaudithook(self._audit)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "return"):
            return
        place = _place.get()
        if place is None:
            if event == "call" and frame.f_code.co_name == "serve":
                self._begin(frame)
            return
        request = place.request
        if request.is_over:
            return
        name = self._names.get(frame.f_code)
        if name is None:
            name = self._names[frame.f_code] = _name(frame.f_code)
        if not name:
            return
        if event == "call":
            if name.endswith(_FAILPOINT):
                _note("point", str(frame.f_locals["name"]))
            elif id(frame) not in request.open:  # else a coroutine goes on
                thread = "" if threading.get_ident() == self._main else threading.current_thread().name
                span = Span(kind="call", what=name, start=time.monotonic_ns(), thread=thread)
                if name.endswith(_LOG_LINES):
                    span.kind, span.what = "log", redacted(frame.f_locals["record"].getMessage())
                place.span.inner.append(span)
                request.open[id(frame)] = frame, span, place.span
                _place.set(_Place(request, span))
        elif id(frame) in request.open and not _suspends(frame):
            _, span, above = request.open.pop(id(frame))
            span.end = time.monotonic_ns()
            _place.set(_Place(request, above))
            if span is request.top:
                request.is_over = True
                request.open.clear()
                self._answered(span)

    def _begin(self, frame: FrameType) -> None:
        """Begin a record if this is the call that serves a request of the kind."""
        if frame.f_code.co_filename != f"{PACKAGE}cri/server.py":
            return
        if str(frame.f_locals["rpc"].name).rpartition("/")[2] != self._rpc:
            return
        top = Span(kind="call", what=self._rpc, start=time.monotonic_ns())
        request = _Request(top, {id(frame): (frame, top, top)})
        self._names[frame.f_code] = self._rpc
        _place.set(_Place(request, top))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            _note("program", shlex.join(map(str, arguments[1])))


def _note(kind: str, what: str) -> None:
    place = _place.get()
    if place is not None and not place.request.is_over:
        now = time.monotonic_ns()
        place.span.inner.append(Span(kind=kind, what=what, start=now, end=now))


def _name(code: CodeType) -> str:
    """Return ``file:line function`` of podkeep's own functions; empty for all others, and for parts of functions.

    Generators are left out: they return in the middle, and what they call counts as called by whoever asks them.
    """
    if not code.co_filename.startswith(PACKAGE) or code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return ""
    if code.co_name.startswith("<"):
        return ""
    function = code.co_qualname.replace(".<locals>", "")
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno} {function}"


def _suspends(frame: FrameType) -> bool:
    """Return whether a frame that "returns" is a coroutine that waits."""
    return bool(frame.f_code.co_flags & CO_COROUTINE) and frame.f_code.co_code[frame.f_lasti] == _YIELD


def lines(top: Span, *, least_ms: float) -> list[str]:
    """Return a record as text: since when, how long, and what, indented below what called it. Pure.

    :param least_ms: calls that took less are left out, with all that is below them, unless a program was started, a
        failpoint reached or something logged in them. How long those of one caller took together is shown if it is
        more than that.
    """
    return ["      after        took", *_lines(top, top, top.start, least_ms)]


def _lines(span: Span, above: Span, begin: int, least_ms: float, depth: int = 0) -> Iterator[str]:
    after, indent = f"{(span.start - begin) / 1e6:8.1f} ms", "  " * depth
    if span.kind != "call":
        yield f"{after}             {indent}{_SIGNS[span.kind]} {_shortened(span.what)}"
        return
    took = f"{_took_ms(span):8.1f} ms" if span.end else "   goes on "
    thread = f"   [{f'thread {span.thread}' if span.thread else 'event loop'}]" if span.thread != above.thread else ""
    yield f"{after} {took} {indent}{span.what}{thread}"
    left_out = [part for part in span.inner if not _is_shown(part, least_ms)]
    for part in span.inner:
        if _is_shown(part, least_ms):
            yield from _lines(part, span, begin, least_ms, depth + 1)
    if (together := sum(map(_took_ms, left_out))) >= least_ms:
        yield f"{'':11} {together:8.1f} ms {indent}  … {len(left_out)} short calls"


def _shortened(text: str) -> str:
    """Return one line in which IDs are cut as the command line cuts them."""
    text = _ID.sub(r"\1…", text).replace("\n", " ")
    return text if len(text) <= _LINE else f"{text[:_LINE]} …"


def _is_shown(span: Span, least_ms: float) -> bool:
    if span.kind != "call" or not span.end or _took_ms(span) >= least_ms:
        return True
    return any(_is_shown(part, least_ms) for part in span.inner)


def _took_ms(span: Span) -> float:
    return (span.end - span.start) / 1e6
