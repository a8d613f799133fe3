"""How the record of a request becomes text."""

from __future__ import annotations

from support.tracing import Span, lines

MS = 1_000_000


def call(what: str, start: float, end: float, *inner: Span, thread: str = "") -> Span:
    return Span(kind="call", what=what, start=int(start * MS), end=int(end * MS), thread=thread, inner=list(inner))


def moment(kind: str, what: str, at: float) -> Span:
    return Span(kind=kind, what=what, start=int(at * MS), end=int(at * MS))


def test_steps_stand_below_what_called_them_with_times_since_the_request() -> None:
    step = call("b.py:2 step", 12, 16, moment("program", "crun start", 13), thread="work_0")
    assert lines(call("Start", 10, 20, step), least_ms=1) == [
        "      after        took",
        "     0.0 ms     10.0 ms Start",
        "     2.0 ms      4.0 ms   b.py:2 step   [thread work_0]",
        "     3.0 ms                 $ crun start",
    ]


def test_short_calls_are_left_out_but_not_what_happened_in_them() -> None:
    short = [call("c.py:3 short", at, at + 0.6) for at in (11, 12)]
    reaching = call("d.py:4 reaching", 13, 13.1, moment("point", "sandbox.files", 13.05))
    shown = lines(call("Run", 10, 20, *short, reaching), least_ms=1)
    assert shown[2:] == [
        "     3.0 ms      0.1 ms   d.py:4 reaching",
        "     3.0 ms                 * sandbox.files",
        "                 1.2 ms   … 2 short calls",
    ]


def test_what_goes_on_after_the_answer_is_shown_as_that() -> None:
    assert lines(call("Run", 0, 5, Span(kind="call", what="x", start=1)), least_ms=1)[2].split() == [
        *("0.0", "ms", "goes", "on", "x")
    ]


def test_identities_are_cut_and_log_lines_stay_on_one_line() -> None:
    [line] = lines(call("Run", 0, 5, moment("log", f"sandbox {'ab' * 32}\nis ready", 1)), least_ms=1)[2:]
    assert line.endswith("# sandbox abababababab… is ready")
