"""Running a test body in namespaces of its own, and looking from inside a user namespace.

The body runs in a forked child (the test process has one Python thread), so nothing it mounts or unshares can stay
behind in the test process. What it raises is raised again here with its traceback as the message.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podkeep.kernel import libc
from podkeep.kernel.libc import CloneFlag
from podkeep.kernel.mount import mounts
from support import processes
from support.descriptors import open_descriptors


def in_new_namespaces(flags: CloneFlag = CloneFlag.NEWNS) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test: its body runs in new namespaces, in which no mount propagates to the machine's."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            def body() -> None:
                libc.unshare(flags | CloneFlag.NEWNS)
                mounts.set_propagation("/", mounts.Propagation.PRIVATE, recursive=True)
                test(*args, **kwargs)

            in_child(body)

        return wrapper

    return decorate


def as_root_of(userns: int, function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns (as JSON) when root of the user namespace behind ``userns`` calls it."""

    def body() -> Any:
        libc.setns(userns, CloneFlag.NEWUSER)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        return function()

    return in_child(body)


def in_child(body: Callable[[], Any]) -> Any:
    """Return what ``body`` returns (as JSON) in a forked child; fail the test with its traceback if it raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        report = b'[false, "the child ended early"]'
        try:
            report = json.dumps([True, body()]).encode()
        except BaseException:  # noqa: BLE001 - carried to the parent
            report = json.dumps([False, traceback.format_exc()]).encode()
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(report)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    succeeded, value = json.loads(text) if text else (False, "the child was killed")
    if not succeeded:
        pytest.fail(value, pytrace=False)
    return value


def resources() -> dict[str, object]:
    """Return what a test must leave as it found it: descriptors, children, threads and mounts of this process."""
    own = Path("/proc/self")
    return {
        "descriptors": open_descriptors()[:-1],
        "children": processes.children(os.getpid()),
        "threads": threading.active_count(),
        "mounts": len((own / "mountinfo").read_text().splitlines()),
    }
