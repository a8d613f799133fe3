"""The log of revisions on disk: SQLite in WAL mode, one connection, used by one thread.

A row of ``log`` is one revision of one object; ``current`` names the newest of each object that exists. ``compacted``
is the revision up to which rows that have a successor are gone, so that any later state of any object can be told.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from sys import intern
from typing import Any

from podkeep.apiserver.storage.records import Event, EventType, Key, Stored
from podkeep.base import sqlite
from podkeep.base.errors import DataLoss, PodkeepError

SCHEMA_VERSION = 1
PAST_BYTES = 1 << 20
"""Of the objects that one read of a list of the past returns, but for the last of them."""
PAST_EVENT_BYTES = 64 << 10
"""Of the objects of a read of past events: they are kept for a watcher while it takes them."""
STEP_BYTES = 4 << 20
"""Of the objects that one step of a compaction removes, but for the last of them: some 10 ms for each MiB."""
_MODE = 0o600
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE log (
    revision INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    type TEXT NOT NULL CHECK (type IN ('ADDED', 'MODIFIED', 'DELETED')), previous INTEGER NOT NULL, value BLOB NOT NULL
) STRICT;
CREATE INDEX log_by_object ON log (resource, namespace, name, revision);
CREATE TABLE current (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (resource, namespace, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE compacted (revision INTEGER NOT NULL) STRICT;
INSERT INTO compacted VALUES (0);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_COLUMNS = "log.revision, log.resource, log.namespace, log.name, log.value"
_EXISTING = f"SELECT {_COLUMNS} FROM log WHERE revision = ? AND type <> 'DELETED'"


class Database:
    """The file. Every method blocks; one thread at a time may call them."""

    def __init__(self, path: Path) -> None:
        """Open or create the database, and check all of it.

        :raises DataLoss: if it is damaged, another program's, or of a newer podkeep; it is left as it is.
        :raises ResourceExhausted: if its disk is full.
        :raises Unavailable: if it cannot be opened for another reason that is not in the file: a lock, the disk.
        """
        self._path = path
        # SQLite would make the file by the umask; its WAL file gets the mode of the database (findCreateFileMode).
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE))
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except sqlite3.DatabaseError as error:
            if sqlite.is_passing(error):
                raise self._refusal("opened", error) from error
            raise self._damaged(str(error)) from error

    def _prepare(self) -> None:
        # No other process may use the file while this one does; the index of the journal is in memory then.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise DataLoss(
                f"the API's database {self._path} has version {version}; this podkeep reads up to {SCHEMA_VERSION}",
                hint="run the podkeep that wrote it",
            )
        if version == 0 and tables:
            raise DataLoss(f"{self._path} is another program's database", hint="move it away")
        self._db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL does not sync at each commit: acknowledged writes could be lost with the power
        # (sqlite.org/pragma.html).
        self._db.execute("PRAGMA synchronous = FULL")
        if version == 0:
            self._db.executescript(_SCHEMA)
        (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(" ".join(verdict.split()))
        self._db.execute("PRAGMA shrink_memory")

    def _damaged(self, why: str) -> DataLoss:
        return DataLoss(
            f"the API's database {self._path} is damaged: {why}",
            hint="restore a backup of it, or move it away to begin with an empty one",
        )

    def close(self) -> None:
        self._db.close()

    def current(self) -> Iterator[Stored]:
        """Yield the newest revision of each object that exists."""
        query = f"SELECT {_COLUMNS} FROM current JOIN log USING (revision)"
        yield from map(_stored, self._db.execute(query))
        self._db.execute("PRAGMA shrink_memory")

    def revision(self) -> int:
        """Return the newest revision; 0 if nothing was ever written."""
        (newest,) = self._db.execute("SELECT coalesce(max(revision), 0) FROM log").fetchone()
        return max(int(newest), self.compacted())  # the newest of all may be a deletion that was compacted

    def compacted(self) -> int:
        """Return the oldest revision from which on each state can be told."""
        (revision,) = self._db.execute("SELECT revision FROM compacted").fetchone()
        return int(revision)

    def commit(self, events: Iterable[Event]) -> None:
        """Write revisions, all or none; they are on the disk when this returns.

        :raises ResourceExhausted: if the disk is full.
        :raises Unavailable: if the disk fails otherwise.
        """
        try:
            with sqlite.transaction(self._db):
                for event in events:
                    self._write(event)
        except sqlite3.Error as error:
            raise self._refusal("written", error) from error

    def _write(self, event: Event) -> None:
        key, revision, value = event.stored
        previous = event.previous.revision if event.previous else 0
        self._db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (revision, *key, str(event.type), previous, value)
        )
        if event.type is EventType.DELETED:
            self._db.execute("DELETE FROM current WHERE resource = ? AND namespace = ? AND name = ?", key)
        else:
            self._db.execute("INSERT OR REPLACE INTO current VALUES (?, ?, ?, ?)", (*key, revision))

    def events(self, resource: str, after: int, upto: int, limit: int) -> tuple[list[Event], int | None]:
        """Return the first writes of a resource after a revision, up to another.

        :param limit: how many at most; fewer, if they and the states before them have more than ``PAST_EVENT_BYTES``.
        :returns: the writes, and the revision after which there may be more; None: there are none.
        """
        found: list[Event] = []
        size = 0
        rows = self._db.execute(
            f"SELECT {_COLUMNS}, log.type, log.previous, before.value FROM log LEFT JOIN log AS before"
            # The plus keeps SQLite from the index by object, with which it would read and sort all of them first.
            " ON before.revision = log.previous WHERE log.revision > ? AND log.revision <= ? AND +log.resource = ?"
            " ORDER BY log.revision LIMIT ?",
            (after, upto, resource, limit),
        )
        with closing(rows):
            for row in rows:
                event = _event(row)
                found.append(event)
                size += len(event.stored.value) + (len(event.previous.value) if event.previous else 0)
                if len(found) == limit or size >= PAST_EVENT_BYTES:
                    return found, event.stored.revision
        return found, None

    def snapshot(
        self, resource: str, namespace: str, revision: int, after: tuple[str, str], limit: int
    ) -> tuple[list[Stored], bool]:
        """Return the objects that a resource had at a revision, by namespace and name, and whether there are more.

        :param namespace: of the objects; empty: any.
        :param after: the namespace and name that the first of them comes after.
        :param limit: how many at most; fewer, if they have more than ``PAST_BYTES``.
        """
        # Keys first: the index has them in order, while values would all be read and sorted before the first is told.
        revisions = (
            "SELECT max(revision) FROM log"
            " WHERE resource = ? AND revision <= ? AND (? = '' OR namespace = ?) AND (namespace, name) > (?, ?)"
            " GROUP BY namespace, name ORDER BY namespace, name"
        )
        found: list[Stored] = []
        size = 0
        try:
            with closing(self._db.execute(revisions, (resource, revision, namespace, namespace, *after))) as rows:
                for (written,) in rows:
                    row = self._db.execute(_EXISTING, (written,)).fetchone()
                    if row is None:
                        continue
                    if len(found) == limit or size >= PAST_BYTES:
                        return found, True
                    found.append(_stored(row))
                    size += len(found[-1].value)
        except sqlite3.Error as error:
            raise self._refusal("read", error) from error
        return found, False

    def values(self, revisions: Sequence[int]) -> list[bytes]:
        """Return the objects that were written with some revisions; none for those that were compacted."""
        query = "SELECT value FROM log WHERE revision = ?"
        try:
            rows = [self._db.execute(query, (revision,)).fetchone() for revision in revisions]
        except sqlite3.Error as error:
            raise self._refusal("read", error) from error
        return [row[0] for row in rows if row]

    def past_bytes(self) -> int:
        """Return how many bytes there are of what objects were, beside what they are."""
        (everything,) = self._db.execute("SELECT coalesce(sum(length(value)), 0) FROM log").fetchone()
        newest = "SELECT coalesce(sum(length(value)), 0) FROM current JOIN log USING (revision)"
        return int(everything - self._db.execute(newest).fetchone()[0])

    def compact(self, revision: int, batch: int) -> int:
        """Remove what nobody can ask for any more once states before ``revision`` are not told.

        :param batch: how many revisions to look at; fewer, if what goes has ``STEP_BYTES``. More are left for the next
            call.
        :returns: up to which revision that is done.
        """
        start = self.compacted()
        end = min(revision, start + batch)
        if end <= start:
            return start
        try:
            span = "revision > ? AND revision <= ?"
            end = self._end_of_step(span, (start, end))
            with sqlite.transaction(self._db):
                superseded = f"DELETE FROM log WHERE revision IN (SELECT previous FROM log WHERE {span})"
                self._db.execute(superseded, (start, end))
                self._db.execute(f"DELETE FROM log WHERE {span} AND type = 'DELETED'", (start, end))
                self._db.execute("UPDATE compacted SET revision = ?", (end,))
        except sqlite3.Error as error:
            raise self._refusal("written", error) from error
        return end

    def compact_of(self, resources: Iterable[str], after: int, upto: int) -> int:
        """Remove what nobody can ask for of some resources once their states before ``upto`` are not told.

        The newest revision of all stays, if it is a deletion too: from it follows which one is next.

        :param after: up to which revision that was done before.
        :returns: up to which revision that is done: ``upto``, or less, if what goes has ``STEP_BYTES``.
        """
        names = list(resources)
        span = f"revision > ? AND revision <= ? AND +resource IN ({', '.join('?' * len(names))})"
        try:
            upto = self._end_of_step(span, (after, upto, *names))
            bounds = (after, upto, *names)
            with sqlite.transaction(self._db):
                self._db.execute(f"DELETE FROM log WHERE revision IN (SELECT previous FROM log WHERE {span})", bounds)
                newest = "(SELECT max(revision) FROM log)"
                self._db.execute(f"DELETE FROM log WHERE {span} AND type = 'DELETED' AND revision < {newest}", bounds)
        except sqlite3.Error as error:
            raise self._refusal("written", error) from error
        return upto

    def _end_of_step(self, span: str, bounds: tuple[Any, ...]) -> int:
        """Return up to which revision of a span what goes has no more than ``STEP_BYTES`` before the last of it.

        :param bounds: values of the span: after which revision, up to which, and others.
        """
        sizes = self._db.execute(
            # The length of a value is in its row's head: the value is not read for it.
            "SELECT step.revision, coalesce(length(before.value), 0) + (step.type = 'DELETED') * step.size"
            f" FROM (SELECT revision, previous, type, length(value) AS size FROM log WHERE {span}) AS step"
            " LEFT JOIN log AS before ON before.revision = step.previous ORDER BY step.revision",
            bounds,
        )
        total = 0
        with closing(sizes):
            for revision, size in sizes:
                total += size
                if total >= STEP_BYTES:
                    return int(revision)
        return int(bounds[1])

    def backup(self, path: Path) -> None:
        """Write a copy of the whole database to a new file.

        :raises ResourceExhausted: if the disk there is full.
        :raises Unavailable: if it cannot be written otherwise.
        """
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))
        try:
            self._db.execute("VACUUM INTO ?", (str(path),))
            copy = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(copy)
            finally:
                os.close(copy)
        except (sqlite3.Error, OSError) as error:
            path.unlink(missing_ok=True)
            raise self._refusal(f"copied to {path}", error) from error

    def _refusal(self, what: str, error: Exception) -> PodkeepError:
        return sqlite.refusal(f"the API's database {self._path} cannot be {what}", error)


def _stored(row: tuple[int, str, str, str, bytes]) -> Stored:
    revision, resource, namespace, name, value = row
    # Each row has strings of its own, and thousands of objects the same resource and namespace.
    return Stored(Key(intern(resource), intern(namespace), name), revision, value)


def _event(row: tuple[int, str, str, str, bytes, str, int, bytes | None]) -> Event:
    *fields, kind, previous, value = row
    stored = _stored(fields)  # type: ignore[arg-type]
    return Event(EventType(kind), stored, None if value is None else Stored(stored.key, previous, value))
