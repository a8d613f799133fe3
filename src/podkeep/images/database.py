"""The image store's records: images, their names, and the layers they use. SQLite, one file.

Manifests and configurations are kept here as bytes, so that an image and everything that names it appear and
disappear in one transaction. Knows nothing of layer directories; ``store`` keeps the two in step (a row is written
after its layer is in place, and deleted before the layer is).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from podkeep.base.errors import DataLoss, FailedPrecondition, ResourceExhausted
from podkeep.base.ids import Digest, ImageID

_VERSION = 1
_SCHEMA = """
CREATE TABLE layers (diff_id TEXT PRIMARY KEY, bytes INTEGER NOT NULL, inodes INTEGER NOT NULL,
                     boot_id TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE images (id TEXT PRIMARY KEY, config BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE image_layers (image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE, position INTEGER NOT NULL,
                           diff_id TEXT NOT NULL REFERENCES layers(diff_id),
                           PRIMARY KEY (image_id, position)) WITHOUT ROWID;
CREATE INDEX image_layers_by_layer ON image_layers (diff_id);
CREATE TABLE manifests (digest TEXT NOT NULL, image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
                        data BLOB NOT NULL, PRIMARY KEY (digest, image_id)) WITHOUT ROWID;
CREATE TABLE names (name TEXT PRIMARY KEY, image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
                    kind TEXT NOT NULL CHECK (kind IN ('tag', 'digest'))) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """A layer on disk. ``boot_id`` is of the boot that wrote it, or empty once it is known to be on the disk."""

    diff_id: Digest
    bytes: int
    inodes: int
    boot_id: str


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image as stored; ``layers`` base first."""

    id: ImageID
    config: bytes
    layers: tuple[Digest, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NewImage:
    """An image to be recorded: its documents, its layers and the names that lead to it from now on."""

    id: ImageID
    config: bytes
    manifests: tuple[tuple[Digest, bytes], ...]
    layers: tuple[Digest, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]


class ImageDatabase:
    """The records of one store; methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Open the file, and create it if there is none.

        :raises DataLoss: if it is not a database or is damaged.
        :raises FailedPrecondition: if a newer podkeep wrote it.
        :raises ResourceExhausted: if its file system is full; so does every method.
        """
        self._path = path
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._translated():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            script = f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;"
            self._connection.executescript(script)
        elif version != _VERSION:
            raise FailedPrecondition(
                f"{self._path} has version {version}, this podkeep reads version {_VERSION}",
                hint="use the podkeep that wrote it, or move the directory away and pull again",
            )
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    @contextmanager
    def _translated(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                    raise ResourceExhausted(
                        f"{self._path.parent}: no space is left for the records of images: {error}",
                        hint=f"free space on the file system of {self._path.parent} and try again",
                    ) from error
                raise DataLoss(
                    f"{self._path}: {error}",
                    hint=f"move {self._path.parent} away and restart; images are pulled again",
                ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite ends it by itself when the disk is full
                    connection.execute("ROLLBACK")
                raise

    def images(self) -> list[ImageRecord]:
        """Return every image."""
        with self._translated() as connection:
            layers: dict[str, list[Digest]] = {}
            for image_id, diff_id in connection.execute(
                "SELECT image_id, diff_id FROM image_layers ORDER BY image_id, position"
            ):
                layers.setdefault(image_id, []).append(diff_id)
            names: dict[tuple[str, str], list[str]] = {}
            for image_id, kind, name in connection.execute("SELECT image_id, kind, name FROM names ORDER BY name"):
                names.setdefault((image_id, kind), []).append(name)
            return [
                ImageRecord(
                    id=image_id,
                    config=config,
                    layers=tuple(layers.get(image_id, ())),
                    tags=tuple(names.get((image_id, "tag"), ())),
                    digests=tuple(names.get((image_id, "digest"), ())),
                )
                for image_id, config in connection.execute("SELECT id, config FROM images ORDER BY id")
            ]

    def layers(self) -> dict[Digest, LayerRecord]:
        """Return every layer."""
        with self._translated() as connection:
            rows = connection.execute("SELECT diff_id, bytes, inodes, boot_id FROM layers")
            return {row[0]: LayerRecord(diff_id=row[0], bytes=row[1], inodes=row[2], boot_id=row[3]) for row in rows}

    def add(self, images: Sequence[NewImage], layers: Iterable[LayerRecord]) -> None:
        """Record images and the layers that came with them; a name that led elsewhere leads here now."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO layers VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [(layer.diff_id, layer.bytes, layer.inodes, layer.boot_id) for layer in layers],
            )
            for image in images:
                connection.execute("INSERT INTO images VALUES (?, ?) ON CONFLICT DO NOTHING", (image.id, image.config))
                connection.executemany(
                    "INSERT INTO image_layers VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(image.id, position, layer) for position, layer in enumerate(image.layers)],
                )
                connection.executemany(
                    "INSERT INTO manifests VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(digest, image.id, data) for digest, data in image.manifests],
                )
                connection.executemany(
                    "INSERT INTO names VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET image_id = excluded.image_id",
                    [(name, image.id, "tag") for name in image.tags]
                    + [(name, image.id, "digest") for name in image.digests],
                )

    def remove_name(self, name: str) -> None:
        """Forget one name; the image stays."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM names WHERE name = ?", (name,))

    def remove_images(self, images: Iterable[ImageID]) -> None:
        """Forget images with everything that names them; layers stay."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM images WHERE id = ?", [(image,) for image in images])

    def images_using(self, layers: Iterable[Digest]) -> frozenset[ImageID]:
        """Return the images that need one of ``layers``."""
        with self._translated() as connection:
            return frozenset(
                row[0]
                for layer in layers
                for row in connection.execute("SELECT image_id FROM image_layers WHERE diff_id = ?", (layer,))
            )

    def remove_layers(self, layers: Iterable[Digest]) -> None:
        """Forget layers that no image needs."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM layers WHERE diff_id = ?", [(layer,) for layer in layers])

    def unused_layers(self) -> frozenset[Digest]:
        """Return the layers that no image needs."""
        with self._translated() as connection:
            rows = connection.execute(
                "SELECT diff_id FROM layers WHERE diff_id NOT IN (SELECT diff_id FROM image_layers)"
            )
            return frozenset(row[0] for row in rows)

    def mark_synced(self, layers: Iterable[Digest]) -> None:
        """Record that layers are on the disk and outlive a loss of power."""
        with self._transaction() as connection:
            connection.executemany("UPDATE layers SET boot_id = '' WHERE diff_id = ?", [(layer,) for layer in layers])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
