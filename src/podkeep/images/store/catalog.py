"""What the store has, in memory: images, names, layers and which blobs became which.

Owns the maps that are read with every request, and the lock under which they, the records and the files change
together. Readers take no lock and see the old maps or the new. Does not own: files (``layer_store``), or when
something comes and goes. Used by the other parts of the store only.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from podkeep.base.errors import InvalidArgument, ResourceExhausted
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, ImageID
from podkeep.base.registries import reference
from podkeep.images.formats import manifest
from podkeep.images.formats.image import Image, ImageRunConfig, decode_run, encode_run, whole_name
from podkeep.images.messages import WantedLayer
from podkeep.images.store.database import BlobRecord, ImageDatabase, ImageRecord, LayerRecord, NewImage

log = logging.getLogger(__name__)

_MIN_ID_PREFIX = 3
NamesInUse = Callable[[], Collection[str]]
"""Returns the names by which containers asked for their images; called on the event loop."""


class _Maps(FrozenStruct, kw_only=True):
    """The records at one moment."""

    images: Mapping[ImageID, Image] = msgspec.field(default_factory=dict)
    names: Mapping[str, ImageID] = msgspec.field(default_factory=dict)
    layers: Mapping[Digest, LayerRecord] = msgspec.field(default_factory=dict)
    blobs: Mapping[Digest, Sequence[BlobRecord]] = msgspec.field(default_factory=dict)


class Catalog:
    """The records of one store.

    :param pinned: patterns of names.
    """

    def __init__(self, database: ImageDatabase, pinned: Sequence[str], names_in_use: NamesInUse = frozenset) -> None:
        self.database = database
        self.names_in_use = names_in_use
        self.changing = threading.RLock()
        """Held by whoever changes records, files and maps together; never taken on the event loop."""
        self.leaving: Counter[ImageID] = Counter()
        """Images that are being forgotten, and found no more. Changed on the event loop."""
        self._now = _Maps()
        self._pinned = pinned

    @property
    def images(self) -> Mapping[ImageID, Image]:
        """Every image, sorted by ID."""
        return self._now.images

    @property
    def layers(self) -> Mapping[Digest, LayerRecord]:
        return self._now.layers

    def refresh(self, *, pinned: Sequence[str] | None = None) -> None:
        """Read the records again, which the caller has changed; pin other images from now on if told to."""
        with self.changing:
            if pinned is not None:
                self._pinned = pinned
            layers = self.database.layers()
            blobs: dict[Digest, list[BlobRecord]] = {}
            for blob in self.database.blobs():
                blobs.setdefault(blob.digest, []).append(blob)
            images = {record.id: self._image(record, layers) for record in self.database.images()}
            names = {name: image.id for image in images.values() for name in (*image.repo_tags, *image.repo_digests)}
            # One assignment: readers without the lock see the old maps or the new ones, never parts of both.
            self._now = _Maps(images=images, names=names, layers=layers, blobs=blobs)

    def record(
        self,
        images: Sequence[NewImage],
        layers: Iterable[LayerRecord],
        blobs: Iterable[BlobRecord],
        *,
        tenant: str,
        in_use: Iterable[str],
    ) -> None:
        """Record what came (``ImageDatabase.add``), and read the records again.

        :param tenant: for whose pod it came, or nothing.
        :param in_use: names by which containers asked for their images; none of them is forgotten, nor is a pinned one.
        """
        with self.changing:
            asked = {whole_name(name) for name in in_use}
            self.database.add(
                images, layers, blobs, tenant=tenant, stays=lambda name: name in asked or self._pins(name)
            )
            self.refresh()

    def _pins(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._pinned)

    def _image(self, record: ImageRecord, layers: Mapping[Digest, LayerRecord]) -> Image:
        names = (*record.tags, *record.digests)
        used, _ = disk_usage(layers[layer] for layer in dict.fromkeys(record.layers))
        user, stop_signal, unusable = self._told(record)
        return Image(
            id=record.id,
            kind=record.kind,
            artifact_type=record.artifact_type,
            repo_tags=record.tags,
            repo_digests=record.digests,
            size=record.config_bytes + used,
            pinned=any(map(self._pins, names)),
            pulled_at=record.pulled_at,
            user=user,
            stop_signal=stop_signal,
            layers=record.layers,
            unusable=unusable,
        )

    def _told(self, record: ImageRecord) -> tuple[str, str, str]:
        """Return an image's user, its stop signal, and what is wrong with its configuration."""
        if record.kind == "artifact":
            return "", "", ""
        if record.user is not None and not record.unusable:
            return record.user, record.stop_signal, ""
        # What is unusable is looked at again by each podkeep that starts, which may take what another one did not.
        before = self._now.images.get(record.id)
        if before is not None and before.kind == "image":
            return before.user, before.stop_signal, before.unusable  # the ID is the digest of the configuration
        run, unusable = self._looked_at(record.id)
        try:
            self.database.looked_at(
                record.id, run=encode_run(run), user=run.user, stop_signal=run.stop_signal, unusable=unusable
            )
        except ResourceExhausted as error:
            log.warning("the configuration of image %s is looked at again when it is needed: %s", record.id, error)
        return run.user, run.stop_signal, unusable

    def _looked_at(self, image: ImageID) -> tuple[ImageRunConfig, str]:
        """Return how an image wants to be run, or what is wrong with that; one that is bad harms no other."""
        config = self.database.configuration(image)
        try:
            return manifest.parse_configuration(config, f"image {image}").run, ""
        except InvalidArgument as error:
            log.warning("no container can be made of an image that is here: %s", error.message)
            return ImageRunConfig(), error.message

    def run_config(self, image: Image) -> ImageRunConfig:
        """Do what ``ImageStore.run_config`` says."""
        if image.kind == "artifact":
            return ImageRunConfig()
        run = self.database.run(image.id)
        return self._looked_at(image.id)[0] if run is None else decode_run(run)

    def named(self, name: str) -> Image | None:
        now = self._now
        return self._staying(now.images[now.names[name]]) if name in now.names else None

    def _staying(self, image: Image | None) -> Image | None:
        return image if image is None or self.leaving[image.id] <= 0 else None

    @property
    def records(self) -> tuple[Mapping[ImageID, Image], Mapping[Digest, LayerRecord]]:
        """Images and layers of one moment."""
        now = self._now
        return now.images, now.layers

    def find(self, text: str) -> Image | None:
        """Return the image that ``text`` names: a reference in any form, a repository digest, an ID or a prefix of
        one.

        :raises InvalidArgument: if an ID prefix fits several images.
        """
        if reference.is_id(text):
            return self._staying(self.images.get(ImageID(text))) or self._by_prefix(text.removeprefix("sha256:"))
        try:
            found = self.named(str(reference.parse(text)))
        except InvalidArgument:
            found = None
        return found or self._by_prefix(text)

    def _by_prefix(self, text: str) -> Image | None:
        if len(text) < _MIN_ID_PREFIX or text.strip("0123456789abcdef"):
            return None
        found = [image for image in self.images.values() if image.id.partition(":")[2].startswith(text)]
        found = [image for image in found if self._staying(image)]
        if len(found) > 1:
            raise InvalidArgument(f"{text!r} is the start of {len(found)} image IDs", hint="write more of the ID")
        return found[0] if found else None

    def here(self, wanted: WantedLayer) -> Digest | None:
        if wanted.layer:
            record = self.layers.get(wanted.layer)
            return wanted.layer if record is not None and record.kind == wanted.kind else None
        # What was found to be a plain tar by its content is what "none" asks for.
        ways = ("auto", "none") if wanted.compression == "none" else (wanted.compression,)
        found = self.of_blob(wanted.digest, ways)
        return next((layer.id for layer in found if layer.kind == "tar" or layer.title == wanted.title), None)

    def same_file(self, wanted: WantedLayer) -> Digest | None:
        """Return a layer that is one file with the wanted one's content, whatever its title."""
        if wanted.kind == "tar":
            return None
        found = self.of_blob(wanted.digest, ("auto",) if wanted.kind == "auto" else ())
        return next((layer.id for layer in found if layer.kind == "file"), None)

    def of_blob(self, digest: Digest | None, compressions: Collection[str] = ()) -> Iterator[LayerRecord]:
        """Yield the layers that were made of a blob, taken to be compressed in one of these ways, or in any."""
        now = self._now
        for blob in now.blobs.get(digest, ()) if digest else ():
            if not compressions or blob.compression in compressions:
                yield now.layers[blob.layer]


def disk_usage(layers: Iterable[LayerRecord]) -> tuple[int, int]:
    """Return the bytes and inodes that layers take on disk together; what file layers share counts once."""
    used = inodes = 0
    shared: set[Digest] = set()
    for layer in layers:
        used += layer.bytes
        inodes += layer.inodes
        if layer.blob is not None:
            if layer.blob in shared:
                used -= layer.data_bytes
                inodes -= 1
            shared.add(layer.blob)
    return used, inodes


def tag_of(text: str) -> str:
    """Return the tag that ``text`` is, in full; an empty string if it is something else."""
    try:
        parsed = reference.parse(text)
    except InvalidArgument:
        return ""
    return "" if parsed.digest else str(parsed)


def spare_tag(text: str, image: Image) -> str:
    """Return the tag that ``text`` is, if the image has another; an empty string if taking it away takes the image."""
    tag = tag_of(text)
    return tag if tag in image.repo_tags and len(image.repo_tags) > 1 else ""
