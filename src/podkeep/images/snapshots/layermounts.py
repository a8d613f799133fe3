"""Mounts of layers below one directory: each layer once, as long as somebody may use it.

Owns the directory and what is mounted in it. It is a mount of its own that nobody else's mounts take part in: what is
mounted below is neither propagated nor copied with a recursive bind mount of the directories above. Whoever uses a
layer gets a clone, and so does not notice when the layer is unmounted here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from podkeep.base.errors import KernelCallError
from podkeep.kernel.mount import mountinfo, mounts
from podkeep.kernel.mount.mounts import Propagation


class LayerMounts:
    """The mounts below ``directory``. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        # As the kernel's table of mounts names it, which is asked what a killed process left.
        self._directory = Path(os.path.realpath(directory))
        self._mounted: set[str] = set()
        self._ready = False

    def clear(self) -> None:
        """Unmount what is mounted, and what a killed process left, even if it is in use."""
        self._mounted.clear()
        self._ready = False
        for entry in mountinfo.under(self._directory):
            # Lazily: clones of containers keep the file system, and whoever works in one is not disturbed.
            mounts.unmount(entry.mount_point, lazy=True)
        with suppress(FileNotFoundError):
            for left in self._directory.iterdir():
                left.rmdir()
            self._directory.rmdir()

    def path(self, name: str, mount: Callable[[], int]) -> Path:
        """Return where the layer ``name`` is mounted; if it is not, ``mount`` makes a detached mount of it.

        :raises KernelCallError: if it cannot be mounted.
        """
        target = self._directory / name
        self._prepare()
        # Somebody may have unmounted it: then what is here is an empty directory.
        if name in self._mounted and mountinfo.is_mount_point(target):
            return target
        fd = mount()
        try:
            target.mkdir(mode=0o700, exist_ok=True)
            mounts.attach(fd, target)
        except BaseException:
            with suppress(OSError):
                target.rmdir()
            raise
        finally:
            os.close(fd)
        self._mounted.add(name)
        return target

    def unmount(self, names: Iterable[str]) -> None:
        """Unmount layers; those that are not mounted are passed over."""
        for name in self._mounted & set(names):
            target = self._directory / name
            if mountinfo.is_mount_point(target):
                mounts.unmount(target, lazy=True)
            with suppress(OSError):
                target.rmdir()
            self._mounted.discard(name)
        if self._ready and not self._mounted:
            self.clear()

    def names(self) -> frozenset[str]:
        return frozenset(self._mounted)

    def _prepare(self) -> None:
        if self._ready and mountinfo.is_mount_point(self._directory):
            return
        # Closed to other users: set-user-ID programs of images must not be reachable from the host's file tree.
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only a mount can be unbindable, so the directory is bound onto itself.
        mounts.bind(self._directory, self._directory)
        try:
            mounts.set_propagation(self._directory, Propagation.UNBINDABLE)
        except KernelCallError:
            mounts.unmount(self._directory, lazy=True)
            raise
        self._ready = True
