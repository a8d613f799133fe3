"""Names of a container's rotated logs, as a kubelet gives them: ``0.log`` becomes ``0.log.20260131-080000``.

The agent rotates, the runtime bounds what nobody rotates, and readers and whoever removes old files know both by this
form. Where a second has more than one, six digits follow: ``0.log.20260131-080000.000001``. Pure.
"""

from __future__ import annotations

import re
from datetime import datetime

_SUFFIX = re.compile(r"\d{8}-\d{6}(?:\.\d{6})?")


def is_rotated(name: str, log: str) -> bool:
    """Say whether ``name`` is that of a rotated file of the log ``log``; both without a directory."""
    return name.startswith(f"{log}.") and _SUFFIX.fullmatch(name, len(log) + 1) is not None


def rotated_name(log: str, now: datetime) -> str:
    """Return what ``log`` is renamed to at a time."""
    return f"{log}.{now:%Y%m%d-%H%M%S}"


def numbered(name: str, number: int) -> str:
    """Return the name of one more file of the second that ``name`` tells, which has no number."""
    return f"{name}.{number:06}"
