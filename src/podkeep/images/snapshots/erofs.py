"""Layers as EROFS images over the plain tar: two files per layer, nothing unpacked. Needs Linux 6.12.

Owns ``erofs/`` below its root, and the mounts of layers. A layer is mounted
when it is first used and shared by all who use it after that, so that they share one page cache as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from podkeep.base.errors import DataLoss, FailedPrecondition, Internal, KernelCallError, PodkeepError
from podkeep.base.ids import Digest
from podkeep.images.layers.erofs import keeping, layout
from podkeep.images.layers.forms import metadata_digest
from podkeep.images.layers.names import EROFS, METADATA
from podkeep.images.snapshots.layer_directories import LayerDirectories, file_name, gone
from podkeep.images.snapshots.layermounts import LayerMounts
from podkeep.kernel.mount import mounts
from podkeep.kernel.mount.erofs import mount_erofs
from podkeep.kernel.mount.mounts import MountAttr

_ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV
"""Of the mounts as such. An overlay of them has its own."""
_PIECE = 1 << 20


class ErofsDriver(LayerDirectories):
    """The ``erofs`` snapshot driver."""

    name = EROFS

    def __init__(self, root: Path, mounted: Path | None = None) -> None:
        """
        :param mounted: directory to mount layers below; without one nothing can be mounted, but everything be read.
        """
        super().__init__(root, EROFS)
        self._mounts = LayerMounts(mounted) if mounted else None

    def commit(self, unpacked: Path, layer: Digest) -> None:
        """Move the directory with the two files into place; one that is there already wins.

        :raises Internal: if it cannot be moved, or is not what is made of a layer.
        """
        try:
            # After the process that made it has ended: nobody can change it any more.
            keeping.check(unpacked)
        except (OSError, ValueError) as error:
            raise Internal(f"layer {layer}: what was made of it is no layer: {error}") from error
        super().commit(unpacked, layer)

    def link(self, source: Digest, title: str, staged: Path) -> str:
        """Make a directory with a hard link to the content of ``source`` and metadata with the other name."""
        staged.mkdir(mode=0o755)
        here = self.path(source)
        os.link(here / keeping.FILE, staged / keeping.FILE)
        keeping.write_file_image(str(staged / METADATA), title, keeping.file_size(here / METADATA))
        return metadata_digest(staged)

    def has(self, layer: Digest) -> bool:
        here = self.path(layer)
        return (here / METADATA).is_file() and keeping.content(here).is_file()

    def retire(self, layer: Digest) -> Path:
        """Unmount the layer and take it out of ``erofs/`` in one step."""
        if self._mounts:
            self._mounts.unmount([file_name(layer)])
        return super().retire(layer)

    def recover(self, known: frozenset[Digest]) -> frozenset[Digest]:
        """Unmount and remove what a killed process left; return the known layers that are gone."""
        if self._mounts:
            self._mounts.clear()
        gone = super().recover(known)
        return gone | {layer for layer in known - gone if not self.has(layer)}

    def tar(self, layer: Digest) -> Iterator[bytes]:
        """Yield what was stored: the plain tar, or the file without what fills its last block."""
        here = self.path(layer)
        content = keeping.content(here)
        try:
            is_file = content.name == keeping.FILE
            left = keeping.file_size(here / METADATA) if is_file else keeping.tar_size(here)
            with content.open("rb", buffering=0) as data:
                while left and (piece := data.read(min(left, _PIECE))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise DataLoss(
                f"layer {layer} cannot be read: {error}", hint="remove the image and pull it again"
            ) from error

    def metadata_digest(self, layer: Digest) -> str:
        """Return the digest of the layer's metadata image as it is on disk.

        :raises OSError: if it cannot be read.
        """
        return metadata_digest(self.path(layer))

    def inodes(self, layer: Digest) -> int | None:
        """Return None: the metadata's digest says of each inode that it is there."""
        return None

    def release(self, keep: frozenset[Digest]) -> None:
        if self._mounts:
            self._mounts.unmount(self._mounts.names() - {file_name(layer) for layer in keep})

    def close(self) -> None:
        """Unmount every layer; who uses one has it still."""
        if self._mounts:
            self._mounts.clear()

    def _tree(self, layer: Digest) -> Path:
        if self._mounts is None:
            raise FailedPrecondition(f"layer {layer}: this store was opened without a place for mounts")
        if not self.has(layer):
            raise gone(self.path(layer))
        return self._mounts.path(file_name(layer), lambda: _mount(self.path(layer)))


def _mount(directory: Path) -> int:
    return mount_erofs(directory / METADATA, [keeping.content(directory)], attrs=_ATTRIBUTES)


def probe(root: Path) -> str:
    """Return why layers below ``root`` cannot be kept this way here; empty if they can.

    Tried by doing: a layer with one file is made, mounted, cloned and read.
    """
    # In the store's own file system: whether EROFS takes files of it is what is asked.
    with tempfile.TemporaryDirectory(prefix="probe-", dir=root) as name:
        directory = Path(name)
        # A block and a byte, so that the filler of the last block is tried, too.
        content = os.urandom(layout.BLOCK + 1)
        (directory / keeping.FILE).write_bytes(content.ljust(2 * layout.BLOCK, b"\0"))
        keeping.write_file_image(str(directory / METADATA), "file", len(content))
        at = LayerMounts(directory / "mounted")
        try:
            fd = mounts.clone_tree(at.path("layer", lambda: _mount(directory)), recursive=False)
            try:
                file = os.open("file", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
                try:
                    found = os.read(file, 2 * layout.BLOCK)
                finally:
                    os.close(file)
            finally:
                os.close(fd)
        except KernelCallError as error:
            # What the kernel lacks says more to a user than the call that it refused.
            return error.hint or str(error)
        except (PodkeepError, OSError) as error:
            return str(error)
        finally:
            at.clear()
    return "" if found == content else "what is read of a layer is not what was written"
