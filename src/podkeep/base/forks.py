"""Daemons as copies of this process: what it has imported is in memory once, and not imported again.

Only for a process of one thread (a copy has none of the others, but all of their locks).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.context import ForkProcess

import podkeep
from podkeep.base.frozen import FrozenStruct

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""What the process that is copied may have handlers for."""


def is_same_installation() -> bool:
    """Return whether podkeep on disk is the one that this process has imported."""
    return _installation() == _BEGUN


def _installation() -> tuple[int, int]:
    try:
        status = os.stat(podkeep.__file__)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


_BEGUN = _installation()


class Fork(FrozenStruct):
    """A copy of this process that runs."""

    _process: ForkProcess

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit status (negative: the signal that ended it); None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code


def start(main: Callable[[], None], *, stderr: int, env: Mapping[str, str]) -> Fork:
    """Run ``main`` in a copy of this process, as :func:`podkeep.base.spawn.start` runs a program.

    It is in a session of its own and has no descriptor of this process but ``stderr``, no handlers of signals.

    :raises OSError: if there can be no further process.
    """
    return copy(main, partial(_detach, stderr, dict(env)))


def copy(main: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> Fork:
    """Run ``main`` in a copy of this process, without its handlers of signals but with all its descriptors.

    :param prepare: is run before it in the copy, with signals blocked.
    :raises OSError: if there can be no further process.
    """
    # What is there now stays: the collector shall neither look through it nor write to its pages.
    gc.collect()
    gc.freeze()
    process = multiprocessing.get_context("fork").Process(target=_without_handlers, args=(main, prepare))
    # A signal that comes before the copy has let go of the handlers here would be lost in them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return Fork(process)


def _without_handlers(main: Callable[[], None], prepare: Callable[[], None]) -> None:
    # The descriptor is the event loop's of the process that was copied: a signal here would wake that one.
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    prepare()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    main()


def _detach(stderr: int, env: Mapping[str, str]) -> None:
    os.setsid()
    os.dup2(stderr, 2)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # Among them the lock of this process and its sockets, which would stay open for as long as the daemon runs.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    os.environ.clear()
    os.environ.update(env)
