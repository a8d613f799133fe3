"""What the confined process says of a layer. It has read what is hostile, so nothing it says is taken for granted.

A process that was taken over can make any tree, and say that it has any digest; what it cannot do is have the worker,
which is not confined, read or change what is not the layer's. Called by ``layers``. What the process *made* is checked
where it is opened (``snapshots``).
"""

from __future__ import annotations

import json
import signal
from typing import Any

from podkeep.base.errors import Internal, InvalidArgument
from podkeep.base.ids import parse_digest

MOST = 256 << 20
"""Bytes of a report; the lists of directories in it have limits of their own (``rules``)."""
_WHY = {
    signal.SIGSYS: "it made a system call that its filter does not know what to do with (seccomp)",
    signal.SIGKILL: "the machine may have run out of memory, or its pull was given up",
}


def parse(line: bytes | bytearray, driver: str) -> dict[str, Any]:
    """Return a report on a layer that was made for ``driver``.

    :raises Internal: if it says what no unpack process says.
    """
    try:
        report = json.loads(line)
        if "error" in report:
            return {"error": str(report["error"]), "full": bool(report["full"])}
        _check(report, driver)
    except (ValueError, KeyError, TypeError, RecursionError, InvalidArgument) as error:
        raise Internal(f"the unpack process said what it never says: {error}") from error
    return dict(report)


def _check(report: dict[str, Any], driver: str) -> None:
    kept, path = report["driver"], report["path"]
    # What cannot be an image is unpacked in a directory of its own, beside what was stored first.
    if (kept, path) not in ((driver, ""), ("directories", "tree")) or (path and driver == "directories"):
        raise ValueError(f"a layer in {path!r} for {kept!r}")
    if report["kind"] != "tar" or report["data_bytes"] != 0:
        raise ValueError("an archive that is a file")
    parse_digest(report["digest"])
    for directories in (report["opaque"], report.get("implied", [])):
        if not isinstance(directories, list) or not all(isinstance(item, str) for item in directories):
            raise ValueError("directories that are no list of names")


def ended(status: int) -> str:
    """Return how a process ended that said nothing.

    :param status: as ``subprocess`` gives it: negative for a signal.
    """
    if status >= 0:
        return f"ended with status {status} and no result"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was killed by signal {-status}"
    why = f": {_WHY[number]}" if number in _WHY else ""
    return f"was killed by {number.name}{why}"
