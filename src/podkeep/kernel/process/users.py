"""Users of the machine, as getpwnam_r(3) tells of them."""

from __future__ import annotations

import os

from podkeep.kernel import libc


def user_id(name: str) -> int | None:
    """Return the UID of a user, wherever nsswitch.conf(5) says that users are; None: there is none.

    The module ``pwd`` says that there is none also when that could not be told.

    :raises OSError: if it cannot be told.
    """
    return libc.user_id(os.fsencode(name))
