"""The image store's records: images, their names, and the layers they use. SQLite, one file.

Manifests and configurations are kept here as bytes, so that an image and everything that names it appear and
disappear in one transaction. Knows nothing of layer directories; ``store`` keeps the two in step (a row is written
after its layer is in place, and deleted before the layer is).
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from podkeep.base.errors import DataLoss, FailedPrecondition, NotFound, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import ImageKind, LayerKind
from podkeep.kernel.files.reserve import Reserve

log = logging.getLogger(__name__)

_MIGRATIONS = (
    """
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
""",
    """
ALTER TABLE layers RENAME COLUMN diff_id TO id;
ALTER TABLE layers ADD COLUMN kind TEXT NOT NULL DEFAULT 'tar' CHECK (kind IN ('tar', 'file'));
ALTER TABLE layers ADD COLUMN title TEXT NOT NULL DEFAULT '';
ALTER TABLE layers ADD COLUMN blob TEXT;
ALTER TABLE layers ADD COLUMN driver TEXT NOT NULL DEFAULT 'directories';
ALTER TABLE layers ADD COLUMN data_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE image_layers RENAME COLUMN diff_id TO layer_id;
ALTER TABLE images ADD COLUMN kind TEXT NOT NULL DEFAULT 'image' CHECK (kind IN ('image', 'artifact'));
ALTER TABLE images ADD COLUMN artifact_type TEXT NOT NULL DEFAULT '';
ALTER TABLE images ADD COLUMN pulled_at INTEGER NOT NULL DEFAULT 0;
CREATE TABLE blobs (digest TEXT NOT NULL, compression TEXT NOT NULL,
                    layer_id TEXT NOT NULL REFERENCES layers(id) ON DELETE CASCADE,
                    PRIMARY KEY (digest, compression, layer_id)) WITHOUT ROWID;
CREATE INDEX blobs_by_layer ON blobs (layer_id);
""",
    """
ALTER TABLE layers ADD COLUMN metadata TEXT NOT NULL DEFAULT '';
ALTER TABLE layers ADD COLUMN implied TEXT NOT NULL DEFAULT '';
""",
    """
CREATE TABLE summaries (image_id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE, kind TEXT NOT NULL,
                        artifact_type TEXT NOT NULL, pulled_at INTEGER NOT NULL, config_bytes INTEGER NOT NULL,
                        user TEXT, stop_signal TEXT NOT NULL DEFAULT '', unusable TEXT NOT NULL DEFAULT '')
                       WITHOUT ROWID;
INSERT INTO summaries (image_id, kind, artifact_type, pulled_at, config_bytes)
    SELECT id, kind, artifact_type, pulled_at, length(config) FROM images;
CREATE TABLE runs (image_id TEXT PRIMARY KEY REFERENCES summaries(image_id) ON DELETE CASCADE, run BLOB NOT NULL);
""",
    """
ALTER TABLE names ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE manifests ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
""",
    """
ALTER TABLE names ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
""",
)
"""What makes each version of the file out of the one before; a new file goes through all of them.

They copy no documents, which may be gigabytes: the disk may be full. Since version 4 what is told of images is apart
from their configurations (``summaries``), because all images are read at once, and often; ``images.pulled_at`` is not
used any more. ``runs`` has row IDs, and refers to no table of documents: in a table without them SQLite reads rows of
megabytes whole to find one. Since version 5 names and manifests of an image are in the order in which they came: a
later one has a higher ``turn``. Since version 6 a name has the ``tenant`` for whose pod it was pulled, or nothing: it
was loaded, or pulled by an administrator.
"""
_VERSION = len(_MIGRATIONS)
MAX_BLOBS = 16
"""Blobs of which it is recorded that they became one layer; what else did is fetched again. A tar can be compressed in
any number of ways, and the records stay for as long as any image has the layer."""
MAX_NAMES = 1000
"""Names of one image, tags and digests together, without those that must stay. Anybody who may run a pod can have an
image that is in use pulled under any number of them, and all are in memory. So of too many, the tenant with the most
loses the oldest: a name that was loaded, or that another tenant's pod will ask for, cannot be pushed out by them."""
MAX_MANIFESTS = 100
"""Manifests and indexes that led to one image. All of them are read when it is inspected, verified or saved."""
MAX_DOCUMENT_BYTES = 16 << 20
"""Bytes of those; what one pull brings is kept whole."""
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
"""What a full disk is to SQLite; the second where the index of the journal, which is made when the file is opened, gets
no space."""
_RESERVE_BYTES = 512 << 10
"""Some hundred pages of the records: what the removal of an image changes."""


class LayerRecord(FrozenStruct, kw_only=True):
    """A layer on disk.

    ``id`` is the diff ID of a ``tar``, and of a ``file`` what ``layers.file_layer_id`` makes of ``blob`` and ``title``,
    which a tar does not have. ``driver`` keeps it. ``bytes`` and ``inodes`` are all it takes on disk, blocks counted
    whole; ``data_bytes`` are those of them that file layers of the same blob have in common (with one inode).
    ``metadata`` is the digest of what the driver made beside the content, ``implied`` that of the list of directories
    that no entry came for (``merging``); empty if there is nothing, or if version 2 of the file did not know it.
    ``boot_id`` is of the boot that wrote it, or empty once it is known to be on the disk.
    """

    id: Digest
    kind: LayerKind = "tar"
    title: str = ""
    blob: Digest | None = None
    driver: str = "directories"
    bytes: int
    inodes: int
    data_bytes: int = 0
    metadata: str = ""
    implied: str = ""
    boot_id: str


class BlobRecord(FrozenStruct, kw_only=True):
    """Which layer a blob became when it was taken to be compressed like this; it was compared with its digest.

    ``compression`` is ``auto`` where its content said whether it is a plain tar or a file.
    """

    digest: Digest
    compression: str
    layer: Digest


class _ImageFields(FrozenStruct, kw_only=True):
    """What is known of an image; ``layers`` base first, ``pulled_at`` in nanoseconds since 1970, 0 if not known.

    ``user`` and ``stop_signal`` are of its configuration; ``user`` is None if nobody has looked at that yet. A podkeep
    that reads more of configurations, or refuses others, has all looked at again: a migration sets ``user`` to NULL.
    """

    id: ImageID
    kind: ImageKind = "image"
    artifact_type: str = ""
    user: str | None = None
    stop_signal: str = ""
    pulled_at: int = 0
    layers: tuple[Digest, ...]
    tags: tuple[str, ...]
    digests: tuple[str, ...]


class ImageRecord(_ImageFields, kw_only=True):
    """An image as stored; its configuration has so many bytes, and is not read with it."""

    config_bytes: int
    unusable: str = ""


class NewImage(_ImageFields, kw_only=True):
    """An image to be recorded, with its documents by their digests; its names lead to it from now on.

    ``run`` is how it wants to be run (``encode_run``), None if nobody has looked at that yet.
    """

    config: bytes
    run: bytes | None = None
    manifests: tuple[tuple[Digest, bytes], ...]


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
        self._reserve = Reserve(path.with_name(f"{path.name}-reserve"), _RESERVE_BYTES)
        # No thread is checked because the lock is ours; with isolation_level None transactions begin where they are
        # written.
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._spending_reserve(self._prepare)
            self.keep_reserve()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._translated() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            # With WAL a loss of power may take the last transactions, and leaves the file whole (SQLite, PRAGMA
            # synchronous).
            connection.execute("PRAGMA synchronous = NORMAL")
            # SQLite does not enforce them by itself, nor does it cascade what is deleted.
            connection.execute("PRAGMA foreign_keys = ON")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise FailedPrecondition(
                    f"{self._path} has version {version}, this podkeep reads version {_VERSION}",
                    hint="use the podkeep that wrote it, or move the directory away and pull again",
                )
            if version < _VERSION:
                self._migrate(connection, version)
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)

    @staticmethod
    def _migrate(connection: sqlite3.Connection, version: int) -> None:
        script = "".join(_MIGRATIONS[version:])
        try:
            # Tables and version in one transaction: a kill leaves the old version whole.
            connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {_VERSION}; COMMIT;")
        except sqlite3.DatabaseError:
            if connection.in_transaction:  # SQLite ends it by itself when the disk is full
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _translated(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) in _FULL:
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
        with self._translated() as connection:
            layers: dict[str, list[Digest]] = {}
            for image_id, layer in connection.execute(
                "SELECT image_id, layer_id FROM image_layers ORDER BY image_id, position"
            ):
                layers.setdefault(image_id, []).append(layer)
            names: dict[tuple[str, str], list[str]] = {}
            for image_id, kind, name in connection.execute("SELECT image_id, kind, name FROM names ORDER BY name"):
                names.setdefault((image_id, kind), []).append(name)
            return [
                ImageRecord(
                    id=image_id,
                    kind=kind,
                    artifact_type=artifact_type,
                    config_bytes=config_bytes,
                    user=user,
                    stop_signal=stop_signal,
                    unusable=unusable,
                    pulled_at=pulled_at,
                    layers=tuple(layers.get(image_id, ())),
                    tags=tuple(names.get((image_id, "tag"), ())),
                    digests=tuple(names.get((image_id, "digest"), ())),
                )
                for image_id, kind, artifact_type, config_bytes, user, stop_signal, unusable, pulled_at in (
                    connection.execute(
                        "SELECT image_id, kind, artifact_type, config_bytes, user, stop_signal, unusable, pulled_at"
                        " FROM summaries ORDER BY image_id"
                    )
                )
            ]

    def run(self, image: ImageID) -> bytes | None:
        """Return how an image wants to be run, None if nobody has looked at that yet.

        :raises NotFound: if there is no such image.
        """
        with self._translated() as connection:
            row = connection.execute(
                "SELECT run FROM summaries LEFT JOIN runs USING (image_id) WHERE image_id = ?", (image,)
            ).fetchone()
        if row is None:
            raise NotFound(f"image {image} is not here any more")
        found: bytes | None = row[0]
        return found

    def looked_at(self, image: ImageID, *, run: bytes, user: str, stop_signal: str, unusable: str) -> None:
        """Record what is in a configuration that an older podkeep only kept."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO runs (image_id, run) VALUES (?, ?)", (image, run))
            connection.execute(
                "UPDATE summaries SET user = ?, stop_signal = ?, unusable = ? WHERE image_id = ?",
                (user, stop_signal, unusable, image),
            )

    def configuration(self, image: ImageID) -> bytes:
        """Return the configuration of an image.

        :raises NotFound: if there is no such image.
        """
        with self._translated() as connection:
            row = connection.execute("SELECT config FROM images WHERE id = ?", (image,)).fetchone()
        if row is None:
            raise NotFound(f"image {image} is not here any more")
        found: bytes = row[0]
        return found

    def documents(self, image: ImageID) -> tuple[bytes, dict[Digest, bytes]]:
        """Return the configuration of an image, and the manifests and indexes that led to it, by their digests; none of
        an image loaded from a docker archive.

        :raises NotFound: if there is no such image.
        """
        # Nothing is removed between the two: without its manifests an image would be one from a docker archive.
        with self._translated() as connection:
            config = self.configuration(image)
            return config, dict(connection.execute("SELECT digest, data FROM manifests WHERE image_id = ?", (image,)))

    def layers(self) -> dict[Digest, LayerRecord]:
        with self._translated() as connection:
            rows = connection.execute(
                "SELECT id, kind, title, blob, driver, bytes, inodes, data_bytes, boot_id, metadata, implied"
                " FROM layers"
            )
            return {
                row[0]: LayerRecord(
                    id=row[0],
                    kind=row[1],
                    title=row[2],
                    blob=row[3],
                    driver=row[4],
                    bytes=row[5],
                    inodes=row[6],
                    data_bytes=row[7],
                    boot_id=row[8],
                    metadata=row[9],
                    implied=row[10],
                )
                for row in rows
            }

    def blobs(self) -> list[BlobRecord]:
        with self._translated() as connection:
            rows = connection.execute("SELECT digest, compression, layer_id FROM blobs")
            return [BlobRecord(digest=row[0], compression=row[1], layer=row[2]) for row in rows]

    def add(
        self,
        images: Sequence[NewImage],
        layers: Iterable[LayerRecord],
        blobs: Iterable[BlobRecord] = (),
        *,
        tenant: str = "",
        stays: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Record images and what came with them; a name that led elsewhere leads here now.

        An image that is recorded already keeps the layers it has: containers may use them. Of its names and manifests
        the oldest are forgotten when they are too many.

        :param tenant: for whose pod they came; nothing: they were loaded, or an administrator asked for them.
        :param stays: whether a name must not be forgotten, however many there are.
        """
        found = list(blobs)
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO layers"
                " (id, kind, title, blob, driver, bytes, inodes, data_bytes, boot_id, metadata, implied) VALUES"
                " (:id, :kind, :title, :blob, :driver, :bytes, :inodes, :data_bytes, :boot_id, :metadata, :implied)"
                " ON CONFLICT DO NOTHING",
                [structs.asdict(layer) for layer in layers],
            )
            connection.executemany(
                "INSERT INTO blobs (digest, compression, layer_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                [(blob.digest, blob.compression, blob.layer) for blob in found],
            )
            connection.executemany(
                "DELETE FROM blobs WHERE layer_id = ? AND (digest, compression) NOT IN"
                " (SELECT digest, compression FROM blobs WHERE layer_id = ? ORDER BY digest LIMIT ?)",
                [(layer, layer, MAX_BLOBS) for layer in {blob.layer for blob in found}],
            )
            for image in images:
                self._add_image(connection, image, tenant)
                _forget_names(connection, image, stays)
                _forget_manifests(connection, image)

    @staticmethod
    def _add_image(connection: sqlite3.Connection, image: NewImage, tenant: str) -> None:
        fresh = connection.execute(
            "INSERT INTO images (id, kind, artifact_type, config) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (image.id, image.kind, image.artifact_type, image.config),
        ).rowcount
        if fresh:
            connection.execute(
                "INSERT INTO summaries (image_id, kind, artifact_type, pulled_at, config_bytes, user, stop_signal)"
                " VALUES (?, ?, ?, 0, ?, ?, ?)",
                (image.id, image.kind, image.artifact_type, len(image.config), image.user, image.stop_signal),
            )
            if image.run is not None:
                connection.execute("INSERT INTO runs (image_id, run) VALUES (?, ?)", (image.id, image.run))
            connection.executemany(
                "INSERT INTO image_layers (image_id, position, layer_id) VALUES (?, ?, ?)",
                [(image.id, position, layer) for position, layer in enumerate(image.layers)],
            )
        connection.execute("UPDATE summaries SET pulled_at = ? WHERE image_id = ?", (image.pulled_at, image.id))
        # Names go, and manifests stay: those that come now are later than both.
        (turn,) = connection.execute(
            "SELECT coalesce(max(turn), 0) + 1 FROM"
            " (SELECT turn FROM names UNION ALL SELECT turn FROM manifests WHERE image_id = ?)",
            (image.id,),
        ).fetchone()
        connection.executemany(
            "INSERT INTO manifests (digest, image_id, data, turn) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (digest, image_id) DO UPDATE SET turn = excluded.turn",
            [(digest, image.id, data, turn) for digest, data in image.manifests],
        )
        connection.executemany(
            "INSERT INTO names (name, image_id, kind, turn, tenant) VALUES (?, ?, ?, ?, ?)"
            # Who pulls what is here already does not make it their own.
            " ON CONFLICT (name) DO UPDATE SET turn = excluded.turn, tenant = CASE"
            " WHEN image_id = excluded.image_id AND excluded.tenant != '' THEN tenant ELSE excluded.tenant END,"
            " image_id = excluded.image_id",
            [(name, image.id, "tag", turn, tenant) for name in image.tags]
            + [(name, image.id, "digest", turn, tenant) for name in image.digests],
        )

    def remove_name(self, name: str) -> None:
        """Forget one name; the image stays."""
        self._delete("DELETE FROM names WHERE name = ?", [name])

    def remove_images(self, images: Iterable[ImageID]) -> None:
        """Forget images with everything that names them; layers stay."""
        self._delete("DELETE FROM images WHERE id = ?", images)

    def images_using(self, layers: Iterable[Digest]) -> frozenset[ImageID]:
        """Return the images that need one of ``layers``."""
        with self._translated() as connection:
            return frozenset(
                row[0]
                for layer in layers
                for row in connection.execute("SELECT image_id FROM image_layers WHERE layer_id = ?", (layer,))
            )

    def remove_layers(self, layers: Iterable[Digest]) -> None:
        """Forget layers that no image needs."""
        self._delete("DELETE FROM layers WHERE id = ?", layers)

    def _delete(self, statement: str, keys: Iterable[str]) -> None:
        rows = [(key,) for key in keys]

        def delete() -> None:
            with self._transaction() as connection:
                connection.executemany(statement, rows)

        # Nothing would ever be removed from a full disk if there were no space for a record of it.
        self._spending_reserve(delete)

    def _spending_reserve(self, step: Callable[[], None]) -> None:
        """Do what must succeed on a full disk as well."""
        try:
            step()
        except ResourceExhausted:
            if not self._reserve.give_up():
                raise
            step()

    def keep_reserve(self) -> None:
        """Put space aside again, which a removal from a full disk may have used up, if there is some by now."""
        try:
            self._reserve.fill()
        except OSError as error:
            log.warning("no space is reserved for removals from a full disk: %s", error)

    def unused_layers(self) -> frozenset[Digest]:
        with self._translated() as connection:
            rows = connection.execute("SELECT id FROM layers WHERE id NOT IN (SELECT layer_id FROM image_layers)")
            return frozenset(row[0] for row in rows)

    def mark_synced(self, layers: Iterable[Digest]) -> None:
        """Record durably that layers are on the disk and outlive a loss of power."""
        with self._translated() as connection:
            # A layer whose record of this is lost with the power is as lost as one that was not synced.
            connection.execute("PRAGMA synchronous = FULL")
            try:
                with self._transaction():
                    rows = [(layer,) for layer in layers]
                    connection.executemany("UPDATE layers SET boot_id = '' WHERE id = ?", rows)
            finally:
                connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _forget_names(connection: sqlite3.Connection, image: NewImage, stays: Callable[[str], bool]) -> None:
    rows = connection.execute(
        "SELECT tenant, name FROM names WHERE image_id = ? ORDER BY turn DESC, name", (image.id,)
    ).fetchall()
    if len(rows) <= MAX_NAMES:
        return
    # Of each tenant the newest first; the tenants likewise.
    names: dict[str, list[str]] = {}
    for tenant, name in rows:
        if not stays(name):
            names.setdefault(tenant, []).append(name)
    # Of tenants that have as many, the one that asked for none for the longest time, and nobody's last.
    longest_ago = list(reversed(names))
    forgotten = []
    for _ in range(sum(map(len, names.values())) - MAX_NAMES):
        most = max(longest_ago, key=lambda tenant: (len(names[tenant]), tenant != ""))
        forgotten.append(names[most].pop())
    if forgotten:
        log.info("image %s has more than %d names: the %d oldest are forgotten", image.id, MAX_NAMES, len(forgotten))
    connection.executemany("DELETE FROM names WHERE name = ?", [(name,) for name in forgotten])


def _forget_manifests(connection: sqlite3.Connection, image: NewImage) -> None:
    rows = connection.execute(
        "SELECT digest, length(data) FROM manifests WHERE image_id = ? ORDER BY turn DESC, digest", (image.id,)
    ).fetchall()
    came = {digest for digest, _ in image.manifests}
    sizes = itertools.accumulate(size for _, size in rows)
    forgotten = [
        (digest, image.id)
        for place, ((digest, _), up_to) in enumerate(zip(rows, sizes, strict=True))
        if digest not in came and (place >= MAX_MANIFESTS or up_to > MAX_DOCUMENT_BYTES)
    ]
    connection.executemany("DELETE FROM manifests WHERE digest = ? AND image_id = ?", forgotten)
