"""Being a daemon of ``podkeep node``: its supervisor tells it so by its environment, and it ends when that does."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from podkeep.base.errors import FailedPrecondition

_SUPERVISOR = "PODKEEP_SUPERVISOR"
_OF_A_SERVICE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
"""What systemd tells the supervisor, and is meant for nobody else (sd_notify(3), sd_listen_fds(3))."""


def environment(environ: Mapping[str, str], *, notify: str, watchdog_s: int) -> dict[str, str]:
    """Return the environment of a daemon that this process supervises.

    :param notify: path of the socket on which the daemon says how it is doing.
    """
    kept = {key: value for key, value in environ.items() if key not in _OF_A_SERVICE}
    return {
        **kept,
        "NOTIFY_SOCKET": notify,
        "WATCHDOG_USEC": str(watchdog_s * 1_000_000),
        _SUPERVISOR: str(os.getpid()),
    }


def end_with_supervisor() -> None:
    """Have the kernel end this process (SIGTERM) when its supervisor ends, if it has one.

    Otherwise the daemons of a supervisor that was killed would keep those of the next one from starting.

    :raises FailedPrecondition: if the supervisor has ended already.
    :raises KernelCallError: if the kernel refuses.
    """
    # Removed, so that nothing that this daemon starts takes itself for one of the supervisor's.
    supervisor = os.environ.pop(_SUPERVISOR, "")
    if not supervisor:
        return
    from podkeep.kernel.process import confine

    confine.die_with_parent(signal.SIGTERM)
    # Looked at after the kernel was told: no signal comes for a parent that had ended before (PR_SET_PDEATHSIG).
    if str(os.getppid()) != supervisor:
        raise FailedPrecondition("the supervisor of this daemon has ended")
