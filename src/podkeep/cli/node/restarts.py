"""When a daemon that ended is started again, and what is said of why it ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from podkeep.base.frozen import FrozenStruct
from podkeep.cli.core.output import told_error

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
RESET_AFTER_S = 60.0
"""A daemon that has served for this long has started well: its next end is counted as the first."""


class Failures(FrozenStruct):
    """How often a daemon ended one time after the other."""

    count: int = 0

    def after(self, served_s: float | None) -> Failures:
        """Return this with one more.

        :param served_s: for how many seconds the daemon had served; None: it had not come to that.
        """
        return Failures(1 if served_s is not None and served_s >= RESET_AFTER_S else self.count + 1)

    @property
    def delay_s(self) -> float:
        """Seconds until the next start."""
        return 0.0 if not self.count else min(FIRST_DELAY_S * 2.0 ** min(self.count - 1, 16), LONGEST_DELAY_S)


class Reason(FrozenStruct):
    """Why a daemon ended, and what to do next (empty: nothing is known)."""

    text: str
    hint: str = ""


def reason(lines: Iterable[str], status: int) -> Reason:
    """Return why a daemon ended.

    :param lines: the last of its standard error, in which an error is ``podkeep: TEXT`` and perhaps ``hint: TEXT``.
    :param status: its exit status; negative: the signal that ended it.
    """
    if status < 0:
        return Reason(f"killed by {_signal_name(-status)}")
    text, hint = told_error(lines)
    return Reason(text, hint) if text else Reason(f"ended with exit status {status}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
