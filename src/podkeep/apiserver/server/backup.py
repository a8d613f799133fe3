"""Copies of the database: of one that is served, of one that is not, and putting one in its place.

A copy is a whole database of its own, at one revision, with everything that is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

from podkeep.apiserver.storage.database import Database
from podkeep.apiserver.storage.store import Store
from podkeep.base import atomicfile
from podkeep.base.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound

PATH = "/podkeep/backup"
"""Where a server gives one, to those who may get that path and do everything: administrators."""
PIECE_BYTES = 64 << 10
DATABASE = "api.db"


async def stream(store: Store, directory: Path) -> AsyncGenerator[bytes, None]:
    """Yield a copy of a store; it is on the disk below ``directory`` meanwhile.

    :raises ResourceExhausted: if that is full; Unavailable if it cannot be written otherwise.
    """
    path = directory / f"backup-{secrets.token_hex(8)}"
    try:
        await store.backup(path)
        with path.open("rb") as file:
            # It can be read while it is open: a server that is killed meanwhile leaves no copy of all secrets behind.
            path.unlink()
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
    finally:
        path.unlink(missing_ok=True)


def copy(root: Path, target: Path) -> None:
    """Write a copy of a database that nobody serves; the caller holds its lock.

    :raises NotFound: if there is none.
    :raises AlreadyExists: if the target is there.
    """
    source = root / DATABASE
    if not source.exists():
        raise NotFound(f"there is no database in {root}")
    with closing(Database(source)) as database:
        try:
            database.backup(target)
        except FileExistsError as error:
            raise AlreadyExists(f"{target} exists", hint="name another file, or remove it") from error


def _check(made: Path, source: Path) -> None:
    """Look at all of a copy of ``source``; no journal is left."""
    try:
        Database(made).close()
    except DataLoss as error:
        raise DataLoss(f"{source} cannot be restored: {error.message.replace(str(made), str(source))}") from error


def restore(root: Path, source: Path, *, replace: bool) -> None:
    """Make a copy the database of a server that does not run; the caller holds its lock.

    :param replace: whether another database may be lost.
    :raises NotFound: if there is no such file.
    :raises DataLoss: if it is damaged, or no database of the API.
    :raises FailedPrecondition: if there is a database, and ``replace`` is not set.
    """
    target = root / DATABASE
    if target.exists() and not replace:
        raise FailedPrecondition(f"{target} exists", hint="add --replace: what is in it is lost")
    if not source.is_file():
        raise NotFound(f"there is no file {source}")
    made = root / f"{DATABASE}.{secrets.token_hex(8)}"
    try:
        shutil.copyfile(source, made)
        made.chmod(0o600)
        _check(made, source)
        # Before the rename: after a loss of power the name must not lead to a file without its contents.
        with made.open("rb") as file:
            os.fsync(file.fileno())
        # The journal of the database that is replaced would be played into the new one.
        for journal in ("-wal", "-shm"):
            target.with_name(target.name + journal).unlink(missing_ok=True)
        made.replace(target)
        atomicfile.sync_directory(root)
    finally:
        for path in root.glob(f"{made.name}*"):
            path.unlink()
