"""What every SQLite database here has in common: transactions, and which errors are the disk's and not the file's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from podkeep.base.errors import PodkeepError, ResourceExhausted, Unavailable

_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
"""What SQLite says when it cannot get at a database, whatever is in it."""


def is_passing(error: Exception) -> bool:
    """Return whether SQLite could not get at a database, so that its content is not to blame."""
    return _code(error) in _PASSING


def refusal(what: str, error: Exception) -> PodkeepError:
    """Return ResourceExhausted for a full disk, Unavailable for everything else.

    :param what: could not be done, as a sentence without its end: ``the state database PATH cannot be written``.
    """
    # The second where the index of the journal, which is made when the file is opened, gets no space.
    if _code(error) == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return ResourceExhausted(f"{what}: its disk is full", hint="free space there")
    return Unavailable(f"{what}: {error}", hint="look at its disk, then try again")


def _code(error: Exception) -> int:
    """Return the primary code of an error (extended ones have it in their lowest byte)."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Commit what is done inside, or nothing of it; the connection is in autocommit mode (``isolation_level=None``)."""
    # IMMEDIATE: a deferred transaction that has read may fail with SQLITE_BUSY at its first write.
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    finally:
        # A transaction left open would swallow every write to come.
        if database.in_transaction:
            database.execute("ROLLBACK")
