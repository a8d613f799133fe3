"""Who may start a task by asyncio's own calls, which leave it without an owner: its failure is lost, or its end.

``asyncio.TaskGroup`` and ``Tasks`` of ``base/concurrency/tasks.py`` own what they start. A module that starts a task
otherwise is listed here, with how its end is waited for. If this test names a module of yours: use an owner,
or argue for it here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import podkeep

SOURCE = Path(podkeep.__file__).parent

ALLOWED = {
    "The owner itself; calls that are made once for all who wait.": (
        "base/concurrency/tasks.py",
        "base/concurrency/singleflight.py",
    ),
    "The function that starts it cancels it or waits for it before it ends, however that is.": (
        "agent/daemon/daemon.py",
        "agent/eviction/shutdown.py",
        "agent/images/puller.py",
        "agent/logs/rotation.py",
        "agent/manager/manager.py",
        "agent/pod/starter.py",
        "agent/pod/stopping.py",
        "cli/images/progress.py",
        "cli/pods/cp.py",
        "cli/pods/port_forward.py",
        "cli/pods/terminal.py",
        "cli/run.py",
        "cli/run_on_node.py",
        "images/store/checking.py",
        "images/store/store.py",
        "images/store/workers.py",
        "runtime/streaming/exec.py",
    ),
    "An object keeps it, logs each failure inside of it, and ends it when it is closed.": (
        "runtime/daemon/reload.py",
        "runtime/stats/sampler.py",
    ),
    "An object keeps it, takes its result or its failure the next time it looks, and ends it before its own end.": (
        "agent/eviction/local_storage.py",
        "agent/eviction/manager.py",
    ),
}

_STARTS = frozenset({"create_task", "ensure_future"})


def starts(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that start a task without an owner."""
    groups = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and "TaskGroup" in ast.unparse(item.context_expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name not in _STARTS:
                continue
            owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
            if owner not in groups:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_tasks_have_an_owner() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if any(name in text for name in _STARTS) and (calls := list(starts(ast.parse(text)))):
            found[str(path.relative_to(SOURCE))] = calls
    allowed = {module for listed in ALLOWED.values() for module in listed}
    assert {module: calls for module, calls in found.items() if module not in allowed} == {}
    assert sorted(allowed - set(found)) == [], "these are listed for nothing"


@pytest.mark.parametrize(
    "text", ["asyncio.create_task(x())", "loop.create_task(x())", "asyncio.ensure_future(x)", "ensure_future(x)"]
)
def test_what_starts_a_task(text: str) -> None:
    assert len(list(starts(ast.parse(text)))) == 1


def test_what_has_an_owner() -> None:
    text = "async def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(x())\n"
    assert list(starts(ast.parse(text))) == []
    assert list(starts(ast.parse("self._tasks.start(x())"))) == []


def test_the_errors_of_a_group_are_taken_out_of_it_in_one_place() -> None:
    """Whoever does that otherwise makes cycles that keep what broken streams were passing on (``ungrouped``)."""
    handlers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler | ast.Call) and "ExceptionGroup" in _names(node)
    }
    assert handlers == {"base/concurrency/tasks.py"}


def _names(node: ast.ExceptHandler | ast.Call) -> str:
    if isinstance(node, ast.ExceptHandler):
        return "" if node.type is None else ast.unparse(node.type)
    return ast.unparse(node) if ast.unparse(node.func) == "isinstance" else ""
