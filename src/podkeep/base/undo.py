"""Undo of half-done work.

Each acquire registers its undo before the next acquire. When the work fails, every registered step is
tried in reverse order, a failing step never stops the others, and what could not be undone is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger(__name__)


class UndoStack:
    """A stack of described steps, run in reverse unless ``commit`` was called.

    Synchronous: the steps are kernel calls and short commands, run on the thread that did the work.
    ``failed`` lists what could not be undone (description and error) after the stack has run.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []
        self.failed: list[tuple[str, Exception]] = []

    def push(self, description: str, step: Callable[[], object]) -> None:
        """Register ``step``; ``description`` completes the sentence "could not ..."."""
        self._steps.append((description, step))

    def commit(self) -> None:
        """Keep what was done: forget every step."""
        self._steps.clear()

    def run(self) -> None:
        """Run and forget every step, last first."""
        while self._steps:
            description, step = self._steps.pop()
            try:
                step()
            except Exception as error:  # noqa: BLE001 - every step must be tried; the failure is kept and logged
                self.failed.append((description, error))
                log.warning("could not %s: %s", description, error)

    def __enter__(self) -> UndoStack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.run()
