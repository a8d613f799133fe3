"""What an image looks like when it is mounted as a volume."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podkeep.images.formats.image import Image
from podkeep.images.store.store import ImageStore
from podkeep.kernel.mount import mounts, overlay


@contextmanager
def mounted(store: ImageStore, image: Image, target: Path) -> Iterator[Path]:
    """Mount an image at ``target``, made for it, as the runtime does for a volume."""
    lowers = store.lowers(image, userns=None, at_least=2)
    target.mkdir()
    try:
        overlay.overlay_readonly(lowers, target)
    finally:
        for fd in lowers:
            os.close(fd)
    try:
        yield target
    finally:
        # The kernel may say EBUSY for a moment where other threads start processes with mount namespaces of their own.
        mounts.unmount(target, lazy=True)
        target.rmdir()


def content_of(store: ImageStore, image: Image, target: Path) -> dict[str, bytes | str]:
    """Return the content of an image by path: bytes of a file, ``-> target`` of a link, the mode of a directory."""
    with mounted(store, image, target) as top:
        return {str(path.relative_to(top)): _shown(path) for path in sorted(top.rglob("*"))}


def _shown(path: Path) -> bytes | str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return stat.filemode(path.stat().st_mode) if path.is_dir() else path.read_bytes()
