"""Undo of half-done work: in reverse, all of it, and what could not be undone is told."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from podkeep.base.errors import Internal
from podkeep.base.undo import UndoStack


def failing() -> None:
    raise OSError("device or resource busy")


def work(error: BaseException, **steps: Callable[[], object]) -> None:
    """Do what fails with ``error`` when the steps of its undo are registered, in this order."""
    with UndoStack() as undo:
        for name, step in steps.items():
            undo.push(f"undo the {name}", step)
        raise error


def test_what_failed_is_undone_last_first() -> None:
    done: list[str] = []
    with pytest.raises(Internal, match="crun failed"):
        work(Internal("crun failed"), cgroup=lambda: done.append("cgroup"), mount=lambda: done.append("mount"))
    assert done == ["mount", "cgroup"]


def test_what_succeeded_is_kept() -> None:
    done: list[str] = []
    with UndoStack() as undo:
        undo.push("remove it", lambda: done.append("removed"))
    undo.run()
    assert done == []


def test_what_is_committed_half_way_is_kept_and_what_comes_after_is_not() -> None:
    done: list[str] = []
    undo = UndoStack()
    undo.push("remove the first", lambda: done.append("first"))
    undo.commit()
    undo.push("remove the second", lambda: done.append("second"))
    undo.run()
    assert done == ["second"]


def test_a_step_that_fails_keeps_no_other_from_being_tried(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    undo = UndoStack()
    undo.push("remove the cgroup", lambda: done.append("cgroup"))
    undo.push("unmount it", failing)
    undo.push("remove the pin", lambda: done.append("pin"))
    with caplog.at_level(logging.WARNING):
        undo.run()
    assert done == ["pin", "cgroup"]
    assert [(what, str(error)) for what, error in undo.failed] == [("unmount it", "device or resource busy")]
    assert caplog.messages == ["could not unmount it: device or resource busy"]


def test_the_error_that_led_to_the_undo_is_the_one_that_is_raised() -> None:
    with pytest.raises(Internal, match="crun failed"):
        work(Internal("crun failed"), mount=failing)


def test_a_step_is_run_once() -> None:
    done: list[int] = []
    undo = UndoStack()
    undo.push("count", lambda: done.append(1))
    undo.run()
    undo.run()
    assert done == [1]


def test_a_step_may_register_another() -> None:
    done: list[str] = []
    undo = UndoStack()
    undo.push("do the outer", lambda: undo.push("do the inner", lambda: done.append("inner")))
    undo.run()
    assert done == ["inner"]


def test_an_interrupt_undoes_too() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt(), file=lambda: done.append("removed"))
    assert done == ["removed"]
