"""Telling a full disk from a layer that cannot be written for a reason of its own."""

from __future__ import annotations

import errno

from podkeep.base.errors import KernelCallError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Tell whether ``error`` comes of a file system without space, or a quota that is used up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, KernelCallError)) and cause.errno in _FULL:
            return True
        cause = cause.__cause__
    return False
