"""The layers of the store: how they come into place, who needs them, how they go.

Owns the files of layers, through a snapshot driver for each, what helps to merge them, and the leases of pulls and
others that need layers which no image has. Records are the catalog's; the two change together, under its lock: a record
is written after its layer is in place, and deleted before the layer is. Used by the store.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import structs

from podkeep.base.errors import FailedPrecondition, Internal, NotFound
from podkeep.base.frozen import FrozenStruct
from podkeep.base.ids import Digest, ImageID
from podkeep.images.formats.image import Image
from podkeep.images.messages import Available, AvailableLayer, FetchedImage, NewLayer, WantedLayer
from podkeep.images.snapshots import merging
from podkeep.images.snapshots.driver import SnapshotDriver
from podkeep.images.store.catalog import Catalog, disk_usage
from podkeep.images.store.database import LayerRecord
from podkeep.kernel.files import tree_size

log = logging.getLogger(__name__)

_RECORDED = frozenset(("layers", "headers", "erofs", "staging", "trash", "mounted"))
"""Directories of the store whose content is in the records of layers, or not to be counted."""
_BLOCK_BYTES = 512  # st_blocks, whatever the file system's block size is (inode(7))


class FsUsage(FrozenStruct, kw_only=True):
    """What images take (CRI: FilesystemUsage): ``mountpoint`` is the store's directory."""

    mountpoint: str
    used_bytes: int
    inodes_used: int


class LayerStore:
    """The layers below ``root``. Methods may block, and are safe to call from any thread.

    :param drivers: by name, of every layer there may be; new ones go to the one named ``new_layers``.
    """

    def __init__(self, root: Path, catalog: Catalog, drivers: Mapping[str, SnapshotDriver], new_layers: str) -> None:
        self.root = root
        self.driver = drivers[new_layers]
        """Of new layers."""
        self._catalog = catalog
        self._drivers = drivers
        self._merging = merging.Merging(root)
        self._leases: Counter[Digest] = Counter()
        self._making: WeakValueDictionary[tuple[Digest, ...], threading.Lock] = WeakValueDictionary()

    def recover(self, boot_id: str) -> None:
        """Bring records and files into step after whatever ended the process before.

        :raises FailedPrecondition: if there are layers whose driver is not here.
        """
        database = self._catalog.database
        layers = database.layers()
        # Written in another boot and never seen on the disk: after a loss of power such files may be empty.
        doubtful = {key for key, layer in layers.items() if layer.boot_id not in ("", boot_id)}
        unknown = {layer.driver for layer in layers.values()} - self._drivers.keys()
        if unknown:
            raise FailedPrecondition(
                f"{self.root} has layers of snapshot drivers this podkeep lacks: {', '.join(sorted(unknown))}",
                hint="use the podkeep that wrote it, or move the directory away and pull again",
            )
        lost = set(doubtful)
        for driver in self._drivers.values():
            kept = {key for key, layer in layers.items() if layer.driver == driver.name}
            lost |= driver.recover(frozenset(kept - doubtful))
        if lost:
            images = database.images_using(lost)
            log.warning("removing %d images whose layers did not survive: %s", len(images), ", ".join(sorted(images)))
            database.remove_images(images)
            database.remove_layers(lost)
        self._catalog.refresh()
        self._merging.keep_lists(self._catalog.layers)
        self._merging.keep_trees(image.layers for image in self._catalog.images.values())
        self.collect()

    def lease(self, wanted: Sequence[WantedLayer], leased: list[Digest]) -> Available:
        """Say which layers are here, and of the others which are a file that is here under another title. What was told
        stays until ``leased``, to which it is added, is released."""
        with self._catalog.changing:
            found = tuple(map(self._available, wanted))
            told = list(dict.fromkeys(id_ for layer in found if (id_ := layer.layer or layer.same_file)))
            self._leases.update(told)
            leased.extend(told)
            return Available(layers=found)

    def _available(self, wanted: WantedLayer) -> AvailableLayer:
        here = self._catalog.here(wanted)
        return AvailableLayer(layer=here, same_file=None if here else self._catalog.same_file(wanted))

    def hold(self, layers: Iterable[Digest]) -> list[Digest]:
        """Keep layers until they are given to :meth:`release`; return those that are here."""
        with self._catalog.changing:
            held = [layer for layer in dict.fromkeys(layers) if layer in self._catalog.layers]
            self._leases.update(held)
            return held

    def release(self, held: Iterable[Digest]) -> None:
        """Let go of layers that were leased or held; :meth:`collect` removes what is not referenced any more."""
        with self._catalog.changing:
            self._leases.subtract(held)
            self._leases += Counter()  # forget those at zero

    def check(self, image: FetchedImage) -> None:
        """Check, of an image that a worker sent, what no layer alone says: whether its layers can be merged.

        Blocks, for as long as reading lists of directories takes; their layers are leased or staged.

        :raises InvalidArgument: naming the limit.
        """
        staged = {
            new.layer: Path(new.staged.path) for new in image.new if new.staged is not None and new.staged.implied
        }
        self._merging.check(image.layers, staged)

    def commit(self, layer: NewLayer, fresh: Mapping[Digest, LayerRecord], staging: Path, boot_id: str) -> LayerRecord:
        """Put a layer into place: what the worker made, or a file that is here under another title. The caller holds
        the lock, and records what is returned.

        :param fresh: layers in place that are not recorded yet.
        """
        known = fresh.get(layer.layer) or self._catalog.layers.get(layer.layer)
        if known is not None:  # another image of the archive, or another pull, brought it meanwhile
            return known
        # Also of two pulls at the same time one file stays.
        source = self._same_file(layer, fresh) if layer.kind == "file" else None
        if source is not None:
            path = staging / f"link-{len(fresh)}"
            metadata = self._drivers[source.driver].link(source.id, layer.title, path)
            taken = structs.replace(source, id=layer.layer, title=layer.title, metadata=metadata, boot_id=boot_id)
        elif layer.staged is not None:
            staged, path = layer.staged, Path(layer.staged.path)
            taken = LayerRecord(
                id=layer.layer,
                kind=layer.kind,
                title=layer.title,
                blob=layer.digest if layer.kind == "file" else None,
                driver=staged.driver,
                bytes=staged.bytes,
                inodes=staged.inodes,
                data_bytes=staged.data_bytes,
                metadata=staged.metadata,
                implied=staged.implied,
                boot_id=boot_id,
            )
        else:
            raise Internal(f"layer {layer.layer}: the image worker made nothing, and its content is not here")
        # The list goes first: once its layer is in place it may be used.
        self._merging.commit(path, taken.id)
        self._drivers[taken.driver].commit(path, taken.id)
        return taken

    def _same_file(self, layer: NewLayer, fresh: Mapping[Digest, LayerRecord]) -> LayerRecord | None:
        """Return a file with the content of this one."""
        here = (*fresh.values(), *self._catalog.of_blob(layer.digest))
        return next((record for record in here if record.kind == "file" and record.blob == layer.digest), None)

    def collect(self) -> None:
        """Remove layers that no image and no lease needs. Blocks, for as long as removing the files takes."""
        catalog = self._catalog
        with catalog.changing:
            doomed = [layer for layer in catalog.database.unused_layers() if not self._leases[layer]]
            if not doomed:
                return
            keepers = {layer: self._drivers[catalog.layers[layer].driver] for layer in doomed}
            # The record goes before the files: a kill in between leaves files, which the next start removes.
            catalog.database.remove_layers(doomed)
            catalog.refresh()
            for layer in doomed:
                self._merging.forget(layer)
            kept = (image.layers for image in catalog.images.values())
            retired = [(self.driver, tree) for tree in self._merging.retire_trees(kept, self.driver.take_away)]
            retired += [(driver, driver.retire(layer)) for layer, driver in keepers.items()]
        # Outside the lock, as removing the files may take long; nobody finds them any more.
        for driver, tree in retired:
            driver.discard(tree)
        catalog.database.keep_reserve()

    def take_back(self, layers: Iterable[LayerRecord]) -> None:
        """Remove layers that were put into place and are in no record. Blocks, as removing the files does."""
        with self._catalog.changing:
            recorded = self._catalog.database.layers()
            doomed = [(layer.id, self._drivers[layer.driver]) for layer in layers if layer.id not in recorded]
            for layer, _ in doomed:
                self._merging.forget(layer)
            retired = [(driver, driver.retire(layer)) for layer, driver in doomed]
        for driver, tree in retired:
            driver.discard(tree)

    def lowers(self, image: Image, *, userns: int | None, at_least: int) -> list[int]:
        """Do what ``ImageStore.lowers`` says."""
        while True:
            with self._catalog.changing:
                here = self._catalog.images.get(image.id)
                if here is None or self._catalog.leaving[image.id] > 0:
                    raise NotFound(f"image {image.id} is not here any more", hint="pull it again")
                layers = here.layers  # pulled again meanwhile, it may have others
                if not self._merging.lacks(layers):
                    return self._lowers(layers, userns, at_least)
                held = self.hold(layers)
                making = self._making.setdefault(layers, threading.Lock())
            # It may take seconds: others of this image wait for it, nobody else.
            try:
                with making:
                    self._make_top(layers)
            finally:
                self.release(held)
                # It was removed while its layers were held here: nobody else comes to collect them.
                if image.id not in self._catalog.images:
                    self.collect()

    def _make_top(self, layers: tuple[Digest, ...]) -> None:
        """Make the tree that goes on top of these layers, which are held, unless it was made meanwhile."""
        with self._catalog.changing:
            if not self._merging.lacks(layers):
                return
            # Without the pod's user namespace: the tree is made for all pods, with the owners as they are on disk.
            fds = self._stored_lowers(layers, None, 1)
        try:
            staging = self.driver.stage()
            try:
                self._merging.make(staging / "top", layers, fds)
                with self._catalog.changing:
                    self._merging.put(staging / "top", layers)
            finally:
                self.driver.discard(staging)
        finally:
            _close_all(fds)

    def _lowers(self, layers: tuple[Digest, ...], userns: int | None, at_least: int) -> list[int]:
        """Return the layers of an image with what goes on top of them. The caller holds the lock."""
        top = self._merging.top(layers, userns)
        try:
            lowers = merging.visible(self._stored_lowers(layers, userns, at_least - len(top)))
            # What was left out beneath an opaque root counted; the empty tree of no layers does not hide anything.
            if len(top) + len(lowers) < at_least:
                lowers += self.driver.lowers((), userns=userns)
        except BaseException:
            _close_all(top)
            raise
        return top + lowers

    def _stored_lowers(self, layers: Sequence[Digest], userns: int | None, at_least: int) -> list[int]:
        keepers = {self._catalog.layers[layer].driver for layer in layers} or {self.driver.name}
        if len(keepers) == 1:
            return self._drivers[keepers.pop()].lowers(layers, userns=userns, at_least=at_least)
        return self._mixed_lowers(layers, userns)

    def _mixed_lowers(self, layers: Sequence[Digest], userns: int | None) -> list[int]:
        """Do it for layers that several drivers keep, which are two at least."""
        fds: list[int] = []
        try:
            for layer in dict.fromkeys(reversed(layers)):
                fds += self._drivers[self._catalog.layers[layer].driver].lowers([layer], userns=userns)
        except BaseException:
            _close_all(fds)
            raise
        return fds

    def unmount_unused(self, images: Iterable[ImageID]) -> None:
        """Let go of the mounts of layers that none of ``images`` has. The caller holds the lock."""
        here = self._catalog.images
        keep = {layer for image in images if image in here for layer in here[image].layers}
        for driver in self._drivers.values():
            driver.release(frozenset(keep))

    def usage(self) -> FsUsage:
        """Do what ``ImageStore.usage`` says."""
        used, inodes = disk_usage(self._catalog.layers.values())
        used, inodes = used + self.root.lstat().st_blocks * _BLOCK_BYTES, inodes + 1
        for path in self.root.iterdir():
            size = None if path.name in _RECORDED else tree_size.measure(str(path))
            with suppress(FileNotFoundError):  # of SQLite's files
                used += size.used_bytes if size else path.lstat().st_blocks * _BLOCK_BYTES
                inodes += size.inodes if size else 1
        return FsUsage(mountpoint=str(self.root), used_bytes=used, inodes_used=inodes)

    def merging_bytes(self, layers: Iterable[Digest], images: Iterable[tuple[Digest, ...]]) -> int:
        """Return what helps to merge takes on disk for these layers, and for images with just these."""
        return self._merging.used_bytes(layers, images)

    def strays(self, *, remove: bool) -> list[str]:
        """Do what ``ImageStore.strays`` says."""
        found: list[str] = []
        doomed: list[tuple[SnapshotDriver, Path]] = []
        with self._catalog.changing:
            for driver in self._drivers.values():
                known = {key for key, layer in self._catalog.layers.items() if layer.driver == driver.name}
                for layer in sorted(driver.kept() - known):
                    found.append(f"{driver.name}: {layer}")
                    if remove:
                        doomed.append((driver, driver.retire(layer)))
        for driver, tree in doomed:
            driver.discard(tree)
        return found

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.close()


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
